"""A plan as schedule primitives."""

from __future__ import annotations

from compiler.kinds.conv import ConvSpec
from compiler.plan.plan import Infeasible, Plan, SegmentPlan
from compiler.segment.blocks import cut
from compiler.segment.channels import channel_parts, largest
from compiler.segment.primitives import to_text
from compiler.segment.run import streamed_rights
from compiler.segment.siblings import as_made
from compiler.segment.stages import nest_of
from compiler.segment.strips import widest
from compiler.unit.unit import Unit
from simulator.npu.errors import InfeasibleError


def primitives(unit: Unit, plan: Plan) -> list[tuple[int, str, str]]:
    """(segment, operator, its primitives) of every operator.  Raises `InfeasibleError`."""
    out, start = list[tuple[int, str, str]](), 0
    for index, segment in enumerate(plan.segments):
        out += [(index, name, text) for name, text in _operators(unit, segment, start)]
        start += len(segment.operators)
    return out


def _operators(unit: Unit, segment: SegmentPlan, start: int) -> list[tuple[str, str]]:
    """(operator, primitives) on the segment's largest block, of the core with the most channels where they are split."""
    made = as_made(unit, segment, start)
    if isinstance(made, Infeasible):
        raise InfeasibleError(str(made))
    unit, segment, start = made
    stop = start + len(segment.operators)
    parts = channel_parts(unit, start, stop, segment.channels)
    unit = unit if isinstance(parts, Infeasible) else largest(parts, start, stop)
    strip = widest(unit, start, stop, segment.columns)
    if isinstance(strip, Infeasible):
        raise InfeasibleError(str(strip))
    unit = strip
    streamed = streamed_rights(unit, start, segment.made_tilings)
    blocks = cut(unit, start, stop, segment.blocks, segment.caching, segment.dealt, streamed)
    out = []
    for k, tiling in enumerate(segment.made_tilings):
        spec = unit.kernels[start + k]
        rows = blocks.rows(k)
        fed = int(isinstance(spec, ConvSpec))  # what CUBE is fed with has to come to L1 in any case
        reads = spec.reads[:1] if streamed >> k & 1 else spec.reads
        staged = [(i, blocks.staged[piece.storage]) for i, piece in enumerate(reads) if piece.storage in blocks.staged]
        kept = frozenset(i for i, tensor in staged if tensor.produced or i >= fed)
        out.append((spec.name, to_text(unit.machine, nest_of(unit, spec, rows, kept, blocks.inside[k]), tiling)))
    return out
