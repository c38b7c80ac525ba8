"""The benchmark of the farm on a small network: it runs, and its figures are what they say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from scripts import bench_farm
from tests.tuning import QUICK, save_small


@pytest.mark.usefixtures("local_ray")
def test_rates_are_counts_over_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Called here: its searches on their own are the script in processes of their own."""
    monkeypatch.setattr(bench_farm, "SCORING_S", 0.1)
    monkeypatch.setattr(bench_farm, "SCORED_AT_ONCE", 32)
    out = tmp_path / "deep" / "b.json"
    few = [*QUICK, "model.rounds=5", "segments.candidates=16", "segments.measured=8"]
    bench_farm.main(str(save_small("conv_chain", tmp_path)), epochs=3, pairs=1, settings=few, out=out)
    found = json.loads(out.read_text())
    (pair,) = found["pairs"]
    assert pair["ratio"] == pytest.approx(pair["actors_per_s"] / pair["alone_per_s"])
    assert found["ratio"] == pair["ratio"]
    assert pair["tasks"] > 0
    assert pair["work"] > 0
    assert 0 < pair["busy"] < 1.5
    assert found["actors_per_driver"] == pytest.approx(2e6 / found["actors_per_s"] / found["driver_us"])
    assert 0 < found["unique_mb"] < found["rss_mb"]
    assert found["scored_per_s"] > 0
    assert found["programs_scored_per_s"] > 0
    assert "actors that a driver feeds" in capsys.readouterr().out
