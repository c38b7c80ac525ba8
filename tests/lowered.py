"""Records of one core's share of a segment, in one call."""

from compiler.codegen.lower_segment import Records, drafted, lower_draft
from compiler.plan.plan import Infeasible, SegmentPlan
from compiler.segment.persistent import Held
from compiler.target.target_graph import TargetGraph


def lower_segment(
    target_graph: TargetGraph, plan: SegmentPlan, start: int, flip: bool = False, core: int = 0, held: Held | None = None
) -> Records | Infeasible:
    """Of the segment whose first operator is `start`."""
    found = drafted(target_graph, plan, start, core, held)
    return found if isinstance(found, Infeasible) else lower_draft(found, flip)
