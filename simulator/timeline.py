"""One run, instruction by instruction: work and stalls of each engine.

`timeline(program, machine, level)` runs a program once and keeps everything; its `stalls` explain the gaps.

| name                  | dtype, shape   | meaning                                                                                |
|-----------------------|----------------|----------------------------------------------------------------------------------------|
| code                  | int32 [n, 32]  | the streams one after the other; "row" always means a row of it                         |
| core, engine          | int64 [n]      | core and engine of the record's queue                                                  |
| dispatch, start, end  | int64 [n]      | cycles, see `timing.Recorded`                                                          |
| bus, useful           | int64 [n]      | of a DDR transfer: units of the port (1/65536 byte), bytes read (+) or written (-) |

An engine's time, from cycle 0 until its last entry has left or ended, is cut without remainder into work (of a DMA: on any of its ports)
and stalls, of one cause each:

* FLAG: a WAIT waits; the source is the SET of that flag, and the work that the SET waits for.
* LATENCY: a DDR transfer is issued and waits for its first data, with the start-up of its path (many queued transfers hide it).
* ISSUE: the scalar unit has not dispatched the next entry yet: launch of the program, or earlier entries, because it dispatches in order.
* QUEUE: as ISSUE, but for at least half of that time the scalar unit waited for room in another engine's queue.

Time that a transfer loses to the background load and to other DMAs is no gap: the engine moves data slowly (`uncontended_data_cycles`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from simulator.npu import isa
from simulator.npu.cycles import port_units, price, uncontended_cycles
from simulator.npu.isa import Op
from simulator.npu.level import SHARE_UNIT, Level
from simulator.npu.machine import Machine
from simulator.npu.parts import DMAS, Engine
from simulator.npu.program import Code, Program
from simulator.timing import prepare, simulate
from simulator.timing_state import ENGINES, Ints

Mask = NDArray[np.bool_]


class Cause(IntEnum):
    """Causes of stalls."""

    FLAG = 0
    LATENCY = 1
    ISSUE = 2
    QUEUE = 3


@dataclass(frozen=True, eq=False)
class Timeline:
    """Arrays of a run (see the table at the top)."""

    machine: Machine
    level: Level
    cycles: int
    code: Code
    core: Ints
    engine: Ints
    dispatch: Ints
    start: Ints
    end: Ints
    bus: Ints
    useful: Ints
    l2_cycles: Ints  # of a transfer's data phase, after its draw from DDR
    stream_start: Ints  # [cores + 1]: first row of every core
    parts: tuple[PlacedRun, ...] = ()  # only for several programs in sequence

    @property
    def cores(self) -> int:
        return len(self.stream_start) - 1

    @cached_property
    def work(self) -> Mask:
        """Rows that occupy their engine: all but SET and WAIT."""
        return self.code[:, isa.OP] > Op.WAIT

    @cached_property
    def transfer(self) -> Mask:
        """Rows that move DDR data."""
        return self.bus > 0

    @cached_property
    def segment(self) -> Ints:
        return isa.segment_of(self.code[:, isa.TAG].astype(np.int64))

    @cached_property
    def operator(self) -> Ints:
        return isa.operator_of(self.code[:, isa.TAG].astype(np.int64))

    @cached_property
    def block(self) -> Ints:
        """Blocks of segments; a segment's images follow one another."""
        return isa.block_of(self.code[:, isa.BLOCK].astype(np.int64))

    @cached_property
    def queues(self) -> tuple[Ints, ...]:
        """Rows of every queue, core by core, in queue order."""
        queue = self.core * ENGINES + self.engine
        order = np.argsort(queue, kind="stable")
        return tuple(np.split(order, np.searchsorted(queue[order], np.arange(1, self.cores * ENGINES))))

    @cached_property
    def port(self) -> Ints:
        """int64 [n]: DMA port of a transfer; transfers of a queue take the ports in turn; 0 for other rows."""
        ports = np.zeros(len(self.code), np.int64)
        for engine in DMAS:
            for core in range(self.cores):
                queue = self.queues[core * ENGINES + engine]
                rows = queue[self.transfer[queue]]
                ports[rows] = np.arange(len(rows)) % self.machine.dma_ports(engine)
        return ports

    @cached_property
    def stalls(self) -> Stalls:
        """Stalls of all engines within programs; stalls of SCALAR are its waits for room in a queue."""
        return _stalls_of_parts(self) if self.parts else _stalls(self)


