"""Softmax of bytes over the channels of every pixel, on one block, in onnxruntime's order (`ir.quantised.tables.softmax`).

An exponential is a float32 from a table that the byte x - max + 255 counts in.  VLUT looks bytes up: four tables have the float's bytes,
and what two and two of them make is an exact float, then an int32; the sum of these is the float, bit by bit.  Sums are rounded channel
by channel, so every lane is added alone: a block that is 1 there times exponentials, plus what all lanes have so far.  No exponential is
below 0, so the new sum is the greatest of the lanes.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from numba import njit

from compiler.records.converting import WIDE, paced
from compiler.records.grid import grid, most
from compiler.records.node import UB_SLOT, Node, Work, operand, result, table
from compiler.records.tiles import load_tile, store_tile, tiles
from compiler.records.writers import DDR, MTE2, UB, Ints, TilePlace, copy, flat, general, vector
from simulator.npu.isa import LUT_BLOCKS, MAX_REPEATS, REPEAT_BLOCKS, Op
from simulator.npu.parts import DataType
from simulator.npu.program import Code

_VFILL, _VCOPY, _VADDS, _VMULS, _VADD, _VSUB = (int(o) for o in (Op.VFILL, Op.VCOPY, Op.VADDS, Op.VMULS, Op.VADD, Op.VSUB))
_VMAX, _VDIV, _VMADD, _VLUT, _VCONVERT = (int(o) for o in (Op.VMAX, Op.VDIV, Op.VMADD, Op.VLUT, Op.VCONVERT))
_LANE_MAX = int(Op.VLANE_MAX)
_F32, _I32, _U8 = int(DataType.float32), int(DataType.int32), int(DataType.uint8)
TABLES = WIDE * LUT_BLOCKS  # blocks of constants: tables of the floats' bytes, the highest first,
ONES = 8  # then a block with a 1 in each lane,
CONSTANTS = TABLES + ONES + 1  # 256, and what is added to lanes of planes, which is 0 in channels
PLANE, PIXEL = 1 + WIDE, 2 * WIDE + 1 + 2  # blocks of a slot: of every plane's pixel, and of a pixel beside these


class QuantisedSoftmaxJob(NamedTuple):
    """Softmax over each run of `deep` planes of `rows` rows; a tile is one of these by `tile_rows` rows.

    source: data type of x.  times, more, rounder: float32 bits; y = round(e * times / sum) + (more + rounder).
    consts: UB address of constants; consts_at: their DDR address where they come with the planes of a tile, else -1.
    """

    dtype: int
    source: int
    tag: int
    planes: int
    deep: int
    width: int
    tile_rows: int
    tile_columns: int
    slot_0: int
    slot_1: int
    consts: int
    consts_at: int
    const_blocks: int
    below: int  # float32 bits of -255
    high: int  # float32 bits of 65536
    times: int
    rounder: int
    more: int
    rows: int = 0


@njit(cache=True)
def _exponentials(out: Code, at: int, j: QuantisedSoftmaxJob, f: int, x: int, g: int, size: int) -> int:
    """f [size][4], floats of a plane, from bytes x [size]; g: two such buffers, then one of bytes, that are free."""
    h, found, wide = g + WIDE * size, g + 2 * WIDE * size, WIDE * size
    number = j.consts + TABLES + ONES
    for half in range(2):
        first, second = (g, h) if half else (f, g)
        for part in range(2):
            d = second if part else first
            at = flat(out, at, _VLUT, _U8, j.tag, found, x, j.consts + (2 * half + part) * LUT_BLOCKS, -1, 0, 0, size, 0)
            at = paced(out, at, _VCONVERT, _F32, j.tag, d, found, size, 1, WIDE, 1, 1, _U8)
        at = flat(out, at, _VMADD, _F32, j.tag, first, first, number, second, 0, 1, wide, 0)
        if half == 0:
            at = flat(out, at, _VMULS, _F32, j.tag, first, first, -1, -1, 0, 0, wide, j.high)
        at = flat(out, at, _VCONVERT, _I32, j.tag, first, first, -1, -1, 0, 0, wide, _F32)
    return flat(out, at, _VADD, _I32, j.tag, f, f, g, -1, 1, 0, wide, 0)


@njit(cache=True)
def _added(out: Code, at: int, tag: int, total: int, s: int, alone: int, size: int) -> int:
    """total [size] += the block `alone` times every fourth block from s on."""
    done = 0
    while done < size:
        width = min(REPEAT_BLOCKS, size - done)
        repeats = min(MAX_REPEATS, (size - done) // width)
        at = vector(
            out, at, _VMADD, _F32, tag, total + done, s + WIDE * done, alone, total + done, width, repeats, 1, width, WIDE, WIDE * width,
            0, 0, 1, width, 0,
        )  # fmt: skip
        done += width * repeats
    return at


@njit(cache=True)
def _emit(
    out: Code, at: int, j: QuantisedSoftmaxJob, source: TilePlace, target: TilePlace, channels: Ints, padded: Ints, parity: Ints
) -> int:
    count, across, tile_rows = tiles(j.rows, j.tile_rows, j.width, j.tile_columns)
    deep, tile = j.deep, tile_rows * j.tile_columns
    for p in range(0, j.planes, deep):
        if at >= out.shape[0]:
            return -1
        if j.consts_at >= 0:
            at = copy(out, at, j.dtype, j.tag, MTE2, DDR, UB, j.consts_at, j.consts, j.const_blocks, 1, 0, 0, 1, 0, 0)
        for piece in range(count):
            r, c = piece // across * tile_rows, piece % across * j.tile_columns
            size = min(tile_rows, j.rows - r) * min(j.tile_columns, j.width - c)
            line = size // 2040 + 2
            room = 40 + (4 + deep) * most(size, WIDE, deep) + deep * (40 * (4 * line + 1)) + 2 * len(channels) * line
            if at + room >= out.shape[0]:
                return -1
            x = j.slot_1 if parity[UB_SLOT] else j.slot_0
            parity[UB_SLOT] ^= 1
            f = x + deep * tile
            free = f + WIDE * deep * tile
            top = free + (2 * WIDE + 1) * tile
            total = top + tile
            wide = WIDE * deep * size
            n, spread, each = (size, WIDE, deep), (WIDE, 1, WIDE * size), (1, 0, 0)
            at = load_tile(out, at, j.source, j.tag, source, p, r * j.width + c, size, deep, x)
            at = paced(out, at, _VCONVERT, _F32, j.tag, f, x, deep * size, 1, WIDE, 1, 1, j.source)
            for i in range(len(padded)):
                d, mask = f + WIDE * padded[i] * size, j.consts + CONSTANTS + WIDE * i
                of_plane = (size, WIDE, 1)
                at = grid(out, at, _VADD, _F32, j.tag, of_plane, d, (WIDE, 1, 0), d, (WIDE, 1, 0), mask, (0, 1, 0), 0)
            line_of, dense_line, apart = (size, 1, 1), (1, 0, 0), (WIDE, 0, 0)
            at = grid(out, at, _VCOPY, _F32, j.tag, line_of, top, dense_line, f, apart, -1, apart, 0)
            for k in range(1, deep * WIDE):
                s = f + k // WIDE * WIDE * size + k % WIDE
                at = grid(out, at, _VMAX, _F32, j.tag, line_of, top, dense_line, top, dense_line, s, apart, 0)
            at = flat(out, at, _LANE_MAX, _F32, j.tag, top, top, -1, -1, 0, 0, size, 0)
            at = flat(out, at, _VADDS, _F32, j.tag, top, top, -1, -1, 0, 0, size, j.below)
            at = grid(out, at, _VSUB, _F32, j.tag, n, f, spread, f, spread, top, each, 0)
            at = paced(out, at, _VCONVERT, _U8, j.tag, x, f, deep * size, 1, 1, 1, WIDE, _F32)
            for plane in range(deep):
                at = _exponentials(out, at, j, f + WIDE * plane * size, x + plane * size, free, size)
            at = flat(out, at, _VFILL, _F32, j.tag, total, -1, -1, -1, 0, 0, size, 0)
            for i in range(len(channels)):
                block, lane = channels[i] // 8, channels[i] % 8
                s, alone = f + block // WIDE * WIDE * size + block % WIDE, j.consts + TABLES + lane
                at = _added(out, at, j.tag, total, s, alone, size)
                at = flat(out, at, _LANE_MAX, _F32, j.tag, total, total, -1, -1, 0, 0, size, 0)
            at = flat(out, at, _VMULS, _F32, j.tag, f, f, -1, -1, 0, 0, wide, j.times)
            at = grid(out, at, _VDIV, _F32, j.tag, n, f, spread, f, spread, total, each, 0)
            at = flat(out, at, _VADDS, _F32, j.tag, f, f, -1, -1, 0, 0, wide, j.rounder)
            at = flat(out, at, _VADDS, _F32, j.tag, f, f, -1, -1, 0, 0, wide, j.more)
            at = paced(out, at, _VCONVERT, j.dtype, j.tag, x, f, deep * size, 1, 1, 1, WIDE, _F32)
            at = store_tile(out, at, j.dtype, j.tag, target, p, r * j.width + c, size, deep, x)
    return at


@general
@njit(cache=True)
def quantised_softmax_rows(out: Code, at: int, w: Work, n: Node, j: Any, parity: Ints) -> int:
    """A node's records."""
    start, stop = w.computed[n.k, n.t]
    j.rows = stop - start
    channels, padded = table(w, n, 0, 1)[:, 0], table(w, n, 1, 1)[:, 0]
    return _emit(out, at, j, operand(w, n, 0, start), result(w, n, start), channels, padded, parity)
