"""Normalisation over the channels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from compiler.ir.operators import LayerNorm
from compiler.kinds.base import Lowering, OnVector, VectorTiles, VectorWork, first_of, streamed
from compiler.kinds.norm_emitter import LayerNormJob
from compiler.plan.plan import VectorTiling
from compiler.unit.operators import Fetch, Given
from compiler.unit.weights import pack_lanes
from simulator.npu.isa import float_bits
from simulator.npu.parts import DataType, Memory

_LARGEST_FACTOR = 60000.0  # of 1 / deviation in float16, whose largest number is 65504


@dataclass(frozen=True, eq=False)
class LayerNormSpec(OnVector):
    """constants_at: DDR blocks [3][planes] of scale, shift, and 1 in lanes that are channels; padded: planes that have padding lanes."""

    word: ClassVar[str] = "layer_norm"

    channels: int
    epsilon: float
    constants_at: int
    padded: tuple[int, ...]

    @classmethod
    def lower(cls, index: int, op: LayerNorm, into: Lowering) -> Self:
        place = into.layout.placements[op.y]
        parts = [pack_lanes(values, place, into.type_of(op.y)) for values in (op.scale, op.shift, np.ones_like(op.scale))]
        at, padded = into.constants.add(f"{op.name}/constants", np.concatenate(parts)), into.padded_planes(op.y)
        return cls(**into.fields(index, op), channels=len(op.scale), epsilon=op.epsilon, constants_at=at, padded=padded)

    def described(self) -> dict[str, object]:
        return {"channels": self.channels, "gaps": list(self.padded)}

    @property
    def planes_together(self) -> int:
        return self.y.planes

    def planes_of_tile(self, tiling: VectorTiling) -> int:
        return self.y.planes

    def tile_blocks(self, planes: int, rows: int, columns: int, dtype: DataType) -> int:
        """Values, and their squares in float32."""
        return rows * columns * (planes * (3 if dtype == DataType.float16 else 2) + 1)

    def constant_blocks(self, planes: int) -> int:
        return 3 * planes

    def set_aside(self, rows: int) -> int:
        return self.constant_blocks(self.y.planes)

    def slot_tiling(self, rows: int, slot_blocks: int, dtype: DataType) -> VectorTiling:
        fitting = slot_blocks // self.tile_blocks(self.planes_together, 1, self.out_w, dtype)
        return VectorTiling(tile_planes=self.planes_together, tile_rows=max(1, min(rows, fitting)))

    @property
    def steps_of_tile(self) -> int:
        return 6  # sum, centre, square, sum, scale by the deviation, scale and shift

    @property
    def constant_operands(self) -> tuple[tuple[str, tuple[str, ...]], ...]:
        return ("scale", ("p",)), ("shift", ("p",))

    def work(self, tiles: VectorTiles) -> VectorWork:
        passes = 9 if tiles.dtype == DataType.float16 else 6
        return VectorWork(tiles.size / 8 * passes, tiles.tiles * (30 + self.y.planes), [tiles.size])

    def channel_step(self, count: int, dtype: DataType) -> int | str:
        return "a normalisation over the channels needs all of them"

    def job(self, given: Given) -> LayerNormJob:
        bits = {"per_channel": 1.0 / self.channels, "epsilon": self.epsilon, "largest": _LARGEST_FACTOR}
        return LayerNormJob(
            **self.common(given),
            width=self.out_w,
            constants=first_of(given.constants),
            constants_at=self.constants_at if streamed(given) else -1,
            **{name: float_bits(value) for name, value in bits.items()},
        )

    def tables(self) -> list[NDArray[np.int64]]:
        return [np.array(self.padded, np.int64)]

    def fetches(self, given: Given) -> list[Fetch]:
        return [] if streamed(given) else [Fetch(Memory.UB, self.constants_at, first_of(given.constants), 3 * self.y.planes)]
