"""Average pools of bytes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import ClassVar, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from compiler.instructions.conversion import HALF, WIDE
from compiler.instructions.repeats import cheapest, end_to_end
from compiler.ir.operators import QuantisedAverage
from compiler.ir.quantised.affine import fit_affine
from compiler.ir.quantised.parameters import Quantisation
from compiler.ir.quantised.pooling import means_of_sums
from compiler.ops.base import Lowering, VectorTiles, VectorWork
from compiler.ops.integer_elementwise import MOST, ROUNDER
from compiler.ops.quantised_avg_pool_emitter import CLASS, CONSTANTS, AverageJob, folded, rooms
from compiler.ops.sliding_window import SlidingSpec
from compiler.plan.plan import VectorTiling
from compiler.target.capabilities import least_ub_blocks
from compiler.target.target_op import EmitInputs
from simulator.npu.errors import UnsupportedError
from simulator.npu.isa import Op, float_bits
from simulator.npu.parts import DataType

_CHUNK = 288  # blocks of a whole image that are added at a time, about: what a slot has room for
_LEAST = 16  # pixels of them
_EXACT = (1 << 24) // 255  # pixels whose sum is an integer that float32 holds
_OF_HALF = 1 << 11  # up to which float16 holds all integers
_LEVELS = {DataType.uint8: 3, DataType.int8: 4}  # sums of 8 bytes, or of 16 with a sign, are below that
_Step = tuple[Op, float, float]  # opcode, repeats, instructions


class _Means(NamedTuple):
    """A multiply-add of sums in float32, in words."""

    slope: int
    shift: int


@lru_cache(maxsize=1 << 10)
def _of_class(x_q: tuple[float, int, str], y_q: tuple[float, int, str], taps: int, number: int, centre: int) -> _Means | None:
    """Of sums of `taps` integers less `centre`: their mean over `number`, where every order of additions and one product give the same."""
    of_x, of_y = (Quantisation.of(np.float32(scale), np.dtype(name).type(zero), np.dtype(name)) for scale, zero, name in (x_q, y_q))
    wanted = means_of_sums(of_x, of_y, taps, number)
    if wanted is None:
        return None
    low, high = of_x.limits
    sums = np.arange(taps * low, taps * high + 1).astype(np.float32) - np.float32(centre)
    found = fit_affine(sums, wanted, np.asarray(x_q[0] / (number * y_q[0])))
    return None if found is None else _Means(float_bits(float(found.scale)), float_bits(float(found.shift)))


@dataclass(frozen=True, eq=False)
class AverageSpec(SlidingSpec):
    """chunk: pixels that are added at a time where one window is the whole image, without padding, else 0; halvings: as `AverageJob`."""

    word: ClassVar[str] = "average"

    operator: QuantisedAverage
    chunk: int
    halvings: int

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
        halvings, chunk = _LEVELS[into.type_of(op.x)], 0
        if whole:
            pixels, room = image[0] * image[1], least_ub_blocks(into.machine) // 2
            chunk = -(-pixels // -(-pixels // max(_LEAST, _CHUNK // fields["y"].planes)))
            while _plane_blocks(chunk, halvings) > room:
                chunk -= 1
        return cls(**fields, chunk=chunk, halvings=halvings)

    @property
    def whole(self) -> bool:
        return self.chunk > 0

    def tile_blocks(self, planes: int, rows: int, columns: int, dtype: DataType) -> int:
        if self.whole:
            return planes * _plane_blocks(self.chunk, self.halvings)
        (kh, kw), sh, wide = self.operator.kernel, self.operator.stride[0], self.wide(columns)
        high = (rows - 1) * sh + kh
        return planes * (max(high * wide, rows * columns) + sum(rooms(self.exact, kh, kw, high, wide, rows, columns))) + CONSTANTS

    def set_aside(self, rows: int) -> int:
        return 0

    def described(self) -> dict[str, object]:
        pool = self.operator
        exact = [taps for taps, means in enumerate(self._classes) if means is not None] if self.exact else []
        found = {"window": [*pool.kernel, *pool.stride, *pool.pads], "padded": pool.count_include_pad, "chunk": self.chunk}
        return found | ({"exact": exact} if exact else {})

    @property
    def steps_of_tile(self) -> int:
        high, wide = self.operator.kernel
        if self.whole:
            return 2
        return high + wide + 4 if self.exact else high * wide + 4

    @property
    def _centre(self) -> int:
        """What is taken off sums in float16: the middle of all that windows of bytes without a sign have."""
        high, wide = self.operator.kernel
        return 128 * high * wide if self.operator.x_q.dtype == np.uint8 else 0

    @cached_property
    def _classes(self) -> list[_Means | None]:
        """By how many values a window has."""
        pool, (high, wide) = self.operator, self.operator.kernel
        if self.whole or max(high, wide) * 255 > _OF_HALF or high * wide * 128 > _OF_HALF or self.out_w > self.in_w:
            return []
        (sh, sw), (top, left, bottom, right) = pool.stride, pool.pads
        if ((top or bottom) and self.in_h < high + sh) or ((left or right) and self.in_w < wide + sw):
            return []  # padding cuts more than one row, or column, alike
        of_x, of_y = ((float(q.single(self.name)[0]), q.single(self.name)[1], q.dtype.name) for q in (pool.x_q, pool.y_q))
        numbers = [high * wide if pool.count_include_pad else taps for taps in range(1, high * wide + 1)]
        return [None, *(_of_class(of_x, of_y, taps, number, self._centre) for taps, number in enumerate(numbers, 1))]

    @property
    def exact(self) -> bool:
        """Whether windows that padding does not cut may be added in any order."""
        return bool(self._classes) and self._classes[-1] is not None

    def work(self, tiles: VectorTiles) -> VectorWork:
        repeats = calls = 0.0
        for planes, tall, wide, count in tiles.made:
            made = self._in_any_order if self.exact else self._slid
            steps = self._added_up(planes) if self.whole else made(planes, tall, wide)
            repeats += count * tiles.images * sum([each * tiles.cycles[op] for op, each, _ in steps])
            calls += count * tiles.images * sum([instructions for _, _, instructions in steps])
        read = float(self.in_h * self.in_w * self.y.planes * tiles.images) if self.whole else self.read_blocks(tiles)
        return VectorWork(repeats, calls, [read])

    def _added_up(self, planes: int) -> list[_Step]:
        """Of a whole image."""
        pixels, found = self.in_h * self.in_w, list[_Step]()
        for begin in range(0, pixels, self.chunk):
            left = min(self.chunk, pixels - begin)
            found.append((Op.VCONVERT, *end_to_end(planes * left, 1)))
            for _ in range(self.halvings):
                found += [(Op.VADD, *end_to_end(HALF * planes * (left // 2), 1))] if left > 1 else []
                left -= left // 2
            found += [(Op.VCONVERT, *end_to_end(HALF * planes * left, 1)), (Op.VADD, *end_to_end(WIDE * planes * left, 1))]
        found.pop()  # of the first pixels nothing is added to
        left = folded(min(self.chunk, pixels), self.halvings)
        while left > 1:
            found.append((Op.VADD, *end_to_end(WIDE * planes * (left // 2), 1)))
            left -= left // 2
        wide, calls = end_to_end(WIDE * planes, 1)
        return [*found, (Op.VADDS, 6 * wide, 6 * calls), (Op.VCONVERT, 2 * end_to_end(planes, 1)[0], 1)]

    def _of_results(self, planes: int, rows: int, columns: int, divisions: int) -> list[_Step]:
        made = planes * rows * columns
        wide, calls = end_to_end(WIDE * made, 1)
        of_bytes = (Op.VCONVERT, 2 * end_to_end(made, 1)[0], 1)
        return [of_bytes, (Op.VADDS, wide, calls), (Op.VDIV, divisions * wide, divisions * calls)]

    def _slid(self, planes: int, rows: int, columns: int) -> list[_Step]:
        """Of a tile's windows, in order."""
        pool, neighbours = self.operator, self.operator.stride[1] == 1
        covered = planes * ((rows - 1) * pool.stride[0] + pool.kernel[0]) * self.wide(columns)
        taps = pool.kernel[0] * pool.kernel[1] * (1 if neighbours else WIDE)
        tap = cheapest(WIDE * columns if neighbours else columns, rows, planes)
        wide, calls = end_to_end(WIDE * covered, 1)
        of_pixels = [(Op.VCONVERT, 2 * end_to_end(covered, 1)[0], 1), (Op.VADDS, 2 * wide, 2 * calls)]
        return [*of_pixels, (Op.VADD, taps * tap.work, taps * tap.instructions), *self._of_results(planes, rows, columns, 2)]

    def _in_any_order(self, planes: int, rows: int, columns: int) -> list[_Step]:
        """Of a tile's windows, but for those that padding cuts."""
        (high, across), (sh, sw), wide = self.operator.kernel, self.operator.stride, self.wide(columns)
        covered, parts = planes * ((rows - 1) * sh + high) * wide, 1 if sw == 1 else HALF
        down, beside = cheapest(HALF * wide, rows, planes), cheapest(HALF * columns // parts, rows, planes)
        of_half = end_to_end(HALF * planes * rows * columns, 1)
        return [
            (Op.VCONVERT, *end_to_end(covered, 1)),
            (Op.VADD, max(1, high - 1) * down.work, max(1, high - 1) * down.instructions),
            (Op.VADD, across * parts * beside.work, across * parts * beside.instructions),
            (Op.VCONVERT, *of_half),
            *self._of_results(planes, rows, columns, 0),
        ]

    def job(self, given: EmitInputs) -> AverageJob:
        assert isinstance(given.tiling, VectorTiling)
        pool = self.operator
        (sx, zx), (sy, zy) = pool.x_q.single(self.name), pool.y_q.single(self.name)
        least, greatest = pool.y_q.limits
        pixels = self.in_h * self.in_w
        scale = sx / (sy * np.float32(pixels)) if self.whole else sx
        return AverageJob(
            **self.common(given),
            **self.geometry,
            source=int(given.storages[self.reads[0].storage].dtype),
            padded=int(pool.count_include_pad),
            chunk=self.chunk,
            halvings=self.halvings,
            exact=int(self.exact),
            less=float_bits(-zx * pixels if self.whole else -zx),
            times=float_bits(float(scale)),
            over=float_bits(float(sy)),
            more=float_bits(zy - ROUNDER if self.whole else zy),
            centre=float_bits(-self._centre),
            low=float_bits(least - zy),
            high=float_bits(greatest - zy),
            rounder=float_bits(ROUNDER),
            tile_planes=self.planes_of_tile(given.tiling),
        )

    def tables(self) -> list[NDArray[np.int64]]:
        """int64 [values + 1, CLASS] by how many values a window has: that as float32 bits, 1 where any order will do, `_Means`."""
        high, wide = self.operator.kernel
        found = np.zeros((1 if self.whole else high * wide + 1, CLASS), np.int64)
        found[:, 0] = np.arange(len(found), dtype=np.float32).view(np.int32)
        for taps, means in enumerate(self._classes):
            if means is not None:
                found[taps, 1:] = 1, *means
        return [found.reshape(-1)]


def _plane_blocks(chunk: int, halvings: int) -> int:
    """Of a slot, for each plane of a whole image: bytes, float16, float32 and sums of it, the result."""
    return (1 + HALF) * chunk + 2 * WIDE * folded(chunk, halvings) + 1
