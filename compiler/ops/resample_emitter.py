"""Emission of a resampling on one block: first columns, then rows.  Each run of results is one strided operation or a few."""

from __future__ import annotations

from typing import Any, NamedTuple

from numba import njit

from compiler.instructions.builders import Ints, TilePlace, compile_once, flat
from compiler.instructions.node_context import Node, Work, locate_operand, locate_result, read_table
from compiler.instructions.tiles import UbTiles, load_box, next_tile, store_tile
from compiler.instructions.vector_grid import Axes, grid, max_instructions
from compiler.ir.reach import demanded
from compiler.ir.taps import input_rows, part_of_run, source_columns
from simulator.npu.isa import Op
from simulator.npu.program import Code

_VFILL, _VCOPY, _VMULS, _VADD = (int(o) for o in (Op.VFILL, Op.VCOPY, Op.VMULS, Op.VADD))
_ONE = 0x3F800000  # 1.0


class ResampleJob(NamedTuple):
    """Resampling of a node's rows.

    fill: float32 bits of results without taps.  filled: 1 if there are such results.  widest: largest number of input columns of a tile.
    """

    dtype: int
    tag: int
    tiles: UbTiles
    in_w: int
    widest: int
    fill: int
    filled: int


@njit(cache=True)
def _put(
    out: Code, cursor: int, dtype: int, tag: int, shape: Axes, target: int, ds: Axes, source: int, ss: Axes, weight: int, adds: int,
    product: int,
) -> int:  # fmt: skip
    """target (+)= weight * source over a grid of blocks.  product: address of a free buffer with the size of the tiles."""
    if not adds:
        return grid(out, cursor, _VCOPY if weight == _ONE else _VMULS, dtype, tag, shape, target, ds, source, ss, -1, ss, weight)
    if weight != _ONE:
        dense = (1, shape[0], shape[0] * shape[1])
        cursor = grid(out, cursor, _VMULS, dtype, tag, shape, product, dense, source, ss, -1, ss, weight)
        source, ss = product, dense
    return grid(out, cursor, _VADD, dtype, tag, shape, target, ds, target, ds, source, ss, 0)


@njit(cache=True)
def emit_resample(
    out: Code, cursor: int, job: ResampleJob, source: TilePlace, target: TilePlace, columns: Ints, rows: Ints, bounds: Ints,
    slot_state: Ints,
) -> int:  # fmt: skip
    """Emit all tiles.  columns, rows: `Taps.runs`; bounds: `Taps.bounds` of the rows.  Returns the next row or -1."""
    tiles = job.tiles
    tile_rows = min(tiles.tile_rows, tiles.rows)
    in_rows = input_rows(bounds, tile_rows)
    index, tile = 0, next_tile(tiles, 0, slot_state)
    while tile.planes > 0:
        planes, count, c, wide, size, x = tile.planes, tile.rows, tile.column, tile.columns, tile.size, tile.slot
        begin = tiles.first_row + tile.row
        y0, y1 = 1 << 31, 0
        for i in range(begin, begin + count):
            y0, y1 = min(y0, bounds[i, 0]), max(y1, bounds[i, 1])
        x0, x1 = 0, job.in_w
        if tiles.tile_columns < tiles.width:
            x0, x1 = (c, c + wide) if not len(columns) else source_columns(columns, c, c + wide)
        taken, broad = max(0, y1 - y0), x1 - x0  # broad is 0 if all columns of the tile are fill
        middle = x + tiles.tile_planes * in_rows * job.widest
        last = middle + (tiles.tile_planes * in_rows * tiles.tile_columns if len(columns) else 0)
        product = last + (tiles.tile_planes * tile_rows * tiles.tile_columns if len(rows) or not len(columns) else 0)
        if cursor + 12 + 2 * taken + 2 * planes * (taken * max(broad, wide) + size) // 1024 >= out.shape[0]:
            return -1
        if taken and broad:
            cursor = load_box(
                out, cursor, job.dtype, job.tag, source, tile.plane, y0 - tiles.in_first, taken, job.in_w, x0, broad, planes, x
            )
        v = x
        if len(columns) and taken:
            v = middle
            if job.filled:
                cursor = flat(out, cursor, _VFILL, job.dtype, job.tag, v, -1, -1, -1, 0, 0, planes * taken * wide, job.fill)
            for k in range(len(columns)):
                place, step, n, first, source_step, weight, adds = columns[k]
                skip, stop = part_of_run(place, step, n, c, c + wide)
                if stop <= skip:
                    continue
                n = stop - skip
                if cursor + 2 * max_instructions(n, planes * taken, 1) >= out.shape[0]:
                    return -1
                cursor = _put(
                    out, cursor, job.dtype, job.tag, (n, planes * taken, 1), v + place + skip * step - c, (step, wide, 0),
                    x + first + skip * source_step - x0, (source_step, broad, 0), weight, adds, product,
                )  # fmt: skip
        if len(rows) or not taken:
            if job.filled or not taken:
                cursor = flat(out, cursor, _VFILL, job.dtype, job.tag, last, -1, -1, -1, 0, 0, planes * size, job.fill)
            for k in range(len(rows)):
                place, step, n, first, source_step, weight, adds = rows[k]
                # the part of the run that lies in [begin, begin + count)
                skip, stop = part_of_run(place, step, n, begin, begin + count)
                if stop <= skip:
                    continue
                n = stop - skip
                d = last + (place + skip * step - begin) * wide
                s = v + (first + skip * source_step - y0) * wide
                if cursor + 2 * max_instructions(wide, n, planes) >= out.shape[0]:
                    return -1
                cursor = _put(
                    out, cursor, job.dtype, job.tag, (wide, n, planes), d, (1, step * wide, size), s,
                    (1, source_step * wide, taken * wide), weight, adds, product,
                )  # fmt: skip
            v = last
        cursor = store_tile(out, cursor, job.dtype, job.tag, target, tile.plane, tile.first, size, planes, v)
        index += 1
        tile = next_tile(tiles, index, slot_state)
    return cursor


@compile_once
@njit(cache=True)
def resample_rows(out: Code, cursor: int, work: Work, node: Node, job: Any, slot_state: Ints) -> int:
    """A node's records."""
    start, stop = work.computed[node.k, node.t]
    first, _ = demanded(work.reach[node.k], work.bounds, start, stop)
    job.tiles.first_row, job.tiles.rows, job.tiles.in_first = start, stop - start, first
    columns, rows, bounds = read_table(work, node, 0, 7), read_table(work, node, 1, 7), read_table(work, node, 2, 2)
    return emit_resample(
        out, cursor, job, locate_operand(work, node, 0, first), locate_result(work, node, start), columns, rows, bounds, slot_state
    )
