"""The clock against what others say: closed forms of systolic arrays, ONNXim's products, and SCALE-Sim itself (slow).

The tables of docs/accuracy.md are what the scripts print.
"""

from __future__ import annotations

import math
import re
import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest

from scripts.compare_onnxim import compare
from scripts.gemm import ATOM, array_machine, mmads, tile_by_tile
from simulator.npu.level import NO_CONTENTION
from simulator.npu.machine import Machine
from simulator.timing import simulate

ROOT = Path(__file__).resolve().parents[2]
ARRAYS = [(8, 8), (32, 16), (16, 48)]
SIZES = (16, 80, 256)
SWEEP = list(product(SIZES, SIZES, SIZES))  # (m, k, n)


def cycles(machine: Machine, m: int, k: int, n: int, tile: tuple[int, int, int]) -> int:
    return simulate(mmads(machine, m, k, n, tile), machine, NO_CONTENTION).cycles


def whole_tiles(unit: int, length: int) -> set[int]:
    """Sizes of tiles that cut no tile of the array: one, two and three of them, and everything."""
    least = math.lcm(unit, 16)
    return {least, 2 * least, 3 * least, math.ceil(length / 16) * 16}


@pytest.mark.parametrize(("r", "c"), ARRAYS)
def test_output_stationary_adds_up_to_the_closed_form(r: int, c: int) -> None:
    """(R + C + K - 2) * ceil(M / R) * ceil(N / C), for tiles in multiples of R and C with k whole."""
    machine = array_machine(r, c, "output-stationary", pipelined=False)
    for m, k, n in SWEEP:
        expected = (r + c + k - 2) * math.ceil(m / r) * math.ceil(n / c)
        found = {cycles(machine, m, k, n, (a, k, b)) for a in whole_tiles(r, m) for b in whole_tiles(c, n)}
        assert found == {expected}, (m, k, n)


@pytest.mark.parametrize(("r", "c"), ARRAYS)
def test_weight_stationary_adds_up_to_the_closed_form(r: int, c: int) -> None:
    """(2R + C + M - 2) * ceil(K / R) * ceil(N / C), for tiles in multiples of R and C with m whole."""
    machine = array_machine(r, c, "weight-stationary", pipelined=False)
    for m, k, n in SWEEP:
        expected = (2 * r + c + m - 2) * math.ceil(k / r) * math.ceil(n / c)
        found = {cycles(machine, m, k, n, (m, a, b)) for a in whole_tiles(r, k) for b in whole_tiles(c, n)}
        assert found == {expected}, (m, k, n)


@pytest.mark.parametrize(("r", "c"), ARRAYS)
def test_pipelined_tiles_follow_each_other(r: int, c: int) -> None:
    """Stream by stream: the weights of the first tile, a tile every max(M, R), the skew of the last one."""
    machine = array_machine(r, c, "weight-stationary", pipelined=True)
    for m, k, n in SWEEP:
        tiles = math.ceil(k / r) * math.ceil(n / c)
        begin = r  # the first weights are in
        for _ in range(tiles - 1):
            begin += max(m, r)  # the next tile's weights come in meanwhile
        expected = begin + m + r + c - 2
        found = {cycles(machine, m, k, n, (m, a, b)) for a in whole_tiles(r, k) for b in whole_tiles(c, n)}
        # rows fewer than R: the clock lets the last tile take R as well
        assert found == {expected + max(0, r - m)}, (m, k, n)
        if m % r == 0:  # m in pieces of at least R
            assert cycles(machine, m, k, n, (math.lcm(r, 16), k, n)) == expected


@pytest.mark.parametrize(("r", "c"), ARRAYS)
def test_pipelined_sums_leave_behind_the_next_tile(r: int, c: int) -> None:
    machine = array_machine(r, c, "output-stationary", pipelined=True)
    for m, k, n in SWEEP:
        tiles = math.ceil(m / r) * math.ceil(n / c)
        expected = tiles * max(k, r) + r + c - 2
        assert {cycles(machine, m, k, n, (a, k, b)) for a in whole_tiles(r, m) for b in whole_tiles(c, n)} == {expected}, (m, k, n)


