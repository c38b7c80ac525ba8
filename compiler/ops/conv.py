"""Convolutions on the matrix unit: lowering, tilings, cost, and jobs of their emitter.

Groups are joined to the largest equal groups of whole 16-channel blocks.  On CUBE, up to 15/16 of the products of a depthwise convolution
are therefore zeros.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from itertools import chain
from typing import Any, ClassVar, Literal, NamedTuple, Self, cast

import numpy as np
from numpy.typing import NDArray

from compiler.ir.im2col import Parts, split_kernel, unencodable_window
from compiler.ir.layout import Placement
from compiler.ir.operators import Conv, Convolution
from compiler.ir.region import Rows
from compiler.ops.base import Lowering, block_of_channels, run_of_planes
from compiler.ops.conv_emitter import (
    BY_UB,
    DIRECT,
    WEIGHT_PIECE_BLOCKS,
    WEIGHTS,
    ConvEpilogue,
    ConvGeometry,
    ConvJob,
    ConvOperands,
    ConvTiles,
)
from compiler.ops.tile_counts import l0_blocks
from compiler.ops.weight_expansion_emitter import ExpansionJob, overlaid_steps
from compiler.ops.window_geometry import all_padding, padded_columns
from compiler.plan.plan import ConvTiling, Infeasible, Tiling
from compiler.target import weights
from compiler.target.capabilities import L0, SINGLE_TILE, l0_of, least_ub_blocks, tile_slot, writes_result
from compiler.target.constants import Bytes
from compiler.target.loop_nest import Nest, Operand
from compiler.target.storage import StorageSpec, TensorSlice
from compiler.target.target_op import EmitInputs, Fetch, Strip, TargetOp, UbBuffers, round_up
from compiler.target.weight_expansion import Expansion, overlay_columns, pack_masks, pack_overlaid
from compiler.target.zero_blocks import EVERYWHERE, mark_multiplied, no_zero_blocks
from simulator.kernel_addresses import record_dtype, record_row
from simulator.npu.errors import UnsupportedError
from simulator.npu.fractal_sizes import COLUMNS
from simulator.npu.isa import REPEAT_BLOCKS, Activation, float_bits
from simulator.npu.machine import Machine
from simulator.npu.parts import BLOCK_BYTES, DataType, Engine, Fractal, Memory

_FIELDS: Any = record_dtype(ConvJob).fields
_BUFFERS, _EXPANSION = (slice(begin // 8, (begin + kind.itemsize) // 8) for kind, begin, *_ in (_FIELDS["buffers"], _FIELDS["expansion"]))
EXPANDED_BLOCKS = 512  # blocks of a slot of expanded weights in UB, 16 KiB: MTE3 empties a small slot sooner, and fewer zeros are written
_SLOT_OF_UB, _OVERLAID_OF_UB = 8, 4  # a slot of expanded weights takes at most 1/8 of UB; resident overlaid weights take at most 1/4


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
class ConvSpec(TargetOp):
    """A Conv, or a MatMul (`ops.matmul`): `groups` products of [pixels x k1 blocks] by [k1 blocks x n1 * 16 channels].

    fractal: fractal of the input's data type.  l0: L0 sizes of the machine.  c1: input planes per group.  lanes: C0, or 4 for a four-lane
    image.  weights_at, bias_at: DDR blocks of weights and biases; bias_at is -1 without biases.  run_of_k1: if the blocks of k are a run of
    the blocks in DDR (`segment.channel_splits`), the count of blocks of k in DDR; else 0.  expansion: compressed layout of weights in
    DDR; None if DDR holds the layout of L1.  needed: see `target.zero_blocks`.
    """

    word: ClassVar[str] = "conv"

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

    @classmethod
    def lower(cls, index: int, op: Any, lowering: Lowering) -> Self:
        return cls(**cls.lowered(index, op, lowering))

    @classmethod
    def lowered(cls, index: int, op: Convolution, lowering: Lowering) -> dict[str, Any]:
        """Fields of the target operator.  Raises `UnsupportedError`."""
        return cls.packed(index, op, lowering, op.weights, lowering.type_of(op.x), 0)

    @classmethod
    def packed(cls, index: int, op: Convolution, lowering: Lowering, values: NDArray[Any], dtype: DataType, fill: int) -> dict[str, Any]:
        """Fields of the target operator.  values: weights in `dtype`, the type of multiplication.  fill: value of missing weights."""
        if why := unencodable_window(op):
            raise UnsupportedError(f"operator {op.name!r}: {why}")
        x, y = lowering.layout.placements[op.x], lowering.layout.placements[op.y]
        fractal, c0, result = lowering.machine.fractal(lowering.type_of(op.x)), lowering.type_of(op.x).lanes, lowering.type_of(op.y)
        lanes = 4 if lowering.layout.storages[x.storage].pixel_lanes == 4 else c0
        groups = 1 if lanes == 4 else weights.effective_groups(op, x, y, result, fractal)
        taps, n = op.weights.shape[2] * op.weights.shape[3], y.planes * result.lanes
        if op.groups == 1 and result.lanes > fractal.columns and y.planes > 1:
            n = -(-(max(y.lanes) + 1) // fractal.columns) * fractal.columns  # FIXPIPE fills the upper half of the last plane up
        k1, n1 = -(-taps * 4 // c0) if lanes == 4 else x.planes // groups * taps, n // fractal.columns // groups

        pattern = None if fill else overlay_columns(op, x, y, n, groups, fractal)
        expansion = None if pattern is None else fit_expansion(pattern.expansion, groups, lowering.machine)

        def pack(out: Bytes) -> None:
            if expansion is not None and pattern is not None:
                pack_overlaid(values, op, x, y, pattern, groups, dtype, fractal, out)
            else:
                weights.pack_conv(weights.dense_weights(values, op.groups, fill), x, y, n, groups, dtype, fractal, lanes, out, fill)

        if expansion is not None and pattern is not None:
            expansion = expansion._replace(masks_at=lowering.constants.add(f"{op.name}/masks", pack_masks(pattern, dtype)))
        blocks = groups * k1 * (n1 * fractal.weight_blocks if expansion is None else expansion.overlaid)
        needed = EVERYWHERE
        # machines without L0A (`codegen.legalize_buffers`) and fills other than zero multiply whole tiles
        if op.groups > 1 and not fill and lowering.machine.has(Memory.L0A):
            needed = weights.needed_blocks(op, x, y, n, groups, fractal)
        return lowering.fields(index, op) | {
            "fractal": fractal,
            "l0": l0_of(lowering.machine),
            "groups": groups,
            "c1": x.planes // groups,
            "k1": k1,
            "n1": n1,
            "lanes": lanes,
            "weights_at": lowering.constants.reserve(f"{op.name}/weights", blocks * BLOCK_BYTES, pack),
            "expansion": expansion,
            "needed": EVERYWHERE if needed.all() else needed,
            "bias_at": cls.columns_at(op, y, n, lowering),
        }

    @classmethod
    def columns_at(cls, op: Any, y_place: Placement, lane_count: int, lowering: Lowering) -> int:
        """DDR block of FIXPIPE's vectors per channel: the bias, in the type of sums.  lane_count: lanes of the result."""
        return lowering.constants.add(f"{op.name}/bias", weights.pack_columns(op.bias, y_place, lane_count, DataType.float32))

    @property
    def weight_blocks(self) -> int:
        return self.groups * self.n1 * self.k1 * self.fractal.weight_blocks

    @property
    def stored_weight_blocks(self) -> int:
        return self.weight_blocks if self.expansion is None else self.groups * self.k1 * self.expansion.overlaid

    @cached_property
    def bias_blocks(self) -> int:
        """Blocks of FIXPIPE's vectors for all channels."""
        return self.groups * self.n1 * self.column_blocks if self.bias_at >= 0 else 0

    @cached_property
    def column_blocks(self) -> int:
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
        sizes |= {} if self.expansion is None else {"expansion": self._expanded_sizes}
        return sizes | ({"needed": [np.packbits(row).tobytes().hex() for row in self.needed.astype(np.bool_)]} if self.needed.size else {})

    @property
    def _expanded_sizes(self) -> list[int]:
        """Further numbers on which the cost of expanding weights depends."""
        e = self.expansion
        return [] if e is None else [e.overlaid, e.masks, e.planes, e.room, int(e.resident), *(run.columns for run in e.runs)]

    def sizes(self, storages: Sequence[StorageSpec]) -> tuple[object, ...]:
        geometry = self.in_h, self.in_w, self.out_h, self.out_w, self.groups, self.c1, self.k1, self.n1, self.lanes, *self.window
        rows = [storages[piece.storage].row_blocks for piece in (*self.reads, self.y)]
        sizes = tuple(self._expanded_sizes), self.needed.tobytes(), self.y.planes, self.bias_at >= 0
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

    def weight_slots(self, tiling: Tiling) -> tuple[int, int]:
        assert isinstance(tiling, ConvTiling)
        if tiling.weights == "streamed":
            return 2, min(tiling.chunk_n1, self.n1) * min(tiling.chunk_k1, self.k1) * self.fractal.weight_blocks
        if self.is_packed:
            return 1, self.groups * self._multiplied(tiling.tile_k1) * self.fractal.weight_blocks
        return (1, self.weight_blocks) if self.weight_blocks else (0, 0)

    @property
    def is_packed(self) -> bool:
        """Whether resident weights lie in L1 without the zero blocks beside their groups."""
        return self.expansion is not None and self.needed.size > 0 and self.expansion.overlaid >= REPEAT_BLOCKS

    def _multiplied(self, tile_k1: int) -> int:
        """Multiplied blocks of weights of a group, if tiles have tile_k1 blocks of k."""
        if tile_k1 not in self._blocks_multiplied:
            self._blocks_multiplied[tile_k1] = int(mark_multiplied(self.needed, self.k1, tile_k1).sum())
        return self._blocks_multiplied[tile_k1]

    @cached_property
    def _blocks_multiplied(self) -> dict[int, int]:
        return {}

    def ub_buffers(self, tiling: Tiling, through_ub: bool, dtype: DataType) -> tuple[UbBuffers, ...]:
        assert isinstance(tiling, ConvTiling)
        buffers = []
        if self.bias_blocks and tiling.constants == "resident":
            buffers.append(UbBuffers("constants", 1, round_up(self.bias_blocks, 8), True))
        elif self.bias_blocks:
            columns = self.n1 if tiling.weights == "resident" else min(tiling.chunk_n1, self.n1)
            buffers.append(UbBuffers("constants", 2, round_up(self.column_blocks * columns, 8)))
        columns = min(tiling.tile_n1, self.n1) * self.fractal.columns
        out, residual = (round_up(-(-columns // lanes) * tiling.tile_m, 8) for lanes in (dtype.lanes, self.residual_lanes))
        buffers += [UbBuffers("out", 2, out)] if through_ub else []
        buffers += [UbBuffers("residual", 2, residual)] if self.residual is not None else []
        return (*buffers, *self._expanding(tiling))

    def _expanding(self, tiling: ConvTiling) -> tuple[UbBuffers, ...]:
        """Buffers for expanding weights, all at once or chunk by chunk."""
        e = self.expansion
        if e is None:
            return ()
        resident = tiling.weights == "resident"
        arriving, expanded = self._slots(resident, tiling.chunk_n1, tiling.chunk_k1)
        buffers = [UbBuffers("arriving", 2, round_up(arriving, 8)), UbBuffers("expanded", 2, expanded)]
        if resident:
            return tuple(buffers)
        overlaid_blocks = e.mask_blocks + (self.stored_weight_blocks if e.resident else 0)
        return UbBuffers("overlaid", 1, round_up(overlaid_blocks, 8), True), *buffers[int(e.resident) :]

    def _slots(self, resident: bool, chunk_n1: int, chunk_k1: int) -> tuple[int, int]:
        """(blocks of a slot of overlaid weights, blocks of a slot of expanded weights).  Weights that are expanded at once lie behind
        their masks."""
        e, size = self.expansion, self.groups * self.n1 * self.k1
        assert e is not None
        if resident:
            arriving = e.mask_blocks + min(self.stored_weight_blocks, overlaid_steps(e.overlaid, self.k1) * e.overlaid)
        else:
            arriving = e.overlaid * min(chunk_k1, self.k1)
            size = min(chunk_n1, self.n1) * min(chunk_k1, self.k1)
        return arriving, min(e.room, size * self.fractal.weight_blocks)

    def nest(
        self, dtype: DataType, storages: Sequence[StorageSpec], rows: int, l1_reads: frozenset[int] = frozenset(), inside: bool = False
    ) -> Nest:
        left_bits, *other_bits = (storages[read.storage].dtype.size_bits for read in self.reads)
        lies = [Memory.L1 if i in l1_reads else Memory.DDR for i in range(len(self.reads))]
        right = lies[1] if self.right is not None else Memory.DDR
        reads = [Operand("x", ("g", "m", "k"), left_bits, lies[0], Memory.L0A), Operand("w", ("g", "n", "k"), left_bits, right, Memory.L0B)]
        if self.bias_blocks:
            bits = 8 * BLOCK_BYTES * self.column_blocks // self.fractal.columns
            reads.append(Operand("bias", ("g", "n"), bits, Memory.DDR, Memory.UB))
        if self.residual is not None:
            reads.append(Operand("residual", ("g", "m", "n"), other_bits[0], lies[1], Memory.UB))
        result = Operand("y", ("g", "m", "n"), dtype.size_bits, Memory.L1 if inside else Memory.DDR, Memory.L0C)
        loops = {"g": self.groups, "m": rows * self.out_w, "n": self.n1, "k": self.k1}
        main = self.reads[0]
        source = main.planes, self.input_rows(rows) * storages[main.storage].row_blocks
        of_product: dict[str, Any] = {"cut": self.parts.cut, "fractal": self.fractal, "l0": self.staying, "needed": self.needed}
        return Nest("CUBE", loops, tuple(reads), result, self.fractal.lanes, *source, **of_product)

    def job_row(self, inputs: EmitInputs) -> tuple[type[ConvJob], NDArray[np.int64]]:
        """The job as a row: cached by operator and tiling, with the addresses of buffers filled in."""
        tiling = inputs.tiling
        assert isinstance(tiling, ConvTiling)
        main, *operand_storages = [inputs.storages[piece.storage] for piece in self.reads]
        residual = operand_storages[0].dtype if operand_storages and self.residual is not None else 0
        row = _unplaced(self, tiling, inputs.machine, inputs.dtype, inputs.inside, main.dtype, main.row_blocks, residual).copy()
        weights, bias = self.chunk_slots(inputs), (*inputs.constants, -1, -1)[:2]
        row[_BUFFERS] = *_two(weights), *bias, *_two(inputs.tiles), *_two(inputs.residuals), self.first_zeros(inputs)
        if self.expansion is not None:
            row[_EXPANSION] = self.expansion_job(tiling, inputs.overlaid, inputs.arriving, inputs.expanded)
        return ConvJob, row

    def tiles_of(self, tiling: ConvTiling, machine: Machine) -> ConvTiles:
        """Parameters that depend on the tiling."""
        fractal = self.fractal
        resident, streams_bias = tiling.weights == "resident", self.bias_at >= 0 and tiling.constants == "streamed"
        blocks = l0_blocks(fractal.weight_blocks, fractal.sum_blocks, tiling.tile_m, tiling.tile_n1, tiling.tile_k1)
        slots = [tile_slot(machine, *pair) for pair in zip((Memory.L0A, Memory.L0B, Memory.L0C), blocks, strict=True)]
        return ConvTiles(
            int(resident),
            self.n1 if resident else min(tiling.chunk_n1, self.n1),
            self.k1 if resident else min(tiling.chunk_k1, self.k1),
            tiling.tile_m,
            tiling.tile_n1,
            tiling.tile_k1,
            int(tiling.order == "n"),
            self.bias_at if streams_bias else -1,
            *chain(*slots),
        )

    def geometry_of(self, pitch: int) -> ConvGeometry:
        """Sizes for the emitter.  pitch: blocks of a row of the main input."""
        kh, kw, sh, sw, dh, dw, _, pad_left, _, _ = self.window
        parts, fractal = self.parts, self.fractal
        return ConvGeometry(
            self.in_w, pitch, kh, kw, sh, sw, dh, dw, pad_left, parts.rows, parts.columns, self.lanes, self.out_w, self.groups, self.c1,
            self.k1, self.n1, fractal.rows, fractal.lanes, fractal.columns, fractal.weight_blocks, fractal.sum_blocks,
        )  # fmt: skip

    def epilogue_of(self, machine: Machine, dtype: DataType, inside: bool, residual: int) -> ConvEpilogue:
        """FIXPIPE's parameters.  inside: whether the result stays on chip.  dtype, residual: types of result and residual (0: none)."""
        direct = writes_result(machine, inside)
        path = machine.path(Memory.L0C, machine.vector_memory if not direct else Memory.L1 if inside else Memory.DDR)
        assert path is not None
        act, limit = int(Activation[self.activation]), float_bits(self.limit) if self.activation == "clip" else 0
        engine = int(Engine[path.engine])
        return ConvEpilogue(
            act, limit, DIRECT if direct else BY_UB, dtype.lanes, self.residual_lanes, engine, int(residual), **self.requantised()
        )

    def expansion_job(
        self, tiling: ConvTiling, overlaid: tuple[int, ...] = (), arriving: tuple[int, ...] = (), expanded: tuple[int, ...] = ()
    ) -> ExpansionJob:
        """Expansion in the UB buffers of `_expanding`.  Consecutive operators use the slots of arriving weights in opposite order."""
        e = self.expansion
        if e is None:
            return ExpansionJob()
        resident, (first, second) = tiling.weights == "resident", _two(arriving)
        _, room = self._slots(resident, tiling.chunk_n1, tiling.chunk_k1)
        if self.tag % 2:
            first, second = second, first
        masks_at = first if resident else _two(overlaid)[0]
        if resident:
            first, second = first + e.mask_blocks, second + e.mask_blocks
            if self.stored_weight_blocks <= overlaid_steps(e.overlaid, self.k1) * e.overlaid:
                second = first
        elif e.resident:
            first = second = masks_at + e.mask_blocks
        slots = masks_at, first, second, *_two(expanded), room
        across = int(e.overlaid < REPEAT_BLOCKS)
        tile = int(self.is_packed and resident), tiling.tile_n1, tiling.tile_k1
        return ExpansionJob(e.overlaid, e.masks, e.planes, e.taps, across, *slots, int(e.resident and not resident), e.startup, *tile)

    def tables(self) -> list[NDArray[np.int64]]:
        """Tables of the emitter: runs of columns of the expansion, and `needed`."""
        runs = np.array([] if self.expansion is None else self.expansion.runs, np.int64)
        return [runs, self.needed] if self.needed.size else [runs] if runs.size else []

    def chunk_slots(self, inputs: EmitInputs) -> tuple[int, ...]:
        """L1 blocks of the resident weights, or of the two slots of chunks."""
        return inputs.weights

    def first_zeros(self, inputs: EmitInputs) -> int:
        """L1 block of the constants for the zero point of the right operand."""
        del inputs
        return 0

    def operands_of(self, read: DataType) -> ConvOperands:
        """Operands of the products.  read: data type of the main input."""
        return ConvOperands(int(read), self.weights_at, self.run_of_k1 or self.k1, *self._right_operand())

    def requantised(self) -> dict[str, int]:
        """Fields of `ConvEpilogue` for the conversion of integer sums; none for floats."""
        return {}

    def _right_operand(self) -> tuple[int, int, int]:
        """(right, right_planes, right_pixels) of `ConvOperands`."""
        return WEIGHTS, 0, 0

    def column_fetches(self) -> list[Fetch]:
        """Fetches of FIXPIPE's vectors for all channels, to blocks of UB from 0 on."""
        return [Fetch(Memory.UB, self.bias_at, 0, self.bias_blocks)]

    def weight_fetches(self) -> list[Fetch]:
        """Fetches of resident weights without expansion, to blocks of L1 from 0 on."""
        if not self.weight_blocks or self.expansion is not None:
            return []
        gap, runs = (self.run_of_k1 - self.k1) * self.fractal.weight_blocks, self.n1 if self.run_of_k1 else 1
        size = self.weight_blocks // runs  # a run of k lies apart in every n1
        return [Fetch(Memory.L1, self.weights_at + i * (size + gap), i * size, size, WEIGHT_PIECE_BLOCKS) for i in range(runs)]

    @cached_property
    def _fetches(self) -> tuple[list[Fetch], list[Fetch]]:
        """Fetches of columns and of weights."""
        return self.column_fetches() if self.bias_blocks else [], self.weight_fetches()

    def fetches(self, inputs: EmitInputs) -> list[Fetch]:
        tiling = inputs.tiling
        assert isinstance(tiling, ConvTiling)
        columns, weights = self._fetches
        resident, e, fetches = tiling.weights == "resident", self.expansion, list[Fetch]()
        if columns and tiling.constants == "resident":
            fetches += move_fetches(columns, inputs.constants[0])
        if e is not None:  # `expand_all` loads weights that are expanded at once
            job = self.expansion_job(tiling, inputs.overlaid, inputs.arriving)
            fetches.append(Fetch(Memory.UB, e.masks_at, job.masks_at, e.mask_blocks))
            if job.resident_overlays:
                fetches.append(Fetch(Memory.UB, self.weights_at, job.overlaid_0, self.stored_weight_blocks))
        elif weights and resident:
            fetches += move_fetches(weights, self.chunk_slots(inputs)[0])
        return fetches


def move_fetches(fetches: Sequence[Fetch], first: int) -> list[Fetch]:
    """Fetches with targets from 0 on, moved to targets from `first` on."""
    return [Fetch(memory, source, first + target, blocks, piece) for memory, source, target, blocks, piece in fetches]


@lru_cache(maxsize=1 << 14)
def _unplaced(
    spec: ConvSpec, tiling: ConvTiling, machine: Machine, dtype: DataType, inside: bool, read: DataType, pitch: int, residual: int
) -> NDArray[np.int64]:
    """The numbers of a job, without buffer addresses.  Parameters: see `_of_operator`."""
    parts = _of_operator(spec, machine, dtype, inside, read, pitch, residual)
    return record_row(ConvJob(int(dtype), spec.tag, *parts, spec.tiles_of(tiling, machine)))


@lru_cache(maxsize=1 << 12)
def _of_operator(
    spec: ConvSpec, machine: Machine, dtype: DataType, inside: bool, read: DataType, pitch: int, residual: int
) -> tuple[ConvGeometry, ConvOperands, ConvEpilogue]:
    """Parts of a job that all tilings share.  The cache saves the float32 divisions of the scales.

    inside: whether the result stays on chip.  dtype, read, residual: data types of the result, the main input and the residual (0: none).
    pitch: blocks of a row of the main input.
    """
    return spec.geometry_of(pitch), spec.operands_of(read), spec.epilogue_of(machine, dtype, inside, residual)


def product_of(spec: TargetOp) -> ConvSpec | None:
    """The operator as a product of the matrix unit; None for an operator of VECTOR."""
    return cast("ConvSpec", spec) if spec.runs_on == "CUBE" else None  # `isinstance` is slow for abstract classes


def fit_expansion(expansion: Expansion, groups: int, machine: Machine) -> Expansion | None:
    """The expansion with its fields for UB set.  None if its slots do not fit UB, or if VECTOR does not compute in bytes."""
    if DataType.uint8 not in machine.data_types:
        return None
    ub, stored = least_ub_blocks(machine), groups * expansion.planes * expansion.taps * expansion.overlaid
    room = min(EXPANDED_BLOCKS, ub // _SLOT_OF_UB // COLUMNS * COLUMNS)
    piece = overlaid_steps(expansion.overlaid, expansion.planes * expansion.taps) * expansion.overlaid
    if 2 * (expansion.mask_blocks + min(stored, piece) + room) > ub // 4 * 3:
        return None
    deep = max(1, ub // _OVERLAID_OF_UB // expansion.overlaid)  # two slots take half of UB
    fits_ub, startup = expansion.mask_blocks + stored <= ub // _OVERLAID_OF_UB, machine.vector.startup_cycles
    return expansion._replace(resident=fits_ub, room=room, deep=deep, startup=startup)


def _two(slots: tuple[int, ...]) -> tuple[int, int]:
    """Addresses of two slots; a single slot counts twice."""
    return (slots[0], slots[-1]) if slots else (0, 0)
