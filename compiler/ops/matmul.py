"""Matrix products of two tensors, as 1x1 convolutions with a computed right operand.

FRACTAL loads the right operand of an attention product into L0B.  Every head is a run of channels in separate planes, so joining heads
costs nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

from compiler.ir.operators import HeadedProduct, MatMul
from compiler.ops.base import Lowering, run_of_planes
from compiler.ops.conv import ConvSpec
from compiler.ops.conv_job import PIXELS_K, PIXELS_N
from compiler.ops.product_shape import Window
from compiler.target.capabilities import l0_of
from compiler.target.storage import StorageSpec, TensorSlice
from simulator.npu.errors import UnsupportedError
from simulator.npu.parts import DataType, Memory


@dataclass(frozen=True, eq=False)
class MatMulSpec(ConvSpec):
    """A product as a 1x1 convolution.  The right operand is the tensor reads[1]; it is resident in L1, or streamed in chunks.

    pixels: pixels of the right operand.  transposed: whether these pixels are columns of the matrix, else rows.  per_pixel:
    multiply-accumulates per pixel of the result.
    """

    word: ClassVar[str] = "matmul"

    pixels: int
    transposed: bool
    per_pixel: int

    @classmethod
    def lowered_fields(cls, index: int, op: Any, lowering: Lowering) -> dict[str, Any]:
        assert isinstance(op, HeadedProduct)
        if not lowering.machine.has(Memory.L0B):
            why = "a product of two tensors, whose right one only L0B brings into order"
            raise UnsupportedError(f"operator {op.name!r}: {why}; machine {lowering.machine.name} has none")
        a, y = lowering.layout.placements[op.a], lowering.layout.placements[op.y]
        _, channels, h, w = lowering.layout.graph.shapes[op.b]
        bias_at = (
            -1
            if not isinstance(op, MatMul) or op.bias is None
            else cls.channel_vectors_at(op, y, y.planes * lowering.type_of(op.y).lanes, lowering)
        )
        pixels, heads, fractal = h * w, op.heads, lowering.machine.fractal(lowering.type_of(op.a))
        return lowering.fields(index, op) | {
            "fractal": fractal,
            "l0": l0_of(lowering.machine),
            "groups": heads,
            "c1": a.planes // heads,
            "k1": a.planes // heads if op.transposed else -(-pixels // fractal.lanes),
            "n1": y.planes * lowering.type_of(op.y).lanes // fractal.columns // heads,
            "lanes": fractal.lanes,
            "weights_at": -1,
            "bias_at": bias_at,
            "pixels": pixels,
            "transposed": op.transposed,
            "per_pixel": channels * pixels,
        }

    @property
    def n1_step(self) -> int:
        """Step of tiles along n1.  Floats beside integers have empty fractals behind the last pixel; no tile may have only these."""
        excess = self.n1 - -(-self.pixels // self.fractal.columns) if self.transposed else 0
        return max(super().n1_step, 1 + excess)

    @property
    def biased(self) -> bool:
        """Whether there is a bias per channel; products of integers have none."""
        return isinstance(self.operator, MatMul) and self.operator.bias is not None

    @property
    def weight_blocks(self) -> int:
        return 0

    @property
    def residual(self) -> TensorSlice | None:
        return None

    @property
    def window(self) -> Window:
        return Window(1, 1, 1, 1, 1, 1, 0, 0, 0, 0)

    @property
    def macs(self) -> int:
        return self.out_h * self.out_w * self.per_pixel

    def described(self) -> dict[str, object]:
        description = super().described() | {"pixels": self.pixels, "transposed": self.transposed}
        return description | {"bias": True} if self.biased else description

    def sizes(self, storages: Sequence[StorageSpec]) -> tuple[object, ...]:
        return (self,)

    @property
    def right(self) -> TensorSlice | None:
        return self.reads[1]

    @property
    def right_blocks(self) -> int:
        """Blocks of the right operand."""
        return self.reads[1].planes * self.pixels

    @property
    def strip_refusal(self) -> str:
        return "a product of two tensors needs all columns of its right operand in every strip"

    def channel_step(self, count: int, dtype: DataType) -> int | str:
        return self.y.planes // self.groups

    def channel_part(self, first: int, last: int, dtype: DataType) -> Self | None:
        cut = self.cut_groups(first, last)
        if cut is None:
            return None
        group, groups = cut
        left_planes, right_planes = self.c1, self.reads[1].planes // self.groups
        reads = [self.reads[0] if self.groups == 1 else run_of_planes(self.reads[0], group * left_planes, (group + groups) * left_planes)]
        reads.append(run_of_planes(self.reads[1], group * right_planes, (group + groups) * right_planes))
        per_pixel = self.per_pixel * groups // self.groups
        before = group * self.n1 * self.fractal.sum_blocks if self.biased else 0
        y = run_of_planes(self.y, first, last)
        return replace(self, y=y, reads=tuple(reads), groups=groups, per_pixel=per_pixel, bias_at=self.bias_at + before)

    def _right_operand(self) -> tuple[int, int, int]:
        return PIXELS_N if self.transposed else PIXELS_K, self.reads[1].planes // self.groups, self.pixels
