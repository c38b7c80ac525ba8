"""Normalisation over the channels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from compiler.ir.operators.base import Floats, Spell, UnaryOperator, Values


@dataclass(frozen=True, eq=False)
class LayerNorm(UnaryOperator):
    """y = (x - mean) / sqrt(variance + epsilon) * scale + shift, mean and variance over the channels, at every pixel.

    centred: whether the mean is taken as 0: it is known to be, or the root of the mean of squares normalises (RMSNorm).
    """

    name: str
    x: str
    y: str
    scale: Floats  # [c]
    shift: Floats  # [c]
    epsilon: float
    centred: bool = False

    def attributes(self, spell: Spell) -> list[str]:
        centred = ["centred"] if self.centred else []
        return [f"scale={spell(self.scale)}", f"shift={spell(self.shift)}", f"epsilon={self.epsilon:.3g}", *centred]

    def padding(self, inputs: Sequence[Values], rounding: type[np.floating]) -> Values:
        return frozenset({0.0})

    def apply(self, inputs: Sequence[Floats]) -> Floats:
        x = inputs[0]
        centred = x if self.centred else x - x.mean(axis=1, keepdims=True)
        factor = 1 / np.sqrt((centred * centred).mean(axis=1, keepdims=True) + np.float32(self.epsilon))
        return np.asarray(centred * factor * self.scale[:, None, None] + self.shift[:, None, None], np.float32)
