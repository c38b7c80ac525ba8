"""Operators of one quantised tensor as tables of 256 integers, and softmax by a table of exponentials."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from compiler.ir.quantised.linear import dequantize, quantize
from compiler.ir.quantised.parameters import Floats, Integers, Quantisation
from compiler.ir.quantised.rounding import INDEFINITE, saturate, to_int32
from simulator.npu.fused import fma

Function = Callable[[Floats], Floats]

# numerator and denominator of the logistic function in x^2, highest power first; Eigen's, as MLAS has them
_ALPHA = (4.37031012579801e-11, 1.15627324459942e-07, 6.08574864600143e-05, 8.51377133304701e-03, 2.48287947061529e-01)
_BETA = (6.10247389755681e-13, 5.76102136993427e-09, 6.29106785017040e-06, 1.70198817374094e-03, 1.16817656904453e-01, 9.93151921023180e-01)
_FAR = np.float32(18)  # beyond it the logistic function is constant


def all_stored_integers(quantisation: Quantisation) -> Integers:
    """All 256 integers of the type, the least first."""
    return integers_of_type(quantisation.dtype)


def integers_of_type(dtype: np.dtype[Any]) -> Integers:
    """All 256 integers of a type of 8 bits, the least first."""
    limits = np.iinfo(dtype)
    return np.arange(limits.min, limits.max + 1).astype(dtype)


def function_table(function: Function, x_q: Quantisation, y_q: Quantisation) -> Integers:
    """quantize(function(dequantize(i))) for every integer i, the least first."""
    x_q.single("x"), y_q.single("y")
    return quantize(function(dequantize(all_stored_integers(x_q), x_q)), y_q)


class Line(NamedTuple):
    """Table of clip(round((i - zero point) * scale / scale of y), low, high).  low, high: counted from the zero point of y."""

    scale: np.float32
    low: int
    high: int


def fit_line(entries: Integers, x_q: Quantisation, y_q: Quantisation) -> Line | None:
    """Line equal to a table in all 256 entries (a new scale, a constant factor, a limit), or None."""
    (scale, zero), (y_scale, y_zero) = x_q.single("x"), y_q.single("y")
    steps = all_stored_integers(x_q).astype(np.float64) - zero
    targets = entries.astype(np.float64) - y_zero
    low, high = float(targets.min()), float(targets.max())
    inner = (targets > low) & (targets < high) & (steps != 0)
    slopes = np.sort((targets[inner] + np.array([[-0.5], [0.5]])) / steps[inner], axis=0)  # bounds of the slopes that round to the entry
    for slope in (scale, *(np.float32((slopes[0].max() + slopes[1].min()) / 2 * y_scale) for _ in range(bool(inner.any())))):
        line_values = np.rint(np.clip(steps.astype(np.float32) * slope / y_scale, np.float32(low), np.float32(high)))
        if np.array_equal(line_values, targets):
            return Line(slope, int(low), int(high))
    return None


def look_up(x: Integers, entries: Integers) -> Integers:
    return np.asarray(entries[x.astype(np.int64) - np.iinfo(x.dtype).min])


def logistic(x: Floats) -> Floats:
    """Logistic function: x * p(x^2) / q(x^2) + 1/2, the polynomials by fused steps, x clipped to +-18, the result to at least 0.

    There is no upper limit, so the result may exceed 1 by one unit in the last place.
    """
    near = np.minimum(np.maximum(x, -_FAR), _FAR)
    square = near * near
    p, q = (_polynomial(square, factors) for factors in (_ALPHA, _BETA))
    return np.maximum(near * p / q + np.float32(0.5), np.float32(0))


def _polynomial(x: Floats, factors: Sequence[float]) -> Floats:
    total = np.full_like(x, np.float32(factors[0]))
    for factor in factors[1:]:
        total = fma(total, x, np.float32(factor))
    return total


def leaky_relu_floats(x: Floats, alpha: float) -> Floats:
    return np.where(x >= 0, x, np.float32(alpha) * x)


def sigmoid(x: Integers, x_q: Quantisation, y_q: Quantisation) -> Integers:
    """QLinearSigmoid."""
    return look_up(x, function_table(logistic, x_q, y_q))


def leaky_relu(x: Integers, x_q: Quantisation, y_q: Quantisation, alpha: float = 0.01) -> Integers:
    """QLinearLeakyRelu."""
    return look_up(x, function_table(partial(leaky_relu_floats, alpha=alpha), x_q, y_q))


def requantize_table(x: Integers, x_q: Quantisation, y_q: Quantisation) -> Integers:
    """x in another scale and zero point; unchanged where both are equal."""
    if x_q.single("x") == y_q.single("y") and x_q.dtype == y_q.dtype:
        return x
    return look_up(x, function_table(lambda real: real, x_q, y_q))


def concat(parts: Sequence[tuple[Integers, Quantisation]], y_q: Quantisation, axis: int) -> Integers:
    """QLinearConcat."""
    return np.concatenate([requantize_table(x, q, y_q) for x, q in parts], axis)


def softmax(x: Integers, x_q: Quantisation, y_q: Quantisation, axis: int) -> Integers:
    """QLinearSoftmax along one axis: exponentials of a table, added in order, (e * floor(1 / sy)) / sum, rounded, plus zy, saturated.

    A product beyond float32, as with one value and a scale below 1 / 148, becomes the conversion of infinity: 0 for uint8, the least int32
    for int8, and the sum with zy wraps.
    """
    (sx, _), (sy, zy) = x_q.single("x"), y_q.single("y")
    rows = np.moveaxis(x.astype(np.int64), axis, -1)
    exponential_values = exponentials(float(sx), rows.shape[-1])[rows - rows.max(axis=-1, keepdims=True) + 255]
    total = np.zeros(rows.shape[:-1], np.float32)
    for i in range(rows.shape[-1]):
        total = total + exponential_values[..., i]
    with np.errstate(over="ignore"):
        quotients = to_int32(exponential_values * np.floor(np.float32(1) / sy) / total[..., None])
    quotients = np.where(quotients == INDEFINITE, 0, quotients) if y_q.dtype == np.uint8 else quotients
    return np.moveaxis(saturate((quotients + zy).astype(np.int32), y_q), -1, axis)


def exponentials(scale: float, length: int) -> Floats:
    """Table exp((i - 255) * scale), times a factor that keeps sums of `length` entries far from the ends of float32."""
    max_term = np.float32(np.finfo(np.float32).max) / np.float32(length)
    shift = max(0.0, float(np.float32(math.log(max_term))) - 5) / scale  # LOGF: in float32
    return np.array([math.exp((i - 255 + shift) * scale) for i in range(256)], np.float32)
