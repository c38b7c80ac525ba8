"""The clock of `ascend910b` against silicon: two sizes that its values were derived from, and two that they were not."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scripts.compare_gemm import (
    DERIVED_FROM,
    SHARES,
    SILICON,
    compulsory_bytes,
    derive,
    least_requested_bytes,
    main,
    roofline,
    time_program,
)
from scripts.vendor_gemm import BLOCK_M, BLOCK_N, GRID, L0_K, vendor_program
from simulator.functional import execute
from simulator.host_layout import load_input, read_output
from simulator.npu.errors import BadInputError
from simulator.npu.machine_file import load_machine
from simulator.npu.parts import BLOCK_BYTES, DataType
from simulator.sanitizer import sanitize_program
from tests.scripting import run_script

PART = load_machine("ascend910b")
KEYS = {"size", "silicon", "vendor_plan", "roofline", "least_requested_bytes", "compulsory_bytes", "untuned", "tuned"}


@pytest.mark.parametrize("size", [size for size in SILICON if size not in DERIVED_FROM] + list(DERIVED_FROM))
def test_its_cycles_are_those_of_silicon(size: int) -> None:
    timed, silicon = time_program(vendor_program(PART, size, size, size), PART), SILICON[size]
    assert timed["cycles"] == pytest.approx(silicon.cycles, rel=0.1)
    assert list(timed["busy"].values()) == pytest.approx(silicon.busy, abs=10)
    blocks = 2 * size * size * size // (128 * 256) * (128 + 256)  # bytes of A and B that 128 x 256 blocks load
    assert timed["requested_bytes"] == blocks + 4 * size * size
    assert 4 * size * size <= timed["hbm_bytes"] + timed["dirty_bytes"] <= timed["requested_bytes"]


@pytest.mark.slow
def test_derived_values_follow_from_two_sizes() -> None:
    given = {"matrix.startup_cycles": (13, 1), "paths.L1->L0*.startup_cycles": (46, 1), "launch_cycles": (13_800, 100)}
    given |= {f"paths.{path}.bytes_per_cycle": (rate, 1) for path, rate in (("DDR->L1", 96), ("L0C->DDR", 72))}
    derived = derive(PART)
    assert derived.keys() == given.keys()
    for key, (value, grain) in given.items():
        names = [name for name in PART.values if name == key or ("*" in key and name.startswith(key.split("*")[0]) and "startup" in name)]
        assert names
        for name in names:
            assert PART.values[name] == value
            assert PART.origins[name].kind == "derived"
        assert abs(derived[key] - value) <= grain / 2 + 1e-9


def test_its_values_are_right() -> None:
    m, k, n = 512, 512, 1536
    program = vendor_program(PART, m, k, n)
    assert sanitize_program(program, PART) == ()
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-4, 5, shape).astype(np.float16) for shape in ((m, k), (n, k)))
    ddr = np.zeros(program.memory.size_blocks * BLOCK_BYTES, np.uint8)
    ddr[: b.nbytes] = np.ascontiguousarray(b.reshape(n // 16, 16, k // 16, 16).transpose(0, 2, 1, 3)).view(np.uint8).reshape(-1)
    (x,), (y,) = program.memory.of_kind("input"), program.memory.of_kind("output")
    load_input(ddr, x, a.astype(np.float32), DataType.float16)
    counters = execute(program, PART, ddr)
    np.testing.assert_array_equal(read_output(ddr, y, DataType.float32).reshape(m, n), a.astype(np.float32) @ b.astype(np.float32).T)
    assert counters.ddr_write_bytes == 4 * m * n


@pytest.mark.parametrize(("sizes", "why"), [((500, 512, 1536), "m: 500"), ((512, 300, 1536), "k: 300"), ((512, 512, 1000), "n: 1000")])
def test_other_sizes_are_refused(sizes: tuple[int, int, int], why: str) -> None:
    with pytest.raises(BadInputError, match=f"{why}; accepted: multiples of"):
        vendor_program(PART, *sizes)


@settings(max_examples=20)
@given(st.tuples(*[st.integers(1, 6)] * 3))
def test_vendor_blocks_request_no_less(factors: tuple[int, int, int]) -> None:
    m, k, n = (factor * side for factor, side in zip(factors, (GRID[0] * BLOCK_M, L0_K, GRID[1] * BLOCK_N), strict=True))
    least = least_requested_bytes(PART, m, k, n)
    assert compulsory_bytes(m, k, n) <= least <= 2 * (m * k * (n // BLOCK_N) + n * k * (m // BLOCK_M) + m * n)


def test_the_least_on_paper() -> None:
    """One row of blocks on 24 cores: each column of the constant comes once, x to each core."""
    assert least_requested_bytes(PART, 16, 4096, 4096) == 2 * (24 * 16 * 4096 + 4096 * 4096 + 16 * 4096)


def test_the_roofline_is_of_achieved_rates() -> None:
    size = max(DERIVED_FROM)
    assert roofline(PART, size, size, size) == pytest.approx(SILICON[size].cycles, rel=1e-3)
    for other, silicon in SILICON.items():
        assert roofline(PART, other, other, other) <= 1.01 * silicon.cycles
    of_hbm = PART.launch_cycles + compulsory_bytes(16, 4096, 4096) / float(PART.ddr.deliverable)
    assert roofline(PART, 16, 4096, 4096) == pytest.approx(of_hbm)


@pytest.mark.parametrize("size", ["1000", "16x16", "16x0x16", "16x-1x16", "x"])
def test_bad_sizes(size: str) -> None:
    with pytest.raises(BadInputError, match=f"--sizes: {size}; accepted: 1536, 3072, 6144, 7680, or m x k x n"):
        main(sizes=size)


def test_an_object_per_size(tmp_path) -> None:
    done = run_script("compare_gemm", "--sizes", "1536,100x64x200", "--untuned", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    row, other = map(json.loads, done.stdout.splitlines())
    assert row.keys() == other.keys() == KEYS
    assert row["silicon"]["cycles"] == SILICON[1536].cycles
    for timed in row["vendor_plan"].values():
        assert timed["busy"].keys() == SHARES.keys()
    cold, warm = row["vendor_plan"]["cold"], row["vendor_plan"]["warm"]
    assert cold["hbm_bytes"] > 10 * warm["hbm_bytes"]
    assert cold["cycles"] > warm["cycles"]
    assert other["size"] == "100x64x200"
    assert other["silicon"] is other["vendor_plan"] is other["tuned"] is None
    assert other["untuned"]["requested_bytes"] >= other["compulsory_bytes"]
