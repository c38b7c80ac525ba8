"""Float softmax over the channels, on VECTOR."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from compiler.ir.operators import Softmax
from compiler.ops.base import Lowering, OnVector, VectorTiles, VectorWork, first_or_zero, streams_constants
from compiler.ops.softmax_emitter import SoftmaxJob
from compiler.plan.plan import VectorTiling
from compiler.target.target_op import EmitInputs, Fetch
from simulator.npu.parts import DataType, Memory


@dataclass(frozen=True, eq=False)
class SoftmaxSpec(OnVector):
    """masks_at: DDR blocks [planes], 0 in lanes that are channels and very negative in padding lanes; padded: planes that have any."""

    word: ClassVar[str] = "softmax"

    groups: int
    masks_at: int
    padded: tuple[int, ...]

    @property
    def group_planes(self) -> int:
        return self.y.planes // self.groups

    @classmethod
    def lower(cls, index: int, op: Softmax, into: Lowering) -> Self:
        lowest = float(np.finfo(into.type_of(op.y).storage).min)
        mask = into.pack(f"{op.name}/mask", np.zeros(into.channels(op.y), np.float32), op.y, lowest)
        return cls(**into.fields(index, op), groups=op.groups, masks_at=mask, padded=into.padded_planes(op.y))

    def described(self) -> dict[str, object]:
        return {"groups": self.groups, "gaps": list(self.padded)}

    @property
    def planes_together(self) -> int:
        return self.group_planes

    def planes_of_tile(self, tiling: VectorTiling) -> int:
        """Planes of a tile: whole groups."""
        deep = self.group_planes
        return min(self.y.planes, max(deep, tiling.tile_planes // deep * deep))

    def tile_blocks(self, planes: int, rows: int, columns: int, dtype: DataType) -> int:
        return (planes + 2) * rows * columns

    def constant_blocks(self, planes: int) -> int:
        return planes if self.padded else 0

    def slot_tiling(self, rows: int, slot_blocks: int, dtype: DataType) -> VectorTiling:
        tile_rows = max(1, min(rows, slot_blocks // ((self.planes_together + 2) * self.out_w)))
        groups = max(1, (slot_blocks // (tile_rows * self.out_w) - 2) // self.planes_together)
        return VectorTiling(tile_planes=min(self.groups, groups) * self.planes_together, tile_rows=tile_rows)

    @property
    def constant_operands(self) -> tuple[tuple[str, tuple[str, ...]], ...]:
        return (("mask", ("p",)),) if self.padded else ()

    def work(self, tiles: VectorTiles) -> VectorWork:
        calls = tiles.tiles * 10 * max(1, tiles.tiling.tile_planes // self.group_planes)
        return VectorWork(tiles.size / 8 * 8, calls, [tiles.size])

    def channel_step(self, count: int, dtype: DataType) -> int | str:
        return self.group_planes

    def channel_part(self, first: int, last: int, dtype: DataType) -> Self | None:
        part = super().channel_part(first, last, dtype)
        if part is None:
            return None
        padded = tuple(plane - first for plane in self.padded if first <= plane < last)
        groups = (last - first) * self.groups // self.y.planes
        return replace(part, groups=groups, masks_at=self.masks_at + first, padded=padded)

    def job(self, inputs: EmitInputs) -> SoftmaxJob:
        assert isinstance(inputs.tiling, VectorTiling)
        return SoftmaxJob(
            **self.common(inputs),
            group_planes=self.group_planes,
            width=self.out_w,
            tile_planes=self.planes_of_tile(inputs.tiling),
            masks=first_or_zero(inputs.constants),
            masks_at=self.masks_at if streams_constants(inputs) and self.padded else -1,
        )

    def tables(self) -> list[NDArray[np.int64]]:
        return [np.array(self.padded, np.int64)]

    def fetches(self, inputs: EmitInputs) -> list[Fetch]:
        if streams_constants(inputs) or not self.padded:
            return []
        return [Fetch(Memory.UB, self.masks_at, first_or_zero(inputs.constants), self.y.planes)]
