"""Average pools of bytes, in the order of `ir.quantised.pooling`, or in any order where that gives the same integers.

A window that is the whole image adds integers: pixels come some at a time, and halves of them are added to each other.  Sums of up to
eight bytes without a sign, or of sixteen with one, are integers that float16 holds, of which VECTOR has most lanes; float32 has the rest.

Other windows add real values one after the other, row by row, and another order would round otherwise.  Where that cannot change an
integer, which is known of all sums that so many values have (`pooling.means_of_sums`), integers are added in float16, columns first and
then rows, and the mean is a multiply-add in float32.  Windows that padding cuts have fewer values, and sums of theirs that are ties: those
are made in order, on their own.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from numba import njit

from compiler.instructions.builders import DDR, FAR, MTE1, MTE2, UB, Ints, TilePlace, dense, flat, general, move
from compiler.instructions.conversion import HALF, WIDE, converted, paced
from compiler.instructions.node_context import UB_SLOT, Node, Work, operand, result, table
from compiler.instructions.tiles import load_box, store_tile, tiles
from compiler.instructions.vector_grid import Axes, grid, grid_of_three, most
from compiler.ir.reach import demanded
from simulator.npu.isa import Op
from simulator.npu.parts import DataType
from simulator.npu.program import Code

_VFILL, _VCOPY, _VADDS, _VMULS, _VMAXS, _VMINS = (int(o) for o in (Op.VFILL, Op.VCOPY, Op.VADDS, Op.VMULS, Op.VMAXS, Op.VMINS))
_VADD, _VDIV, _VMADD, _VCONVERT = (int(o) for o in (Op.VADD, Op.VDIV, Op.VMADD, Op.VCONVERT))
_F16, _F32 = int(DataType.float16), int(DataType.float32)
CONSTANTS = 2  # blocks of a slot: number of values or slope of the mean, scale of the result or shift of the mean
CLASS = 4  # words of a class of windows, see `AverageSpec.tables`
_STILL: Axes = (0, 0, 0)


class AverageJob(NamedTuple):
    """Averages of `rows` output rows starting at output row `first_row` of the tensor; in_first: the input row at `source.base`.

    chunk: pixels that are added at a time where one window is the whole image, else 0; halvings: how often in float16.  padded: whether
    padding counts.  exact: whether windows may be added in any order (`classes`).
    less, times, over, more: float32 bits; v = (x + less) * times, the mean over `over`, + more.  Of the whole image (sum + less) * times
    between low and high, rounded, + more.  centre: float32 bits of what is added to sums in float16.
    rounder: float32 bits of what is added so that an integer is left.
    """

    dtype: int
    source: int  # data type of the pixels
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
    padded: int
    chunk: int
    halvings: int
    exact: int
    less: int
    times: int
    over: int
    more: int
    centre: int
    low: int
    high: int
    rounder: int
    tile_planes: int
    tile_rows: int
    tile_columns: int
    slot_0: int
    slot_1: int
    first_row: int = 0
    rows: int = 0
    in_first: int = 0


class TileBox(NamedTuple):
    """A tile of results, or a part of one, and the pixels that its windows cover.

    rows, columns: of results; oy, ox: where they begin in the result.  high, wide: of pixels; top, left: of those, where the first window
    begins.  pitch, apart: results from row to row and from plane to plane.
    """

    planes: int
    rows: int
    columns: int
    oy: int
    ox: int
    high: int
    wide: int
    top: int
    left: int
    pitch: int
    apart: int


@njit(cache=True)
def rooms(exact: bool, kh: int, kw: int, high: int, wide: int, rows: int, columns: int) -> tuple[int, int]:
    """Blocks of a plane of a tile's windows: pixels as floats, and sums.  high, wide: of the pixels.

    In any order pixels are float16, and boxes of a cut row, or column, float32; sums of columns lie where the means will.
    """
    if not exact:
        return WIDE * high * wide, WIDE * rows * columns
    return max(HALF * high * wide, WIDE * (kh - 1) * wide, WIDE * (kw - 1) * high), max(HALF * rows * wide, WIDE * rows * columns)


@njit(cache=True)
def folded(count: int, halvings: int) -> int:
    """How many are left of values of which halves are added to each other."""
    for _ in range(halvings):
        count -= count // 2
    return count


@njit(cache=True)
def _inside(first: int, taps: int, length: int) -> int:
    """How many of the taps from `first` on lie in an axis."""
    return min(first + taps, length) - max(first, 0)


@njit(cache=True)
def _alike(begin: int, results: int, first: int, stride: int, taps: int, length: int) -> tuple[int, int]:
    """(taps of result `begin` that lie in an axis, the first result behind it of which there are others).  first: of result 0."""
    inside, end = _inside(first + begin * stride, taps, length), begin + 1
    while end < results and _inside(first + end * stride, taps, length) == inside:
        end += 1
    return inside, end


@njit(cache=True)
def _results(first: int, stride: int, length: int, results: int) -> tuple[int, int]:
    """Results [begin, end) whose place first + i * stride lies in an axis."""
    begin = min(results, max(0, -(first // stride)))
    return begin, max(begin, min(results, (length - 1 - first) // stride + 1))


@njit(cache=True)
def _part(j: AverageJob, b: TileBox, r: int, below: int, c: int, behind: int) -> TileBox:
    """Rows [r, below) and columns [c, behind) of a tile's results; its pixels are all there."""
    return TileBox(
        b.planes, below - r, behind - c, b.oy + r, b.ox + c, b.high, b.wide, b.top + r * j.sh, b.left + c * j.sw, b.pitch, b.apart
    )  # fmt: skip


