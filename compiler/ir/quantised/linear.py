"""QuantizeLinear and DequantizeLinear, and int32 sums as int8."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from compiler.ir.quantised.parameters import SUMS, Floats, Integers, Quantisation
from compiler.ir.quantised.rounding import clamped


def quantize(x: Floats, quantisation: Quantisation) -> Integers:
    """x / scale in float32, then `clamped`."""
    scale, _ = quantisation.along(x.ndim)
    with np.errstate(over="ignore", invalid="ignore"):
        return clamped(np.asarray(x, np.float32) / scale, quantisation)


def dequantize(x: NDArray[Any], quantisation: Quantisation) -> Floats:
    """(x - zero_point) * scale: an exact difference, one product in float32."""
    scale, zero = quantisation.along(x.ndim)
    return np.asarray((x.astype(np.int64) - zero).astype(np.float32) * scale, np.float32)


def output_scale(x: Quantisation, w: Quantisation, y: Quantisation | None, alpha: float = 1.0) -> Floats:
    """float32 [1] or [channels] by which sums of products are multiplied: (alpha * x's * w's) / y's, each step in float32."""
    scale = np.float32(alpha) * x.single("x")[0] * w.scale
    return np.asarray(scale if y is None else scale / y.single("y")[0], np.float32)


def requantize(sums: NDArray[np.int32], scale: Floats, quantisation: Quantisation) -> Integers:
    """float32(sums) * scale, then `clamped`; no sum of the two is fused.  scale: in a shape that broadcasts over the sums.

    Sums that are asked for as int32 are what they are.
    """
    if quantisation.dtype == SUMS:
        return sums
    with np.errstate(over="ignore"):
        return clamped(sums.astype(np.float32) * scale, quantisation)


def scaled(sums: NDArray[np.int32], scale: Floats, bias: Floats | None = None) -> Floats:
    """float32(sums) * scale [+ bias]: a product and a sum, each rounded (MatMulIntegerToFloat, QGemm without a scale of y)."""
    out = sums.astype(np.float32) * scale
    return out if bias is None else out + bias


def measured(x: Floats) -> Quantisation:
    """DynamicQuantizeLinear's scale and zero point of uint8: over the range of x, with 0 in it."""
    least, greatest = (np.float32(bound) for bound in (min(x.min(initial=0), 0), max(x.max(initial=0), 0)))
    scale = np.float32(1) if greatest == least else (greatest - least) / np.float32(255)
    zero = np.rint(np.clip(-least / scale, np.float32(0), np.float32(255)))
    return Quantisation.of(scale, np.uint8(zero), np.uint8)
