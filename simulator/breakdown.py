"""Where the time of a run goes, segment by segment.

Segments overlap: the next one's data are loaded while this one computes.  So time is cut at the segments' ends: a segment's *own* cycles
run from the end of the one before to its own end, and own cycles add up to the run (what flags take after the last work is left over).
What limits a segment is looked for in that stretch, among all work that is done in it, whoever it belongs to.

A resource is an engine of one core, the busiest core counting; `DDR` is the union of all transfers, `MTE1` .. `MTE3` what DMAs move on
chip, `issue` the scalar unit.
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
from simulator.timeline import Timeline, covered, union
from simulator.timing_state import ENGINES, Ints

Intervals = tuple[Ints, Ints]  # starts and ends, ascending, disjoint


@dataclass(frozen=True)
class SegmentTime:
    """One segment of a run.

    first, last: numbers of its operators; blocks: of all strips, None where the file does not say.  start, end: of its work.
    own_cycles: see above.  alone_cycles: in which it works and no other segment does.  utilisation: resource -> busy share of the own
    cycles, empty where there are none.  loads: DDR transfers to the chip.  macs: of its MMADs.  steps: pairs of an operator and a block
    that it works on; loading_steps: those with a transfer from DDR; loader_steps: all steps of the operators that have such a step.

    needed_macs: what the model needs of them.  halo: work per needed work because outputs are handed out twice, or for nothing.
    padding: macs per macs of that work, because channels and pixels are rounded up.  So macs = needed_macs * halo * padding; all three are
    None where the file has no numbers, or there are no products.
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
        """Steps per step that loads: 1 where all do, more where intermediates and weights stay on chip.  None where none does."""
        return self.steps / self.loading_steps if self.loading_steps else None

    @property
    def blocks_per_load(self) -> float | None:
        """The part of it that is blocks: of operators that load, steps per step that loads.  More than 1 where weights stay on chip."""
        return self.loader_steps / self.loading_steps if self.loading_steps else None

    @property
    def bound(self) -> str | None:
        """The busiest resource.  Where even that one works less than half of the time, it is the waiting for one another that takes it."""
        return max(self.utilisation, key=lambda name: self.utilisation[name]) if self.utilisation else None


@dataclass(frozen=True)
class ProgramReuse:
    """What a program makes of its loads: `SegmentTime` summed over its segments.

    operators_per_load, blocks_per_load: None where nothing is loaded.  halo: None where there are no products.
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
    """Of all segments of one run."""
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


def breakdown(t: Timeline, segments: Sequence[SegmentEntry] = (), operators: Sequence[OperatorEntry] = ()) -> tuple[SegmentTime, ...]:
    """Segments that have work, by number.  segments, operators: the tables of the container, () where it has none."""
    work = np.flatnonzero(t.work)
    if not len(work):
        return ()
    number = t.segment[work]
    order = np.argsort(number, kind="stable")
    names, first = np.unique(number[order], return_index=True)
    rows_of = np.split(work[order], first[1:])
    start = np.array([t.start[rows].min() for rows in rows_of], np.int64)
    end = np.array([t.end[rows].max() for rows in rows_of], np.int64)
    reached = np.maximum.accumulate(end)
    before = np.concatenate(([0], reached[:-1])).astype(np.int64)
    used = {name: np.stack([covered(*i, reached) - covered(*i, before) for i in each]).max(axis=0) for name, each in _resources(t).items()}
    alone = _alone(t, rows_of)
    steps = isa.tag_of(t.block, t.operator)  # unique in a segment
    found = []
    for i, (name, rows) in enumerate(zip(names.tolist(), rows_of, strict=True)):
        own = int(reached[i] - before[i])
        kernels = np.unique(t.operator[rows])
        known = segments[name] if 0 <= name < len(segments) else None
        macs, needed, halo, padding = _products(t, rows, operators)
        useful, shared = t.useful[rows], shared_traffic([t.code[rows]])
        done = np.unique(steps[rows])
        loading = np.unique(steps[rows[useful > 0]])
        loaders = np.isin(isa.operator_of(done), isa.operator_of(loading))
        found.append(
            SegmentTime(
                segment=name,
                first=int(kernels[0]),
                last=int(kernels[-1]),
                operators=known.operators if known is not None else len(kernels),
                blocks=known.blocks if known is not None else None,
                start=int(start[i]),
                end=int(end[i]),
                own_cycles=own,
                alone_cycles=int(alone[i]),
                utilisation={resource: float(busy[i]) / own for resource, busy in used.items()} if own else {},
                steps=len(done),
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
    return tuple(found)


def _resources(t: Timeline) -> dict[str, list[Intervals]]:
    """When each resource works; one list of intervals per core, one in all for DDR."""
    found: dict[str, list[Intervals]] = {"DDR": [union(t.start[t.transfer], t.end[t.transfer])]}
    for engine in list(Engine)[: Engine.SCALAR]:
        queues = [t.queues[core * ENGINES + engine] for core in range(t.cores)]
        rows = [queue[t.work[queue] & ~t.transfer[queue]] for queue in queues]
        found[engine.name] = [(t.start[mine], t.end[mine]) for mine in rows]
    dispatch = [t.dispatch[a:b] for a, b in zip(t.stream_start[:-1], t.stream_start[1:], strict=True)]
    found["issue"] = [union(d - t.machine.issue_cycles, d) for d in dispatch]
    return found


def _alone(t: Timeline, rows_of: Sequence[Ints]) -> Ints:
    """Cycles in which a segment works and no other one does."""
    busy = [union(t.start[rows], t.end[rows]) for rows in rows_of]
    border = np.unique(np.concatenate([edge for pair in busy for edge in pair])) if busy else np.zeros(0, np.int64)
    # between two borders a segment works all the time or not at all
    change = np.zeros(len(border), np.int64)
    for start, end in busy:
        np.add.at(change, np.searchsorted(border, start), 1)
        np.add.at(change, np.searchsorted(border, end), -1)
    single = np.cumsum(change)[:-1] == 1
    lone = union(border[:-1][single], border[1:][single])
    return np.array([_common(lone, mine) for mine in busy], np.int64)


def _common(a: Intervals, b: Intervals) -> int:
    return int((covered(*a, b[1]) - covered(*a, b[0])).sum())


def _products(t: Timeline, rows: Ints, operators: Sequence[OperatorEntry]) -> tuple[int, int | None, float | None, float | None]:
    """(macs, needed macs, halo, padding) of a segment's rows."""
    code = t.code[rows].astype(np.int64)
    mmad, out = code[np.isin(code[:, isa.OP], isa.PRODUCTS)], code[code[:, isa.OP] == Op.FIXPIPE]
    macs = int(isa.macs(mmad).sum())
    inside = np.unique(t.operator[rows]).tolist()
    if not macs or inside[-1] >= len(operators):
        return macs, None, None, None
    needed = sum(operators[i].macs for i in inside)
    accumulators = sum(operators[i].accumulators for i in inside)
    if not needed or not accumulators:
        return macs, None, None, None
    # weighted by work: a halo of an operator costs that operator's products
    handed = np.bincount(
        isa.operator_of(out[:, isa.TAG]), out[:, isa.F_M] * out[:, isa.F_N1] * isa.COLUMNS[out[:, isa.DTYPE]], minlength=inside[-1] + 1
    )
    done = sum(operators[i].macs * float(handed[i]) / operators[i].accumulators for i in inside if operators[i].accumulators)
    return macs, needed, done / needed, macs / done if done else None
