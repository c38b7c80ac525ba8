"""Factors and shifts of the part for real scales, as TFLite's reference kernels have them.

A factor has 31 bits; values are multiplied by it and shifted right.  Sources: TFLite's `quantization_util.cc`, `kernel_util.cc` and the
`Prepare` functions of its kernels (Apache-2.0), whose steps in float32 and float64 are kept.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

POINT = 31
_ADD_SHIFT = 20
"""Left shift of the operands of an addition of 8 bits."""


class Scaling(NamedTuple):
    """Values are multiplied by `factor` and shifted right by `shift`."""

    factor: int
    shift: int


def quantize_multiplier(scale: float) -> Scaling:
    """QuantizeMultiplier; scales below 2^-32 are 0."""
    fraction, power = math.frexp(scale)
    factor = math.floor(abs(fraction) * (1 << POINT) + 0.5)
    if factor == 1 << POINT:
        factor, power = factor // 2, power + 1
    if power < -POINT or factor == 0:
        return Scaling(0, POINT)
    if power > POINT - 1:
        return Scaling((1 << POINT) - 1, 1)
    return Scaling(factor, POINT - power)


def product_scaling(x: np.float32, w: np.float32, y: np.float32) -> Scaling:
    """Of sums of products with weights: a product and a quotient in float64."""
    return quantize_multiplier(float(x) * float(w) / float(y))


def pair_scaling(a: np.float32, b: np.float32, y: np.float32) -> Scaling:
    """Of a product of two tensors: in float32."""
    return quantize_multiplier(float(np.float32(a * b) / y))


def quotient_scaling(x: np.float32, y: np.float32) -> Scaling:
    """From one scale to another, in float64."""
    return quantize_multiplier(float(x) / float(y))


class SumScaling(NamedTuple):
    """Of a sum of two tensors.  operand: factor and shift of the one of the lesser scale.  result: of the sum.  second: whether it is b."""

    operand: Scaling
    result: Scaling
    second: bool


def sum_scaling(a: np.float32, b: np.float32, y: np.float32) -> SumScaling:
    """Of an addition of 8 bits: operands are shifted left by 20 and scaled to twice the greater scale."""
    twice = 2 * max(float(a), float(b))
    second = float(b) < float(a)
    operand = quantize_multiplier(float(b if second else a) / twice)
    return SumScaling(
        Scaling(operand.factor, operand.shift - _ADD_SHIFT), quantize_multiplier(twice / ((1 << _ADD_SHIFT) * float(y))), second
    )


def mean_scaling(x: np.float32, y: np.float32, count: int) -> Scaling:
    """Of the sum of so many values, for their mean."""
    scaling = quotient_scaling(x, y)
    power = POINT - scaling.shift
    shift = min(count.bit_length() - 1, 32, POINT + power)
    return Scaling((scaling.factor << shift) // count, POINT - power + shift)


def average_scaling(count: int) -> Scaling:
    """Of a sum of raw integers of 8 bits: its quotient by `count`, halves away from zero, with rounding in two steps."""
    bits = (count - 1).bit_length()
    return Scaling(((1 << POINT + bits) + (1 << bits)) // count if count > 1 else 1 << 30, POINT + bits if count > 1 else 30)


_ACTIVATIONS: dict[int, tuple[float | None, float | None]] = {0: (None, None), 1: (0, None), 2: (-1, 1), 3: (0, 6)}
"""Least and greatest real value by the number of a fused activation."""


def activation_bounds(activation: int, scale: np.float32, zero: int, dtype: np.dtype[Any]) -> tuple[int, int] | None:
    """Least and greatest integer of a result; None for an activation that integers do not have."""
    if activation not in _ACTIVATIONS:
        return None
    ends = np.iinfo(dtype)
    low, high = (None if bound is None else zero + round_away(np.float32(bound) / scale) for bound in _ACTIVATIONS[activation])
    return max(ends.min, ends.min if low is None else low), min(ends.max, ends.max if high is None else high)


def round_away(value: float | np.floating) -> int:
    """To the nearest integer, halves away from zero."""
    return int(math.copysign(math.floor(abs(float(value)) + 0.5), float(value)))
