"""Fused multiply-add of float32: one rounding, as in hardware."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]


def fma(left_factor: Floats, right_factor: Floats | np.float32, addend: Floats | np.float32) -> Floats:
    """left_factor * right_factor + addend, rounded once.

    The product of two float32 is exact in float64.  The sum is rounded to odd there; a number rounded to odd with two bits more than
    float32 rounds to float32 as the exact sum does (Boldo and Melquiond, 2008).
    """
    product = np.asarray(left_factor, np.float64) * np.asarray(right_factor, np.float64)
    wide_addend = np.broadcast_to(np.asarray(addend, np.float64), np.broadcast_shapes(product.shape, np.shape(addend)))
    product = np.broadcast_to(product, wide_addend.shape)
    total = product + wide_addend
    with np.errstate(invalid="ignore"):  # infinities have no error
        back = total - product
        error = (product - (total - back)) + (wide_addend - back)
        even = (total.view(np.int64) & 1) == 0
        moved = np.nextafter(total, np.where(error > 0, np.inf, -np.inf))
        odd = np.where((error != 0) & even & np.isfinite(total) & np.isfinite(error), moved, total)
    return odd.astype(np.float32)
