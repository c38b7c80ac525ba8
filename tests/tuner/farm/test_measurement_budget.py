"""Measurements are the budget: what is set aside, where the search ends, and that what is counted is what was read."""

from __future__ import annotations

from collections import Counter
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from simulator.npu.errors import BadInputError
from tests.messages import naming
from tests.tuning import QUICK, assert_equal_runs, quick, save_small
from tuner.config import load_config
from tuner.farm.measurement_budget import Spending
from tuner.log.read import read_log
from tuner.measure.canary import EVERY
from tuner.measure.runner_api import Encoded, Reading
from tuner.measure.simulator_runner import measure as simulated
from tuner.runs.folder import read_json
from tuner.selection.race import ECHO, SKIPPED, race
from tuner.summary import Summary

LEVELS = 3


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_small("residual_block", tmp_path_factory.mktemp("model"))


# by rules


def spending(measurements: int, *settings: str, searches: int = 1) -> Spending:
    config = load_config(None, ("runner.name=board:measure", "budget.candidates=null", f"budget.measurements={measurements}", *settings))
    return Spending.of(config, LEVELS, searches)


@pytest.mark.parametrize("searches", [1, 3])
def test_spending_is_within_budget_and_monotonic(searches: int) -> None:
    before = [0] * searches
    for measurements in (*range(300, 1500, 37), 4_000, 40_000, 1_000_000):
        found = spending(measurements, "runner.repeats=2", searches=searches)
        limits = found.limits([5, 3, 1][:searches], 1)
        most = [limit - 1 + found.task for limit in limits]  # what is begun below the limit is finished
        assert sum(each + found.canaries(each) for each in most) + searches * found.finals <= measurements
        assert all(now >= then for now, then in zip(limits, before, strict=True)), "a run that goes on with more ends where it would have"
        assert found.finals * searches <= measurements // 4
        before = limits


def test_smaller_budget_has_fewer_finalists() -> None:
    assert [spending(count).finalists for count in (100, 800, 1600, 4000, 100_000)] == [1, 1, 2, 4, 4]
    assert spending(1_000_000).finals == (4 * LEVELS + 1) * LEVELS * 400, "no more than they could take"
    simulator = Spending.of(load_config(None, ("budget.candidates=null", "budget.measurements=1000")), LEVELS, 1)
    assert (simulator.finals, simulator.canary, simulator.limits([1], 1)) == (0, 0, [1000 - LEVELS + 1])
    assert simulator.line(1) == "budget: 1,000 measurements (task x level x repeat), none set aside: the simulator needs no finals"
    assert spending(1600).line(1) == (
        "budget: 1,600 measurements (task x level x repeat); 400 are set aside for the finals (the best 2 of each of 3 levels and the "
        "baseline, 19 times at least); the canary takes 5 at the start and after every 100"
    )


@pytest.mark.parametrize(
    ("measurements", "searches", "text"),
    [(90, 1, "measurements 90: too few, a 4th is for the finals; accepted: 96 or more"), (190, 2, "accepted: 192 or more")],
)
def test_too_few(measurements: int, searches: int, text: str) -> None:
    with pytest.raises(BadInputError, match=text):
        spending(measurements, searches=searches)


def test_too_few_for_the_first_program() -> None:
    with pytest.raises(BadInputError, match=naming(72, 150)):
        spending(96, "runner.repeats=50").limits([1], 1)


@pytest.mark.parametrize("most", [2 * 3 * 5, 200, 777, 100_000])
@pytest.mark.parametrize("noise", [0.0, 0.02])
def test_a_race_takes_no_more_than_it_may(most: int, noise: float) -> None:
    rng, asked = np.random.default_rng(0), 0

    def measure(turns: Any) -> Any:
        nonlocal asked
        for turn in turns:
            asked += len(turn.programs)
            yield [round(1e6 * (1 + 0.01 * at) * np.exp(rng.normal(0, noise))) for at in turn.programs]

    placings = race(4, ("none", "slight", "severe"), 400, measure, limit=most)
    assert ECHO * 5 * 3 <= asked <= most
    assert asked == sum(int((placing.cycles > SKIPPED).sum()) for placing in placings.values())
    assert all(placing.leaders for placing in placings.values())
    if noise == 0.0 or most == 100_000:
        assert {placing.leaders[0] for placing in placings.values()} == {0}


