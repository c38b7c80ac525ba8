"""Reflow: the same pixels in rows of another width."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from compiler.ir.operators.base import ROWS, Floats, Shape, Spell, UnaryOperator, Values, shape_text
from compiler.ir.reach import RATIO


@dataclass(frozen=True, eq=False)
class Reflow(UnaryOperator):
    """Pixels of x, row by row, as an image of another height and width: `before` fill pixels first, fill pixels or truncation at the end.

    of, size: height and width of x and of y.
    """

    name: str
    x: str
    y: str
    of: tuple[int, int]
    size: tuple[int, int]
    before: int = 0
    fill: float = 0.0

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        return *inputs[0][:2], *self.size

    def attributes(self, spell: Spell) -> list[str]:
        del spell
        before, fill = ([f"{name}={value:g}"] if value else [] for name, value in (("before", self.before), ("fill", self.fill)))
        return [f"size={shape_text(self.size)}", *before, *fill]

    def reach(self, in_size: int, first: int = 0, axis: int = ROWS) -> tuple[int, ...]:
        """Reach of the rows that contain the pixels of rows of the result."""
        return RATIO, self.of[0], self.of[1], self.size[1], self.before, 0

    def padding(self, inputs: Sequence[Values], rounding: type[np.floating]) -> Values:
        return inputs[0] | {self.fill}

    @property
    def moves(self) -> bool:
        return True

    def apply(self, inputs: Sequence[Floats]) -> Floats:
        x = inputs[0]
        n, c, h, w = x.shape
        out = np.full((n, c, self.size[0] * self.size[1]), self.fill, x.dtype)
        pixels = out[:, :, self.before : self.before + h * w]
        pixels[...] = x.reshape(n, c, -1)[:, :, : pixels.shape[2]]
        return out.reshape(n, c, *self.size)
