"""Average pools of bytes, in the order of `ir.quantised.pooling`, or in any order with the same integer results.

If one window is the whole image, integers are added.  Pixels are loaded in chunks; one half of a chunk is added to the other half, several
times.  Sums of up to eight unsigned or sixteen signed bytes are exact in float16, which has the most lanes on VECTOR.  Larger sums are
float32.

Other windows add real values row by row, in order; another order may round differently.  If the order cannot change the integer of any sum
(`pooling.means_of_sums`), integers are added in float16, columns first and then rows, and the mean is a multiply-add in float32.  Windows
cut by padding have fewer values, and some of their sums are ties.  Such windows are computed separately and in order.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from numba import njit

from compiler.instructions.builders import DDR, FAR, MTE1, MTE2, RECORD_BLOCKS, UB, Ints, TilePlace, compile_once, dense, flat, move
from compiler.instructions.conversion import HALF, WIDE, convert_runs, stride_blocks
from compiler.instructions.node_context import UB_SLOT, Node, Work, locate_operand, locate_result, read_table
from compiler.instructions.tiles import UbTiles, load_box, next_tile, store_tile
from compiler.instructions.vector_grid import Axes, grid, grid_of_three, max_instructions
from compiler.ir.reach import demanded
from simulator.npu.isa import Op
from simulator.npu.parts import DataType
from simulator.npu.program import Code

_VFILL, _VCOPY, _VADDS, _VMULS, _VMAXS, _VMINS = (int(o) for o in (Op.VFILL, Op.VCOPY, Op.VADDS, Op.VMULS, Op.VMAXS, Op.VMINS))
_VADD, _VDIV, _VMADD, _VCONVERT = (int(o) for o in (Op.VADD, Op.VDIV, Op.VMADD, Op.VCONVERT))
_F16, _F32 = int(DataType.float16), int(DataType.float32)
CONSTANTS = 2  # constant blocks of a slot: number of values or slope of the mean; scale of the result or shift of the mean
CLASS = 4  # columns of the table of windows, see `AverageSpec.tables`
_STILL: Axes = (0, 0, 0)


class MeanFactors(NamedTuple):
    """Constants of the steps from bytes to integer means, float32 bits.

    Windows: values (x + less) * times are averaged; the result is mean / over + more.  Whole image: (sum + less) * times is clamped to
    [low, high] and rounded by adding rounder; the result is this number + more.  centre: offset that is added to float16 sums.
    """

    less: int
    times: int
    over: int
    more: int
    centre: int
    low: int
    high: int
    rounder: int


class AverageJob(NamedTuple):
    """Averages of a node's rows.

    padded: whether padding counts as values.  chunk: pixels per chunk if one window is the whole image, else 0.  halvings: number of
    float16 additions of half a chunk to the other half.  exact: whether windows without padding may be added in any order.
    """

    dtype: int
    source: int  # data type of the pixels
    tag: int
    tiles: UbTiles
    in_h: int
    in_w: int
    kh: int
    kw: int
    sh: int
    sw: int
    pad_top: int
    pad_left: int
    padded: int
    chunk: int
    halvings: int
    exact: int
    factors: MeanFactors


class TileBox(NamedTuple):
    """A tile of results, or a part of a tile, and the pixels under its windows.

    rows, columns: size of the results.  oy, ox: first row and column in the result tensor.  high, wide: rows and columns of pixels in UB.
    iy, ix: row and column of the first window among these pixels.  pitch, plane_pitch: results from row to row and from plane to plane.
    """

    planes: int
    rows: int
    columns: int
    oy: int
    ox: int
    high: int
    wide: int
    iy: int
    ix: int
    pitch: int
    plane_pitch: int


@njit(cache=True)
def rooms(exact: bool, kh: int, kw: int, high: int, wide: int, rows: int, columns: int) -> tuple[int, int]:
    """(blocks of pixels as floats, blocks of sums) of a plane of a tile.  high, wide: rows and columns of pixels.

    exact: pixels are float16; boxes of cut rows or columns are float32; sums of columns share the room of the means.
    """
    if not exact:
        return WIDE * high * wide, WIDE * rows * columns
    return max(HALF * high * wide, WIDE * (kh - 1) * wide, WIDE * (kw - 1) * high), max(HALF * rows * wide, WIDE * rows * columns)


@njit(cache=True)
def count_folded(count: int, halvings: int) -> int:
    """Number of sums after `halvings` additions of one half of the values to the other half."""
    for _ in range(halvings):
        count -= count // 2
    return count


@njit(cache=True)
def _inside(first: int, taps: int, length: int) -> int:
    """Number of taps from position `first` on that lie in [0, length)."""
    return min(first + taps, length) - max(first, 0)


@njit(cache=True)
def _alike(begin: int, results: int, first: int, stride: int, taps: int, length: int) -> tuple[int, int]:
    """(taps of result `begin` inside the image, next result with another number of such taps).  first: position of result 0."""
    inside, end = _inside(first + begin * stride, taps, length), begin + 1
    while end < results and _inside(first + end * stride, taps, length) == inside:
        end += 1
    return inside, end


@njit(cache=True)
def _results(first: int, stride: int, length: int, results: int) -> tuple[int, int]:
    """Results i in [begin, end) whose position first + i * stride lies in [0, length)."""
    begin = min(results, max(0, -(first // stride)))
    return begin, max(begin, min(results, (length - 1 - first) // stride + 1))


@njit(cache=True)
def _part(job: AverageJob, box: TileBox, row: int, row_stop: int, column: int, column_stop: int) -> TileBox:
    """Rows [row, row_stop) and columns [column, column_stop) of a tile's results, with the pixels of the whole tile."""
    return TileBox(
        box.planes, row_stop - row, column_stop - column, box.oy + row, box.ox + column, box.high, box.wide, box.iy + row * job.sh,
        box.ix + column * job.sw, box.pitch, box.plane_pitch,
    )  # fmt: skip


