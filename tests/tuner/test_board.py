"""A run whose measurements come from a runner: its rows, its failures, its finals, its summary."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pandas as pd
import pytest

from simulator.npu.errors import BadInputError
from simulator.npu.machine import DataType, load_machine
from tests.docs.fences import ROOT, blocks
from tests.piece_models import piece_model
from tests.ray_heads import ray_head
from tests.tuning import VOLATILE, Driver, quick, save_small, sorted_log
from tuner.board import plan_for
from tuner.build import default_plan, measure, open_source
from tuner.cli import main
from tuner.log.care import verify
from tuner.log.read import read_log
from tuner.runners.reading import Encoded, Reading
from tuner.runners.simulated import measure as simulated
from tuner.source import Source

FEW = ("segments.measured=4", "segments.candidates=8", "runner.rounds=3", "runner.finalists=2")
SIMULATED = "tuner.runners.simulated:measure"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_small("conv_chain", tmp_path_factory.mktemp("model"))


def test_the_simulator_by_way_of_bytes_finds_what_the_simulator_finds(model: Path, tmp_path: Path) -> None:
    built_in = quick(model, tmp_path / "a", 16, *FEW)
    board = quick(model, tmp_path / "b", 16, *FEW, runner=SIMULATED)
    assert built_in.runner is None
    assert board.runner is not None
    for level, row in built_in.levels.items():
        mine = board.levels[level]
        assert (mine.cycles, mine.baseline_layerwise_cycles, mine.latency_us) == (row.cycles, row.baseline_layerwise_cycles, row.latency_us)
        assert mine.cycles == mine.variant_cycles[level] == min(mine.variant_cycles.values())
    for finalist in board.runner.finalists:
        assert finalist.cycles == finalist.simulated_cycles
    logs = [sorted_log(tmp_path / name) for name in "ab"]
    assert set(logs[1]["runner"]) == {SIMULATED}
    assert set(logs[0]["runner"]) == {"simulator"}
    same = [log.drop(columns=["runner", "run"]) for log in logs]
    pd.testing.assert_frame_equal(same[0], same[1], check_categorical=False)
    assert main(["run", str(tmp_path / "b" / "best.onnx"), "--input", "random", "--check"]) == 0
    assert main(["report", str(tmp_path / "b")]) == 0
    assert not set(VOLATILE) & set(logs[0].columns)


def noisy(program: Encoded, level: str) -> Reading:
    """Twice as slow as the simulator, and never the same twice; now and then something goes wrong."""
    rng = np.random.default_rng()
    wrong = int(rng.integers(0, 40)) if program.kind == "segment" else -1
    if wrong == 0:
        raise OSError("the board is gone")
    if wrong in (1, 2):
        return Reading(None, ("timeout", "invalid")[wrong - 1], "no luck")
    cycles = simulated(program, level).cycles
    assert cycles is not None
    return Reading(round(2 * cycles * float(np.exp(rng.normal(0, 0.02)))))


def test_a_noisy_board_that_fails_now_and_then(model: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    settings = ("segments.measured=16", "segments.candidates=32", "runner.rounds=5", "runner.finalists=2", "runner.repeats=3")
    summary = quick(model, run, 12, *settings, runner=f"{__name__}:noisy")
    assert verify(run) == []
    log = read_log(run)
    assert set(log["runner"]) == {f"{__name__}:noisy (median of 3)"}
    failed = log[log["status"] != "ok"]
    assert set(failed["status"]) <= {"crash", "timeout", "invalid"}
    assert set(failed["error"]) <= {"OSError: the board is gone", "no luck"}
    assert len(failed)
    assert summary.runner is not None
    assert (summary.runner.repeats, summary.runner.rounds) == (3, 5)
    assert any(spread for finalist in summary.runner.finalists for spread in finalist.spread.values())
    for level, row in summary.levels.items():
        finalist = next(each for each in summary.runner.finalists if each.plan == row.plan)
        assert row.cycles == finalist.cycles[level]
        assert row.cycles == pytest.approx(2 * finalist.simulated_cycles[level], rel=0.06)
    quick(model, run, 16, *settings, runner=f"{__name__}:noisy", resume=True)
    assert verify(run) == []


def goes_away(program: Encoded, level: str) -> Reading:
    """Answers for programs alone."""
    return simulated(program, level) if program.kind == "program" else Reading(None, "crash", "the board is gone")


def test_a_board_that_goes_away_leaves_nothing_to_learn(model: Path, tmp_path: Path) -> None:
    settings = ("segments.measured=16", "segments.candidates=32", "model.min_rows=10", "runner.rounds=1", "runner.finalists=1")
    quick(model, tmp_path / "run", 3, *settings, runner=f"{__name__}:goes_away")
    log = read_log(tmp_path / "run").drop_duplicates("seq")
    assert (log["status"] == "crash").sum() > 10
    assert not list((tmp_path / "run" / "models").iterdir())


def silent(program: Encoded, level: str) -> Reading:
    """A board that is not there."""
    return Reading(None, "timeout", "no end within 10 s")


def test_a_board_that_never_answers_ends_the_run_at_once(model: Path, tmp_path: Path) -> None:
    said = re.escape(f"--runner {__name__}:silent: the first program could not be measured: timeout: no end within 10 s")
    with pytest.raises(BadInputError, match=said):
        quick(model, tmp_path / "run", 3, runner=f"{__name__}:silent")
    assert len(read_log(tmp_path / "run").drop_duplicates("seq")) == 1


def test_the_command_of_the_documentation(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """docs/runners.md's board.py, as a process per reading; then a command that fails."""
    model = save_small("vector_chain", tmp_path)
    script = tmp_path / "board.py"
    script.write_text(next(block.text for block in blocks(ROOT / "docs/runners.md", "python") if "board.py" in block.text))
    settings = [word for text in (*FEW[1:2], "segments.measured=1", "runner.rounds=1", "runner.finalists=1") for word in ("--set", text)]
    words = ["tune", str(model), "--machine", "edge", "--backend", "serial", "--candidates", "2", "--quiet", *settings]
    command = f"command:{shlex.quote(sys.executable)} {shlex.quote(str(script))}"
    assert main([*words, "--out", str(tmp_path / "run"), "--runner", command]) == 0
    log = read_log(tmp_path / "run")
    assert set(log["status"]) == {"ok"}
    assert set(log["kind"]) >= {"operator", "program"}
    assert set(log["runner"]) == {command}
    capsys.readouterr()
    assert main([*words, "--out", str(tmp_path / "none"), "--runner", "command:/no/such/board"]) == 2
    assert re.search(r"--runner command:/no/such/board: .*no such command here", capsys.readouterr().err)


