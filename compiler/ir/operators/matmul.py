"""Products of two tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self, cast

import numpy as np

from compiler.ir.operators.base import ZERO, Floats, Operator, Shape, Spell, Values


class HeadedProduct(Operator):
    """Product of two computed tensors, whose channels are `heads` equal runs, for every head g and pixel p of a.

    transposed: y[g][j, p] = sum over channels i of a[g][i, p] * b[g][i, pixel j]: as many channels a head as b has pixels.
    Else y[g][j, p] = sum over pixels s of b of a[g][s, p] * b[g][j, pixel s]: a has as many channels a head as b has pixels.
    """

    if TYPE_CHECKING:  # fields of dataclasses

        @property
        def a(self) -> str: ...
        @property
        def b(self) -> str: ...
        @property
        def heads(self) -> int: ...
        @property
        def transposed(self) -> bool: ...

    @property
    def inputs(self) -> tuple[str, ...]:
        return (self.a, self.b)

    def _reading(self, names: tuple[str, ...]) -> Self:
        return cast("Self", replace(cast("Any", self), a=names[0], b=names[1]))

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        (n, _, h, w), (_, channels, rows, columns) = inputs
        return n, self.heads * rows * columns if self.transposed else channels, h, w

    @property
    def follows(self) -> tuple[str, ...]:
        return ()

    @property
    def headed(self) -> tuple[tuple[str, int], ...]:
        return tuple((tensor, self.heads) for tensor in (self.a, self.b, self.y))

    @property
    def zeros(self) -> tuple[Values, Values]:
        """Values of a and b that add nothing to a sum: their zero points."""
        return ZERO, ZERO

    def requires_zeros(self, inputs: Sequence[Values], rounding: type[np.floating]) -> tuple[str, ...]:
        """Sums over the channels of a head cover all lanes of both inputs, so one factor of each product needs zeros in padding lanes.

        Sums over pixels of b cover no padding lanes, and zeros of b are zeros of y.
        """
        (a, b), (zero_a, zero_b) = inputs, self.zeros
        return () if b <= zero_b or (self.transposed and a <= zero_a) else (self.b,)

    def attributes(self, spell: Spell) -> list[str]:
        del spell
        return [f"heads={self.heads}", *(["transposed"] if self.transposed else [])]


@dataclass(frozen=True, eq=False)
class MatMul(HeadedProduct):
    """Product of floats, plus an optional bias per channel of y."""

    name: str
    a: str
    b: str
    y: str
    heads: int
    transposed: bool
    bias: Floats | None = None  # [c of y]

    def attributes(self, spell: Spell) -> list[str]:
        return super().attributes(spell) + ([] if self.bias is None else [f"bias={spell(self.bias)}"])

    def padding(self, inputs: Sequence[Values], rounding: type[np.floating]) -> Values:
        return frozenset({0.0})

    def apply(self, inputs: Sequence[Floats]) -> Floats:
        a, b = inputs
        n, _, h, w = a.shape
        a_heads = a.reshape(n, self.heads, -1, h * w)
        b_heads = b.reshape(n, self.heads, -1, b.shape[2] * b.shape[3])
        y = (b_heads.swapaxes(2, 3) if self.transposed else b_heads) @ a_heads  # [n, heads, channels of y, pixels]
        y = np.ascontiguousarray(y.reshape(n, -1, h, w))
        return y if self.bias is None else y + self.bias[:, None, None]
