"""Average pools of bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from compiler.ir.operators import QuantisedAverage
from compiler.kinds.average_emitter import CONSTANTS, AverageJob
from compiler.kinds.base import Lowering, VectorTiles, VectorWork
from compiler.kinds.typed import MOST, ROUNDER
from compiler.kinds.window import SlidingSpec
from compiler.plan.plan import VectorTiling
from compiler.records.converting import WIDE
from compiler.records.ways import cheapest, end_to_end
from compiler.unit.machine import least_ub_blocks
from compiler.unit.operators import Given
from simulator.npu.errors import UnsupportedError
from simulator.npu.isa import Op, float_bits
from simulator.npu.parts import DataType

_CHUNK = 64  # pixels of a whole image that are added at a time
_PIXEL_BLOCKS = 1 + 2 * WIDE  # of a plane, for each of them
_EXACT = (1 << 24) // 255  # pixels whose sum is an integer that float32 holds


@dataclass(frozen=True, eq=False)
class AverageSpec(SlidingSpec):
    """chunk: pixels that are added at a time where one window is the whole image, without padding, else 0."""

    word: ClassVar[str] = "average"

    operator: QuantisedAverage
    chunk: int

    @classmethod
    def lower(cls, index: int, op: QuantisedAverage, into: Lowering) -> Self:
        fields = into.fields(index, op)
        image = fields["in_h"], fields["in_w"]
        (sx, _), (sy, zy) = op.x_q.single(op.name), op.y_q.single(op.name)
        whole, most = op.kernel == image and not any(op.pads), 255 * float(sx) / float(sy) + abs(zy)
        if whole and image[0] * image[1] > _EXACT:
            raise UnsupportedError(f"operator {op.name!r}: an average of {image[0] * image[1]:,} pixels; {_EXACT:,} at most are supported")
        if not whole and most >= MOST:
            raise UnsupportedError(f"operator {op.name!r}: values of up to {most:.3g} times its scale; below {MOST:.3g} is supported")
        room = least_ub_blocks(into.machine) // 2 // _PIXEL_BLOCKS - 1
        return cls(**fields, chunk=min(_CHUNK, image[0] * image[1], room) if whole else 0)

    @property
    def whole(self) -> bool:
        return self.chunk > 0

    def tile_blocks(self, planes: int, rows: int, columns: int, dtype: DataType) -> int:
        if self.whole:
            return planes * (self.chunk * _PIXEL_BLOCKS + 1)
        pool = self.operator
        covered, made = ((rows - 1) * pool.stride[0] + pool.kernel[0]) * self.wide(columns), rows * columns
        return planes * (max(covered, made) + WIDE * (covered + made)) + CONSTANTS

    def set_aside(self, rows: int) -> int:
        return 0

    def described(self) -> dict[str, object]:
        pool = self.operator
        return {"window": [*pool.kernel, *pool.stride, *pool.pads], "padded": pool.count_include_pad, "chunk": self.chunk}

    @property
    def steps_of_tile(self) -> int:
        high, wide = self.operator.kernel
        return 2 if self.whole else high * wide + 4

    def work(self, tiles: VectorTiles) -> VectorWork:
        repeats = calls = 0.0
        for planes, tall, wide, count in tiles.made:
            steps = self._added_up(planes) if self.whole else self._slid(planes, tall, wide)
            repeats += count * tiles.images * sum([each * tiles.cycles[op] for op, each, _ in steps])
            calls += count * tiles.images * sum([instructions for _, _, instructions in steps])
        read = float(self.in_h * self.in_w * self.y.planes * tiles.images) if self.whole else self.read_blocks(tiles)
        return VectorWork(repeats, calls, [read])

    def _added_up(self, planes: int) -> list[tuple[Op, float, float]]:
        """(opcode, repeats, instructions) of a whole image."""
        pixels, chunk = self.in_h * self.in_w, self.chunk
        of_chunk, chunks = cheapest(WIDE * chunk, planes, 1), pixels / chunk
        converted, calls = end_to_end(pixels, planes)
        halves = max(1, chunk).bit_length()
        return [
            (Op.VCONVERT, 2 * converted, calls),  # four blocks beside each block
            (Op.VADD, of_chunk.work * chunks, of_chunk.instructions * (chunks - 1) + halves),
            (Op.VADDS, 6 * end_to_end(WIDE * planes, 1)[0], 7),
        ]

    def _slid(self, planes: int, rows: int, columns: int) -> list[tuple[Op, float, float]]:
        """(opcode, repeats, instructions) of a tile's windows."""
        pool, neighbours = self.operator, self.operator.stride[1] == 1
        covered, made = planes * ((rows - 1) * pool.stride[0] + pool.kernel[0]) * self.wide(columns), planes * rows * columns
        tap = cheapest(WIDE * columns if neighbours else columns, rows, planes)
        taps = pool.kernel[0] * pool.kernel[1] * (1 if neighbours else WIDE)
        wide_in, calls_in = end_to_end(WIDE * covered, 1)
        wide_out, calls_out = end_to_end(WIDE * made, 1)
        of_bytes = end_to_end(covered, 1)[0] + end_to_end(made, 1)[0]
        return [
            (Op.VCONVERT, 2 * of_bytes, 2),
            (Op.VADDS, 2 * (wide_in + wide_out), 2 * (calls_in + calls_out)),
            (Op.VADD, taps * tap.work, taps * tap.instructions),
            (Op.VDIV, 2 * wide_out, 2 * calls_out),
        ]

    def job(self, given: Given) -> AverageJob:
        assert isinstance(given.tiling, VectorTiling)
        pool = self.operator
        (sx, zx), (sy, zy) = pool.x_q.single(self.name), pool.y_q.single(self.name)
        least, greatest = pool.y_q.limits
        pixels = self.in_h * self.in_w
        scale = sx / (sy * np.float32(pixels)) if self.whole else sx
        return AverageJob(
            **self.common(given),
            source=int(given.storages[self.reads[0].storage].dtype),
            out_w=self.out_w,
            in_h=self.in_h,
            in_w=self.in_w,
            kh=pool.kernel[0],
            kw=pool.kernel[1],
            sh=pool.stride[0],
            sw=pool.stride[1],
            pad_top=pool.pads[0],
            pad_left=pool.pads[1],
            padded=int(pool.count_include_pad),
            chunk=self.chunk,
            less=float_bits(-zx * pixels if self.whole else -zx),
            times=float_bits(float(scale)),
            over=float_bits(float(sy)),
            more=float_bits(zy - ROUNDER if self.whole else zy),
            low=float_bits(least - zy),
            high=float_bits(greatest - zy),
            rounder=float_bits(ROUNDER),
            tile_planes=self.planes_of_tile(given.tiling),
        )

    def tables(self) -> list[NDArray[np.int64]]:
        """By how many values a window has: that number as float32 bits."""
        high, wide = self.operator.kernel
        return [np.arange(1 if self.whole else high * wide + 1, dtype=np.float32).view(np.int32).astype(np.int64)]
