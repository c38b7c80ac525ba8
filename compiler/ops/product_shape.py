"""Sizes of a product of the matrix unit, its parts along channels and columns, and its loop nest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, Literal, NamedTuple, Self, cast

import numpy as np
from numpy.typing import NDArray

from compiler.ir.im2col import Parts, split_kernel
from compiler.ir.operators import Conv, Convolution
from compiler.ir.region import Rows
from compiler.ops.base import block_of_channels, run_of_planes
from compiler.ops.window_geometry import all_padding, padded_columns
from compiler.plan.plan import Infeasible
from compiler.target.capabilities import L0, SINGLE_TILE
from compiler.target.loop_nest import Nest, Operand
from compiler.target.storage import StorageSpec, TensorSlice
from compiler.target.target_op import Strip, TargetOp
from compiler.target.weight_expansion import Expansion
from compiler.target.zero_blocks import mark_multiplied, no_zero_blocks
from simulator.npu.isa import REPEAT_BLOCKS
from simulator.npu.parts import BLOCK_BYTES, DataType, Fractal, Memory


class Window(NamedTuple):
    """A convolution's window: kernel, stride, dilation, padding."""

    kh: int
    kw: int
    sh: int
    sw: int
    dh: int
    dw: int
    pad_top: int
    pad_left: int
    pad_bottom: int
    pad_right: int


