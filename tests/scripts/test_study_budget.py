"""The study of budgets with tiny searches: what is counted, what is read from the curves, and that nothing is searched twice."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tuner
from compiler.ops.lower_graph import make_unit
from scripts.budget_searches import CASES, Case, CountingNpu
from scripts.study_budget import Gain, expect_best, read_curve
from simulator.npu.machine_file import load_machine
from simulator.npu.parts import DataType
from tests.models import small_graph
from tests.scripting import Ran, run_script
from tests.tuning import FEW
from tuner.measure.evaluator import Evaluator

SET = [word for text in FEW for word in ("--set", text)]
FIRST_PROGRAMS = 8  # the baseline, and all plans by prediction


def test_the_curve_is_that_of_the_log() -> None:
    machine = load_machine("edge")
    graph, levels = make_unit(small_graph("residual_block"), machine, DataType.float16), tuple(machine.contention)
    target = CountingNpu(graph, levels, machine)
    log = tuner.Search(graph, settings=FEW, candidates=24, evaluator=Evaluator(graph, levels, target)).run().log
    target.end()
    programs = log[log["kind"] == "program"].pivot_table(index="seq", columns="level", values="cycles", observed=True)[list(levels)]
    for count, (_, cycles) in enumerate(programs.cummin().iterrows(), 1):
        assert read_curve({"points": target.points}, count)[3:] == cycles.tolist()
    assert target.simulations["segment"] >= log[log["kind"].isin(["segment", "operator"])]["seq"].nunique()
    assert target.simulations["foreseen"] > 0
    *_, (count, cpu_s, simulations, *_) = target.points
    assert count >= len(programs) == 24
    assert simulations == target.simulations.total()
    assert cpu_s > 0


@given(st.lists(st.tuples(*[st.floats(-3, 3)] * 2), min_size=1, max_size=7), st.integers(1, 9))
def test_the_best_of_some_restarts(values: list[tuple[float, float]], k: int) -> None:
    rows = np.array(values)
    draws = [rows[list(drawn)].min(0) for drawn in itertools.combinations(range(len(rows)), min(k, len(rows)))]
    assert expect_best(rows, k) == pytest.approx(np.mean(draws, axis=0), abs=1e-12)


def test_a_gain_and_its_interval() -> None:
    mean, low, high = Gain.estimate(np.log([1.02, 1.04, 1.06]).tolist())
    assert mean == pytest.approx(math.prod([1.02, 1.04, 1.06]) ** (1 / 3) - 1)
    spread = np.std(np.log([1.02, 1.04, 1.06]), ddof=1) / math.sqrt(3)
    assert (math.log1p(low), math.log1p(high)) == pytest.approx(
        (math.log1p(mean) - 4.303 * spread, math.log1p(mean) + 4.303 * spread), 1e-3
    )
    assert Gain.estimate([0.1]).cells == ("+10.52%", "")


def study(folder: Path, *words: object) -> tuple[Ran, list[dict[str, Any]]]:
    """The study in this process, and the records that it keeps."""
    done = run_script("study", "budget", "--out", folder, "--restarts", 4, "--pool", 1, "--processes", 1, *words, *SET)
    assert done.returncode == 0, done.stderr
    return done, [json.loads(line) for line in (folder / "searches.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("board", [None, 1])
def test_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, board: int | None) -> None:
    monkeypatch.setitem(CASES, "tiny", Case("made:drawn,seed=0,blocks=1", board=board))
    words = ("--cases", "tiny", "--budgets", f"4,{FIRST_PROGRAMS}", "--seeds", 2, "--optimum", "--json")
    done, records = study(tmp_path, *words)
    by_arm = {(record["arm"], record["seed"]): record for record in records}
    assert by_arm.keys() == {("compile", 0), ("optimum", 0), ("search", 1000), *itertools.product(("search", "random"), (0, 1))}
    compiled, bounds = by_arm["compile", 0]["points"][0][3:], by_arm["compile", 0]["bounds"]
    found = json.loads(done.stdout)
    rows = [row for row in found["rows"] if "programs" in row]
    assert [(row["programs"], row["seed"], row["level"]) for row in rows] == [
        *itertools.product((4, FIRST_PROGRAMS), (0, 1), ("none", "slight", "severe"))
    ]
    for row in rows:
        place = ("none", "slight", "severe").index(row["level"])
        own = read_curve(by_arm["search", row["seed"]], row["programs"])
        assert row["search"] == pytest.approx(math.log(own[3 + place] / bounds[place]))
        assert row["compile"] == pytest.approx(math.log(compiled[place] / bounds[place]))
        assert row["search"] > 0 or board
        if row["programs"] == FIRST_PROGRAMS:
            assert row["search"] <= row["compile"], "a search begins with the plans of compile"
            pool = [by_arm["search", 1 - row["seed"]], by_arm["search", 1000]]
            others = [math.log(read_curve(one, 4)[3 + place] / bounds[place]) for one in pool]
            assert min(others) - 1e-9 <= row["restarts_4"] <= max(others) + 1e-9
    for row in (row for row in found["rows"] if "best_cut" in row):
        assert row["cuts"] == len(by_arm["optimum", 0]["cuts"][row["level"]])
        assert row["over_best_cut"] is None or row["over_best_cut"] >= 1
    factors = {
        row["level"]: [row[name] for name in ("prediction", "search", "waiting", "work")] for row in found["rows"] if "waiting" in row
    }
    for level, cycles, bound in zip(factors, compiled, bounds, strict=True):
        assert math.prod(factors[level]) == pytest.approx(cycles / bound), "from compile's program to the bound"
        assert factors[level][0] >= 1 - 1e-9 <= factors[level][1], "search begins with compile's plans"
        assert factors[level][2] >= 1, "no engine of a program works longer than it"
    last = [row["compile"] - row["search"] for row in rows if row["programs"] == FIRST_PROGRAMS]
    table = next(part for part in found["shown"] if isinstance(part, dict))
    (line,) = [line for line in table["rows"] if line[:2] == ["tiny", FIRST_PROGRAMS]]
    assert line[table["columns"].index("over compile")] == f"{math.expm1(np.mean(last)):+.2%}"
    assert "<section" in (tmp_path / "budget.html").read_text()

    again, same = study(tmp_path, *words)
    assert (again.stdout, same) == (done.stdout, records)
    _, more = study(tmp_path, *words, "--budgets", "4,10")
    longer = [(record["arm"], record["seed"], record["programs"]) for record in more[len(records) :]]
    assert longer == [(arm, seed, 10) for seed in (0, 1) for arm in ("search", "random")]


@pytest.mark.parametrize("words", [("--cases", "squeezenet,nothing"), ("--budgets", "8,x"), ("--budgets", "")])
def test_what_is_refused(tmp_path: Path, words: tuple[str, ...]) -> None:
    done = run_script("study", "budget", "--out", "out", *words, cwd=tmp_path)
    assert (done.returncode, done.stdout, [*tmp_path.iterdir()]) == (2, "", [])
