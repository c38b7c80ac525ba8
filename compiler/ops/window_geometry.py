"""Geometry of sliding windows in strips and tiles: padding on both sides of a strip, and pixels under the windows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Self

from compiler.ir.operators import COLUMNS, Convolution, Pool, QuantisedAverage
from compiler.ir.region import Rows
from compiler.ops.base import Heights, OnVector, VectorTiles
from compiler.plan.plan import Infeasible
from compiler.target.target_op import Strip
from simulator.npu.isa import MAX_WINDOW

Pads = tuple[int, int, int, int]
Pooling = Pool | QuantisedAverage
Sliding = Convolution | Pooling


def padded_columns(operator: Sliding, in_columns: Rows, out_columns: Rows) -> Pads:
    """Padding for result columns `out_columns`, which read input columns `in_columns`."""
    _, stride, _, pad = operator.window(COLUMNS)
    return _behind(operator, in_columns.start - (out_columns.start * stride - pad), in_columns, out_columns)


def all_padding(operator: Convolution, in_columns: Rows, out_columns: Rows) -> Pads | None:
    """Padding of windows that cover only padding, all in front of the image; None if it exceeds its field."""
    size, stride, dilation, _ = operator.window(COLUMNS)
    before = (out_columns.size - 1) * stride + (size - 1) * dilation + 1
    return _behind(operator, before, in_columns, out_columns) if before <= MAX_WINDOW else None


def _behind(operator: Sliding, before: int, in_columns: Rows, out_columns: Rows) -> Pads:
    size, stride, dilation, _ = operator.window(COLUMNS)
    after = max(0, (out_columns.size - 1) * stride + (size - 1) * dilation + 1 - before - in_columns.size)
    return operator.pads[0], before, operator.pads[2], after


@dataclass(frozen=True, eq=False)
class SlidingSpec(OnVector):
    """A pooling, whose tiles read the pixels under their windows."""

    operator: Pooling

    @property
    def geometry(self) -> dict[str, Any]:
        """Fields of a job for the positions of windows."""
        (kh, kw), (sh, sw), (pad_top, pad_left, _, _) = self.operator.kernel, self.operator.stride, self.operator.pads
        image = {"in_h": self.in_h, "in_w": self.in_w}
        return image | {"kh": kh, "kw": kw, "sh": sh, "sw": sw, "pad_top": pad_top, "pad_left": pad_left}

    def wide(self, columns: int) -> int:
        """Columns of the image under a tile of `columns` result columns; whole rows if the tile has all columns."""
        pool = self.operator
        return self.in_w if columns >= self.out_w else min(self.in_w, (columns - 1) * pool.stride[1] + pool.kernel[1])

    def read_blocks(self, tiles: VectorTiles) -> float:
        """Blocks of the input that all tiles read: whole rows, or the columns under a tile's windows."""
        columns = tiles.across * self.wide(tiles.tiling.tile_columns or self.out_w)
        return float(self._window_rows(tiles.heights, tiles.tiling.tile_rows)) * columns * self.y.planes * tiles.images

    def _window_rows(self, heights: Heights, tile: int) -> int:
        """Rows of the input that all tiles read.  tile: rows of a full tile."""
        stride, kernel, rows = self.operator.stride[0], self.operator.kernel[0], 0
        for high, count in heights:
            full_tiles, remainder = divmod(high, tile)
            rows += count * full_tiles * min(self.in_h, (tile - 1) * stride + kernel)
            if remainder:
                rows += count * min(self.in_h, (remainder - 1) * stride + kernel)
        return rows

    def narrowed(self, strip: Strip, in_columns: Rows, out_columns: Rows) -> Self | Infeasible:
        pads = padded_columns(self.operator, in_columns, out_columns)
        return replace(self, strip=strip, in_w=in_columns.size, out_w=out_columns.size, operator=replace(self.operator, pads=pads))
