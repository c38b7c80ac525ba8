"""In how much of L1 a segment fits."""

from __future__ import annotations

from compiler.plan.plan import Infeasible, SegmentPlan
from compiler.segment.segment import Segment
from compiler.unit.granted import l1_grants, within
from compiler.unit.unit import Unit


def fits_l1(unit: Unit, plan: SegmentPlan, start: int) -> bool:
    """Whether every core's buffers fit the unit's L1 (and UB)."""
    segment = Segment.of(unit, plan, start)
    if isinstance(segment, Infeasible):
        return False
    # cores that share rows have the same buffers
    return not any(isinstance(segment.memory(segment.share(core)), Infeasible) for core in range(len(segment.parts)))


def least_grant(unit: Unit, plan: SegmentPlan, start: int) -> int:
    """The place in `l1_grants` of the smallest L1 in which the segment fits; 0 also where it fits none."""
    grants = l1_grants(unit.machine)
    return next((at for at in range(len(grants) - 1, 0, -1) if fits_l1(within(unit, at), plan, start)), 0)
