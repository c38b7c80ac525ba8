"""A run whose measurements come from a runner: its rows, its failures, its finals, its summary."""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections import Counter
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pandas as pd
import pytest

from compiler.build import default_plan, measure
from compiler.model import ModelSpec, lower_model
from simulator.npu.errors import BadInputError, TilefarmError
from simulator.npu.machine_file import load_machine
from simulator.npu.parts import DataType
from tests.docs.fences import ROOT, blocks
from tests.piece_models import piece_model
from tests.ray_heads import ray_head
from tests.tuning import VOLATILE, Driver, quick, save_small, sorted_log
from tuner.cli import main
from tuner.farm.board_finals import plan_for
from tuner.log.read import read_log
from tuner.measure.runner_api import Encoded, Reading
from tuner.measure.simulator_runner import measure as simulated
from tuner.plugins import files_digest
from tuner.runs.folder import read_json
from tuner.runs.repair import verify_run

FEW = ("segments.measured=2", "segments.candidates=4", "runner.finalists=2")
SIMULATED = "tuner.measure.simulator_runner:measure"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_small("conv_chain", tmp_path_factory.mktemp("model"))


def test_simulator_by_bytes_finds_the_simulators_programs(model: Path, tmp_path: Path) -> None:
    built_in = quick(model, tmp_path / "a", 16, *FEW)
    board = quick(model, tmp_path / "b", 16, *FEW, runner=SIMULATED)
    assert built_in.runner is None
    assert board.runner is not None
    for level, row in built_in.levels.items():
        mine = board.levels[level]
        assert (mine.cycles, mine.baseline_layerwise_cycles) == (built_in.own_cycles[level], row.baseline_layerwise_cycles)
        assert mine.latency_us == mine.cycles / 1000
        assert mine.cycles == mine.variant_cycles[level] == min(mine.variant_cycles.values())
    for finalist in board.runner.finalists:
        assert finalist.cycles == finalist.simulated_cycles
        assert set(finalist.readings.values()) == {2}, "what says the same twice need not be asked 400 times"
    logs = [sorted_log(tmp_path / name) for name in "ab"]
    assert set(logs[1]["runner"]) == {SIMULATED}
    assert set(logs[0]["runner"]) == {"simulator"}
    same = [log.drop(columns=["runner", "run", "canary_cycles", "drift"]) for log in logs]
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
    settings = ("segments.measured=8", "segments.candidates=16", "runner.finalists=2", "runner.repeats=3", "runner.readings=20")
    settings += ("runner.tries=1",)
    summary = quick(model, run, 12, *settings, runner=f"{__name__}:noisy")
    assert verify_run(run) == []
    log = read_log(run)
    assert set(log["runner"]) == {f"{__name__}:noisy (median of 3)"}
    failed = log[log["status"] != "ok"]
    assert set(failed["status"]) <= {"crash", "timeout", "invalid"}
    assert set(failed["error"]) <= {"OSError: the board is gone", "no luck"}
    assert len(failed)
    assert summary.runner is not None
    assert (summary.runner.repeats, summary.runner.readings) == (3, 20)
    assert any(spread for finalist in summary.runner.finalists for spread in finalist.spread.values())
    for level, row in summary.levels.items():
        (finalist,) = [each for each in summary.runner.finalists if each.standing.get(level) == "champion"]
        assert finalist.plan == row.plan
        assert 2 < finalist.readings[level] <= 20
        assert row.cycles == finalist.cycles[level]
        assert row.cycles == pytest.approx(2 * finalist.simulated_cycles[level], rel=0.06)
    quick(model, run, 16, *settings, runner=f"{__name__}:noisy", resume=True)
    assert verify_run(run) == []


def stutters(program: Encoded, level: str) -> Reading:
    """Fails before every answer."""
    STUTTERED.append(level)
    return simulated(program, level) if len(STUTTERED) % 2 == 0 else Reading(None, "timeout", "no luck")


STUTTERED: list[str] = []


def test_single_failed_reading_is_no_task_failure(model: Path, tmp_path: Path) -> None:
    summary = quick(model, tmp_path / "run", 4, *FEW, "runner.tries=2", runner=f"{__name__}:stutters")
    assert set(read_log(tmp_path / "run")["status"]) == {"ok"}
    assert summary.failures == {}
    assert summary.runner is not None
    assert {standing for each in summary.runner.finalists for standing in each.standing.values()} <= {
        "champion",
        "slower",
        "not told apart",
    }