@njit(cache=True)
def _axes(columns: int, rows: int, planes: int, pitch: int, apart: int, blocks: int, sw: int) -> tuple[Axes, Axes, int]:
    """Results of so many blocks, their strides, and how often: of neighbours the blocks of a pixel and of the next one are one axis."""
    if sw == 1 or columns == 1:
        return (blocks * columns, rows, planes), (1, blocks * pitch, blocks * apart), 1
    return (columns, rows, planes), (blocks, blocks * pitch, blocks * apart), blocks


@njit(cache=True)
def _sums(out: Code, at: int, j: AverageJob, d: int, s: int, b: TileBox) -> int:
    """Windows of s [planes][high][wide], in float32 and in order."""
    all_of_it = (WIDE * b.columns, b.rows, b.planes), (1, WIDE * b.pitch, WIDE * b.apart)
    at = grid(out, at, _VFILL, _F32, j.tag, all_of_it[0], d, all_of_it[1], -1, _STILL, -1, _STILL, 0)
    for ky in range(j.kh):
        y0, y1 = _results(b.top + ky, j.sh, b.high, b.rows)
        for kx in range(j.kw):
            x0, x1 = _results(b.left + kx, j.sw, b.wide, b.columns)
            if y1 <= y0 or x1 <= x0:
                continue
            n, ds, parts = _axes(x1 - x0, y1 - y0, b.planes, b.pitch, b.apart, WIDE, j.sw)
            ss: Axes = (ds[0] * j.sw if parts > 1 else 1, WIDE * b.wide * j.sh, WIDE * b.high * b.wide)
            to = d + WIDE * (y0 * b.pitch + x0)
            of = s + WIDE * ((b.top + ky + y0 * j.sh) * b.wide + b.left + kx + x0 * j.sw)
            for part in range(parts):
                at = grid(out, at, _VADD, _F32, j.tag, n, to + part, ds, to + part, ds, of + part, ss, 0)
    return at


