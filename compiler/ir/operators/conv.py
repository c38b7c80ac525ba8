"""Convolutions, and products with constants."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, Self, cast

import numpy as np
from numpy.typing import NDArray

from compiler.ir.operators.base import ROWS, Floats, Operator, Shape, Spell, Values, shape_text
from compiler.ir.operators.windows import window_attributes, window_size, windows_of
from simulator.npu.isa import MAX_WINDOW


@dataclass(frozen=True)
class WeightShape:
    """Shape in place of weights whose values are not needed."""

    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        return math.prod(self.shape)


class Convolution(Operator):
    """Product of weights with windows of x.  Subclasses define the epilogue of the sums."""

    if TYPE_CHECKING:  # fields of dataclasses

        @property
        def x(self) -> str: ...
        @property
        def weights(self) -> NDArray[Any]: ...  # [c_out, c_in / groups, kh, kw]
        @property
        def bias(self) -> NDArray[Any]: ...  # [c_out]
        @property
        def stride(self) -> tuple[int, int]: ...
        @property
        def dilation(self) -> tuple[int, int]: ...
        @property
        def pads(self) -> tuple[int, int, int, int]: ...  # top, left, bottom, right
        @property
        def groups(self) -> int: ...

    @property
    def inputs(self) -> tuple[str, ...]:
        return (self.x,)

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        n, _, h, w = inputs[0]
        pad_top, pad_left, pad_bottom, pad_right = self.pads
        channels, _, high, wide = self.weights.shape
        rows = window_size(h, high, self.stride[0], self.dilation[0], pad_top, pad_bottom)
        return n, channels, rows, window_size(w, wide, self.stride[1], self.dilation[1], pad_left, pad_right)

    def without_values(self) -> Self:
        return cast("Self", replace(cast("Any", self), weights=WeightShape(self.weights.shape)))

    def window(self, axis: int = ROWS) -> tuple[int, int, int, int]:
        return self.weights.shape[2 + axis], self.stride[axis], self.dilation[axis], self.pads[axis]

    def attributes(self, spell: Spell) -> list[str]:
        out = [f"weights={spell(self.weights)}", f"bias={spell(self.bias)}", *window_attributes(self.stride, self.pads)]
        out += [f"dilation={shape_text(self.dilation)}"] if self.dilation != (1, 1) else []
        return out + ([f"groups={self.groups}"] if self.groups > 1 else [])

    @property
    def is_depthwise(self) -> bool:
        """Whether channel i of y depends on channel i of x only."""
        return self.groups > 1 and self.groups == self.weights.shape[0] and self.weights.shape[1] == 1

    @property
    def follows(self) -> tuple[str, ...]:
        return self.inputs if self.is_depthwise else self.inputs[1:]

    @property
    def takes_fours(self) -> bool:
        """Whether every part of the window (`ir.im2col`) begins with a whole block of a four-lane image."""
        (high, wide), (down, across) = self.weights.shape[2:], self.dilation
        near = (high == 1 or down <= MAX_WINDOW) and (wide == 1 or across <= MAX_WINDOW)
        return near and (wide <= MAX_WINDOW or high == 1) and self.pads[0] <= MAX_WINDOW

    def reads_fours(self, tensor: str) -> bool:
        return self.groups == 1 and self.takes_fours and tensor not in self.inputs[1:]


@dataclass(frozen=True, eq=False)
class Conv(Convolution):
    """y = activation(conv(x, weights) + bias + residual).  Also Gemm and MatMul (a kernel as large as the image)."""

    name: str
    x: str
    y: str
    weights: Floats  # [c_out, c_in / groups, kh, kw]
    bias: Floats  # [c_out]
    stride: tuple[int, int] = (1, 1)
    dilation: tuple[int, int] = (1, 1)
    pads: tuple[int, int, int, int] = (0, 0, 0, 0)  # top, left, bottom, right
    groups: int = 1
    activation: Literal["none", "relu", "clip"] = "none"
    residual: str | None = None
    limit: float = 0.0  # clip: min(relu, limit)

    @property
    def inputs(self) -> tuple[str, ...]:
        return (self.x,) if self.residual is None else (self.x, self.residual)

    def _reading(self, names: tuple[str, ...]) -> Self:
        return replace(self, x=names[0], residual=names[1] if len(names) > 1 else None)

    def attributes(self, spell: Spell) -> list[str]:
        out = super().attributes(spell)
        out += [f"limit={self.limit:.9g}"] if self.activation == "clip" else []
        return out + ([self.activation] if self.activation != "none" else [])

    def padding(self, inputs: Sequence[Values], rounding: type[np.floating]) -> Values:
        residual = inputs[1] if self.residual is not None else frozenset({0.0})  # the product is 0 in padding lanes
        if self.activation == "none":
            return residual
        return frozenset(min(max(0.0, v), self.limit) if self.activation == "clip" else max(0.0, v) for v in residual)

    def apply(self, inputs: Sequence[Floats]) -> Floats:
        x, residual = inputs[0], inputs[1] if len(inputs) > 1 else None
        c_out, c_in, kh, kw = self.weights.shape
        windows = windows_of(x, (kh, kw), self.stride, self.dilation, self.pads, 0.0)
        n, _, h, w = windows.shape[:4]
        out = np.empty((n, c_out, h, w), np.float32)
        rows = c_out // self.groups
        for g in range(self.groups):
            part = windows[:, g * c_in : (g + 1) * c_in].transpose(0, 2, 3, 1, 4, 5).reshape(n * h * w, c_in * kh * kw)
            product = part @ self.weights[g * rows : (g + 1) * rows].reshape(rows, -1).T
            out[:, g * rows : (g + 1) * rows] = product.reshape(n, h, w, rows).transpose(0, 3, 1, 2)
        out += self.bias[:, None, None]
        if residual is not None:
            out += residual
        if self.activation != "none":
            out = np.maximum(out, np.float32(0))
        return np.minimum(out, np.float32(self.limit)) if self.activation == "clip" else out
