"""Champions over the bound, and the bound under the best plans of small graphs."""

from __future__ import annotations

from pathlib import Path

import pytest

from compiler.ops.lower_graph import make_unit
from scripts.study_bound import TimedPrograms, genes, neighbours, random_graph, random_machine, seed_rows, show
from simulator.npu.parts import DataType
from tests.scripts.test_studies import LEVELS, study


def test_champions_are_above_the_bound(tmp_path: Path) -> None:
    rows, said = study("gain", tmp_path, "shuffle_block", "--candidates", 6, "--seeds", 1)
    assert [row["level"] for row in rows] == list(LEVELS)
    for row in rows:
        assert 1 <= row["over_bound"] == pytest.approx(row["cycles"] / row["bound_cycles"])
        assert row["bound_cycles"] / row["roofline_cycles"] == pytest.approx(row[f"{row['term']}_over_roofline"])
        assert row["ddr_over_bound"] >= 1
    assert f"Champion over bound: {rows[0]['over_bound']:.3f} at none" in said


def test_a_small_graph_is_near_its_bound() -> None:
    """The third one, of a single product."""
    rows = seed_rows(2)
    assert random_graph(2)[1] == rows[0]["what"] == "64x56x56 1x1/1->512"
    assert all(1 <= row["over_bound"] < 1.03 for row in rows)
    (table,) = show(rows)
    assert len(table.rows) == len(LEVELS) + 1


def test_a_climb_ends_where_no_neighbour_is_faster() -> None:
    target_graph = make_unit(random_graph(2)[0], random_machine(2), DataType.float16)
    found, begun = TimedPrograms(target_graph), (genes(target_graph, 0, 1)[0],)
    found.improve(begun, found.best)
    before = found.best["none"][0]
    found.climb(begun, "none")
    cycles, (gene,) = found.best["none"]
    assert cycles < before
    assert min(found.cycles((near,)).get("none", cycles) for near in neighbours(target_graph, gene)) >= cycles
    assert found.distinct_fastest("none", 1) == [(gene,)]
