"""Layer normalisation over the channels, on VECTOR.

The variance is the mean of squared centred values.  The mean of squares minus the squared mean would save a pass, but its float32 sums cost
that pass again: squares in float16 overflow from 256 on.  Sums go over planes first, then over the lanes of a block.  Every lane then holds
the sum, so the block is an operand for all planes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np

from compiler.ir.operators import LayerNorm
from compiler.ops.base import Lowering, VectorTiles, VectorWork
from compiler.ops.tile_program import Extent, ProgramSpec, ProgramWriter, TileProgram
from compiler.ops.tile_program_emitter import COMBINED, CONVERT, FLAT, HALVED, LINES, PLANES, SQUARED
from compiler.plan.plan import VectorTiling
from compiler.target.weights import pack_lanes
from simulator.npu.isa import REPEAT_BLOCKS, Op, float_bits
from simulator.npu.parts import DataType

_LARGEST_FACTOR = 60000.0  # upper limit of 1 / deviation in float16, whose largest number is 65504
_F16, _F32 = DataType.float16, DataType.float32
_LINE = Extent(line=1)


@dataclass(frozen=True, eq=False)
class LayerNormSpec(ProgramSpec):
    """(x - mean) / sqrt(variance + epsilon) * scale + shift; a tile has all planes.

    kinds: constant blocks per plane.  3: a mask with 1 in channels and 0 in padding lanes, scale, shift.  1: the mask only, if all scales
    are 1 and all shifts are 0.  0: no constants, if also no plane has padding lanes.
    """

    word: ClassVar[str] = "layer_norm"

    operator: LayerNorm
    kinds: int

    @classmethod
    def lower(cls, index: int, op: LayerNorm, lowering: Lowering) -> Self:
        place, padded = lowering.layout.placements[op.y], lowering.padded_planes(op.y)
        plain = (op.scale == 1).all() and not op.shift.any()
        kinds = 3 if not plain else 1 if padded else 0
        values = (np.ones_like(op.scale), op.scale, op.shift)[:kinds]
        parts = [pack_lanes(column, place, lowering.type_of(op.y)) for column in values]
        address = lowering.constants.add(f"{op.name}/constants", np.concatenate(parts)) if parts else -1
        fields = lowering.fields(index, op)
        program = _program(op, lowering.type_of(op.y), fields["y"].planes, padded, kinds, address)
        return cls(**fields, kinds=kinds, program=program)

    def described(self) -> dict[str, object]:
        description = {"channels": len(self.operator.scale), "gaps": self.program.masked_planes, "constants": self.kinds}
        return description | {"centred": True} if self.operator.centred else description

    def slot_tiling(self, rows: int, slot_blocks: int, dtype: DataType) -> VectorTiling:
        fitting = slot_blocks // self.tile_blocks(self.planes_together, 1, self.out_w, dtype)
        pixels = fitting * self.out_w
        if pixels > REPEAT_BLOCKS and REPEAT_BLOCKS % self.out_w == 0:  # steps across planes take eight pixels at a time
            fitting = pixels // REPEAT_BLOCKS * REPEAT_BLOCKS // self.out_w
        return VectorTiling(tile_planes=self.planes_together, tile_rows=max(1, min(rows, fitting)))

    @property
    def steps_of_tile(self) -> int:
        # sum, subtract the mean; convert, square, divide by the deviation; scale and shift
        return 2 * (not self.operator.centred) + 3 + (self.kinds == 3)

    @property
    def constant_operands(self) -> tuple[tuple[str, tuple[str, ...]], ...]:
        return (("scale", ("p",)), ("shift", ("p",))) if self.kinds == 3 else ()

    def work(self, tiles: VectorTiles) -> VectorWork:
        passes = (4 if tiles.dtype == DataType.float16 else 2) + 2 * (not self.operator.centred) + (self.kinds == 3)
        of_pixels = 20  # passes over one block per pixel: a square root and a reciprocal count four each
        calls = 24 + (self.y.planes / 8 if self.kinds == 3 else 0)
        runs = float(sum([count * -(-tall * wide // REPEAT_BLOCKS) for _, tall, wide, count in tiles.output_tiles]) * tiles.images)
        repeats = tiles.size / REPEAT_BLOCKS * (passes + of_pixels / self.y.planes)
        return VectorWork(repeats, tiles.tiles * calls + 4 * runs, [tiles.size])

    def channel_step(self, count: int, dtype: DataType) -> int | str:
        return "a normalisation over the channels needs all of them"


def _program(op: LayerNorm, dtype: DataType, planes: int, padded: tuple[int, ...], kinds: int, constants_at: int) -> TileProgram:
    """Program of a normalisation.  Squares and their sum are float32; float16 x is converted to a copy with two blocks per block."""
    writer, half, per_channel = ProgramWriter(), dtype == _F16, float_bits(1.0 / len(op.scale))
    if kinds:
        writer.fetch(constants_at, Extent(plane=kinds))
    x = writer.buffer(Extent(tile=1), dtype=dtype)
    channels, scale, shift = (writer.constant(Extent(plane=kind), 1) for kind in range(3))
    # buffer `sums`: the float32 copy, or half of x while planes are added up; then one block per pixel
    sums = writer.buffer(Extent(tile=2) if half else Extent(line=(planes + 1) // 2 + 1), None if half else _LINE)
    writer.mask(Op.VMUL, dtype, x, padded, channels)
    if not op.centred:  # subtract the mean, then clear the padding lanes
        mean = writer.within(sums, Extent(), _LINE)
        writer.step(HALVED, Op.VADD, dtype, mean, x)
        writer.step(FLAT, Op.VMULS, dtype, mean, mean, imm=per_channel)
        writer.step(FLAT, Op.VLANE_SUM, dtype, mean, mean)
        writer.step(COMBINED, Op.VSUB, dtype, x, x, mean)
        writer.mask(Op.VMUL, dtype, x, padded, channels)
    # factor = 1 / sqrt(mean of squares + epsilon), in float32
    factor = sums
    if half:
        writer.buffer(_LINE)
        pairs, seconds = (writer.within(sums, Extent(alike=block), Extent(line=2)) for block in range(2))
        writer.step(CONVERT, Op.VCONVERT, _F32, sums, x, imm=int(_F16))
        writer.step(SQUARED, Op.VMUL, _F32, pairs, sums)
        factor = writer.within(sums, Extent(line=2), _LINE)  # sum of the two blocks of a pixel
        writer.step(LINES, Op.VADD, _F32, factor, pairs, seconds)
    else:
        writer.step(SQUARED, Op.VMUL, _F32, sums, x)
    for operation, bits in (
        (Op.VLANE_SUM, 0), (Op.VMULS, per_channel), (Op.VADDS, float_bits(op.epsilon)), (Op.VSQRT, 0), (Op.VRECIPROCAL, 0),
    ):  # fmt: skip
        writer.step(FLAT, operation, _F32, factor, factor, imm=bits)
    if half:
        writer.step(FLAT, Op.VMINS, _F32, factor, factor, imm=float_bits(_LARGEST_FACTOR))
        for block in (pairs, seconds):
            writer.step(LINES, Op.VCOPY, _F32, block, factor)
        writer.step(CONVERT, Op.VCONVERT, _F16, factor, pairs, imm=int(_F32))
    writer.step(COMBINED, Op.VMUL, dtype, x, x, factor)
    if kinds == 3:
        writer.step(PLANES, Op.VMADD, dtype, x, x, scale, shift)
    return writer.program(x, Extent(plane=kinds), planes, packed=True)
