"""Emission of DepthToSpace on one block: load a tile of every run of channels, spread it to its pixels, store the result."""

from __future__ import annotations

from typing import Any, NamedTuple

from numba import njit

from compiler.instructions.builders import Ints, TilePlace, compile_once
from compiler.instructions.node_context import UB_SLOT, Node, Work, locate_operand, locate_result
from compiler.instructions.tiles import count_tiles, load_box, store_tile
from compiler.instructions.vector_grid import grid, max_instructions
from compiler.ir.reach import demanded
from simulator.npu.isa import Op
from simulator.npu.program import Code

_VCOPY = int(Op.VCOPY)
_ROOM = 16  # upper bound of a part's records that no other term counts


class DepthToSpaceJob(NamedTuple):
    """DepthToSpace of output rows [first_row, first_row + rows).  in_first: input row at `source.base`.

    phase: see `DepthToSpaceSpec`.  widest: largest number of input columns of a tile.
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
def _emit(out: Code, cursor: int, job: DepthToSpaceJob, source: TilePlace, target: TilePlace, parity: Ints) -> int:
    count, tiles_per_row, tile_rows = count_tiles(job.rows, job.tile_rows, job.out_w, job.tile_columns)
    b = job.block
    in_rows = (tile_rows + b - 2) // b + 1
    for p in range(0, job.planes, job.tile_planes):
        planes = min(job.tile_planes, job.planes - p)
        for tile in range(count):
            r, c = tile // tiles_per_row * tile_rows, tile % tiles_per_row * job.tile_columns
            rows, columns = min(tile_rows, job.rows - r), min(job.tile_columns, job.out_w - c)
            begin = job.first_row + r
            y0, y1 = begin // b, (begin + rows + b - 1) // b
            x0, x1 = 0, job.in_w
            if tiles_per_row > 1:
                x0, x1 = (c + job.phase) // b, (c + job.phase + columns + b - 1) // b
            taken, broad = y1 - y0, x1 - x0
            slot = job.slot_1 if parity[UB_SLOT] else job.slot_0
            parity[UB_SLOT] ^= 1
            result_base = slot + b * b * job.tile_planes * in_rows * job.widest
            # every run of channels goes to pixels with a distance of b; a run may have no pixel in this tile
            for part in range(b * b):
                if cursor + _ROOM + 2 * taken + 2 * rows + 2 * max_instructions(broad, taken, planes) >= out.shape[0]:
                    return -1
                x = slot + part * planes * taken * broad
                cursor = load_box(
                    out, cursor, job.dtype, job.tag, source, part * job.planes + p, y0 - job.in_first, taken, job.in_w, x0, broad, planes, x
                )
                down, right = (part // b - begin) % b, (part % b - c - job.phase) % b  # from the tile's corner to the part's first pixel
                if down >= rows or right >= columns:
                    continue
                n = ((columns - right + b - 1) // b, (rows - down + b - 1) // b, planes)
                first = x + ((begin + down) // b - y0) * broad + (c + job.phase + right) // b - x0
                cursor = grid(
                    out, cursor, _VCOPY, job.dtype, job.tag, n, result_base + down * columns + right, (b, b * columns, rows * columns),
                    first, (1, broad, taken * broad), -1, (1, broad, taken * broad), 0,
                )  # fmt: skip
            cursor = store_tile(out, cursor, job.dtype, job.tag, target, p, r * job.out_w + c, rows * columns, planes, result_base)
    return cursor


@compile_once
@njit(cache=True)
def depth_to_space_rows(out: Code, cursor: int, work: Work, node: Node, job: Any, parity: Ints) -> int:
    """A node's records."""
    start, stop = work.computed[node.k, node.t]
    first, _ = demanded(work.reach[node.k], work.bounds, start, stop)
    job.first_row, job.rows, job.in_first = start, stop - start, first
    return _emit(out, cursor, job, locate_operand(work, node, 0, first), locate_result(work, node, start), parity)
