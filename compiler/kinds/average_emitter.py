"""Average pools of bytes, in float32 and in the order of `ir.quantised.pooling`.

A window's values are added one after the other, row by row: another order would round otherwise.  A window that is the whole image adds
integers, which float32 holds whatever the order: pixels come some at a time and are added place by place, then halves of the places to
each other.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from numba import njit

from compiler.ir.reach import demanded
from compiler.records.converting import WIDE, paced
from compiler.records.grid import Axes, grid, most
from compiler.records.node import UB_SLOT, Node, Work, operand, result, table
from compiler.records.tiles import load_box, load_tile, store_tile, tiles
from compiler.records.writers import Ints, TilePlace, flat, general
from simulator.npu.isa import Op
from simulator.npu.parts import DataType
from simulator.npu.program import Code

_VFILL, _VADDS, _VMULS, _VMAXS, _VMINS = (int(o) for o in (Op.VFILL, Op.VADDS, Op.VMULS, Op.VMAXS, Op.VMINS))
_VADD, _VDIV, _VCONVERT = (int(o) for o in (Op.VADD, Op.VDIV, Op.VCONVERT))
_F32 = int(DataType.float32)
CONSTANTS = 2  # blocks of a slot: the number of values, the scale of the result
_LINE = (1, 0, 0)


class AverageJob(NamedTuple):
    """Averages of `rows` output rows starting at output row `first_row` of the tensor; in_first: the input row at `source.base`.

    chunk: pixels that are added at a time where one window is the whole image, else 0.  padded: whether padding counts.
    less, times, over, more: float32 bits; v = (x + less) * times, the mean over `over`, + more.  Of the whole image (sum + less) * times
    between low and high, rounded, + more.
    rounder, back: float32 bits of what is added so that an integer is left, and after it.
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
    less: int
    times: int
    over: int
    more: int
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


@njit(cache=True)
def _inside(first: int, taps: int, length: int) -> int:
    """How many of the taps from `first` on lie in an axis."""
    return min(first + taps, length) - max(first, 0)


