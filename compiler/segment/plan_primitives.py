"""A plan as schedule primitives."""

from __future__ import annotations

from compiler.kinds.conv import ConvSpec
from compiler.plan.plan import Infeasible, Plan, SegmentPlan
from compiler.segment.primitives import to_text
from compiler.segment.segment import Segment
from compiler.segment.stages import nest_of
from compiler.unit.unit import Unit
from simulator.npu.errors import InfeasibleError


def primitives(unit: Unit, plan: Plan) -> list[tuple[int, str, str]]:
    """(segment, operator, its primitives) of every operator.  Raises `InfeasibleError`."""
    out, start = list[tuple[int, str, str]](), 0
    for index, segment in enumerate(plan.segments):
        out += [(index, name, text) for name, text in _operators(unit, segment, start)]
        start += len(segment.operators)
    return out


def _operators(unit: Unit, plan: SegmentPlan, start: int) -> list[tuple[str, str]]:
    """(operator, primitives) on the segment's largest block, of the core with the most channels where they are split."""
    segment = Segment.of(unit, plan, start)
    if isinstance(segment, Infeasible):
        raise InfeasibleError(str(segment))
    strip, out = segment.widest(), []
    for k, tiling in enumerate(segment.plan.tilings):
        spec = strip.unit.operators[segment.outline.start + k]
        fed = int(isinstance(spec, ConvSpec))  # what CUBE is fed with has to come to L1 in any case
        kept = frozenset(i for i, (in_l1, made) in enumerate(strip.residence(k)) if made or (in_l1 and i >= fed))
        nest = nest_of(strip.unit, spec, strip.blocks.rows(k), kept, strip.blocks.inside[k])
        out.append((spec.name, to_text(unit.machine, nest, tiling)))
    return out