def timeline(program: Program, machine: Machine, level: Level) -> Timeline:
    """Run a program at a contention level.  Raises as `timing.simulate`."""
    prepared = prepare(program, machine).behind(level.l2_bytes)
    timing = simulate(prepared, machine, level, record=True)
    assert timing.recorded is not None
    code = np.concatenate(program.streams)
    cost = price(code, machine)
    drawn, l2_cycles = np.empty((2, len(code)), np.int64)
    drawn[prepared.stream_rows()], l2_cycles[prepared.stream_rows()] = prepared.transfer_parts
    dispatch, start, end = (np.concatenate(column) for column in (timing.recorded.dispatch, timing.recorded.start, timing.recorded.end))
    return Timeline(
        machine,
        level,
        timing.cycles,
        code,
        np.repeat(np.arange(prepared.cores), np.diff(prepared.stream_start)),
        code[:, isa.ENGINE].astype(np.int64),
        dispatch,
        start,
        end,
        np.where(cost.bus > 0, drawn, 0),
        cost.useful,
        np.where(cost.bus > 0, l2_cycles, 0),
        prepared.stream_start,
    )


@dataclass(frozen=True, eq=False)
class PlacedRun:
    """One of several programs: its run from cycle 0 on, its begin in the joined run, and the numbers of its rows there."""

    run: Timeline
    begin: int
    rows: Ints


def join_timelines(runs: Sequence[Timeline], counts: Sequence[tuple[int, int]]) -> Timeline:
    """One run of several programs in sequence; each starts with empty engines.

    counts: (segments, operators) of each program; numbers of later programs continue those of earlier ones.  All have the
    same machine and level.  A single program is returned unchanged.
    """
    first, *later_runs = runs
    if not later_runs:
        return first
    begins = np.concatenate(([0], np.cumsum([run.cycles for run in runs]))).astype(np.int64)
    lengths = np.array([np.diff(run.stream_start) for run in runs])  # [programs, cores]
    stream_start = np.concatenate(([0], np.cumsum(lengths.sum(0)))).astype(np.int64)
    earlier_rows = np.cumsum(lengths, 0) - lengths  # rows of the same core in earlier programs
    # rows of the joined run: core after core, in each core program after program
    parts = []
    for k, run in enumerate(runs):
        row_shift = stream_start[:-1] + earlier_rows[k] - run.stream_start[:-1]
        parts.append(PlacedRun(run, int(begins[k]), np.arange(len(run.code)) + np.repeat(row_shift, lengths[k])))
    order = np.argsort(np.concatenate([part.rows for part in parts]), kind="stable")
    codes, segments, operators = [], 0, 0
    for run, (more_segments, more_operators) in zip(runs, counts, strict=True):
        code = run.code.copy()
        code[:, isa.TAG] += isa.tag_of(segments, operators)
        codes.append(code)
        segments, operators = segments + more_segments, operators + more_operators

    def joined_column(name: str, shifted: bool = False) -> Ints:
        columns = [getattr(part.run, name) + (part.begin if shifted else 0) for part in parts]
        joined: Ints = np.concatenate(columns)[order]
        return joined

    return Timeline(
        first.machine,
        first.level,
        int(begins[-1]),
        np.concatenate(codes)[order],
        joined_column("core"),
        joined_column("engine"),
        joined_column("dispatch", True),
        joined_column("start", True),
        joined_column("end", True),
        joined_column("bus"),
        joined_column("useful"),
        joined_column("l2_cycles"),
        stream_start,
        tuple(parts),
    )


