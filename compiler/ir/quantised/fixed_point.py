"""int32 sums as int8 in fixed point: TFLite's arithmetic, the reference of machines that have no floats behind their products."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from compiler.ir.quantised.parameters import SUMS, Floats, Integers, Quantisation
from compiler.ir.quantised.rounding import saturated

Wide = NDArray[np.int64]
_INT32 = np.iinfo(np.int32)
_BITS = 31  # of a multiplier, behind the point


def requantize(sums: NDArray[np.int32], scale: Floats, quantisation: Quantisation) -> Integers:
    """`times` by the `multiplier` of each scale, plus the zero point, saturated.  scale: in a shape that broadcasts over the sums.

    Sums that are asked for as int32 are what they are.
    """
    if quantisation.dtype == SUMS:
        return sums
    _, zero = quantisation.along(sums.ndim)
    return saturated(times(sums.astype(np.int64), *multiplier(scale)) + zero, quantisation)


def multiplier(scale: Floats) -> tuple[Wide, Wide]:
    """QuantizeMultiplier: (m, e) with scale = m * 2^(e - 31) and m of 31 bits; no float32 is rounded.  Scales below 2^-32 are 0."""
    mantissa, exponent = np.frexp(scale.astype(np.float64))
    significand, power = (mantissa * 2.0**_BITS).astype(np.int64), exponent.astype(np.int64)
    small = power < -_BITS
    return np.where(small, 0, significand), np.where(small, 0, power)


def times(integers: Wide, mantissa: Wide, exponent: Wide) -> Wide:
    """MultiplyByQuantizedMultiplier with two roundings; x * 2^e saturates where e is above 0."""
    shifted = np.clip(integers * 2 ** np.clip(exponent, 0, _BITS), _INT32.min, _INT32.max)
    return divided(doubled_high(shifted, mantissa), np.maximum(-exponent, 0))


def doubled_high(integers: Wide, mantissa: Wide) -> Wide:
    """SaturatingRoundingDoublingHighMul of b that is positive: a * b / 2^31, to the nearest, a half up."""
    product, half = integers * mantissa, 1 << _BITS - 1
    nudged = product + np.where(product >= 0, half, 1 - half)
    return np.sign(nudged) * (np.abs(nudged) // 2**_BITS)


def divided(integers: Wide, power: Wide) -> Wide:
    """RoundingDivideByPOT: x / 2^power, to the nearest, a half away from zero."""
    divisor = 2**power
    remainder, threshold = integers % divisor, (divisor - 1) // 2 + (integers < 0)
    return integers // divisor + (remainder > threshold)
