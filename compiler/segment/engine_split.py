"""Engine split: depthwise convolutions of a segment on two engines, the first channels on VECTOR, the later channels on the matrix unit.

Each part is a separate operator, with its own tiling, tiles and buffers, and reads and writes some planes of the same tensors.  So a
segment with such parts is a segment of a target graph with these operators, and lower levels need not know about the split.
VECTOR has the first channels because VECTOR is slower, and the first channels of the input are ready first.
"""

from __future__ import annotations

from functools import lru_cache

from compiler.ops.conv import ConvSpec
from compiler.ops.depthwise import DepthwiseSpec, is_divisible
from compiler.plan.plan import Infeasible
from compiler.segment.channel_splits import with_operators
from compiler.segment.segment_transform import ON_VECTOR, SHARED_CHANNELS, STAGED, RewrittenSegment, SegmentTransform
from compiler.target.target_graph import TargetGraph
from compiler.target.target_op import TargetOp


@lru_cache(maxsize=4096)
def split_engines(target_graph: TargetGraph, start: int, planes: tuple[int, ...]) -> RewrittenSegment | Infeasible:
    """Split operators from `start` on; or the reason why the split is impossible.  planes: per operator, planes on VECTOR, 0 for none."""
    operators, parts = list[tuple[int, TargetOp]](), []
    for k, vector_planes in enumerate(planes, start):
        spec = target_graph.operators[k]
        if vector_planes:
            if not is_divisible(target_graph, k):
                return Infeasible(spec.name, "on VECTOR; accepted: depthwise convolutions of float16 with more planes than one")
            assert isinstance(spec, ConvSpec)
            if not 0 < vector_planes < spec.y.planes:
                return Infeasible(spec.name, f"{vector_planes} planes on VECTOR; accepted: 1 to {spec.y.planes - 1}")
            cube_part = spec.channel_part(vector_planes, spec.y.planes, target_graph.type_of(spec.y))
            assert cube_part is not None, "every plane is a group"
            operators.append((k, DepthwiseSpec.of(target_graph, spec, vector_planes)))
            parts.append(vector_planes)
            spec = cube_part
        operators.append((k, spec))
        parts.append(0)
    engine_graph = with_operators(target_graph, start, start + len(planes), operators, target_graph.storages)
    return RewrittenSegment(engine_graph, tuple([k - start for k, _ in operators]), {"on_vector": planes}, planes=tuple(parts))


def divisible(target_graph: TargetGraph, start: int, stop: int) -> tuple[int, ...]:
    """Number of planes of every operator that can be split over engines, else 0."""
    return tuple([target_graph.operators[k].y.planes if is_divisible(target_graph, k) else 0 for k in range(start, stop)])


ENGINE_SPLIT = SegmentTransform(
    lambda settings: bool(settings.on_vector),
    lambda settings: ON_VECTOR["on_vector"],
    SHARED_CHANNELS | STAGED,
    lambda target_graph, settings, start, stop: split_engines(target_graph, start, settings.planes),
)
