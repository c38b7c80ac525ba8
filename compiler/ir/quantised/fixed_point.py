"""Requantisation of int32 sums in fixed point: TFLite's arithmetic, for machines without floats after their products.

The reference of such machines is these formulas, not onnxruntime with a tolerance of one step, which would accept a wrong rounding.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from compiler.ir.quantised.parameters import SUMS, Floats, Integers, Quantisation
from compiler.ir.quantised.rounding import saturate

Wide = NDArray[np.int64]
_INT32 = np.iinfo(np.int32)
_BITS = 31  # fraction bits of a multiplier


def requantize(sums: NDArray[np.int32], scale: Floats, quantisation: Quantisation) -> Integers:
    """Product (`multiply_by_multiplier`) with the `quantize_multiplier` of each scale, plus the zero point, saturated.  scale: broadcasts
    over the sums.

    For a quantisation of int32 the sums are unchanged.
    """
    if quantisation.dtype == SUMS:
        return sums
    _, zero = quantisation.along(sums.ndim)
    return saturate(multiply_by_multiplier(sums.astype(np.int64), *quantize_multiplier(scale)) + zero, quantisation)


def quantize_multiplier(scale: Floats) -> tuple[Wide, Wide]:
    """QuantizeMultiplier: (mantissa m, exponent e), scale = m * 2^(e - 31), m of 31 bits; exact for float32.  Scales below 2^-32 are 0."""
    mantissa, exponent = np.frexp(scale.astype(np.float64))
    significand, power = (mantissa * 2.0**_BITS).astype(np.int64), exponent.astype(np.int64)
    small = power < -_BITS
    return np.where(small, 0, significand), np.where(small, 0, power)


def multiply_by_multiplier(integers: Wide, mantissa: Wide, exponent: Wide) -> Wide:
    """MultiplyByQuantizedMultiplier with two roundings; integers * 2^exponent saturate where the exponent is above 0."""
    shifted = np.clip(integers * 2 ** np.clip(exponent, 0, _BITS), _INT32.min, _INT32.max)
    return rounding_divide(doubling_high_multiply(shifted, mantissa), np.maximum(-exponent, 0))


def doubling_high_multiply(integers: Wide, mantissa: Wide) -> Wide:
    """SaturatingRoundingDoublingHighMul of a positive mantissa: integers * mantissa / 2^31, to the nearest, a half up."""
    product, half = integers * mantissa, 1 << _BITS - 1
    nudged = product + np.where(product >= 0, half, 1 - half)
    return np.sign(nudged) * (np.abs(nudged) // 2**_BITS)


def rounding_divide(integers: Wide, power: Wide) -> Wide:
    """RoundingDivideByPOT: integers / 2^power, to the nearest, a half away from zero."""
    divisor = 2**power
    remainder, threshold = integers % divisor, (divisor - 1) // 2 + (integers < 0)
    return integers // divisor + (remainder > threshold)
