"""Convolutions on the matrix unit: buffers, constants, and jobs of their emitter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import chain
from typing import Any, ClassVar, Self, cast

import numpy as np
from numpy.typing import NDArray

from compiler.ir.layout import Placement
from compiler.ir.operators import Convolution
from compiler.ops.base import Lowering
from compiler.ops.conv_job import BY_UB, DIRECT, WEIGHT_PIECE_BLOCKS, WEIGHTS, ConvEpilogue, ConvGeometry, ConvJob, ConvOperands, ConvTiles
from compiler.ops.conv_lowering import pack_product
from compiler.ops.expanded_weights import expansion_buffers, expansion_job, two_slots
from compiler.ops.product_shape import ProductShape
from compiler.ops.tile_counts import l0_blocks
from compiler.plan.plan import ConvTiling, Tiling
from compiler.target import weights
from compiler.target.capabilities import tile_slot, writes_result
from compiler.target.target_op import EmitInputs, Fetch, TargetOp, UbBuffers, round_up
from simulator.kernel_addresses import record_dtype, record_row
from simulator.npu.isa import Activation, float_bits
from simulator.npu.machine import Machine
from simulator.npu.parts import DataType, Engine, Memory

_FIELDS: Any = record_dtype(ConvJob).fields
_BUFFERS, _EXPANSION = (slice(begin // 8, (begin + kind.itemsize) // 8) for kind, begin, *_ in (_FIELDS["buffers"], _FIELDS["expansion"]))


@dataclass(frozen=True, eq=False)
class ConvSpec(ProductShape):
    """A convolution, with the methods that its subclasses replace."""

    word: ClassVar[str] = "conv"

    @classmethod
    def lower(cls, index: int, op: Any, lowering: Lowering) -> Self:
        return cls(**cls.lowered_fields(index, op, lowering))

    @classmethod
    def lowered_fields(cls, index: int, op: Convolution, lowering: Lowering) -> dict[str, Any]:
        """Fields of the target operator.  Raises `UnsupportedError`."""
        return pack_product(index, op, lowering, op.weights, lowering.type_of(op.x), 0, cls.channel_vectors_at)

    @classmethod
    def channel_vectors_at(cls, op: Any, y_place: Placement, lane_count: int, lowering: Lowering) -> int:
        """DDR block of FIXPIPE's vectors per channel, which are packed: the bias as float32.  lane_count: lanes of the result."""
        return lowering.constants.add(f"{op.name}/bias", weights.pack_channel_vector(op.bias, y_place, lane_count, DataType.float32))

    def weight_slots(self, tiling: Tiling) -> tuple[int, int]:
        assert isinstance(tiling, ConvTiling)
        if tiling.weights == "streamed":
            return 2, min(tiling.chunk_n1, self.n1) * min(tiling.chunk_k1, self.k1) * self.fractal.weight_blocks
        if self.is_packed:
            return 1, self.groups * self.multiplied_blocks(tiling.tile_k1) * self.fractal.weight_blocks
        return (1, self.weight_blocks) if self.weight_blocks else (0, 0)

    def ub_buffers(self, tiling: Tiling, through_ub: bool, dtype: DataType) -> tuple[UbBuffers, ...]:
        assert isinstance(tiling, ConvTiling)
        buffers = []
        if self.bias_blocks and tiling.constants == "resident":
            buffers.append(UbBuffers("constants", 1, round_up(self.bias_blocks, 8), True))
        elif self.bias_blocks:
            n1_per_chunk = self.n1 if tiling.weights == "resident" else min(tiling.chunk_n1, self.n1)
            buffers.append(UbBuffers("constants", 2, round_up(self.channel_vector_blocks * n1_per_chunk, 8)))
        tile_channels = min(tiling.tile_n1, self.n1) * self.fractal.columns
        out, residual = (round_up(-(-tile_channels // lanes) * tiling.tile_m, 8) for lanes in (dtype.lanes, self.residual_lanes))
        buffers += [UbBuffers("out", 2, out)] if through_ub else []
        buffers += [UbBuffers("residual", 2, residual)] if self.residual is not None else []
        return (*buffers, *expansion_buffers(self, tiling))

    def job_row(self, inputs: EmitInputs) -> tuple[type[ConvJob], NDArray[np.int64]]:
        """The job as a row: cached by operator and tiling, with the addresses of buffers filled in."""
        tiling = inputs.tiling
        assert isinstance(tiling, ConvTiling)
        main, *operand_storages = [inputs.storages[piece.storage] for piece in self.reads]
        residual_type = operand_storages[0].dtype if operand_storages and self.residual is not None else 0
        row = _row_without_addresses(
            self, tiling, inputs.machine, inputs.dtype, inputs.inside, main.dtype, main.row_blocks, residual_type
        ).copy()
        weights, bias = self.weight_slot_addresses(inputs), (*inputs.constants, -1, -1)[:2]
        row[_BUFFERS] = *two_slots(weights), *bias, *two_slots(inputs.tiles), *two_slots(inputs.residuals), self.zero_point_block(inputs)
        if self.expansion is not None:
            row[_EXPANSION] = expansion_job(self, tiling, inputs.overlaid, inputs.arriving, inputs.expanded)
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

    def epilogue_of(self, machine: Machine, dtype: DataType, inside: bool, residual_type: int) -> ConvEpilogue:
        """FIXPIPE's parameters.  inside: whether the result stays on chip.  dtype: type of the result.  residual_type: 0 without one."""
        direct = writes_result(machine, inside)
        path = machine.path(Memory.L0C, machine.vector_memory if not direct else Memory.L1 if inside else Memory.DDR)
        assert path is not None
        act, limit = int(Activation[self.activation]), float_bits(self.limit) if self.activation == "clip" else 0
        engine = int(Engine[path.engine])
        return ConvEpilogue(
            act, limit, DIRECT if direct else BY_UB, dtype.lanes, self.residual_lanes, engine, int(residual_type), **self.requantised()
        )

    def tables(self) -> list[NDArray[np.int64]]:
        """Tables of the emitter: `Expansion.runs`, and `needed` if not all blocks are."""
        runs = np.array([] if self.expansion is None else self.expansion.runs, np.int64)
        return [runs, self.needed] if self.needed.size else [runs] if runs.size else []

    def weight_slot_addresses(self, inputs: EmitInputs) -> tuple[int, ...]:
        """L1 blocks of the resident weights, or of the two slots of chunks."""
        return inputs.weights

    def zero_point_block(self, inputs: EmitInputs) -> int:
        """L1 block of the constants for the right operand's zero point; only integer products have them."""
        del inputs
        return 0

    def operands_of(self, input_type: DataType) -> ConvOperands:
        """Operands of the products.  input_type: data type of the main input."""
        return ConvOperands(int(input_type), self.weights_at, self.run_of_k1 or self.k1, *self._right_operand())

    def requantised(self) -> dict[str, int]:
        """Fields of `ConvEpilogue` for the conversion of integer sums; none for floats."""
        return {}

    def _right_operand(self) -> tuple[int, int, int]:
        """(right, right_planes, right_pixels) of `ConvOperands`."""
        return WEIGHTS, 0, 0

    def channel_vector_fetches(self) -> list[Fetch]:
        """Fetches of FIXPIPE's vectors for all channels, to blocks of UB from 0 on."""
        return [Fetch(Memory.UB, self.bias_at, 0, self.bias_blocks)]

    def weight_fetches(self) -> list[Fetch]:
        """Fetches of resident weights without expansion, to blocks of L1 from 0 on."""
        if not self.weight_blocks or self.expansion is not None:
            return []
        # weights of a part of the input channels: every n1 has a run of k1 among `run_of_k1` blocks of k in DDR
        gap, runs = (self.run_of_k1 - self.k1) * self.fractal.weight_blocks, self.n1 if self.run_of_k1 else 1
        size = self.weight_blocks // runs
        return [Fetch(Memory.L1, self.weights_at + i * (size + gap), i * size, size, WEIGHT_PIECE_BLOCKS) for i in range(runs)]

    @cached_property
    def _fetches(self) -> tuple[list[Fetch], list[Fetch]]:
        """Fetches of channel vectors and of weights."""
        return self.channel_vector_fetches() if self.bias_blocks else [], self.weight_fetches()

    def fetches(self, inputs: EmitInputs) -> list[Fetch]:
        tiling = inputs.tiling
        assert isinstance(tiling, ConvTiling)
        channel_vectors, weights = self._fetches
        resident, e, fetches = tiling.weights == "resident", self.expansion, list[Fetch]()
        if channel_vectors and tiling.constants == "resident":
            fetches += shift_fetches(channel_vectors, inputs.constants[0])
        if e is not None:  # `expand_all` loads weights that are expanded at once
            job = expansion_job(self, tiling, inputs.overlaid, inputs.arriving)
            fetches.append(Fetch(Memory.UB, e.masks_at, job.masks_at, e.mask_blocks))
            if job.resident_overlays:
                fetches.append(Fetch(Memory.UB, self.weights_at, job.overlaid_0, self.stored_weight_blocks))
        elif weights and resident:
            fetches += shift_fetches(weights, self.weight_slot_addresses(inputs)[0])
        return fetches


def shift_fetches(fetches: Sequence[Fetch], first: int) -> list[Fetch]:
    """Fetches with `first` added to their targets."""
    return [Fetch(memory, source, first + target, blocks, piece) for memory, source, target, blocks, piece in fetches]


@lru_cache(maxsize=1 << 14)
def _row_without_addresses(
    spec: ConvSpec, tiling: ConvTiling, machine: Machine, dtype: DataType, inside: bool, input_type: DataType, pitch: int,
    residual_type: int,
) -> NDArray[np.int64]:  # fmt: skip
    """The numbers of a job, without buffer addresses.  Parameters: see `_tiling_independent_parts`."""
    parts = _tiling_independent_parts(spec, machine, dtype, inside, input_type, pitch, residual_type)
    return record_row(ConvJob(int(dtype), spec.tag, *parts, spec.tiles_of(tiling, machine)))


@lru_cache(maxsize=1 << 12)
def _tiling_independent_parts(
    spec: ConvSpec, machine: Machine, dtype: DataType, inside: bool, input_type: DataType, pitch: int, residual_type: int
) -> tuple[ConvGeometry, ConvOperands, ConvEpilogue]:
    """Parts of a job that all tilings share.  The cache saves the float32 divisions of the scales.

    inside: whether the result stays on chip.  dtype: type of the result.  residual_type: 0 without a residual.
    pitch: blocks of a row of the main input.
    """
    return spec.geometry_of(pitch), spec.operands_of(input_type), spec.epilogue_of(machine, dtype, inside, residual_type)


def product_of(spec: TargetOp) -> ConvSpec | None:
    """The operator as a product of the matrix unit; None for an operator of VECTOR."""
    return cast("ConvSpec", spec) if spec.runs_on == "CUBE" else None  # `isinstance` is slow for abstract classes
