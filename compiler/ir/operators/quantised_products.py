"""Products of quantised tensors: sums in int32, then floats by a vector of scales, then integers of another scale and zero point.

What integers they give is onnxruntime's (`compiler.ir.quantised`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

from compiler.ir.operators.base import ROWS, Floats, OfOne, Operator, Shape, Spell, sized
from compiler.ir.operators.windows import spelt_window, window_size
from compiler.ir.quantised import linear, products
from compiler.ir.quantised.parameters import Integers, Quantisation, integers_of


@dataclass(frozen=True, eq=False)
class QuantisedConv(OfOne):
    """y = requantise(conv(x - its zero point, weights - theirs) + bias); y_q None: floats.  Also products with constants.

    alpha: a factor of the scale.
    """

    name: str
    x: str
    y: str
    weights: Integers  # [c_out, c_in / groups, kh, kw]
    bias: products.Sums  # [c_out]
    x_q: Quantisation
    w_q: Quantisation  # one scale, or one for each output channel
    y_q: Quantisation | None
    stride: tuple[int, int] = (1, 1)
    dilation: tuple[int, int] = (1, 1)
    pads: tuple[int, int, int, int] = (0, 0, 0, 0)  # top, left, bottom, right
    groups: int = 1
    alpha: float = 1.0

    @property
    def scale(self) -> Floats:
        """float32 [c_out] by which sums are multiplied."""
        return np.broadcast_to(linear.output_scale(self.x_q, self.w_q, self.y_q, self.alpha), self.bias.shape)

    @property
    def offset(self) -> products.Sums:
        """int32 [c_out] beside sum x * (w - its zero point), where x is as it is stored and padding is its zero point."""
        weights = products.centred(self.weights, self.w_q).sum(axis=(1, 2, 3)).astype(np.int64)
        return np.asarray(self.bias - int(self.x_q.zero_point[0]) * weights).astype(np.int32)

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        n, _, h, w = inputs[0]
        top, left, bottom, right = self.pads
        channels, _, high, wide = self.weights.shape
        rows = window_size(h, high, self.stride[0], self.dilation[0], top, bottom)
        return n, channels, rows, window_size(w, wide, self.stride[1], self.dilation[1], left, right)

    def unfit(self, inputs: Sequence[Shape]) -> str:
        channels = self.weights.shape[1] * self.groups
        return "" if inputs[0][1] == channels else f"{inputs[0][1]} input channels, weights for {channels}"

    def output_type(self, inputs: Sequence[Quantisation | None]) -> Quantisation | None:
        integers_of(inputs[0], self.x_q)
        return self.y_q

    def window(self, axis: int = ROWS) -> tuple[int, int, int, int]:
        return self.weights.shape[2 + axis], self.stride[axis], self.dilation[axis], self.pads[axis]

    def attributes(self, spell: Spell) -> list[str]:
        out = [f"weights={spell(self.weights)}", f"bias={spell(self.bias)}", f"scale={spell(self.scale)}"]
        out += spelt_window(self.stride, self.pads)
        out += [f"dilation={sized(self.dilation)}"] if self.dilation != (1, 1) else []
        return out + ([f"groups={self.groups}"] if self.groups > 1 else [])

    def apply(self, inputs: Sequence[Any]) -> Any:
        kernel = (self.weights.shape[2], self.weights.shape[3])
        window = products.SlidingWindow(kernel, self.stride, self.pads, self.dilation, self.groups)
        sums = products.conv_sums(inputs[0], self.x_q, self.weights, self.w_q, window, self.bias)
        scale = self.scale[:, None, None]
        return linear.scaled(sums, scale) if self.y_q is None else linear.requantize(sums, scale, self.y_q)


@dataclass(frozen=True, eq=False)
class QuantisedMatMul(Operator):
    """As `MatMul`, of integers: both zero points are taken off, so sums over rows and columns count."""

    name: str
    a: str
    b: str
    y: str
    heads: int
    transposed: bool
    a_q: Quantisation
    b_q: Quantisation
    y_q: Quantisation

    @property
    def inputs(self) -> tuple[str, ...]:
        return (self.a, self.b)

    def _reading(self, names: tuple[str, ...]) -> Self:
        return replace(self, a=names[0], b=names[1])

    @property
    def scale(self) -> Floats:
        """float32 [1] by which sums are multiplied."""
        return linear.output_scale(self.a_q, self.b_q, self.y_q)

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        (n, _, h, w), (_, channels, rows, columns) = inputs
        return n, self.heads * rows * columns if self.transposed else channels, h, w

    def output_type(self, inputs: Sequence[Quantisation | None]) -> Quantisation | None:
        integers_of(inputs[0], self.a_q)
        integers_of(inputs[1], self.b_q)
        return self.y_q

    def attributes(self, spell: Spell) -> list[str]:
        return [f"heads={self.heads}", *(["transposed"] if self.transposed else []), f"scale={spell(self.scale)}"]

    def apply(self, inputs: Sequence[Any]) -> Any:
        a, b = inputs
        n, _, h, w = a.shape
        left = a.reshape(n, self.heads, -1, h * w).swapaxes(2, 3)  # [pixels, k]
        right = b.reshape(n, self.heads, -1, b.shape[2] * b.shape[3])
        sums = products.matmul_sums(left, self.a_q, right if self.transposed else right.swapaxes(2, 3), self.b_q)
        y = linear.requantize(sums, self.scale, self.y_q)  # [n, heads, pixels, channels of y]
        return y.swapaxes(2, 3).reshape(n, -1, h, w)
