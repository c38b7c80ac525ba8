"""Convolutions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Any, ClassVar, Literal, NamedTuple, Self, cast

import numpy as np
from numpy.typing import NDArray

from compiler.ir.im2col import Parts, split_kernel, unencodable_window
from compiler.ir.layout import Placement
from compiler.ir.operators import Conv, Convolution
from compiler.ir.region import Rows
from compiler.ops.base import Lowering, block_of_channels, run_of_planes
from compiler.ops.conv_emitter import TO_DDR, TO_L1, TO_L1_BY_UB, WEIGHT_PIECE_BLOCKS, WEIGHTS, ConvJob
from compiler.ops.sliding_window import all_padding, padded_columns
from compiler.ops.tile_counts import l0_blocks
from compiler.ops.weight_expansion_emitter import ExpansionJob, overlaid_steps
from compiler.plan.plan import ConvTiling, Infeasible, Tiling
from compiler.target import weights
from compiler.target.capabilities import ALONE, L0, l0_of, least_ub_blocks, tile_slot, writes_l1
from compiler.target.constants import Bytes
from compiler.target.loop_nest import Nest, Operand
from compiler.target.storage import StorageSpec, TensorSlice
from compiler.target.target_op import EmitInputs, Fetch, Strip, TargetOp, UbBuffers, rounded
from compiler.target.weight_expansion import Expansion, overlay, pack_masks, pack_overlaid
from compiler.target.zero_blocks import EVERYWHERE, everywhere, multiplied
from simulator.npu.errors import UnsupportedError
from simulator.npu.isa import REPEAT_BLOCKS, Activation, float_bits
from simulator.npu.machine import Machine
from simulator.npu.parts import BLOCK_BYTES, DataType, Engine, Fractal, Memory
from simulator.npu.tiles import COLUMNS

OF_INTEGERS = (  # fields of `ConvJob`
    "right_type", "pad", "sums", "scale_after", "scale_at", "zero", "low", "high", "added", "own", "other", "fixed",
    "last", "alike", "left_less", "left_less_1", "left_type",
    "zeros", "zeros_type", "missing",
)  # fmt: skip
_OF_PLACES = ("weights_0", "weights_1", "bias", "bias_1", "out_0", "out_1", "res_0", "res_1", "zeros_at")
_PLACES, _EXPANSION = (np.array([ConvJob._fields.index(name) for name in names]) for names in (_OF_PLACES, ExpansionJob._fields))
EXPANDED_BLOCKS = 512  # of a slot in UB, 16 KiB: the less a slot holds, the sooner MTE3 may bring it away, and the fewer zeros are made
_SLOT_OF_UB, _KEPT_OF_UB = 8, 4  # parts of UB of which a slot of expanded weights, and what of overlaid ones stays, take one at most


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
class ConvSpec(TargetOp):
    """groups products of [pixels x k1 blocks] by [k1 x n1 * 16 channels]; c1 input planes per group.  A Conv, or a MatMul (`ops.matmul`).

    fractal: of operands of its input's type.  l0: of its machine.  lanes: C0, or 4 for a four-lane image.  weights_at, bias_at: DDR
    blocks; a bias of -1 is none.  run_of_k1: where its blocks of k are a run of those of weights in DDR (`segment.channel_splits`), how
    many these are, else 0.  expansion: how weights lie in DDR, where they do not lie there as in L1.  needed: see `target.zero_blocks`.
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
    needed: NDArray[np.int64] = field(default_factory=everywhere, kw_only=True)

    @classmethod
    def lower(cls, index: int, op: Any, into: Lowering) -> Self:
        return cls(**cls.lowered(index, op, into))

    @classmethod
    def lowered(cls, index: int, op: Convolution, into: Lowering) -> dict[str, Any]:
        """Its fields.  Raises `UnsupportedError`."""
        return cls.packed(index, op, into, op.weights, into.type_of(op.x), 0)

    @classmethod
    def packed(cls, index: int, op: Convolution, into: Lowering, values: NDArray[Any], dtype: DataType, beside: int) -> dict[str, Any]:
        """As `lowered`.  values: weights as the machine multiplies them, of type dtype.  beside: what stands where there are none."""
        if why := unencodable_window(op):
            raise UnsupportedError(f"operator {op.name!r}: {why}")
        x, y = into.layout.placements[op.x], into.layout.placements[op.y]
        fractal, c0, result = into.machine.fractal(into.type_of(op.x)), into.type_of(op.x).lanes, into.type_of(op.y)
        lanes = 4 if into.layout.storages[x.storage].pixel_lanes == 4 else c0
        groups = 1 if lanes == 4 else weights.effective_groups(op, x, y, result, fractal)
        taps, n = op.weights.shape[2] * op.weights.shape[3], y.planes * result.lanes
        if op.groups == 1 and result.lanes > fractal.columns and y.planes > 1:
            n = -(-(max(y.lanes) + 1) // fractal.columns) * fractal.columns  # FIXPIPE fills the upper half of the last plane up
        k1, n1 = -(-taps * 4 // c0) if lanes == 4 else x.planes // groups * taps, n // fractal.columns // groups

        found = None if beside else overlay(op, x, y, n, groups, fractal)
        expansion = None if found is None else placed_expansion(found.expansion, groups, into.machine)

        def pack(out: Bytes) -> None:
            if expansion is not None and found is not None:
                pack_overlaid(values, op, x, y, found, groups, dtype, fractal, out)
            else:
                weights.pack_conv(weights.dense_weights(values, op.groups, beside), x, y, n, groups, dtype, fractal, lanes, out, beside)

        if expansion is not None and found is not None:
            expansion = expansion._replace(masks_at=into.constants.add(f"{op.name}/masks", pack_masks(found, dtype)))
        blocks = groups * k1 * (n1 * fractal.weight_blocks if expansion is None else expansion.overlaid)
        needed = EVERYWHERE
        # what an operand in L1 is multiplied with is a whole tile (`codegen.legalize_buffers`), and so is what stands beside groups
        if op.groups > 1 and not beside and into.machine.has(Memory.L0A):
            needed = weights.needed_blocks(op, x, y, n, groups, fractal)
        return into.fields(index, op) | {
            "fractal": fractal,
            "l0": l0_of(into.machine),
            "groups": groups,
            "c1": x.planes // groups,
            "k1": k1,
            "n1": n1,
            "lanes": lanes,
            "weights_at": into.constants.reserve(f"{op.name}/weights", blocks * BLOCK_BYTES, pack),
            "expansion": expansion,
            "needed": EVERYWHERE if needed.all() else needed,
            "bias_at": cls.columns_at(op, y, n, into),
        }

    @classmethod
    def columns_at(cls, op: Any, y: Placement, n: int, into: Lowering) -> int:
        """DDR block of what FIXPIPE reads for every channel: the bias, in the type of sums.  n: lanes of the result."""
        return into.constants.add(f"{op.name}/bias", weights.pack_columns(op.bias, y, n, DataType.float32))

    @property
    def weight_blocks(self) -> int:
        return self.groups * self.n1 * self.k1 * self.fractal.weight_blocks

    @property
    def stored_weight_blocks(self) -> int:
        return self.weight_blocks if self.expansion is None else self.groups * self.k1 * self.expansion.overlaid

    @cached_property
    def bias_blocks(self) -> int:
        """Of what FIXPIPE reads for its channels."""
        return self.groups * self.n1 * self.column_blocks if self.bias_at >= 0 else 0

    @cached_property
    def column_blocks(self) -> int:
        """The same for a fractal's channels."""
        return self.fractal.sum_blocks

    @property
    def result_lanes(self) -> int:
        """C0 of the result."""
        return self._lanes_of(self.y)

    @property
    def residual_lanes(self) -> int:
        """C0 of the residual; of the result without one."""
        return self._lanes_of(self.y if self.residual is None else self.residual)

    def _lanes_of(self, piece: TensorSlice) -> int:
        """C0 of a tensor of the result's channels, of whose last plane the upper half may be no product."""
        return 1 << (-(-self.groups * self.n1 * self.fractal.columns // piece.planes) - 1).bit_length()

    @property
    def n1_step(self) -> int:
        """Tiles along n1 are whole multiples of it: fractals that make a plane of the result."""
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
        """Of the matrix unit, for each of the sum."""
        return 1

    @property
    def staying(self) -> L0:
        """Where its tiles may stay: beside products with what is added to all of an operand, which take slots of tiles, nowhere."""
        return self.l0 if self.products == 1 else ALONE

    @property
    def activation(self) -> str:
        return self.operator.activation if isinstance(self.operator, Conv) else "none"

    @property
    def limit(self) -> float:
        """Of the activation `clip`."""
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
        """What the cost of expanding weights depends on beside their sizes."""
        e = self.expansion
        return [] if e is None else [e.overlaid, e.masks, e.planes, e.room, int(e.kept), *(run.columns for run in e.runs)]

    def sizes(self, storages: Sequence[StorageSpec]) -> tuple[object, ...]:
        found = self.in_h, self.in_w, self.out_h, self.out_w, self.groups, self.c1, self.k1, self.n1, self.lanes, *self.window
        rows = [storages[piece.storage].row_blocks for piece in (*self.reads, self.y)]
        sizes = tuple(self._expanded_sizes), self.needed.tobytes(), self.y.planes, self.bias_at >= 0
        return (*found, *sizes, *(read.planes for read in self.reads), *rows)

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
        if self.residual is not None:
            reads.append(run_of_planes(self.residual, first, last))
        n, n_before = (size * dtype.lanes // self.fractal.columns for size in (last - first, first))
        n = min(n, self.groups * self.n1 - n_before)
        expansion, before = self.expansion, n_before * self.k1 * self.fractal.weight_blocks
        n_group = n_before - group * self.n1
        if expansion is not None:
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
            bias_at=self.bias_at + n_before * self.fractal.sum_blocks,
        )

    def cut_groups(self, first: int, last: int) -> tuple[int, int] | None:
        """(first group, how many) of planes [first, last) of the result; None where these are neither whole ones nor within one."""
        deep = self.y.planes // self.groups
        group, behind = first // deep, -(-last // deep)
        return None if behind - group > 1 and (first % deep or last % deep) else (group, behind - group)

    def narrowed(self, strip: Strip, main: Rows, made: Rows) -> Self | Infeasible:
        conv = self.operator
        assert isinstance(conv, Convolution)
        pads = padded_columns(conv, main, made)
        if made.start * conv.stride[1] - conv.pads[1] >= self.in_w:
            # every window lies in the padding behind the image; in front of it is the same, and can be said
            all_of_it = all_padding(conv, main, made)
            if all_of_it is None:
                return Infeasible(self.name, f"a strip of {made.size} columns lies in its padding as a whole")
            pads = all_of_it
        return replace(self, strip=strip, in_w=main.size, out_w=made.size, operator=replace(cast("Any", conv), pads=pads))

    def weight_slots(self, tiling: Tiling) -> tuple[int, int]:
        assert isinstance(tiling, ConvTiling)
        if tiling.weights == "streamed":
            return 2, min(tiling.chunk_n1, self.n1) * min(tiling.chunk_k1, self.k1) * self.fractal.weight_blocks
        if self.is_packed:
            return 1, self.groups * self._multiplied(tiling.tile_k1) * self.fractal.weight_blocks
        return (1, self.weight_blocks) if self.weight_blocks else (0, 0)

    @property
    def is_packed(self) -> bool:
        """Whether weights that stay lie in L1 without zeros beside their groups."""
        return self.expansion is not None and self.needed.size > 0 and self.expansion.overlaid >= REPEAT_BLOCKS

    def _multiplied(self, tile_k1: int) -> int:
        """A group's blocks of weights that are multiplied with tiles of so many along k."""
        if tile_k1 not in self._blocks_multiplied:
            self._blocks_multiplied[tile_k1] = int(multiplied(self.needed, self.k1, tile_k1).sum())
        return self._blocks_multiplied[tile_k1]

    @cached_property
    def _blocks_multiplied(self) -> dict[int, int]:
        return {}

    def ub_buffers(self, tiling: Tiling, through_ub: bool, dtype: DataType) -> tuple[UbBuffers, ...]:
        assert isinstance(tiling, ConvTiling)
        found = []
        if self.bias_blocks and tiling.constants == "resident":
            found.append(UbBuffers("constants", 1, rounded(self.bias_blocks, 8), True))
        elif self.bias_blocks:
            columns = self.n1 if tiling.weights == "resident" else min(tiling.chunk_n1, self.n1)
            found.append(UbBuffers("constants", 2, rounded(self.column_blocks * columns, 8)))
        columns = min(tiling.tile_n1, self.n1) * self.fractal.columns
        out, residual = (rounded(-(-columns // lanes) * tiling.tile_m, 8) for lanes in (dtype.lanes, self.residual_lanes))
        found += [UbBuffers("out", 2, out)] if through_ub else []
        found += [UbBuffers("residual", 2, residual)] if self.residual is not None else []
        return (*found, *self._expanding(tiling))

    def _expanding(self, tiling: ConvTiling) -> tuple[UbBuffers, ...]:
        """What weights take while they are expanded: all at once, or with every chunk."""
        e = self.expansion
        if e is None:
            return ()
        resident = tiling.weights == "resident"
        arriving, expanded = self._slots(resident, tiling.chunk_n1, tiling.chunk_k1)
        found = [UbBuffers("arriving", 2, rounded(arriving, 8)), UbBuffers("expanded", 2, expanded)]
        if resident:
            return tuple(found)
        kept = e.mask_blocks + (self.stored_weight_blocks if e.kept else 0)
        return UbBuffers("overlaid", 1, rounded(kept, 8), True), *found[int(e.kept) :]

    def _slots(self, resident: bool, chunk_n1: int, chunk_k1: int) -> tuple[int, int]:
        """Blocks of a slot of what arrives, masks in front of it where all weights are expanded at once, and of what is made of it."""
        e, size = self.expansion, self.groups * self.n1 * self.k1
        assert e is not None
        if resident:
            arriving = e.mask_blocks + min(self.stored_weight_blocks, overlaid_steps(e.overlaid, self.k1) * e.overlaid)
        else:
            arriving = e.overlaid * min(chunk_k1, self.k1)
            size = min(chunk_n1, self.n1) * min(chunk_k1, self.k1)
        return arriving, min(e.room, size * self.fractal.weight_blocks)

    def nest(
        self, dtype: DataType, storages: Sequence[StorageSpec], rows: int, kept: frozenset[int] = frozenset(), inside: bool = False
    ) -> Nest:
        left, *others = (storages[read.storage].dtype.size_bits for read in self.reads)
        lies = [Memory.L1 if i in kept else Memory.DDR for i in range(len(self.reads))]
        right = lies[1] if self.right is not None else Memory.DDR
        reads = [Operand("x", ("g", "m", "k"), left, lies[0], Memory.L0A), Operand("w", ("g", "n", "k"), left, right, Memory.L0B)]
        if self.bias_blocks:
            bits = 8 * BLOCK_BYTES * self.column_blocks // self.fractal.columns
            reads.append(Operand("bias", ("g", "n"), bits, Memory.DDR, Memory.UB))
        if self.residual is not None:
            reads.append(Operand("residual", ("g", "m", "n"), others[0], lies[1], Memory.UB))
        result = Operand("y", ("g", "m", "n"), dtype.size_bits, Memory.L1 if inside else Memory.DDR, Memory.L0C)
        loops = {"g": self.groups, "m": rows * self.out_w, "n": self.n1, "k": self.k1}
        main = self.reads[0]
        source = main.planes, self.input_rows(rows) * storages[main.storage].row_blocks
        of_product: dict[str, Any] = {"cut": self.parts.cut, "fractal": self.fractal, "l0": self.staying, "needed": self.needed}
        return Nest("CUBE", loops, tuple(reads), result, self.fractal.lanes, *source, **of_product)

    def job(self, given: EmitInputs) -> ConvJob:
        return ConvJob._make(self.job_row(given)[1].tolist())

    def job_row(self, given: EmitInputs) -> tuple[type[ConvJob], NDArray[np.int64]]:
        """Most of it follows from the operator and its tiling, and is remembered; where buffers lie is said anew."""
        tiling = given.tiling
        assert isinstance(tiling, ConvTiling)
        main, *others = [given.storages[piece.storage] for piece in self.reads]
        residual = others[0].dtype if others and self.residual is not None else 0
        row = _unplaced(self, tiling, given.machine, given.dtype, given.inside, main.dtype, main.row_blocks, residual).copy()
        weights, bias = self.chunk_slots(given), (*given.constants, -1, -1)[:2]
        row[_PLACES] = *_two(weights), *bias, *_two(given.tiles), *_two(given.residuals), self.first_zeros(given)
        if self.expansion is not None:
            row[_EXPANSION] = self.expansion_job(tiling, given.overlaid, given.arriving, given.expanded)
        return ConvJob, row

    def of_tiling(self, t: ConvTiling, machine: Machine) -> dict[str, int]:
        """Fields of `ConvJob` that a tiling says."""
        f = self.fractal
        resident, streams_bias = t.weights == "resident", self.bias_at >= 0 and t.constants == "streamed"
        a, b, c = l0_blocks(f.weight_blocks, f.sum_blocks, t.tile_m, t.tile_n1, t.tile_k1)
        (slot_a, room_a), (slot_b, room_b) = tile_slot(machine, Memory.L0A, a), tile_slot(machine, Memory.L0B, b)
        slot_c, room_c = tile_slot(machine, Memory.L0C, c)
        return {
            "resident": int(resident),
            "chunk_n1": self.n1 if resident else min(t.chunk_n1, self.n1),
            "chunk_k1": self.k1 if resident else min(t.chunk_k1, self.k1),
            "tile_m": t.tile_m,
            "tile_n1": t.tile_n1,
            "tile_k1": t.tile_k1,
            "n_outer": int(t.order == "n"),
            "bias_at": self.bias_at if streams_bias else -1,
            "slot_a": slot_a,
            "room_a": room_a,
            "slot_b": slot_b,
            "room_b": room_b,
            "slot_c": slot_c,
            "room_c": room_c,
        }

    def of_operator(self, machine: Machine, dtype: DataType, inside: bool, read: DataType, pitch: int, residual: int) -> dict[str, int]:
        """Fields of `ConvJob` that the operator says.  inside: whether its result stays on chip.  dtype, read, residual: of the result, of
        the main input and of the residual, 0 without one.  pitch: blocks of a row of the main input."""
        window, parts, to = self.window, self.parts, way_out(machine, inside)
        path = machine.path(Memory.L0C, Memory.L1 if to == TO_L1 else machine.vector_memory)
        assert path is not None
        right, right_planes, right_pixels = self._right_operand()
        return {
            "dtype": int(dtype),
            "operands": int(read),
            "tag": self.tag,
            "in_w": self.in_w,
            "in_pitch": pitch,
            "kh": window.kh,
            "kw": window.kw,
            "sh": window.sh,
            "sw": window.sw,
            "dh": window.dh,
            "dw": window.dw,
            "pad_left": window.left,
            "part_rows": parts.rows,
            "part_columns": parts.columns,
            "lanes": self.lanes,
            "out_w": self.out_w,
            "groups": self.groups,
            "c1": self.c1,
            "k1": self.k1,
            "n1": self.n1,
            "weights_at": self.weights_at,
            "weights_k1": self.run_of_k1 or self.k1,
            "act": int(Activation[self.activation]),
            "limit": float_bits(self.limit) if self.activation == "clip" else 0,
            "to": to,
            "fractal_rows": self.fractal.rows,
            "fractal_lanes": self.fractal.lanes,
            "fractal_columns": self.fractal.columns,
            "weight_blocks": self.fractal.weight_blocks,
            "sum_blocks": self.fractal.sum_blocks,
            "result_lanes": dtype.lanes,
            "residual_lanes": self.residual_lanes,
            "fixpipe_engine": int(Engine[path.engine]),
            "right": right,
            "right_planes": right_planes,
            "right_pixels": right_pixels,
        } | self.of_integers(residual)

    def expansion_job(
        self, tiling: ConvTiling, overlaid: tuple[int, ...] = (), arriving: tuple[int, ...] = (), expanded: tuple[int, ...] = ()
    ) -> ExpansionJob:
        """Where in UB what `_expanding` asks for lies: operators that follow each other take turns in the slots of what arrives."""
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
        elif e.kept:
            first = second = masks_at + e.mask_blocks
        slots = masks_at, first, second, *_two(expanded), room
        across = int(e.overlaid < REPEAT_BLOCKS)
        tile = int(self.is_packed and resident), tiling.tile_n1, tiling.tile_k1
        return ExpansionJob(e.overlaid, e.masks, e.planes, e.taps, across, *slots, int(e.kept and not resident), e.startup, *tile)

    def tables(self) -> list[NDArray[np.int64]]:
        """Runs of columns of an expansion, and which blocks of weights are needed."""
        runs = np.array([] if self.expansion is None else self.expansion.runs, np.int64)
        return [runs, self.needed] if self.needed.size else [runs] if runs.size else []

    def chunk_slots(self, given: EmitInputs) -> tuple[int, ...]:
        """Where resident weights, or chunks of what is multiplied, lie in L1."""
        return given.weights

    def first_zeros(self, given: EmitInputs) -> int:
        """Where in L1 what is added to all of the right operand lies."""
        del given
        return 0

    def of_integers(self, residual: int) -> dict[str, int]:
        """Fields of `ConvJob` that say how integers are multiplied and what their sums become; of floats they say that there are none."""
        return dict.fromkeys(OF_INTEGERS, 0) | {"pad": -1, "missing": -1, "added": int(residual)}

    def _right_operand(self) -> tuple[int, int, int]:
        """`ConvJob`'s right, right_planes, right_pixels."""
        return WEIGHTS, 0, 0

    def column_fetches(self) -> list[Fetch]:
        """Of what FIXPIPE reads for all channels, to blocks of UB from 0 on."""
        return [Fetch(Memory.UB, self.bias_at, 0, self.bias_blocks)]

    def weight_fetches(self) -> list[Fetch]:
        """Of weights that stay and are not expanded, to blocks of L1 from 0 on."""
        if not self.weight_blocks or self.expansion is not None:
            return []
        apart, runs = (self.run_of_k1 - self.k1) * self.fractal.weight_blocks, self.n1 if self.run_of_k1 else 1
        size = self.weight_blocks // runs  # a run of k lies apart in every n1
        return [Fetch(Memory.L1, self.weights_at + i * (size + apart), i * size, size, WEIGHT_PIECE_BLOCKS) for i in range(runs)]

    @cached_property
    def _fetches(self) -> tuple[list[Fetch], list[Fetch]]:
        """Of columns and of weights."""
        return self.column_fetches() if self.bias_blocks else [], self.weight_fetches()

    def fetches(self, given: EmitInputs) -> list[Fetch]:
        tiling = given.tiling
        assert isinstance(tiling, ConvTiling)
        columns, weights = self._fetches
        resident, e, found = tiling.weights == "resident", self.expansion, list[Fetch]()
        if columns and tiling.constants == "resident":
            found += fetched(columns, given.constants[0])
        if e is not None:  # what is expanded at once is loaded by whoever does that
            at = self.expansion_job(tiling, given.overlaid, given.arriving)
            found.append(Fetch(Memory.UB, e.masks_at, at.masks_at, e.mask_blocks))
            if at.kept:
                found.append(Fetch(Memory.UB, self.weights_at, at.overlaid_0, self.stored_weight_blocks))
        elif weights and resident:
            found += fetched(weights, self.chunk_slots(given)[0])
        return found


def fetched(fetches: Sequence[Fetch], first: int) -> list[Fetch]:
    """Those to blocks from 0 on, to blocks from `first` on."""
    return [Fetch(memory, source, first + target, blocks, piece) for memory, source, target, blocks, piece in fetches]


@lru_cache(maxsize=1 << 14)
def _unplaced(spec: ConvSpec, tiling: ConvTiling, machine: Machine, *operator: Any) -> NDArray[np.int64]:
    """The numbers of a job, without places.  operator: the others of `ConvSpec.of_operator`."""
    return np.array(ConvJob(**_of_operator(spec, machine, *operator) | spec.of_tiling(tiling, machine)), np.int64)


@lru_cache(maxsize=1 << 12)
def _of_operator(spec: ConvSpec, machine: Machine, *operator: Any) -> dict[str, int]:
    """What all of its tilings have in common: scales of sums, say, are float32 divisions."""
    return dict.fromkeys(_OF_PLACES, 0) | ExpansionJob()._asdict() | spec.of_operator(machine, *operator)


def product_of(spec: TargetOp) -> ConvSpec | None:
    """What the matrix unit does for an operator; None where that is nothing."""
    return cast("ConvSpec", spec) if spec.runs_on == "CUBE" else None  # `isinstance` asks abstract classes at length


def placed_expansion(found: Expansion, groups: int, machine: Machine) -> Expansion | None:
    """With whether streamed weights stay in UB; None where that has no room for what is on its way to L1, or VECTOR no bytes."""
    if DataType.uint8 not in machine.data_types:
        return None
    ub, stored = least_ub_blocks(machine), groups * found.planes * found.taps * found.overlaid
    room = min(EXPANDED_BLOCKS, ub // _SLOT_OF_UB // COLUMNS * COLUMNS)
    piece = overlaid_steps(found.overlaid, found.planes * found.taps) * found.overlaid
    if 2 * (found.mask_blocks + min(stored, piece) + room) > ub // 4 * 3:
        return None
    deep = max(1, ub // _KEPT_OF_UB // found.overlaid)  # two slots take half of UB
    kept, startup = found.mask_blocks + stored <= ub // _KEPT_OF_UB, machine.vector.startup_cycles
    return found._replace(kept=kept, room=room, deep=deep, startup=startup)


def way_out(machine: Machine, inside: bool) -> int:
    """Where a product's results go first; inside: they stay on chip."""
    if not inside:
        return TO_DDR
    return TO_L1 if writes_l1(machine) else TO_L1_BY_UB


def _two(slots: tuple[int, ...]) -> tuple[int, int]:
    """Addresses of two slots: twice that of a single one."""
    return (slots[0], slots[-1]) if slots else (0, 0)
