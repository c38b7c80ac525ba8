"""The study of windows on a small model: it runs, and its table is consistent."""

from __future__ import annotations

import csv
from pathlib import Path

import onnx

from simulator.npu.machine import load_machine
from tests.models import small_model
from tests.scripting import run_script


def test_a_row_for_every_level_and_seed(tmp_path: Path) -> None:
    model = tmp_path / "inception.onnx"
    onnx.save(small_model("inception_block"), model)
    words = ["--machine", "edge", "--networks", model, "--candidates", 4, "--seeds", 2]
    done = run_script("study_window", "--out", tmp_path / "window", *words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    with (tmp_path / "window/window.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    levels = list(load_machine("edge").contention)
    assert [(row["seed"], row["level"]) for row in rows] == [(seed, level) for seed in "01" for level in levels]
    for row in rows:
        cycles = {kind: int(row[f"{kind}_cycles"]) for kind in ("sequence", "formula", "unlimited", "own", "searched", "without", "greedy")}
        assert cycles["searched"] <= min(cycles[kind] for kind in ("sequence", "formula", "unlimited", "own"))
        assert min(cycles.values()) > 0
        assert int(row["formula_peak_l1_bytes"]) <= load_machine("edge").buffers_bytes.L1
        assert int(row["unlimited_segments"]) <= int(row["sliding_segments"])
        assert len(row["formula_windows"].split()) == int(row["sliding_segments"]) <= int(row["segments"])
        assert float(row["greedy_over_formula_bytes"]) >= 1
    for part in ("of a search without windows", "geometric means", "never slower"):
        assert part in done.stdout
