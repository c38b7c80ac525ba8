"""Differences of two plans, segment by segment.

Plans of the same operators are compared between common borders.  Where both have the same segment, it is compared key by key.  Elsewhere
the difference is the run of operators with the segments of each plan.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from compiler.plan.plan import Plan, SegmentPlan


@dataclass(frozen=True)
class Change:
    """Run of operators with a difference.

    a, b: (first, last) segment in each plan.  changed: key -> (value in a, value in b) if both have the same segment,
    tilings as `operator.key`; {} if the cuts differ.
    """

    operators: tuple[str, ...]
    a: tuple[int, int]
    b: tuple[int, int]
    changed: Mapping[str, tuple[Any, Any]]


@dataclass(frozen=True)
class PlanDiff:
    """Differences of two plans.  keys: differing keys of the plans themselves, as their model and machine.  only_a, only_b: operators that
    only
    one plan has.

    order: whether the same operators have another order.  changes: differing segments; () if the operators differ.
    """

    keys: Mapping[str, tuple[Any, Any]]
    only_a: tuple[str, ...]
    only_b: tuple[str, ...]
    order: bool
    changes: tuple[Change, ...]

    @property
    def equal(self) -> bool:
        return not (self.keys or self.only_a or self.only_b or self.order or self.changes)


def diff(a: Plan, b: Plan) -> PlanDiff:
    """From a to b."""
    keys = _changed(a.model_dump(mode="json", exclude={"segments"}), b.model_dump(mode="json", exclude={"segments"}))
    names_a, names_b = ([name for segment in plan.segments for name in segment.operators] for plan in (a, b))
    if names_a != names_b:
        only_a, only_b = _without(names_a, names_b), _without(names_b, names_a)
        return PlanDiff(keys, only_a, only_b, not (only_a or only_b), ())
    return PlanDiff(keys, (), (), False, tuple(_changes(a.segments, b.segments, names_a)))


def _without(names: list[str], others: list[str]) -> tuple[str, ...]:
    other_names = set(others)
    return tuple(name for name in names if name not in other_names)


def _changes(a: tuple[SegmentPlan, ...], b: tuple[SegmentPlan, ...], names: list[str]) -> Iterator[Change]:
    stops_a, stops_b = (list(accumulate(len(segment.operators) for segment in side)) for side in (a, b))
    start = from_a = from_b = 0
    for stop in sorted(set(stops_a) & set(stops_b)):
        to_a, to_b = stops_a.index(stop), stops_b.index(stop)
        if to_a == from_a and to_b == from_b:
            changed = _changed(_flat(a[to_a]), _flat(b[to_b]))
        else:
            changed = {}
        if changed or to_a != from_a or to_b != from_b:
            yield Change(tuple(names[start:stop]), (from_a, to_a), (from_b, to_b), changed)
        start, from_a, from_b = stop, to_a + 1, to_b + 1


def _flat(segment: SegmentPlan) -> dict[str, Any]:
    """Keys of the segment, and of its operators' tilings."""
    usual = {key: [] if field.default == () else field.default for key, field in SegmentPlan.model_fields.items() if field.exclude_if}
    raw = usual | segment.model_dump(mode="json", exclude={"operators", "tilings", "halo"})
    del raw["on_vector"]
    raw |= {
        f"{name}.halo": halo for name, halo in zip(segment.operators, segment.halo or ("recompute",) * len(segment.operators), strict=True)
    }
    for name, tiling in zip(segment.operators, segment.tilings, strict=True):
        raw |= {f"{name}.{key}": value for key, value in tiling.model_dump(mode="json").items()}
    for share in segment.on_vector:
        sizes = share.tiling.model_dump(mode="json") | {"planes": share.planes}
        raw |= {f"{share.operator}.on_vector.{key}": value for key, value in sizes.items()}
    return raw


def _changed(a: Mapping[str, Any], b: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    return {key: (a.get(key), b.get(key)) for key in dict.fromkeys([*a, *b]) if a.get(key) != b.get(key)}
