"""Checks of a program that hold for any timing: races, reads of unwritten memory, bounds, deadlock, flag counts, to the 32-byte block.

Two accesses that share a block, one of them a write, must be ordered by happens-before: the order of a queue, and flags (the i-th
WAIT of a flag comes after its i-th SET).  Transfers of a DMA with several ports are ordered by flags only.  Overlapping lifetimes of
buffers show as races, as reads of data last written for another segment, operator or later block, or as a bias that is no constant.
Data overwritten within one operator and block, or by another operator of the segment in the same or an earlier block, cannot be
found from records (docs/deviations.md).  `simulator.hazards` has the walk.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from simulator import hazards
from simulator.hazards import COLUMNS, FLAG_OPS, NOBODY, UNWRITTEN, WRITTEN, Walk
from simulator.host_layout import read_blocks
from simulator.npu import isa
from simulator.npu.isa import Op
from simulator.npu.machine import Machine
from simulator.npu.parts import DMAS, DataType, Engine, Memory
from simulator.npu.program import Code, Program, block_limits

FindingKind = Literal["out_of_bounds", "unwritten_read", "race", "flag_count", "constant_write", "overwritten_read", "deadlock"]
_KINDS: tuple[FindingKind, ...] = ("out_of_bounds", "unwritten_read", "race", "flag_count", "constant_write", "overwritten_read")
FINDINGS_LIMIT = 1000
_HOST = -1


@dataclass(frozen=True)
class Finding:
    """One fault.

    core, instruction, engine: the record, of a race the later one in the streams; -1, -1, None for reads by the host.
    blocks: first and one past the last block of `memory`; a hull of several blocks; None where no memory is concerned.
    other: (core, instruction) on the other side of a race, or the writer of the data read.
    """

    kind: FindingKind
    core: int
    instruction: int
    engine: Engine | None
    memory: Memory | None
    blocks: tuple[int, int] | None
    counterpart: tuple[int, int] | None
    text: str

    def __str__(self) -> str:
        return self.text


def sanitize_program(program: Program, machine: Machine) -> tuple[Finding, ...]:
    """All findings (at most `FINDINGS_LIMIT`), in the order of one legal run; () for a correct program.

    Raises `ProgramError` for illegal records (opcode, path, parameters, flag ids).
    """
    balance = program.verify_records(machine)
    code = np.ascontiguousarray(np.concatenate(program.streams))
    keys, walk = _prepare(program, machine, code)
    hazards.walk_program(walk)
    namer = _Namer(program, code, walk)
    findings = [namer.finding(row, keys) for row in walk.findings[: min(int(walk.total[0]), FINDINGS_LIMIT)]]
    stuck = np.flatnonzero(walk.head < walk.queue_start[1:])
    findings += [namer.deadlock(int(walk.by_queue[walk.head[q]]), bool(walk.head[q] < walk.tail[q])) for q in stuck]
    if not stuck.size:
        findings += _at_the_end(program, walk, balance)
    return tuple(findings[:FINDINGS_LIMIT])


def _prepare(program: Program, machine: Machine, code: Code) -> tuple[NDArray[np.int32], Walk]:
    """The flags' keys (int32 [flags, 5]) and the walk's arrays."""
    n = len(code)
    lengths = np.array([len(stream) for stream in program.streams])
    core = np.repeat(np.arange(len(lengths)), lengths)
    used, queue = np.unique(core * len(Engine) + code[:, isa.ENGINE], return_inverse=True)
    by_queue = np.argsort(queue, kind="stable")
    queue_start = np.searchsorted(queue[by_queue], np.arange(len(used) + 1))
    place = np.empty(n, np.int32)
    place[by_queue] = np.arange(n) - queue_start[queue[by_queue]] + 1

    # flags: a number per (source, target, id), and the WAITs of each in order
    flag = np.full(n, -1, np.int32)
    rows = np.flatnonzero(np.isin(code[:, isa.OP], FLAG_OPS))
    local = np.stack((core[rows], code[rows, isa.ENGINE]), 1)
    remote = code[rows][:, [isa.FLAG_CORE, isa.FLAG_ENGINE]]
    setting = (code[rows, isa.OP] == Op.SET)[:, None]
    named = np.concatenate((np.where(setting, local, remote), np.where(setting, remote, local), code[rows][:, [isa.FLAG_ID]]), 1)
    keys, number = np.unique(named, axis=0, return_inverse=True)
    flag[rows] = number.reshape(-1)
    waiting = rows[code[rows, isa.OP] == Op.WAIT]  # a flag has one consumer queue: stream order is its order
    waits = waiting[np.argsort(flag[waiting], kind="stable")]
    wait_start = np.searchsorted(flag[waits], np.arange(len(keys) + 1))

    limits = block_limits(program.memory, machine)
    constants = int(limits[Memory.DDR, 1])
    base = np.empty((machine.cores, len(Memory)), np.int64)
    base[:, Memory.DDR] = -constants
    core_blocks = limits[1 : Memory.SHARED, 0]
    first = int(limits[Memory.DDR, 0]) - constants
    starts = first + np.concatenate(([0], np.cumsum(np.tile(core_blocks, machine.cores))))
    base[:, 1 : Memory.SHARED] = starts[:-1].reshape(machine.cores, len(core_blocks))
    base[:, Memory.SHARED] = starts[-1]
    writer = np.full(int(starts[-1] + limits[Memory.SHARED, 0]), UNWRITTEN, np.int32)
    for buffer in program.memory.of_kind("input"):
        columns = buffer.shape[2:] == (1, 1) and program.memory.type_of(buffer) in (DataType.int32, DataType.float32)
        start = buffer.offset_blocks - constants
        writer[start : start + buffer.size_blocks] = COLUMNS if columns else WRITTEN

    def ints(values: NDArray[np.generic]) -> NDArray[np.int32]:
        return np.ascontiguousarray(values, np.int32)

    queues = len(used)
    walk = Walk(
        code=code, core_start=ints(np.concatenate(([0], np.cumsum(lengths)))), queue=ints(queue.reshape(-1)), place=place,
        by_queue=ints(by_queue), queue_start=ints(queue_start), flag=flag, waits=ints(waits), wait_start=ints(wait_start),
        core_of_queue=ints(used // len(Engine)), base=base, limits=limits, clock=np.zeros((queues, queues), np.int32),
        in_order=np.array([e not in DMAS or machine.dma_ports(Engine(e)) == 1 for e in used % len(Engine)], np.bool_),
        head=ints(queue_start[:-1]).copy(), tail=ints(queue_start[:-1]).copy(), sets=np.zeros(len(keys), np.int32),
        waited=np.zeros(len(keys), np.int32), snapshot=np.zeros((len(waits), queues), np.int32), writer=writer,
        reader=np.full(len(writer), NOBODY, np.int32), findings=np.zeros((FINDINGS_LIMIT, 6), np.int64), total=np.zeros(1, np.int64),
        depth=machine.queue_depth, count_limit=machine.flags.count_limit,
    )  # fmt: skip
    return ints(keys), walk


class _Namer:
    """Converter from rows of the walk to findings with text."""

    def __init__(self, program: Program, code: Code, walk: Walk) -> None:
        self.program, self.code, self.walk = program, code, walk

    def place(self, record: int) -> tuple[int, int]:
        core = int(np.searchsorted(self.walk.core_start, record, side="right")) - 1
        return core, record - int(self.walk.core_start[core])

    def name(self, record: int) -> str:
        core, instruction = self.place(record)
        return (
            f"core {core} instruction {instruction} "
            f"({Engine(int(self.code[record, isa.ENGINE])).name} {Op(int(self.code[record, isa.OP])).name})"
        )

    def purpose(self, row: int) -> str:
        """The segment, operator and block of a record."""
        tag = int(self.code[row, isa.TAG])
        return f" for segment {isa.segment_of(tag)}, operator {isa.operator_of(tag)}, block {isa.block_of(int(self.code[row, isa.BLOCK]))}"

    def finding(self, row: NDArray[np.int64], keys: NDArray[np.int32]) -> Finding:
        kind, record, memory, lo, hi, other_record = (int(value) for value in row)
        if kind == hazards.RACE and other_record > record:  # a race reads the same whichever side the walk met first
            record, other_record = other_record, record
        core, instruction = self.place(record)
        engine = Engine(int(self.code[record, isa.ENGINE]))
        if kind == hazards.FLAG_COUNT:
            text = f"{self.name(record)}: the count of {_flag_name(keys[lo])} can exceed {self.walk.count_limit}"
            return Finding("flag_count", core, instruction, engine, None, None, None, text)
        where = f"{Memory(memory).name} blocks {lo}..{hi}"
        predicate = {
            hazards.OUT_OF_BOUNDS: f"touches {where}, the memory has {int(self.walk.limits[memory, 0])}",
            hazards.UNWRITTEN_READ: f"reads {where}, which nobody has written",
            hazards.CONSTANT_WRITE: f"writes {where}, which hold constants",
            hazards.OVERWRITTEN_READ: f"reads {where}, which {self.name(other_record)} has overwritten{self.purpose(other_record)}"
            if other_record >= 0
            else "",
            hazards.RACE: f"and {self.name(other_record)} touch {where} in no order" if other_record >= 0 else "",
        }[np.int64(kind)]
        partner = self.place(other_record) if other_record >= 0 else None
        text = f"{self.name(record)} {predicate}"
        return Finding(_KINDS[kind], core, instruction, engine, Memory(memory), (lo, hi), partner, text)

    def deadlock(self, row: int, issued: bool) -> Finding:
        core, instruction = self.place(row)
        why = "waits for a flag that is never set" if issued else f"is never issued: a queue of core {core} is full or stands"
        return Finding("deadlock", core, instruction, Engine(int(self.code[row, isa.ENGINE])), None, None, None, f"{self.name(row)} {why}")


def _flag_name(key: NDArray[np.int32]) -> str:
    source, source_engine, target, target_engine, flag = (int(value) for value in key)
    return f"flag {flag} of core {source} {Engine(source_engine).name} -> core {target} {Engine(target_engine).name}"


def _at_the_end(program: Program, walk: Walk, balance: dict[tuple[int, ...], int]) -> list[Finding]:
    """Findings at the end: flags left set, and outputs that the host reads and no record wrote."""
    findings = []
    for key, count in sorted(balance.items()):
        if count:
            text = f"{_flag_name(np.array(key, np.int32))} is left with count {count} at the end"
            findings.append(Finding("flag_count", key[0], _HOST, Engine(key[1]), None, None, None, text))
    constants = program.memory.constant_blocks
    for buffer in program.memory.of_kind("output"):
        start = buffer.offset_blocks - constants
        missing = np.flatnonzero(
            (walk.writer[start : start + buffer.size_blocks] == UNWRITTEN) & read_blocks(buffer, program.memory.type_of(buffer))
        )
        if missing.size:
            lo, hi = buffer.offset_blocks + int(missing[0]), buffer.offset_blocks + int(missing[-1]) + 1
            text = f"the host reads output {buffer.name!r}, DDR blocks {lo}..{hi}, of which {missing.size} were never written"
            findings.append(Finding("unwritten_read", _HOST, _HOST, None, Memory.DDR, (lo, hi), None, text))
    return findings
