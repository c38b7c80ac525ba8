"""The studies of fusion and of derivation on small networks: they run, and what their tables say holds together."""

from __future__ import annotations

import csv
from itertools import pairwise
from pathlib import Path

import pytest

from scripts import study_derivation, study_fusion
from scripts.studies import medians, short
from tests.tuning import save_small


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_fusion(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = save_small("residual_block", tmp_path)
    study_fusion.main(tmp_path / "out", str(model), "edge", 6, 1)
    rows = rows_of(tmp_path / "out" / "fusion.csv")
    assert [row["level"] for row in rows] == ["none", "slight", "severe"]
    for row in rows:
        stages = [int(row[stage.replace(" ", "_") + "_cycles"]) for stage in study_fusion.STAGES]
        roofline = int(row["baseline_cycles"]) / float(row["ceiling"])
        assert min(stages) == pytest.approx(float(row["best_over_roofline"]) * roofline)
        assert min(stages) >= roofline
        assert float(row["residency"]) == pytest.approx(int(row["baseline_cycles"]) / stages[0])
    shown = capsys.readouterr().out
    assert "geometric mean" in shown
    assert "+ halo cache" in shown


def test_stages_are_cumulative() -> None:
    off = [set(study_fusion.overrides(stage)) for stage in study_fusion.STAGES]
    assert all(later < earlier for earlier, later in pairwise(off))
    assert not off[-1]


def test_derivation(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = save_small("conv_chain", tmp_path)
    study_derivation.main(tmp_path / "out", str(model), str(model), "edge", 6, 12, 2)
    derived, chains = rows_of(tmp_path / "out" / "derived.csv"), rows_of(tmp_path / "out" / "chains.csv")
    for row in derived:
        assert float(row["gain"]) == pytest.approx(int(row["fused_cycles"]) / int(row["derived_cycles"]), rel=0.1)  # medians each
        assert int(row["cached"]) <= int(row["in_blocks"]) <= int(row["segments"]) <= int(row["operators"])
    for row in chains:
        assert int(row["exact_cycles"]) <= int(row["fused_cycles"])
        assert float(row["over_exact"]) <= float(row["worst_over_exact"])
        near, share = float(row["over_exact"]) <= study_derivation.NEAR, float(row["share_of_gain"]) >= study_derivation.SHARE
        assert (row["reached"] == "True") == (near and share)
    assert "of the gain" in capsys.readouterr().out


def test_names_are_short() -> None:
    assert [short(name) for name in ("light:vgg19", "made:mobilenet_v1", "a/b.onnx", "vgg19")] == ["vgg19", "mobilenet_v1", "b", "vgg19"]


def test_medians_over_seeds() -> None:
    runs = [[{"network": "a", "cycles": cycles, "gain": gain, "reached": gain > 1}] for cycles, gain in ((5, 2.0), (9, 0.5), (6, 1.5))]
    assert medians(runs) == [{"network": "a", "cycles": 6, "gain": 1.5, "reached": True, "seeds": 3}]
