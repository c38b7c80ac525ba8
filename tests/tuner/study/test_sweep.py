"""A sweep is its cells' runs and one table over them; it survives cells that fail and drivers that are killed."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import onnx
import pandas as pd
import pytest
import yaml

from simulator.npu.errors import BadInputError
from simulator.npu.machine_file import load_machine
from tests.messages import naming
from tests.models import small_model
from tests.tuning import QUICK, ROOT, assert_equal_runs, quick, save_small, take_interrupts
from tuner.cli import main
from tuner.log.read import read_log
from tuner.runs.list_runs import find_runs
from tuner.study.cells import cells_config
from tuner.study.sweep import INDEX_COLUMNS, SweepCell, SweepWorker, sweep, sweep_cells
from tuner.tune_request import SweepRequest

N = 12


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("models")
    return save_small("conv_chain", folder), save_small("vector_chain", folder)


def request(models: tuple[Path, ...], out: Path, **values: object) -> SweepRequest:
    settings = {"machines": ("edge",), "candidates": N, "overrides": QUICK, "backend": "serial", **values}
    return SweepRequest(tuple((model, None) for model in models), out=out, **settings)  # type: ignore[arg-type]


def heard(lines: list[str]) -> list[str]:
    """Cells that ended, without the line that a sweep begins with."""
    return [line.split(":")[1].split()[0] for line in lines if "says how far they are" not in line]


def test_cells_are_the_runs_that_tune_makes(models: tuple[Path, Path], tmp_path: Path) -> None:
    lines: list[str] = []
    index = sweep(request(models[:1], tmp_path / "sweep", seeds=2), lines.append)
    assert heard(lines) == ["conv_chain-edge-s0", "conv_chain-edge-s1"]
    assert index["path"].unique().tolist() == heard(lines)
    assert set(index["state"]) == {"done"}
    assert list(index.columns) == [column.name for column in INDEX_COLUMNS]
    for _, row in index.iterrows():
        summary = json.loads((tmp_path / "sweep" / row["path"] / "summary.json").read_text())
        assert row["cycles"] == summary["levels"][row["level"]]["cycles"]
    quick(models[0], tmp_path / "alone", N, seed=1)
    assert_equal_runs(tmp_path / "sweep" / "conv_chain-edge-s1", tmp_path / "alone")
    assert len(list(find_runs(tmp_path / "sweep"))) == 2
    first, second = (index[index["seed"] == seed].iloc[0] for seed in (0, 1))
    assert (first["stored_tasks"], first["tasks"]) == (0, read_log(tmp_path / "sweep" / first["path"])["seq"].nunique())
    assert 0 < second["stored_tasks"] < second["tasks"]
    log = read_log(tmp_path / "sweep" / second["path"])
    assert second["stored_tasks"] == log.loc[log["worker"].astype("str").str.startswith("store/"), "seq"].nunique()


@pytest.mark.usefixtures("local_ray")
def test_two_sharing_workers_make_the_runs_of_one(models: tuple[Path, Path], tmp_path: Path) -> None:
    index = sweep(request(models[:1], tmp_path / "alone", seeds=3, candidates=6, store="none"), lambda line: None)
    assert set(index["stored_tasks"]) == {0}
    assert not (tmp_path / "alone" / "store").exists()
    index = sweep(
        request(models[:1], tmp_path / "ray", seeds=3, candidates=6, backend="ray", workers={"min": 1, "max": 2}), lambda line: None
    )
    assert index["stored_tasks"].sum() > 0
    for seed in range(3):
        assert_equal_runs(tmp_path / "alone" / f"conv_chain-edge-s{seed}", tmp_path / "ray" / f"conv_chain-edge-s{seed}")


def test_seeds_come_after_models_and_machines(models: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers beside each other then have different tasks to measure, and each seed those of the seed before."""
    monkeypatch.setattr(SweepWorker, "__call__", lambda worker, cell: "not run")
    lines: list[str] = []
    index = sweep(request(models, tmp_path / "sweep", machines=("edge", "tiny"), seeds=2), lines.append)
    pairs = [(name, machine) for name in ("conv_chain", "vector_chain") for machine in ("edge", "tiny")]
    assert heard(lines) == [f"{name}-{machine}-s{seed}" for seed in (0, 1) for name, machine in pairs]
    assert index["path"].tolist() == [f"{name}-{machine}-s{seed}" for name, machine in pairs for seed in (0, 1)]
    index = sweep(request(models, tmp_path / "sweep", machines=("edge", "tiny"), seeds=3, resume=True), lines.append)
    assert index["path"].tolist() == [f"{name}-{machine}-s{seed}" for name, machine in pairs for seed in (0, 1, 2)], "seeds can be added"
    before = (tmp_path / "sweep" / "index.parquet").read_bytes()
    with pytest.raises(BadInputError, match=naming("3 seeds", "--seeds 3")):
        sweep(request(models, tmp_path / "sweep", machines=("edge", "tiny"), seeds=2, resume=True), lines.append)
    assert (tmp_path / "sweep" / "index.parquet").read_bytes() == before


