"""Records of one core's share of a segment, in one call."""

from compiler.codegen.lower_segment import Records, draft_segment, lower_draft
from compiler.plan.plan import Infeasible, SegmentPlan
from compiler.segment.persistent import PersistentLayout
from compiler.target.target_graph import TargetGraph


def lower_segment(
    target_graph: TargetGraph, plan: SegmentPlan, start: int, flip: bool = False, core: int = 0, held: PersistentLayout | None = None
) -> Records | Infeasible:
    """Of the segment whose first operator is `start`."""
    found = draft_segment(target_graph, plan, start, core, held)
    return found if isinstance(found, Infeasible) else lower_draft(found, flip)
