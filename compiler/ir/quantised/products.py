"""Sums of products in int32: convolutions and matrix products."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from compiler.ir.quantised.linear import output_scale, requantize
from compiler.ir.quantised.parameters import Integers, Quantisation
from simulator.npu.errors import UnsupportedError

Sums = NDArray[np.int32]
MAX_SUM = 2**31 - 1  # largest sum


@dataclass(frozen=True)
class SlidingWindow:
    """Geometry of a sliding window over the spatial axes.  pads: before each axis, then after each.

    Shapes below: `places` are the positions of the window along each spatial axis, `kernel` its elements.
    """

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    pads: tuple[int, ...]
    dilations: tuple[int, ...]
    groups: int = 1

    def windows_of(self, x: NDArray[Any], fill: float) -> NDArray[Any]:
        """Windows [n, c, places.., kernel..] of x [n, c, spatial..].  fill: value of the padding."""
        rank = len(self.kernel)
        if any(self.pads):
            pad_widths = [(0, 0), (0, 0), *zip(self.pads[:rank], self.pads[rank:], strict=True)]
            x = np.pad(x, pad_widths, constant_values=fill)
        dilated_kernel = [(size - 1) * dilation + 1 for size, dilation in zip(self.kernel, self.dilations, strict=True)]
        windows = sliding_window_view(x, dilated_kernel, axis=tuple(range(2, 2 + rank)))
        steps = [slice(None, None, step) for step in (*self.strides, *self.dilations)]
        return windows[(slice(None), slice(None), *steps)]


def subtract_zero_point(x: Integers, quantisation: Quantisation) -> NDArray[np.float64]:
    """x - zero_point as float64, in which sums of products below 2^53 are exact and fast."""
    return (x.astype(np.int64) - quantisation.along(x.ndim)[1]).astype(np.float64)


def check_bound(x_q: Quantisation, w: Integers, w_q: Quantisation, channel_axis: int, bias: Sums | None, where: str) -> int:
    """Largest possible magnitude of a sum: max over channels of sum|w - zero_point| * max|x - zero_point| + |bias|.

    x_q: type of x, whose values may be any of it.  channel_axis: axis of w with the output channels.  where: node, for messages.
    Raises UnsupportedError where the magnitude exceeds int32.
    """
    zero_point = x_q.single(where)[1]
    largest_x = max(abs(limit - zero_point) for limit in x_q.limits)
    reduced_axes = tuple(axis for axis in range(w.ndim) if axis != channel_axis % w.ndim)
    bounds = np.abs(subtract_zero_point(w, w_q)).sum(axis=reduced_axes) * largest_x
    if bias is not None:
        bounds = bounds + np.abs(bias.astype(np.float64))
    largest = int(bounds.max(initial=0))
    if largest > MAX_SUM:
        raise UnsupportedError(f"{where}: sums of up to {largest:,}; expected at most {MAX_SUM:,}, what int32 holds")
    return largest


def _int32(sums: NDArray[np.float64]) -> Sums:
    """Exact sums modulo 2^32, as in int32 registers."""
    return sums.astype(np.int64).astype(np.int32)


def conv_sums(x: Integers, x_q: Quantisation, w: Integers, w_q: Quantisation, window: SlidingWindow, bias: Sums | None = None) -> Sums:
    """Sums (x - zero point of x) * (w - zero point of w) + bias: [n, c_out, places..].

    x: [n, c, spatial..], w: [c_out, c / groups, kernel..].  Padding is the zero point, so it adds nothing.
    """
    c_out, c_in = w.shape[:2]
    windows = window.windows_of(subtract_zero_point(x, x_q), 0.0)
    weights = subtract_zero_point(w, w_q.of_channels(0, "w"))
    n, rank = x.shape[0], len(window.kernel)
    places = windows.shape[2 : 2 + rank]
    group_out, k = c_out // window.groups, c_in * math.prod(window.kernel)
    out = np.empty((n, c_out, *places), np.int32)
    order = (0, *range(2, 2 + rank), 1, *range(2 + rank, 2 + 2 * rank))  # [n, places.., c, kernel..]
    # a matrix product [n * places, k] @ [k, output channels] per group
    for group in range(window.groups):
        inputs, outputs = slice(group * c_in, (group + 1) * c_in), slice(group * group_out, (group + 1) * group_out)
        pixels = windows[:, inputs].transpose(order).reshape(-1, k)
        product = _int32(pixels @ weights[outputs].reshape(group_out, k).T)
        out[:, outputs] = np.moveaxis(product.reshape(n, *places, group_out), -1, 1)
    return out if bias is None else out + bias.reshape(-1, *[1] * rank)


def conv(
    x: Integers, x_q: Quantisation, w: Integers, w_q: Quantisation, y_q: Quantisation, window: SlidingWindow, bias: Sums | None = None
) -> Integers:
    """QLinearConv."""
    sums = conv_sums(x, x_q, w, w_q, window, bias)
    return requantize(sums, output_scale(x_q, w_q, y_q).reshape(-1, *[1] * len(window.kernel)), y_q)


def matmul_sums(a: Integers, a_q: Quantisation, b: Integers, b_q: Quantisation) -> Sums:
    """Sums (a - zero point of a) * (b - zero point of b), as exact integers.  Batches broadcast."""
    return _int32(subtract_zero_point(a, a_q) @ subtract_zero_point(b, b_q.of_channels(b.ndim - 1, "b")))


def matmul(a: Integers, a_q: Quantisation, b: Integers, b_q: Quantisation, y_q: Quantisation) -> Integers:
    """QLinearMatMul."""
    return requantize(matmul_sums(a, a_q, b, b_q), output_scale(a_q, b_q, y_q), y_q)


def gemm_sums(a: Integers, a_q: Quantisation, b: Integers, b_q: Quantisation, bias: Sums | None = None) -> Sums:
    """Sums [m, n] of a [m, k] and b [k, n]; bias broadcasts over [m, n]."""
    sums = matmul_sums(a, a_q, b, b_q)
    return sums if bias is None else sums + bias


def gemm(
    a: Integers, a_q: Quantisation, b: Integers, b_q: Quantisation, y_q: Quantisation, bias: Sums | None = None, alpha: float = 1.0
) -> Integers:
    """QGemm.  alpha is part of the scale, so it multiplies the bias as well."""
    return requantize(gemm_sums(a, a_q, b, b_q, bias), output_scale(a_q, b_q, y_q, alpha), y_q)
