"""Windows that slide over an image."""

from __future__ import annotations

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from compiler.ir.operators.base import Floats, shape_text

Pair = tuple[int, int]


def window_size(size: int, kernel: int, stride: int, dilation: int, pad_before: int, pad_after: int) -> int:
    """Output size of a sliding window along one axis (floor; a ceil-mode pool has larger `pad_after`)."""
    return (size + pad_before + pad_after - (kernel - 1) * dilation - 1) // stride + 1


def windows_of(x: Floats, kernel: Pair, stride: Pair, dilation: Pair, pads: tuple[int, int, int, int], fill: float) -> Floats:
    """Windows [n, c, h_out, w_out, kh, kw] of x [n, c, h, w]; negative pads crop."""
    pad_top, pad_left, pad_bottom, pad_right = pads
    if min(pads) < 0:  # cropped rows and columns
        x = x[:, :, max(0, -pad_top) : x.shape[2] - max(0, -pad_bottom), max(0, -pad_left) : x.shape[3] - max(0, -pad_right)]
        pad_top, pad_left, pad_bottom, pad_right = (max(0, pad) for pad in pads)
    if any((pad_top, pad_left, pad_bottom, pad_right)):
        x = np.pad(x, ((0, 0), (0, 0), (pad_top, pad_bottom), (pad_left, pad_right)), constant_values=fill)
    reach = ((kernel[0] - 1) * dilation[0] + 1, (kernel[1] - 1) * dilation[1] + 1)
    windows = sliding_window_view(x, reach, axis=(2, 3))
    return windows[:, :, :: stride[0], :: stride[1], :: dilation[0], :: dilation[1]]


def window_attributes(stride: tuple[int, int], pads: tuple[int, int, int, int]) -> list[str]:
    """Stride and pads for `Operator.attributes`, without default values."""
    out = [f"stride={shape_text(stride)}"] if stride != (1, 1) else []
    return out + ([f"pads={','.join(map(str, pads))}"] if any(pads) else [])