@dataclass(frozen=True, eq=False)
class ProductShape(TargetOp):
    """A Conv, or a MatMul (`ops.matmul`): `groups` products of [pixels x k1 blocks] by [k1 blocks x n1 * 16 channels].

    fractal: fractal of the input's data type.  l0: L0 sizes of the machine.  c1: input planes per group.  lanes: C0, or 4 for a four-lane
    image.  weights_at, bias_at: DDR blocks of weights and biases; bias_at is -1 without biases.  run_of_k1: if the blocks of k are a run of
    the blocks in DDR (`segment.channel_splits`), the count of blocks of k in DDR; else 0.  expansion: compressed layout of weights in
    DDR; None if DDR holds the layout of L1.  needed: see `target.zero_blocks`.
    """

    runs_on: ClassVar[Literal["CUBE", "VECTOR"]] = "CUBE"

    fractal: Fractal
    l0: L0
    groups: int
    c1: int
    k1: int
    n1: int
    lanes: int
    weights_at: int
    bias_at: int
    run_of_k1: int = field(default=0, kw_only=True)
    expansion: Expansion | None = field(default=None, kw_only=True)
    needed: NDArray[np.int64] = field(default_factory=no_zero_blocks, kw_only=True)

    @property
    def weight_blocks(self) -> int:
        return self.groups * self.n1 * self.k1 * self.fractal.weight_blocks

    @property
    def stored_weight_blocks(self) -> int:
        return self.weight_blocks if self.expansion is None else self.groups * self.k1 * self.expansion.overlaid

    @cached_property
    def bias_blocks(self) -> int:
        """Blocks of FIXPIPE's vectors for all channels."""
        return self.groups * self.n1 * self.channel_vector_blocks if self.bias_at >= 0 else 0

    @cached_property
    def channel_vector_blocks(self) -> int:
        """Blocks of FIXPIPE's vectors for a fractal's channels."""
        return self.fractal.sum_blocks

    @property
    def result_lanes(self) -> int:
        """C0 of the result."""
        return self._lanes_of(self.y)

    @property
    def residual_lanes(self) -> int:
        """C0 of the residual; without a residual, C0 of the result."""
        return self._lanes_of(self.y if self.residual is None else self.residual)

    def _lanes_of(self, piece: TensorSlice) -> int:
        """C0 of a tensor with the result's channels.  The upper half of its last plane may lie outside the product."""
        return 1 << (-(-self.groups * self.n1 * self.fractal.columns // piece.planes) - 1).bit_length()

    @property
    def n1_step(self) -> int:
        """Step of tiles along n1: the fractals of one plane of the result."""
        return max(1, self.result_lanes // self.fractal.columns)

    @property
    def residual(self) -> TensorSlice | None:
        return self.reads[1] if len(self.reads) > 1 else None

    @property
    def window(self) -> Window:
        conv = self.operator
        assert isinstance(conv, Convolution)
        kh, kw = conv.weights.shape[2:]
        return Window(kh, kw, *conv.stride, *conv.dilation, *conv.pads)

    @cached_property
    def parts(self) -> Parts:
        return split_kernel(self.window[:2], self.window[4:6], self.pixels_per_block)

    @property
    def products(self) -> int:
        """Matrix products that are added up in every sum: one, and one per constant of a zero point."""
        return 1

    @property
    def staying(self) -> L0:
        """L0 sizes for tiles that stay; `SINGLE_TILE` if zero points need products, because their constants take slots too."""
        return self.l0 if self.products == 1 else SINGLE_TILE

    @property
    def activation(self) -> str:
        return self.operator.activation if isinstance(self.operator, Conv) else "none"

    @property
    def limit(self) -> float:
        """Upper limit of the activation `clip`."""
        return self.operator.limit if isinstance(self.operator, Conv) else 0.0

    @property
    def macs(self) -> int:
        """Multiply-accumulates of the model, without any padding."""
        assert isinstance(self.operator, Convolution)
        return self.out_h * self.out_w * int(self.operator.weights.size)

    def described(self) -> dict[str, object]:
        sizes: dict[str, object] = {"groups": self.groups, "c1": self.c1, "k1": self.k1, "n1": self.n1, "lanes": self.lanes}
        sizes |= {"window": [*self.window], "act": self.activation}
        sizes |= {} if self.expansion is None else {"expansion": self.expanded_sizes}
        return sizes | ({"needed": [np.packbits(row).tobytes().hex() for row in self.needed.astype(np.bool_)]} if self.needed.size else {})

    @property
    def expanded_sizes(self) -> list[int]:
        """Further numbers on which the cost of expanding weights depends."""
        e = self.expansion
        return [] if e is None else [e.overlaid, e.masks, e.planes, e.room, int(e.resident), *(run.columns for run in e.runs)]

    def sizes(self, storages: Sequence[StorageSpec]) -> tuple[object, ...]:
        geometry = self.in_h, self.in_w, self.out_h, self.out_w, self.groups, self.c1, self.k1, self.n1, self.lanes, *self.window
        rows = [storages[piece.storage].row_blocks for piece in (*self.reads, self.y)]
        sizes = tuple(self.expanded_sizes), self.needed.tobytes(), self.y.planes, self.bias_at >= 0
        return (*geometry, *sizes, *(read.planes for read in self.reads), *rows)

    @property
    def pixels_per_block(self) -> int:
        return self.fractal.lanes // self.lanes

    def channel_step(self, count: int, dtype: DataType) -> int | str:
        return self.y.planes // self.groups if self.groups >= count else block_of_channels(self, dtype)

    def channel_part(self, first: int, last: int, dtype: DataType) -> Self | None:
        cut = self.cut_groups(first, last)
        if cut is None:
            return None
        group, groups = cut
        reads = [self.reads[0] if self.groups == 1 else run_of_planes(self.reads[0], group * self.c1, (group + groups) * self.c1)]
        if self.residual is not None:  # it may have another type: sums of an earlier pass
            reads.append(run_of_planes(self.residual, *(plane * dtype.lanes // self.residual_lanes for plane in (first, last))))
        # skip weights and columns in front of the part; the upper half of the last plane may lie outside the product
        n, n_before = (size * dtype.lanes // self.fractal.columns for size in (last - first, first))
        n = min(n, self.groups * self.n1 - n_before)
        expansion, before = self.expansion, n_before * (self.run_of_k1 or self.k1) * self.fractal.weight_blocks
        n_group = n_before - group * self.n1
        if expansion is not None:  # a part of the columns needs all overlaid blocks of its groups
            expansion = expansion.part(n_group * self.fractal.columns, n // groups * self.fractal.columns)
            before = group * self.k1 * expansion.overlaid
        return replace(
            self,
            y=run_of_planes(self.y, first, last),
            reads=tuple(reads),
            groups=groups,
            n1=n // groups,
            weights_at=self.weights_at + before,
            expansion=expansion,
            needed=self.needed[n_group : n_group + n // groups],
            bias_at=self.bias_at if self.bias_at < 0 else self.bias_at + n_before * self.fractal.sum_blocks,
        )

    def cut_groups(self, first: int, last: int) -> tuple[int, int] | None:
        """(first group, number of groups) of result planes [first, last); None unless they are whole groups or lie in one group."""
        deep = self.y.planes // self.groups
        group, stop = first // deep, -(-last // deep)
        return None if stop - group > 1 and (first % deep or last % deep) else (group, stop - group)

    def narrowed(self, strip: Strip, in_columns: Rows, out_columns: Rows) -> Self | Infeasible:
        conv = self.operator
        assert isinstance(conv, Convolution)
        pads = padded_columns(conv, in_columns, out_columns)
        if out_columns.start * conv.stride[1] - conv.pads[1] >= self.in_w:
            # every window lies in the padding behind the image; equal padding in front of the image is encodable
            all_of_it = all_padding(conv, in_columns, out_columns)
            if all_of_it is None:
                return Infeasible(self.name, f"a strip of {out_columns.size} columns lies in its padding as a whole")
            pads = all_of_it
        return replace(self, strip=strip, in_w=in_columns.size, out_w=out_columns.size, operator=replace(cast("Any", conv), pads=pads))

    @property
    def is_packed(self) -> bool:
        """Whether resident weights lie in L1 without the zero blocks beside their groups."""
        return self.expansion is not None and self.needed.size > 0 and self.expansion.overlaid >= REPEAT_BLOCKS

    def multiplied_blocks(self, tile_k1: int) -> int:
        """Multiplied blocks of weights of a group, if tiles have tile_k1 blocks of k."""
        if tile_k1 not in self._blocks_multiplied:
            self._blocks_multiplied[tile_k1] = int(mark_multiplied(self.needed, self.k1, tile_k1).sum())
        return self._blocks_multiplied[tile_k1]

    @cached_property
    def _blocks_multiplied(self) -> dict[int, int]:
        return {}

    def nest(
        self, dtype: DataType, storages: Sequence[StorageSpec], rows: int, l1_reads: frozenset[int] = frozenset(), inside: bool = False
    ) -> Nest:
        left_bits, *other_bits = (storages[read.storage].dtype.size_bits for read in self.reads)
        lies = [Memory.L1 if i in l1_reads else Memory.DDR for i in range(len(self.reads))]
        right = lies[1] if self.right is not None else Memory.DDR
        reads = [Operand("x", ("g", "m", "k"), left_bits, lies[0], Memory.L0A), Operand("w", ("g", "n", "k"), left_bits, right, Memory.L0B)]
        if self.bias_blocks:
            bits = 8 * BLOCK_BYTES * self.channel_vector_blocks // self.fractal.columns
            reads.append(Operand("bias", ("g", "n"), bits, Memory.DDR, Memory.UB))
        if self.residual is not None:
            reads.append(Operand("residual", ("g", "m", "n"), other_bits[0], lies[1], Memory.UB))
        result = Operand("y", ("g", "m", "n"), dtype.size_bits, Memory.L1 if inside else Memory.DDR, Memory.L0C)
        loops = {"g": self.groups, "m": rows * self.out_w, "n": self.n1, "k": self.k1}
        main = self.reads[0]
        source = main.planes, self.input_rows(rows) * storages[main.storage].row_blocks
        of_product: dict[str, Any] = {"cut": self.parts.cut, "fractal": self.fractal, "l0": self.staying, "needed": self.needed}
        return Nest("CUBE", loops, tuple(reads), result, self.fractal.lanes, *source, **of_product)
