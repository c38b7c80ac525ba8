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
from simulator.npu.machine import load_machine
from tests.models import small_model
from tests.tuning import QUICK, ROOT, assert_equal_runs, quick, save_small, take_interrupts
from tuner.cells import cells_config
from tuner.cli import main
from tuner.folder.runs import find_runs
from tuner.log.read import read_log
from tuner.request import SweepRequest
from tuner.sweep import INDEX_COLUMNS, cells_of, sweep

N = 12


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("models")
    return save_small("conv_chain", folder), save_small("vector_chain", folder)


def request(models: tuple[Path, ...], out: Path, **values: object) -> SweepRequest:
    settings = {"machines": ("edge",), "candidates": N, "overrides": QUICK, "backend": "serial", **values}
    return SweepRequest(tuple((model, None) for model in models), out=out, **settings)  # type: ignore[arg-type]


def heard(lines: list[str]) -> list[str]:
    return [line.split(":")[1].split()[0] for line in lines]


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


def test_two_workers_make_the_same_runs(models: tuple[Path, Path], tmp_path: Path) -> None:
    sweep(request(models, tmp_path / "serial"), lambda line: None)
    sweep(request(models, tmp_path / "ray", backend="ray", workers=2), lambda line: None)
    for name in ("conv_chain-edge-s0", "vector_chain-edge-s0"):
        assert_equal_runs(tmp_path / "serial" / name, tmp_path / "ray" / name)


def test_runner_and_resource_reach_every_cell(models: tuple[Path, Path], tmp_path: Path) -> None:
    runner, out = "tuner.runners.simulated:measure", tmp_path / "sweep"
    few = (*QUICK, "segments.measured=4", "segments.candidates=8", "runner.rounds=1", "runner.finalists=1")
    asked = request(models[:1], out, seeds=2, candidates=3, runner=runner, resource="npu", overrides=few)
    assert cells_config(asked).farm.resource == "npu"
    sweep(asked, lambda line: None)
    for run in find_runs(out):
        assert set(read_log(run.path)["runner"]) == {runner}


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


def test_a_killed_sweep_goes_on(models: tuple[Path, Path], tmp_path: Path) -> None:
    out = tmp_path / "sweep"
    command = [sys.executable, "-m", "tuner.cli", "sweep", *map(str, models), "--machine", "edge", "--out", str(out), "--backend", "serial"]
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
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert set(pd.read_parquet(out / "index.parquet")["state"]) <= {"waiting", "done"}
    before = (out / "conv_chain-edge-s0" / "summary.json").stat().st_mtime_ns
    lines: list[str] = []
    index = sweep(request(models, out, resume=True), lines.append)
    assert set(index["state"]) == {"done"}
    assert heard(lines) == ["vector_chain-edge-s0"]
    assert (out / "conv_chain-edge-s0" / "summary.json").stat().st_mtime_ns == before
    sweep(request(models, tmp_path / "whole"), lambda line: None)
    assert_equal_runs(out / "vector_chain-edge-s0", tmp_path / "whole" / "vector_chain-edge-s0")


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
        cells_of(request((models[0], models[0]), out))
    with pytest.raises(BadInputError, match="no such file"):
        cells_of(request((tmp_path / "none.onnx",), out))


def test_no_name_leaves_the_folder(tmp_path: Path) -> None:
    hostile = tmp_path / "..;rm -rf $HOME\\..onnx"
    onnx.save(small_model("vector_chain"), hostile)
    (cell,) = cells_of(request((hostile,), tmp_path / "sweep"))
    assert set(cell.name) & set("/\\;$ ") == set()
    assert not cell.name.startswith(".")
    assert (tmp_path / "sweep" / cell.name).resolve().parent == tmp_path / "sweep"