def leaves(program: Encoded, level: str) -> Reading:
    """Noise by program, level and how often it was read; once the finals are on, the user interrupts at the reading that `LEAVES` counts
    down to."""
    cycles = simulated(program, level).cycles
    assert cycles is not None
    name = f"{sha256(program.container).hexdigest()} {level}"
    LEAVES["readings"][name] += 1
    if (LEAVES["file"] / "finals.jsonl").is_file() and LEAVES["left"] > 0:
        LEAVES["left"] -= 1
        if LEAVES["left"] == 0:
            raise KeyboardInterrupt
    noise = np.random.default_rng([*name.encode(), LEAVES["readings"][name]]).normal(0, 0.01)
    return Reading(round(cycles * float(np.exp(noise))))


LEAVES: dict[str, Any] = {}


def test_finals_go_on_where_they_were_interrupted(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    file = run / "checkpoint" / "finals.jsonl"
    settings = (*FEW, "runner.readings=24")
    LEAVES.update(readings=Counter(), left=50, file=file.parent)
    with pytest.raises(KeyboardInterrupt):
        quick(model, run, 4, *settings, runner=f"{__name__}:leaves")
    before, searched = file.read_bytes(), read_log(run)
    assert before.count(b"\n") > 5
    with file.open("ab") as half:
        half.write(b'["none", [0, 1')  # as a session leaves it that is killed while it writes
    quick(model, run, 4, *settings, runner=f"{__name__}:leaves", resume=True, quiet=False)
    after = file.read_bytes()
    assert after.startswith(before)
    pd.testing.assert_frame_equal(read_log(run), searched)
    rows = [json.loads(line) for line in after.splitlines()[1:]]
    summary = read_json(run / "summary.json")
    asked = {level: [0] * len(summary["runner"]["finalists"]) for level in summary["levels"]}
    for level, programs, cycles in rows:
        assert len(programs) == len(cycles)
        for at in programs:
            asked[level][at] += 1
    for at, each in enumerate(summary["runner"]["finalists"]):
        assert each["readings"] == {level: counts[at] for level, counts in asked.items()}, "every reading counts"
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("finals")]
    assert re.fullmatch(r"finals: \d+ programs and the baseline are read again at 3 levels, 24 times each at most", said[0])
    for level, line in zip(summary["levels"], said[-3:], strict=True):
        assert line.startswith(f"finals, {level}: the ")
        assert line.endswith(f" {sum(asked[level])} readings")
    readings = LEAVES["readings"].total()
    quick(model, run, 4, *settings, runner=f"{__name__}:leaves", resume=True)
    assert read_json(run / "summary.json")["runner"] == summary["runner"]
    assert file.read_bytes() == after
    assert LEAVES["readings"].total() - readings <= len(rows[0][1]), "nothing of search and finals is asked again"


def test_resumed_noisy_search_keeps_first_readings_of_tasks(model: Path, tmp_path: Path) -> None:
    """What the budget cut off is measured again with other noise, and then perhaps something else."""
    run = tmp_path / "run"
    LEAVES.update(readings=Counter(), left=0, file=run / "checkpoint")
    for candidates in (3, 7, 12):
        before = read_log(run) if run.exists() else None
        summary = quick(model, run, candidates, *FEW, "runner.readings=4", runner=f"{__name__}:leaves", resume=before is not None)
        log = read_log(run)
        once = log.drop_duplicates("seq")
        if before is not None:
            pd.testing.assert_frame_equal(log.iloc[: len(before)].astype(str), before.astype(str))
        assert once["seq"].tolist() == list(range(len(once)))
        assert once["task"].is_unique
        assert (once["kind"] == "program").sum() == summary.candidates == candidates
        assert len(once) == summary.tasks


def gone(program: Encoded, level: str) -> Reading:
    """Not there any more, once the finals are on."""
    return Reading(None, "crash", "gone") if (LEAVES["file"] / "finals.jsonl").is_file() and LEAVES["left"] else simulated(program, level)


def test_finals_that_failed_are_tried_again(model: Path, tmp_path: Path) -> None:
    LEAVES.update(file=tmp_path / "run" / "checkpoint", left=1)
    with pytest.raises(TilefarmError, match=r"every finalist failed in half of the rounds .*; --resume tries it again"):
        quick(model, tmp_path / "run", 4, *FEW, runner=f"{__name__}:gone")
    LEAVES.update(left=0)
    summary = quick(model, tmp_path / "run", 4, *FEW, runner=f"{__name__}:gone", resume=True)
    assert summary.runner is not None


def goes_away(program: Encoded, level: str) -> Reading:
    """Answers for programs alone."""
    return simulated(program, level) if program.kind == "program" else Reading(None, "crash", "the board is gone")


def test_vanished_board_leaves_nothing_to_learn(model: Path, tmp_path: Path) -> None:
    settings = ("segments.measured=8", "segments.candidates=16", "model.min_rows=10", "runner.finalists=1")
    quick(model, tmp_path / "run", 12, *settings, runner=f"{__name__}:goes_away")
    log = read_log(tmp_path / "run").drop_duplicates("seq")
    assert (log["status"] == "crash").sum() > 10
    assert not list((tmp_path / "run" / "models").iterdir())