@njit(cache=True)
def _means(out: Code, at: int, j: AverageJob, d: int, number: int, classes: Ints, b: TileBox) -> int:
    """d over how many values each of its windows has, which is the same for many of them.  number: where a block is free for it."""
    ds: Axes = (1, WIDE * b.pitch, WIDE * b.apart)
    r = 0
    while r < b.rows:
        tall, below = j.kh, b.rows
        if not j.padded:
            tall, below = _alike(r, b.rows, b.oy * j.sh - j.pad_top, j.sh, j.kh, j.in_h)
        c = 0
        while c < b.columns:
            wide, behind = j.kw, b.columns
            if not j.padded:
                wide, behind = _alike(c, b.columns, b.ox * j.sw - j.pad_left, j.sw, j.kw, j.in_w)
            at = flat(out, at, _VFILL, _F32, j.tag, number, -1, -1, -1, 0, 0, 1, classes[tall * wide, 0])
            to, n = d + WIDE * (r * b.pitch + c), (WIDE * (behind - c), below - r, b.planes)
            at = grid(out, at, _VDIV, _F32, j.tag, n, to, ds, to, ds, number, _STILL, 0)
            c = behind
        r = below
    return at


@njit(cache=True)
def _in_order(
    out: Code, at: int, j: AverageJob, d: int, x: int, pixels: int, number: int, classes: Ints, whole: TileBox, b: TileBox
) -> int:
    """Means of a box as real values, d.  pixels: bytes of the whole tile's box; x: room for what this one's are in float32."""
    y, z = b.top - whole.top, b.left - whole.left  # of the first window, from that of the tile
    y0, x0 = max(0, whole.top + y), max(0, whole.left + z)
    high = max(0, min(whole.high, whole.top + y + (b.rows - 1) * j.sh + j.kh) - y0)
    wide = max(0, min(whole.wide, whole.left + z + (b.columns - 1) * j.sw + j.kw) - x0)
    at_first, one, rest = pixels + y0 * whole.wide + x0, high * wide, b.planes
    if high > 0 and wide > 0:
        if wide == whole.wide:
            at = converted(out, at, _F32, j.tag, x, WIDE, WIDE * one, at_first, 1, whole.high * whole.wide, one, rest, j.source)
        else:
            for p in range(rest):
                from_, to = at_first + p * whole.high * whole.wide, x + p * WIDE * one
                at = converted(out, at, _F32, j.tag, to, WIDE, WIDE * wide, from_, 1, whole.wide, wide, high, j.source)
        if j.less != 0:
            at = flat(out, at, _VADDS, _F32, j.tag, x, x, -1, -1, 0, 0, WIDE * one * rest, j.less)
        at = flat(out, at, _VMULS, _F32, j.tag, x, x, -1, -1, 0, 0, WIDE * one * rest, j.times)
    top, left = whole.top + y - y0, whole.left + z - x0
    inner = TileBox(b.planes, b.rows, b.columns, b.oy, b.ox, high, wide, top, left, b.pitch, b.apart)
    at = _sums(out, at, j, d, x, inner)
    at = _means(out, at, j, d, number, classes, inner)
    n, ds = (WIDE * b.columns, b.rows, b.planes), (1, WIDE * b.pitch, WIDE * b.apart)
    at = flat(out, at, _VFILL, _F32, j.tag, number + 1, -1, -1, -1, 0, 0, 1, j.over)
    at = grid(out, at, _VDIV, _F32, j.tag, n, d, ds, d, ds, number + 1, _STILL, 0)
    return grid(out, at, _VADDS, _F32, j.tag, n, d, ds, d, ds, -1, _STILL, j.more)


@njit(cache=True)
def _full(first: int, stride: int, taps: int, length: int, results: int, behind: int) -> int:
    """The first tap behind another one that lies in the axis for all results; -1 for none."""
    for tap in range(behind + 1, taps):
        if _results(first + tap, stride, length, results) == (0, results):
            return tap
    return -1