# runs

READ: dict[str, Any] = {"asked": Counter[tuple[str, str]](), "slower": 1.0, "from": 0, "name": "b1"}


class Board:
    """As the simulator says, of a board that gets slower when it was read so often."""

    def board(self) -> tuple[str, str]:
        return READ["name"], "fw 7"

    def __call__(self, program: Encoded, level: str) -> Reading:
        READ["asked"][sha256(program.container).hexdigest(), level] += 1
        cycles = simulated(program, level).cycles
        assert cycles is not None
        return Reading(round(cycles * (READ["slower"] if READ["asked"].total() > READ["from"] else 1.0)))


NAMED = f"{__name__}:Board"
FEW = (*QUICK, "use.cost_model=false", "farm.checkpoint_every_s=1000")


def measured(model: Path, run: Path, measurements: int, *overrides: str, **values: Any) -> Summary:
    return quick(model, run, None, *FEW, *overrides, measurements=measurements, **values)


def readings(run: Path) -> int:
    return int(read_log(run)["readings"].sum())


def test_extended_run_equals_one_with_whole_budget(model: Path, tmp_path: Path) -> None:
    first = measured(model, tmp_path / "A", 300)
    assert 300 - LEVELS < readings(tmp_path / "A") <= 300
    assert (first.budget.kind, first.budget.requested, first.budget.used) == ("measurements", 300, readings(tmp_path / "A"))
    again = measured(model, tmp_path / "A", 300, resume=True)
    assert again.budget == first.budget
    measured(model, tmp_path / "A", 601, resume=True)
    measured(model, tmp_path / "B", 601)
    assert_equal_runs(tmp_path / "A", tmp_path / "B")
    assert readings(tmp_path / "A") == 600
    programs = (read_log(tmp_path / "A")["kind"] == "program").sum() // LEVELS
    quick(model, tmp_path / "C", int(programs), *FEW)
    assert readings(tmp_path / "C") <= 600, "as many programs, and no task behind the last of them"


def test_what_is_counted_is_what_the_board_read(model: Path, tmp_path: Path) -> None:
    READ.update(asked=Counter(), slower=1.0, name="b1")
    summary = measured(model, tmp_path / "RUN", 800, "runner.repeats=2", runner=NAMED)
    use = summary.measurements
    assert use.asked == summary.budget.used <= 800
    assert use.asked - READ["asked"].total() in (0, 5), "the last look at the canary may not have come"
    assert use.search == readings(tmp_path / "RUN")
    assert use.canary == 5 * (1 + use.search // EVERY)
    assert (use.set_aside, summary.runner is not None) == (200, True)
    assert 0 < use.finals <= 200
    log = read_log(tmp_path / "RUN")
    assert set(log["board"]) == {"b1"}
    assert set(log["firmware"]) == {"fw 7"}
    assert log["canary_cycles"].nunique() == 1
    assert not log["drifted"].any()
    assert set(log["readings"]) <= {0, 2}


def test_drifting_board_is_reported_and_rows_are_flagged(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    READ.update(asked=Counter(), slower=1.08, name="b1")
    READ["from"] = 330
    measured(model, tmp_path / "RUN", 800, runner=NAMED, quiet=False)
    log = read_log(tmp_path / "RUN").sort_values("seq")
    flagged = log["drifted"].to_numpy()
    assert 0 < flagged.sum() < len(log)
    assert (np.diff(flagged.astype(int)) >= 0).all(), "from there on"
    assert log["drift"].iloc[0] == 0
    assert log["drift"].iloc[-1] == pytest.approx(0.08, abs=1e-3)
    said = capsys.readouterr().err
    assert "budget: 800 measurements (task x level x repeat); 200 are set aside for the finals" in said
    assert said.count("rows are flagged (drifted)") == 1
    assert "board b1: its canary takes" in said
    READ["name"] = "b2"
    with pytest.raises(BadInputError, match=naming("board b2", "b1", "--out")):
        measured(model, tmp_path / "RUN", 1600, runner=NAMED, resume=True)
    state = read_json(tmp_path / "RUN" / "checkpoint" / "state.json")["state"]
    assert set(read_log(tmp_path / "RUN")["board"]) == {"b1"}
    assert state["readings"] <= readings(tmp_path / "RUN")
