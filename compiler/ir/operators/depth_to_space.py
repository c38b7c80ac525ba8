"""DepthToSpace: rearranges channels to pixels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from compiler.ir.operators.base import ROWS, Floats, Shape, Spell, UnaryOperator
from compiler.ir.reach import RATIO


@dataclass(frozen=True, eq=False)
class DepthToSpace(UnaryOperator):
    """y[c, i * block + di, j * block + dj] = x[(di * block + dj) * channels of y + c, i, j]."""

    name: str
    x: str
    y: str
    block: int

    @property
    def moves(self) -> bool:
        return True

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        n, c, h, w = inputs[0]
        return n, c // self.block**2, h * self.block, w * self.block

    def unfit(self, inputs: Sequence[Shape]) -> str:
        channels = inputs[0][1]
        return f"{channels} channels for {self.block} x {self.block} pixels each" if channels % self.block**2 else ""

    def attributes(self, spell: Spell) -> list[str]:
        del spell
        return [f"block={self.block}"]

    def reach(self, in_size: int, first: int = 0, axis: int = ROWS) -> tuple[int, ...]:
        return RATIO, in_size, self.block, 1, 0, 0

    @property
    def has_halo(self) -> bool:
        return self.block > 1

    @property
    def follows(self) -> tuple[str, ...]:
        return ()

    @property
    def headed(self) -> tuple[tuple[str, int], ...]:
        return (self.x, self.block**2), (self.y, 1)

    def apply(self, inputs: Sequence[Floats]) -> Floats:
        n, c, h, w = inputs[0].shape
        sub_pixels = inputs[0].reshape(n, self.block, self.block, c // self.block**2, h, w)
        return np.ascontiguousarray(sub_pixels.transpose(0, 3, 4, 1, 5, 2).reshape(self.output_shape([(n, c, h, w)])))
