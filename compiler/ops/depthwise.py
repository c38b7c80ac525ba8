"""Depthwise convolutions on VECTOR: it computes the first channels while the matrix unit computes the others (`segment.engine_split`)."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import ClassVar, Self

from compiler.instructions.repeats import START, cheapest_way
from compiler.ir.operators import Conv
from compiler.ir.region import Rows
from compiler.ops.base import OnVector, VectorTiles, VectorWork, run_of_planes
from compiler.ops.conv import ConvSpec
from compiler.ops.depthwise_emitter import DepthwiseJob, Side, tile_shape, tile_side
from compiler.ops.product_shape import Window
from compiler.ops.tile_counts import nonempty_pieces
from compiler.ops.window_geometry import padded_columns
from compiler.plan.plan import Infeasible, Tiling, VectorTiling
from compiler.target.storage import StorageSpec
from compiler.target.target_graph import TargetGraph
from compiler.target.target_op import EmitInputs, Fetch, Strip, UbBuffers, round_up
from simulator.npu.isa import REPEAT_BLOCKS, Activation, float_bits
from simulator.npu.parts import DataType, Memory

_WIDE = 2  # blocks of a bias in float32
_MAX_TAPS = 64  # products of a sum that is rounded after every product (docs/bounds.md, A4)
_STEPS = {"none": 0, "relu": 1, "clip": 2}  # instructions of an activation


@dataclass(frozen=True, eq=False)
class DepthwiseSpec(OnVector):
    """A depthwise convolution of some planes.  weights_at: DDR block of the weights [planes][taps]; CUBE's fractals are expanded from
    the same blocks.  bias_at: DDR block of the biases in float32, or -1."""

    word: ClassVar[str] = "depthwise"

    operator: Conv
    weights_at: int
    bias_at: int

    @classmethod
    def of(cls, target_graph: TargetGraph, spec: ConvSpec, planes: int) -> Self:
        """The operator that computes the first `planes` planes of a convolution.  Precondition: `is_divisible`."""
        assert isinstance(spec.operator, Conv)
        sizes = {name: getattr(spec, name) for name in ("index", "name", "in_h", "in_w", "out_h", "out_w", "named", "strip")}
        reads, y = (run_of_planes(spec.reads[0], 0, planes),), run_of_planes(spec.y, 0, planes)
        return cls(**sizes, operator=spec.operator, reads=reads, y=y, weights_at=spec.weights_at, bias_at=spec.bias_at)

    @cached_property
    def window(self) -> Window:
        conv = self.operator
        kh, kw = conv.weights.shape[2:]
        return Window(kh, kw, *conv.stride, *conv.dilation, *conv.pads)

    @property
    def taps(self) -> int:
        return self.window.kh * self.window.kw

    def described(self) -> dict[str, object]:
        return {"window": [*self.window], "act": self.operator.activation, "bias": self.bias_at >= 0}

    def sizes(self, storages: Sequence[StorageSpec]) -> tuple[object, ...]:
        geometry = self.word, self.in_h, self.in_w, self.out_h, self.out_w, *self.window, self.operator.activation, self.bias_at >= 0
        rows = [storages[piece.storage].row_blocks for piece in (*self.reads, self.y)]
        return (*geometry, self.y.planes, *rows)

    # the footprint of a tile

    def _sides(self, rows: int, columns: int) -> tuple[Side, Side]:
        """Extents (down, across) of the input of a tile in the middle of the image; exact across if the tile has all columns."""
        w = self.window
        high = (rows - 1) * w.sh + (w.kh - 1) * w.dh + 1
        if columns >= self.out_w:
            return Side(high, 0, 0, high, 0), tile_side(-w.pad_left, columns, w.sw, w.kw, w.dw, self.in_w)
        wide = (columns - 1) * w.sw + (w.kw - 1) * w.dw + 1
        return Side(high, 0, 0, high, 0), Side(wide, 0, 0, wide, 0)

    @property
    def _keeps_pitch(self) -> bool:
        return self.window.sh == 1 and self.window.sw == 1

    def tile_blocks(self, planes: int, rows: int, columns: int, dtype: DataType) -> int:
        """Blocks of the pixels under the windows, padding included, and of results."""
        shape = tile_shape(*self._sides(rows, columns), rows, columns, self._keeps_pitch)
        return planes * (shape.plane + (0 if columns >= self.out_w else max(0, self.window.pad_left)) + shape.out_plane)

    def slot_tiling(self, rows: int, slot_blocks: int, dtype: DataType) -> VectorTiling:
        """The fastest tiling: eight planes need no more repeats than one plane, but may leave room for few rows."""
        default_tiling = super().slot_tiling(rows, slot_blocks, dtype)
        candidates = [(self._cycles(default_tiling, rows), default_tiling)]
        for planes in range(1, min(self.y.planes, REPEAT_BLOCKS) + 1):
            able = bisect_right(range(1, rows + 1), slot_blocks, key=lambda tall: self.tile_blocks(planes, tall, self.out_w, dtype))
            if able:
                tiling = VectorTiling(tile_planes=planes, tile_rows=-(-rows // -(-rows // able)))
                candidates.append((self._cycles(tiling, rows), tiling))
        return min(candidates, key=lambda candidate: candidate[0])[1]

    def _cycles(self, tiling: VectorTiling, rows: int) -> float:
        """Estimated cycles of all tiles of `rows` rows; the start of an instruction counts as START repeats."""
        deep, high = (nonempty_pieces(size, tile) for size, tile in ((self.y.planes, tiling.tile_planes), (rows, tiling.tile_rows)))
        tiles = [(_tile_work(self, planes, tall, self.out_w), a * b) for planes, a in deep for tall, b in high]
        return sum([(work + START * instructions) * count for (work, instructions, _), count in tiles])

    @property
    def _constants(self) -> int:
        """Blocks of UB: weights, loaded biases in float32, and converted biases."""
        return self.y.planes * (self.taps + (_WIDE + 1 if self.bias_at >= 0 else 0))

    def set_aside(self, rows: int) -> int:
        return round_up(self._constants, 8)

    def ub_buffers(self, tiling: Tiling, through_ub: bool, dtype: DataType) -> tuple[UbBuffers, ...]:
        """Buffers of a tile and of constants.  Constants stay for the segment, because they are few."""
        slot, *_ = super().ub_buffers(tiling, through_ub, dtype)
        return slot, UbBuffers("constants", 1, round_up(self._constants, 8), True)

    # cost

    @property
    def steps_of_tile(self) -> int:
        return self.taps + _STEPS[self.operator.activation]

    @property
    def constant_operands(self) -> tuple[tuple[str, tuple[str, ...]], ...]:
        return ("weights", ("p",)), *((("bias", ("p",)),) if self.bias_at >= 0 else ())

    def work(self, tiles: VectorTiles) -> VectorWork:
        repeats = calls = read = 0.0
        for planes, rows, columns, count in tiles.output_tiles:
            one, instructions, blocks = _tile_work(self, planes, rows, columns)
            repeats, calls, read = repeats + count * one, calls + count * instructions, read + count * blocks
        return VectorWork(repeats * tiles.images, calls * tiles.images, [read * tiles.images])

    # channel parts and strips

    def channel_part(self, first: int, last: int, dtype: DataType) -> Self | None:
        part = super().channel_part(first, last, dtype)
        if part is None:
            return None
        bias_at = self.bias_at + first * _WIDE if self.bias_at >= 0 else -1
        return replace(part, weights_at=self.weights_at + first * self.taps, bias_at=bias_at)

    def narrowed(self, strip: Strip, in_columns: Rows, out_columns: Rows) -> Self | Infeasible:
        operator = replace(self.operator, pads=padded_columns(self.operator, in_columns, out_columns))
        return replace(self, strip=strip, in_w=in_columns.size, out_w=out_columns.size, operator=operator)

    # job of the emitter

    def job(self, inputs: EmitInputs) -> DepthwiseJob:
        assert isinstance(inputs.tiling, VectorTiling)
        w, weights, activation = self.window, inputs.constants[0], self.operator.activation
        wide_bias = weights + self.y.planes * self.taps
        return DepthwiseJob(
            **self.common(inputs),
            in_h=self.in_h,
            in_w=self.in_w,
            kh=w.kh,
            kw=w.kw,
            sh=w.sh,
            sw=w.sw,
            dh=w.dh,
            dw=w.dw,
            pad_top=w.pad_top,
            pad_left=w.pad_left,
            act=int(Activation[activation]),
            limit=float_bits(self.operator.limit) if activation == "clip" else 0,
            weights=weights,
            wide_bias=wide_bias,
            bias=wide_bias + self.y.planes * _WIDE if self.bias_at >= 0 else -1,
        )

    def fetches(self, inputs: EmitInputs) -> list[Fetch]:
        address, weights = inputs.constants[0], self.y.planes * self.taps
        fetches = [Fetch(Memory.UB, self.weights_at, address, weights)]
        return fetches + ([Fetch(Memory.UB, self.bias_at, address + weights, self.y.planes * _WIDE)] if self.bias_at >= 0 else [])


@lru_cache(maxsize=1 << 14)
def _tile_work(spec: DepthwiseSpec, planes: int, rows: int, columns: int) -> tuple[float, float, float]:
    """(repeats, instructions, blocks of the input) of a tile in the middle of the image."""
    down, across = spec._sides(rows, columns)
    pitch, _, _, run_blocks = tile_shape(down, across, rows, columns, spec._keeps_pitch)
    tap = cheapest_way(run_blocks, 1, planes) if spec._keeps_pitch else cheapest_way(columns, rows, planes)
    ways = [tap] * spec.taps + [cheapest_way(planes * run_blocks, 1, 1)] * (spec.steps_of_tile - spec.taps)
    ways += [cheapest_way(across.before, planes, 1)] if across.before else []
    ways += [cheapest_way(gap, down.size, planes)] if (gap := pitch - across.inside) else []
    read = float(planes * min(down.size, spec.in_h) * across.inside)
    return float(sum(way.work for way in ways)), float(sum(way.instructions for way in ways)), read


@lru_cache(maxsize=1 << 14)
def is_divisible(target_graph: TargetGraph, index: int) -> bool:
    """Whether VECTOR can compute some channels of operator `index`: a depthwise convolution in float16, which has the most lanes on VECTOR,
    with few products per sum and equal lanes of a channel in input and result."""
    spec = target_graph.operators[index]
    if type(spec) is not ConvSpec or not isinstance(spec.operator, Conv) or not spec.operator.is_depthwise:
        return False
    e, x, y = spec.expansion, target_graph.layout.placements[spec.operator.x], target_graph.layout.placements[spec.operator.y]
    types, few = set(target_graph.dtypes_of(spec)), spec.window.kh * spec.window.kw <= _MAX_TAPS
    alike = len(spec.reads) == 1 and spec.groups == spec.y.planes == spec.reads[0].planes > 1
    diagonal = e is not None and e.overlaid == e.planes == 1
    return (
        alike
        and diagonal
        and few
        and types == {DataType.float16}
        and target_graph.machine.has(Memory.UB)
        and tuple(x.lanes) == tuple(y.lanes)
    )
