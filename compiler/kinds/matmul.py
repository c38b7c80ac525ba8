"""Products of two tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from compiler.kinds.conv import ConvSpec, Window
from compiler.unit.storages import Piece, StorageSpec


@dataclass(frozen=True, eq=False)
class MatMulSpec(ConvSpec):
    """A product whose right operand is reads[1] of `pixels` pixels: a 1x1 convolution without bias.

    Resident weights: all of the right operand lies in L1; streamed: it comes in chunks.  per_pixel: multiply-accumulates of one pixel.
    """

    pixels: int
    transposed: bool
    per_pixel: int

    @property
    def weight_blocks(self) -> int:
        return 0

    @property
    def bias_blocks(self) -> int:
        return 0

    @property
    def residual(self) -> Piece | None:
        return None

    @property
    def window(self) -> Window:
        return Window(1, 1, 1, 1, 1, 1, 0, 0, 0, 0)

    @property
    def macs(self) -> int:
        return self.out_h * self.out_w * self.per_pixel

    def signature(self, storages: Sequence[StorageSpec]) -> dict[str, object]:
        return super().signature(storages) | {"pixels": self.pixels, "transposed": self.transposed}
