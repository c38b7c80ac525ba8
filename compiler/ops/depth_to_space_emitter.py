"""Channels that become pixels, on one block: a tile of every run of channels in, each put into its places, the result out."""

from __future__ import annotations

from typing import Any, NamedTuple

from numba import njit

from compiler.instructions.builders import Ints, TilePlace, general
from compiler.instructions.node_context import UB_SLOT, Node, Work, operand, result
from compiler.instructions.tiles import load_box, store_tile, tiles
from compiler.instructions.vector_grid import grid, most
from compiler.ir.reach import demanded
from simulator.npu.isa import Op
from simulator.npu.program import Code

_VCOPY = int(Op.VCOPY)
_ROOM = 16  # records of a part beside those that are counted, at most


class DepthToSpaceJob(NamedTuple):
    """`rows` output rows starting at output row `first_row` of the tensor; in_first: the input row at `source.base`.

    phase: of output column 0, see `DepthToSpaceSpec`.  widest: the most columns of input that a tile comes from.
    """

    dtype: int
    tag: int
    planes: int
    out_w: int
    in_w: int
    block: int
    phase: int
    widest: int
    tile_planes: int
    tile_rows: int
    tile_columns: int
    slot_0: int
    slot_1: int
    first_row: int = 0
    rows: int = 0
    in_first: int = 0


@njit(cache=True)
def _emit(out: Code, at: int, j: DepthToSpaceJob, source: TilePlace, target: TilePlace, parity: Ints) -> int:
    count, across, tile_rows = tiles(j.rows, j.tile_rows, j.out_w, j.tile_columns)
    b = j.block
    in_rows = (tile_rows + b - 2) // b + 1
    for p in range(0, j.planes, j.tile_planes):
        planes = min(j.tile_planes, j.planes - p)
        for tile in range(count):
            r, c = tile // across * tile_rows, tile % across * j.tile_columns
            rows, columns = min(tile_rows, j.rows - r), min(j.tile_columns, j.out_w - c)
            begin = j.first_row + r
            y0, y1 = begin // b, (begin + rows + b - 1) // b
            x0, x1 = 0, j.in_w
            if across > 1:
                x0, x1 = (c + j.phase) // b, (c + j.phase + columns + b - 1) // b
            taken, broad = y1 - y0, x1 - x0
            slot = j.slot_1 if parity[UB_SLOT] else j.slot_0
            parity[UB_SLOT] ^= 1
            made = slot + b * b * j.tile_planes * in_rows * j.widest
            for part in range(b * b):
                if at + _ROOM + 2 * taken + 2 * rows + 2 * most(broad, taken, planes) >= out.shape[0]:
                    return -1
                x = slot + part * planes * taken * broad
                at = load_box(out, at, j.dtype, j.tag, source, part * j.planes + p, y0 - j.in_first, taken, j.in_w, x0, broad, planes, x)
                down, right = (part // b - begin) % b, (part % b - c - j.phase) % b  # from the tile's corner to the part's first pixel
                if down >= rows or right >= columns:
                    continue
                n = ((columns - right + b - 1) // b, (rows - down + b - 1) // b, planes)
                first = x + ((begin + down) // b - y0) * broad + (c + j.phase + right) // b - x0
                at = grid(
                    out, at, _VCOPY, j.dtype, j.tag, n, made + down * columns + right, (b, b * columns, rows * columns),
                    first, (1, broad, taken * broad), -1, (1, broad, taken * broad), 0,
                )  # fmt: skip
            at = store_tile(out, at, j.dtype, j.tag, target, p, r * j.out_w + c, rows * columns, planes, made)
    return at


@general
@njit(cache=True)
def depth_to_space_rows(out: Code, at: int, w: Work, n: Node, j: Any, parity: Ints) -> int:
    """A node's records."""
    start, stop = w.computed[n.k, n.t]
    first, _ = demanded(w.reach[n.k], w.bounds, start, stop)
    j.first_row, j.rows, j.in_first = start, stop - start, first
    return _emit(out, at, j, operand(w, n, 0, first), result(w, n, start), parity)
