"""Regions: which rows, or columns, of its inputs an operator needs for given ones of its output.

Either axis by itself: blocks are cut along rows, and strips of blocks along columns.
Halo, splits, residual branches and recomputation all follow from `demand`, taken backwards with the hull over consumers.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from compiler.ir.graph import Conv, Kernel, Pool, Reflow, Resample

Ints = NDArray[np.int64]


class Rows(NamedTuple):
    """A half-open interval of rows, or of columns; empty where start >= stop."""

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
ROWS, COLUMNS = 0, 1  # axes of an image


def window(kernel: Kernel, axis: int = ROWS) -> tuple[int, int, int, int]:
    """Places of a window along an axis, its stride, dilation and padding in front."""
    if isinstance(kernel, Conv):
        return kernel.weights.shape[2 + axis], kernel.stride[axis], kernel.dilation[axis], kernel.pads[axis]
    if isinstance(kernel, Pool):
        return kernel.kernel[axis], kernel.stride[axis], 1, kernel.pads[axis]
    return 1, 1, 1, 0


def has_halo(kernel: Kernel) -> bool:
    """Whether neighbouring output rows need some of the same input rows."""
    if isinstance(kernel, Resample):
        bounds = kernel.rows.bounds
        return bool((bounds[1:, 0] < bounds[:-1, 1]).any())
    size, stride, dilation, _ = window(kernel)
    return (size - 1) * dilation + 1 > stride


def demand(kernel: Kernel, out: Rows, in_size: int, axis: int = ROWS) -> Rows:
    """Rows (or columns) of the main input that those of the output need, clipped to the tensor: [a*s - p, (b-1)*s - p + (k-1)*d + 1).

    A `Reflow` has no such columns: its rows wrap.
    """
    bounds = (kernel.rows, kernel.columns)[axis].bounds if isinstance(kernel, Resample) else _NO_BOUNDS
    return Rows(*demanded(np.array(reach(kernel, in_size, axis=axis), np.int64), bounds, out.start, out.stop))


def row_bounds(kernel: Kernel) -> Ints:
    """int64 [.., 2], `Taps.bounds` of the rows of an operator that has taps."""
    return kernel.rows.bounds if isinstance(kernel, Resample) else _NO_BOUNDS


_WINDOW, _REFLOW, _RESAMPLE = range(3)
_NO_BOUNDS = np.zeros((0, 2), np.int64)


def reach(kernel: Kernel, in_size: int, first: int = 0, axis: int = ROWS) -> tuple[int, ...]:
    """What `demanded` needs of a kernel: six numbers.  first: where a Resample's bounds begin in a table of several kernels'."""
    if isinstance(kernel, Reflow):
        return (_REFLOW, kernel.of[0], kernel.of[1], kernel.size[1], kernel.before, 0)
    if isinstance(kernel, Resample):
        return (_RESAMPLE, in_size, first, 0, 0, 0)
    return (_WINDOW, in_size, *window(kernel, axis))


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
