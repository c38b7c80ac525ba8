"""A search begins with whole programs: those of prediction, and those that a few measurements correct."""

from __future__ import annotations

import pandas as pd

import tuner
from tests.tuning import FEW

LEVELS = ("none", "slight", "severe")


def log(*settings: str) -> pd.DataFrame:
    """Of a small search."""
    search = tuner.Search("made:mobilenet_v2-small", "edge", (*FEW, "search.islands=3", *settings), candidates=9)
    found = search.run().log.astype({"level": "str", "kind": "str"})
    assert set(found["status"]) == {"ok"}
    return found


def programs(found: pd.DataFrame) -> pd.DataFrame:
    """With a column of cycles for each level."""
    whole = found[found["kind"] == "program"]
    return whole.pivot_table("cycles", ["seq", "island", "generation"], "level").reset_index().sort_values("seq")


def test_the_first_programs_are_those_that_are_cheapest_by_prediction() -> None:
    """On one island; they keep data on chip.  Corrected ones follow, which are no slower, and operators alone come last."""
    found = log()
    begun = programs(found)
    first = begun[begun["generation"] == 1]
    assert 2 <= len(first) <= 2 * len(LEVELS)
    assert set(first["island"]) == {0}
    corrected = first.iloc[len(first) // 2 :]
    for level in LEVELS:
        assert first[level].min() < 0.6 * begun[level].iloc[0]
        assert corrected[level].min() == first[level].min(), "changes that make segments faster make programs faster"
    operators = found[(found["kind"] == "operator") & (found["generation"] == 1)]
    assert operators["seq"].max() > first["seq"].max()
    assert len(begun[begun["generation"] > 1]), "programs follow"


def test_operators_are_changed_alone_later_those_first_that_take_longest() -> None:
    found = log()
    operators = found[(found["kind"] == "operator") & (found["level"] == "none")]
    begun = operators[operators["generation"] == 1]
    first = begun.loc[begun["cycles"].idxmax()]
    changed = operators[(operators["generation"] == 2) & (operators["workload"] == first["workload"])]
    assert len(changed) > 1


def test_without_segmentations_nothing_is_predicted() -> None:
    assert not len(programs(log("use.segmentations=false")).query("generation == 1"))
