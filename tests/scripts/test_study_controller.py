"""The study of the controllers on a small compiled file: it runs, and its table is consistent."""

from __future__ import annotations

import csv

import pytest

from tests.contended import two_variants
from tests.scripting import run_script


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, list[dict[str, str]]]:
    """Its output, and the rows of controller.csv."""
    folder = tmp_path_factory.mktemp("study")
    words = ["--seeds", "2", "--other-seeds", "1", "--inferences", "130", "--traces", "step,adversarial"]
    done = run_script("study", "controller", two_variants(folder), "--out", folder / "controller", *words, cwd=folder)
    assert done.returncode == 0, done.stderr
    with (folder / "controller" / "controller.csv").open(newline="") as file:
        return done.stdout, list(csv.DictReader(file))


def test_a_row_for_every_trace(found: tuple[str, list[dict[str, str]]]) -> None:
    assert [(row["network"], row["trace"], row["seed"]) for row in found[1]] == [
        ("out", trace, seed) for trace in ("step", "adversarial") for seed in ("0", "1")
    ]
    for row in found[1]:
        assert int(row["inferences"]) > 130  # the trace covers so many of the longest
        assert row["best_static"] in ("none", "severe")
        to_win = float(row["to_win"])
        for rule in ("threshold", "estimator"):
            over_oracle, over_static = float(row[f"{rule}_over_oracle"]), float(row[f"{rule}_over_static"])
            assert (1 + over_static) * (1 + to_win) == pytest.approx(1 + over_oracle)
            if row["trace"] == "step":
                assert over_oracle < 0.05
        assert float(row["estimator_over_static"]) < 0.02


def test_gains_come_first_and_goals_last(found: tuple[str, list[dict[str, str]]]) -> None:
    text = found[0]
    places = [
        text.index(part) for part in ("chosen on seeds 1000..1000", "what can be won", "\nthreshold  out", "\nestimator  out", "\ngoals")
    ]
    assert places == sorted(places)
    worst = max(float(row["estimator_over_static"]) for row in found[1])
    assert f"estimator: at most {worst:+.2%} over the best static variant anywhere (goal +2%): reached" in text