@njit(cache=True)
def _axes(columns: int, rows: int, planes: int, pitch: int, plane_pitch: int, blocks: int, sw: int) -> tuple[Axes, Axes, int]:
    """(shape, strides, repetitions) of results with `blocks` blocks each.  With sw 1, the blocks of a row are one axis: one repetition."""
    if sw == 1 or columns == 1:
        return (blocks * columns, rows, planes), (1, blocks * pitch, blocks * plane_pitch), 1
    return (columns, rows, planes), (blocks, blocks * pitch, blocks * plane_pitch), blocks


@njit(cache=True)
def _sums(out: Code, cursor: int, job: AverageJob, target: int, source: int, box: TileBox) -> int:
    """Sums of the windows of source [planes][high][wide], in float32 and in order."""
    all_of_it = (WIDE * box.columns, box.rows, box.planes), (1, WIDE * box.pitch, WIDE * box.plane_pitch)
    cursor = grid(out, cursor, _VFILL, _F32, job.tag, all_of_it[0], target, all_of_it[1], -1, _STILL, -1, _STILL, 0)
    for ky in range(job.kh):
        y0, y1 = _results(box.iy + ky, job.sh, box.high, box.rows)
        for kx in range(job.kw):
            x0, x1 = _results(box.ix + kx, job.sw, box.wide, box.columns)
            if y1 <= y0 or x1 <= x0:
                continue
            n, ds, parts = _axes(x1 - x0, y1 - y0, box.planes, box.pitch, box.plane_pitch, WIDE, job.sw)
            ss: Axes = (ds[0] * job.sw if parts > 1 else 1, WIDE * box.wide * job.sh, WIDE * box.high * box.wide)
            to = target + WIDE * (y0 * box.pitch + x0)
            source_block = source + WIDE * ((box.iy + ky + y0 * job.sh) * box.wide + box.ix + kx + x0 * job.sw)
            for part in range(parts):
                cursor = grid(out, cursor, _VADD, _F32, job.tag, n, to + part, ds, to + part, ds, source_block + part, ss, 0)
    return cursor


