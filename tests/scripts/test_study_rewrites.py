"""The study of the rewrites on a small network: rules that fire, and figures that add up with the row of all rules."""

from __future__ import annotations

import csv
from pathlib import Path

from tests.scripting import run_script


def test_what_rules_save(tmp_path: Path) -> None:
    out = tmp_path / "rewrites.csv"
    done = run_script(
        "study_rewrites", "--out", str(out), "--networks", "made:mobilenet_v2-small", "--rules", "fuse-limit,fuse-residual,nest-concat"
    )
    assert done.returncode == 0, done.stderr
    with out.open(newline="") as file:
        rows = {row["rule"]: row for row in csv.DictReader(file)}
    assert list(rows) == ["fuse-limit", "fuse-residual", "all rules"]  # no Concat to nest
    whole = rows["all rules"]
    assert int(whole["kernels"]) == 54  # 52 convolutions, the mean, the classifier
    # a ReLU6 for each convolution but the 17 that end a block, and a sum for each block of equal size: one pass each that reads and writes
    assert int(rows["fuse-limit"]["kernels_saved"]) == int(rows["fuse-limit"]["fired"]) == 35
    assert int(rows["fuse-residual"]["kernels_saved"]) == int(rows["fuse-residual"]["fired"])
    for rule in ("fuse-limit", "fuse-residual"):
        assert int(rows[rule]["ddr_bytes_saved"]) > 0
        for level in ("none", "slight", "severe"):
            assert 0 < int(rows[rule][f"cycles_{level}"]) < int(whole[f"cycles_{level}"])
    assert "fuse-limit" in done.stdout


def test_a_rule_that_is_not_there(tmp_path: Path) -> None:
    done = run_script("study_rewrites", "--out", tmp_path / "x.csv", "--rules", "fuse-everything")
    assert done.returncode == 2
    assert "expected some of drop-empty-chain" in " ".join(done.stderr.replace("│", " ").split())
