"""Rows and columns taken anew, on one block: columns first, then rows, each run of places one strided operation or a few."""

from __future__ import annotations

from typing import Any, NamedTuple

from numba import njit

from compiler.instructions.builders import Ints, TilePlace, flat, general
from compiler.instructions.node_context import UB_SLOT, Node, Work, operand, result, table
from compiler.instructions.tiles import load_box, store_tile, tiles
from compiler.instructions.vector_grid import Axes, grid, most
from compiler.ir.reach import demanded
from compiler.ir.taps import input_rows, part_of_run, source_columns
from simulator.npu.isa import Op
from simulator.npu.program import Code

_VFILL, _VCOPY, _VMULS, _VADD = (int(o) for o in (Op.VFILL, Op.VCOPY, Op.VMULS, Op.VADD))
_ONE = 0x3F800000  # 1.0


class ResampleJob(NamedTuple):
    """`rows` output rows starting at output row `first_row` of the tensor; in_first: the input row at `source.base`.

    fill: float32 bits.  filled: 1 where some place has no taps.  widest: the most columns of input that a tile comes from.
    """

    dtype: int
    tag: int
    planes: int
    out_w: int
    in_w: int
    widest: int
    fill: int
    filled: int
    tile_planes: int
    tile_rows: int
    tile_columns: int
    slot_0: int
    slot_1: int
    first_row: int = 0
    rows: int = 0
    in_first: int = 0


@njit(cache=True)
def _put(
    out: Code, at: int, dtype: int, tag: int, n: Axes, d: int, ds: Axes, s: int, ss: Axes, weight: int, adds: int, product: int
) -> int:  # fmt: skip
    """d (+)= weight * s over a grid of blocks; `product`: a free place for as many."""
    if not adds:
        return grid(out, at, _VCOPY if weight == _ONE else _VMULS, dtype, tag, n, d, ds, s, ss, -1, ss, weight)
    if weight != _ONE:
        dense = (1, n[0], n[0] * n[1])
        at = grid(out, at, _VMULS, dtype, tag, n, product, dense, s, ss, -1, ss, weight)
        s, ss = product, dense
    return grid(out, at, _VADD, dtype, tag, n, d, ds, d, ds, s, ss, 0)


@njit(cache=True)
def emit_resample(
    out: Code, at: int, j: ResampleJob, source: TilePlace, target: TilePlace, columns: Ints, rows: Ints, bounds: Ints, parity: Ints
) -> int:
    """columns, rows: `Taps.runs`; bounds: `Taps.bounds` of the rows.  Returns the next row or -1."""
    tile_count, across, tile_rows = tiles(j.rows, j.tile_rows, j.out_w, j.tile_columns)
    in_rows = input_rows(bounds, tile_rows)
    for p in range(0, j.planes, j.tile_planes):
        planes = min(j.tile_planes, j.planes - p)
        for tile in range(tile_count):
            r, c = tile // across * tile_rows, tile % across * j.tile_columns
            count, wide = min(tile_rows, j.rows - r), min(j.tile_columns, j.out_w - c)
            begin = j.first_row + r
            y0, y1 = 1 << 31, 0
            for i in range(begin, begin + count):
                y0, y1 = min(y0, bounds[i, 0]), max(y1, bounds[i, 1])
            x0, x1 = 0, j.in_w
            if across > 1:
                x0, x1 = (c, c + wide) if not len(columns) else source_columns(columns, c, c + wide)
            taken, broad = max(0, y1 - y0), x1 - x0  # broad is 0 where a tile's columns are all filled
            x = j.slot_1 if parity[UB_SLOT] else j.slot_0
            parity[UB_SLOT] ^= 1
            middle = x + j.tile_planes * in_rows * j.widest
            last = middle + (j.tile_planes * in_rows * j.tile_columns if len(columns) else 0)
            product = last + (j.tile_planes * tile_rows * j.tile_columns if len(rows) or not len(columns) else 0)
            size = count * wide
            if at + 12 + 2 * taken + 2 * planes * (taken * max(broad, wide) + size) // 1024 >= out.shape[0]:
                return -1
            if taken and broad:
                at = load_box(out, at, j.dtype, j.tag, source, p, y0 - j.in_first, taken, j.in_w, x0, broad, planes, x)
            v = x
            if len(columns) and taken:
                v = middle
                if j.filled:
                    at = flat(out, at, _VFILL, j.dtype, j.tag, v, -1, -1, -1, 0, 0, planes * taken * wide, j.fill)
                for k in range(len(columns)):
                    place, step, n, first, source_step, weight, adds = columns[k]
                    skip, stop = part_of_run(place, step, n, c, c + wide)
                    if stop <= skip:
                        continue
                    n = stop - skip
                    if at + 2 * most(n, planes * taken, 1) >= out.shape[0]:
                        return -1
                    at = _put(
                        out, at, j.dtype, j.tag, (n, planes * taken, 1), v + place + skip * step - c, (step, wide, 0),
                        x + first + skip * source_step - x0, (source_step, broad, 0), weight, adds, product,
                    )  # fmt: skip
            if len(rows) or not taken:
                if j.filled or not taken:
                    at = flat(out, at, _VFILL, j.dtype, j.tag, last, -1, -1, -1, 0, 0, planes * size, j.fill)
                for k in range(len(rows)):
                    place, step, n, first, source_step, weight, adds = rows[k]
                    # the part of the run that lies in [begin, begin + count)
                    skip, stop = part_of_run(place, step, n, begin, begin + count)
                    if stop <= skip:
                        continue
                    n = stop - skip
                    d = last + (place + skip * step - begin) * wide
                    s = v + (first + skip * source_step - y0) * wide
                    if at + 2 * most(wide, n, planes) >= out.shape[0]:
                        return -1
                    at = _put(
                        out, at, j.dtype, j.tag, (wide, n, planes), d, (1, step * wide, size), s, (1, source_step * wide, taken * wide),
                        weight, adds, product,
                    )  # fmt: skip
                v = last
            at = store_tile(out, at, j.dtype, j.tag, target, p, r * j.out_w + c, size, planes, v)
    return at


@general
@njit(cache=True)
def resample_rows(out: Code, at: int, w: Work, n: Node, j: Any, parity: Ints) -> int:
    """A node's records."""
    start, stop = w.computed[n.k, n.t]
    first, _ = demanded(w.reach[n.k], w.bounds, start, stop)
    j.first_row, j.rows, j.in_first = start, stop - start, first
    columns, rows, bounds = table(w, n, 0, 7), table(w, n, 1, 7), table(w, n, 2, 2)
    return emit_resample(out, at, j, operand(w, n, 0, first), result(w, n, start), columns, rows, bounds, parity)
