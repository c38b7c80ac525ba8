"""Softmax of bytes over the channels, on VECTOR."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from compiler.instructions.conversion import WIDE
from compiler.instructions.repeats import repeats_along
from compiler.ir.operators import QuantisedSoftmax
from compiler.ir.quantised.tables import exponentials
from compiler.ops.base import Lowering, OnVector, VectorTiles, VectorWork, first_or_zero, streams_constants
from compiler.ops.integer_elementwise import ROUNDER
from compiler.ops.quantised_softmax_emitter import PIXEL, PLANE, QuantisedSoftmaxJob
from compiler.plan.plan import VectorTiling
from compiler.target.target_op import EmitInputs, Fetch
from simulator.npu.errors import UnsupportedError
from simulator.npu.isa import REPEAT_BLOCKS, Op, float_bits
from simulator.npu.parts import BLOCK_BYTES, DataType, Memory

_MOST = 1 << 22  # of a value that is rounded


@dataclass(frozen=True, eq=False)
class QuantisedSoftmaxSpec(OnVector):
    """channels: lanes of a group's channels in their order, counted from its first plane.  padded: planes of a group that have others.

    times: 1 / scale of the result, rounded down.  ordered: blocks of float32 that the machine adds lane by lane; 0: every lane alone, by
    constants that follow `lane_constants` blocks.  constants_at: DDR blocks, so many of them.
    """

    word: ClassVar[str] = "quantised_softmax"

    groups: int
    channels: tuple[int, ...]
    padded: tuple[int, ...]
    times: float
    ordered: int
    lane_constants: int
    constants_at: int
    constants: int

    @classmethod
    def lower(cls, index: int, op: QuantisedSoftmax, into: Lowering) -> Self:
        if into.machine.vector.lookup_cycles is None:
            raise UnsupportedError(
                f"operator {op.name!r}: exponentials from a table; machine {into.machine.name} has no look-up (vector.lookup_cycles)"
            )
        place, lanes = into.layout.placements[op.y], into.type_of(op.y).lanes
        deep, per_group = place.planes // op.groups, into.channels(op.y) // op.groups
        first, *later_groups = (np.array(place.lanes[i * per_group : (i + 1) * per_group]) - i * deep * lanes for i in range(op.groups))
        if any(not np.array_equal(first, group_lanes) for group_lanes in later_groups):
            raise UnsupportedError(f"operator {op.name!r}: its groups have their channels in different lanes; equal ones are supported")
        times = np.floor(np.float32(1) / op.y_q.single(op.name)[0])
        entries = exponentials(float(op.x_q.single(op.name)[0]), per_group)
        with np.errstate(over="ignore"):
            if times >= _MOST or not np.isfinite(entries[-1] * times):
                raise UnsupportedError(
                    f"operator {op.name!r}: over {per_group} channels with a scale of {op.y_q.scale[0]:.3g}; a larger one is supported"
                )
        is_channel = np.zeros((deep, lanes), np.float32)
        is_channel.reshape(-1)[first] = 1
        padded = tuple(np.flatnonzero((is_channel == 0).any(axis=1)).tolist())
        of_x, of_y = np.iinfo(op.x_q.dtype), np.iinfo(op.y_q.dtype)
        parts = [np.roll(entries, 1), np.full(lanes, of_y.min, of_y.dtype)]  # an equal byte, whose distance is 0, has the last entry
        for plane in padded:
            parts += [np.where(is_channel[plane] > 0, of_x.max, of_x.min).astype(of_x.dtype), is_channel[plane]]
        ordered = -(-(int(first[-1]) + 1) // DataType.float32.lanes) if (np.diff(first) > 0).all() else 0
        if into.machine.vector.ordered_cycles is None:
            ordered = 0
        blocks_before = sum([part.nbytes for part in parts]) // BLOCK_BYTES
        if not ordered:
            parts.append(np.eye(DataType.float32.lanes, dtype=np.float32).reshape(-1))
        constants = np.concatenate([part.view(np.uint8) for part in parts])
        return cls(
            **into.fields(index, op),
            groups=op.groups,
            channels=tuple(first.tolist()),
            padded=padded,
            times=float(times),
            ordered=ordered,
            lane_constants=blocks_before,
            constants_at=into.constants.add(f"{op.name}/constants", constants),
            constants=len(constants) // BLOCK_BYTES,
        )

    @property
    def from_least(self) -> bool:
        """Whether the result's zero point is the least integer, so that what is rounded saturates in uint8."""
        assert isinstance(self.operator, QuantisedSoftmax)
        q = self.operator.y_q
        return q.single(self.name)[1] == np.iinfo(q.dtype).min

    @property
    def group_planes(self) -> int:
        return self.y.planes // self.groups

    def described(self) -> dict[str, object]:
        return {"groups": self.groups, "channels": len(self.channels), "gaps": list(self.padded), "ordered": self.ordered}

    @property
    def planes_together(self) -> int:
        return self.group_planes

    def planes_of_tile(self, tiling: VectorTiling) -> int:
        """Planes of a group: a tile has one."""
        return self.group_planes

    def tile_blocks(self, planes: int, rows: int, columns: int, dtype: DataType) -> int:
        return (PLANE * self.group_planes + PIXEL) * rows * columns

    def constant_blocks(self, planes: int) -> int:
        return self.constants

    def set_aside(self, rows: int) -> int:
        return self.constants

    def slot_tiling(self, rows: int, slot_blocks: int, dtype: DataType) -> VectorTiling:
        fitting = slot_blocks // (PLANE * self.group_planes + PIXEL) // self.out_w
        full_rows = REPEAT_BLOCKS // math.gcd(REPEAT_BLOCKS, self.out_w)  # rows whose pixels fill repeats
        if full_rows <= fitting < rows:
            fitting -= fitting % full_rows
        return VectorTiling(tile_planes=self.group_planes, tile_rows=max(1, min(rows, fitting)))

    @property
    def steps_of_tile(self) -> int:
        return 14 + (self.ordered or 2 * len(self.channels))

    @property
    def constant_operands(self) -> tuple[tuple[str, tuple[str, ...]], ...]:
        return (("constants", ("p",)),)

    def work(self, tiles: VectorTiles) -> VectorWork:
        repeats = calls = 0.0
        deep, planes_together = self.group_planes, self.planes_together
        for planes, tall, wide, count in tiles.output_tiles:
            size, groups = tall * wide, planes / planes_together
            line, of_line = repeats_along(size, 1)
            plane, of_plane = repeats_along(deep * size, 1)
            least, eights = min(size, deep), -(-size // REPEAT_BLOCKS)
            steps = [
                (Op.VMAX, deep * line, eights),
                (Op.VSUB, 2 * plane, 2 * of_plane),
                (Op.VLUT, WIDE * plane, least),
                (Op.VDIV, WIDE * plane, WIDE * of_plane),
                (Op.VCONVERT, 2 * plane, least),
                (Op.VMULS, 3 * line, 4 * of_line),
            ]
            if self.ordered:
                steps.append((Op.VLANE_ADD, self.ordered * eights, eights))
            else:
                steps += [(op, len(self.channels) * line, len(self.channels) * of_line) for op in (Op.VMADD, Op.VLANE_MAX)]
            if not self.from_least:
                steps.append((Op.VADDS, 2 * WIDE * plane, 2 * of_plane))
            repeats += count * tiles.images * groups * sum([step_repeats * tiles.cycles[op] for op, step_repeats, _ in steps])
            calls += count * tiles.images * groups * sum([instructions for _, _, instructions in steps])
        return VectorWork(repeats, calls, [tiles.size])

    def channel_step(self, count: int, dtype: DataType) -> int | str:
        return self.group_planes

    def channel_part(self, first: int, last: int, dtype: DataType) -> Self | None:
        part = super().channel_part(first, last, dtype)
        return None if part is None else replace(part, groups=(last - first) * self.groups // self.y.planes)

    def job(self, inputs: EmitInputs) -> QuantisedSoftmaxJob:
        assert isinstance(inputs.tiling, VectorTiling)
        assert isinstance(self.operator, QuantisedSoftmax)
        zero, mantissa = self.operator.y_q.single(self.name)[1], math.frexp(self.times)[0]
        exact = mantissa == 0.5  # a power of two is the sum's as well as the exponentials'
        return QuantisedSoftmaxJob(
            **self.common(inputs),
            source=int(inputs.storages[self.reads[0].storage].dtype),
            deep=self.group_planes,
            width=self.out_w,
            consts=first_or_zero(inputs.constants),
            consts_at=self.constants_at if streams_constants(inputs) else -1,
            const_blocks=self.constants,
            lane_constants=self.lane_constants,
            ordered=self.ordered,
            part=float_bits(1 / self.times if exact else 1.0),
            times=-1 if exact else float_bits(self.times),
            from_least=int(self.from_least),
            rounder=float_bits(ROUNDER),
            more=float_bits(zero - ROUNDER),
        )

    def tables(self) -> list[NDArray[np.int64]]:
        return [np.array(self.channels, np.int64), np.array(self.padded, np.int64)]

    def fetches(self, inputs: EmitInputs) -> list[Fetch]:
        return [] if streams_constants(inputs) else [Fetch(Memory.UB, self.constants_at, first_or_zero(inputs.constants), self.constants)]