def silent(program: Encoded, level: str) -> Reading:
    """A board that is not there."""
    return Reading(None, "timeout", "no end within 10 s")


def test_unresponsive_board_ends_the_run_at_once(model: Path, tmp_path: Path) -> None:
    said = re.escape(f"--runner {__name__}:silent: the first program could not be measured: timeout: no end within 10 s")
    with pytest.raises(BadInputError, match=said):
        quick(model, tmp_path / "run", 3, runner=f"{__name__}:silent")
    assert len(read_log(tmp_path / "run").drop_duplicates("seq")) == 1


def test_the_command_of_the_documentation(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """docs/plug-ins.md's board.py, as a process per reading; then a command that fails."""
    model = save_small("vector_chain", tmp_path)
    script = tmp_path / "board.py"
    script.write_text(next(block.text for block in blocks(ROOT / "docs/plug-ins.md", "python") if "# board.py" in block.text))
    few = ("segments.candidates=2", "segments.measured=1", "search.lag=0", "runner.readings=1", "runner.finalists=1", "runner.canary=1")
    settings = [word for text in few for word in ("--set", text)]
    words = ["tune", str(model), "--machine", "edge", "--backend", "serial", "--candidates", "6", "--quiet", *settings]
    command = f"command:{shlex.quote(sys.executable)} {shlex.quote(str(script))}"
    assert main([*words, "--out", str(tmp_path / "run"), "--runner", command]) == 0
    log = read_log(tmp_path / "run")
    assert set(log["status"]) == {"ok"}
    assert set(log["kind"]) >= {"segment", "program"}
    assert set(log["runner"]) == {command}
    (said,) = read_json(tmp_path / "run" / "run.json")["plugins"]
    assert said == {"kind": "runner", "name": command, "version": "", "digest": files_digest(sys.executable, str(script))}
    script.write_text(script.read_text() + "# another\n")
    assert main([*words, "--out", str(tmp_path / "run"), "--runner", command, "--resume"]) == 2
    assert re.search(r"\(begun with runner command:.* \(source \w{8}\), not runner command:", capsys.readouterr().err)
    capsys.readouterr()
    assert main([*words, "--out", str(tmp_path / "none"), "--runner", "command:/no/such/board"]) == 2
    assert re.search(r"--runner command:/no/such/board: .*no such command here", capsys.readouterr().err)


def test_pieces_that_compute_the_same_share_a_verdict(tmp_path: Path) -> None:
    model = tmp_path / "twins.onnx"
    onnx.save(piece_model("blocks"), model)
    built_in = quick(model, tmp_path / "a", 16, *FEW)
    board = quick(model, tmp_path / "b", 16, *FEW, runner=SIMULATED)
    for level, row in built_in.levels.items():
        mine = board.levels[level]
        assert (mine.cycles, mine.baseline_layerwise_cycles) == (built_in.own_cycles[level], row.baseline_layerwise_cycles)
        assert mine.cycles == sum(piece.cycles[level] for piece in board.pieces)
    assert len({tuple(piece.cycles.values()) for piece in board.pieces}) == 1
    assert board.runner is not None
    assert len({finalist.search for finalist in board.runner.finalists}) == len({piece.search for piece in board.pieces})


def test_plan_is_taken_over_to_renamed_piece(model: Path) -> None:
    opened = lower_model(ModelSpec(model, load_machine("edge"), DataType.float16))
    (target_graph,) = opened.target_graphs
    plan = default_plan(target_graph)
    assert plan_for(plan, target_graph, target_graph) == plan
    assert measure(opened, {"none": plan_for(plan, target_graph, target_graph)})["none"].timings["none"].cycles > 0


@pytest.fixture
def head() -> Iterator[str]:
    """Two CPUs, one board."""
    with ray_head(cpus=2, resources={"npu": 1}) as head:
        yield head.address


@pytest.mark.slow
def test_a_worker_has_a_board_to_itself(model: Path, tmp_path: Path, head: str) -> None:
    """A function of the folder in which the command is called, which workers are told of."""
    (tmp_path / "board_of_mine.py").write_text("from tuner.measure.simulator_runner import measure\n")
    options = ("--backend", "ray", "--address", head, "--resource", "npu", "--runner", "board_of_mine:measure")
    options += tuple(word for text in FEW for word in ("--set", text))
    code, errors = Driver(model, tmp_path / "run", 4, options=(*options, "--workers", "1"), cwd=tmp_path).wait()
    assert code == 0, errors
    assert read_log(tmp_path / "run")["worker"].nunique() == 1
    code, errors = Driver(model, tmp_path / "two", 4, options=(*options, "--workers", "2", "--wait", "1"), cwd=tmp_path).wait()
    assert code == 2
    assert "no room within 1 s" in errors
