"""Semantics of every instruction on memory: the executable definition of the instruction set.

| name    | shape                     | meaning                                                              |
|---------|---------------------------|----------------------------------------------------------------------|
| ddr     | uint8 [size_blocks * 32]  | the memory map of the program; changed in place                      |
| on chip | uint8 [size_bytes] each   | one of each on-chip memory per core, but one SHARED; NaNs at the start |
| words   | list of 32 ints           | one record, decoded once per stream                                  |
| work    | int64 [n] per stream      | bytes that crossed the path (COPY, IM2COL, FRACTAL, FIXPIPE), MACs (products) or |
|         |                           | bytes written (VECTOR), counted by the interpreter itself            |

It knows records and bytes, no graph and no clock.  Any legal order gives the same values (a marked graph).  So a core
runs in stream order until a WAIT finds its flag empty, and from there on queue by queue.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from simulator.instruction_effects import Bytes, Words, copy, fixpipe, fractal, im2col, mmad, mmad_im2col
from simulator.npu import isa
from simulator.npu.errors import BadInputError, DeadlockError
from simulator.npu.isa import Op
from simulator.npu.machine import Machine
from simulator.npu.machine_parts import Rounding
from simulator.npu.parts import BLOCK_BYTES, Engine, Memory
from simulator.npu.program import Program
from simulator.vector_unit import vector

Handler = Callable[[list[Bytes], Words], int]
Watch = Callable[[int, list[Bytes], Words], None]  # core, memories as they are before a record, the record
FlagKey = tuple[int, int, int, int, int]  # source core and engine, destination core and engine, id
_SET = int(Op.SET)


@dataclass(frozen=True)
class Counters:
    """Counts of a run.  `work` is per stream and record (see the table at the top of `simulator.functional`)."""

    macs: int
    ddr_read_bytes: int
    ddr_write_bytes: int
    work: tuple[NDArray[np.int64], ...]


def fill_undefined(memory: Bytes, rng: np.random.Generator) -> None:
    """Fill with NaNs (of float16 and of float32 alike) with a payload from `rng`, so that reads of unwritten memory show."""
    words = memory[: memory.size // 2 * 2].view(np.uint16)
    noise = rng.integers(0, 1 << 16, words.size, np.uint16)
    words[:] = 0x7F80 | (noise & 0x803F) | 1


class Memories:
    """The byte arrays that records address: `cores[core][memory]`; DDR and SHARED are the same in all cores."""

    def __init__(self, machine: Machine, ddr: Bytes, scramble_seed: int) -> None:
        rng = np.random.default_rng(scramble_seed)
        self.ddr = ddr
        self.cores: list[list[Bytes]] = []
        for _ in range(machine.cores):
            memories = [ddr]
            memories += [self._undefined(machine, memory, rng) for memory in list(Memory)[1:] if memory != Memory.SHARED]
            self.cores.append(memories)
        shared = self._undefined(machine, Memory.SHARED, rng)
        for memories in self.cores:
            memories.append(shared)

    @staticmethod
    def _undefined(machine: Machine, memory: Memory, rng: np.random.Generator) -> Bytes:
        array = np.empty(machine.buffer_blocks(memory) * BLOCK_BYTES, np.uint8)
        fill_undefined(array, rng)
        return array


def execute(
    program: Program, machine: Machine, ddr: Bytes, *, scramble_seed: int = 0, verify: bool = True, watch: Watch | None = None
) -> Counters:
    """Run a program on `ddr` (uint8, at least `memory.size_blocks` blocks, changed in place).

    `scramble_seed` gives the initial content of on-chip memory; no value of a correct program depends on it.  Pass
    `verify=False` only for a program that has been verified before.  `watch` is called before every MMAD.
    Raises `ProgramError` for an illegal record, `DeadlockError`, `BadInputError` for a wrong `ddr`.
    """
    if verify:
        program.verify(machine)
    needed = program.memory.size_blocks * BLOCK_BYTES
    if ddr.dtype != np.uint8 or ddr.ndim != 1 or ddr.size < needed or not ddr.flags.c_contiguous or not ddr.flags.writeable:
        raise BadInputError(f"ddr: found {ddr.dtype} {list(ddr.shape)}, expected a writeable contiguous uint8 array of at least [{needed}]")
    memories = Memories(machine, ddr, scramble_seed)
    flags: dict[FlagKey, int] = {}
    handlers = _HANDLERS[machine.rounding]
    by_core = [handlers if watch is None else _watched(handlers, partial(watch, core)) for core in range(len(program.streams))]
    cores = [_Core(core, code.tolist(), memories.cores[core], flags, by_core[core]) for core, code in enumerate(program.streams)]
    with np.errstate(all="ignore"):
        _run(cores, _Core.run_stream)
        if any(not core.done for core in cores):
            for core in cores:
                core.split_queues()
            _run(cores, _Core.run_queues)
    blocked = [line for core in cores for line in core.blocked()]
    if blocked:
        shown = "; ".join(blocked[:8]) + (f"; and {len(blocked) - 8} more" if len(blocked) > 8 else "")
        raise DeadlockError(f"deadlock: {shown}")
    return _count(program, cores)


def apply(memories: list[Bytes], record: Words, rounding: Rounding = "float") -> int:
    """Execute one record (not SET or WAIT) on the memories of one core (`Memories.cores[i]`) with this rounding; returns its work."""
    handler = _HANDLERS[rounding][record[isa.OP]]
    if handler is None:
        raise BadInputError(f"opcode {record[isa.OP]}: expected one that works on memories, not a flag")
    with np.errstate(all="ignore"):
        return handler(memories, record)


def _run(cores: list[_Core], step: Callable[[_Core], bool]) -> None:
    """Step all cores in turn until none makes progress."""
    progress = True
    while progress:
        progress = False
        for core in cores:
            progress = step(core) or progress


def _count(program: Program, cores: list[_Core]) -> Counters:
    """Sums over the work of all records."""
    work = tuple(np.array(core.work, np.int64) for core in cores)
    macs = read = written = 0
    for code, record_work in zip(program.streams, work, strict=True):
        copies = code[:, isa.OP] == Op.COPY
        macs += int(record_work[np.isin(code[:, isa.OP], isa.PRODUCT_OPS)].sum())
        read += int(record_work[copies & (code[:, isa.SRC] == Memory.DDR)].sum())
        written += int(record_work[copies & (code[:, isa.DST] == Memory.DDR)].sum())
        results = code[(code[:, isa.OP] == Op.FIXPIPE) & (code[:, isa.DST] == Memory.DDR)].astype(np.int64)
        dtype = results[:, isa.DTYPE]
        planes = -(-results[:, isa.F_N1] * isa.COLUMNS[dtype] // isa.TYPE_LANES[dtype])
        written += int((results[:, isa.F_M] * planes).sum()) * BLOCK_BYTES
    return Counters(macs, read, written, work)


class _Core:
    """The stream of one core and its progress."""

    def __init__(
        self, core: int, words: list[Words], memories: list[Bytes], flags: dict[FlagKey, int], handlers: Sequence[Handler | None]
    ) -> None:
        self.handlers = handlers
        self.core, self.words, self.memories, self.flags = core, words, memories, flags
        self.work = [0] * len(words)
        self.position = 0
        self.queues: dict[int, deque[int]] = {}

    @property
    def done(self) -> bool:
        return self.position == len(self.words)

    def run_stream(self) -> bool:
        """Run in stream order up to the first blocked WAIT; returns whether there was progress."""
        start, words, memories, work, handlers = self.position, self.words, self.memories, self.work, self.handlers
        for i in range(start, len(words)):
            record = words[i]
            handler = handlers[record[0]]
            if handler is not None:
                work[i] = handler(memories, record)
            elif not self._execute_flag(record):
                self.position = i
                return i > start
        self.position = len(words)
        return self.position > start

    def split_queues(self) -> None:
        """Split the rest of the stream into queues, which then run independently."""
        for i in range(self.position, len(self.words)):
            self.queues.setdefault(self.words[i][isa.ENGINE], deque()).append(i)
        self.position = len(self.words)

    def run_queues(self) -> bool:
        """Run every queue up to its first blocked WAIT; returns whether there was progress."""
        progress = False
        for queue in self.queues.values():
            while queue:
                record = self.words[queue[0]]
                handler = self.handlers[record[0]]
                if handler is not None:
                    self.work[queue[0]] = handler(self.memories, record)
                elif not self._execute_flag(record):
                    break
                queue.popleft()
                progress = True
        return progress

    def _flag_key(self, record: Words) -> FlagKey:
        local_queue, remote_queue = (self.core, record[isa.ENGINE]), (record[isa.FLAG_CORE], record[isa.FLAG_ENGINE])
        source, target = (local_queue, remote_queue) if record[isa.OP] == _SET else (remote_queue, local_queue)
        return (*source, *target, record[isa.FLAG_ID])

    def _execute_flag(self, record: Words) -> bool:
        """Execute a SET or WAIT; False, without effect, if a WAIT finds its flag empty."""
        key = self._flag_key(record)
        count = self.flags.get(key, 0)
        if record[isa.OP] == _SET:
            self.flags[key] = count + 1
            return True
        self.flags[key] = max(0, count - 1)
        return count > 0

    def blocked(self) -> list[str]:
        """Descriptions of the WAITs that block queues."""
        lines = []
        for engine, queue in sorted(self.queues.items()):
            if queue:
                source, source_engine, _, _, flag = self._flag_key(self.words[queue[0]])
                lines.append(
                    f"core {self.core} {Engine(engine).name} instruction {queue[0]} waits for flag {flag} "
                    f"of core {source} {Engine(source_engine).name}"
                )
        return lines


def _handlers(fixpipe: Handler) -> list[Handler | None]:
    """Handlers by opcode."""
    handlers: list[Handler | None] = [None] * 64
    handlers[Op.COPY] = copy
    handlers[Op.IM2COL] = im2col
    handlers[Op.FRACTAL] = fractal
    handlers[Op.MMAD] = mmad
    handlers[Op.MMAD_IM2COL] = mmad_im2col
    handlers[Op.FIXPIPE] = fixpipe
    for op in isa.OPS:
        if op >= isa.FIRST_VECTOR_OP:
            handlers[op] = vector
    return handlers


def _watched(handlers: Sequence[Handler | None], watch: Callable[[list[Bytes], Words], None]) -> list[Handler | None]:
    """Handlers that call `watch` before every MMAD."""

    def product(memories: list[Bytes], record: Words) -> int:
        watch(memories, record)
        return mmad(memories, record)

    return [product if op == Op.MMAD else handler for op, handler in enumerate(handlers)]


_HANDLERS: dict[Rounding, list[Handler | None]] = {
    "float": _handlers(fixpipe),
    "fixed_point": _handlers(partial(fixpipe, fixed_point=True)),
}