@dataclass(frozen=True, eq=False)
class Stalls:
    """Times in which an engine with remaining entries does not work; int64 [k] each, queue by queue in order of time.

    row: waiting entry.  source_engine, source_core: place of the SET (FLAG), or of the full queue (QUEUE); else -1.
    source_row: last work before the SET in its queue; else -1.
    """

    core: Ints
    engine: Ints
    start: Ints
    end: Ints
    cause: Ints
    row: Ints
    source_core: Ints
    source_engine: Ints
    source_row: Ints

    def __len__(self) -> int:
        return len(self.row)


def _stalls(run: Timeline) -> Stalls:
    setter, work_before = matching_sets(run), preceding_work(run)
    parts: list[list[Ints]] = []
    for core in range(run.cores):
        scalar = _scalar_stalls(run, core)
        for engine in range(ENGINES - 1):
            rows = run.queues[core * ENGINES + engine]
            parts.append(_queue_stalls(run, core, engine, rows, setter, work_before, scalar))
        row, start, end = scalar
        parts.append(_columns(core, Engine.SCALAR, start, end, Cause.QUEUE, row, core, run.engine[row], -1))
    columns = [np.concatenate(column) for column in zip(*parts, strict=True)]
    return Stalls(*columns)


def _stalls_of_parts(run: Timeline) -> Stalls:
    parts = []
    for part in run.parts:
        s, rows = part.run.stalls, np.concatenate((part.rows, [-1]))  # row -1 stays -1
        parts.append((s.core, s.engine, s.start + part.begin, s.end + part.begin, s.cause, rows[s.row], s.source_core, s.source_engine,
                      rows[s.source_row]))  # fmt: skip
    columns = [np.concatenate(column) for column in zip(*parts, strict=True)]
    order = np.lexsort((columns[2], columns[1], columns[0]))
    return Stalls(*(column[order] for column in columns))


def _columns(*values: Ints | int) -> list[Ints]:
    return [column.astype(np.int64) for column in np.broadcast_arrays(*values)]


def _scalar_stalls(run: Timeline, core: int) -> tuple[Ints, Ints, Ints]:
    """(row, start, end): from a dispatch to the issue of the next row, if that row had to wait for room in its queue."""
    rows = np.arange(run.stream_start[core], run.stream_start[core + 1])
    end = run.dispatch[rows] - run.machine.issue_cycles
    start = np.concatenate(([run.machine.launch_cycles], run.dispatch[rows][:-1])) if len(rows) else end
    is_late = end > start
    return rows[is_late], start[is_late], end[is_late]


def _queue_stalls(
    run: Timeline, core: int, engine: int, rows: Ints, setter: Ints, work_before: Ints, scalar: tuple[Ints, Ints, Ints]
) -> list[Ints]:
    if engine in DMAS and run.machine.dma_ports(Engine(engine)) > 1:  # data of a later transfer may come first
        rows = rows[np.argsort(np.where(run.code[rows, isa.OP] == Op.WAIT, run.end[rows], run.start[rows]), kind="stable")]
    op, dispatch = run.code[rows, isa.OP], run.dispatch[rows]
    # a SET leaves at once; the delayed results of a pipelined array stop no other entry of its queue
    end = np.where(op == Op.SET, run.start[rows], run.end[rows])
    is_wait = op == Op.WAIT
    after = np.maximum.accumulate(end) if len(rows) else end
    before = np.concatenate(([0], after[:-1])) if len(rows) else after
    ready = np.maximum(before, dispatch)
    begin = np.where(is_wait, end, np.where(run.work[rows], run.start[rows], ready))
    # late: dispatched after its queue was free; delayed: started after its dispatch
    is_late, is_delayed = dispatch > before, begin > ready

    blocked, blocker = _held_up(before[is_late], dispatch[is_late], scalar)
    full = 2 * blocked >= dispatch[is_late] - before[is_late]
    issue = _columns(
        core,
        engine,
        before[is_late],
        dispatch[is_late],
        np.where(full, Cause.QUEUE, Cause.ISSUE),
        rows[is_late],
        np.where(full, core, -1),
        np.where(full, run.engine[blocker] if len(run.engine) else -1, -1),
        -1,
    )
    flag = is_wait[is_delayed]
    source = np.where(flag, setter[rows[is_delayed]], 0)
    waits = _columns(
        core,
        engine,
        ready[is_delayed],
        begin[is_delayed],
        np.where(flag, Cause.FLAG, Cause.LATENCY),
        rows[is_delayed],
        np.where(flag, run.core[source], -1),
        np.where(flag, run.engine[source], -1),
        np.where(flag, work_before[source], -1),
    )
    columns = [np.concatenate(pair) for pair in zip(issue, waits, strict=True)]
    order = np.argsort(columns[2], kind="stable")
    return [column[order] for column in columns]


