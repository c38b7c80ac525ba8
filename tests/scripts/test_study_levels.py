"""The study of levels on a small model with a tiny budget: it runs, and its table is consistent."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from tests.scripting import run_script
from tests.tuning import QUICK, save_small

LEVELS = ("none", "slight", "severe")


def test_a_row_for_every_level(tmp_path: Path) -> None:
    model = save_small("conv_chain", tmp_path)
    words = ["--networks", model, "--out", tmp_path / "levels", "--candidates", 8, "--times", 2]
    settings = [word for text in QUICK for word in ("--set", text)]
    done = run_script("study_levels", *words, *settings, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    with (tmp_path / "levels" / "levels.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["level"] for row in rows] == list(LEVELS)
    for row in rows:
        # the level's own variant is its champion, and no other is faster there
        assert int(row["cycles"]) == int(row[f"variant_{row['level']}"]) == min(int(row[f"variant_{level}"]) for level in LEVELS)
        assert int(row["alone_cycles"]) > 0
    assert "gain 2% or more at severe over the variant made for none (goal: half)" in done.stdout
    over = float(rows[-1]["variant_none"]) / float(rows[-1]["cycles"]) - 1
    (line,) = (line for line in done.stdout.splitlines() if line.split()[1:2] == ["severe"])
    assert line.split()[3] == f"{over:+.2%}"
    assert pytest.approx(float(line.split()[-1].rstrip("%")) / 100, abs=1e-4) == int(rows[-1]["cycles"]) / int(rows[-1]["alone_cycles"]) - 1
