"""Average pooling of bytes on VECTOR.

The values of a window may be added in any order if no tie lies within the rounding error of float32 (Higham).  The rounded mean is then a
function of the integer sum.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import ClassVar, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from compiler.instructions.conversion import HALF, WIDE
from compiler.instructions.repeats import cheapest_way, repeats_along
from compiler.ir.operators import QuantisedAverage
from compiler.ir.quantised.affine import fit_affine
from compiler.ir.quantised.parameters import Quantisation
from compiler.ir.quantised.pooling import means_of_sums
from compiler.ops.base import Lowering, VectorTiles, VectorWork
from compiler.ops.integer_elementwise import MOST, ROUNDER
from compiler.ops.quantised_avg_pool_emitter import CLASS, CONSTANTS, AverageJob, MeanFactors, count_folded, rooms
from compiler.ops.window_geometry import SlidingSpec
from compiler.plan.plan import VectorTiling
from compiler.target.capabilities import least_ub_blocks
from compiler.target.target_op import EmitInputs
from simulator.npu.errors import UnsupportedError
from simulator.npu.isa import Op, float_bits
from simulator.npu.parts import DataType

_CHUNK_BLOCKS = 288  # approximate blocks of a chunk of a whole image: the room of a slot
_MIN_CHUNK_PIXELS = 16  # least pixels of a chunk
_EXACT = (1 << 24) // 255  # largest number of pixels whose integer sum float32 holds exactly
_HALF_LIMIT = 1 << 11  # float16 holds all integers up to this one
_LEVELS = {DataType.uint8: 3, DataType.int8: 4}  # halvings per type: sums of 8 unsigned or of 16 signed bytes are below `_HALF_LIMIT`
_Step = tuple[Op, float, float]  # opcode, repeats, instructions


class _Means(NamedTuple):
    """Multiply-add from sums to means, float32 bits."""

    slope: int
    shift: int


@lru_cache(maxsize=1 << 10)
def _class_means(x_q: tuple[float, int, str], y_q: tuple[float, int, str], taps: int, number: int, centre: int) -> _Means | None:
    """Multiply-add from sums of `taps` integers minus `centre` to sums / `number`; None if the order of additions matters."""
    of_x, of_y = (Quantisation.of(np.float32(scale), np.dtype(name).type(zero), np.dtype(name)) for scale, zero, name in (x_q, y_q))
    wanted = means_of_sums(of_x, of_y, taps, number)
    if wanted is None:
        return None
    low, high = of_x.limits
    sums = np.arange(taps * low, taps * high + 1).astype(np.float32) - np.float32(centre)
    affine = fit_affine(sums, wanted, np.asarray(x_q[0] / (number * y_q[0])))
    return None if affine is None else _Means(float_bits(float(affine.scale)), float_bits(float(affine.shift)))


@dataclass(frozen=True, eq=False)
class AverageSpec(SlidingSpec):
    """An average pooling of bytes.  chunk, halvings: see `AverageJob`."""

    word: ClassVar[str] = "average"

    operator: QuantisedAverage
    chunk: int
    halvings: int

    @classmethod
    def lower(cls, index: int, op: QuantisedAverage, lowering: Lowering) -> Self:
        fields = lowering.fields(index, op)
        image = fields["in_h"], fields["in_w"]
        (sx, _), (sy, zy) = op.x_q.single(op.name), op.y_q.single(op.name)
        whole_image, largest = op.kernel == image and not any(op.pads), 255 * float(sx) / float(sy) + abs(zy)
        if whole_image and image[0] * image[1] > _EXACT:
            raise UnsupportedError(f"operator {op.name!r}: an average of {image[0] * image[1]:,} pixels; {_EXACT:,} at most are supported")
        if not whole_image and largest >= MOST:
            raise UnsupportedError(f"operator {op.name!r}: values of up to {largest:.3g} times its scale; below {MOST:.3g} is supported")
        halvings, chunk = _LEVELS[lowering.type_of(op.x)], 0
        if whole_image:
            pixels, room = image[0] * image[1], least_ub_blocks(lowering.machine) // 2
            chunk = -(-pixels // -(-pixels // max(_MIN_CHUNK_PIXELS, _CHUNK_BLOCKS // fields["y"].planes)))
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
        description = {"window": [*pool.kernel, *pool.stride, *pool.pads], "padded": pool.count_include_pad, "chunk": self.chunk}
        return description | ({"exact": exact} if exact else {})

    @property
    def steps_of_tile(self) -> int:
        high, wide = self.operator.kernel
        if self.whole:
            return 2
        return high + wide + 4 if self.exact else high * wide + 4

    @property
    def _centre(self) -> int:
        """Offset that is subtracted from sums in float16: the middle of the sums of unsigned bytes in a window."""
        high, wide = self.operator.kernel
        return 128 * high * wide if self.operator.x_q.dtype == np.uint8 else 0

    @cached_property
    def _classes(self) -> list[_Means | None]:
        """Multiply-adds by the number of values in a window; None where the order of additions matters."""
        pool, (high, wide) = self.operator, self.operator.kernel
        if self.whole or max(high, wide) * 255 > _HALF_LIMIT or high * wide * 128 > _HALF_LIMIT or self.out_w > self.in_w:
            return []
        (sh, sw), (pad_top, pad_left, pad_bottom, pad_right) = pool.stride, pool.pads
        if ((pad_top or pad_bottom) and self.in_h < high + sh) or ((pad_left or pad_right) and self.in_w < wide + sw):
            return []  # padding cuts more than one row, or column, of windows by the same amount
        of_x, of_y = ((float(q.single(self.name)[0]), q.single(self.name)[1], q.dtype.name) for q in (pool.x_q, pool.y_q))
        numbers = [high * wide if pool.count_include_pad else taps for taps in range(1, high * wide + 1)]
        return [None, *(_class_means(of_x, of_y, taps, number, self._centre) for taps, number in enumerate(numbers, 1))]

    @property
    def exact(self) -> bool:
        """Whether the values of windows without padding may be added in any order."""
        return bool(self._classes) and self._classes[-1] is not None

    def work(self, tiles: VectorTiles) -> VectorWork:
        repeats = calls = 0.0
        for planes, tall, wide, count in tiles.output_tiles:
            tile_steps = self._steps_in_any_order if self.exact else self._steps_in_order
            steps = self._steps_of_whole(planes) if self.whole else tile_steps(planes, tall, wide)
            repeats += count * tiles.images * sum([step_repeats * tiles.cycles[op] for op, step_repeats, _ in steps])
            calls += count * tiles.images * sum([instructions for _, _, instructions in steps])
        read = float(self.in_h * self.in_w * self.y.planes * tiles.images) if self.whole else self.read_blocks(tiles)
        return VectorWork(repeats, calls, [read])

    def _steps_of_whole(self, planes: int) -> list[_Step]:
        """Steps of the mean of a whole image."""
        pixels, steps = self.in_h * self.in_w, list[_Step]()
        for begin in range(0, pixels, self.chunk):
            count = min(self.chunk, pixels - begin)
            steps.append((Op.VCONVERT, *repeats_along(planes * count, 1)))
            for _ in range(self.halvings):
                steps += [(Op.VADD, *repeats_along(HALF * planes * (count // 2), 1))] if count > 1 else []
                count -= count // 2
            steps += [(Op.VCONVERT, *repeats_along(HALF * planes * count, 1)), (Op.VADD, *repeats_along(WIDE * planes * count, 1))]
        steps.pop()  # the first chunk has no earlier sums
        count = count_folded(min(self.chunk, pixels), self.halvings)
        while count > 1:
            steps.append((Op.VADD, *repeats_along(WIDE * planes * (count // 2), 1)))
            count -= count // 2
        wide, calls = repeats_along(WIDE * planes, 1)
        return [*steps, (Op.VADDS, 6 * wide, 6 * calls), (Op.VCONVERT, 2 * repeats_along(planes, 1)[0], 1)]

    def _steps_of_results(self, planes: int, rows: int, columns: int, divisions: int) -> list[_Step]:
        results = planes * rows * columns
        wide, calls = repeats_along(WIDE * results, 1)
        of_bytes = (Op.VCONVERT, 2 * repeats_along(results, 1)[0], 1)
        return [of_bytes, (Op.VADDS, wide, calls), (Op.VDIV, divisions * wide, divisions * calls)]

    def _steps_in_order(self, planes: int, rows: int, columns: int) -> list[_Step]:
        """Steps of a tile whose values are added in order."""
        pool, neighbours = self.operator, self.operator.stride[1] == 1
        covered = planes * ((rows - 1) * pool.stride[0] + pool.kernel[0]) * self.wide(columns)
        taps = pool.kernel[0] * pool.kernel[1] * (1 if neighbours else WIDE)
        tap = cheapest_way(WIDE * columns if neighbours else columns, rows, planes)
        wide, calls = repeats_along(WIDE * covered, 1)
        of_pixels = [(Op.VCONVERT, 2 * repeats_along(covered, 1)[0], 1), (Op.VADDS, 2 * wide, 2 * calls)]
        return [*of_pixels, (Op.VADD, taps * tap.work, taps * tap.instructions), *self._steps_of_results(planes, rows, columns, 2)]

    def _steps_in_any_order(self, planes: int, rows: int, columns: int) -> list[_Step]:
        """Steps of a tile whose values are added in any order; windows cut by padding are not counted."""
        (high, across), (sh, sw), wide = self.operator.kernel, self.operator.stride, self.wide(columns)
        covered, parts = planes * ((rows - 1) * sh + high) * wide, 1 if sw == 1 else HALF
        down, beside = cheapest_way(HALF * wide, rows, planes), cheapest_way(HALF * columns // parts, rows, planes)
        of_half = repeats_along(HALF * planes * rows * columns, 1)
        return [
            (Op.VCONVERT, *repeats_along(covered, 1)),
            (Op.VADD, max(1, high - 1) * down.work, max(1, high - 1) * down.instructions),
            (Op.VADD, across * parts * beside.work, across * parts * beside.instructions),
            (Op.VCONVERT, *of_half),
            *self._steps_of_results(planes, rows, columns, 0),
        ]

    def job(self, inputs: EmitInputs) -> AverageJob:
        assert isinstance(inputs.tiling, VectorTiling)
        pool = self.operator
        (sx, zx), (sy, zy) = pool.x_q.single(self.name), pool.y_q.single(self.name)
        least, greatest = pool.y_q.limits
        pixels = self.in_h * self.in_w
        scale = sx / (sy * np.float32(pixels)) if self.whole else sx
        less, more = (-zx * pixels, zy - ROUNDER) if self.whole else (-zx, zy)
        factors = less, float(scale), float(sy), more, -self._centre, least - zy, greatest - zy, ROUNDER
        return AverageJob(
            **self.common(inputs),
            **self.geometry,
            source=int(inputs.storages[self.reads[0].storage].dtype),
            padded=int(pool.count_include_pad),
            chunk=self.chunk,
            halvings=self.halvings,
            exact=int(self.exact),
            factors=MeanFactors(*map(float_bits, factors)),
        )

    def tables(self) -> list[NDArray[np.int64]]:
        """Table int64 [values + 1, CLASS], indexed by the number of values in a window.  Columns: this number as float32 bits; 1 if the
        order of additions does not matter; the fields of `_Means`."""
        high, wide = self.operator.kernel
        classes = np.zeros((1 if self.whole else high * wide + 1, CLASS), np.int64)
        classes[:, 0] = np.arange(len(classes), dtype=np.float32).view(np.int32)
        for taps, means in enumerate(self._classes):
            if means is not None:
                classes[taps, 1:] = 1, *means
        return [classes.reshape(-1)]


def _plane_blocks(chunk: int, halvings: int) -> int:
    """Blocks of a slot per plane of a whole image: bytes, float16, float32, float32 sums, and the result."""
    return (1 + HALF) * chunk + 2 * WIDE * count_folded(chunk, halvings) + 1
