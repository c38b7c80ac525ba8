"""The estimate against the simulator, on grids of cores."""

from __future__ import annotations

import json

import pytest

from scripts.rank_grids import FIRST, drawn_products, rank
from tests.scripting import run_script


def test_products_are_of_all_kinds() -> None:
    products = drawn_products(40, 1024, 3)
    assert products == drawn_products(40, 1024, 3)
    assert all(m < 16 for m, _, _ in products[::4])
    assert all(k >= min(4 * n, 64) for _, k, n in products[1::4])
    assert max(max(sizes) for sizes in products) > 256


def test_a_row_for_each_product_and_machine(tmp_path) -> None:
    done = run_script("rank_grids", "--count", 2, "--cores", "4,6", "--most", 128, "--seed", 2, "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [row["cores"] for row in rows] == [4, 4, 6, 6]
    for row in rows:
        assert 1 <= row["place"] <= row["of"] == len(row["grids"])
        assert row["lost"] >= 0
        assert [grid["estimate"] for grid in row["grids"]] == sorted(grid["estimate"] for grid in row["grids"])
        assert all(rows * channels <= row["cores"] for rows, channels in (grid["grid"] for grid in row["grids"]))


@pytest.mark.slow
@pytest.mark.parametrize("cores", [2, 8, 24])
def test_the_fastest_grid_is_among_the_first(cores: int) -> None:
    places = [rank(sizes, cores)["place"] for sizes in drawn_products(20, 1024, 0)]
    assert sum(place <= FIRST for place in places) >= 0.95 * len(places)
