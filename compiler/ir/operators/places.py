"""Operators without instructions, resolved by the layout (`ir.layout`): Concat and Shuffle."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import numpy as np

from compiler.ir.operators.base import Floats, Operator, Shape, Spell, UnaryOperator, Values


@dataclass(frozen=True, eq=False)
class Concat(Operator):
    """Concatenation of channels.  No instructions: the layout places the inputs side by side."""

    computes: ClassVar[bool] = False
    moves = True

    name: str
    inputs: tuple[str, ...]
    y: str

    def _reading(self, names: tuple[str, ...]) -> Self:
        return replace(self, inputs=names)

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        n, _, h, w = inputs[0]
        return n, sum(shape[1] for shape in inputs), h, w

    def padding(self, inputs: Sequence[Values], rounding: type[np.floating]) -> Values:
        return frozenset().union(*inputs)

    def apply(self, inputs: Sequence[Floats]) -> Floats:
        return np.concatenate(inputs, axis=1)


@dataclass(frozen=True, eq=False)
class Shuffle(UnaryOperator):
    """Permutation or selection of channels: channel i of y is channel order[i] of x, each at most once.

    No instructions: the layout relabels lanes.  A selected run of channels is a part of x with planes of its own; other selections become
    a Conv (`select-by-conv`).
    """

    computes: ClassVar[bool] = False
    moves = True

    name: str
    x: str
    y: str
    order: tuple[int, ...]

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        n, _, h, w = inputs[0]
        return n, len(self.order), h, w

    def attributes(self, spell: Spell) -> list[str]:
        del spell
        size = len(self.order)
        for groups in range(2, size):
            dealt = tuple(g * (size // groups) + m for m in range(size // groups) for g in range(groups))
            if size % groups == 0 and self.order == dealt:
                return [f"order=groups:{groups}"]
        return [f"order={','.join(map(str, self.order))}"]

    def apply(self, inputs: Sequence[Floats]) -> Floats:
        return inputs[0][:, list(self.order)]
