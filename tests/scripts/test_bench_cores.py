"""Cost of an evaluation on all cores beside one core."""

from __future__ import annotations

import json

from tests.scripting import run_script


def test_both_numbers_of_cores_are_measured(tmp_path) -> None:
    done = run_script("bench_cores", "--machine", "edge:cores=4", "--size", 64, "--programs", 7, "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    rows = report["all_cores"], report["one_core"]
    assert all(row["programs"] >= 1 and row["instructions"] > 0 for row in rows)
    costs = [row["us_per_instruction"] for row in rows]
    assert report["ratio"] == costs[0] / costs[1]
