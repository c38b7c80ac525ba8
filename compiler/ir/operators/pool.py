"""Max and average pools."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from compiler.ir.operators.base import ROWS, ZERO, Floats, Shape, Spell, UnaryOperator, Values, mean_samples, shape_text
from compiler.ir.operators.windows import window_attributes, window_size, windows_of


class Pooling(UnaryOperator):
    """Window geometry of pools."""

    if TYPE_CHECKING:  # fields of dataclasses

        @property
        def kernel(self) -> tuple[int, int]: ...
        @property
        def stride(self) -> tuple[int, int]: ...
        @property
        def pads(self) -> tuple[int, int, int, int]: ...
        @property
        def count_include_pad(self) -> bool: ...

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        n, c, h, w = inputs[0]
        pad_top, pad_left, pad_bottom, pad_right = self.pads
        rows = window_size(h, self.kernel[0], self.stride[0], 1, pad_top, pad_bottom)
        return n, c, rows, window_size(w, self.kernel[1], self.stride[1], 1, pad_left, pad_right)

    def attributes(self, spell: Spell) -> list[str]:
        del spell
        out = [f"kernel={shape_text(self.kernel)}", *window_attributes(self.stride, self.pads)]
        return out + (["count_include_pad"] if self.count_include_pad else [])

    def window(self, axis: int = ROWS) -> tuple[int, int, int, int]:
        return self.kernel[axis], self.stride[axis], 1, self.pads[axis]


@dataclass(frozen=True, eq=False)
class Pool(Pooling):
    """Max or average over a window.  Global pooling is a kernel as large as the image."""

    name: str
    x: str
    y: str
    mode: Literal["max", "average"]
    kernel: tuple[int, int]
    stride: tuple[int, int] = (1, 1)
    pads: tuple[int, int, int, int] = (0, 0, 0, 0)
    count_include_pad: bool = False

    def attributes(self, spell: Spell) -> list[str]:
        return [self.mode, *super().attributes(spell)]

    @property
    def moves(self) -> bool:
        return self.mode == "max"

    def padding(self, inputs: Sequence[Values], rounding: type[np.floating]) -> Values:
        """Averages may mix the operand's padding values, and 0 where padding counts; a maximum keeps them."""
        counted = self.count_include_pad and any(self.pads)
        values = inputs[0] | ZERO if counted and inputs[0] else inputs[0]
        return values if self.mode == "max" or len(values) < 2 else mean_samples(values, rounding)

    def apply(self, inputs: Sequence[Floats]) -> Floats:
        x = inputs[0]
        if self.mode == "max":
            dtype = np.dtype(x.dtype)  # integers too
            least = -np.inf if dtype.kind == "f" else int(np.iinfo(dtype.str).min)
            return windows_of(x, self.kernel, self.stride, (1, 1), self.pads, least).max(axis=(4, 5))
        total = windows_of(x, self.kernel, self.stride, (1, 1), self.pads, 0.0).sum(axis=(4, 5), dtype=np.float32)
        ones = np.ones((1, 1, *x.shape[2:]), np.float32)
        count = windows_of(ones, self.kernel, self.stride, (1, 1), self.pads, 1.0 if self.count_include_pad else 0.0).sum(axis=(4, 5))
        return np.asarray(total / count, np.float32)
