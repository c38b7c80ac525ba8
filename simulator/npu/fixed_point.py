"""Fixed-point scaling of int32 sums by float32 scales in FIXPIPE, for machines without floats: a product with two roundings.

It is `MultiplyByQuantizedMultiplier` of TFLite and gemmlowp, the rounding mode TFL of Arm's Ethos-U.  A float32 scale is exactly a
31-bit fixed-point multiplier and a power of two, so records and scales are those of other machines.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

POINT = 31  # bits of the multiplier
_LEAST, _MOST = -(2**31), 2**31 - 1


def scale_fixed_point(sums: NDArray[np.int32], scale: NDArray[np.float32]) -> NDArray[Any]:
    """int64: sums * scale.  Shapes broadcast.

    The product is rounded at the point, halves up; then it is divided by the power of two, halves away from zero.  A power above 1
    multiplies the sum first, with saturation.  Scales below 2^-32 count as 0, and so do infinite ones and NaN.
    """
    mantissa, power = np.frexp(np.where(np.isfinite(scale), scale, np.float32(0)))
    factor = np.where(power < -POINT, 0, np.ldexp(mantissa.astype(np.float64), POINT)).astype(np.int64)
    left_shift, right_shift = np.clip(power, 0, POINT).astype(np.int64), np.clip(-power, 0, POINT).astype(np.int64)
    wide = np.clip(sums.astype(np.int64) << left_shift, _LEAST, _MOST)
    high = (wide * factor + (1 << POINT - 1)) >> POINT
    # right shift of -h.5 rounds up; one less makes it round down
    half = (np.int64(1) << right_shift) >> 1
    return np.asarray((high + half - ((high < 0) & (right_shift > 0))) >> right_shift)
