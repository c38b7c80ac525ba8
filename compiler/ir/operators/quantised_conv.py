"""Convolutions, and products with constants, of integers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compiler.ir.operators.base import Spell, Type, Values
from compiler.ir.operators.conv import Convolution
from compiler.ir.quantised.linear import output_scale, requantize
from compiler.ir.quantised.parameters import Floats, Integers, Quantisation
from compiler.ir.quantised.products import SlidingWindow, check_bound, conv_sums
from simulator.npu.errors import UnsupportedError
from simulator.npu.parts import DataType

_CENTRED = (DataType.int8, DataType.uint8)  # types that weights less their zero point may be held in, the first that holds them


@dataclass(frozen=True, eq=False)
class QuantisedConv(Convolution):
    """y = the sums of (x - zero point) * (weights - zero points) + bias, requantised, cut to [low, high] (QLinearConv).

    Also QLinearMatMul and QGemm with constant weights (a kernel as large as the image).  weights: int8 or uint8, as the model has them.
    bias: int32 [c_out].  low, high: a ReLU or Clip behind it, in integers of y; all of y's type unless given.
    """

    x_q: Quantisation = field(kw_only=True)
    w_q: Quantisation = field(kw_only=True)
    y_q: Quantisation = field(kw_only=True)
    low: int | None = field(default=None, kw_only=True)
    high: int | None = field(default=None, kw_only=True)

    @property
    def limits(self) -> tuple[int, int]:
        """The least and the greatest integer of y."""
        least, greatest = self.y_q.limits
        return least if self.low is None else max(least, self.low), greatest if self.high is None else min(greatest, self.high)

    @property
    def scale(self) -> Floats:
        """float32 [c_out] that sums are multiplied by."""
        return np.broadcast_to(output_scale(self.x_q, self.w_q, self.y_q), len(self.bias)).astype(np.float32)

    def centred(self) -> tuple[Integers, DataType]:
        """Weights less their zero points, and the type that holds them.  Raises `UnsupportedError` where none does."""
        found = self.weights.astype(np.int64) - self.w_q.of_channels(0, self.name).along(self.weights.ndim)[1]
        least, greatest = int(found.min(initial=0)), int(found.max(initial=0))
        for dtype in _CENTRED:
            limits = np.iinfo(dtype.storage)
            if limits.min <= least and greatest <= limits.max:
                return found.astype(dtype.storage), dtype
        raise UnsupportedError(
            f"operator {self.name!r}: weights of {least} to {greatest} around their zero point; -128 to 127 or 0 to 255 is supported"
        )

    def folded(self) -> NDArray[np.int32]:
        """int32 [c_out], the bias of sums of x * `centred`: the zero point of x is in it.  Padding is that zero point, so it cancels."""
        zero = self.x_q.single(self.name)[1]
        sums = self.centred()[0].astype(np.int64).sum(axis=(1, 2, 3))
        return (self.bias.astype(np.int64) - zero * sums).astype(np.int32)

    def verify(self) -> None:
        """Raise `BadInputError` where sums may be beyond int32."""
        check_bound(self.x_q, self.weights, self.w_q, 0, self.bias, self.name)

    def result_type(self, inputs: Sequence[Type]) -> Type:
        if list(inputs) != [DataType[self.x_q.dtype.name]]:
            found = "float" if inputs[0] is None else inputs[0].name
            raise ValueError(f"an input of type {found}; accepted: {self.x_q.dtype}")
        return DataType[self.y_q.dtype.name]

    def attributes(self, spell: Spell) -> list[str]:
        out = super().attributes(spell)
        least, greatest = self.limits
        return out if (least, greatest) == self.y_q.limits else [*out, f"limits={least},{greatest}"]

    def padding(self, inputs: Sequence[Values], rounding: type[np.floating]) -> Values:
        least, greatest = self.limits  # weights, bias and scale are zero there
        return frozenset({float(min(max(self.y_q.single(self.name)[1], least), greatest))})

    def apply(self, inputs: Sequence[NDArray[Any]]) -> NDArray[Any]:
        window = SlidingWindow(self.weights.shape[2:], self.stride, self.pads, self.dilation, self.groups)
        sums = conv_sums(inputs[0], self.x_q, self.weights, self.w_q, window, self.bias)
        return np.clip(requantize(sums, self.scale.reshape(-1, 1, 1), self.y_q), *self.limits)


def identity(name: str, x: str, y: str, dtype: DataType, order: Sequence[int], channels: int) -> QuantisedConv:
    """Channels `order` of x, each as it is: a scale of 1 and a zero point of 0 keep every integer."""
    q = Quantisation.of(np.float32(1), None, dtype.storage)
    weights = np.eye(channels, dtype=np.int8)[list(order)][:, :, None, None]
    one = Quantisation.of(np.float32(1), None, np.int8)
    return QuantisedConv(name, x, y, weights, np.zeros(len(weights), np.int32), x_q=q, w_q=one, y_q=q)
