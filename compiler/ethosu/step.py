"""Steps: operations on blocks before they have addresses, each for all rows of its result.

A view is a part of a tensor in memory, its *store*.  Operators that only move values are views of the same store wherever that is possible.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from compiler.ethosu.scaling import Scaling

DOUBLE, TRUNCATE, NATURAL = 0, 1, 2
"""Rounding modes of the part."""
NEAREST, ZEROS = 1, 2
"""Ways of upscaling."""
ROW_UNIT = 2
"""Rows of a result that are made together: the part computes two at once, and has two of the nearest."""


class StoreView(NamedTuple):
    """[rows, columns, channels] of a store, from a place in it on.  zero: zero point as the part subtracts or adds it.

    step: of rows and columns in the store, 2 where it has every second one.
    flat: whether it has the store's bytes in order, in another shape.  signed: int8, not uint8.
    """

    store: int
    rows: int
    columns: int
    channels: int
    zero: int = 0
    first_row: int = 0
    first_column: int = 0
    first_channel: int = 0
    step: int = 1
    flat: bool = False
    signed: bool = True

    def store_row(self, row: int) -> int:
        """The row of the store for one of the view."""
        return self.first_row + self.step * row


class KernelWindow(NamedTuple):
    """A kernel.  pad_top, pad_left: padding before.

    upscale: 0, 1 (nearest) or 2 (zeros between); the last two double rows and columns of the input.
    """

    rows: int = 1
    columns: int = 1
    stride_y: int = 1
    stride_x: int = 1
    dilation_y: int = 1
    dilation_x: int = 1
    pad_top: int = 0
    pad_left: int = 0
    upscale: int = 0

    @property
    def reach_rows(self) -> int:
        """Rows from the first to the last tap."""
        return (self.rows - 1) * self.dilation_y + 1

    @property
    def reach_columns(self) -> int:
        """Columns, in the same way."""
        return (self.columns - 1) * self.dilation_x + 1


class ChannelScales(NamedTuple):
    """Biases and scales, [channels] each."""

    bias: NDArray[np.int64]
    factor: NDArray[np.int64]
    shift: NDArray[np.int64]


class OperandScale(NamedTuple):
    """Scaling of operands of a sum.  mode: 1 scales the first one, 2 the second, 0 none."""

    mode: int = 0
    scaling: Scaling = Scaling(0, 0)


_POINT_WINDOW, _ONE, _UNSCALED = KernelWindow(), Scaling(1 << 30, 30), OperandScale()


@dataclass(frozen=True, eq=False)
class BlockStep:
    """An operation.  operator: its number in the network.  unit: CONV, DEPTHWISE, POOL or ELEMENTWISE.  mode: of the last two.

    reads: one view or two; an axis of 1 of the second is broadcast.  reversed: whether the second comes first.
    weights: [outputs, rows, columns, inputs], centred, with `records`.  scaling: of all results, where there are no records.
    low, high: bounds of the result.  table: 256 results by the integer, from the least on.
    """

    operator: int
    unit: str
    reads: tuple[StoreView, ...]
    result: StoreView
    mode: str = ""
    window: KernelWindow = _POINT_WINDOW
    weights: NDArray[np.int16] | None = None
    records: ChannelScales | None = None
    scaling: Scaling = _ONE
    operand_scale: OperandScale = _UNSCALED
    reversed: bool = False
    rounding: int = DOUBLE
    low: int = -128
    high: int = 127
    table: NDArray[Any] | None = None

    @property
    def label(self) -> str:
        """It in messages."""
        return f"{self.unit} {self.mode}".strip()

    @property
    def whole(self) -> bool:
        """Whether it makes all rows at once: rows of other parities would need another kernel."""
        return self.window.upscale == ZEROS or self.result.step > 1

    def input_rows(self, first: int, last: int) -> tuple[int, int]:
        """Rows of the first input that rows [first, last) of the result read, without padding, in memory."""
        window, rows = self.window, self.reads[0].rows
        if self.unit == "ELEMENTWISE":
            return first, last
        scale = 2 if window.upscale else 1
        low = max(0, first * window.stride_y - window.pad_top)
        high = min(rows * scale, (last - 1) * window.stride_y - window.pad_top + window.reach_rows)
        return low // scale, -(-high // scale)


class Store(NamedTuple):
    """A tensor in memory, [rows, columns, channels] of one byte each.  name: of the tensor.  constant: its values."""

    name: str
    rows: int
    columns: int
    channels: int
    constant: NDArray[Any] | None = None

    @property
    def nbytes(self) -> int:
        """Bytes as rows of pixels of channels."""
        return self.rows * self.columns * self.channels
