"""Softmax of bytes over the channels, on VECTOR, in onnxruntime's order (`ir.quantised.tables.softmax`).

The maximum, and the difference x - max, are computed in bytes, which wrap.  The difference is the index into a table of float32
exponentials.  Sums are rounded after every channel.  If the machine adds the lanes of a block in order, and the lanes have the order of
channels, a block is one instruction; its padding lanes are 0.  Else every lane is added separately: exponentials times a block with one 1,
plus the sum so far.  Exponentials are not negative, so the new sum is the maximum of the lanes.

| constants | blocks | meaning                                                                                                           |
|-----------|--------|-------------------------------------------------------------------------------------------------------------------|
| table     | TABLE  | exponentials                                                                                                      |
| least     | 1      | the least integer of the result in all lanes                                                                      |
| masks     | MASK   | per padded plane of a group: greatest byte in channels and least byte in padding lanes; 1 in channels, else 0     |
| lanes     | 8      | if lanes are added separately: block i has a 1 in lane i                                                          |
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import numpy as np

from compiler.instructions.conversion import WIDE
from compiler.instructions.repeats import repeats_along
from compiler.ir.operators import QuantisedSoftmax
from compiler.ir.quantised.tables import exponentials
from compiler.ops.base import Lowering, VectorTiles, VectorWork
from compiler.ops.integer_elementwise import ROUNDER
from compiler.ops.tile_program import Extent, ProgramSpec, ProgramWriter
from compiler.ops.tile_program_emitter import BY_LINE, BY_PIXEL, FLAT, LANE, REDUCED, SUMMED, TO_PIXELS, TO_PLANES, WIDE_MASKED
from compiler.plan.plan import VectorTiling
from simulator.npu.errors import UnsupportedError
from simulator.npu.isa import LUT_BLOCKS, REPEAT_BLOCKS, Op, float_bits
from simulator.npu.parts import BLOCK_BYTES, DataType

_MAX_ROUNDED = 1 << 22  # limit of values before rounding
_F32 = DataType.float32
TABLE, MASK = WIDE * LUT_BLOCKS, 1 + WIDE


@dataclass(frozen=True, eq=False)
class QuantisedSoftmaxSpec(ProgramSpec):
    """Softmax over each group of planes.  groups: number of groups.  channels: channels per group.  ordered: float32 blocks per group
    whose lanes the machine adds in order; 0 if every lane is added separately."""

    word: ClassVar[str] = "quantised_softmax"

    operator: QuantisedSoftmax
    groups: int
    channels: int
    ordered: int

    @classmethod
    def lower(cls, index: int, op: QuantisedSoftmax, lowering: Lowering) -> Self:
        if lowering.machine.vector.lookup_cycles is None:
            raise UnsupportedError(
                f"operator {op.name!r}: exponentials from a table; machine {lowering.machine.name} has no look-up (vector.lookup_cycles)"
            )
        place, lanes = lowering.layout.placements[op.y], lowering.type_of(op.y).lanes
        deep, per_group = place.planes // op.groups, lowering.channels(op.y) // op.groups
        first, *later_groups = (np.array(place.lanes[i * per_group : (i + 1) * per_group]) - i * deep * lanes for i in range(op.groups))
        if any(not np.array_equal(first, group_lanes) for group_lanes in later_groups):
            raise UnsupportedError(f"operator {op.name!r}: its groups have their channels in different lanes; equal ones are supported")
        times = np.floor(np.float32(1) / op.y_q.single(op.name)[0])
        entries = exponentials(float(op.x_q.single(op.name)[0]), per_group)
        with np.errstate(over="ignore"):
            if times >= _MAX_ROUNDED or not np.isfinite(entries[-1] * times):
                raise UnsupportedError(
                    f"operator {op.name!r}: over {per_group} channels with a scale of {op.y_q.scale[0]:.3g}; a larger one is supported"
                )
        is_channel = np.zeros((deep, lanes), np.float32)
        is_channel.reshape(-1)[first] = 1
        padded = tuple(np.flatnonzero((is_channel == 0).any(axis=1)).tolist())
        of_x, of_y = np.iinfo(op.x_q.dtype), np.iinfo(op.y_q.dtype)
        parts = [np.roll(entries, 1), np.full(lanes, of_y.min, of_y.dtype)]  # difference 0 is the last entry
        for plane in padded:
            parts += [np.where(is_channel[plane] > 0, of_x.max, of_x.min).astype(of_x.dtype), is_channel[plane]]
        in_order = lowering.machine.vector.ordered_cycles is not None and (np.diff(first) > 0).all()
        ordered = -(-(int(first[-1]) + 1) // _F32.lanes) if in_order else 0
        lane_constants = sum([part.nbytes for part in parts]) // BLOCK_BYTES
        if not ordered:
            parts.append(np.eye(_F32.lanes, dtype=np.float32).reshape(-1))
        constants = np.concatenate([part.view(np.uint8) for part in parts])
        size = Extent(alike=len(constants) // BLOCK_BYTES)
        writer = ProgramWriter()
        writer.fetch(lowering.constants.add(f"{op.name}/constants", constants), size)
        types = lowering.type_of(op.x), lowering.type_of(op.y)
        x = _write(writer, op, types, float(times), deep, padded, first.tolist(), ordered, lane_constants)
        program = writer.program(x, size, deep)
        return cls(**lowering.fields(index, op), groups=op.groups, channels=per_group, ordered=ordered, program=program)

    def described(self) -> dict[str, object]:
        gaps = sorted({plane % self.planes_together for plane in self.program.masked_planes})
        return {"groups": self.groups, "channels": self.channels, "gaps": gaps, "ordered": self.ordered}

    def planes_of_tile(self, tiling: VectorTiling) -> int:
        """Planes of a tile: one group."""
        return self.planes_together

    def slot_tiling(self, rows: int, slot_blocks: int, dtype: DataType) -> VectorTiling:
        fitting = slot_blocks // self.tile_blocks(self.planes_together, 1, 1, dtype) // self.out_w
        full_rows = REPEAT_BLOCKS // math.gcd(REPEAT_BLOCKS, self.out_w)  # rows whose pixels fill repeats
        if full_rows <= fitting < rows:
            fitting -= fitting % full_rows
        return VectorTiling(tile_planes=self.planes_together, tile_rows=max(1, min(rows, fitting)))

    @property
    def steps_of_tile(self) -> int:
        return 14 + (self.ordered or 2 * self.channels)

    @property
    def constant_operands(self) -> tuple[tuple[str, tuple[str, ...]], ...]:
        return (("constants", ("p",)),)

    def work(self, tiles: VectorTiles) -> VectorWork:
        repeats = calls = 0.0
        deep = self.planes_together
        for planes, tall, wide, count in tiles.output_tiles:
            size, groups = tall * wide, planes / deep
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
                steps += [(op, self.channels * line, self.channels * of_line) for op in (Op.VMADD, Op.VLANE_MAX)]
            if not _zero_is_least(self.operator):
                steps.append((Op.VADDS, 2 * WIDE * plane, 2 * of_plane))
            repeats += count * tiles.images * groups * sum([step_repeats * tiles.cycles[op] for op, step_repeats, _ in steps])
            calls += count * tiles.images * groups * sum([instructions for _, _, instructions in steps])
        return VectorWork(repeats, calls, [tiles.size])

    def channel_part(self, first: int, last: int, dtype: DataType) -> Self | None:
        part = super().channel_part(first, last, dtype)
        return None if part is None else replace(part, groups=(last - first) * self.groups // self.y.planes)


def _zero_is_least(op: QuantisedSoftmax) -> bool:
    """Whether the result's zero point is the least integer; the rounded quotient is then a uint8, which saturates."""
    return bool(op.y_q.single(op.name)[1] == np.iinfo(op.y_q.dtype).min)


