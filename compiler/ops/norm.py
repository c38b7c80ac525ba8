"""Layer normalisation over the channels, on VECTOR.

The variance is not the mean of squares less the squared mean: it saves a pass, but needs float32 sums, which take it again; squares in
float16 overflow from 256 on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from compiler.ir.operators import LayerNorm
from compiler.ops.base import Lowering, OnVector, VectorTiles, VectorWork, first_or_zero, streams_constants
from compiler.ops.norm_emitter import LayerNormJob
from compiler.plan.plan import VectorTiling
from compiler.target.target_op import EmitInputs, Fetch
from compiler.target.weights import pack_lanes
from simulator.npu.isa import REPEAT_BLOCKS, float_bits
from simulator.npu.parts import DataType, Memory

_LARGEST_FACTOR = 60000.0  # of 1 / deviation in float16, whose largest number is 65504


@dataclass(frozen=True, eq=False)
class LayerNormSpec(OnVector):
    """constants_at: DDR blocks [kinds][planes] of 1 in lanes that are channels, scale and shift; padded: planes that have padding lanes.

    kinds: 3; 1 where scale is 1 and shift is 0; 0 where besides no plane has padding lanes.  centred: whether the mean is 0.
    """

    word: ClassVar[str] = "layer_norm"

    channels: int
    epsilon: float
    constants_at: int
    kinds: int
    padded: tuple[int, ...]
    centred: bool

    @classmethod
    def lower(cls, index: int, op: LayerNorm, into: Lowering) -> Self:
        place, padded = into.layout.placements[op.y], into.padded_planes(op.y)
        plain = (op.scale == 1).all() and not op.shift.any()
        kinds = 3 if not plain else 1 if padded else 0
        values = (np.ones_like(op.scale), op.scale, op.shift)[:kinds]
        parts = [pack_lanes(column, place, into.type_of(op.y)) for column in values]
        address = into.constants.add(f"{op.name}/constants", np.concatenate(parts)) if parts else -1
        fields = into.fields(index, op)
        return cls(
            **fields, channels=len(op.scale), epsilon=op.epsilon, constants_at=address, kinds=kinds, padded=padded, centred=op.centred
        )

    def described(self) -> dict[str, object]:
        description = {"channels": self.channels, "gaps": list(self.padded), "constants": self.kinds}
        return description | {"centred": True} if self.centred else description

    @property
    def planes_together(self) -> int:
        return self.y.planes

    def planes_of_tile(self, tiling: VectorTiling) -> int:
        return self.y.planes

    def tile_blocks(self, planes: int, rows: int, columns: int, dtype: DataType) -> int:
        """Blocks of the values, and of float32 copies of float16 ones, or of half of float32 ones for sums."""
        return rows * columns * (planes + (2 * planes if dtype == DataType.float16 else (planes + 1) // 2) + 1)

    def constant_blocks(self, planes: int) -> int:
        return self.kinds * planes

    def set_aside(self, rows: int) -> int:
        return self.constant_blocks(self.y.planes)

    def slot_tiling(self, rows: int, slot_blocks: int, dtype: DataType) -> VectorTiling:
        fitting = slot_blocks // self.tile_blocks(self.planes_together, 1, self.out_w, dtype)
        pixels = fitting * self.out_w
        if pixels > REPEAT_BLOCKS and REPEAT_BLOCKS % self.out_w == 0:  # what goes through planes takes eight pixels at a time
            fitting = pixels // REPEAT_BLOCKS * REPEAT_BLOCKS // self.out_w
        return VectorTiling(tile_planes=self.planes_together, tile_rows=max(1, min(rows, fitting)))

    @property
    def steps_of_tile(self) -> int:
        # sum, centre; convert, squares, scale by the deviation; scale and shift
        return 2 * (not self.centred) + 3 + (self.kinds == 3)

    @property
    def constant_operands(self) -> tuple[tuple[str, tuple[str, ...]], ...]:
        return (("scale", ("p",)), ("shift", ("p",))) if self.kinds == 3 else ()

    def work(self, tiles: VectorTiles) -> VectorWork:
        passes = (4 if tiles.dtype == DataType.float16 else 2) + 2 * (not self.centred) + (self.kinds == 3)
        of_pixels = 20  # what is done with a block of every pixel: a root and a reciprocal are four each
        calls = 24 + (self.y.planes / 8 if self.kinds == 3 else 0)
        runs = float(sum([count * -(-tall * wide // REPEAT_BLOCKS) for _, tall, wide, count in tiles.output_tiles]) * tiles.images)
        repeats = tiles.size / REPEAT_BLOCKS * (passes + of_pixels / self.y.planes)
        return VectorWork(repeats, tiles.tiles * calls + 4 * runs, [tiles.size])

    def channel_step(self, count: int, dtype: DataType) -> int | str:
        return "a normalisation over the channels needs all of them"

    def job(self, inputs: EmitInputs) -> LayerNormJob:
        bits = {"per_channel": 1.0 / self.channels, "epsilon": self.epsilon, "largest": _LARGEST_FACTOR}
        return LayerNormJob(
            **self.common(inputs),
            width=self.out_w,
            constants=first_or_zero(inputs.constants),
            constants_at=self.constants_at if streams_constants(inputs) and self.kinds else -1,
            kinds=self.kinds,
            centred=int(self.centred),
            **{name: float_bits(value) for name, value in bits.items()},
        )

    def tables(self) -> list[NDArray[np.int64]]:
        return [np.array(self.padded, np.int64)]

    def fetches(self, inputs: EmitInputs) -> list[Fetch]:
        if streams_constants(inputs) or not self.kinds:
            return []
        return [Fetch(Memory.UB, self.constants_at, first_or_zero(inputs.constants), self.kinds * self.y.planes)]