@njit(cache=True)
def _results(first: int, stride: int, length: int, results: int) -> tuple[int, int]:
    """Results [begin, end) whose place first + i * stride lies in an axis."""
    begin = min(results, max(0, -(first // stride)))
    return begin, max(begin, min(results, (length - 1 - first) // stride + 1))


@njit(cache=True)
def _sums(
    out: Code, at: int, j: AverageJob, d: int, s: int, planes: int, rows: int, columns: int, high: int, wide: int, top: int, left: int
) -> int:  # fmt: skip
    """d [planes][rows][columns] of windows of s [planes][high][wide], of which the first begins at row `top` and column `left` of it."""
    size_in, size_out = WIDE * high * wide, WIDE * rows * columns
    at = flat(out, at, _VFILL, _F32, j.tag, d, -1, -1, -1, 0, 0, planes * size_out, 0)
    # of neighbours, the four blocks of a pixel and those of the next one are one axis
    together = j.sw == 1
    for ky in range(j.kh):
        y0, y1 = _results(top + ky, j.sh, high, rows)
        for kx in range(j.kw):
            x0, x1 = _results(left + kx, j.sw, wide, columns)
            if y1 <= y0 or x1 <= x0:
                continue
            n: Axes = (WIDE * (x1 - x0), y1 - y0, planes) if together else (x1 - x0, y1 - y0, planes)
            ds: Axes = (1 if together else WIDE, WIDE * columns, size_out)
            ss: Axes = (1 if together else WIDE * j.sw, WIDE * wide * j.sh, size_in)
            to = d + WIDE * (y0 * columns + x0)
            of = s + WIDE * ((top + ky + y0 * j.sh) * wide + left + kx + x0 * j.sw)
            for part in range(1 if together else WIDE):
                at = grid(out, at, _VADD, _F32, j.tag, n, to + part, ds, to + part, ds, of + part, ss, 0)
    return at


@njit(cache=True)
def _means(
    out: Code, at: int, j: AverageJob, d: int, number: int, counts: Ints, planes: int, rows: int, columns: int, oy: int, ox: int
) -> int:  # fmt: skip
    """d over how many values each of its windows has, which is the same for many of them.  number: where a block is free for it."""
    size = WIDE * rows * columns
    r = 0
    while r < rows:
        tall, below = j.kh, rows
        if not j.padded:
            tall, below = _inside((oy + r) * j.sh - j.pad_top, j.kh, j.in_h), r + 1
            while below < rows and _inside((oy + below) * j.sh - j.pad_top, j.kh, j.in_h) == tall:
                below += 1
        c = 0
        while c < columns:
            wide, behind = j.kw, columns
            if not j.padded:
                wide, behind = _inside((ox + c) * j.sw - j.pad_left, j.kw, j.in_w), c + 1
                while behind < columns and _inside((ox + behind) * j.sw - j.pad_left, j.kw, j.in_w) == wide:
                    behind += 1
            at = flat(out, at, _VFILL, _F32, j.tag, number, -1, -1, -1, 0, 0, 1, counts[tall * wide, 0])
            to, ds = d + WIDE * (r * columns + c), (1, WIDE * columns, size)
            at = grid(
                out, at, _VDIV, _F32, j.tag, (WIDE * (behind - c), below - r, planes), to, ds, to, ds, number, (0, 0, 0), 0,
            )  # fmt: skip
            c = behind
        r = below
    return at


@njit(cache=True)
def _whole(out: Code, at: int, j: AverageJob, source: TilePlace, target: TilePlace, parity: Ints) -> int:
    """The mean of all pixels.  A slot: pixels, what they are in float32, sums [planes][chunk], results; sums stay in the first slot."""
    pixels, chunk = j.in_h * j.in_w, j.chunk
    for p in range(0, j.planes, j.tile_planes):
        planes = min(j.tile_planes, j.planes - p)
        room = (pixels // chunk + 1) * planes * (4 + chunk // 4) + 40 * (6 + most(WIDE * chunk, planes, 1))
        if at + room >= out.shape[0]:
            return -1
        one = WIDE * chunk
        first = (j.slot_1 if parity[UB_SLOT] else j.slot_0) + j.tile_planes * chunk
        sums = first + j.tile_planes * one
        for begin in range(0, pixels, chunk):
            slot = j.slot_1 if parity[UB_SLOT] else j.slot_0
            parity[UB_SLOT] ^= 1
            size = min(chunk, pixels - begin)
            at = load_tile(out, at, j.source, j.tag, source, p, begin, size, planes, slot)
            wide = sums if begin == 0 else slot + j.tile_planes * chunk
            for plane in range(planes):
                at = paced(
                    out, at, _VCONVERT, _F32, j.tag, wide + plane * one, slot + plane * size, size, 1, WIDE, 1, 1, j.source,
                )  # fmt: skip
            if begin > 0:
                apart: Axes = (1, one, 0)
                at = grid(out, at, _VADD, _F32, j.tag, (WIDE * size, planes, 1), sums, apart, sums, apart, wide, apart, 0)
        left = min(chunk, pixels)
        while left > 1:
            half = left // 2
            behind = sums + WIDE * (left - half)
            at = grid(out, at, _VADD, _F32, j.tag, (WIDE * half, planes, 1), sums, (1, one, 0), sums, (1, one, 0), behind, (1, one, 0), 0)
            left -= half
        # one after the other
        at = grid(out, at, _VADDS, _F32, j.tag, (WIDE, planes, 1), first, (1, WIDE, 0), sums, (1, one, 0), -1, _LINE, j.less)
        y = sums + j.tile_planes * one
        at = flat(out, at, _VMULS, _F32, j.tag, first, first, -1, -1, 0, 0, WIDE * planes, j.times)
        at = flat(out, at, _VMAXS, _F32, j.tag, first, first, -1, -1, 0, 0, WIDE * planes, j.low)
        at = flat(out, at, _VMINS, _F32, j.tag, first, first, -1, -1, 0, 0, WIDE * planes, j.high)
        at = flat(out, at, _VADDS, _F32, j.tag, first, first, -1, -1, 0, 0, WIDE * planes, j.rounder)
        at = flat(out, at, _VADDS, _F32, j.tag, first, first, -1, -1, 0, 0, WIDE * planes, j.more)
        at = paced(out, at, _VCONVERT, j.dtype, j.tag, y, first, planes, 1, 1, 1, WIDE, _F32)
        at = store_tile(out, at, j.dtype, j.tag, target, p, 0, 1, planes, y)
    return at


@njit(cache=True)
def _windows(out: Code, at: int, j: AverageJob, source: TilePlace, target: TilePlace, counts: Ints, parity: Ints) -> int:
    """A slot: pixels or results, pixels in float32, sums, CONSTANTS blocks."""
    count, across, tile_rows = tiles(j.rows, j.tile_rows, j.out_w, j.tile_columns)
    in_rows_max = (tile_rows - 1) * j.sh + j.kh
    in_columns_max = j.in_w if across == 1 else min(j.in_w, (j.tile_columns - 1) * j.sw + j.kw)
    in_max, out_max = in_rows_max * in_columns_max, tile_rows * j.tile_columns
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
            high, wide = y1 - y0, x1 - x0
            size_in, size_out = planes * high * wide, planes * rows * columns
            each = most(WIDE * columns, rows, planes)
            regions = 1 if j.padded else min(rows, 2 * j.kh + 1) * min(columns, 2 * j.kw + 1)
            room = (WIDE * j.kh * j.kw + regions) * (each + 1) + (12 * size_in + 20 * size_out) // 2040 + 64 + 4 * planes + 2 * high
            if at + room >= out.shape[0]:
                return -1
            slot = j.slot_1 if parity[UB_SLOT] else j.slot_0
            parity[UB_SLOT] ^= 1
            x = slot + j.tile_planes * max(in_max, out_max)
            sums = x + j.tile_planes * WIDE * in_max
            number = sums + j.tile_planes * WIDE * out_max
            at = load_box(out, at, j.source, j.tag, source, p, y0 - j.in_first, high, j.in_w, x0, wide, planes, slot)
            at = paced(out, at, _VCONVERT, _F32, j.tag, x, slot, size_in, 1, WIDE, 1, 1, j.source)
            at = flat(out, at, _VADDS, _F32, j.tag, x, x, -1, -1, 0, 0, WIDE * size_in, j.less)
            at = flat(out, at, _VMULS, _F32, j.tag, x, x, -1, -1, 0, 0, WIDE * size_in, j.times)
            at = _sums(out, at, j, sums, x, planes, rows, columns, high, wide, oy * j.sh - j.pad_top - y0, c * j.sw - j.pad_left - x0)
            at = _means(out, at, j, sums, number, counts, planes, rows, columns, oy, c)
            at = flat(out, at, _VFILL, _F32, j.tag, number + 1, -1, -1, -1, 0, 0, 1, j.over)
            at = flat(out, at, _VDIV, _F32, j.tag, sums, sums, number + 1, -1, 0, 0, WIDE * size_out, 0)
            at = flat(out, at, _VADDS, _F32, j.tag, sums, sums, -1, -1, 0, 0, WIDE * size_out, j.more)
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
    return _windows(out, at, j, source, target, table(w, n, 0, 1), parity)