def _write(
    writer: ProgramWriter, op: QuantisedSoftmax, types: tuple[DataType, DataType], times: float, deep: int, padded: Sequence[int],
    channels: Sequence[int], ordered: int, lane_constants: int,
) -> int:  # fmt: skip
    """Write the steps of a group; returns the place of its result.

    y = round(e * times / sum) + zero point.  If the zero point is the least integer, y is the rounded quotient as uint8, counted from it.
    """
    source, dtype = types
    x, floats = writer.buffer(Extent(tile=1), dtype=source), writer.buffer(Extent(tile=WIDE))
    top, total = (writer.buffer(Extent(line=1)) for _ in range(2))
    planes = [range(plane, deep * op.groups, deep) for plane in padded]  # masked planes of all groups
    masks = [TABLE + 1 + MASK * i for i in range(len(padded))]
    # bytes minus their greatest, exponentials
    for of_groups, mask in zip(planes, masks, strict=True):
        writer.mask(Op.VMIN, source, x, of_groups, writer.constant(Extent(alike=mask)))
    writer.step(REDUCED, Op.VMAX, source, top, x)
    writer.step(FLAT, Op.VLANE_MAX, source, top, top)
    writer.step(BY_LINE, Op.VSUB, source, x, x, top)
    writer.step(TO_PIXELS, Op.VLUT, _F32, floats, x, writer.constant())
    for of_groups, mask in zip(planes, masks, strict=True):
        writer.mask(Op.VMUL, _F32, floats, of_groups, writer.constant(Extent(alike=mask + 1)), WIDE_MASKED)
    # sums
    writer.step(FLAT, Op.VFILL, _F32, total)
    if ordered:
        writer.step(SUMMED, Op.VLANE_ADD, _F32, total, floats, total, argument=ordered)
    else:
        lanes = [writer.constant(Extent(alike=lane_constants + lane)) for lane in range(_F32.lanes)]
        for channel in channels:
            writer.step(LANE, Op.VMADD, _F32, total, floats, lanes[channel % _F32.lanes], total, argument=channel // _F32.lanes)
            writer.step(FLAT, Op.VLANE_MAX, _F32, total, total)
    # quotients, bytes again
    exact = math.frexp(times)[0] == 0.5  # a power of two scales the sum instead of the exponentials
    writer.step(FLAT, Op.VMULS, _F32, total, total, imm=float_bits(1 / times if exact else 1.0))
    if not exact:
        writer.step(FLAT, Op.VMULS, _F32, floats, floats, imm=float_bits(times))
    writer.step(BY_PIXEL, Op.VDIV, _F32, floats, floats, total)
    if _zero_is_least(op):
        writer.step(TO_PLANES, Op.VCONVERT, DataType.uint8, x, floats, imm=int(_F32))
        if dtype != DataType.uint8:
            writer.step(FLAT, Op.VSUB, dtype, x, x, writer.constant(Extent(alike=TABLE)))
        return x
    for number in (ROUNDER, op.y_q.single(op.name)[1] - ROUNDER):
        writer.step(FLAT, Op.VADDS, _F32, floats, floats, imm=float_bits(number))
    writer.step(TO_PLANES, Op.VCONVERT, dtype, x, floats, imm=int(_F32))
    return x
