"""L1 limits: the smallest part of L1 into which a segment fits."""

from __future__ import annotations

from compiler.plan.plan import Infeasible, SegmentPlan
from compiler.segment.memory_plan import capacity_tests
from compiler.segment.persistent import PersistentLayout
from compiler.segment.segment import Segment
from compiler.target.capabilities import room_blocks
from compiler.target.level_limits import l1_grants, within_l1
from compiler.target.target_graph import TargetGraph


def fits_l1(target_graph: TargetGraph, plan: SegmentPlan, start: int, held: PersistentLayout | None = None) -> bool:
    """Whether every core's buffers fit L1 (and UB) of the target graph's machine.  held: see `Segment.memory`."""
    segment = Segment.of(target_graph, plan, start)
    if isinstance(segment, Infeasible):
        return False
    # cores that share rows have the same buffers
    results = (segment.memory(segment.share(core), explain=False, held=held) for core in range(len(segment.parts)))
    return not any(isinstance(places, Infeasible) for places in results)


def least_l1(target_graph: TargetGraph, plan: SegmentPlan, start: int) -> int:
    """Smallest of `l1_grants` into which the segment fits; all of L1 also if the segment does not fit at all.

    The demand of a segment is the same for every grant, and is computed once.  A segment with persistent tensors needs `fits_l1` for every
    grant, because addresses of persistent tensors are counted from the top of L1.
    """
    *smaller, full_l1 = l1_grants(target_graph.machine)
    if plan.held:
        return next((size for size in smaller if fits_l1(within_l1(target_graph, size), plan, start)), full_l1)
    segment = Segment.of(target_graph, plan, start)
    if not smaller or isinstance(segment, Infeasible):
        return full_l1
    wanted = [capacity_tests(segment.share(core).strips, segment.plan) for core in range(len(segment.parts))]
    for size in smaller:
        machine = within_l1(target_graph, size).machine
        if all(demand is not None and all(fits(room_blocks(machine, memory)) for memory, fits in demand.items()) for demand in wanted):
            return size
    return full_l1
