"""Pixels in another order of rows, on one block."""

from __future__ import annotations

from typing import Any, NamedTuple

from numba import njit

from compiler.instructions.builders import DDR, MTE1, MTE2, UB, Ints, TilePlace, dense, flat, general, move
from compiler.instructions.node_context import UB_SLOT, Node, Work, operand, result
from compiler.instructions.tiles import store_tile, tiles
from compiler.ir.reach import demanded
from simulator.npu.isa import Op
from simulator.npu.program import Code

_VFILL = int(Op.VFILL)


class ReflowJob(NamedTuple):
    """`rows` rows of `width` pixels from row `first_row` on, of an image that is the `pixels` pixels of another after `before` filled ones.

    in_first: the pixel of the other that lies at `source.base`.
    """

    dtype: int
    tag: int
    planes: int
    width: int
    before: int
    pixels: int
    fill: int  # float32 bits
    tile_planes: int
    tile_rows: int
    tile_columns: int
    slot_0: int
    slot_1: int
    first_row: int = 0
    rows: int = 0
    in_first: int = 0


@njit(cache=True)
def emit_reflow(out: Code, at: int, j: ReflowJob, source: TilePlace, target: TilePlace, parity: Ints) -> int:
    count, across, tile_rows = tiles(j.rows, j.tile_rows, j.width, j.tile_columns)
    for p in range(0, j.planes, j.tile_planes):
        planes = min(j.tile_planes, j.planes - p)
        for tile in range(count):
            r, c = tile // across * tile_rows, tile % across * j.tile_columns
            size = min(tile_rows, j.rows - r) * min(j.tile_columns, j.width - c)
            if at + 8 + 2 * planes * (size // 2040 + 2) >= out.shape[0]:
                return -1
            slot = j.slot_1 if parity[UB_SLOT] else j.slot_0
            parity[UB_SLOT] ^= 1
            first = (j.first_row + r) * j.width + c - j.before  # the other's pixel that belongs at the tile's first place
            start, stop = max(0, first), min(j.pixels, first + size)
            if start >= stop:
                at = flat(out, at, _VFILL, j.dtype, j.tag, slot, -1, -1, -1, 0, 0, planes * size, j.fill)
            else:
                begin, left = start - first, first + size - stop
                for plane in range(planes if begin + left > 0 else 0):
                    d = slot + plane * size
                    if begin > 0:
                        at = flat(out, at, _VFILL, j.dtype, j.tag, d, -1, -1, -1, 0, 0, begin, j.fill)
                    if left > 0:
                        at = flat(out, at, _VFILL, j.dtype, j.tag, d + size - left, -1, -1, -1, 0, 0, left, j.fill)
                engine = MTE2 if source.memory == DDR else MTE1
                inside = dense(UB, slot + begin, size)
                at = move(out, at, j.dtype, j.tag, engine, source, start - j.in_first, inside, 0, p, planes, stop - start)
            at = store_tile(out, at, j.dtype, j.tag, target, p, r * j.width + c, size, planes, slot)
    return at


@general
@njit(cache=True)
def reflow_rows(out: Code, at: int, w: Work, n: Node, j: Any, parity: Ints) -> int:
    """A node's records."""
    start, stop = w.computed[n.k, n.t]
    first, _ = demanded(w.reach[n.k], w.bounds, start, stop)
    j.first_row, j.rows, j.in_first = start, stop - start, first * w.reach[n.k, 2]
    return emit_reflow(out, at, j, operand(w, n, 0, first), result(w, n, start), parity)
