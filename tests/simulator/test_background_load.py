"""Traces from files, with everything that a file can have wrong, and from generators."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.background_load import DWELL, GENERATORS, PortLoad, generate_trace, read_trace
from simulator.ddr import ContentionTrace
from simulator.npu.errors import BadInputError
from simulator.npu.level import SHARE_UNIT

FULL, HALF, QUARTER = SHARE_UNIT, SHARE_UNIT // 2, SHARE_UNIT // 4
LOAD = PortLoad((HALF, FULL, QUARTER), 1000, 500)


def csv_file(folder: Path, text: str) -> Path:
    path = folder / "load.csv"
    path.write_text(text, encoding="utf-8", newline="")
    return path


def parquet_file(folder: Path, **columns: pa.Array | list[float] | list[int]) -> Path:
    path = folder / "load.parquet"
    pq.write_table(pa.table(columns), path)
    return path


@pytest.mark.parametrize("text", ["cycle,share\n0,1\n100,0.5\n200,.25\n", "\ufeffcycle, share\r\n0, 1.0\r\n100,5e-1\r\n200,0.25"])
def test_a_csv_file(tmp_path: Path, text: str) -> None:
    assert read_trace(csv_file(tmp_path, text)) == ContentionTrace.of([(0, FULL), (100, HALF), (200, QUARTER)])


@pytest.mark.parametrize("cycle", [pa.int64(), pa.int16(), pa.uint64()])
@pytest.mark.parametrize("share", [pa.float64(), pa.float32()])
def test_a_parquet_file(tmp_path: Path, cycle: pa.DataType, share: pa.DataType) -> None:
    path = parquet_file(tmp_path, share=pa.array([1.0, 0.25], share), cycle=pa.array([0, 100], cycle))
    assert read_trace(path) == ContentionTrace.of([(0, FULL), (100, QUARTER)])


@pytest.mark.parametrize(
    ("rows", "line", "found", "accepted"),
    [
        ("5,1", 2, "cycle 5 leaves a gap", "0 in the first row"),
        ("0,1\n10,.5\n9,1", 4, "cycle 9 after 10", "cycles that ascend"),
        ("0,1\n10,.5\n10,1", 4, "cycle 10 after 10", "cycles that ascend"),
        ("0,1\n-3,.5", 3, "cycle '-3'", "a whole number from 0"),
        ("0,1\n1.5,.5", 3, "cycle '1.5'", "a whole number from 0"),
        ("0,1\n" + "9" * 5000 + ",.5", 3, "cycle '999", "a whole number from 0"),
        ("0,1\n2000000000000000,.5", 3, "cycle 2000000000000000", "a whole number from 0 to 1125899906842624"),
        ("0,1\n٣,.5", 3, "cycle '٣'", "a whole number from 0"),
        ("0,0", 2, "share '0'", "a share of the DDR bandwidth from 1/65536, the least that the clock can tell, to 1"),
        ("0,1e-9", 2, "share '1e-9'", "a share of the DDR bandwidth from 1/65536, the least that the clock can tell, to 1"),
        ("0,1.5e-5", 2, "share '1.5e-5'", "a share of the DDR bandwidth from 1/65536, the least that the clock can tell, to 1"),
        ("0,-0.5", 2, "share '-0.5'", "a share of the DDR bandwidth from 1/65536, the least that the clock can tell, to 1"),
        ("0,1\n10,1.01", 3, "share '1.01'", "a share of the DDR bandwidth from 1/65536, the least that the clock can tell, to 1"),
        ("0,1\n10,nan", 3, "share 'nan'", "a share of the DDR bandwidth from 1/65536, the least that the clock can tell, to 1"),
        ("0,inf", 2, "share 'inf'", "a share of the DDR bandwidth from 1/65536, the least that the clock can tell, to 1"),
        ("0,half", 2, "share 'half'", "a share of the DDR bandwidth from 1/65536, the least that the clock can tell, to 1"),
        ("0,", 2, "share ''", "a share of the DDR bandwidth from 1/65536, the least that the clock can tell, to 1"),
        ("0", 2, "'0' has 1 values", "cycle,share"),
        ("0,1,2", 2, "'0,1,2' has 3 values", "cycle,share"),
        ("0,1\n\n10,.5", 3, "'' has 0 values", "cycle,share"),
    ],
)
def test_bad_row_has_its_line_and_value(tmp_path: Path, rows: str, line: int, found: str, accepted: str) -> None:
    path = csv_file(tmp_path, f"cycle,share\n{rows}\n")
    with pytest.raises(BadInputError) as error:
        read_trace(path)
    text = str(error.value)
    assert text.startswith(f"{path}:{line}: {found}")
    assert f"accepted: {accepted}" in text
    assert "\n" not in text
    assert len(text) < len(str(path)) + 200


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", ":1: ''; accepted: the header cycle,share"),
        ("0,1\n", ":1: '0,1'; accepted: the header cycle,share"),
        ("cycle,share\n", ": no rows; accepted: at least one row"),
        ('cycle,share\n0,"1', ": cannot be read: unexpected end of data"),
    ],
)
def test_a_file_without_a_trace(tmp_path: Path, text: str, found: str) -> None:
    path = csv_file(tmp_path, text)
    with pytest.raises(BadInputError) as error:
        read_trace(path)
    assert str(error.value).startswith(f"{path}{found}")


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "bytes.csv").write_bytes(b"cycle,share\n0,\xff\n")
    (tmp_path / "text.parquet").write_text("cycle,share\n0,1\n")
    for name in ("bytes.csv", "text.parquet", "missing.csv", "missing.parquet"):
        with pytest.raises(BadInputError, match="cannot be read") as error:
            read_trace(tmp_path / name)
        assert name in str(error.value)


@pytest.mark.parametrize(
    ("columns", "found"),
    [
        ({"cycle": [0, 10], "share": [1.0, float("nan")]}, "row 2: share nan"),
        ({"cycle": [0, None], "share": [1.0, 0.5]}, "row 2: cycle None"),
        ({"cycle": [0, 5], "share": [1.0, None]}, "row 2: share None"),
        ({"cycle": [7], "share": [1.0]}, "row 1: cycle 7 leaves a gap"),
        ({"cycle": [0], "share": ["x"]}, "row 1: share 'x'"),
        ({"cycle": [0.0], "share": [1.0]}, "column cycle is double; accepted: an integer type"),
        ({"time": [0], "share": [1.0]}, "columns time, share; accepted: cycle (integer) and share (number)"),
        ({"cycle": [0], "sh\nare": [1.0]}, "columns cycle, sh are; accepted"),
        ({"cycle": pa.array([], pa.int64()), "share": pa.array([], pa.float64())}, "no rows"),
    ],
)
def test_bad_parquet(tmp_path: Path, columns: dict[str, list[float]], found: str) -> None:
    path = parquet_file(tmp_path, **columns)
    with pytest.raises(BadInputError) as error:
        read_trace(path)
    assert str(error.value).startswith(f"{path}: {found}")


@given(st.lists(st.tuples(st.integers(1, 1 << 30), st.integers(1, SHARE_UNIT)), min_size=1, max_size=20))
def test_written_traces_read_the_same(tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[int, int]]) -> None:
    cycles = [0]
    for gap, _ in steps[1:]:
        cycles.append(cycles[-1] + gap)
    trace = ContentionTrace(tuple(cycles), tuple(share for _, share in steps))
    # 17 digits and 1/65536 are exact
    rows = [f"{cycle},{share / SHARE_UNIT!r}\n" for cycle, share in zip(trace.cycles, trace.share_units, strict=True)]
    assert read_trace(csv_file(tmp_path_factory.mktemp("trace"), "cycle,share\n" + "".join(rows))) == trace


@pytest.mark.parametrize("kind", GENERATORS)
def test_a_seed_fixes_the_trace(kind: str) -> None:
    assert generate_trace(kind, 3, LOAD) == generate_trace(kind, 3, LOAD)
    assert len({generate_trace(kind, seed, LOAD) for seed in range(5)}) > 1
    trace = generate_trace(kind, 3, LOAD)
    assert trace.cycles[-1] < LOAD.inferences * LOAD.inference_cycles
    assert all(QUARTER <= share <= FULL for share in trace.share_units)
    assert all(a != b for a, b in pairwise(trace.share_units))


@pytest.mark.parametrize("kind", ["step", "periodic", "bursty"])
@pytest.mark.parametrize("seed", range(5))
def test_shares_are_held_for_the_dwell(kind: str, seed: int) -> None:
    trace = generate_trace(kind, seed, LOAD)
    assert min(b - a for a, b in pairwise(trace.cycles)) >= DWELL * LOAD.inference_cycles - 1


def test_step_shows_every_share_once() -> None:
    orders = {generate_trace("step", seed, LOAD).share_units for seed in range(20)}
    assert all(sorted(order) == [QUARTER, HALF, FULL] for order in orders)
    assert len(orders) > 3


def test_periodic_goes_from_light_to_heavy_and_back() -> None:
    trace = generate_trace("periodic", 1, LOAD)
    assert len({b - a for a, b in pairwise(trace.cycles)}) == 1
    at = trace.share_units.index(FULL)
    circle = [FULL, HALF, QUARTER, HALF] * 4
    assert list(trace.share_units[at:]) == circle[: len(trace.share_units) - at]


def test_bursty_returns_to_the_lightest_load() -> None:
    trace = generate_trace("bursty", 1, LOAD)
    assert set(trace.share_units[::2]) == {FULL}
    assert all(QUARTER <= share < FULL for share in trace.share_units[1::2])


def test_the_adversary_changes_about_every_inference() -> None:
    trace = generate_trace("adversarial", 1, LOAD)
    assert set(trace.share_units) == {FULL, QUARTER}
    for (a, b), share in zip(pairwise(trace.cycles), trace.share_units, strict=False):
        length = LOAD.inference_cycles * QUARTER / share
        assert 0.25 * length - 1 <= b - a <= 2 * length + 1


@pytest.mark.parametrize("kind", GENERATORS)
def test_one_share_is_a_level(kind: str) -> None:
    assert generate_trace(kind, 0, PortLoad((HALF, HALF), 10, 10)) == ContentionTrace.constant(HALF)


def test_a_short_step_still_shows_every_share() -> None:
    assert len(generate_trace("step", 0, PortLoad((FULL, HALF, QUARTER), 10, 6)).cycles) == 3


def test_what_no_generator_takes() -> None:
    with pytest.raises(BadInputError, match="accepted: step, periodic, bursty, adversarial"):
        generate_trace("sawtooth", 0, LOAD)
    with pytest.raises(BadInputError, match="seed -1"):
        generate_trace("step", -1, LOAD)
    for shares, cycles, inferences in (
        ((), 1, 1),
        ((0,), 1, 1),
        ((FULL + 1,), 1, 1),
        ((FULL,), 0, 1),
        ((FULL,), 1, 0),
        ((FULL,), 1 << 50, 2),
    ):
        with pytest.raises(BadInputError, match="accepted"):
            PortLoad(shares, cycles, inferences)