@njit(cache=True)
def _means(out: Code, cursor: int, job: AverageJob, target: int, number: int, classes: Ints, box: TileBox) -> int:
    """Divide target by the number of values of each window, rectangle by rectangle of equal numbers.  number: a free block."""
    ds: Axes = (1, WIDE * box.pitch, WIDE * box.plane_pitch)
    r = 0
    while r < box.rows:
        tall, row_stop = job.kh, box.rows
        if not job.padded:
            tall, row_stop = _alike(r, box.rows, box.oy * job.sh - job.pad_top, job.sh, job.kh, job.in_h)
        c = 0
        while c < box.columns:
            wide, column_stop = job.kw, box.columns
            if not job.padded:
                wide, column_stop = _alike(c, box.columns, box.ox * job.sw - job.pad_left, job.sw, job.kw, job.in_w)
            cursor = flat(out, cursor, _VFILL, _F32, job.tag, number, -1, -1, -1, 0, 0, 1, classes[tall * wide, 0])
            to, n = target + WIDE * (r * box.pitch + c), (WIDE * (column_stop - c), row_stop - r, box.planes)
            cursor = grid(out, cursor, _VDIV, _F32, job.tag, n, to, ds, to, ds, number, _STILL, 0)
            c = column_stop
        r = row_stop
    return cursor


@njit(cache=True)
def _in_order(
    out: Code, cursor: int, job: AverageJob, target: int, floats: int, pixels: int, number: int, classes: Ints, tile: TileBox, box: TileBox
) -> int:
    """Means of a box as real values in target.  pixels: address of the tile's bytes.  floats: room for the box's pixels in float32."""
    y, z = box.iy - tile.iy, box.ix - tile.ix  # offset of the box's first window from the tile's first window
    y0, x0 = max(0, tile.iy + y), max(0, tile.ix + z)
    high = max(0, min(tile.high, tile.iy + y + (box.rows - 1) * job.sh + job.kh) - y0)
    wide = max(0, min(tile.wide, tile.ix + z + (box.columns - 1) * job.sw + job.kw) - x0)
    first_pixel, one, planes = pixels + y0 * tile.wide + x0, high * wide, box.planes
    if high > 0 and wide > 0:
        if wide == tile.wide:
            cursor = convert_runs(
                out, cursor, _F32, job.tag, floats, WIDE, WIDE * one, first_pixel, 1, tile.high * tile.wide, one, planes, job.source
            )
        else:
            for p in range(planes):
                from_, to = first_pixel + p * tile.high * tile.wide, floats + p * WIDE * one
                cursor = convert_runs(out, cursor, _F32, job.tag, to, WIDE, WIDE * wide, from_, 1, tile.wide, wide, high, job.source)
        if job.factors.less != 0:
            cursor = flat(out, cursor, _VADDS, _F32, job.tag, floats, floats, -1, -1, 0, 0, WIDE * one * planes, job.factors.less)
        cursor = flat(out, cursor, _VMULS, _F32, job.tag, floats, floats, -1, -1, 0, 0, WIDE * one * planes, job.factors.times)
    window_top, window_left = tile.iy + y - y0, tile.ix + z - x0
    inner = TileBox(box.planes, box.rows, box.columns, box.oy, box.ox, high, wide, window_top, window_left, box.pitch, box.plane_pitch)
    cursor = _sums(out, cursor, job, target, floats, inner)
    cursor = _means(out, cursor, job, target, number, classes, inner)
    n, ds = (WIDE * box.columns, box.rows, box.planes), (1, WIDE * box.pitch, WIDE * box.plane_pitch)
    cursor = flat(out, cursor, _VFILL, _F32, job.tag, number + 1, -1, -1, -1, 0, 0, 1, job.factors.over)
    cursor = grid(out, cursor, _VDIV, _F32, job.tag, n, target, ds, target, ds, number + 1, _STILL, 0)
    return grid(out, cursor, _VADDS, _F32, job.tag, n, target, ds, target, ds, -1, _STILL, job.factors.more)


