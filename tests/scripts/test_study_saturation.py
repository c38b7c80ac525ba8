"""The study of saturation reads gains and ends off the curve of a search."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scripts import study_saturation as study
from tuner.farm import saturation
from tuner.farm.saturation import FEWEST


@settings(max_examples=15)
@given(st.integers(0, 2**32 - 1), st.integers(70, 120))
def test_ends_lose_what_came_behind_them(seed: int, epochs: int) -> None:
    rng, count = np.random.default_rng(seed), study.EPOCH * epochs
    cycles = (10_000 * (1 + np.exp(-np.arange(count) / rng.uniform(5, 300)))[:, None] * rng.uniform(1, 1.2, (count, 2))).astype(np.int64)
    best, row = np.minimum.accumulate(cycles, 0), study.judge(cycles)
    for doublings in (1, 2):
        ends = [row[f"end_{doublings}_{threshold}"] for threshold in study.THRESHOLDS]
        assert ends == sorted(ends, reverse=True), "less is asked of a search that may go on for longer"
        for threshold, end in zip(study.THRESHOLDS, ends, strict=True):
            assert FEWEST <= end <= count
            left = float(np.exp(np.log(best[-1] / best[end - 1]).mean()))
            assert row[f"lost_{doublings}_{threshold}"] == pytest.approx(1 - left, abs=1e-12)
            assert row[f"most_{doublings}_{threshold}"] >= row[f"lost_{doublings}_{threshold}"]
    for programs, share in study.expectations(cycles, 2).items():
        kept = best[programs - 1] / best[max(study.EPOCH, programs // 4 // study.EPOCH * study.EPOCH) - 1]
        assert share == pytest.approx(1 - np.exp(np.log(kept).mean() / 2), abs=1e-12)
    assert saturation.DOUBLINGS == 2


def test_tables_have_a_row_per_search_and_rule() -> None:
    steady = np.full((2 * FEWEST, 1), 1000, np.int64)
    row = {"network": "n", "machine": "m", "seed": 0, **study.judge(steady)}
    _, gains, _, ends = study.show([row])
    assert gains.rows == [["n", "m", 0, 2 * FEWEST, "", "0.00%", "0.00%", "0.00%"]]  # type: ignore[union-attr]
    assert [line[2:5] for line in ends.rows] == [("1 of 1", "50%", "50%")] * 6  # type: ignore[union-attr]
