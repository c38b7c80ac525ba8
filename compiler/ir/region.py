"""Regions: which rows of its inputs an operator needs for given rows of its output.

One axis for now, rows: blocks are cut along them and keep the whole width, so that a block of a plane is contiguous.
Halo, block splits, residual branches and recomputation all follow from `demand`, taken backwards with the hull over consumers.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from compiler.ir.graph import Conv, Kernel, Pool, Reflow, Resample

Ints = NDArray[np.int64]


class Rows(NamedTuple):
    """A half-open interval of rows; empty where start >= stop."""

    start: int
    stop: int

    @property
    def size(self) -> int:
        return max(0, self.stop - self.start)

    def hull(self, other: Rows) -> Rows:
        """The smallest interval that holds both; an empty one does not count."""
        if not self.size:
            return other
        if not other.size:
            return self
        return Rows(min(self.start, other.start), max(self.stop, other.stop))


EMPTY = Rows(0, 0)


def _window(kernel: Kernel) -> tuple[int, int, int, int]:
    """Rows of a window, its stride, dilation and padding at the top."""
    if isinstance(kernel, Conv):
        return kernel.weights.shape[2], kernel.stride[0], kernel.dilation[0], kernel.pads[0]
    if isinstance(kernel, Pool):
        return kernel.kernel[0], kernel.stride[0], 1, kernel.pads[0]
    return 1, 1, 1, 0


def has_halo(kernel: Kernel) -> bool:
    """Whether neighbouring output rows need some of the same input rows."""
    if isinstance(kernel, Resample):
        bounds = kernel.rows.bounds
        return bool((bounds[1:, 0] < bounds[:-1, 1]).any())
    size, stride, dilation, _ = _window(kernel)
    return (size - 1) * dilation + 1 > stride


def demand(kernel: Kernel, out: Rows, in_height: int) -> Rows:
    """Rows of the main input that output rows `out` need, clipped to the tensor: [a*s - p, (b-1)*s - p + (k-1)*d + 1)."""
    bounds = kernel.rows.bounds if isinstance(kernel, Resample) else _NO_BOUNDS
    return Rows(*demanded(np.array(reach(kernel, in_height), np.int64), bounds, out.start, out.stop))


_WINDOW, _REFLOW, _RESAMPLE = range(3)
_NO_BOUNDS = np.zeros((0, 2), np.int64)


def reach(kernel: Kernel, in_height: int, first: int = 0) -> tuple[int, ...]:
    """What `demanded` needs of a kernel: six numbers.  first: where a Resample's bounds begin in a table of several kernels'."""
    if isinstance(kernel, Reflow):
        return (_REFLOW, kernel.of[0], kernel.of[1], kernel.size[1], kernel.before, 0)
    if isinstance(kernel, Resample):
        return (_RESAMPLE, in_height, first, 0, 0, 0)
    return (_WINDOW, in_height, *_window(kernel))


@njit(cache=True)
def demanded(reach: Ints, bounds: Ints, start: int, stop: int) -> tuple[int, int]:
    """`demand` in kernels: (start, stop) of the rows of the main input that output rows [start, stop) need."""
    if stop <= start:
        return 0, 0
    height = reach[1]
    if reach[0] == _RESAMPLE:
        first, last = bounds[reach[2] + start, 0], bounds[reach[2] + start, 1]
        for i in range(reach[2] + start, reach[2] + stop):
            first, last = min(first, bounds[i, 0]), max(last, bounds[i, 1])
        if first < last:
            return first, last
        return 0, 1  # all of it is filled: still a row, so that there is one to name
    if reach[0] == _REFLOW:
        # rows that hold the pixels of rows of the result
        width, columns, before = reach[2], reach[3], reach[4]
        first, last = max(0, start * columns - before) // width, -((before - stop * columns) // width)
    else:
        size, stride, dilation, pad = reach[2], reach[3], reach[4], reach[5]
        first, last = max(0, start * stride - pad), (stop - 1) * stride - pad + (size - 1) * dilation + 1
    # what lies wholly outside still names the nearest row, so that there is something to read
    first = min(first, height - 1)
    return first, max(first + 1, min(height, last))
