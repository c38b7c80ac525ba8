"""QuantizeLinear and DequantizeLinear, and requantisation of int32 sums."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from compiler.ir.quantised.parameters import SUMS, Floats, Integers, Quantisation
from compiler.ir.quantised.rounding import round_to_integers


def quantize(x: Floats, quantisation: Quantisation) -> Integers:
    """QuantizeLinear: x / scale in float32, then `round_to_integers`."""
    scale, _ = quantisation.along(x.ndim)
    with np.errstate(over="ignore", invalid="ignore"):
        return round_to_integers(np.asarray(x, np.float32) / scale, quantisation)


def dequantize(x: NDArray[Any], quantisation: Quantisation) -> Floats:
    """DequantizeLinear: (x - zero_point) * scale, an exact difference and one product in float32."""
    scale, zero = quantisation.along(x.ndim)
    return np.asarray((x.astype(np.int64) - zero).astype(np.float32) * scale, np.float32)


def output_scale(x: Quantisation, w: Quantisation, y: Quantisation | None, alpha: float = 1.0) -> Floats:
    """Factor of sums of products, float32 [1] or [channels]: (alpha * scale of x * scale of w) / scale of y, each step in float32."""
    scale = np.float32(alpha) * x.single("x")[0] * w.scale
    return np.asarray(scale if y is None else scale / y.single("y")[0], np.float32)


def requantize(sums: NDArray[np.int32], scale: Floats, quantisation: Quantisation) -> Integers:
    """float32(sums) * scale, then `round_to_integers`, without fused steps.  scale: broadcasts over the sums.

    For a quantisation of int32 the sums are unchanged.
    """
    if quantisation.dtype == SUMS:
        return sums
    with np.errstate(over="ignore"):
        return round_to_integers(sums.astype(np.float32) * scale, quantisation)


def scale_sums(sums: NDArray[np.int32], scale: Floats, bias: Floats | None = None) -> Floats:
    """float32(sums) * scale [+ bias]: a product and a sum, each rounded (MatMulIntegerToFloat, QGemm without a scale of y)."""
    out = sums.astype(np.float32) * scale
    return out if bias is None else out + bias


def dynamic_quantisation(x: Floats) -> Quantisation:
    """Scale and zero point of DynamicQuantizeLinear (uint8): over the range of x, extended to contain 0."""
    least, greatest = (np.float32(bound) for bound in (min(x.min(initial=0), 0), max(x.max(initial=0), 0)))
    scale = np.float32(1) if greatest == least else (greatest - least) / np.float32(255)
    zero = np.rint(np.clip(-least / scale, np.float32(0), np.float32(255)))
    return Quantisation.of(scale, np.uint8(zero), np.uint8)