def _held_up(begin: Ints, stop: Ints, scalar: tuple[Ints, Ints, Ints]) -> tuple[Ints, Ints]:
    """Cycles of [begin, stop) in which the scalar unit waited at a full queue, and the last row that waited (0 if none)."""
    row, start, end = scalar
    if not len(row):
        return np.zeros(len(begin), np.int64), np.zeros(len(begin), np.int64)
    last = np.maximum(np.searchsorted(start, stop, "left") - 1, 0)
    return covered_length(start, end, stop) - covered_length(start, end, begin), row[last]


def covered_length(start: Ints, end: Ints, cycle: Ints) -> Ints:
    """Length of [0, cycle) that disjoint ascending intervals cover."""
    if not len(start):
        return np.zeros(len(cycle), np.int64)
    total = np.concatenate(([0], np.cumsum(end - start)))
    i = np.searchsorted(start, cycle, "left")  # intervals that begin before `at`; the last of them may reach beyond it
    beyond = np.where(i > 0, np.maximum(end[np.maximum(i - 1, 0)] - cycle, 0), 0)
    length: Ints = total[i] - beyond
    return length


def merge_intervals(start: Ints, end: Ints) -> tuple[Ints, Ints]:
    """Union of intervals: starts and ends, ascending, disjoint."""
    order = np.argsort(start, kind="stable")
    start, end = start[order], np.maximum.accumulate(end[order])
    new = np.concatenate(([True], start[1:] > end[:-1])) if len(start) else np.zeros(0, bool)
    first = np.flatnonzero(new)
    return start[first], np.maximum.reduceat(end, first) if len(first) else end


def matching_sets(run: Timeline) -> Ints:
    """int64 [n]: row of the SET of a WAIT (the i-th SET of a flag belongs to its i-th WAIT), else -1.  The program must be verified."""
    queue = run.core * ENGINES + run.engine
    other_queue = run.code[:, isa.FLAG_CORE].astype(np.int64) * ENGINES + run.code[:, isa.FLAG_ENGINE]
    flag = run.code[:, isa.FLAG_ID].astype(np.int64)
    setters = np.full(len(run.code), -1, np.int64)
    queues, ids = run.cores * ENGINES, run.machine.flags.ids_per_pair
    ordered = []
    for op, source, target in ((Op.SET, queue, other_queue), (Op.WAIT, other_queue, queue)):
        rows = np.flatnonzero(run.code[:, isa.OP] == op)
        ordered.append(rows[np.argsort(((source * queues + target) * ids + flag)[rows], kind="stable")])
    setters[ordered[1]] = ordered[0]
    return setters


def preceding_work(run: Timeline) -> Ints:
    """int64 [n]: last earlier work row of the same queue, by end; -1 without one."""
    work_rows = np.full(len(run.code), -1, np.int64)
    for rows in run.queues:
        end = np.where(run.work[rows], run.end[rows], -1)
        last = run.work[rows] & (end == np.maximum.accumulate(end)) if len(rows) else rows
        latest = np.maximum.accumulate(np.where(last, np.arange(len(rows)), -1)) if len(rows) else rows
        before = np.concatenate(([-1], latest[:-1])) if len(rows) else latest
        work_rows[rows] = np.where(before >= 0, rows[before], -1)
    return work_rows


def uncontended_data_cycles(run: Timeline, rows: Ints, share_units: int = SHARE_UNIT) -> Ints:
    """Data cycles of DDR transfers without contention among them, at a share of the port."""
    return uncontended_cycles(run.code[rows], run.bus[rows], run.machine, port_units(run.machine, share_units)) + run.l2_cycles[rows]
