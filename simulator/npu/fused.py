"""A multiply-add of float32 that is rounded once, as hardware does it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]


def fma(a: Floats, b: Floats | np.float32, c: Floats | np.float32) -> Floats:
    """a * b + c, rounded once.

    The product of two float32 is exact in float64.  The sum is rounded there to odd, and what is rounded to odd with two bits more than
    float32 has rounds to float32 as the exact sum does (Boldo and Melquiond, 2008).
    """
    product = np.asarray(a, np.float64) * np.asarray(b, np.float64)
    other = np.broadcast_to(np.asarray(c, np.float64), np.broadcast_shapes(product.shape, np.shape(c)))
    product = np.broadcast_to(product, other.shape)
    total = product + other
    with np.errstate(invalid="ignore"):  # infinities have no error
        back = total - product
        error = (product - (total - back)) + (other - back)
        even = (total.view(np.int64) & 1) == 0
        moved = np.nextafter(total, np.where(error > 0, np.inf, -np.inf))
        odd = np.where((error != 0) & even & np.isfinite(total) & np.isfinite(error), moved, total)
    return odd.astype(np.float32)
