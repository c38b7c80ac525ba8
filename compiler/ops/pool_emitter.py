"""Pooling: windows that slide, over their rows first and then over their columns; and windows of whole rows of the image.

The maximum, or the sum, of a window is that of its columns' maxima, or sums: kh - 1 operations on as many columns as the windows cover and
kw - 1 on as many as there are results, not kh * kw on these.  Padding costs nothing: an operation goes over the results for which
what it takes lies inside the image.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit

from compiler.instructions.builders import DDR, FAR, MTE2, UB, Ints, TilePlace, dense, flat, general, move, strided, vector
from compiler.instructions.node_context import MADE_BY_READER, UB_SLOT, Node, Work, operand, result
from compiler.instructions.repeats import pixelwise
from compiler.instructions.tiles import load_box, store_tile, tiles
from compiler.instructions.vector_grid import Axes, grid, most
from compiler.ir.reach import demanded
from compiler.ops.conv_emitter import ConvJob, conv_part
from simulator.addresses import record_at
from simulator.npu.isa import Op, float_bits
from simulator.npu.program import Code

_VFILL, _VCOPY, _VMULS, _VADD, _VMAX, _VMUL = (int(o) for o in (Op.VFILL, Op.VCOPY, Op.VMULS, Op.VADD, Op.VMAX, Op.VMUL))
_VMADD, _ONE = int(Op.VMADD), float_bits(1.0)

ROWS, COLUMNS, BOTH = 1, 2, 3  # of `PoolSpec.passes`
_convolution = record_at(ConvJob)
_ROOM = 16  # records that bring a tile out
GRANULE = 8  # blocks of UB that hazards do not tell apart (`schedule.segment_accesses`)


class PoolJob(NamedTuple):
    """Pooling of `rows` output rows starting at output row `first_row` of the tensor; in_first: the input row at `source.base`."""

    dtype: int
    tag: int
    planes: int
    out_w: int
    in_h: int
    in_w: int
    kh: int
    kw: int
    sh: int
    sw: int
    pad_top: int
    pad_left: int
    is_max: int
    passes: int  # `PoolSpec.passes`
    fill: int  # float32 bits that a result starts from to which no input comes
    scale: int  # float32 bits of the factor before the sum, or 0 where counts are used
    after: int  # float32 bits of what is left of it behind the sum, where pixels are added with a block of the factor, else 0
    counts_at: int  # DDR blocks [out_h][out_w], or -1
    counts_pitch: int  # from row to row of them
    counts: int  # UB address for a tile's rows of them; of a pool that is fed, for what the first of two passes makes
    tile_planes: int
    tile_rows: int
    tile_columns: int
    slot_0: int
    slot_1: int
    first_row: int = 0
    rows: int = 0
    in_first: int = 0


@njit(cache=True)
def _over_pixels(
    out: Code, at: int, op: int, dtype: int, tag: int, d: int, dplane: int, x: int, plane: int, planes: int, pixels: int, apart: bool,
    factor: int, scale: int,
) -> int:  # fmt: skip
    """d op= all pixels of x, in every plane; apart: the first eight pixels of x may be overwritten.

    factor: a block of the factor that pixels are added with, which is `scale` as an immediate; -1 without one.
    """
    first, rest = pixels, 0
    if apart and pixelwise(planes, pixels):
        if factor >= 0:
            at = strided(out, at, _VMULS, dtype, tag, x, x, -1, 8, planes, 1, plane, 1, plane, 0, 0, scale)
        for i in range(planes):
            begin = x + i * plane
            at = _into(out, at, op, dtype, tag, begin, begin + 8, 8, pixels // 8 - 1, 1, 1, 8, factor)
        first, rest = 8, pixels % 8
        at = _into(out, at, op, dtype, tag, d, x, planes, first, dplane, plane, 1, -1)
    else:
        at = _into(out, at, op, dtype, tag, d, x, planes, first, dplane, plane, 1, factor)
    if rest > 0:
        at = _into(out, at, op, dtype, tag, d, x + pixels - rest, planes, rest, dplane, plane, 1, factor)
    return at


@general
@njit(cache=True)
def _into(
    out: Code, at: int, op: int, dtype: int, tag: int, d: int, x: int, columns: int, times: int, dcol: int, col: int, row: int, factor: int
) -> int:
    """d op= x, `times` repeats of as many columns of blocks; of x times the factor, if there is one."""
    if factor < 0:
        return strided(out, at, op, dtype, tag, d, d, x, columns, times, dcol, 0, dcol, 0, col, row, 0)
    for c in range(0, columns, 8):
        for r in range(0, times, 255):
            place, source = d + c * dcol, x + c * col + r * row
            repeats, width = min(255, times - r), min(8, columns - c)
            at = vector(
                out, at, _VMADD, dtype, tag, place, source, factor, place, width, repeats, dcol, 0, col, row, 0, 0, dcol, 0, 0
            )  # fmt: skip
    return at


class Fold(NamedTuple):
    """Along `axis` of a grid, result i is made of the inputs origin + i * stride + tap, tap < taps, of which there are `length`."""

    axis: int
    taps: int
    origin: int
    stride: int
    length: int
    pitch: int  # blocks from an input to the next


@njit(cache=True)
def _reach(f: Fold, tap: int, results: int) -> tuple[int, int]:
    """Results [first, end) that have an input at this tap."""
    at = f.origin + tap
    first = min(results, max(0, -(at // f.stride)))
    return first, max(first, min(results, (f.length - 1 - at) // f.stride + 1))


@general
@njit(cache=True)
def _put(
    out: Code, at: int, op: int, dtype: int, tag: int, f: Fold, n: Axes, d: int, ds: Axes, s: int, ss: Axes, tap: int, base: int,
    first: int, end: int,
) -> int:  # fmt: skip
    """Results [first, end): op of their inputs at taps `base` and `tap`; of what they are, if there is no base; a copy, if it is both."""
    if end <= first:
        return at
    n = (end - first, n[1], n[2]) if f.axis == 0 else (n[0], end - first, n[2])
    d += first * ds[f.axis]
    s += (f.origin + first * f.stride) * f.pitch
    if base == tap:
        return grid(out, at, _VCOPY, dtype, tag, n, d, ds, s + tap * f.pitch, ss, -1, ss, 0)
    if base < 0:
        return grid(out, at, op, dtype, tag, n, d, ds, d, ds, s + tap * f.pitch, ss, 0)
    return grid(out, at, op, dtype, tag, n, d, ds, s + base * f.pitch, ss, s + tap * f.pitch, ss, 0)


@njit(cache=True)
def _fold(
    out: Code, at: int, op: int, dtype: int, tag: int, fill: int, f: Fold, n: Axes, d: int, ds: Axes, s: int, ss: Axes
) -> int:  # fmt: skip
    """d, which is dense, from s: begins with two taps, one of which every result has, or with `fill` where there is no such tap."""
    results = n[f.axis]
    base, other, widest = -1, -1, 0
    for tap in range(f.taps):
        first, end = _reach(f, tap, results)
        if base < 0 and end - first == results:
            base = tap
        elif end - first > widest:
            other, widest = tap, end - first
    if base < 0:
        other = -1
        at = flat(out, at, _VFILL, dtype, tag, d, -1, -1, -1, 0, 0, n[0] * n[1] * n[2], fill)
    else:
        first, end = _reach(f, other, results) if other >= 0 else (results, results)
        at = _put(out, at, op, dtype, tag, f, n, d, ds, s, ss, base, base, 0, first)
        at = _put(out, at, op, dtype, tag, f, n, d, ds, s, ss, other, base, first, end)
        at = _put(out, at, op, dtype, tag, f, n, d, ds, s, ss, base, base, end, results)
    for tap in range(f.taps):
        if tap != base and tap != other:
            first, end = _reach(f, tap, results)
            at = _put(out, at, op, dtype, tag, f, n, d, ds, s, ss, tap, -1, first, end)
    return at


@njit(cache=True)
def _most(taps: int, a: int, b: int, c: int) -> int:
    """Instructions of a fold, at most."""
    return (taps + 3) * most(a, b, c) + a * b * c // 2040 + 2


@njit(cache=True)
def _slide(
    out: Code, at: int, j: PoolJob, oy: int, rows: int, left: int, columns: int, y0: int, in_rows: int, wide: int, planes: int, slot: int,
    in_plane: int, behind: int, acc: int,
) -> int:  # fmt: skip
    """Rows from `oy` on by columns of results at acc, [planes][rows][columns].

    slot: [planes][in_rows][wide] of the input from row y0 on, in_plane from plane to plane; left: the first window's column there.
    behind: for what the first pass makes.
    """
    op, size_out = _VMAX if j.is_max else _VADD, rows * columns
    s, plane = slot, in_plane
    if j.passes & ROWS:
        f = Fold(1, j.kh, oy * j.sh - j.pad_top - y0, j.sh, in_rows, wide)
        n, s, plane = (wide, rows, planes), behind, rows * wide
        at = _fold(out, at, op, j.dtype, j.tag, j.fill, f, n, s, (1, wide, plane), slot, (1, j.sh * wide, in_plane))
    if j.passes & COLUMNS:
        f = Fold(0, j.kw, left, j.sw, wide, 1)
        n = (columns, rows, planes)
        at = _fold(out, at, op, j.dtype, j.tag, j.fill, f, n, acc, (1, columns, size_out), s, (j.sw, wide, plane))
    return at


@njit(cache=True)
def emit_pool(out: Code, at: int, j: PoolJob, source: TilePlace, target: TilePlace, parity: Ints) -> int:
    """Tile by tile.  Windows of whole rows of the image, one beside the other, are pooled by repeats (`compiler.instructions.repeats`).

    A slot of UB holds what the windows of a tile cover, and behind it what the first of two passes makes; the results of the second take
    the place of what they are made of.  With one pass they come behind it.  Returns the next row or -1.
    """
    count, across, tile_rows = tiles(j.rows, j.tile_rows, j.out_w, j.tile_columns)
    in_rows_max = (tile_rows - 1) * j.sh + j.kh
    in_columns_max = j.in_w if across == 1 else min(j.in_w, (j.tile_columns - 1) * j.sw + j.kw)
    in_blocks = j.tile_planes * in_rows_max * (max(in_columns_max, j.tile_columns) if j.passes == BOTH else in_columns_max)
    op = _VMAX if j.is_max else _VADD
    for p in range(0, j.planes, j.tile_planes):
        planes = min(j.tile_planes, j.planes - p)
        for tile in range(count):
            r, c = tile // across * tile_rows, tile % across * j.tile_columns
            rows, columns = min(tile_rows, j.rows - r), min(j.tile_columns, j.out_w - c)
            oy = j.first_row + r
            y0 = max(0, oy * j.sh - j.pad_top)
            y1 = min(j.in_h, (oy + rows - 1) * j.sh - j.pad_top + j.kh)
            x0, x1 = 0, j.in_w
            if across > 1:
                x0 = min(j.in_w - 1, max(0, c * j.sw - j.pad_left))
                x1 = max(x0 + 1, min(j.in_w, (c + columns - 1) * j.sw - j.pad_left + j.kw))
            in_rows, wide = y1 - y0, x1 - x0
            size_in, size_out = in_rows * wide, rows * columns
            left = c * j.sw - j.pad_left
            whole = columns == 1 and left <= x0 and left + j.kw >= x1 and (rows == 1 or wide > 1)
            pooling = rows * (planes + 7) * (3 + j.kh * wide // 255)
            if not whole:
                pooling = _most(j.kh, wide, rows, planes) + _most(j.kw, columns, rows, planes)
            worst = pooling + 64 + planes * 3 + 2 * in_rows
            if at + worst + (planes * (size_in + size_out)) // 1024 >= out.shape[0]:
                return -1
            slot = j.slot_1 if parity[UB_SLOT] else j.slot_0
            parity[UB_SLOT] ^= 1
            behind = slot + in_blocks
            acc = slot if j.passes == BOTH and not whole else behind
            at = load_box(out, at, j.dtype, j.tag, source, p, y0 - j.in_first, in_rows, j.in_w, x0, wide, planes, slot)
            added = whole and j.after != 0
            if j.scale != 0 and not added:
                at = flat(out, at, _VMULS, j.dtype, j.tag, slot, slot, -1, -1, 0, 0, planes * size_in, j.scale)
            if whole:
                at = flat(out, at, _VFILL, j.dtype, j.tag, acc, -1, -1, -1, 0, 0, planes * size_out, j.fill)
                factor = -1
                if added:
                    factor = acc + planes * size_out
                    at = flat(out, at, _VFILL, j.dtype, j.tag, factor, -1, -1, -1, 0, 0, 1, j.scale)
                for row in range(rows):
                    top = (oy + row) * j.sh - j.pad_top
                    above, below = max(y0, top), min(y1, top + j.kh)
                    x, pixels = slot + (above - y0) * wide, (below - above) * wide
                    apart = rows == 1 or j.sh >= j.kh
                    at = _over_pixels(out, at, op, j.dtype, j.tag, acc + row, size_out, x, size_in, planes, pixels, apart, factor, j.scale)
                if added and j.after != _ONE:
                    at = flat(out, at, _VMULS, j.dtype, j.tag, acc, acc, -1, -1, 0, 0, planes * size_out, j.after)
            else:
                at = _slide(out, at, j, oy, rows, left - x0, columns, y0, in_rows, wide, planes, slot, size_in, behind, acc)
            if j.counts_at >= 0:
                first = j.counts_at + oy * j.counts_pitch + c
                here, there = TilePlace(DDR, first, 0, FAR, 0, columns, j.counts_pitch - columns), dense(UB, j.counts, 0)
                at = move(out, at, j.dtype, j.tag, MTE2, here, 0, there, 0, 0, 1, size_out)
                for plane in range(planes):
                    d = acc + plane * size_out
                    at = flat(out, at, _VMUL, j.dtype, j.tag, d, d, j.counts, -1, 1, 0, size_out, 0)
            at = store_tile(out, at, j.dtype, j.tag, target, p, r * j.out_w + c, size_out, planes, acc)
    return at


@general
@njit(cache=True)
def pool_rows(out: Code, at: int, w: Work, n: Node, j: Any, parity: Ints) -> int:
    """A node's records."""
    start, stop = w.computed[n.k, n.t]
    first, _ = demanded(w.reach[n.k], w.bounds, start, stop)
    j.first_row, j.rows, j.in_first = start, stop - start, first
    return emit_pool(out, at, j, operand(w, n, 0, first), result(w, n, start), parity)


