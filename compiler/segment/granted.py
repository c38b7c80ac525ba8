"""In how much of L1 a segment fits."""

from __future__ import annotations

from compiler.plan.plan import Infeasible, SegmentPlan
from compiler.segment.memory import asked
from compiler.segment.segment import Segment
from compiler.unit.granted import l1_grants, within_l1
from compiler.unit.machine import room_blocks
from compiler.unit.unit import Unit


def fits_l1(unit: Unit, plan: SegmentPlan, start: int) -> bool:
    """Whether every core's buffers fit the unit's L1 (and UB)."""
    segment = Segment.of(unit, plan, start)
    if isinstance(segment, Infeasible):
        return False
    # cores that share rows have the same buffers
    return not any(isinstance(segment.memory(segment.share(core), told=False), Infeasible) for core in range(len(segment.parts)))


def least_l1(unit: Unit, plan: SegmentPlan, start: int) -> int:
    """The least of `l1_grants` in which the segment fits; all of L1 also where it does not fit that.

    As `fits_l1` would say of each, but what a segment asks for is the same in all of them, and is worked out once.
    """
    *smaller, whole = l1_grants(unit.machine)
    segment = Segment.of(unit, plan, start)
    if not smaller or isinstance(segment, Infeasible):
        return whole
    wanted = [asked(segment.share(core).strips, segment.plan) for core in range(len(segment.parts))]
    for size in smaller:
        machine = within_l1(unit, size).machine
        if all(each is not None and all(fits(room_blocks(machine, memory)) for memory, fits in each.items()) for each in wanted):
            return size
    return whole
