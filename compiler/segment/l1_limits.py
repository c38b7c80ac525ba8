"""In how much of L1 a segment fits."""

from __future__ import annotations

from compiler.plan.plan import Infeasible, SegmentPlan
from compiler.segment.memory_plan import asked
from compiler.segment.persistent import Held
from compiler.segment.segment import Segment
from compiler.target.capabilities import room_blocks
from compiler.target.level_limits import l1_grants, within_l1
from compiler.target.target_graph import TargetGraph


def fits_l1(target_graph: TargetGraph, plan: SegmentPlan, start: int, held: Held | None = None) -> bool:
    """Whether every core's buffers fit the unit's L1 (and UB).  held: see `Segment.memory`."""
    segment = Segment.of(target_graph, plan, start)
    if isinstance(segment, Infeasible):
        return False
    # cores that share rows have the same buffers
    every = (segment.memory(segment.share(core), told=False, held=held) for core in range(len(segment.parts)))
    return not any(isinstance(places, Infeasible) for places in every)


def least_l1(target_graph: TargetGraph, plan: SegmentPlan, start: int) -> int:
    """The least of `l1_grants` in which the segment fits; all of L1 also where it does not fit that.

    As `fits_l1` says of each, but what a segment asks for is the same in all of them, and is worked out once; not what is held, whose
    place is counted from the top of L1.
    """
    *smaller, whole = l1_grants(target_graph.machine)
    if plan.held:
        return next((size for size in smaller if fits_l1(within_l1(target_graph, size), plan, start)), whole)
    segment = Segment.of(target_graph, plan, start)
    if not smaller or isinstance(segment, Infeasible):
        return whole
    wanted = [asked(segment.share(core).strips, segment.plan) for core in range(len(segment.parts))]
    for size in smaller:
        machine = within_l1(target_graph, size).machine
        if all(each is not None and all(fits(room_blocks(machine, memory)) for memory, fits in each.items()) for each in wanted):
            return size
    return whole
