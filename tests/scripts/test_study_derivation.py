"""The study of derivation with a tiny budget: gains follow from the cycles, and nothing beats the exact cover by much."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from scripts import study_derivation
from tests.tuning import save_small


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_both_tables(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    branches, chain = (str(save_small(name, tmp_path)) for name in ("residual_block", "conv_chain"))
    study_derivation.main(tmp_path / "out", branches, chain, "tiny", 4, 6, 1)
    derived, chains = (rows_of(tmp_path / "out" / name) for name in ("derived.csv", "chains.csv"))
    assert [row["level"] for row in derived] == [row["level"] for row in chains]
    for row in derived:
        fused, best = int(row["fused_cycles"]), int(row["derived_cycles"])
        assert 0 < best <= fused
        assert float(row["gain"]) == pytest.approx(fused / best)
        assert int(row["segments"]) <= int(row["operators"])
    for row in chains:
        assert int(row["exact_cycles"]) <= int(row["fused_cycles"])
        assert float(row["over_exact"]) == pytest.approx(int(row["evolution_cycles"]) / int(row["exact_cycles"]))
    assert "gain" in capsys.readouterr().out
