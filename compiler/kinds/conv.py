"""Convolutions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from compiler.ir.graph import Conv
from compiler.ir.im2col import Parts, parts_of
from compiler.unit.operators import KernelSpec
from compiler.unit.storages import Piece, StorageSpec


class Window(NamedTuple):
    """A convolution's window: kernel, stride, dilation, padding."""

    kh: int
    kw: int
    sh: int
    sw: int
    dh: int
    dw: int
    top: int
    left: int
    bottom: int
    right: int


@dataclass(frozen=True, eq=False)
class ConvSpec(KernelSpec):
    """groups products of [pixels x k1 blocks] by [k1 x n1 * 16 channels]; c1 input planes per group.  A Conv, or a MatMul (`kinds.matmul`).

    lanes: C0, or 4 for a four-lane image.  weights_at, bias_at: DDR blocks.
    """

    groups: int
    c1: int
    k1: int
    n1: int
    lanes: int
    weights_at: int
    bias_at: int

    @property
    def weight_blocks(self) -> int:
        return self.groups * self.n1 * self.k1 * 16

    @property
    def bias_blocks(self) -> int:
        return self.groups * self.n1 * 2

    @property
    def residual(self) -> Piece | None:
        return self.reads[1] if len(self.reads) > 1 else None

    @property
    def window(self) -> Window:
        conv = self.kernel
        assert isinstance(conv, Conv)
        kh, kw = conv.weights.shape[2:]
        return Window(kh, kw, *conv.stride, *conv.dilation, *conv.pads)

    @cached_property
    def parts(self) -> Parts:
        return parts_of(self.window[:2], self.window[4:6], self.lanes == 4)

    @property
    def activation(self) -> str:
        return self.kernel.activation if isinstance(self.kernel, Conv) else "none"

    @property
    def limit(self) -> float:
        """Of the activation `clip`."""
        return self.kernel.limit if isinstance(self.kernel, Conv) else 0.0

    @property
    def macs(self) -> int:
        """Multiply-accumulates of the model, without any padding."""
        assert isinstance(self.kernel, Conv)
        return self.out_h * self.out_w * int(self.kernel.weights.size)

    def signature(self, storages: Sequence[StorageSpec]) -> dict[str, object]:
        sizes = {"groups": self.groups, "c1": self.c1, "k1": self.k1, "n1": self.n1, "lanes": self.lanes}
        return super().signature(storages) | sizes | {"window": [*self.window], "act": self.activation}
