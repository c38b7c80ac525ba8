"""Rows that output rows need, on paper: [a*s - p, (b-1)*s - p + (k-1)*d + 1), clipped."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compiler.ir.operators import Conv, Vector, window_size
from compiler.ir.region import EMPTY, Rows, demand
from tests.graphs import max_pool


def conv(kernel: int, stride: int, dilation: int, pad: int) -> Conv:
    return Conv(
        "c", "x", "y", np.zeros((1, 1, kernel, 1), np.float32), np.zeros(1, np.float32), (stride, 1), (dilation, 1), (pad, 0, pad, 0)
    )


@pytest.mark.parametrize(
    ("kernel", "stride", "dilation", "pad", "out", "height", "expected"),
    [
        (3, 1, 1, 1, (0, 4), 8, (0, 5)),  # -1 .. 5, the first row is padding
        (3, 1, 1, 1, (4, 8), 8, (3, 8)),  # 3 .. 9
        (3, 2, 1, 1, (2, 5), 20, (3, 10)),  # 2*2-1 = 3 .. 4*2-1+3 = 10
        (3, 1, 2, 2, (0, 2), 9, (0, 4)),  # -2 .. 1-2+4+1 = 4
        (1, 2, 1, 0, (1, 3), 6, (2, 5)),  # rows 2 and 4; the row between comes along
        (7, 1, 1, 0, (0, 1), 7, (0, 7)),  # a kernel as large as the image
        (2, 1, 1, 3, (0, 1), 4, (0, 1)),  # wholly above the image: one row, so that there is something to read
        (2, 1, 1, 3, (7, 9), 4, (3, 4)),  # wholly below it
    ],
)
def test_convolution(
    kernel: int, stride: int, dilation: int, pad: int, out: tuple[int, int], height: int, expected: tuple[int, int]
) -> None:
    assert demand(conv(kernel, stride, dilation, pad), Rows(*out), height) == expected


def test_pool_and_elementwise() -> None:
    assert demand(max_pool("y", "x", 3, 2, 1), Rows(1, 3), 9) == (1, 6)
    assert demand(Vector("v", ("x",), "y", ()), Rows(2, 5), 9) == (2, 5)
    assert demand(conv(3, 1, 1, 1), EMPTY, 9) == EMPTY


def test_hull_ignores_what_is_empty() -> None:
    assert Rows(2, 4).hull(Rows(7, 9)) == (2, 9)
    assert Rows(2, 4).hull(EMPTY) == (2, 4)
    assert Rows(5, 3).hull(Rows(7, 9)) == (7, 9)


@given(st.integers(1, 5), st.integers(1, 3), st.integers(1, 3), st.integers(0, 5), st.integers(1, 24), st.data())
def test_every_row_that_a_tap_reads(kernel: int, stride: int, dilation: int, pad: int, height: int, data: st.DataObject) -> None:
    rows = window_size(height, kernel, stride, dilation, pad, pad)
    if rows < 1:
        return
    start = data.draw(st.integers(0, rows - 1))
    out = Rows(start, data.draw(st.integers(start + 1, rows)))
    taps = {y * stride - pad + t * dilation for y in range(out.start, out.stop) for t in range(kernel)}
    inside = sorted(t for t in taps if 0 <= t < height)
    found = demand(conv(kernel, stride, dilation, pad), out, height)
    assert 0 <= found.start < found.stop <= height
    if inside:
        assert found.start <= inside[0]
        assert found.stop > inside[-1]
        assert (found.start, found.stop) == (max(0, min(taps)), min(height, max(taps) + 1))