@njit(cache=True)
def fed_plane(rows: int, columns: int) -> int:
    """Blocks from plane to plane of a slot that is fed: of so many rows, the first new one of which begins a granule."""
    return (rows * columns + 2 * GRANULE - 1) // GRANULE * GRANULE


@general
@njit(cache=True)
def fed_rows(out: Code, at: int, w: Work, n: Node, j: Any, parity: Ints) -> int:
    """A node's records where it is fed, and those of the convolutions that do so (`segment.pool_fusion`).

    A slot holds what the windows of a tile cover, and its results.  What the first of two passes makes lies elsewhere, once, so that
    FIXPIPE need not wait for the second.  What FIXPIPE writes of a plane begins with a granule of hazards, behind that of the rows that
    are copied: neither engine waits for the other.
    """
    start, stop = w.computed[n.k, n.t]
    storage, plane, _, _, _, _ = w.jobs.reads[w.jobs.read_start[n.k]]
    target = result(w, n, start)
    in_plane = fed_plane((j.tile_rows - 1) * j.sh + j.kh, max(j.in_w, j.out_w))
    made = last = np.int64(0)  # rows that are there, and block of plane 0 behind them
    for oy in range(start, stop, j.tile_rows):
        rows = min(j.tile_rows, stop - oy)
        y0, y1 = max(0, oy * j.sh - j.pad_top), min(j.in_h, (oy + rows - 1) * j.sh - j.pad_top + j.kh)
        size_out = rows * j.out_w
        slot = j.slot_1 if parity[UB_SLOT] else j.slot_0
        parity[UB_SLOT] ^= 1
        pooling = _most(j.kh, j.in_w, rows, j.planes) + _most(j.kw, j.out_w, rows, j.planes) + most(j.in_w * (y1 - y0), 1, j.planes)
        if at + pooling + _ROOM >= out.shape[0]:
            return -1
        old = max(0, made - y0) * j.in_w
        to = slot + -old % GRANULE
        if old > 0:
            strides = (1, 0, in_plane)
            at = grid(out, at, _VCOPY, j.dtype, j.tag, (old, 1, j.planes), to, strides, last - old, strides, -1, strides, 0)
        first = max(y0, made)
        for k in range(n.k):
            mine = w.jobs.writes[k, 0] == storage and plane <= w.jobs.writes[k, 1] < plane + j.planes
            if y1 > first and mine and w.jobs.made[k] == MADE_BY_READER:
                into = to + old + (w.jobs.writes[k, 1] - plane) * in_plane
                job = _convolution(w.jobs.records, w.jobs.kind[k, 1])
                node = Node(k, n.t, n.image, n.iteration, False, n.member)
                at = conv_part(out, at, w, node, job, 1, first, y1, dense(UB, into, in_plane), parity)
                if at < 0:
                    return -1
        if at + pooling + _ROOM >= out.shape[0]:
            return -1
        made, last = y1, to + (y1 - y0) * j.in_w
        acc = slot + j.planes * in_plane
        behind = j.counts if j.passes == BOTH else acc
        if j.scale != 0:
            n_new, strides = ((y1 - y0) * j.in_w, 1, j.planes), (1, 0, in_plane)
            at = grid(out, at, _VMULS, j.dtype, j.tag, n_new, to, strides, to, strides, -1, strides, j.scale)
        at = _slide(out, at, j, oy, rows, -j.pad_left, j.out_w, y0, y1 - y0, j.in_w, j.planes, to, in_plane, behind, acc)
        at = store_tile(out, at, j.dtype, j.tag, target, 0, (oy - start) * j.out_w, size_out, j.planes, acc)
    return at
