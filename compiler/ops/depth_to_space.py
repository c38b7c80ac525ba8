"""DepthToSpace on VECTOR: neighbouring input pixels go to result pixels with a distance of `block`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Self

from compiler.instructions.repeats import cheapest_way
from compiler.ir.operators import DepthToSpace
from compiler.ir.region import Rows
from compiler.ops.base import Lowering, OnVector, VectorTiles, VectorWork
from compiler.ops.depth_to_space_emitter import DepthToSpaceJob
from compiler.plan.plan import Infeasible, VectorTiling
from compiler.target.target_op import EmitInputs, Strip
from simulator.npu.parts import DataType


@dataclass(frozen=True, eq=False)
class DepthToSpaceSpec(OnVector):
    """A DepthToSpace operator.  phase: first column of a strip's result, counted from the first result column of its first input column."""

    word: ClassVar[str] = "depth_to_space"

    operator: DepthToSpace
    phase: int = 0

    @classmethod
    def lower(cls, index: int, op: DepthToSpace, lowering: Lowering) -> Self:
        return cls(**lowering.fields(index, op))

    def described(self) -> dict[str, object]:
        return {"block": self.operator.block}

    def input_rows(self, rows: int) -> int:
        return min(self.in_h, self._spanned(rows))

    def _spanned(self, places: int) -> int:
        """Upper bound of the input rows (or columns) that `places` neighbouring rows (or columns) of the result read."""
        return (places + self.operator.block - 2) // self.operator.block + 1

    def tile_blocks(self, planes: int, rows: int, columns: int, dtype: DataType) -> int:
        """Blocks of the input and of the result."""
        wide = self.in_w if columns >= self.out_w else min(self.in_w, self._spanned(columns))
        return planes * (self.operator.block**2 * self._spanned(rows) * wide + rows * columns)

    def set_aside(self, rows: int) -> int:
        return 0

    @property
    def steps_of_tile(self) -> int:
        return self.operator.block**2

    def work(self, tiles: VectorTiles) -> VectorWork:
        block, read = self.operator.block, 0.0
        repeats = calls = 0.0
        for planes, tall, wide, count in tiles.output_tiles:
            high, broad = -(-tall // block), -(-wide // block)
            way = cheapest_way(broad, high, planes)
            occurrences = float(count * tiles.images)
            parts = occurrences * min(block, tall) * min(block, wide)  # runs of channels with a pixel in the tile
            repeats, calls = repeats + parts * way.work, calls + parts * way.instructions
            read += occurrences * block**2 * planes * high * broad
        return VectorWork(repeats, calls, [read])

    def channel_step(self, count: int, dtype: DataType) -> int | str:
        return "the channels that a run of them is made of lie apart"

    def narrowed(self, strip: Strip, in_columns: Rows, out_columns: Rows) -> Self | Infeasible:
        phase = self.phase + out_columns.start - in_columns.start * self.operator.block
        return replace(self, strip=strip, in_w=in_columns.size, out_w=out_columns.size, phase=phase)

    def job(self, inputs: EmitInputs) -> DepthToSpaceJob:
        assert isinstance(inputs.tiling, VectorTiling)
        common = self.common(inputs)
        columns = common["tile_columns"]
        return DepthToSpaceJob(
            **common,
            out_w=self.out_w,
            in_w=self.in_w,
            block=self.operator.block,
            phase=self.phase,
            widest=self.in_w if columns >= self.out_w else min(self.in_w, self._spanned(columns)),
            tile_planes=self.planes_of_tile(inputs.tiling),
        )
