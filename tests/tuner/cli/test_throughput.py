"""`--objective throughput --frames N`: what is refused, and that latency stands beside throughput wherever cycles are reported."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from scripts.studies import Table
from scripts.study_champions import rows_of_frames, show_frames
from simulator.objective import frames_of
from tests.tuning import FEW, save_small
from tuner.driver import tune
from tuner.tune_request import TuneRequest


def test_frames_go_with_throughput(cli, tmp_path: Path) -> None:
    assert [frames_of("latency"), frames_of("throughput"), frames_of("throughput", 4)] == [1, 2, 4]
    path = save_small("conv_chain", tmp_path)
    for command in ("compile", "tune"):
        for words in (("--frames", 2), ("--objective", "throughput", "--frames", 0)):
            code, out, err = cli(command, path, "--machine", "edge", "--out", tmp_path / "out", *words)
            assert (code, out, len(err.splitlines())) == (2, "", 1)
            assert "frames" in err


def test_a_run_says_latency_beside_throughput(cli, tmp_path: Path) -> None:
    """Console, JSON, summary and report of a search for two frames; its plans compile to the same cycles."""
    path, run = save_small("conv_chain", tmp_path), tmp_path / "run"
    request = TuneRequest(path, "edge", run, 6, overrides=FEW, backend="serial", objective="throughput")
    summary = tune(request)
    assert (summary.status, summary.frames) == ("done", 2)
    for row in summary.levels.values():
        assert row.cycles_per_frame == row.cycles / 2
        assert row.frames_per_s == pytest.approx(2e6 / row.latency_us, rel=1e-3)
    code, out, _ = cli("best", run)
    assert (code, "cycles/frame" in out) == (0, True)
    code, out, _ = cli("simulate", run / "best.onnx", "--json")
    told = json.loads(out)
    assert (code, told["frames"]) == (0, 2)
    assert {level: row["cycles_per_frame"] for level, row in told["levels"].items()} == {
        level: row.cycles_per_frame for level, row in summary.levels.items()
    }
    plan = run / "plans" / "none.json"
    again = ["compile", path, "--machine", "edge", "--objective", "throughput", "--plan", plan, "--out", tmp_path / "again.onnx", "--json"]
    code, out, _ = cli(*again)
    told = json.loads(out)
    assert (code, told["frames"], told["levels"]["none"]["cycles"]) == (0, 2, summary.levels["none"].cycles)
    code, _, err = cli(*(word for word in again if word not in ("--objective", "throughput")))
    assert (code, "made for model" in err) == (2, True)
    assert cli("report", run)[0] == 0
    assert "cycles per frame" in (run / "report.html").read_text()


def test_the_study_counts_by_frame(tmp_path: Path) -> None:
    path = str(save_small("conv_chain", tmp_path))
    rows = [*rows_of_frames(path, "edge", 1, 0), *rows_of_frames(path, "edge", 2, 0), *rows_of_frames(path, "edge", 2, 3, FEW)]
    for row in rows:
        assert row["cycles_per_frame"] * row["frames"] == row["cycles"] >= row["bound"]
    table, said = show_frames(rows[:6])
    assert isinstance(table, Table)
    assert isinstance(said, str)
    assert said.startswith("2 frames over one, geometric mean of cycles per frame: ")
    assert [row[:2] for row in table.rows] == [("conv_chain", 1), ("conv_chain", 2)]
