"""Segment transform: replaces the operators of a segment by new operators, so that lower levels need not know how the segment is split.

A transform rewrites the target graph.  `RewrittenSegment` maps plans from original to new operators (`expand`) and back (`contract`);
`space.decode` maps genes.  All transforms are in `segment.transforms`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from typing import Any

from compiler.plan.plan import Infeasible, SegmentPlan, VectorShare
from compiler.target.target_graph import TargetGraph


@dataclass(frozen=True, eq=False)
class RewrittenSegment:
    """Segment after a transform.  target_graph: target graph with the new operators.

    order: per new operator, its original operator; both count from the segment's start.  asked: settings that asked for the transform, by
    key.  loaded: storages, as bits, that cannot be persistent.
    planes: per new operator, number of its planes if it is a part on VECTOR, else 0; () if no operator is.
    """

    target_graph: TargetGraph
    order: tuple[int, ...]
    asked: dict[str, Any]
    loaded: int = 0
    planes: tuple[int, ...] = ()

    @cached_property
    def last(self) -> tuple[int, ...]:
        """Per original operator, its last new operator."""
        last = {of: index for index, of in enumerate(self.order)}
        return tuple([last[of] for of in range(len(last))])

    @cached_property
    def tilings(self) -> tuple[int, ...]:
        """Per new operator, index of its tiling in the original plan: tilings of operators come first, then tilings of parts on VECTOR."""
        parts = count(len(self.last))
        return tuple([next(parts) if planes else of for of, planes in zip(self.order, self.planes or [0] * len(self.order), strict=True)])

    @cached_property
    def leaders(self) -> tuple[int, ...]:
        """Per new operator, the last new operator with the same tiling."""
        last = {place: index for index, place in enumerate(self.tilings)}
        return tuple([last[place] for place in self.tilings])

    def expand(self, plan: SegmentPlan) -> SegmentPlan:
        """Plan of the new operators.  plan: plan of the original operators."""
        tilings = *plan.tilings, *(share.tiling for share in plan.on_vector)
        columns = {
            "operators": tuple([plan.operators[of] for of in self.order]),
            "tilings": tuple([tilings[place] for place in self.tilings]),
            "halo": tuple([plan.halo[of] for of in self.order]) if plan.halo else (),
        }
        return plan.model_copy(update=columns | {key: SegmentPlan.model_fields[key].default for key in self.asked})

    def contract(self, plan: SegmentPlan) -> SegmentPlan:
        """Plan of the original operators.  plan: plan of the new operators, with equal tilings for operators with the same leader."""
        names, tilings = (tuple([column[index] for index in self.last]) for column in (plan.operators, plan.tilings))
        cached = {of for of, halo in zip(self.order, plan.halo, strict=False) if halo == "cache"}
        halo = tuple(["cache" if of in cached else "recompute" for of in range(len(names))]) if cached else ()
        shares = [
            VectorShare.model_construct(operator=name, planes=planes, tiling=tiling)  # type: ignore[arg-type]
            for name, planes, tiling in zip(plan.operators, self.planes, plan.tilings, strict=False)
            if planes
        ]
        asked = {"on_vector": tuple(shares)} if shares else self.asked
        return plan.model_copy(update={"operators": names, "tilings": tilings, "halo": halo} | asked)


@dataclass(frozen=True)
class SegmentTransform:
    """Transform of a segment.  Settings are a plan, or a gene, which has the same keys but no tilings.

    wanted: whether settings ask for the transform.  words: name of the transform in messages.  conflicts: keys that may not be set together
    with the transform -> format of the settings in messages.  split: function that rewrites operators [start, stop), or returns the reason
    why it cannot.
    """

    wanted: Callable[[Any], bool]
    words: Callable[[Any], str]
    conflicts: dict[str, str]
    split: Callable[[TargetGraph, Any, int, int], RewrittenSegment | Infeasible]

    def apply(self, target_graph: TargetGraph, settings: Any, start: int, stop: int) -> RewrittenSegment | Infeasible:
        """Segment of the new operators; or the reason why it is impossible, without a place if no single operator is the reason."""
        for key, words in self.conflicts.items():
            if getattr(settings, key, 0) not in (0, 1, ()):  # genes have fewer keys than plans
                return Infeasible("", f"{self.words(settings)} and {words.format(settings)}: one of the two is accepted")
        return self.split(target_graph, settings, start, stop)


SHARED_CHANNELS = {"channels": "channels shared by cores"}
STAGED = {"staged": "staged weights"}
ON_VECTOR = {"on_vector": "channels on VECTOR"}
