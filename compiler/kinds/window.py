"""The padding of windows in a strip: columns of it are left and right of the part of the image that the strip has."""

from __future__ import annotations

from compiler.ir.operators import COLUMNS, Convolution, Pool
from compiler.ir.region import Rows
from simulator.npu.isa import MAX_WINDOW

Pads = tuple[int, int, int, int]


def padded_columns(operator: Convolution | Pool, main: Rows, made: Rows) -> Pads:
    """For columns `made` of the result, which come from columns `main` of the input."""
    _, stride, _, pad = operator.window(COLUMNS)
    return _behind(operator, main.start - (made.start * stride - pad), main, made)


def all_padding(operator: Convolution, main: Rows, made: Rows) -> Pads | None:
    """Of windows that see nothing but padding: all of it in front of the image; None where no field holds so much."""
    size, stride, dilation, _ = operator.window(COLUMNS)
    before = (made.size - 1) * stride + (size - 1) * dilation + 1
    return _behind(operator, before, main, made) if before <= MAX_WINDOW else None


def _behind(operator: Convolution | Pool, before: int, main: Rows, made: Rows) -> Pads:
    size, stride, dilation, _ = operator.window(COLUMNS)
    behind = max(0, (made.size - 1) * stride + (size - 1) * dilation + 1 - before - main.size)
    return operator.pads[0], before, operator.pads[2], behind
