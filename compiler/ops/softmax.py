"""Float softmax over the channels, on VECTOR.

Sums and maxima go over planes first, then over the lanes of a block.  Every lane then holds the result, so the block is an operand for all
planes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Self

import numpy as np

from compiler.ir.operators import Softmax
from compiler.ops.base import Lowering, VectorTiles, VectorWork
from compiler.ops.tile_program import Extent, ProgramSpec, ProgramWriter
from compiler.ops.tile_program_emitter import COMBINED, FLAT, REDUCED
from compiler.plan.plan import VectorTiling
from simulator.npu.isa import Op
from simulator.npu.parts import DataType


@dataclass(frozen=True, eq=False)
class SoftmaxSpec(ProgramSpec):
    """exp(x - max) / sum over each group of planes; a tile is whole groups.  groups: number of groups."""

    word: ClassVar[str] = "softmax"

    groups: int

    @classmethod
    def lower(cls, index: int, op: Softmax, lowering: Lowering) -> Self:
        fields, dtype, padded = lowering.fields(index, op), lowering.type_of(op.y), lowering.padded_planes(op.y)
        # constants: 0 in channels, the lowest number in padding lanes
        lowest = float(np.finfo(dtype.storage).min)
        masks_at = lowering.pack(f"{op.name}/mask", np.zeros(lowering.channels(op.y), np.float32), op.y, lowest)
        writer, size = ProgramWriter(), Extent(plane=int(bool(padded)))
        x, top, total = writer.buffer(Extent(tile=1), dtype=dtype), writer.buffer(Extent(line=1)), writer.buffer(Extent(line=1))
        if padded:
            writer.fetch(masks_at, size)
        writer.mask(Op.VADD, dtype, x, padded, writer.constant(pitch=1))
        writer.step(REDUCED, Op.VMAX, dtype, top, x)
        writer.step(FLAT, Op.VLANE_MAX, dtype, top, top)
        writer.step(COMBINED, Op.VSUB, dtype, x, x, top)
        writer.loop(3)
        writer.step(FLAT, Op.VEXP, dtype, x, x)
        writer.step(REDUCED, Op.VADD, dtype, total, x)
        writer.step(FLAT, Op.VLANE_SUM, dtype, total, total)
        writer.step(FLAT, Op.VRECIPROCAL, dtype, total, total)
        writer.step(COMBINED, Op.VMUL, dtype, x, x, total)
        writer.loop(4)
        return cls(**fields, groups=op.groups, program=writer.program(x, size, fields["y"].planes // op.groups))

    def described(self) -> dict[str, object]:
        return {"groups": self.groups, "gaps": self.program.masked_planes}

    def set_aside(self, rows: int) -> int:
        return self.y.planes

    def slot_tiling(self, rows: int, slot_blocks: int, dtype: DataType) -> VectorTiling:
        tile_rows = max(1, min(rows, slot_blocks // ((self.planes_together + 2) * self.out_w)))
        groups = max(1, (slot_blocks // (tile_rows * self.out_w) - 2) // self.planes_together)
        return VectorTiling(tile_planes=min(self.groups, groups) * self.planes_together, tile_rows=tile_rows)

    @property
    def steps_of_tile(self) -> int:
        return 1

    @property
    def constant_operands(self) -> tuple[tuple[str, tuple[str, ...]], ...]:
        return (("mask", ("p",)),) if len(self.program.constants) else ()

    def work(self, tiles: VectorTiles) -> VectorWork:
        calls = tiles.tiles * 10 * max(1, tiles.tiling.tile_planes // self.planes_together)
        return VectorWork(tiles.size / 8 * 8, calls, [tiles.size])

    def channel_part(self, first: int, last: int, dtype: DataType) -> Self | None:
        part = super().channel_part(first, last, dtype)
        return None if part is None else replace(part, groups=(last - first) * self.groups // self.y.planes)
