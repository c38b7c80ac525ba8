"""Poolings of quantised tensors."""

from __future__ import annotations

import math

import numpy as np

from compiler.ir.quantised.linear import dequantize, requantize
from compiler.ir.quantised.parameters import Integers, Quantisation
from compiler.ir.quantised.products import SlidingWindow
from compiler.ir.quantised.rounding import saturate, to_int32

_NORMAL = 2.0**-60  # far from the ends of float32


def max_pool(x: Integers, window: SlidingWindow) -> Integers:
    """MaxPool: selects integers; padding is the least of the type."""
    rank = len(window.kernel)
    return np.asarray(window.windows_of(x, np.iinfo(x.dtype).min).max(axis=tuple(range(2 + rank, 2 + 2 * rank))))


def average_pool(x: Integers, x_q: Quantisation, y_q: Quantisation, window: SlidingWindow, count_include_pad: bool = False) -> Integers:
    """QLinearAveragePool: sum of real values in float32 in the order of the window, divided by their number and by sy, plus zy, rounded,
    saturated.

    One window over the whole image without padding is `global_average_pool`, as in onnxruntime.
    """
    if window.kernel == x.shape[2:] and not any(window.pads):
        return global_average_pool(x, x_q, y_q)
    rank = len(window.kernel)
    sy, zy = y_q.single("y")
    x_q.single("x")
    windows = window.windows_of(dequantize(x, x_q), 0.0)  # adding 0 changes no sum
    total = np.zeros(windows.shape[: 2 + rank], np.float32)
    for place in np.ndindex(*window.kernel):
        total = total + windows[(..., *place)]
    if count_include_pad:
        count = np.asarray(math.prod(window.kernel))
    else:
        count = window.windows_of(np.ones((1, 1, *x.shape[2:]), np.int64), 0).sum(axis=tuple(range(2 + rank, 2 + 2 * rank)))
    return saturate(to_int32(np.asarray(total / count.astype(np.float32) / sy + np.float32(zy), np.float32)), y_q)


def means_of_sums(x_q: Quantisation, y_q: Quantisation, taps: int, number: int) -> Integers | None:
    """Results of `average_pool` for every sum of `taps` integers, divided by `number`; the first sum is taps * the least integer.

    None where the result is no function of the sum.  float32 products and sums of n values have errors of at most (n + 1) / 2^24 of
    their magnitudes (Higham, "Accuracy and Stability of Numerical Algorithms", 4.2), quotients and the sum with a zero point 1 / 2^24
    each.  Where a tie lies within the error, the integer depends on the order of the summands.
    """
    (sx, zx), (sy, zy) = x_q.single("x"), y_q.single("y")
    (low, high), scale = x_q.limits, float(sx) / (number * float(sy))
    if not all(_NORMAL < float(factor) < 1 / _NORMAL for factor in (sx, sy)):
        return None  # products may be no normal numbers
    sums = np.arange(taps * low, taps * high + 1, dtype=np.float64) - taps * zx
    magnitudes = np.abs(sums) if zx in (low, high) else np.full(sums.shape, float(taps * max(high - zx, zx - low)))
    exact = sums * scale + zy
    error_bound = ((taps + 4) * magnitudes * scale + 2 * np.abs(exact)) * 2.0**-24
    first, last = (saturate(np.rint(np.clip(exact + by, -(2.0**30), 2.0**30)).astype(np.int64), y_q) for by in (-error_bound, error_bound))
    return first if np.array_equal(first, last) else None


def global_average_pool(x: Integers, x_q: Quantisation, y_q: Quantisation) -> Integers:
    """QLinearGlobalAveragePool: int32 sums of x - zx, requantised by sx / (sy * pixels)."""
    (sx, zx), (sy, _) = x_q.single("x"), y_q.single("y")
    spatial = tuple(range(2, x.ndim))
    sums = (x.astype(np.int64) - zx).sum(axis=spatial, keepdims=True)
    scale = np.asarray(sx / (sy * np.float32(math.prod(x.shape[2:]))))
    return requantize(sums.astype(np.int32), scale, y_q)
