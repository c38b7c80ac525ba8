"""Receptive fields: rows (or columns) of the main input that rows of the result need, as six numbers for kernels.

| form   | numbers after it                              | rows that result rows [a, b) need, clipped to the input               |
|--------|-----------------------------------------------|-----------------------------------------------------------------------|
| WINDOW | rows, size, stride, dilation, pad             | [a * stride - pad, (b - 1) * stride - pad + (size - 1) * dilation + 1) |
| RATIO  | rows, divisor, factor, before                 | [(a * factor - before) / divisor, (b * factor - before) / divisor)     |
| LISTED | rows, index of its first row in bounds        | the hull of their bounds                                               |
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

Ints = NDArray[np.int64]
WINDOW, RATIO, LISTED = range(3)  # forms
FORM, HEIGHT = range(2)  # columns; HEIGHT: all rows
SIZE, STRIDE, DILATION, PAD = range(2, 6)  # further columns of WINDOW
DIVISOR, FACTOR, BEFORE = range(2, 5)  # of RATIO
FIRST_BOUNDS = 2  # of LISTED
NO_BOUNDS = np.zeros((0, 2), np.int64)


@njit(cache=True)
def demanded(reach: Ints, bounds: Ints, start: int, stop: int) -> tuple[int, int]:
    """(start, stop) of the rows of the main input that output rows [start, stop) need."""
    if stop <= start:
        return 0, 0
    height = reach[HEIGHT]
    if reach[FORM] == LISTED:
        row = reach[FIRST_BOUNDS]
        first, last = bounds[row + start, 0], bounds[row + start, 1]
        for i in range(row + start, row + stop):
            first, last = min(first, bounds[i, 0]), max(last, bounds[i, 1])
        if first < last:
            return first, last
        return 0, 1  # only fill values: a row is kept, so that the interval is not empty
    if reach[FORM] == RATIO:
        divisor, factor, before = reach[DIVISOR], reach[FACTOR], reach[BEFORE]
        first, last = max(0, start * factor - before) // divisor, -((before - stop * factor) // divisor)
    else:
        size, stride, dilation, pad = reach[SIZE], reach[STRIDE], reach[DILATION], reach[PAD]
        first, last = max(0, start * stride - pad), (stop - 1) * stride - pad + (size - 1) * dilation + 1
    # an interval wholly outside becomes the nearest row, so that it is not empty
    first = min(first, height - 1)
    return first, max(first + 1, min(height, last))
