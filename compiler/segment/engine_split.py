"""Engine split: depthwise convolutions of a segment on two engines, the first channels on VECTOR, the others on the matrix unit.

Either part is an operator of its own, with its tiling, tiles and buffers, that reads and writes some planes of the same tensors.  So a
segment with such parts is a segment of a target graph that has them, and lower levels need not know.
VECTOR has the first channels because it is slower, and these are the first that its input has.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from compiler.ops.conv import ConvSpec
from compiler.ops.depthwise import DepthwiseSpec, is_divisible
from compiler.plan.plan import Infeasible, SegmentPlan, VectorShare, VectorTiling
from compiler.segment.channel_splits import with_operators
from compiler.target.target_graph import TargetGraph
from compiler.target.target_op import TargetOp


class EngineSplit(NamedTuple):
    """Segment on two engines.  target_graph: its operators from `start` on are the parts.  order: the original operator of each.

    planes: how many planes a part on VECTOR has, else 0.
    """

    target_graph: TargetGraph
    order: tuple[int, ...]
    planes: tuple[int, ...]

    @property
    def main(self) -> tuple[int, ...]:
        """Index of every original operator, or of its part on the matrix unit."""
        return tuple(index for index, planes in enumerate(self.planes) if not planes)

    @property
    def shared(self) -> tuple[int, ...]:
        """Indices of the parts on VECTOR."""
        return tuple(index for index, planes in enumerate(self.planes) if planes)

    def joined(self, plan: SegmentPlan) -> SegmentPlan:
        """Plan of the original operators for a plan of the parts."""
        names, tilings = (tuple(column[index] for index in self.main) for column in (plan.operators, plan.tilings))
        halo = tuple(plan.halo[index] for index in self.main) if plan.halo else ()
        shares = []
        for index in self.shared:
            tiling = plan.tilings[index]
            assert isinstance(tiling, VectorTiling)
            shares.append(VectorShare.model_construct(operator=plan.operators[index], planes=self.planes[index], tiling=tiling))
        return plan.model_copy(update={"operators": names, "tilings": tilings, "halo": halo, "on_vector": tuple(shares)})

    def divided(self, plan: SegmentPlan) -> SegmentPlan:
        """Plan of the parts."""
        shares = {share.operator: share.tiling for share in plan.on_vector}
        names = tuple(plan.operators[of] for of in self.order)
        tilings = tuple(
            shares[plan.operators[of]] if planes else plan.tilings[of] for of, planes in zip(self.order, self.planes, strict=True)
        )
        halo = tuple(plan.halo[of] for of in self.order) if plan.halo else ()
        return plan.model_copy(update={"operators": names, "tilings": tilings, "halo": halo, "on_vector": ()})


def planes_of(plan: SegmentPlan) -> tuple[int, ...]:
    """Planes on VECTOR of every operator of a segment; () for none."""
    planes_by_name = {share.operator: share.planes for share in plan.on_vector}
    return tuple([planes_by_name.get(name, 0) for name in plan.operators]) if planes_by_name else ()


@lru_cache(maxsize=4096)
def split_engines(target_graph: TargetGraph, start: int, planes: tuple[int, ...]) -> EngineSplit | Infeasible:
    """Split operators from `start` on, with so many first planes on VECTOR; or the reason against it."""
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
    return EngineSplit(
        with_operators(target_graph, start, start + len(planes), operators, target_graph.storages),
        tuple(k - start for k, _ in operators),
        tuple(parts),
    )


def divisible(target_graph: TargetGraph, start: int, stop: int) -> tuple[int, ...]:
    """Planes of every operator that VECTOR can share, else 0."""
    return tuple([target_graph.operators[k].y.planes if is_divisible(target_graph, k) else 0 for k in range(start, stop)])
