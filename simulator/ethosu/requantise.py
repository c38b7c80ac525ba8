"""Scaling of sums by a factor and a right shift, in the three rounding modes of the part.

`DOUBLE` rounds as `MultiplyByQuantizedMultiplier` of TFLite does: halves up at bit 31, then halves away from zero.  `TRUNCATE` rounds
toward zero, `NATURAL` halves up.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

DOUBLE, TRUNCATE, NATURAL = 0, 1, 2
_FIRST_ROUNDING_BIT = 31  # of `DOUBLE`: the shift of its first rounding; what is left of the shift comes second
_LARGEST = 1 << 62


def requantise(sums: NDArray[np.int64], factor: NDArray[np.int64] | int, shift: NDArray[np.int64] | int, mode: int) -> NDArray[np.int64]:
    """sums * factor / 2^shift, rounded, int64; shapes broadcast.  factor: not negative.

    If a product may exceed 62 bits, Python integers are used, and the result is clipped to +-2^62, which is beyond every tensor type.
    """
    factor, shift = np.asarray(factor, np.int64), np.asarray(shift, np.int64)
    largest = int(np.abs(sums).max(initial=0)) * int(factor.max(initial=0))
    if largest >= _LARGEST:
        wide = _rounded(sums.astype(object) * factor.astype(object), shift, mode)
        return np.clip(wide, -_LARGEST, _LARGEST).astype(np.int64)
    return np.asarray(_rounded(sums * factor, shift, mode), np.int64)


def _rounded(product: NDArray[Any], shift: NDArray[np.int64], mode: int) -> NDArray[Any]:
    if mode == TRUNCATE:
        return np.where(product < 0, -(-product >> shift), product >> shift)
    if mode == NATURAL:
        return _half_up(product, shift)
    high = _half_up(product, np.minimum(shift, _FIRST_ROUNDING_BIT))
    beyond = np.maximum(shift - _FIRST_ROUNDING_BIT, 0)
    half = (np.int64(1) << beyond) >> 1
    # half up, but 1 less for negative numbers, so that their halves go down; without a further shift nothing is rounded
    return (high + half - ((high < 0) & (beyond > 0))) >> beyond


def _half_up(product: NDArray[Any], shift: NDArray[np.int64]) -> NDArray[Any]:
    half = np.where(shift > 0, np.int64(1) << np.maximum(shift - 1, 0), 0)  # 1 << 63 would be negative
    return (product + half) >> shift
