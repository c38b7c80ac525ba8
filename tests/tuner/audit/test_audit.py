"""Whether a run may be trusted: of runs that may, of runs that somebody changed, under another simulator, and with a noisy runner."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pandas as pd
import pytest

import simulator
from compiler.plan.plan import Plan
from tests.messages import mentions
from tests.piece_models import piece_model
from tests.tuning import FEW, quick, save_small
from tuner.cli import main
from tuner.measure.runner_api import Encoded, Reading
from tuner.measure.simulator_runner import measure as simulated
from tuner.runs.anytime_curve import best_after, needed_readings
from tuner.runs.folder import read_json

SMALL = (*FEW, "search.generation=2", "segments.measured=1", "farm.checkpoint_every_s=100")
"""An epoch takes 2 jobs x (1 + 2) x 3 readings, so short searches are of tens of them."""
LEVELS = ("none", "slight", "severe")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_small("shuffle_block", tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def tuned(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("audit") / "run"
    quick(model, run, 80, *SMALL)
    return run


@pytest.fixture
def run(tuned: Path, tmp_path: Path) -> Path:
    """A copy that a test may spoil."""
    return Path(shutil.copytree(tuned, tmp_path / "run"))


def audited(capsys: pytest.CaptureFixture[str], run: Path, *options: str) -> tuple[int, dict[str, Any]]:
    code = main(["audit", str(run), "--json", "--quiet", *options])
    return code, json.loads(capsys.readouterr().out)


def only_files(capsys: pytest.CaptureFixture[str], run: Path) -> tuple[int, list[str]]:
    """Faults, without the searches."""
    code, found = audited(capsys, run, "--seeds", "0")
    return code, found["faults"]


def bytes_of(run: Path) -> dict[str, str]:
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(run.rglob("*")) if path.is_file()}


def put(run: Path, file: str, change: Any) -> None:
    """Change a JSON file of the run in its place."""
    raw = read_json(run / file)
    change(raw)
    (run / file).write_text(json.dumps(raw))


def slower_everywhere(run: Path) -> Plan:
    """A plan that takes longer than single operators do: those in four times the blocks."""
    baseline = Plan.load(run / "plans" / "baseline.json")
    return baseline.model_copy(update={"segments": tuple(s.model_copy(update={"blocks": 2 * s.blocks}) for s in baseline.segments)})


def test_a_run_as_it_was_left_is_sound(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before, summary = bytes_of(run), read_json(run / "summary.json")
    assert main(["audit", str(run), "--seeds", "0"]) == 0
    out = capsys.readouterr().out
    table, verdict = out.splitlines()[:4], out.splitlines()[-1]
    assert [line.split()[0] for line in table] == ["level", *LEVELS]
    assert verdict.startswith("shuffle_block on edge is sound: every champion takes the cycles that the run said; none is slower")
    code = main(["audit", str(run), "--longer", "--json"])
    out, err = capsys.readouterr()
    assert bytes_of(run) == before
    assert "seed 1, 1 of" in err, "progress is said"
    found = json.loads(out)
    assert (code, found["faults"], found["notes"]) == (0, [], [])
    used = sum(summary["measurements"][name] for name in ("search", "canary", "finals"))
    assert found["of"] == used
    seeds = found["seeds"]
    assert seeds["seeds"] == [1, 2, 3][: len(seeds["seeds"])]
    assert len(seeds["seeds"]) >= 2
    assert 0 < seeds["taken"] <= found["readings"] - used <= used / 10, "a tenth of what the run took"
    for level in LEVELS:
        each, row = found["levels"][level], summary["levels"][level]
        own = summary["robust"]["own_cycles"][level]
        assert each["champion"] == {"then": own, "now": own}
        assert own < each["untuned"]["now"] <= row["baseline_layerwise_cycles"]
        assert seeds["own"][level] >= own
        assert own / found["longer"]["cycles"][level] - 1 == pytest.approx(found["longer"]["regret"][level])
        assert found["longer"]["cycles"][level] <= own, "a longer search has found what the shorter one did"
    assert len({tuple(seeds["others"][level]) for level in LEVELS}) == len(LEVELS)


@pytest.mark.slow
def test_searches_are_reproducible_and_are_runs_of_seeds(
    model: Path, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = (audited(capsys, run, "--seeds", "2")[1] for _ in range(2))
    assert first == second
    readings = first["seeds"]["readings"]
    other = quick(model, tmp_path / "other", None, *SMALL, seed=2, measurements=readings)
    assert {level: cycles[1] for level, cycles in first["seeds"]["others"].items()} == other.own_cycles, "whatever the log answers"


@pytest.mark.slow
def test_a_farm_finds_what_one_process_finds(run: Path, local_ray: None, capsys: pytest.CaptureFixture[str]) -> None:
    here = audited(capsys, run, "--longer", "--backend", "serial")
    assert audited(capsys, run, "--longer", "--backend", "ray", "--workers", "2") == here


def test_a_plan_that_was_replaced(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = read_json(run / "summary.json")["levels"]["severe"]
    shutil.copy(run / "plans" / "baseline.json", run / "plans" / "severe.json")
    code, faults = only_files(capsys, run)
    assert code == 1
    digest = Plan.load(run / "plans" / "severe.json").digest[:8]
    assert faults[0] == f"{run}/plans/severe.json: plan {digest}, summary.json says {said['plan'][:8]}"
    assert any("plans, level severe: takes" in fault and f"says {said['cycles']:,}" in fault for fault in faults)
    assert main(["audit", str(run), "--seeds", "0", "--quiet"]) == 1
    assert capsys.readouterr().out.splitlines()[-1].startswith("shuffle_block on edge is not to be trusted: ")


def test_a_champion_slower_than_said(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def flatter(summary: Any) -> None:
        summary["robust"]["own_cycles"]["none"] -= 1

    put(run, "summary.json", flatter)
    code, faults = only_files(capsys, run)
    said = read_json(run / "summary.json")["robust"]["own_cycles"]["none"]
    assert code == 1
    assert faults == [
        f"{run}: plans/own, level none: takes {said + 1:,} cycles, summary.json says {said:,}",
        f"{run}: level none: the log's fastest program takes {said + 1:,} cycles, summary.json says {said:,}",
    ]


def test_what_ships_is_slower_than_the_untuned_plan(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All files agree with each other: only a plan without a search says that it is wrong."""
    slow = slower_everywhere(run)
    (run / "plans" / "severe.json").write_text(slow.to_json())
    assert main(["export", str(run), "--out", str(tmp_path / "slow.onnx")]) == 0
    (tmp_path / "slow.onnx").replace(run / "best.onnx")
    capsys.readouterr()
    assert main(["simulate", str(run / "best.onnx"), "--json"]) == 0
    cycles = json.loads(capsys.readouterr().out)["levels"]["severe"]["cycles"]

    def agree(summary: Any) -> None:
        summary["levels"]["severe"] |= {"plan": slow.digest, "cycles": cycles}

    put(run, "summary.json", agree)
    code, faults = only_files(capsys, run)
    assert code == 1
    (fault,) = faults
    assert mentions(fault, "level severe", f"{cycles:,} cycles")


