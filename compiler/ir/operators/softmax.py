"""Softmax over the channels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from compiler.ir.operators.base import ZERO, Floats, Spell, UnaryOperator, Values


@dataclass(frozen=True, eq=False)
class Softmax(UnaryOperator):
    """Softmax over the channels, or over each of `groups` equal runs of channels, at every pixel."""

    name: str
    x: str
    y: str
    groups: int = 1

    @property
    def headed(self) -> tuple[tuple[str, int], ...]:
        return ((self.x, self.groups), (self.y, self.groups)) if self.groups > 1 else ()

    def attributes(self, spell: Spell) -> list[str]:
        del spell
        return [f"groups={self.groups}"] if self.groups > 1 else []

    def requires_zeros(self, inputs: Sequence[Values], rounding: type[np.floating]) -> tuple[str, ...]:
        """x, unless adding its values to the mask (the least finite number) leaves the mask unchanged."""
        least = np.finfo(rounding).min
        with np.errstate(over="ignore"):
            absorbed = all(rounding(value) + least <= least for value in inputs[0])
        return () if absorbed else (self.x,)

    def padding(self, inputs: Sequence[Values], rounding: type[np.floating]) -> Values:
        return ZERO

    def apply(self, inputs: Sequence[Floats]) -> Floats:
        x = inputs[0]
        group_values = x.reshape(x.shape[0], self.groups, -1, *x.shape[2:])
        exponentials = np.exp(group_values - group_values.max(axis=2, keepdims=True))
        return np.asarray(exponentials / exponentials.sum(axis=2, keepdims=True), np.float32).reshape(x.shape)
