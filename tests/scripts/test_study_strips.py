"""The study of strips on a small network: every way is there, and the figures are those of segments measured alone."""

from __future__ import annotations

import csv
from pathlib import Path

from compiler.space.decode import realise
from compiler.space.gene import Gene
from scripts.studies import network
from tests.scripting import run_script
from tuner.evaluate import Evaluator


def test_a_run_in_strips_and_cut(tmp_path: Path) -> None:
    out = tmp_path / "strips.csv"
    words = ["--out", out, "--network", "made:mobilenet_v2-small", "--first", 1, "--operators", 2]
    done = run_script("study_strips", *words, "--strips", 1, "--strips", 2, "--strips", 400)
    assert done.returncode == 0, done.stderr
    with out.open(newline="") as file:
        rows = {row["segment"]: [row[level] for level in ("none", "slight", "severe")] for row in csv.DictReader(file)}
    assert list(rows) == ["whole rows", "2 strips", "400 strips", "cut in two"]
    assert rows["400 strips"] == ["-", "-", "-"]
    unit = network("made:mobilenet_v2-small", "edge")
    plan = realise(unit, Gene(1, 3, 2, cached=-1, columns=2))
    assert plan is not None
    alone = Evaluator(unit, ("none", "slight", "severe")).cycles_alone(plan, 1)
    assert alone is not None
    assert all(0.5 * cycles < int(best) <= cycles for best, cycles in zip(rows["2 strips"], alone.tolist(), strict=True))
