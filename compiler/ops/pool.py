"""Float and maximum poolings on VECTOR.

Sliding windows are pooled over rows, then over columns.  This takes about kh + kw operations instead of kh x kw.  The frontend splits
windows of more than 256 pixels into stages.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from math import ceil, log2
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from compiler.instructions.repeats import cheapest_way, pool_repeats, pools_pixelwise
from compiler.ir.operators import Pool
from compiler.ir.region import Rows
from compiler.ops.base import Lowering, VectorTiles, VectorWork, first_or_zero
from compiler.ops.pool_emitter import BOTH, COLUMNS, ROWS, PoolJob, fed_plane
from compiler.ops.window_geometry import SlidingSpec
from compiler.plan.plan import Infeasible, Tiling, VectorTiling
from compiler.target.target_op import EmitInputs, Strip, UbBuffers, round_up
from compiler.target.weights import pack_pixels
from simulator.npu.isa import REPEAT_BLOCKS, float_bits
from simulator.npu.parts import DataType

_LOWEST = {DataType.float16: -65504.0, DataType.float32: -3.4028234663852886e38, DataType.int8: -128.0, DataType.uint8: 0.0}


@dataclass(frozen=True, eq=False)
class PoolSpec(SlidingSpec):
    """A pooling.  counts_at: DDR block of factors [out_h][out_w], each 1 / number of averaged pixels; -1 if all windows share one factor.

    counts_pitch: blocks from row to row of the factors.  A strip reads a part of each row.
    """

    word: ClassVar[str] = "pool"

    operator: Pool
    counts_at: int
    counts_pitch: int

    @classmethod
    def lower(cls, index: int, op: Pool, lowering: Lowering) -> Self:
        fields, counts = lowering.fields(index, op), -1
        if op.mode == "average" and any(op.pads) and not op.count_include_pad:
            inverse = _inverse_counts(op, *(fields[name] for name in ("in_h", "in_w", "out_h", "out_w")))
            counts = lowering.constants.add(f"{op.name}/counts", pack_pixels(inverse, lowering.type_of(op.y)))
        return cls(**fields, counts_at=counts, counts_pitch=fields["out_w"])

    @cached_property
    def whole_rows(self) -> bool:
        """Whether every window covers whole rows of the image, so that its pixels are contiguous."""
        pool = self.operator
        return self.out_w == 1 and pool.kernel[1] - pool.pads[1] >= self.in_w and (self.out_h == 1 or self.in_w > 1)

    @cached_property
    def passes(self) -> int:
        """Axes along which windows slide: ROWS, COLUMNS or BOTH.  Each axis is one pass over a tile."""
        pool = self.operator
        unpooled = [(pool.kernel[i], pool.stride[i], pool.pads[i], pool.pads[i + 2]) == (1, 1, 0, 0) for i in range(2)]
        return COLUMNS if unpooled[0] and not unpooled[1] else ROWS if unpooled[1] else BOTH

    @cached_property
    def can_be_fed(self) -> bool:
        """Whether convolutions may write into the pool's tiles.  Rows that two tiles share are copied, so pixels must not be scaled."""
        pool = self.operator
        unscaled = pool.mode == "max" or (pool.kernel[0] <= pool.stride[0] and self.counts_at < 0)
        return unscaled and not self.whole_rows and self.strip is None and pool.stride[0] <= pool.kernel[0]

    def fed_tiling(self, rows: int, slot_blocks: int) -> VectorTiling | None:
        """Largest tile of rows with all planes that fits a slot; None if one row does not fit."""
        fitting = bisect_right(range(1, rows + 1), slot_blocks, key=self._fed_blocks)
        return VectorTiling(tile_planes=self.y.planes, tile_rows=fitting, fed=True) if fitting else None

    def _fed_blocks(self, rows: int) -> int:
        """Blocks of a slot of a fed pool."""
        pool = self.operator
        plane = fed_plane((rows - 1) * pool.stride[0] + pool.kernel[0], max(self.in_w, self.out_w))
        return self.y.planes * (plane + rows * self.out_w)

    def ub_buffers(self, tiling: Tiling, through_ub: bool, dtype: DataType) -> tuple[UbBuffers, ...]:
        assert isinstance(tiling, VectorTiling)
        if tiling.fed:
            slots = UbBuffers("out", 2, round_up(self._fed_blocks(tiling.tile_rows), 8))
            between = UbBuffers("constants", 1, round_up(self.y.planes * tiling.tile_rows * self.in_w, 8))
            return (slots, between) if self.passes == BOTH else (slots,)
        return super().ub_buffers(tiling, through_ub, dtype)

    @property
    def operations(self) -> tuple[int, int]:
        """(operations of the pass over rows, operations of the pass over columns) of sliding windows."""
        pool = self.operator
        high, wide = pool.kernel
        return max(1, high - 1) * bool(self.passes & ROWS), max(1, wide - 1) * bool(self.passes & COLUMNS)

    @cached_property
    def inside(self) -> tuple[float, float]:
        """Fractions of the windows' pixels that lie inside the image, along rows and along columns."""
        pool = self.operator
        fractions = []
        for axis, (results, length) in enumerate(((self.out_h, self.in_h), (self.out_w, self.in_w))):
            positions = np.arange(results)[:, None] * pool.stride[axis] + np.arange(pool.kernel[axis]) - pool.pads[axis]
            fractions.append(float(((positions >= 0) & (positions < length)).mean()))
        return fractions[0], fractions[1]

    def tile_blocks(self, planes: int, rows: int, columns: int, dtype: DataType) -> int:
        """Blocks of the pixels under the windows, of results, and of values between two passes."""
        pool = self.operator
        high = (rows - 1) * pool.stride[0] + pool.kernel[0]
        wide = self.wide(columns)
        if self.passes != BOTH or self.whole_rows:
            return planes * (high * wide + rows * columns) + self.factors
        return planes * ((high + rows) * max(wide, columns))

    @property
    def factors(self) -> int:
        """Blocks of a constant factor: 1 for averages over whole rows, else 0."""
        return int(self.whole_rows and self.operator.mode == "average" and self.counts_at < 0)

    def described(self) -> dict[str, object]:
        pool = self.operator
        return {"window": [*pool.kernel, *pool.stride, *pool.pads], "mode": pool.mode}

    def pixel_constant_blocks(self, rows: int, columns: int) -> int:
        return rows * columns if self.counts_at >= 0 else 0

    def set_aside(self, rows: int) -> int:
        return self.pixel_constant_blocks(rows, self.out_w)

    @property
    def steps_of_tile(self) -> int:
        high, wide = self.operator.kernel
        return high * wide if self.whole_rows else sum(self.operations)

    @property
    def constant_operands(self) -> tuple[tuple[str, tuple[str, ...]], ...]:
        return (("counts", ("h", "w")),) if self.counts_at >= 0 else ()

    def work(self, tiles: VectorTiles) -> VectorWork:
        pool, tiling = self.operator, tiles.tiling
        if self.whole_rows:
            outputs = float(tiles.rows) * -(-self.y.planes // tiling.tile_planes) * tiles.images
            planes, pixels = min(tiling.tile_planes, self.y.planes), min(pool.kernel[0], self.in_h) * self.in_w
            repeats, calls = pool_repeats(planes, pixels)
            if self.factors:  # scaling of the first eight pixels, the block of the factor, and the factor after the sum
                scaled = pools_pixelwise(planes, pixels) * planes
                repeats, calls = repeats + scaled + 1 + -(-planes // REPEAT_BLOCKS), calls + bool(scaled) + 2
            repeats, calls = outputs * repeats, outputs * calls
        else:
            repeats = calls = 0.0
            for planes, tall, wide, count in tiles.output_tiles:
                one, instructions = _sliding(self, planes, tall, wide)
                repeats, calls = repeats + count * tiles.images * one, calls + count * tiles.images * instructions
        read = self.read_blocks(tiles)
        if pool.mode == "average" and self.counts_at < 0 and not self.whole_rows:
            repeats += read / 8  # pixels are scaled before the sum, because an unscaled sum could overflow
        return VectorWork(repeats, calls, [read])

    def narrowed(self, strip: Strip, in_columns: Rows, out_columns: Rows) -> Self | Infeasible:
        narrow = super().narrowed(strip, in_columns, out_columns)
        return (
            narrow
            if isinstance(narrow, Infeasible) or self.counts_at < 0
            else replace(narrow, counts_at=self.counts_at + out_columns.start)
        )

    def job(self, inputs: EmitInputs) -> PoolJob:
        assert isinstance(inputs.tiling, VectorTiling)
        pool, is_max = self.operator, self.operator.mode == "max"
        scale = 0.0 if is_max or self.counts_at >= 0 else 1.0 / (pool.kernel[0] * pool.kernel[1])
        # whole rows: a power of two, exact in every type, before the sum; the remaining factor after the sum
        before = 0.5 ** ceil(-log2(scale)) if self.factors else scale
        return PoolJob(
            **self.common(inputs),
            **self.geometry,
            is_max=int(is_max),
            passes=self.passes,
            fill=float_bits(_LOWEST[inputs.dtype] if is_max else 0.0),
            scale=float_bits(before) if scale else 0,
            after=float_bits(scale / before) if self.factors else 0,
            counts_at=self.counts_at,
            counts_pitch=self.counts_pitch,
            counts=first_or_zero(inputs.constants),
        )


@lru_cache(maxsize=1 << 14)
def _sliding(spec: PoolSpec, planes: int, rows: int, columns: int) -> tuple[float, float]:
    """(repeats, instructions) of a tile with planes x rows x columns results, on average over the image."""
    wide = spec.wide(columns)
    # with stride 1, consecutive rows are one long row
    over_rows = cheapest_way(wide * rows, 1, planes) if spec.operator.stride[0] == 1 else cheapest_way(wide, rows, planes)
    repeats = instructions = 0.0
    for way, operations, inside in zip((over_rows, cheapest_way(columns, rows * planes, 1)), spec.operations, spec.inside, strict=True):
        repeats += operations * inside * way.work
        instructions += operations * inside * way.instructions
    return repeats, instructions


def _inverse_counts(op: Pool, in_h: int, in_w: int, out_h: int, out_w: int) -> NDArray[np.float32]:
    """1 / number of elements inside the image, per output pixel."""

    def inside(size: int, out: int, kernel: int, stride: int, pad: int) -> NDArray[np.int64]:
        start = np.arange(out) * stride - pad
        return np.minimum(start + kernel, size) - np.maximum(start, 0)

    rows = inside(in_h, out_h, op.kernel[0], op.stride[0], op.pads[0])
    columns = inside(in_w, out_w, op.kernel[1], op.stride[1], op.pads[1])
    return (1.0 / np.maximum(1, rows[:, None] * columns[None, :])).astype(np.float32)