@pytest.mark.parametrize(
    ("dataflow", "tile", "more"),
    [
        ("output-stationary", (64, 32, 64), 2 * 2 * (32 + 32 - 2)),  # k in two: each tile of the array fills twice
        ("output-stationary", (16, 64, 64), 2 * 2 * (32 + 32 + 64 - 2)),  # half of the rows idle: twice as many tiles
        ("weight-stationary", (32, 64, 64), 2 * 2 * (2 * 32 + 32 - 2)),  # m in two: each tile's weights come twice
        ("weight-stationary", (64, 16, 64), 2 * 2 * (2 * 32 + 32 + 64 - 2)),  # half of the rows idle
    ],
)
def test_other_tilings_pay_for_what_they_cut(dataflow: str, tile: tuple[int, int, int], more: int) -> None:
    machine = array_machine(32, 32, dataflow, pipelined=False)
    assert cycles(machine, 64, 64, 64, tile) == cycles(machine, 64, 64, 64, (64, 64, 64)) + more


def test_loads_and_stores_show_at_both_ends_only() -> None:
    """A 16 x 16 array, 64 bytes of DDR per cycle behind 100: on paper for m = k = n = 32.

    Weights and 16 rows (16 blocks each, 2 per cycle) are in at 108 and 116.  Two columns of two tiles, 32 rows each, of which the first
    column in pieces of 16: data keep up, 8 cycles a piece (8 more for weights), 16 a piece in the array: 116 + 128.  Latency of the
    array 46, of DDR 100, results of the last column 32 * 16 * 2 bytes: 16.
    """
    machine = array_machine(16, 16, "weight-stationary", pipelined=True)
    assert simulate(tile_by_tile(machine, 32, 32, 32), machine, NO_CONTENTION).cycles == 116 + 128 + 46 + 100 + 16


def test_onnxim() -> None:
    """Pipelined weight-stationary products; off by at most 1% on 8 x 8 and 10% on 128 x 128, nothing fitted."""
    rows = compare()
    assert [row["onnxim"] for row in rows] == [33_052, 131_419, 2_097_507, 862, 9_311]
    for row in rows:
        limit = 0.01 if row["array"] == 8 else 0.1
        assert row["program_cycles"] == pytest.approx(row["onnxim"], rel=limit)
        side, m, k, n = row["array"], row["m"], row["k"], row["n"]
        assert row["array_cycles"] == math.ceil(k / side) * math.ceil(n / side) * m + 3 * side - 2
    # without memory, the closed form is what is left: within the limits where the product is large
    assert all(row["array_cycles"] == pytest.approx(row["onnxim"], rel=0.01) for row in rows[:3])
    assert rows[4]["array_cycles"] == pytest.approx(rows[4]["onnxim"], rel=0.1)


def test_docs_table_is_the_output_of_the_script() -> None:
    done = subprocess.run([sys.executable, ROOT / "scripts" / "compare_onnxim.py"], capture_output=True, text=True, check=True)
    assert done.stdout in (ROOT / "docs" / "accuracy.md").read_text(encoding="utf-8")


def test_closed_forms_of_docs_are_program_cycles() -> None:
    page = (ROOT / "docs" / "accuracy.md").read_text(encoding="utf-8")
    rows = re.findall(r"\| (\d+) x (\d+) \| (\w+-stationary) \| (\d+) x (\d+) x (\d+) \| ([\d,]+) \| ([\d,]+) \|", page)
    assert len(rows) == 12
    for *sizes, closed, here in ((int(r), int(c), flow, int(m), int(k), int(n), *rest) for r, c, flow, m, k, n, *rest in rows):
        r, c, dataflow, m, k, n = sizes
        output = dataflow == "output-stationary"
        form = (
            (r + c + k - 2) * math.ceil(m / r) * math.ceil(n / c) if output else (2 * r + c + m - 2) * math.ceil(k / r) * math.ceil(n / c)
        )
        a, b = max(r, ATOM), max(c, ATOM)
        found = cycles(array_machine(r, c, dataflow, pipelined=False), m, k, n, (a, k, b) if output else (m, a, b))
        assert (closed, here) == (f"{form:,}", f"{found:,}")


@pytest.mark.slow
def test_scalesim_itself(tmp_path: Path) -> None:
    """Needs the package registry."""
    command = [sys.executable, ROOT / "scripts" / "compare_scalesim.py", "--venv", tmp_path / "venv"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr.endswith("80 of 80 products take the same number of cycles\n")
