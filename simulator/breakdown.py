"""Time of a run by segment, and the resource that limits each.

Segments overlap: data of the next one are loaded while this one computes.  So time is cut at the segments' ends.  A segment's *own* cycles
run from the end of the previous segment to its own end; own cycles add up to the run (without flags after the last work).
The limiting resource of a segment is the busiest resource in its own cycles, counting work of any segment.

A resource is an engine of one core, the busiest core counting; `DDR` is the union of all transfers, `MTE1` .. `MTE3` are on-chip moves of
DMAs, `issue` is the scalar unit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from simulator.npu import isa
from simulator.npu.container import OperatorEntry, SegmentEntry
from simulator.npu.isa import Op
from simulator.npu.parts import Engine
from simulator.npu.shared_traffic import shared_traffic
from simulator.timeline import Timeline, covered_length, merge_intervals
from simulator.timing_state import ENGINES, Ints

Intervals = tuple[Ints, Ints]  # starts and ends, ascending, disjoint


@dataclass(frozen=True)
class SegmentTime:
    """One segment of a run.

    first, last: numbers of its operators.  blocks: blocks of all strips; None if unknown in the file.  start, end: cycles of its work.
    own_cycles: see above.  alone_cycles: cycles in which no other segment works.  utilisation: resource -> busy fraction of the own cycles;
    empty without own cycles.  loads: DDR transfers to the chip.  macs: multiply-accumulates of its MMADs.  steps: pairs (operator, block).
    loading_steps: steps with a DDR load.  loader_steps: all steps of operators with a loading step.

    needed_macs: multiply-accumulates of the model.  halo: factor of work because outputs are computed twice or not used.  padding: factor
    of macs because channels and pixels are rounded up.  So macs = needed_macs * halo * padding.  All three are None if the file lacks the
    numbers, or without products.
    """

    segment: int
    first: int
    last: int
    operators: int
    blocks: int | None
    start: int
    end: int
    own_cycles: int
    alone_cycles: int
    utilisation: dict[str, float]
    steps: int
    loading_steps: int
    loader_steps: int
    loads: int
    ddr_read_bytes: int
    ddr_write_bytes: int
    shared_read_bytes: int
    shared_write_bytes: int
    macs: int
    needed_macs: int | None
    halo: float | None
    padding: float | None

    @property
    def cycles(self) -> int:
        return self.end - self.start

    @property
    def operators_per_load(self) -> float | None:
        """Steps per loading step: 1 without reuse, more where intermediates and weights stay on chip.  None without loads."""
        return self.steps / self.loading_steps if self.loading_steps else None

    @property
    def blocks_per_load(self) -> float | None:
        """Reuse over blocks: steps per loading step of operators that load; above 1 where weights stay on chip."""
        return self.loader_steps / self.loading_steps if self.loading_steps else None

    @property
    def bound(self) -> str | None:
        """The busiest resource; below half of the time, engines mostly wait for one another.  None without own cycles."""
        return max(self.utilisation, key=lambda name: self.utilisation[name]) if self.utilisation else None


@dataclass(frozen=True)
class ProgramReuse:
    """Reuse of loaded data in a program: `SegmentTime` summed over its segments.

    operators_per_load, blocks_per_load: None without loads.  halo: None without products.
    """

    segments: int
    blocks: int | None
    loads: int
    ddr_read_bytes: int
    ddr_write_bytes: int
    operators_per_load: float | None
    blocks_per_load: float | None
    halo: float | None


def program_reuse(rows: Sequence[SegmentTime]) -> ProgramReuse:
    """Reuse summed over all segments of one run."""
    loading = sum(row.loading_steps for row in rows)
    products = [(row.needed_macs, row.halo) for row in rows if row.needed_macs is not None and row.halo is not None]
    needed = sum(macs for macs, _ in products)
    blocks = [row.blocks for row in rows]
    return ProgramReuse(
        segments=len(rows),
        blocks=None if None in blocks else sum(b for b in blocks if b is not None),
        loads=sum(row.loads for row in rows),
        ddr_read_bytes=sum(row.ddr_read_bytes for row in rows),
        ddr_write_bytes=sum(row.ddr_write_bytes for row in rows),
        operators_per_load=sum(row.steps for row in rows) / loading if loading else None,
        blocks_per_load=sum(row.loader_steps for row in rows) / loading if loading else None,
        halo=sum(macs * halo for macs, halo in products) / needed if needed else None,
    )


def breakdown(run: Timeline, segments: Sequence[SegmentEntry] = (), operators: Sequence[OperatorEntry] = ()) -> tuple[SegmentTime, ...]:
    """Segments that have work, by number.  segments, operators: tables of the container, () where it has none."""
    work = np.flatnonzero(run.work)
    if not len(work):
        return ()
    number = run.segment[work]
    order = np.argsort(number, kind="stable")
    names, first = np.unique(number[order], return_index=True)
    rows_of = np.split(work[order], first[1:])
    start = np.array([run.start[rows].min() for rows in rows_of], np.int64)
    end = np.array([run.end[rows].max() for rows in rows_of], np.int64)
    latest_end = np.maximum.accumulate(end)
    previous_end = np.concatenate(([0], latest_end[:-1])).astype(np.int64)
    busy_cycles = {
        name: np.stack([covered_length(*i, latest_end) - covered_length(*i, previous_end) for i in core_intervals]).max(axis=0)
        for name, core_intervals in _resources(run).items()
    }
    alone_cycles = _lone_cycles(run, rows_of)
    steps = isa.tag_of(run.block, run.operator)  # unique in a segment
    segment_times = []
    for i, (name, rows) in enumerate(zip(names.tolist(), rows_of, strict=True)):
        own_cycles = int(latest_end[i] - previous_end[i])
        numbers = np.unique(run.operator[rows])
        entry = segments[name] if 0 <= name < len(segments) else None
        macs, needed, halo, padding = _products(run, rows, operators)
        useful, shared = run.useful[rows], shared_traffic([run.code[rows]])
        worked_steps = np.unique(steps[rows])
        loading = np.unique(steps[rows[useful > 0]])
        loaders = np.isin(isa.operator_of(worked_steps), isa.operator_of(loading))
        segment_times.append(
            SegmentTime(
                segment=name,
                first=int(numbers[0]),
                last=int(numbers[-1]),
                operators=entry.operators if entry is not None else len(numbers),
                blocks=entry.blocks if entry is not None else None,
                start=int(start[i]),
                end=int(end[i]),
                own_cycles=own_cycles,
                alone_cycles=int(alone_cycles[i]),
                utilisation={resource: float(busy[i]) / own_cycles for resource, busy in busy_cycles.items()} if own_cycles else {},
                steps=len(worked_steps),
                loading_steps=len(loading),
                loader_steps=int(loaders.sum()),
                loads=int((useful > 0).sum()),
                ddr_read_bytes=int(useful[useful > 0].sum()),
                ddr_write_bytes=-int(useful[useful < 0].sum()),
                shared_read_bytes=shared.read_bytes,
                shared_write_bytes=shared.write_bytes,
                macs=macs,
                needed_macs=needed,
                halo=halo,
                padding=padding,
            )
        )
    return tuple(segment_times)


def _resources(run: Timeline) -> dict[str, list[Intervals]]:
    """Busy intervals of each resource; one list per core, a single one for DDR."""
    resources: dict[str, list[Intervals]] = {"DDR": [merge_intervals(run.start[run.transfer], run.end[run.transfer])]}
    for engine in list(Engine)[: Engine.SCALAR]:
        queues = [run.queues[core * ENGINES + engine] for core in range(run.cores)]
        rows_per_core = [queue[run.work[queue] & ~run.transfer[queue]] for queue in queues]
        resources[engine.name] = [(run.start[core_rows], run.end[core_rows]) for core_rows in rows_per_core]
    dispatch = [run.dispatch[a:b] for a, b in zip(run.stream_start[:-1], run.stream_start[1:], strict=True)]
    resources["issue"] = [merge_intervals(d - run.machine.issue_cycles, d) for d in dispatch]
    return resources


def _lone_cycles(run: Timeline, rows_of: Sequence[Ints]) -> Ints:
    """Cycles in which a segment works and no other one does."""
    busy = [merge_intervals(run.start[rows], run.end[rows]) for rows in rows_of]
    border = np.unique(np.concatenate([edge for pair in busy for edge in pair])) if busy else np.zeros(0, np.int64)
    # between two borders a segment works all the time or not at all
    change = np.zeros(len(border), np.int64)
    for start, end in busy:
        np.add.at(change, np.searchsorted(border, start), 1)
        np.add.at(change, np.searchsorted(border, end), -1)
    single = np.cumsum(change)[:-1] == 1
    lone = merge_intervals(border[:-1][single], border[1:][single])
    return np.array([_common(lone, intervals) for intervals in busy], np.int64)


def _common(first: Intervals, second: Intervals) -> int:
    return int((covered_length(*first, second[1]) - covered_length(*first, second[0])).sum())


def _products(run: Timeline, rows: Ints, operators: Sequence[OperatorEntry]) -> tuple[int, int | None, float | None, float | None]:
    """(macs, needed macs, halo, padding) of a segment's rows."""
    code = run.code[rows].astype(np.int64)
    mmad, out = code[np.isin(code[:, isa.OP], isa.PRODUCT_OPS)], code[code[:, isa.OP] == Op.FIXPIPE]
    macs = int(isa.macs(mmad).sum())
    inside = np.unique(run.operator[rows]).tolist()
    if not macs or inside[-1] >= len(operators):
        return macs, None, None, None
    needed = sum(operators[i].macs for i in inside)
    accumulators = sum(operators[i].accumulators for i in inside)
    if not needed or not accumulators:
        return macs, None, None, None
    # weighted by work: a halo of an operator costs that operator's products
    computed = np.bincount(
        isa.operator_of(out[:, isa.TAG]), out[:, isa.F_M] * out[:, isa.F_N1] * isa.COLUMNS[out[:, isa.DTYPE]], minlength=inside[-1] + 1
    )
    executed_macs = sum(operators[i].macs * float(computed[i]) / operators[i].accumulators for i in inside if operators[i].accumulators)
    return macs, needed, executed_macs / needed, macs / executed_macs if executed_macs else None