@njit(cache=True)
def _full(first: int, stride: int, taps: int, length: int, results: int, previous: int) -> int:
    """The first tap behind `previous` that lies inside the image for all results; -1 without such a tap."""
    for tap in range(previous + 1, taps):
        if _results(first + tap, stride, length, results) == (0, results):
            return tap
    return -1


@njit(cache=True)
def _integers(out: Code, cursor: int, job: AverageJob, target: int, halves: int, pixels: int, box: TileBox) -> int:
    """Sums of all windows of a tile plus `centre`, float32 in target.  float16 additions go over columns (in target), then over rows."""
    size_in, size_v = HALF * box.high * box.wide, HALF * box.rows * box.wide
    cursor = stride_blocks(
        out, cursor, _VCONVERT, _F16, job.tag, halves, pixels, box.planes * box.high * box.wide, 1, HALF, 1, 1, job.source
    )
    n: Axes = (HALF * box.wide, box.rows, box.planes)
    vs: Axes = (1, HALF * box.wide, size_v)
    xs: Axes = (1, HALF * box.wide * job.sh, size_in)
    row = halves + HALF * box.iy * box.wide
    one = _full(box.iy, job.sh, job.kh, box.high, box.rows, -1)
    two = _full(box.iy, job.sh, job.kh, box.high, box.rows, one) if one >= 0 else -1
    if two >= 0:
        cursor = grid(out, cursor, _VADD, _F16, job.tag, n, target, vs, row + one * HALF * box.wide, xs, row + two * HALF * box.wide, xs, 0)
    elif one >= 0:
        cursor = grid(out, cursor, _VCOPY, _F16, job.tag, n, target, vs, row + one * HALF * box.wide, xs, -1, _STILL, 0)
    else:
        cursor = grid(out, cursor, _VFILL, _F16, job.tag, n, target, vs, -1, _STILL, -1, _STILL, 0)
    for ky in range(job.kh):
        y0, y1 = _results(box.iy + ky, job.sh, box.high, box.rows)
        if ky != one and ky != two and y0 < y1:
            to, source_block = target + y0 * HALF * box.wide, row + (ky + y0 * job.sh) * HALF * box.wide
            cursor = grid(out, cursor, _VADD, _F16, job.tag, (n[0], y1 - y0, n[2]), to, vs, to, vs, source_block, xs, 0)
    one = _full(box.ix, job.sw, job.kw, box.wide, box.columns, -1)
    size_h = box.rows * box.columns  # results overwrite the pixels
    if one < 0:
        cursor = flat(out, cursor, _VFILL, _F16, job.tag, halves, -1, -1, -1, 0, 0, HALF * box.planes * size_h, job.factors.centre)
    else:
        n, hs, parts = _axes(box.columns, box.rows, box.planes, box.columns, size_h, HALF, job.sw)
        ss: Axes = (hs[0] * job.sw if parts > 1 else 1, HALF * box.wide, size_v)
        for part in range(parts):
            source_block = target + HALF * (box.ix + one) + part
            cursor = grid(out, cursor, _VADDS, _F16, job.tag, n, halves + part, hs, source_block, ss, -1, _STILL, job.factors.centre)
    for kx in range(job.kw):
        x0, x1 = _results(box.ix + kx, job.sw, box.wide, box.columns)
        if kx == one or x1 <= x0:
            continue
        n, hs, parts = _axes(x1 - x0, box.rows, box.planes, box.columns, size_h, HALF, job.sw)
        taps: Axes = (hs[0] * job.sw if parts > 1 else 1, HALF * box.wide, size_v)
        for part in range(parts):
            to, source_block = halves + HALF * x0 + part, target + HALF * (box.ix + kx + x0 * job.sw) + part
            cursor = grid(out, cursor, _VADD, _F16, job.tag, n, to, hs, to, hs, source_block, taps, 0)
    return stride_blocks(out, cursor, _VCONVERT, _F32, job.tag, target, halves, HALF * box.planes * size_h, 1, WIDE // HALF, 1, 1, _F16)


@njit(cache=True)
def _any_order(
    out: Code, cursor: int, job: AverageJob, target: int, floats: int, pixels: int, number: int, classes: Ints, box: TileBox, counted: bool
) -> tuple[int, int]:
    """Emit a tile whose windows without padding may be added in any order; returns (cursor, number of boxes that are added in order).
    counted: only count these boxes."""
    boxes = 0
    if not counted:
        cursor = _integers(out, cursor, job, target, floats, pixels, box)
    ds: Axes = (1, WIDE * box.pitch, WIDE * box.plane_pitch)
    for exact in (True, False):  # sums in any order first, because boxes overwrite their room
        r = 0
        while r < box.rows:
            tall, row_stop = _alike(r, box.rows, box.oy * job.sh - job.pad_top, job.sh, job.kh, job.in_h)
            if not exact and classes[tall * job.kw, 1] == 0 and tall < job.kh:  # cut rows are one box
                boxes += 1
                if not counted:
                    cut = _part(job, box, r, row_stop, 0, box.columns)
                    cursor = _in_order(out, cursor, job, target + WIDE * r * box.pitch, floats, pixels, number, classes, box, cut)
                r = row_stop
                continue
            c = 0
            while c < box.columns:
                wide, column_stop = _alike(c, box.columns, box.ox * job.sw - job.pad_left, job.sw, job.kw, job.in_w)
                to = target + WIDE * (r * box.pitch + c)
                if exact and not counted and classes[tall * wide, 1] != 0:
                    cursor = flat(out, cursor, _VFILL, _F32, job.tag, number, -1, -1, -1, 0, 0, 1, classes[tall * wide, 2])
                    cursor = flat(out, cursor, _VFILL, _F32, job.tag, number + 1, -1, -1, -1, 0, 0, 1, classes[tall * wide, 3])
                    n: Axes = (WIDE * (column_stop - c), row_stop - r, box.planes)
                    cursor = grid_of_three(out, cursor, _VMADD, _F32, job.tag, n, to, ds, to, ds, number, _STILL, number + 1, _STILL, 0)
                elif not exact and classes[tall * wide, 1] == 0:
                    boxes += 1
                    if not counted:
                        cut = _part(job, box, r, row_stop, c, column_stop)
                        cursor = _in_order(out, cursor, job, to, floats, pixels, number, classes, box, cut)
                c = column_stop
            r = row_stop
    return cursor, boxes


@njit(cache=True)
def _whole(out: Code, cursor: int, job: AverageJob, source: TilePlace, target: TilePlace, slot_state: Ints) -> int:
    """Emit the mean of all pixels.  A slot holds bytes, float16 pixels, float32 sums of a chunk, float32 sums of all chunks, and results.

    Sums of all chunks stay in the slot of the first chunk.  The planes of a pixel are adjacent, so every step is one run.
    """
    tiles = job.tiles
    pixels, chunk, engine = job.in_h * job.in_w, job.chunk, MTE2 if source.memory == DDR else MTE1
    most_left = count_folded(chunk, job.halvings)
    for p in range(0, tiles.planes, tiles.tile_planes):
        planes = min(tiles.tile_planes, tiles.planes - p)
        run_records = WIDE * chunk * planes // RECORD_BLOCKS + 2
        room = (pixels // chunk + 1) * (planes + 8 + (job.halvings + 4) * run_records) + 24 * run_records
        if cursor + room >= out.shape[0]:
            return -1
        sums = (tiles.slot_1 if slot_state[UB_SLOT] else tiles.slot_0) + tiles.tile_planes * ((1 + HALF) * chunk + WIDE * most_left)
        # chunks of pixels: float16, halvings, and float32 sums of all chunks
        for begin in range(0, pixels, chunk):
            slot = tiles.slot_1 if slot_state[UB_SLOT] else tiles.slot_0
            slot_state[UB_SLOT] ^= 1
            size = min(chunk, pixels - begin)
            into = TilePlace(UB, slot, 1, FAR, 0, 1, planes - 1) if planes > 1 else dense(UB, slot, size)
            cursor = move(out, cursor, job.source, job.tag, engine, source, begin, into, 0, p, planes, size)
            half, count = slot + tiles.tile_planes * chunk, size
            cursor = stride_blocks(out, cursor, _VCONVERT, _F16, job.tag, half, slot, planes * size, 1, HALF, 1, 1, job.source)
            for _ in range(job.halvings):
                if count > 1:
                    blocks = HALF * planes * (count // 2)
                    cursor = flat(
                        out, cursor, _VADD, _F16, job.tag, half, half, half + HALF * planes * (count - count // 2), -1, 1, 0, blocks, 0
                    )
                count -= count // 2
            wide = sums if begin == 0 else slot + tiles.tile_planes * (1 + HALF) * chunk
            cursor = stride_blocks(out, cursor, _VCONVERT, _F32, job.tag, wide, half, HALF * planes * count, 1, WIDE // HALF, 1, 1, _F16)
            if begin > 0:
                cursor = flat(out, cursor, _VADD, _F32, job.tag, sums, sums, wide, -1, 1, 0, WIDE * planes * count, 0)
        count, one = count_folded(min(chunk, pixels), job.halvings), WIDE * planes
        while count > 1:
            cursor = flat(out, cursor, _VADD, _F32, job.tag, sums, sums, sums + one * (count - count // 2), -1, 1, 0, one * (count // 2), 0)
            count -= count // 2
        # the sum of all pixels: zero point, scale, limits, rounding
        y = sums + tiles.tile_planes * WIDE * most_left
        cursor = flat(out, cursor, _VADDS, _F32, job.tag, sums, sums, -1, -1, 0, 0, one, job.factors.less)
        cursor = flat(out, cursor, _VMULS, _F32, job.tag, sums, sums, -1, -1, 0, 0, one, job.factors.times)
        cursor = flat(out, cursor, _VMAXS, _F32, job.tag, sums, sums, -1, -1, 0, 0, one, job.factors.low)
        cursor = flat(out, cursor, _VMINS, _F32, job.tag, sums, sums, -1, -1, 0, 0, one, job.factors.high)
        cursor = flat(out, cursor, _VADDS, _F32, job.tag, sums, sums, -1, -1, 0, 0, one, job.factors.rounder)
        cursor = flat(out, cursor, _VADDS, _F32, job.tag, sums, sums, -1, -1, 0, 0, one, job.factors.more)
        cursor = stride_blocks(out, cursor, _VCONVERT, job.dtype, job.tag, y, sums, planes, 1, 1, 1, WIDE, _F32)
        cursor = store_tile(out, cursor, job.dtype, job.tag, target, p, 0, 1, planes, y)
    return cursor


@njit(cache=True)
def _windows(out: Code, cursor: int, job: AverageJob, source: TilePlace, target: TilePlace, classes: Ints, slot_state: Ints) -> int:
    """Emit windows tile by tile.  A slot holds bytes (later results), pixels as floats, sums, and CONSTANTS blocks."""
    tiles = job.tiles
    has_rows = tiles.tile_columns >= tiles.width  # whether tiles have all columns
    tile_rows = min(tiles.tile_rows, tiles.rows)
    in_rows_max = (tile_rows - 1) * job.sh + job.kh
    in_columns_max = job.in_w if has_rows else min(job.in_w, (tiles.tile_columns - 1) * job.sw + job.kw)
    in_max, out_max = in_rows_max * in_columns_max, tile_rows * tiles.tile_columns
    floats, means = rooms(job.exact != 0, job.kh, job.kw, in_rows_max, in_columns_max, tile_rows, tiles.tile_columns)
    index, tile = 0, next_tile(tiles, 0, slot_state)
    while tile.planes > 0:
        p, planes, rows, c, columns, slot = tile.plane, tile.planes, tile.rows, tile.column, tile.columns, tile.slot
        oy = tiles.first_row + tile.row
        y0 = max(0, oy * job.sh - job.pad_top)
        y1 = min(job.in_h, (oy + rows - 1) * job.sh - job.pad_top + job.kh)
        x0, x1 = 0, job.in_w
        if not has_rows:
            x0 = min(job.in_w - 1, max(0, c * job.sw - job.pad_left))
            x1 = max(x0 + 1, min(job.in_w, (c + columns - 1) * job.sw - job.pad_left + job.kw))
        window_top, window_left = oy * job.sh - job.pad_top - y0, c * job.sw - job.pad_left - x0
        box = TileBox(planes, rows, columns, oy, c, y1 - y0, x1 - x0, window_top, window_left, columns, rows * columns)
        # upper bound of the records of the tile; every box in order adds the same bound again
        size_in, size_out = planes * box.high * box.wide, planes * rows * columns
        floats_base = slot + tiles.tile_planes * max(in_max, out_max)
        sums = floats_base + tiles.tile_planes * floats
        number = sums + tiles.tile_planes * means
        per_tap = max_instructions(WIDE * columns, rows, planes)
        regions = min(rows, 2 * job.kh + 1) * min(columns, 2 * job.kw + 1)
        room = (
            (WIDE * job.kh * job.kw + regions + 3) * (per_tap + 1) + (12 * size_in + 20 * size_out) // RECORD_BLOCKS + 64
            + 4 * planes + 2 * box.high
        )  # fmt: skip
        if job.exact:
            _, boxes = _any_order(out, cursor, job, sums, floats_base, slot, number, classes, box, True)
            room += HALF * (job.kh + job.kw + 2) * (max_instructions(HALF * box.wide, rows, planes) + 1)
            room += boxes * (room + planes * (box.high + box.wide + 8))
        if cursor + room >= out.shape[0]:
            return -1
        cursor = load_box(out, cursor, job.source, job.tag, source, p, y0 - tiles.in_first, box.high, job.in_w, x0, box.wide, planes, slot)
        if job.exact:
            cursor, _ = _any_order(out, cursor, job, sums, floats_base, slot, number, classes, box, False)
        else:
            cursor = _in_order(out, cursor, job, sums, floats_base, slot, number, classes, box, box)
        cursor = stride_blocks(out, cursor, _VCONVERT, job.dtype, job.tag, slot, sums, size_out, 1, 1, 1, WIDE, _F32)
        cursor = store_tile(out, cursor, job.dtype, job.tag, target, p, tile.first, tile.size, planes, slot)
        index += 1
        tile = next_tile(tiles, index, slot_state)
    return cursor


@compile_once
@njit(cache=True)
def average_rows(out: Code, cursor: int, work: Work, node: Node, job: Any, slot_state: Ints) -> int:
    """A node's records."""
    start, stop = work.computed[node.k, node.t]
    first, _ = demanded(work.reach[node.k], work.bounds, start, stop)
    job.tiles.first_row, job.tiles.rows, job.tiles.in_first = start, stop - start, first
    source, target = locate_operand(work, node, 0, first), locate_result(work, node, start)
    if job.chunk:
        return _whole(out, cursor, job, source, target, slot_state)
    return _windows(out, cursor, job, source, target, read_table(work, node, 0, CLASS), slot_state)
