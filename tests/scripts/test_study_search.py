"""The study of searches with a tiny budget: curves fall, budgets hold, and the table follows from the curves."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest

from scripts import search_strategies
from scripts.study_search import summary
from tests.scripting import run_script
from tests.tuning import QUICK, save_small

BUDGET, PLANS = 20, 6


def test_the_table(tmp_path: Path) -> None:
    model = save_small("residual_block", tmp_path)
    words = ["--model", model, "--networks", model, "--tasks", 2, "--ways", 50, "--seeds", 2, "--budget", BUDGET, "--plan-budget", PLANS]
    done = run_script("study_search", "--out", tmp_path, "--json", *words, *(word for text in QUICK for word in ("--set", text)))
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    ends = defaultdict(dict)
    for row in found["rows"]:
        ends[row["part"], row["network"], row["seed"]].setdefault(row["strategy"], []).append((row["spent"], row["cycles"]))
    assert len(ends) == 2 * 2 + 2
    starts = defaultdict(set)
    for (part, task, _), strategies in ends.items():
        assert set(strategies) == {"ours", "random", "evolution", "annealing", "tpe"}
        for name, points in strategies.items():
            spent, cycles = zip(*points, strict=True)
            assert sorted(spent) == list(spent)
            assert sorted(cycles, reverse=True) == list(cycles)
            assert spent[-1] <= (BUDGET if part == "tilings" else PLANS + 1)
            if name != "ours":
                starts[part, task].add(cycles[0])
    assert all(len(mine) == 1 for mine in starts.values()), "all start at the same point"
    table = list(summary(found["rows"]))
    assert [(row["part"], row["strategy"]) for row in table[:1]] == [("tilings", "ours")]
    for row in table:
        mine = [e for (part, _, _), e in ends.items() if part == row["part"]]
        shares, against = [], []
        for strategies in mine:
            target = strategies["random"][-1][1]
            there = [spent for spent, cycles in strategies[row["strategy"]] if cycles <= target]
            shares.append(there[0] / row["budget"] if there else np.inf)
            against.append(strategies[row["strategy"]][-1][1] / target)
        assert row["share_of_budget"] == pytest.approx(float(np.median(shares)))
        assert row["never"] == sum(np.isinf(shares))
        assert row["against_random"] == pytest.approx(float(np.exp(np.log(against).mean())))
        assert row["share_low"] <= row["share_of_budget"] <= row["share_high"]
    assert sum("goal, ours within 20% of the budget" in part for part in found["shown"] if isinstance(part, str)) == 2


class Line:
    """Whole numbers from 0 to 999; the farther from 777, the slower; odd ones do not fit."""

    start = 100

    def random(self, rng: np.random.Generator) -> int:
        return int(rng.integers(1000))

    def neighbour(self, point: int, rng: np.random.Generator) -> int:
        return int(np.clip(point + rng.integers(-40, 41), 0, 999))

    def crossover(self, a: int, b: int, rng: np.random.Generator) -> int:
        return (a + b) // 2

    def parameters(self, point: int) -> dict[str, int]:
        return {"x": point}

    def suggested(self, trial: search_strategies.optuna.Trial) -> int:
        return trial.suggest_int("x", 0, 999)


@pytest.mark.parametrize("name", search_strategies.STRATEGIES)
def test_a_strategy(name: str) -> None:
    """Starts at the start, finds the valley, counts each point that fits once, and is the same again with the same seed."""
    asked: list[int] = []

    def oracle(point: int) -> float | None:
        asked.append(point)
        return None if point % 2 else float(abs(point - 777))

    first, again = (search_strategies.run(name, Line(), oracle, 3, 60) for _ in range(2))
    assert first.best == again.best
    assert asked[0] == Line.start
    assert len(first.best) == 60 == len({point for point in asked[: len(asked) // 2] if point % 2 == 0})
    assert first.best[0] == 677
    assert first.best[-1] < 60
    assert first.spent == [float(i) for i in range(1, 61)]


def test_a_strategy_that_repeats_itself_ends() -> None:
    meter = search_strategies.Meter(lambda point: 1.0, 5)
    assert {meter(0) for _ in range(5 * search_strategies.ASKS)} == {1.0}
    with pytest.raises(search_strategies.Spent):
        meter(0)
    assert meter.spent == [1.0]
