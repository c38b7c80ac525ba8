"""In how much of L1 a segment fits."""

from __future__ import annotations

from compiler.plan.plan import Infeasible, SegmentPlan
from compiler.segment.held import Held
from compiler.segment.segment import Segment
from compiler.unit.granted import l1_grants, within_l1
from compiler.unit.unit import Unit


def fits_l1(unit: Unit, plan: SegmentPlan, start: int, held: Held | None = None) -> bool:
    """Whether every core's buffers fit the unit's L1 (and UB).  held: see `Segment.memory`."""
    segment = Segment.of(unit, plan, start)
    if isinstance(segment, Infeasible):
        return False
    # cores that share rows have the same buffers
    every = (segment.memory(segment.share(core), told=False, held=held) for core in range(len(segment.parts)))
    return not any(isinstance(places, Infeasible) for places in every)


def least_l1(unit: Unit, plan: SegmentPlan, start: int) -> int:
    """The least of `l1_grants` in which the segment fits; all of L1 also where it does not fit that."""
    *smaller, whole = l1_grants(unit.machine)
    return next((size for size in smaller if fits_l1(within_l1(unit, size), plan, start)), whole)
