"""A real network from the command line to the compiled file and back: tuned, checked, exported, made again from its plans."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from simulator.npu.container_file import decode
from simulator.onnx_container import read_container
from tests.tuning import assert_equal_runs
from tuner.cli import main

BUDGET = [
    word
    for text in ("segments.candidates=48", "segments.measured=24", "search.lag=4", "search.generation=2", "use.packaged_model=false",
                 "model.min_rows=100", "model.rounds=50", "farm.checkpoint_every_s=0.5")
    for word in ("--set", text)
]  # fmt: skip


def tune(out: Path, candidates: int, *more: str) -> int:
    return main(
        ["tune", "light:squeezenet", "--machine", "edge", "--out", str(out), "--candidates", str(candidates), "--backend", "serial",
         "--quiet", *BUDGET, *more]
    )  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("squeezenet") / "run"
    assert tune(out, 24) == 0
    return out


@pytest.fixture(scope="module")
def summary(run: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run / "summary.json").read_text())
    return found


def test_every_level_is_faster_than_layer_by_layer(summary: dict[str, Any]) -> None:
    levels = summary["levels"]
    assert list(levels) == ["none", "slight", "severe"]
    assert all(row["speedup"] > floor for row, floor in zip(levels.values(), (1.2, 1.5, 2.0), strict=True))
    assert [row["cycles"] for row in levels.values()] == sorted(row["cycles"] for row in levels.values())
    for level, row in levels.items():
        own, displaced = summary["robust"]["own_cycles"][level], {each["level"] for each in summary["robust"]["displaced"]}
        assert own <= min(row["variant_cycles"].values())
        assert row["cycles"] == row["variant_cycles"][level]
        assert row["cycles"] == own or level in displaced
        assert row["max_rel_error"] < 1e-2
        assert row["roofline_cycles"] <= row["cycles"]
    # by no law: a copy more may let loads run ahead
    assert levels["severe"]["ddr_bytes"] <= 1.05 * levels["none"]["ddr_bytes"], "less bandwidth, no less fusion"


def test_the_cost_model_learnt_something(run: Path, summary: dict[str, Any]) -> None:
    assert set(summary["cost_model"]) == {f"{level}.{what}" for level in summary["levels"] for what in ("pair_accuracy", "rms_octaves")}
    in_order = [value for name, value in summary["cost_model"].items() if name.endswith("pair_accuracy")]
    assert min(in_order) > 0.5, "of few pairs: no worse than a coin"
    assert np.mean(in_order) > 0.62
    log = pd.read_parquet(run / "log")
    guessed = log[(log["kind"] != "program") & log["model_version"].notna() & (log["status"] == "ok")]
    assert len(guessed) > 30
    error = np.log2(guessed["predicted_cycles"].astype(float) / guessed["cycles"].astype(float)).abs()
    assert error.median() < 0.5, "half an octave on segments it had not seen"


def test_the_values_of_every_variant_are_checked(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for level in ("none", "slight", "severe"):
        assert main(["run", str(run / "best.onnx"), "--input", "random:3", "--level", level, "--check"]) == 0
        assert f"check of level {level}: passed" in capsys.readouterr().out


def test_export_and_compile_make_the_same_container(run: Path, tmp_path: Path) -> None:
    assert main(["export", str(run), "--out", str(tmp_path / "again.onnx")]) == 0
    plans = [word for level in ("none", "slight", "severe") for word in ("--plan", f"{level}={run / 'plans' / f'{level}.json'}")]
    assert main(["compile", "light:squeezenet", "--machine", "edge", *plans, "--out", str(tmp_path / "compiled.onnx")]) == 0
    best = read_container(run / "best.onnx")
    assert read_container(tmp_path / "again.onnx") == best
    assert read_container(tmp_path / "compiled.onnx") == best
    assert decode(best).levels == ("none", "slight", "severe")


@pytest.mark.slow
def test_longer_run_continues_from_a_shorter_one(run: Path, tmp_path: Path) -> None:
    assert tune(tmp_path / "run", 12) == 0
    assert tune(tmp_path / "run", 24, "--resume") == 0
    assert_equal_runs(tmp_path / "run", run)