def test_pieces_that_compute_the_same_share_a_verdict(tmp_path: Path) -> None:
    model = tmp_path / "twins.onnx"
    onnx.save(piece_model("blocks"), model)
    built_in = quick(model, tmp_path / "a", 16, *FEW)
    board = quick(model, tmp_path / "b", 16, *FEW, runner=SIMULATED)
    assert {level: row.cycles for level, row in board.levels.items()} == {level: row.cycles for level, row in built_in.levels.items()}
    assert [piece.cycles for piece in board.pieces] == [piece.cycles for piece in built_in.pieces]
    assert board.runner is not None
    assert len({finalist.search for finalist in board.runner.finalists}) == len({piece.search for piece in board.pieces})


def test_a_plan_is_taken_over_to_a_piece_with_other_names(model: Path) -> None:
    opened = open_source(Source(model, load_machine("edge"), DataType.float16))
    (unit,) = opened.units
    plan = default_plan(unit)
    assert plan_for(plan, unit, unit) == plan
    assert measure(opened, {"none": plan_for(plan, unit, unit)})["none"].timings["none"].cycles > 0


@pytest.fixture
def head() -> Iterator[str]:
    """Two CPUs, one board."""
    with ray_head(cpus=2, resources={"npu": 1}) as head:
        yield head.address


def test_a_worker_has_a_board_to_itself(model: Path, tmp_path: Path, head: str) -> None:
    options = ("--backend", "ray", "--address", head, "--resource", "npu", "--runner", SIMULATED)
    options += tuple(word for text in FEW for word in ("--set", text))
    code, errors = Driver(model, tmp_path / "run", 4, options=(*options, "--workers", "1")).wait()
    assert code == 0, errors
    assert read_log(tmp_path / "run")["worker"].nunique() == 1
    code, errors = Driver(model, tmp_path / "two", 4, options=(*options, "--workers", "2", "--wait", "1")).wait()
    assert code == 2
    assert "no room within 1 s" in errors
