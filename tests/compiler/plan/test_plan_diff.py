"""The difference of two plans: key by key where the cuts agree, by the segments of either side where they do not."""

from __future__ import annotations

from compiler.plan.diff import Change, diff
from compiler.plan.plan import ConvTiling, Plan, SegmentPlan, Tiling, VectorTiling

CONV = ConvTiling(weights="resident", chunk_n1=4, chunk_k1=4, tile_m=128, tile_n1=2, tile_k1=4, order="m")
TILINGS: dict[str, Tiling] = {"a": CONV, "b": VectorTiling(tile_planes=1, tile_rows=2), "c": CONV, "d": CONV, "e": CONV}


def segment(names: str, blocks: int = 1) -> SegmentPlan:
    return SegmentPlan(operators=tuple(names), blocks=blocks, tilings=tuple(TILINGS.get(name, CONV) for name in names))


def plan(*segments: SegmentPlan) -> Plan:
    return Plan(model="m", machine="n", dtype="float16", segments=segments)


def test_equal_plans() -> None:
    assert diff(plan(segment("ab")), plan(segment("ab"))).equal


def test_keys_of_a_segment_and_of_its_tilings() -> None:
    tilings = (TILINGS["b"], CONV.model_copy(update={"tile_m": 64}))
    changed = segment("bc", 4).model_copy(update={"window": 2, "columns": 3, "tilings": tilings})
    found = diff(plan(segment("a"), segment("bc"), segment("d")), plan(segment("a"), changed, segment("d")))
    keys = {"columns": (1, 3), "blocks": (1, 4), "window": (1, 2), "c.tile_m": (128, 64)}
    assert found.changes == (Change(("b", "c"), (1, 1), (1, 1), keys),)
    assert not found.equal


def test_missing_key_of_one_side_has_its_default() -> None:
    changed = segment("bc").model_copy(
        update={"lookahead": 1, "overtake": True, "urgent": False, "held": ("x",), "passes": 2, "same_end": True}
    )
    found = diff(plan(segment("bc")), plan(changed))
    flags = {"overtake": (False, True), "urgent": (True, False), "same_end": (False, True)}
    assert found.changes[0].changed == {"passes": (1, 2), "lookahead": (128, 1), **flags, "held": ([], ["x"])}


def test_other_kind_of_tiling_names_both_key_sets() -> None:
    other = SegmentPlan(operators=("b",), tilings=(CONV,))
    (change,) = diff(plan(segment("b")), plan(other)).changes
    assert change.changed["b.kind"] == ("vector", "conv")
    assert change.changed["b.tile_rows"] == (2, None)
    assert change.changed["b.tile_m"] == (None, 128)


def test_other_cuts_are_compared_between_common_borders() -> None:
    a = plan(segment("a"), segment("bc"), segment("d"), segment("e", 2))
    b = plan(segment("a"), segment("b"), segment("cd"), segment("e", 3))
    found = diff(a, b)
    assert found.changes == (
        Change(("b", "c", "d"), (1, 2), (1, 2), {}),
        Change(("e",), (3, 3), (3, 3), {"blocks": (2, 3)}),
    )
    merged = diff(a, plan(segment("abcd"), segment("e", 2)))
    assert merged.changes == (Change(("a", "b", "c", "d"), (0, 2), (0, 0), {}),)


def test_plans_of_other_things() -> None:
    a = plan(segment("ab"), segment("c"))
    found = diff(a, plan(segment("ad")).model_copy(update={"machine": "other"}))
    assert found.keys == {"machine": ("n", "other")}
    assert (found.only_a, found.only_b, found.order, found.changes) == (("b", "c"), ("d",), False, ())
    swapped = diff(a, plan(segment("ba"), segment("c")))
    assert (swapped.only_a, swapped.only_b, swapped.order) == ((), (), True)
    assert not swapped.equal
