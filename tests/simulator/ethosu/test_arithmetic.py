"""Rounding, feature maps and spans, against the same in plain integers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.ethosu.block_operation import Kernel, Result
from simulator.ethosu.convolution import _sums
from simulator.ethosu.feature_map import FeatureMap
from simulator.ethosu.memory_regions import Region, RegionMemory, Span, flat_span
from simulator.ethosu.pending_operations import Accesses, PendingOperations
from simulator.ethosu.requantise import DOUBLE, NATURAL, TRUNCATE, requantise
from simulator.ethosu.stream_error import StreamError


def rounded(value: int, shift: int, mode: int) -> int:
    """value / 2^shift."""
    if mode == TRUNCATE:
        return -(-value >> shift) if value < 0 else value >> shift
    if mode == NATURAL or shift <= 31:
        return value + (1 << shift >> 1) >> shift
    high, rest = value + (1 << 30) >> 31, shift - 31
    return (abs(high) + (1 << rest - 1) >> rest) * (1 if high >= 0 else -1)


@settings(max_examples=150)
@given(
    st.lists(st.one_of(st.integers(-(2**31), 2**31 - 1), st.integers(-(2**39), 2**39 - 1), st.integers(-40, 40)), min_size=1, max_size=5),
    st.one_of(st.integers(0, 2**32 - 1), st.integers(0, 3).map(lambda bits: 2**30 << bits >> 1)), st.integers(0, 63),
    st.sampled_from([DOUBLE, TRUNCATE, NATURAL]),
)  # fmt: skip
def test_scaling_is_that_of_plain_integers(sums, factor, shift, mode):
    expected = [max(-(2**62), min(2**62, rounded(value * factor, shift, mode))) for value in sums]
    assert requantise(np.array(sums), factor, shift, mode).tolist() == expected


def test_ties_of_the_three_modes():
    halves = np.array([-3, -1, 1, 3])  # of 2
    assert requantise(halves, 1 << 31, 32, DOUBLE).tolist() == [-2, -1, 1, 2]
    assert requantise(halves, 1, 1, NATURAL).tolist() == [-1, 0, 1, 2]
    assert requantise(halves, 1, 1, TRUNCATE).tolist() == [-1, 0, 0, 1]
    assert requantise(np.array([-21941]), 1321694465, 38, DOUBLE).tolist() == [-106]  # -105.4988, which is -105.5 at bit 31
    assert requantise(np.array([-21941]), 1321694465, 38, NATURAL).tolist() == [-105]


@st.composite
def maps(draw) -> tuple[FeatureMap, tuple[int, int, int]]:
    rows, columns, channels = draw(st.integers(1, 7)), draw(st.integers(1, 7)), draw(st.integers(1, 40))
    dtype, bricks = np.dtype(draw(st.sampled_from(["u1", "i1", "<i2", "<i4"]))), draw(st.booleans())
    element = dtype.itemsize
    stride_c = 16 * element * (columns + draw(st.integers(0, 1)))
    stride_x = channels * element + element * draw(st.integers(0, 3))
    stride_y = stride_c * (-(-channels // 16)) if bricks else stride_x * columns + element * draw(st.integers(0, 3))
    size = (stride_y * rows + 15) // 16 * 16
    order = draw(st.permutations(range(4)))
    bases = (size * order[0], size * order[1], size * order[2], size * order[3])
    tiles = (draw(st.integers(1, rows + 1)), draw(st.integers(1, rows + 1)), draw(st.integers(1, columns + 1)))
    return FeatureMap(0, bases, *tiles, stride_y, stride_x, stride_c, bricks, dtype, 0), (rows, columns, channels)


def address(fm: FeatureMap, y: int, x: int, c: int) -> int:
    """Of one element, as the driver of the kernel computes it."""
    tile, element = 0, fm.dtype.itemsize
    if x >= fm.columns0:
        x, tile = x - fm.columns0, 1
    rows = (fm.rows0, fm.rows1)[tile]
    if y >= rows:
        y, tile = y - rows, tile + 2
    if fm.bricks:
        return fm.bases[tile] + y * fm.stride_y + c // 16 * fm.stride_c + (16 * x + c % 16) * element
    return fm.bases[tile] + y * fm.stride_y + x * fm.stride_x + c * element


@settings(max_examples=40, deadline=None)
@given(maps(), st.integers(0, 2**32 - 1))
def test_maps_are_read_and_written_element_by_element(drawn, seed):
    fm, (rows, columns, channels) = drawn
    rng = np.random.default_rng(seed)
    data = rng.integers(0, 256, max(fm.bases) + fm.stride_y * rows + 16, np.uint8)
    memory = RegionMemory({0: Region(data.copy(), "sram", 0)})
    element = fm.dtype.itemsize
    places = np.array([[[address(fm, y, x, c) for c in range(channels)] for x in range(columns)] for y in range(rows)])
    octets = places[..., None] + np.arange(element)
    assert np.array_equal(fm.read(memory, rows, columns, channels), data[octets].view(fm.dtype)[..., 0])
    values = rng.integers(0, 100, (rows, columns, channels)).astype(fm.dtype)
    fm.write(memory, values)
    data[octets] = values[..., None].view(np.uint8)
    assert np.array_equal(memory.regions[0].data, data)
    touched = np.zeros(len(data), bool)
    for _, _, span in fm.spans(rows, columns, channels):
        touched[span.low : span.high] |= span._touched(span.low, span.high)
    assert touched.sum() == octets.size
    assert touched[octets].all()


spans = st.builds(
    lambda first, sizes, strides, element: Span(0, first, tuple(sizes), tuple(strides), element), st.integers(0, 40),
    st.lists(st.integers(1, 4), min_size=2, max_size=2), st.lists(st.integers(-9, 9), min_size=2, max_size=2), st.integers(1, 4),
)  # fmt: skip


@settings(max_examples=100)
@given(spans, spans)
def test_spans_overlap_where_they_share_a_byte(one, two):
    def octets(span):
        steps = (span.first + y * span.strides[0] + x * span.strides[1] for y in range(span.sizes[0]) for x in range(span.sizes[1]))
        return {place + octet for place in steps for octet in range(span.element)}

    assert one.overlaps(two) == bool(octets(one) & octets(two))
    assert (one.low, one.high) == (min(octets(one)), max(octets(one)) + 1)
    assert not one.overlaps(two._replace(region=1))


def test_accesses_outside_of_memory_are_refused():
    memory = RegionMemory({3: Region(np.zeros(8, np.uint8), "dram", 1, False)})
    octets = np.dtype(np.uint8)
    for span, writes, message in (
        (flat_span(3, 4, 5), False, "bytes 4 to 9 of region 3: expected 0 to 8"),
        (Span(3, 4, (3,), (-4,), 1), False, "bytes -4 to 5 of region 3: expected 0 to 8"),
        (flat_span(3, 0, 4), True, "bytes 0 to 4 of region 3: are written, and the region is constant"),
        (flat_span(2, 0, 4), False, "region 2: expected one of 3"),
    ):
        with pytest.raises(StreamError) as refused:
            memory.view(span, octets, writes)
        assert str(refused.value) == message
    with pytest.raises(StreamError, match="region 8: expected 0 to 7"):
        RegionMemory({8: Region(np.zeros(8, np.uint8), "dram", 1)})
    with pytest.raises(StreamError, match="region 0: an array of int8 with 1 axes"):
        RegionMemory({0: Region(np.zeros(8, np.int8), "dram", 1)})  # type: ignore[arg-type]


@pytest.mark.parametrize("depth", [60, 4000])
@pytest.mark.parametrize("depthwise", [False, True])
def test_sums_of_large_products_are_exact(depth, depthwise):
    rng = np.random.default_rng(depth)
    outputs = depth if depthwise else 5
    fm = FeatureMap(0, (0, 0, 0, 0), 1, 1, 1, 1, 1, 1, False, np.dtype("i1"), 0)
    result = Result(fm, 2, 3, outputs, 2, 4, 8, False, DOUBLE)
    kernel = Kernel(3, 2, 1, 1, 1, 1, False, 0, 0, 0, 0, 1, False)
    values = rng.integers(-65535, 65536, (4, 4, depth)).astype(np.int32) | 1
    weights = rng.integers(-255, 256, (outputs, 3, 2, 1 if depthwise else depth)).astype(np.int16) | 1
    expected = np.zeros((2, 3, outputs), np.int64)
    for y, x in np.ndindex(2, 3):
        window, taps = values[y : y + 3, x : x + 2].astype(np.int64), weights.astype(np.int64)
        expected[y, x] = (window * taps[..., 0].transpose(1, 2, 0)).sum((0, 1)) if depthwise else (taps * window).sum((1, 2, 3))
    assert np.abs(expected).max() > 1 << 24
    assert np.array_equal(_sums(values, weights, kernel, result, depthwise), expected)


def test_two_copies_may_be_pending():
    def copy(word: int) -> Accesses:
        return Accesses(word, "copy", (flat_span(0, 0, 4),), (flat_span(1, 16 * word, 4),))

    def reader(word: int) -> Accesses:
        return Accesses(9, "operation", (flat_span(1, 16 * word, 4),), ())

    pending = PendingOperations()
    for word in range(3):
        pending.start("copy", copy(word))
    pending.start("operation", reader(0))  # the third copy has waited for the first
    for word in (1, 2):
        with pytest.raises(StreamError, match=f"those of copy in word {word}, which may still run: expected NPU_OP_DMA_WAIT"):
            pending.start("operation", reader(word))
    pending.wait("copy", 1)
    pending.start("operation", reader(1))
    pending.wait("copy", 0)
    pending.start("operation", reader(2))
