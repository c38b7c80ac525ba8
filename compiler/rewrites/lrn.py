"""Local response normalisation as three operators: y = x * (bias + alpha / size * window sum of x^2) ** -beta.

Float16 squares overflow at |x| >= 256, so x is scaled before the square, and the window's weights are a power of two that keeps the sum
below the largest square.  The window sum over channels is a banded 1x1 Conv, which the matrix unit does at full rate.
"""

from __future__ import annotations

import math

import numpy as np

from compiler.ir.operators import Conv, Operator, Step, Vector


def lower_lrn(name: str, x: str, y: str, channels: int, size: int, alpha: float, beta: float, bias: float) -> list[Operator]:
    """Operators of LRN from x to y, in order."""
    # the scaled square is near alpha / size * x^2: precise where that matters, and 65504 / 256 squared still fits
    per_square = abs(alpha) / size
    scale = 2.0 ** min(0, max(-8, round(math.log2(math.sqrt(per_square))) if per_square > 0 else -8))
    weight = 2.0 ** -math.ceil(math.log2(size))
    before, after = (size - 1) // 2, size // 2  # ONNX: channels c - floor((size-1)/2) .. c + ceil((size-1)/2)
    index = np.arange(channels)
    offset = index[None, :] - index[:, None]
    band = ((offset >= -before) & (offset <= after)).astype(np.float32) * np.float32(weight)
    squares, sums = f"{y}.squares", f"{y}.sums"
    return [
        Vector(f"{name}.square", (x,), squares, (Step("muls", scale), Step("square"))),
        Conv(f"{name}.window", squares, sums, band.reshape(channels, channels, 1, 1), np.zeros(channels, np.float32)),
        Vector(
            f"{name}.scale",
            (sums, x),
            y,
            (
                Step("muls", alpha / size / (scale * scale * weight)), Step("adds", bias), Step("ln"),
                Step("muls", -beta), Step("exp"), Step("mul", operand=1),
            ),
        ),
    ]  # fmt: skip