def test_a_compiled_file_that_is_another_one(model: Path, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = run / "best.onnx"
    untuned = str(run / "plans" / "baseline.json")
    assert main(["compile", str(model), "--machine", "edge", "--plan", untuned, "--out", str(path)]) == 0
    capsys.readouterr()
    code, faults = only_files(capsys, run)
    assert code == 1
    assert faults
    assert all(fault.startswith(f"{path}: level ") and "summary.json says" in fault for fault in faults)
    path.write_bytes(path.read_bytes()[:-100])
    code, (fault,) = only_files(capsys, run)
    assert code == 1
    assert fault.startswith(str(path))
    path.unlink()
    assert only_files(capsys, run)[0] == 1
    other = tmp_path / "other.onnx"
    assert main(["compile", str(save_small("conv_chain", tmp_path)), "--machine", "edge", "--layerwise", "--out", str(other)]) == 0
    shutil.copy(other, path)
    capsys.readouterr()
    assert only_files(capsys, run) == (1, [f"{path}: of another model or machine than the run"])


def older(run: Path) -> None:
    """As a simulator would have left it whose clock said 4% more at severe."""

    def then(summary: Any) -> None:
        for of in (summary["robust"]["own_cycles"], summary["robust"]["cycles"]):
            of["severe"] = round(1.04 * of["severe"])
        row = summary["levels"]["severe"]
        row["cycles"] = round(1.04 * row["cycles"])

    put(run, "summary.json", then)
    put(run, "run.json", lambda identity: identity.update(simulator="0.9"))


def test_under_another_simulator_it_says_what_moved(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    older(run)
    put(run, "summary.json", lambda summary: summary["measurements"].update(search=6_000))  # the log answers nothing here
    code, found = audited(capsys, run, "--longer")
    assert (code, found["faults"], found["simulator"]) == (0, [], ["0.9", simulator.VERSION])
    then, now = found["levels"]["severe"]["champion"].values()
    assert now / then - 1 == pytest.approx(1 / 1.04 - 1, abs=1 / then), "cycles are whole"
    assert mentions(found["verdict"], f"simulator {simulator.VERSION}", f"{1 - now / then:.1%}", "0.9", "severe")
    assert found["longer"] is None
    assert found["notes"] == [f"not resumed: simulator 0.9 measured the run, this is {simulator.VERSION}"]
    assert set(found["seeds"]["own"].values()) == {None}, "what another simulator measured is not compared"
    for level in LEVELS:
        assert found["levels"][level]["rival"]["behind"] >= 0, "the log's order is this simulator's, here"


def test_under_another_simulator_another_program_may_win(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    older(run)
    base = Plan.load(run / "plans" / "baseline.json")
    (run / "plans" / "own" / "severe.json").write_text(base.to_json())
    put(run, "summary.json", lambda summary: summary["robust"]["own_plan"].update(severe=base.digest))
    code, found = audited(capsys, run, "--seeds", "0")
    assert (code, found["levels"]["severe"]["rival"]["behind"] < -0.1) == (0, True)
    assert "another program of the log would win now by" in found["verdict"]
    (run / "plans" / "own" / "severe.json").write_text(slower_everywhere(run).to_json())
    code, faults = only_files(capsys, run)
    assert code == 1
    assert any("the untuned plan" in fault for fault in faults), "whoever's clock it is"


# --- with a runner that is noisy -------------------------------------------------------------------------------------------------


def noisy(program: Encoded, level: str) -> Reading:
    cycles = simulated(program, level).cycles
    assert cycles is not None
    return Reading(round(2 * cycles * float(np.exp(RNG.normal(0, 0.05)))))


RNG = np.random.default_rng(7)


@pytest.fixture(scope="module")
def shaken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shaken")
    settings = (*SMALL, "runner.finalists=3", "runner.readings=16", "segments.measured=4")
    quick(save_small("conv_chain", folder), folder / "run", 48, *settings, runner=f"{__name__}:noisy")
    return folder / "run"


def test_winners_flip_under_noise(shaken: Path, capsys: pytest.CaptureFixture[str]) -> None:
    summary = read_json(shaken / "summary.json")
    code, found = audited(capsys, shaken, "--races", "4", "--seeds", "0")
    assert (code, found["faults"], found["runner"]) == (0, [], f"{__name__}:noisy")
    assert 0 < found["readings"] <= found["of"] / 10
    raced = {level: found["levels"][level]["raced"] for level in LEVELS}
    assert {each["races"] for each in raced.values()} == {4}
    assert any(each["flips"] for each in raced.values()), "runners-up are a percent behind, and readings scatter by five"
    for level, each in raced.items():
        assert each["champion"]["then"] == summary["levels"][level]["cycles"]
        assert each["champion"]["now"] == pytest.approx(each["champion"]["then"], rel=0.1)
        assert each["champion"]["now"] < each["untuned"]["now"]
    assert main(["audit", str(shaken), "--races", "4", "--seeds", "0", "--quiet"]) == 0
    assert "under the runner's noise another program wins " in capsys.readouterr().out


def test_slower_board_is_told_apart_from_noise(shaken: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = Path(shutil.copytree(shaken, tmp_path / "run"))

    def flatter(summary: Any) -> None:
        for each in summary["runner"]["finalists"]:
            if each["standing"].get("severe") == "champion":
                each["cycles"]["severe"] = round(each["cycles"]["severe"] * 0.7)
        summary["measurements"]["search"] *= 4  # so that it is read often enough

    put(run, "summary.json", flatter)
    code, found = audited(capsys, run, "--seeds", "0")
    assert code == 1
    (fault,) = found["faults"]
    assert fault.startswith(f"{run}: level severe: the champion is ")
    assert fault.endswith("% slower than summary.json says, beside the untuned plan")


# --- other kinds of runs, and none -----------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_model_in_pieces(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, run = tmp_path / "chain.onnx", tmp_path / "run"
    onnx.save(piece_model("chain"), model)
    summary = quick(model, run, 32, *SMALL, "search.lag=0")
    assert len(summary.pieces) > 1
    code, found = audited(capsys, run, "--longer")
    assert (code, found["faults"]) == (0, [])
    assert {level: each["champion"]["now"] for level, each in found["levels"].items()} == summary.own_cycles


def test_what_is_no_finished_run(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def refused(*words: str) -> str:
        assert main(["audit", "--quiet", *words]) == 2
        err = capsys.readouterr().err
        assert err.count("\n") == 1
        return err

    assert "no run.json here" in refused(str(tmp_path))
    (run / "config.yaml").rename(tmp_path / "config.yaml")
    assert f"{run}/config.yaml: not there" in refused(str(run))
    (tmp_path / "config.yaml").rename(run / "config.yaml")
    (run / "plans" / "severe.json").write_text("{")
    assert "severe.json: not JSON" in refused(str(run))
    (run / "summary.json").unlink()
    assert mentions(refused(str(run)), run, "stopped")


def test_anytime_curve_counts_readings_in_task_order() -> None:
    rows = [
        # seq, kind, status, cycles at both levels, readings of each row
        (0, "program", "ok", (100, 200), 1),
        (1, "segment", "ok", (1, 1), 1),
        (2, "program", "ok", (90, 220), 1),
        (3, "program", "crash", (0, 0), 2),
        (4, "program", "ok", (95, 150), 1),
    ]
    log = pd.DataFrame(
        [
            ("r", seq, level, kind, status, cycles[at], readings)
            for seq, kind, status, cycles, readings in rows
            for at, level in enumerate("ab")
        ],
        columns=["run", "seq", "level", "kind", "status", "cycles", "readings"],
    )
    shuffled = log.sample(frac=1, random_state=3)
    found = best_after(shuffled, {}, ("a", "b"), [1, 2, 4, 5, 6, 11, 12])
    np.testing.assert_array_equal(found, [[np.nan, 100, 100, 100, 90, 90, 90], [np.nan, 200, 200, 200, 200, 200, 150]])
    assert [needed_readings(shuffled, {}, programs) for programs in (1, 2, 3, 9)] == [2, 6, 12, 12]
