"""The study of searches with a tiny budget: curves fall, budgets hold, and the table follows from the curves."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from compiler.ops.lower_graph import make_unit
from compiler.space.gene import Gene, Genome
from compiler.space.structural_hash import Structures
from scripts import search_strategies
from scripts.study_search import summary
from simulator.npu.machine_file import load_machine
from simulator.npu.parts import DataType
from tests.models import small_graph
from tests.scripting import run_script
from tests.tuning import FEW, save_small
from tuner.config import load_config
from tuner.log.record import RESULTS
from tuner.measure.request import Measurement, Request
from tuner.search.ask_tell import run_to_end
from tuner.search.knowledge import Knowledge
from tuner.search.limits import SearchLimits
from tuner.search.strategy import StrategyContext
from tuner.testing.strategy import StrategyContract

BUDGET, PLANS = 20, 6


def test_the_table(tmp_path: Path) -> None:
    model = save_small("conv_chain", tmp_path)
    words = ["--model", model, "--networks", model, "--tasks", 1, "--ways", 50, "--seeds", 1, "--budget", BUDGET, "--plan-budget", PLANS]
    done = run_script("study", "search", "--out", tmp_path, "--json", *words, *(word for text in FEW for word in ("--set", text)))
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    ends = defaultdict(dict)
    for row in found["rows"]:
        ends[row["part"], row["network"], row["seed"]].setdefault(row["strategy"], []).append((row["spent"], row["cycles"]))
    assert len(ends) == 1 + 1
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

    def genome(self, point: int) -> Genome:
        return (Gene(0, 1, point + 1),)


UNIT = make_unit(small_graph("conv_chain"), load_machine("tiny"), DataType.float16)


def walked(strategy: type[search_strategies.Walk], answer: Callable[[int], float | None], epochs: int) -> list[list[int]]:
    """Points that every job asked for, one after the other."""

    class OnALine(strategy):  # type: ignore[misc, valid-type]
        def space(self) -> Line:
            return Line()

    context, asked = StrategyContext(SearchLimits(UNIT, ("none",), load_config(), {}), 0, 3), list[list[int]]()
    known = Knowledge(Structures(UNIT), 1)

    def measured(requests: Sequence[Request]) -> list[Measurement]:
        values = np.zeros((1, len(RESULTS)), np.int64)
        point = requests[0].genome[0].blocks - 1
        asked[-1].append(point)
        octaves = answer(point)
        values[:, RESULTS.index("cycles")] = 1 if octaves is None else round(2**octaves)
        measurement = Measurement("infeasible") if octaves is None else Measurement("ok", task=str(point), values=values)
        known.heard(requests[0], measurement)
        return [measurement]

    for epoch in range(1, epochs + 1):
        asked.append([])
        one = OnALine(context)
        one.tell(known, [])
        run_to_end(one.ask(epoch), measured)
    return asked


def valley(point: int) -> float | None:
    return None if point % 2 else abs(point - 777) / 20


@pytest.mark.parametrize("strategy", search_strategies.STRATEGIES.values())
def test_a_strategy(strategy: type[search_strategies.Walk]) -> None:
    """Starts at the start, finds the valley, measures no point twice, and goes on in every epoch where the last one ended."""
    epochs = walked(strategy, valley, 3)
    points = [point for epoch in epochs for point in epoch]
    assert points[0] == Line.start
    assert len(points) == len(set(points)) == 3 * search_strategies.EPOCH
    assert walked(strategy, valley, 3) == epochs
    assert min(abs(point - 777) for point in points if point % 2 == 0) < 60


def test_a_strategy_that_repeats_itself_ends() -> None:
    class Stays(search_strategies.Walk):
        def points(self, space: search_strategies.Space[int], seed: int) -> search_strategies.Points[int]:
            while True:
                yield space.start

    assert walked(Stays, valley, 2) == [[Line.start], []]


class TestEvolution(StrategyContract):
    """As others' are tried, in a space of plans."""

    strategy = search_strategies.Evolution
    candidates = 40  # more than an epoch's
    settings = ("search.lag=0",)
