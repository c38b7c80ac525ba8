"""A search whose first programs are those of prediction."""

from __future__ import annotations

import pandas as pd

import tuner
from tests.tuning import FEW

LEVELS = ("none", "slight", "severe")


def programs(*settings: str) -> pd.DataFrame:
    """Those that a small search measured, with a column of cycles for each level."""
    search = tuner.Search("made:mobilenet_v2-small", "edge", (*FEW, "search.islands=3", *settings), candidates=7)
    log = search.run().log
    found = log[log["kind"] == "program"].astype({"level": "str"})
    assert set(found["status"]) == {"ok"}
    return found.pivot_table("cycles", ["seq", "island", "generation"], "level").reset_index().sort_values("seq")


def test_the_first_programs_are_those_that_are_cheapest_by_prediction() -> None:
    """On one island, before any segment of theirs was measured; they keep data on chip."""
    without, begun = programs(), programs("use.prediction=true")
    first = begun[begun["generation"] == 1]
    assert 1 <= len(first) <= len(LEVELS)
    assert set(first["island"]) == {0}
    assert not len(without[without["generation"] == 1]), "single operators are measured alone first"
    for level in LEVELS:
        assert first[level].min() < 0.6 * begun[level].iloc[0]
        assert first[level].min() < without[level].min()
