"""Products of quantised tensors: int32 sums, scaled to floats, requantised to integers.

The results equal those of onnxruntime (`compiler.ir.quantised`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

from compiler.ir.operators.base import Floats, Shape, Spell, Values
from compiler.ir.operators.conv import Convolution
from compiler.ir.operators.matmul import HeadedProduct
from compiler.ir.quantised import elementwise, fixed_point, linear, products
from compiler.ir.quantised.parameters import RAW_SUMS, SUMS, Integers, Quantisation, check_quantisation
from compiler.ir.quantised.tables import all_stored_integers
from simulator.npu.errors import UnsupportedError
from simulator.npu.parts import BYTES, DataType


def all_integers(quantisation: Quantisation) -> Values:
    """All integers of the type, for padding lanes without a tighter bound.  The ends and 0 represent int32."""
    if quantisation.dtype == SUMS:
        return frozenset(map(float, (*quantisation.limits, 0)))
    return frozenset(all_stored_integers(quantisation).astype(float).tolist())


@dataclass(frozen=True, eq=False)
class Residual:
    """Residual operand: a tensor added to the integers of a product; the sum has quantisation y_q.  last: position in the rounding."""

    tensor: str
    q: Quantisation
    y_q: Quantisation
    last: bool


@dataclass(frozen=True, eq=False)
class QuantisedConv(Convolution):
    """y = requantise(conv(x - zero point of x, weights - zero point of weights) + bias); y_q None: y is float.  Also products with
    constants.

    alpha: factor of the scale.  added: quantisation of a residual that is added to y.  fixed_point: whether sums are requantised in fixed
    point.
    of_columns: run-time tensors with a value per output channel: the offset of the sums (with the zero point of x), and the scales of
    floats.
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
    added: Residual | None = None
    of_columns: tuple[str, ...] = ()
    fixed_point: bool = False

    @property
    def inputs(self) -> tuple[str, ...]:
        return (self.x, *self.of_columns) if self.added is None else (self.x, self.added.tensor)

    def _reading(self, names: tuple[str, ...]) -> Self:
        if self.added is None:
            return replace(self, x=names[0], of_columns=names[1:])
        return replace(self, x=names[0], added=replace(self.added, tensor=names[1]))

    @property
    def scale(self) -> Floats:
        """Factor of the sums, float32 [c_out]."""
        return np.broadcast_to(linear.output_scale(self.x_q, self.w_q, self.y_q, self.alpha), self.bias.shape)

    @property
    def offset(self) -> products.Sums:
        """Summand of the sums x * (w - zero point of w), int32 [c_out]; x as stored, padded with its zero point."""
        weights = products.subtract_zero_point(self.weights, self.w_q).sum(axis=(1, 2, 3)).astype(np.int64)
        return np.asarray(self.bias - int(self.x_q.zero_point[0]) * weights).astype(np.int32)

    def unfit(self, inputs: Sequence[Shape]) -> str:
        channels = self.weights.shape[1] * self.groups
        return "" if inputs[0][1] == channels else f"{inputs[0][1]} input channels, weights for {channels}"

    def output_type(self, inputs: Sequence[Quantisation | None]) -> Quantisation | None:
        check_quantisation(inputs[0], self.x_q)
        for actual, expected in zip(inputs[1:], (RAW_SUMS, None) if self.of_columns else (), strict=False):
            check_quantisation(actual, expected)
        if self.added is None:
            return self.y_q
        check_quantisation(inputs[1], self.added.q)
        return self.added.y_q

    def attributes(self, spell: Spell) -> list[str]:
        weights, bias, *window_texts = super().attributes(spell)
        return [weights, bias, f"scale={spell(self.scale)}", *window_texts, *([] if self.added is None else [f"sum of {self.y_q}"])]

    def multiplied(self) -> tuple[Integers, DataType, int]:
        """Weights minus their zero points, their type of 8 bits, and the remaining zero point where the difference exceeds 8 bits.

        Raises `UnsupportedError` where the remainder differs between channels.
        """
        zeros = self.w_q.of_channels(0, self.name).along(self.weights.ndim)[1]
        centred_weights = self.weights.astype(np.int64) - zeros
        least, greatest = int(centred_weights.min(initial=0)), int(centred_weights.max(initial=0))
        for dtype in BYTES:
            limits = np.iinfo(dtype.name)
            if limits.min <= least and greatest <= limits.max:
                return centred_weights.astype(dtype.storage), dtype, 0
        if zeros.min() < zeros.max():
            raise UnsupportedError(
                f"operator {self.name!r}: weights of {least} to {greatest} around several zero points; "
                "-128 to 127, 0 to 255, or one zero point is supported"
            )
        middle = 128 if self.w_q.dtype == np.uint8 else 0  # maps uint8 to int8
        return (self.weights.astype(np.int64) - middle).astype(np.int8), DataType.int8, int(zeros.min()) - middle

    def padding(self, inputs: Sequence[Values], rounding: type[np.floating]) -> Values:
        zero_point = 0.0 if self.y_q is None else float(self.y_q.zero_point[0])  # weights, offset and scale are zero there
        if self.added is None:
            return frozenset({zero_point})
        addends = np.array(sorted(inputs[1]))
        sums = self._sum(np.full(addends.shape, zero_point), addends)
        return frozenset(sums.astype(float).tolist())

    def apply(self, inputs: Sequence[Any]) -> Any:
        kernel = (self.weights.shape[2], self.weights.shape[3])
        window = products.SlidingWindow(kernel, self.stride, self.pads, self.dilation, self.groups)
        sums = products.conv_sums(inputs[0], self.x_q, self.weights, self.w_q, window, self.bias)
        scale = self.scale[:, None, None]
        if self.of_columns:
            sums = sums + inputs[1].astype(np.int32)
            return linear.scale_sums(sums, inputs[2]) if self.y_q is None else sums
        if self.y_q is None:
            return linear.scale_sums(sums, scale)
        integers = (fixed_point if self.fixed_point else linear).requantize(sums, scale, self.y_q)
        return integers if self.added is None else self._sum(integers, inputs[1])

    def _sum(self, integers: Any, addend: Any) -> Any:
        """Sum of integers of y_q and the residual."""
        assert self.added is not None
        assert self.y_q is not None
        pair = (integers, self.y_q), (addend, self.added.q)
        (a, a_q), (b, b_q) = pair[::-1] if self.added.last else pair
        return elementwise.add(a, a_q, b, b_q, self.added.y_q)


