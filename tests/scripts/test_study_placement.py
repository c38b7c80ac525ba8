"""The study of placement on a small network: it runs, and its table is consistent."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from simulator.npu.errors import BadInputError
from tests.scripting import run_script
from tests.tuning import save_small


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, list[dict[str, str]]]:
    """Its output, and the rows of the CSV."""
    folder = tmp_path_factory.mktemp("study")
    out = folder / "deep" / "placement.csv"
    arguments = ["--networks", str(save_small("inception_block", folder)), "--shapes", "2x134,4x268", "--candidates", "16", "--seeds", "1"]
    done = run_script("study_placement", *arguments, "--out", out, cwd=folder)
    assert done.returncode == 0, done.stderr
    with out.open(newline="") as file:
        return done.stdout, list(csv.DictReader(file))


def test_a_row_for_every_shape(found: tuple[str, list[dict[str, str]]]) -> None:
    rows = found[1]
    assert [(row["cores"], row["ddr"]) for row in rows] == [("2", "134"), ("4", "268")]
    for row in rows:
        one, every, placed = (int(row[f"{mode}_cycles"]) for mode in ("one", "all", "placed"))
        assert float(row["over_one"]) == pytest.approx(one / placed), "of one seed"
        assert float(row["over_all"]) == pytest.approx(every / placed)
        assert placed < 1.1 * min(one, every), "it knows their segments; one round of exploring decides on so few programs"
        alone = [int(row[f"alone_{form}_cycles"]) for form in ("one", "rows", "either")]
        assert alone == sorted(alone, reverse=True), "more ways to share, and none worse"
        assert alone[1] < alone[0] < int(row["cores"]) * alone[2] * 1.1
        assert max(float(row[f"{bound}_share"]) for bound in ("work", "path", "port")) == pytest.approx(1 / (1 + float(row["gap"])))
        assert float(row["gap"]) >= 0, "nothing is below the bound of its segments"
        assert 0 < float(row["port_share"]) <= 1
        for n in (1, 2):
            assert int(row[f"states_{n}"]) <= int(row[f"states_without_{n}"])
            assert int(row[f"stages_measured_{n}"]) > 0
            barriers, flags, listed = (int(row[f"{form}_cycles_{n}"]) for form in ("barriers", "flags", "listed"))
            assert min(flags, listed) <= barriers * 1.05, "no barriers in programs: the best without is as good"
            assert flags <= barriers * 1.1, "stages that meet on the DDR port may lose by it, but not much"


def test_tables_and_goals_are_printed(found: tuple[str, list[dict[str, str]]]) -> None:
    text, rows = found
    for part in ("over all", "unclustered", "barriers", "goals", "28.98%"):
        assert part in text
    least = min(float(row["over_all"]) for row in rows)
    assert f"least over all cores: {least:.3f}" in text


def test_a_shape_that_is_none_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="--shapes 1x67: expected CORESxBYTES"):
        run_script("study_placement", "--shapes", "1x67", cwd=tmp_path)
