"""Weights without zeros: what runs and masks make of overlaid blocks is what lies in L1 otherwise, byte by byte."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compiler.ir.layout import Placement
from compiler.ir.operators import Conv
from compiler.target.weight_expansion import Overlay, Run, overlay_columns, pack_masks, pack_overlaid
from compiler.target.weights import dense_weights, effective_groups, pack_conv
from simulator.npu.parts import BLOCK_BYTES, FRACTALS, DataType

TYPES = [DataType.float16, DataType.float32, DataType.int8]


def grouped(c_out: int, c_in: int, kernel: int, groups: int) -> Conv:
    rng = np.random.default_rng(0)
    weights = rng.integers(-128, 128, (c_out, c_in // groups, kernel, kernel)).astype(np.float32)
    weights.flat[:2] = -0.0, np.nan  # bytes count, not values
    return Conv("c", "x", "y", weights, np.zeros(c_out, np.float32), groups=groups)


def place(lanes: list[int], c0: int) -> Placement:
    whole = max(16, c0)
    return Placement("s", 0, -(-(max(lanes) + 1) // whole) * whole // c0, tuple(lanes))


def shuffled(channels: int, groups: int) -> list[int]:
    return np.arange(channels).reshape(groups, -1).T.reshape(-1).argsort().tolist()


def expanded(found: Overlay, overlaid: np.ndarray, masks: np.ndarray, groups: int, n1: int) -> np.ndarray:
    """[groups][n1][k1][16] blocks, by the definition."""
    e = found.expansion
    k1 = e.planes * e.taps
    shared, mask = overlaid.reshape(groups, k1, e.overlaid, BLOCK_BYTES), masks.reshape(e.planes, e.masks, BLOCK_BYTES)
    out = np.zeros((groups, n1, k1, 16, BLOCK_BYTES), np.uint8)
    for column, count, s, s_step, m, m_step in e.runs:
        for i in range(count):
            n, j = divmod(column + i, 16)
            out[:, n, :, j] = np.minimum(shared[:, :, s + i * s_step], np.repeat(mask[:, m + i * m_step], e.taps, axis=0))
    return out.reshape(-1)


def check(conv: Conv, x: Placement, y: Placement, dtype: DataType) -> Overlay | None:
    fractal, n = FRACTALS[dtype], y.planes * dtype.lanes
    groups = effective_groups(conv, x, y, dtype, fractal)
    found = overlay_columns(conv, x, y, n, groups, fractal)
    if found is None:
        return None
    e, n1, k1 = found.expansion, n // 16 // groups, x.planes // groups * conv.weights.shape[2] * conv.weights.shape[3]
    values = np.nan_to_num(conv.weights).astype(np.int8) if dtype is DataType.int8 else conv.weights
    overlaid = np.full(groups * k1 * e.overlaid * BLOCK_BYTES, 0xAA, np.uint8)
    pack_overlaid(values, conv, x, y, found, groups, dtype, fractal, overlaid)
    whole = np.full(groups * n1 * k1 * 16 * BLOCK_BYTES, 0xAA, np.uint8)
    pack_conv(dense_weights(values, conv.groups), x, y, n, groups, dtype, fractal, dtype.lanes, whole)
    assert (expanded(found, overlaid, pack_masks(found, dtype), groups, n1) == whole).all()
    assert [run.first for run in e.runs] == np.cumsum([0, *(run.columns for run in e.runs)])[:-1].tolist()
    assert sum(run.columns for run in e.runs) == n1 * 16
    assert (len(overlaid) + e.mask_blocks * BLOCK_BYTES) * 2 <= len(whole)
    return found


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(
    ("c_out", "c_in", "kernel", "groups", "x_order", "y_order"),
    [
        (40, 40, 3, 40, 1, 1),  # the last plane is half full
        (8, 8, 5, 8, 1, 1),  # so is the only one
        (112, 112, 3, 112, 4, 4),  # behind a shuffle
        (136, 136, 1, 4, 1, 1),  # groups of 34 channels
        (136, 136, 1, 4, 4, 1),
        (128, 128, 3, 32, 1, 1),
        (80, 40, 3, 40, 1, 1),  # two channels of the result for each
        (72, 36, 3, 4, 1, 1),
    ],
)
def test_bytes_are_those_of_dense_weights(
    c_out: int, c_in: int, kernel: int, groups: int, x_order: int, y_order: int, dtype: DataType
) -> None:
    conv = grouped(c_out, c_in, kernel, groups)
    assert check(conv, place(shuffled(c_in, x_order), dtype.lanes), place(shuffled(c_out, y_order), dtype.lanes), dtype) is not None


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_bytes_of_any_groups_and_lanes(data: st.DataObject) -> None:
    dtype, groups = data.draw(st.sampled_from(TYPES)), data.draw(st.integers(2, 24))
    c_in, c_out = groups * data.draw(st.integers(1, 9)), groups * data.draw(st.integers(1, 9))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    lanes = [list(range(c)) if data.draw(st.booleans()) else rng.permutation(c + 5)[:c].tolist() for c in (c_in, c_out)]
    check(grouped(c_out, c_in, data.draw(st.sampled_from([1, 3])), groups), *(place(each, dtype.lanes) for each in lanes), dtype)


def test_on_paper() -> None:
    """Depthwise: a block for each tap, masks are an identity.  Two groups of 16: columns 16 apart lie over each other."""
    lanes = place(list(range(32)), 16)
    found = overlay_columns(grouped(32, 32, 3, 32), lanes, lanes, 32, 2, FRACTALS[DataType.float16])
    assert found is not None
    assert found.expansion[:5] == (1, 16, 1, 9, (Run(0, 16, 0, 0, 0, 1),))
    lanes = place(list(range(40)), 16)
    found = overlay_columns(grouped(40, 40, 1, 2), lanes, lanes, 48, 1, FRACTALS[DataType.float16])
    assert found is not None
    assert found.expansion[:4] == (20, 3, 3, 1)
    assert found.expansion.runs == (Run(0, 20, 0, 1, 0, 0), Run(20, 20, 0, 1, 1, 0), Run(40, 8, 0, 0, 2, 0))


def test_none_where_that_saves_little() -> None:
    lanes = place(list(range(64)), 16)
    assert overlay_columns(grouped(64, 64, 1, 1), lanes, lanes, 64, 1, FRACTALS[DataType.float16]) is None
    assert overlay_columns(grouped(64, 64, 1, 2), lanes, lanes, 64, 2, FRACTALS[DataType.float16]) is None  # no zeros