def quantised_identity_conv(name: str, x: str, y: str, quantisation: Quantisation, order: Sequence[int], channels: int) -> QuantisedConv:
    """Convolution that copies channels `order` of x.  Its weights are 1 and its scales equal, so every integer is unchanged."""
    weights = np.eye(channels, dtype=np.int8)[list(order)][:, :, None, None]
    one = Quantisation.of(np.float32(1), None, np.int8)
    return QuantisedConv(name, x, y, weights, np.zeros(len(weights), np.int32), quantisation, one, quantisation)


@dataclass(frozen=True, eq=False)
class QuantisedMatMul(HeadedProduct):
    """Product of integers minus their zero points, by row and column sums.  fixed_point: as in `QuantisedConv`."""

    name: str
    a: str
    b: str
    y: str
    heads: int
    transposed: bool
    a_q: Quantisation
    b_q: Quantisation
    y_q: Quantisation
    fixed_point: bool = False

    @property
    def scale(self) -> Floats:
        """Factor of the sums, float32 [1]."""
        return linear.output_scale(self.a_q, self.b_q, self.y_q)

    def output_type(self, inputs: Sequence[Quantisation | None]) -> Quantisation | None:
        check_quantisation(inputs[0], self.a_q)
        check_quantisation(inputs[1], self.b_q)
        return self.y_q

    def attributes(self, spell: Spell) -> list[str]:
        return [*super().attributes(spell), f"scale={spell(self.scale)}"]

    @property
    def zeros(self) -> tuple[Values, Values]:
        return frozenset({float(self.a_q.zero_point[0])}), frozenset({float(self.b_q.zero_point[0])})

    def requires_zeros(self, inputs: Sequence[Values], rounding: type[np.floating]) -> tuple[str, ...]:
        """Same as for floats, except: FIXPIPE subtracts the sum of x's padding lanes if that is one number; then y may hold any integers
        there."""
        return super().requires_zeros(inputs, rounding) if self.transposed and len(self.beside(inputs)) > 1 else ()

    def beside(self, inputs: Sequence[Values]) -> Values:
        """Products that a padding lane may add to a sum over the channels of a head."""
        (u,), (v,) = self.zeros
        return frozenset((x - u) * (y - v) for x in inputs[0] for y in inputs[1])

    def padding(self, inputs: Sequence[Values], rounding: type[np.floating]) -> Values:
        """Zero point of y for missing pixels, or for padding lanes that hold zero points only; else any integer.

        Missing pixels are zeros of b in every lane: the product that is subtracted from other columns is subtracted from them too.
        """
        return all_integers(self.y_q) if super().requires_zeros(inputs, rounding) else frozenset({float(self.y_q.zero_point[0])})

    def apply(self, inputs: Sequence[Any]) -> Any:
        a, b = inputs
        n, _, h, w = a.shape
        a_heads = a.reshape(n, self.heads, -1, h * w).swapaxes(2, 3)  # [pixels, k]
        b_heads = b.reshape(n, self.heads, -1, b.shape[2] * b.shape[3])
        sums = products.matmul_sums(a_heads, self.a_q, b_heads if self.transposed else b_heads.swapaxes(2, 3), self.b_q)
        y = (fixed_point if self.fixed_point else linear).requantize(sums, self.scale, self.y_q)  # [n, heads, pixels, channels of y]
        return y.swapaxes(2, 3).reshape(n, -1, h, w)
