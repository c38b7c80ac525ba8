"""Segments whose depthwise convolutions are made by two engines: VECTOR makes the first channels, the matrix unit the others.

Either part is an operator of its own, with its tiling, tiles and buffers, that reads and makes some planes of the same tensors.  So a
segment with such parts is a segment of a unit that has them, and nothing below needs to know.
VECTOR has the first channels because it is the slower one, and what makes its input makes these first.
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


class Divided(NamedTuple):
    """unit: operators from `start` on are those of all engines.  order: the place in the segment of the operator that each of them is (a
    part of); planes: how many of its planes VECTOR makes, where it is that part, else 0."""

    target_graph: TargetGraph
    order: tuple[int, ...]
    planes: tuple[int, ...]

    @property
    def main(self) -> tuple[int, ...]:
        """Of every operator of the segment the place of itself, or of the part that the matrix unit makes."""
        return tuple(at for at, planes in enumerate(self.planes) if not planes)

    @property
    def shared(self) -> tuple[int, ...]:
        """Places of the parts that VECTOR makes."""
        return tuple(at for at, planes in enumerate(self.planes) if planes)

    def joined(self, plan: SegmentPlan) -> SegmentPlan:
        """The plan that is that of the unit's operators."""
        names, tilings = (tuple(each[at] for at in self.main) for each in (plan.operators, plan.tilings))
        halo = tuple(plan.halo[at] for at in self.main) if plan.halo else ()
        shares = []
        for at in self.shared:
            tiling = plan.tilings[at]
            assert isinstance(tiling, VectorTiling)
            shares.append(VectorShare.model_construct(operator=plan.operators[at], planes=self.planes[at], tiling=tiling))
        return plan.model_copy(update={"operators": names, "tilings": tilings, "halo": halo, "on_vector": tuple(shares)})

    def divided(self, plan: SegmentPlan) -> SegmentPlan:
        """The plan of the unit's operators."""
        shares = {share.operator: share.tiling for share in plan.on_vector}
        names = tuple(plan.operators[of] for of in self.order)
        tilings = tuple(
            shares[plan.operators[of]] if planes else plan.tilings[of] for of, planes in zip(self.order, self.planes, strict=True)
        )
        halo = tuple(plan.halo[of] for of in self.order) if plan.halo else ()
        return plan.model_copy(update={"operators": names, "tilings": tilings, "halo": halo, "on_vector": ()})


def planes_of(plan: SegmentPlan) -> tuple[int, ...]:
    """Of every operator of a segment how many planes VECTOR makes beside the matrix unit; () for none."""
    asked = {share.operator: share.planes for share in plan.on_vector}
    return tuple([asked.get(name, 0) for name in plan.operators]) if asked else ()


@lru_cache(maxsize=4096)
def divided(target_graph: TargetGraph, start: int, planes: tuple[int, ...]) -> Divided | Infeasible:
    """Operators from `start` on, of so many planes of which VECTOR makes the first ones; why not where it cannot."""
    made, parts = list[tuple[int, TargetOp]](), []
    for k, mine in enumerate(planes, start):
        spec = target_graph.operators[k]
        if mine:
            if not is_divisible(target_graph, k):
                return Infeasible(spec.name, "on VECTOR; accepted: depthwise convolutions of float16 with more planes than one")
            assert isinstance(spec, ConvSpec)
            if not 0 < mine < spec.y.planes:
                return Infeasible(spec.name, f"{mine} planes on VECTOR; accepted: 1 to {spec.y.planes - 1}")
            rest = spec.channel_part(mine, spec.y.planes, target_graph.type_of(spec.y))
            assert rest is not None, "every plane is a group"
            made.append((k, DepthwiseSpec.of(target_graph, spec, mine)))
            parts.append(mine)
            spec = rest
        made.append((k, spec))
        parts.append(0)
    return Divided(
        with_operators(target_graph, start, start + len(planes), made, target_graph.storages),
        tuple(k - start for k, _ in made),
        tuple(parts),
    )


def divisible(target_graph: TargetGraph, start: int, stop: int) -> tuple[int, ...]:
    """Of every operator its planes where VECTOR can make some of them, else 0."""
    return tuple([target_graph.operators[k].y.planes if is_divisible(target_graph, k) else 0 for k in range(start, stop)])