def test_a_finished_sweep_goes_on_with_more_programs(models: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out, lines = tmp_path / "sweep", list[str]()
    sweep(request(models[:1], out, seeds=2, candidates=4), lines.append)
    assert lines[0].startswith("0 of 2 runs done, 4 programs each; `tilefarm status ")

    run, states = SweepWorker.__call__, list[list[str]]()

    def looked_at(worker: SweepWorker, cell: SweepCell) -> str:
        states.append(pd.read_parquet(out / "index.parquet").drop_duplicates("path")["state"].tolist())
        return run(worker, cell)

    monkeypatch.setattr(SweepWorker, "__call__", looked_at)
    index = sweep(request(models[:1], out, seeds=2, candidates=N, resume=True), lines.append)
    assert states == [["waiting", "waiting"], ["done", "waiting"]], "a run of 4 programs is none of 12"
    assert set(index["state"]) == {"done"}
    assert set(index["candidates"]) == {N}
    quick(models[0], tmp_path / "alone", N, seed=1)
    assert_equal_runs(out / "conv_chain-edge-s1", tmp_path / "alone")
    states.clear()
    sweep(request(models[:1], out, seeds=2, candidates=N, resume=True), lines.append)
    assert not states, "nothing is left to do"
    assert lines[-1].startswith("2 of 2 runs done")
    with pytest.raises(BadInputError, match=naming(f"{N} programs", f"--candidates {N}")):
        sweep(request(models[:1], out, seeds=2, candidates=4, resume=True), lines.append)
    timed = (*QUICK, "budget.candidates=null", "budget.seconds=5")
    with pytest.raises(BadInputError, match=naming(f"{N} programs", "5 s")):
        sweep(request(models[:1], out, seeds=2, candidates=None, overrides=timed, resume=True), lines.append)
    other = (*QUICK, "search.generation=3")
    with pytest.raises(BadInputError, match=r"search\.generation 4, not 3"):
        sweep(request(models[:1], out, seeds=2, overrides=other, resume=True), lines.append)
    (out / "config.yaml").unlink()
    with pytest.raises(BadInputError, match=r"has no config\.yaml"):
        sweep(request(models[:1], out, seeds=2, resume=True), lines.append)


def test_runner_and_resource_reach_every_cell(models: tuple[Path, Path], tmp_path: Path) -> None:
    runner, out = "tuner.measure.simulator_runner:measure", tmp_path / "sweep"
    few = (*QUICK, "segments.measured=2", "segments.candidates=4", "runner.readings=1", "runner.finalists=1")
    asked = request(models[:1], out, seeds=2, candidates=3, runner=runner, resource="npu", overrides=few)
    assert cells_config(asked).farm.resource == "npu"
    sweep(asked, lambda line: None)
    for run in find_runs(out):
        assert set(read_log(run.path)["runner"]) == {runner}
    assert not list((out / "store").rglob("*.parquet")), "what a board said that gives no name is nobody's"


def test_a_cell_that_fails_is_a_row(models: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    raw = load_machine("tiny").model_dump(mode="json")
    raw["name"] = "cramped"
    raw["buffers_bytes"]["L1"] = 512
    (tmp_path / "cramped.yaml").write_text(yaml.safe_dump(raw))
    words = ["sweep", str(models[0]), "--machine", "edge", "--machine", str(tmp_path / "cramped.yaml"), "--candidates", str(N), "--quiet"]
    settings = [word for text in QUICK for word in ("--set", text)]
    assert main([*words, "--out", str(tmp_path / "sweep"), "--backend", "serial", *settings]) == 1
    out = capsys.readouterr().out
    assert "conv_chain-cramped-s0: failed: " in out
    index = pd.read_parquet(tmp_path / "sweep" / "index.parquet")
    assert dict(zip(index["machine"], index["state"], strict=True)) == {"edge": "done", "cramped": "failed"}
    assert index.loc[index["state"] == "failed", "cycles"].isna().all()


def test_cell_that_meets_a_bug_keeps_its_details(models: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tuner.driver.finalize", lambda *_: 1 // 0)
    index = sweep(request(models[:1], tmp_path / "sweep"), lambda line: None)
    assert index["error"].tolist() == ["ZeroDivisionError: integer division or modulo by zero"]
    (path,) = (tmp_path / "sweep" / "conv_chain-edge-s0").glob("crash-*.txt")
    text = path.read_text()
    assert text.startswith("conv_chain-edge-s0 of a sweep\n")
    assert "finalize(" in text


def test_a_killed_sweep_goes_on(models: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "sweep"
    words = ["--machine", "edge", "--seeds", "2", "--out", str(out), "--backend", "serial"]
    command = [sys.executable, "-m", "tests.command", "sweep", str(models[0]), *words]
    settings = [word for text in QUICK for word in ("--set", text)]
    process = subprocess.Popen(
        [*command, "--candidates", str(N), *settings],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        preexec_fn=take_interrupts,
    )
    end = time.monotonic() + 90
    while time.monotonic() < end and process.poll() is None and not (out / "conv_chain-edge-s0" / "summary.json").exists():
        time.sleep(0.01)
    assert main(["status", str(out), "--json"]) == 0
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert json.loads(capsys.readouterr().out)["state"] == "running"
    assert main(["status", str(out)]) == 0
    shown = capsys.readouterr().out
    assert "of 2" in shown
    assert "tilefarm sweep with --resume" in shown
    assert set(pd.read_parquet(out / "index.parquet")["state"]) <= {"waiting", "done"}
    before = (out / "conv_chain-edge-s0" / "summary.json").stat().st_mtime_ns
    lines: list[str] = []
    index = sweep(request(models[:1], out, seeds=2, resume=True), lines.append)
    assert set(index["state"]) == {"done"}, index["error"].dropna().tolist()
    assert heard(lines) == ["conv_chain-edge-s1"]
    assert index["stored_tasks"].max() > 0, "the second seed finds what the first one measured"
    assert (out / "conv_chain-edge-s0" / "summary.json").stat().st_mtime_ns == before
    sweep(request(models[:1], tmp_path / "whole", seeds=2, store="none"), lambda line: None)
    assert_equal_runs(out / "conv_chain-edge-s1", tmp_path / "whole" / "conv_chain-edge-s1")


def test_what_cannot_be_one_sweep(models: tuple[Path, Path], tmp_path: Path) -> None:
    out = tmp_path / "sweep"
    sweep(request(models[:1], out), lambda line: None)
    with pytest.raises(BadInputError, match=r"holds run sweep-.*models"):
        sweep(request(models, out, resume=True), lambda line: None)
    changed = tmp_path / models[0].name
    onnx.save(small_model("conv_chain", seed=1), changed)
    with pytest.raises(BadInputError, match=r"holds run sweep-.*models"):  # the same name, other weights
        sweep(request((changed,), out, resume=True), lambda line: None)
    with pytest.raises(BadInputError, match="--resume continues it"):
        sweep(request(models[:1], out), lambda line: None)
    with pytest.raises(BadInputError, match="names must differ"):
        sweep_cells(request((models[0], models[0]), out))
    with pytest.raises(BadInputError, match="no such file"):
        sweep_cells(request((tmp_path / "none.onnx",), out))
    for name, why in (("made:none", "no such network is made"), ("made:vit_b16,height=2", "has no option 'height'")):
        with pytest.raises(BadInputError, match=why):
            sweep(request((Path(name),), tmp_path / "new"), lambda line: None)
    assert not (tmp_path / "new").exists()


def test_who_interrupts_is_told_how_to_go_on(
    models: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object) -> list[float]:
        raise KeyboardInterrupt

    monkeypatch.setattr(SweepWorker, "__call__", interrupted)
    monkeypatch.setattr("tuner.study.trial_driver.TrialWorker.__call__", interrupted)
    for command in ("sweep", "study"):
        words = [command, str(models[0]), "--machine", "edge", "--out", str(tmp_path / command), "--backend", "serial"]
        assert main(words) == 130
        assert f"{tmp_path / command}: --resume continues it" in capsys.readouterr().err


def test_no_name_leaves_the_folder(tmp_path: Path) -> None:
    hostile = tmp_path / "..;rm -rf $HOME\\..onnx"
    onnx.save(small_model("vector_chain"), hostile)
    (cell,) = sweep_cells(request((hostile,), tmp_path / "sweep"))
    assert set(cell.name) & set("/\\;$ ") == set()
    assert not cell.name.startswith(".")
    assert (tmp_path / "sweep" / cell.name).resolve().parent == tmp_path / "sweep"
