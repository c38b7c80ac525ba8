"""Program: one instruction stream per core and the memory map they run on; `verify` says what is illegal."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache, partial
from typing import Literal, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from simulator.npu import isa
from simulator.npu.access import MAX_RANGES, accesses, extent
from simulator.npu.errors import BadInputError
from simulator.npu.grant import Grant
from simulator.npu.isa import OPS, WORDS, Op
from simulator.npu.machine import Machine
from simulator.npu.parts import BLOCK_BYTES, BYTES, DataType, Engine, Memory, TypeName
from simulator.npu.typed_words import TYPE_RULES

Code = NDArray[np.int32]
BufferKind = Literal["constant", "input", "output", "scratch"]


class ProgramError(BadInputError):
    """An instruction that this machine cannot take: which one, why, and what would be legal."""


class DeadlockError(ProgramError):
    """A program that cannot run to its end: which queues stand, and what each of them waits for."""


@dataclass(frozen=True)
class DdrBuffer:
    """A named range of DDR.  For inputs and outputs also how the host lays values into it.

    shape: logical (n, c, h, w).  onnx_shape: the model's own shape, as the user passes it.
    lanes: for every logical channel, its lane in [C1][H][W][C0] (lane // C0 is the plane); () where not exposed.
    pixel_lanes: C0, or 4 for an image in the four-lane layout [H][pitch] with pitch a multiple of the pixels in a block.
    planes: C1 of the storage.
    order: the permutation of (n, c, h, w) in which the host has the values, row-major.
    dtype: of its values; None where it is that of the map.
    """

    name: str
    kind: BufferKind
    offset_blocks: int
    size_blocks: int
    shape: tuple[int, int, int, int] = (0, 0, 0, 0)
    onnx_shape: tuple[int, ...] = ()
    lanes: tuple[int, ...] = ()
    pixel_lanes: int = 0
    planes: int = 0
    order: tuple[int, int, int, int] = (0, 1, 2, 3)
    dtype: TypeName | None = None


@dataclass(frozen=True)
class MemoryMap:
    """DDR addresses shared by every variant of a model.  Constants come first and are read-only.

    dtype: of the values of buffers that have none of their own.
    """

    dtype: DataType
    buffers: tuple[DdrBuffer, ...]
    size_blocks: int

    @property
    def constant_blocks(self) -> int:
        """One past the last read-only block."""
        return max((b.offset_blocks + b.size_blocks for b in self.buffers if b.kind == "constant"), default=0)

    def of_kind(self, kind: BufferKind) -> tuple[DdrBuffer, ...]:
        return tuple(b for b in self.buffers if b.kind == kind)

    def type_of(self, buffer: DdrBuffer) -> DataType:
        """Of a buffer's values."""
        return self.dtype if buffer.dtype is None else DataType[buffer.dtype]

    def verify(self) -> None:
        """Raise `ProgramError` where buffers overlap, leave the map, or constants are not first."""
        end = 0
        constant_end = self.constant_blocks
        for b in sorted(self.buffers, key=lambda b: b.offset_blocks):
            if b.offset_blocks < end or b.size_blocks < 0:
                raise ProgramError(f"memory map: buffer {b.name!r} at block {b.offset_blocks} overlaps its predecessor")
            if b.kind != "constant" and b.offset_blocks < constant_end:
                raise ProgramError(f"memory map: buffer {b.name!r} ({b.kind}) lies between constants")
            end = b.offset_blocks + b.size_blocks
        if end > self.size_blocks:
            raise ProgramError(f"memory map: buffers end at block {end}, the map has {self.size_blocks}")


@dataclass(frozen=True)
class Program:
    """Streams (int32 [n, 32] per core, see `isa`) for one machine, over one memory map."""

    machine: str
    streams: tuple[Code, ...]
    memory: MemoryMap

    @property
    def instructions(self) -> int:
        return sum(len(code) for code in self.streams)

    @cached_property
    def digest(self) -> str:
        """32 hex digits over the streams' bytes."""
        h = hashlib.sha256(self.machine.encode())
        for code in self.streams:
            h.update(len(code).to_bytes(8, "little"))
            h.update(np.ascontiguousarray(code, "<i4").data)
        return h.hexdigest()[:32]

    def verify(self, machine: Machine) -> None:
        """Raise `ProgramError` at the first illegal record.

        Checked: opcode, data type, engine and path of the machine, parameter ranges, every touched block inside its
        memory, no write to constants, flags paired (as many SETs as WAITs per flag, ids and cores that exist).
        Whether flags suffice is the sanitizer's question.
        """
        balance = self.verify_records(machine)
        limits = block_limits(self.memory, machine)
        for core, code in enumerate(self.streams):
            at, memory, lo, hi = _first_out_of_bounds(np.ascontiguousarray(code), limits)
            if at >= 0:
                name, size = Memory(memory).name, int(limits[memory, 0])
                what = "a read-only constant" if hi <= size and lo >= 0 else f"outside the {size} blocks of {name}"
                raise ProgramError(f"core {core} instruction {at}: {_op(code, at)} touches {name} blocks {lo}..{hi}, {what}")
        for (source, source_engine, target, target_engine, flag), count in balance.items():
            if count:
                raise ProgramError(
                    f"flag {flag} of core {source} {Engine(source_engine).name} -> core {target} {Engine(target_engine).name}: "
                    f"{'SETs' if count > 0 else 'WAITs'} exceed the others by {abs(count)}"
                )

    @cached_property
    def needs(self) -> Grant:
        """The least that it runs with: the blocks up to the last one that it touches, and the cores up to the last one that does something.

        Of a program that `verify_records` passes.
        """
        l1, shared = (max(sizes) for sizes in zip(*map(on_chip_ends, self.streams), strict=True))
        return Grant(l1, shared, max((core + 1 for core, code in enumerate(self.streams) if len(code)), default=1))

    def verify_records(self, machine: Machine) -> dict[tuple[int, ...], int]:
        """The part of `verify` that looks at records one by one, without addresses; returns SETs - WAITs of every flag.

        What passes can be handed to `access.accesses`.  Raises `ProgramError`.
        """
        self.memory.verify()
        if self.machine != machine.digest:
            raise ProgramError(f"program is for machine {self.machine}, this is {machine.name} ({machine.digest})")
        if len(self.streams) != machine.cores:
            raise ProgramError(f"program has {len(self.streams)} streams, {machine.name} has {machine.cores} cores")
        balance: dict[tuple[int, ...], int] = {}
        for core, code in enumerate(self.streams):
            _check_shape(code, core)
            _check_kinds(code, core, machine)
            _check_parameters(code, core, machine)
            _count_flags(code, core, machine, balance)
        return balance


def block_limits(memory_map: MemoryMap, machine: Machine) -> NDArray[np.int64]:
    """int64 [7, 2]: size of every memory in blocks, and its first writeable block."""
    limits = np.zeros((len(Memory), 2), np.int64)
    limits[Memory.DDR] = (memory_map.size_blocks, memory_map.constant_blocks)
    for memory in Memory:
        if memory != Memory.DDR:
            limits[memory, 0] = machine.buffer_blocks(memory)
    return limits


def _op(code: Code, i: int) -> str:
    return Op(int(code[i, isa.OP])).name


def _check_shape(code: Code, core: int) -> None:
    if code.ndim != 2 or code.shape[1] != WORDS or code.dtype != np.int32:
        raise ProgramError(f"core {core}: a stream is int32 [n, {WORDS}], found {code.dtype} {list(code.shape)}")


def _opcodes(code: Code) -> Code:
    """Of all records, side by side: where they stand, each is on a cache line of its own, and so is every other word."""
    return np.ascontiguousarray(code[:, isa.OP])


def _rows(opcodes: Code, *ops: Op) -> NDArray[np.int64]:
    """Records of these opcodes: a check looks at the words of those alone."""
    if len(ops) == 1:
        return np.flatnonzero(opcodes == ops[0])
    wanted = np.zeros(max(OPS) + 1, bool)
    wanted[list(ops)] = True
    return np.flatnonzero(wanted[opcodes])


def _reject(code: Code, core: int, rows: NDArray[np.int64], bad: NDArray[np.bool_], why: str) -> None:
    if bad.any():
        i = int(rows[np.argmax(bad)])
        raise ProgramError(f"core {core} instruction {i}: {why} (record {code[i].tolist()})")


class _Legal(NamedTuple):
    """What a machine takes.

    types: bool [opcodes, data types].  moves: bool [opcodes, engines, sources, destinations].  unpriced: VECTOR operations that it has not.
    """

    types: NDArray[np.bool_]
    moves: NDArray[np.bool_]
    unpriced: tuple[Op, ...]


@lru_cache(maxsize=64)
def _legal(machine: Machine) -> _Legal:
    multiplied = {DataType[name] for name in machine.matrix.data_types}
    multiplied |= set(BYTES) if DataType.int8 in multiplied else set()
    types = np.zeros((max(OPS) + 1, len(DataType)), bool)
    moves = np.zeros((max(OPS) + 1, len(Engine), len(Memory), len(Memory)), bool)
    for op, spec in OPS.items():
        types[op, [dtype for dtype in spec.types if op not in isa.PRODUCTS or dtype in multiplied]] = True
        if not spec.moves:
            moves[op, list(spec.engines)] = True
        for source, destination in spec.moves:
            if spec.cost_class and source != machine.vector_memory:
                continue
            path = machine.path(source, destination)
            if spec.engines or path is not None:
                moves[op, spec.engines[0] if path is None or spec.engines else Engine[path.engine], source, destination] = True
    priced = {op for op, spec in OPS.items() if spec.cost_class and getattr(machine.vector, f"{spec.cost_class}_cycles") is not None}
    return _Legal(types, moves, tuple(op for op, spec in OPS.items() if spec.cost_class and op not in priced))


def _within(words: NDArray[np.int32], limit: int) -> NDArray[np.bool_]:
    return (words >= 0) & (words < limit)


def _check_kinds(code: Code, core: int, machine: Machine) -> None:
    opcodes, everywhere = _opcodes(code), np.arange(len(code))
    known = np.isin(opcodes, list(OPS))
    _reject(code, core, everywhere, ~known, f"unknown opcode; opcodes: {', '.join(f'{op.name}={int(op)}' for op in OPS)}")
    is_flag, legal = (opcodes == Op.SET) | (opcodes == Op.WAIT), _legal(machine)
    for rows in (np.flatnonzero(is_flag), np.flatnonzero(~is_flag)):
        op, engine = opcodes[rows], code[rows, isa.ENGINE]
        bad = ~_within(engine, len(Engine))
        if not is_flag[rows[:1]].any():
            dtype, source, destination = (code[rows, word] for word in (isa.DTYPE, isa.SRC, isa.DST))
            _reject(code, core, rows, ~np.isin(dtype, machine.data_types), f"data type not supported by {machine.name}")
            bad_type = ~legal.types[op, dtype]
            if bad_type.any():
                first = Op(int(op[np.argmax(bad_type)]))
                accepted = ", ".join(DataType(i).name for i in np.flatnonzero(legal.types[first]).tolist())
                _reject(code, core, rows, bad_type, f"data type not supported by {first.name} on {machine.name}; accepted: {accepted}")
            for missing in legal.unpriced:
                why = f"{machine.name} has no {missing.name}: vector.{OPS[missing].cost_class}_cycles is not given"
                _reject(code, core, rows, op == missing, why)
            bad |= ~(_within(source, len(Memory)) & _within(destination, len(Memory)))
            bad = bad | ~legal.moves[op, np.where(bad, 0, engine), np.where(bad, 0, source), np.where(bad, 0, destination)]
        if bad.any():
            name = _op(code, int(rows[np.argmax(bad)]))
            _reject(code, core, rows, bad, f"{name}: no such path or engine on {machine.name}")


# opcode -> (word, smallest, largest) of parameters; sources and strides are bounded by the memories instead
_POSITIVE = 2**31 - 1
_RANGES: dict[tuple[Op, ...], tuple[tuple[int, int, int], ...]] = {
    (Op.COPY,): ((isa.C_LENGTH, 1, _POSITIVE), (isa.C_COUNT, 1, _POSITIVE), (isa.C_COUNT2, 1, _POSITIVE)),
    (Op.IM2COL,): (
        *((word, 1, 1 << 20) for word in (isa.I_H, isa.I_W, isa.I_PITCH, isa.I_PLANE, isa.I_OW, isa.I_M, isa.I_K)),
        *((word, 1, isa.MAX_WINDOW) for word in (isa.I_KH, isa.I_KW, isa.I_SH, isa.I_SW, isa.I_DH, isa.I_DW)),
        (isa.I_PT, 0, isa.MAX_WINDOW),
        (isa.I_PL, -7, isa.MAX_WINDOW),  # below 0 the image begins in front of the first window: inside a block where pixels share one
        *((word, 0, 1 << 24) for word in (isa.I_MOFF, isa.I_KOFF)),
        *((word, 0, 1 << 20) for word in (isa.I_RING, isa.I_FIRST)),
        (isa.I_MPAD, 1, 1 << 20),
        (isa.I_LANES, 4, 32),
        (isa.S0, 0, _POSITIVE),  # what is read may start behind it, so the bounds check alone does not see its sign
        (isa.PAD, -1, 255),
    ),
    (Op.MMAD_IM2COL,): (
        *((word, 1, 1 << 20) for word in (isa.I_H, isa.I_W, isa.I_PITCH, isa.I_PLANE, isa.I_OW, isa.I_M, isa.I_K, isa.W_N1)),
        *((word, 0, 1 << 24) for word in (isa.I_MOFF, isa.I_KOFF)),
        *((word, 0, 1 << 20) for word in (isa.I_RING, isa.I_FIRST)),
        (isa.I_MPAD, 1, 1 << 20),
        (isa.I_LANES, 4, 32),
        (isa.W_ACC, 0, 1),
        (isa.W_RSTRIDE, 0, _POSITIVE),
        (isa.S0, 0, _POSITIVE),
        (isa.PAD, -1, 255),
    ),
    (Op.FRACTAL,): (
        (isa.R_PLANE, 1, _POSITIVE), (isa.R_PIXELS, 1, 1 << 24), (isa.R_K, 1, 1 << 16), (isa.R_N1, 1, 1 << 16), (isa.R_TRANSPOSE, 0, 1),
        (isa.PAD, -1, 255),
    ),
    (Op.VCONVERT,): ((isa.V_IMM, min(DataType), max(DataType)),),
    (Op.MMAD,): ((isa.M_MPAD, 1, 1 << 20), (isa.M_K, 1, 1 << 20), (isa.M_N1, 1, 1 << 20), (isa.M_ACC, 0, 1)),
    (Op.FIXPIPE,): (
        (isa.F_M, 1, 1 << 20), (isa.F_MPAD, 1, 1 << 20), (isa.F_N1, 1, 1 << 20),
        (isa.F_DPLANE, 0, _POSITIVE), (isa.F_RPLANE, 0, _POSITIVE), (isa.F_ACT, 0, 2),
        (isa.F_LIMIT, 0, isa.float_bits(float(np.finfo(np.float32).max))),
        (isa.F_SCALE, -1, _POSITIVE), (isa.F_LAST, 0, 1),
    ),
    tuple(op for op in OPS if op >= isa.FIRST_VECTOR_OP): ((isa.V_BLOCKS, 1, isa.REPEAT_BLOCKS), (isa.V_REPEATS, 1, isa.MAX_REPEATS)),
}  # fmt: skip


_MAX_COPY_BLOCKS = 1 << 24  # bursts may fall on one another, so the memories alone do not bound what a COPY moves


def _check_parameters(code: Code, core: int, machine: Machine) -> None:
    opcodes = _opcodes(code)
    found = {op: _rows(opcodes, op) for op in (Op.COPY, Op.IM2COL, Op.MMAD, Op.FIXPIPE, Op.MMAD_IM2COL)}
    copies, images, products, results, windows = found.values()
    if len(windows):
        images = np.concatenate((images, windows))
    for ops, limits in _RANGES.items():
        rows = found[ops[0]] if len(ops) == 1 and ops[0] in found else _rows(opcodes, *ops)
        for word, low, high in limits if len(rows) else ():
            values = code[rows, word]
            _reject(code, core, rows, (values < low) | (values > high), f"parameter word {word} must be in {low}..{high}")
    for word, low in ((isa.W_KERNEL, 1), (isa.W_STRIDE, 1), (isa.W_DILATION, 1), (isa.W_PADDING, 0)) if len(windows) else ():
        y, x = isa.pair(code[windows, word].astype(np.int64))
        bad = (y < low) | (y > isa.MAX_WINDOW) | (x < (low or -7)) | (x > isa.MAX_WINDOW)
        _reject(code, core, windows, bad, f"parameter word {word} must hold two of {low}..{isa.MAX_WINDOW}")
    side = int(machine.vector_memory)  # 0 is UB, too
    bad = (code[results, isa.F_SIDE] != side) & (code[results, isa.F_SIDE] != side % Memory.UB)
    _reject(code, core, results, bad, f"side must be {side}, {machine.vector_memory.name}")
    moved = code[copies, isa.C_COUNT].astype(np.float64) * code[copies, isa.C_COUNT2] * code[copies, isa.C_LENGTH]
    _reject(code, core, copies, moved > _MAX_COPY_BLOCKS, f"a COPY moves at most {_MAX_COPY_BLOCKS} blocks")
    padding = np.array([machine.fractal(dtype).rows for dtype in DataType])
    for rows, word in ((images, isa.I_MPAD), (products, isa.M_MPAD)):
        step = padding[code[rows, isa.DTYPE]]
        bad = code[rows, word] % step != 0
        _reject(code, core, rows, bad, f"mpad must be a multiple of {step[np.argmax(bad)] if len(rows) else 0}")
    for rows, word, padded in ((images, isa.I_M, isa.I_MPAD), (results, isa.F_M, isa.F_MPAD)):
        _reject(code, core, rows, code[rows, word] > code[rows, padded], "m must not exceed mpad")
    rings = images[code[images, isa.I_RING] > 0]
    _reject(code, core, rings, code[rings, isa.I_H] > code[rings, isa.I_RING], "h must not exceed the ring's rows")
    _reject(code, core, rings, code[rings, isa.I_FIRST] >= code[rings, isa.I_RING], "first must be a row of the ring")
    lanes = isa.LANES[code[images, isa.DTYPE]]
    four = (code[images, isa.I_LANES] == 4) & (code[images, isa.DTYPE] != DataType.float32)
    why = "lanes must be C0 of the data type, or 4 for float16, int8 and uint8"
    _reject(code, core, images, (code[images, isa.I_LANES] != lanes) & ~four, why)
    for ops, rules in TYPE_RULES.items():
        rows = _rows(opcodes, *ops)
        words = cache(partial(_words, code, rows))
        for rule in rules if len(rows) else ():
            _reject(code, core, rows, rule.bad(words), rule.why)


def _words(code: Code, rows: NDArray[np.int64], word: int) -> NDArray[np.int32]:
    return code[rows, word]


@njit(cache=True)
def _first_out_of_bounds(code: Code, limits: NDArray[np.int64]) -> tuple[int, int, int, int]:
    rows = np.empty((MAX_RANGES, 8), np.int64)
    for i in range(code.shape[0]):
        for j in range(accesses(code, i, rows)):
            lo, hi = extent(rows[j])
            memory = rows[j, 0]
            low = limits[memory, 1] if rows[j, 1] else 0
            if lo < low or hi > limits[memory, 0]:
                return i, memory, lo, hi
    return -1, 0, 0, 0


def on_chip_ends(code: Code) -> tuple[int, int]:
    """Bytes of L1 and of the shared memory up to the last one that these records touch."""
    ends = _ends(np.ascontiguousarray(code), len(Memory))
    return int(ends[Memory.L1]) * BLOCK_BYTES, int(ends[Memory.SHARED]) * BLOCK_BYTES


@njit(cache=True)
def _ends(code: Code, memories: int) -> NDArray[np.int64]:
    """int64 [memories], one past the last block that is touched."""
    rows, ends = np.empty((MAX_RANGES, 8), np.int64), np.zeros(memories, np.int64)
    for i in range(code.shape[0]):
        for j in range(accesses(code, i, rows)):
            memory = rows[j, 0]
            ends[memory] = max(ends[memory], extent(rows[j])[1])
    return ends


def _count_flags(code: Code, core: int, machine: Machine, balance: dict[tuple[int, ...], int]) -> None:
    rows = _rows(_opcodes(code), Op.SET, Op.WAIT)
    flags = code[rows[:, None], [isa.OP, isa.ENGINE, isa.FLAG_CORE, isa.FLAG_ENGINE, isa.FLAG_ID]]
    limits = ((1, len(Engine)), (2, machine.cores), (3, len(Engine)), (4, machine.flags.ids_per_pair))
    for column, limit in limits:
        bad = (flags[:, column] < 0) | (flags[:, column] >= limit)
        if bad.any():
            i = int(rows[int(np.argmax(bad))])
            raise ProgramError(f"core {core} instruction {i}: {_op(code, i)} names {('', 'engine', 'core', 'engine', 'flag id')[column]} "
                               f"{int(flags[int(np.argmax(bad)), column])}, {machine.name} has {limit}")  # fmt: skip
    sizes = (Op.WAIT + 1, *(limit for _, limit in limits))
    keys, counts = np.unique(np.ravel_multi_index(tuple(flags.T), sizes), return_counts=True)  # of rows it takes thirty times as long
    for op, engine, other_core, other_engine, flag, count in zip(
        *(k.tolist() for k in np.unravel_index(keys, sizes)), counts.tolist(), strict=True
    ):
        if op == Op.SET:
            key, sign = (core, engine, other_core, other_engine, flag), 1
        else:
            key, sign = (other_core, other_engine, core, engine, flag), -1
        balance[key] = balance.get(key, 0) + sign * count
