"""The benchmark of the farm on a small network: it runs, and its figures are what they say."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tuning import QUICK, save_small

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "bench_farm.py"


def test_rates_are_counts_over_time(tmp_path: Path) -> None:
    environment = os.environ | {"PYTHONPATH": str(SCRIPT.parents[1]), "NO_COLOR": "1"}
    words = [
        "--network",
        str(save_small("residual_block", tmp_path)),
        "--epochs",
        "3",
        "--pairs",
        "1",
        "--out",
        str(tmp_path / "deep" / "b.json"),
    ]
    words += [word for text in (*QUICK, "model.rounds=5") for word in ("--set", text)]
    done = subprocess.run([sys.executable, str(SCRIPT), *words], env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "deep" / "b.json").read_text())
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
    assert "actors that a driver feeds" in done.stdout