@njit(cache=True)
def _integers(out: Code, at: int, j: AverageJob, d: int, x: int, pixels: int, b: TileBox) -> int:
    """Sums of all windows of a tile, plus `centre`, as float32 d: in float16 columns first, in d as well, then rows."""
    size_in, size_v = HALF * b.high * b.wide, HALF * b.rows * b.wide
    at = paced(out, at, _VCONVERT, _F16, j.tag, x, pixels, b.planes * b.high * b.wide, 1, HALF, 1, 1, j.source)
    n: Axes = (HALF * b.wide, b.rows, b.planes)
    vs: Axes = (1, HALF * b.wide, size_v)
    xs: Axes = (1, HALF * b.wide * j.sh, size_in)
    row = x + HALF * b.top * b.wide
    one = _full(b.top, j.sh, j.kh, b.high, b.rows, -1)
    two = _full(b.top, j.sh, j.kh, b.high, b.rows, one) if one >= 0 else -1
    if two >= 0:
        at = grid(out, at, _VADD, _F16, j.tag, n, d, vs, row + one * HALF * b.wide, xs, row + two * HALF * b.wide, xs, 0)
    elif one >= 0:
        at = grid(out, at, _VCOPY, _F16, j.tag, n, d, vs, row + one * HALF * b.wide, xs, -1, _STILL, 0)
    else:
        at = grid(out, at, _VFILL, _F16, j.tag, n, d, vs, -1, _STILL, -1, _STILL, 0)
    for ky in range(j.kh):
        y0, y1 = _results(b.top + ky, j.sh, b.high, b.rows)
        if ky != one and ky != two and y0 < y1:
            to, of = d + y0 * HALF * b.wide, row + (ky + y0 * j.sh) * HALF * b.wide
            at = grid(out, at, _VADD, _F16, j.tag, (n[0], y1 - y0, n[2]), to, vs, to, vs, of, xs, 0)
    one = _full(b.left, j.sw, j.kw, b.wide, b.columns, -1)
    size_h = b.rows * b.columns  # where pixels were
    if one < 0:
        at = flat(out, at, _VFILL, _F16, j.tag, x, -1, -1, -1, 0, 0, HALF * b.planes * size_h, j.centre)
    else:
        n, hs, parts = _axes(b.columns, b.rows, b.planes, b.columns, size_h, HALF, j.sw)
        ss: Axes = (hs[0] * j.sw if parts > 1 else 1, HALF * b.wide, size_v)
        for part in range(parts):
            of = d + HALF * (b.left + one) + part
            at = grid(out, at, _VADDS, _F16, j.tag, n, x + part, hs, of, ss, -1, _STILL, j.centre)
    for kx in range(j.kw):
        x0, x1 = _results(b.left + kx, j.sw, b.wide, b.columns)
        if kx == one or x1 <= x0:
            continue
        n, hs, parts = _axes(x1 - x0, b.rows, b.planes, b.columns, size_h, HALF, j.sw)
        taps: Axes = (hs[0] * j.sw if parts > 1 else 1, HALF * b.wide, size_v)
        for part in range(parts):
            to, of = x + HALF * x0 + part, d + HALF * (b.left + kx + x0 * j.sw) + part
            at = grid(out, at, _VADD, _F16, j.tag, n, to, hs, to, hs, of, taps, 0)
    return paced(out, at, _VCONVERT, _F32, j.tag, d, x, HALF * b.planes * size_h, 1, WIDE // HALF, 1, 1, _F16)


@njit(cache=True)
def _any_order(
    out: Code, at: int, j: AverageJob, d: int, x: int, pixels: int, number: int, classes: Ints, b: TileBox, counted: bool
) -> tuple[int, int]:  # fmt: skip
    """(at, boxes that are made in order) of a tile in which whole windows may be added in any order.  counted: no more than the boxes."""
    boxes = 0
    if not counted:
        at = _integers(out, at, j, d, x, pixels, b)
    ds: Axes = (1, WIDE * b.pitch, WIDE * b.apart)
    for exact in (True, False):  # sums first, which need room that boxes take
        r = 0
        while r < b.rows:
            tall, below = _alike(r, b.rows, b.oy * j.sh - j.pad_top, j.sh, j.kh, j.in_h)
            if not exact and classes[tall * j.kw, 1] == 0 and tall < j.kh:  # cut rows are one box
                boxes += 1
                if not counted:
                    cut = _part(j, b, r, below, 0, b.columns)
                    at = _in_order(out, at, j, d + WIDE * r * b.pitch, x, pixels, number, classes, b, cut)
                r = below
                continue
            c = 0
            while c < b.columns:
                wide, behind = _alike(c, b.columns, b.ox * j.sw - j.pad_left, j.sw, j.kw, j.in_w)
                to = d + WIDE * (r * b.pitch + c)
                if exact and not counted and classes[tall * wide, 1] != 0:
                    at = flat(out, at, _VFILL, _F32, j.tag, number, -1, -1, -1, 0, 0, 1, classes[tall * wide, 2])
                    at = flat(out, at, _VFILL, _F32, j.tag, number + 1, -1, -1, -1, 0, 0, 1, classes[tall * wide, 3])
                    n: Axes = (WIDE * (behind - c), below - r, b.planes)
                    at = grid_of_three(out, at, _VMADD, _F32, j.tag, n, to, ds, to, ds, number, _STILL, number + 1, _STILL, 0)
                elif not exact and classes[tall * wide, 1] == 0:
                    boxes += 1
                    if not counted:
                        cut = _part(j, b, r, below, c, behind)
                        at = _in_order(out, at, j, to, x, pixels, number, classes, b, cut)
                c = behind
            r = below
    return at, boxes


@njit(cache=True)
def _whole(out: Code, at: int, j: AverageJob, source: TilePlace, target: TilePlace, parity: Ints) -> int:
    """The mean of all pixels.  A slot: pixels, what they are in float16, sums of them in float32, sums, results.

    Sums stay in the first slot.  A pixel's planes lie side by side, so that all work is on one run.
    """
    pixels, chunk, engine = j.in_h * j.in_w, j.chunk, MTE2 if source.memory == DDR else MTE1
    most_left = folded(chunk, j.halvings)
    for p in range(0, j.planes, j.tile_planes):
        planes = min(j.tile_planes, j.planes - p)
        each = WIDE * chunk * planes // 2040 + 2
        room = (pixels // chunk + 1) * (planes + 8 + (j.halvings + 4) * each) + 24 * each
        if at + room >= out.shape[0]:
            return -1
        sums = (j.slot_1 if parity[UB_SLOT] else j.slot_0) + j.tile_planes * ((1 + HALF) * chunk + WIDE * most_left)
        for begin in range(0, pixels, chunk):
            slot = j.slot_1 if parity[UB_SLOT] else j.slot_0
            parity[UB_SLOT] ^= 1
            size = min(chunk, pixels - begin)
            into = TilePlace(UB, slot, 1, FAR, 0, 1, planes - 1) if planes > 1 else dense(UB, slot, size)
            at = move(out, at, j.source, j.tag, engine, source, begin, into, 0, p, planes, size)
            half, left = slot + j.tile_planes * chunk, size
            at = paced(out, at, _VCONVERT, _F16, j.tag, half, slot, planes * size, 1, HALF, 1, 1, j.source)
            for _ in range(j.halvings):
                if left > 1:
                    blocks = HALF * planes * (left // 2)
                    at = flat(out, at, _VADD, _F16, j.tag, half, half, half + HALF * planes * (left - left // 2), -1, 1, 0, blocks, 0)
                left -= left // 2
            wide = sums if begin == 0 else slot + j.tile_planes * (1 + HALF) * chunk
            at = paced(out, at, _VCONVERT, _F32, j.tag, wide, half, HALF * planes * left, 1, WIDE // HALF, 1, 1, _F16)
            if begin > 0:
                at = flat(out, at, _VADD, _F32, j.tag, sums, sums, wide, -1, 1, 0, WIDE * planes * left, 0)
        left, one = folded(min(chunk, pixels), j.halvings), WIDE * planes
        while left > 1:
            at = flat(out, at, _VADD, _F32, j.tag, sums, sums, sums + one * (left - left // 2), -1, 1, 0, one * (left // 2), 0)
            left -= left // 2
        y = sums + j.tile_planes * WIDE * most_left
        at = flat(out, at, _VADDS, _F32, j.tag, sums, sums, -1, -1, 0, 0, one, j.less)
        at = flat(out, at, _VMULS, _F32, j.tag, sums, sums, -1, -1, 0, 0, one, j.times)
        at = flat(out, at, _VMAXS, _F32, j.tag, sums, sums, -1, -1, 0, 0, one, j.low)
        at = flat(out, at, _VMINS, _F32, j.tag, sums, sums, -1, -1, 0, 0, one, j.high)
        at = flat(out, at, _VADDS, _F32, j.tag, sums, sums, -1, -1, 0, 0, one, j.rounder)
        at = flat(out, at, _VADDS, _F32, j.tag, sums, sums, -1, -1, 0, 0, one, j.more)
        at = paced(out, at, _VCONVERT, j.dtype, j.tag, y, sums, planes, 1, 1, 1, WIDE, _F32)
        at = store_tile(out, at, j.dtype, j.tag, target, p, 0, 1, planes, y)
    return at


@njit(cache=True)
def _windows(out: Code, at: int, j: AverageJob, source: TilePlace, target: TilePlace, classes: Ints, parity: Ints) -> int:
    """A slot: pixels or results, pixels as floats, sums, CONSTANTS blocks."""
    count, across, tile_rows = tiles(j.rows, j.tile_rows, j.out_w, j.tile_columns)
    in_rows_max = (tile_rows - 1) * j.sh + j.kh
    in_columns_max = j.in_w if across == 1 else min(j.in_w, (j.tile_columns - 1) * j.sw + j.kw)
    in_max, out_max = in_rows_max * in_columns_max, tile_rows * j.tile_columns
    floats, means = rooms(j.exact != 0, j.kh, j.kw, in_rows_max, in_columns_max, tile_rows, j.tile_columns)
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
            top, left = oy * j.sh - j.pad_top - y0, c * j.sw - j.pad_left - x0
            b = TileBox(planes, rows, columns, oy, c, y1 - y0, x1 - x0, top, left, columns, rows * columns)
            size_in, size_out = planes * b.high * b.wide, planes * rows * columns
            slot = j.slot_1 if parity[UB_SLOT] else j.slot_0
            x = slot + j.tile_planes * max(in_max, out_max)
            sums = x + j.tile_planes * floats
            number = sums + j.tile_planes * means
            each = most(WIDE * columns, rows, planes)
            regions = min(rows, 2 * j.kh + 1) * min(columns, 2 * j.kw + 1)
            room = (WIDE * j.kh * j.kw + regions + 3) * (each + 1) + (12 * size_in + 20 * size_out) // 2040 + 64 + 4 * planes + 2 * b.high
            if j.exact:
                _, boxes = _any_order(out, at, j, sums, x, slot, number, classes, b, True)
                room += HALF * (j.kh + j.kw + 2) * (most(HALF * b.wide, rows, planes) + 1)
                room += boxes * (room + planes * (b.high + b.wide + 8))
            if at + room >= out.shape[0]:
                return -1
            parity[UB_SLOT] ^= 1
            at = load_box(out, at, j.source, j.tag, source, p, y0 - j.in_first, b.high, j.in_w, x0, b.wide, planes, slot)
            if j.exact:
                at, _ = _any_order(out, at, j, sums, x, slot, number, classes, b, False)
            else:
                at = _in_order(out, at, j, sums, x, slot, number, classes, b, b)
            at = paced(out, at, _VCONVERT, j.dtype, j.tag, slot, sums, size_out, 1, 1, 1, WIDE, _F32)
            at = store_tile(out, at, j.dtype, j.tag, target, p, r * j.out_w + c, rows * columns, planes, slot)
    return at


@general
@njit(cache=True)
def average_rows(out: Code, at: int, w: Work, n: Node, j: Any, parity: Ints) -> int:
    """A node's records."""
    start, stop = w.computed[n.k, n.t]
    first, _ = demanded(w.reach[n.k], w.bounds, start, stop)
    j.first_row, j.rows, j.in_first = start, stop - start, first
    source, target = operand(w, n, 0, first), result(w, n, start)
    if j.chunk:
        return _whole(out, at, j, source, target, parity)
    return _windows(out, at, j, source, target, table(w, n, 0, CLASS), parity)
