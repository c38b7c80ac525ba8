"""Softmax of bytes over the channels of every pixel, on one block, in onnxruntime's order (`ir.quantised.tables.softmax`).

The greatest byte and the distance from it are found in bytes, which wrap: an exponential is the float32 of a table that the byte x - max
counts in.  Sums are rounded channel by channel.  Where the machine adds the lanes of a block one after the other, and channels lie in their
order, that is an instruction for a block; lanes that are no channel are 0 by then.  Elsewhere every lane is added alone: a block that is 1
there times exponentials, plus what all lanes have so far.  No exponential is below 0, so the new sum is the greatest of the lanes.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from numba import njit

from compiler.instructions.builders import DDR, MTE2, UB, Ints, TilePlace, copy, flat, general, vector
from compiler.instructions.conversion import WIDE, paced
from compiler.instructions.node_context import UB_SLOT, Node, Work, operand, result, table
from compiler.instructions.tiles import load_tile, over_planes, store_tile, tiles
from compiler.instructions.vector_grid import grid, most
from simulator.npu.isa import LUT_BLOCKS, MAX_REPEATS, REPEAT_BLOCKS, Op
from simulator.npu.parts import DataType
from simulator.npu.program import Code

_VFILL, _VCOPY, _VADDS, _VMULS, _VSUB, _VMUL = (int(o) for o in (Op.VFILL, Op.VCOPY, Op.VADDS, Op.VMULS, Op.VSUB, Op.VMUL))
_VMAX, _VMIN, _VDIV, _VMADD, _VLUT, _VCONVERT = (int(o) for o in (Op.VMAX, Op.VMIN, Op.VDIV, Op.VMADD, Op.VLUT, Op.VCONVERT))
_LANE_MAX, _LANE_ADD = int(Op.VLANE_MAX), int(Op.VLANE_ADD)
_F32, _U8 = int(DataType.float32), int(DataType.uint8)
TABLE = WIDE * LUT_BLOCKS  # blocks of constants: the table of exponentials,
LEAST = TABLE  # the least integer of the result in all lanes,
MASKS = LEAST + 1  # for each plane with other lanes than channels: the greatest byte in channels, else the least; 1 in channels, else 0
MASK = 1 + WIDE  # blocks of these two; behind them, where lanes are added alone, a block with a 1 in each lane
PLANE, PIXEL = 1 + WIDE, 2  # blocks of a slot: of every plane's pixel, and of a pixel beside these


class QuantisedSoftmaxJob(NamedTuple):
    """Softmax over each run of `deep` planes of `rows` rows; a tile is one of these by `tile_rows` rows.

    source: data type of x.  ordered: blocks of float32 whose lanes are added in their order; 0: every lane alone, by constants at `alone`.
    part, times, rounder, more: float32 bits; y = round(e * times / (sum * part)) + (more + rounder).  times: -1 for none.
    from_least: whether y = round() counts from the type's least integer, and has no rounder and no more.
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
    alone: int
    ordered: int
    part: int
    times: int
    from_least: int
    rounder: int
    more: int
    rows: int = 0


@njit(cache=True)
def _exponentials(out: Code, at: int, j: QuantisedSoftmaxJob, f: int, x: int, blocks: int, step: int, x_step: int) -> int:
    """f [blocks][WIDE], each `step` times that from the one before it, of bytes x [blocks], x_step apart."""
    done = 0
    while done < blocks:
        left = blocks - done
        width, repeats = (REPEAT_BLOCKS, min(MAX_REPEATS, left // REPEAT_BLOCKS)) if left >= REPEAT_BLOCKS else (left, 1)
        at = vector(
            out, at, _VLUT, _F32, j.tag, f + done * WIDE * step, x + done * x_step, j.consts, -1, width, repeats,
            step, REPEAT_BLOCKS * WIDE * step, x_step, REPEAT_BLOCKS * x_step, 0, 0, 0, 0, 0,
        )  # fmt: skip
        done += width * repeats
    return at


@njit(cache=True)
def _sums(out: Code, at: int, j: QuantisedSoftmaxJob, total: int, f: int, size: int, channels: Ints) -> int:
    """total [size] = all lanes of f [size][deep * WIDE] that are channels, added in their order."""
    apart = WIDE * j.deep
    at = flat(out, at, _VFILL, _F32, j.tag, total, -1, -1, -1, 0, 0, size, 0)
    for pixel in range(0, size, REPEAT_BLOCKS):
        width, d, s = min(REPEAT_BLOCKS, size - pixel), total + pixel, f + apart * pixel
        for first in range(0, j.ordered, MAX_REPEATS):
            repeats = min(MAX_REPEATS, j.ordered - first)
            at = vector(out, at, _LANE_ADD, _F32, j.tag, d, s + first, d, -1, width, repeats, 1, 0, apart, 1, 1, 0, 0, 0, 0)
    if j.ordered:
        return at
    for i in range(len(channels)):
        s, alone, done = f + channels[i] // 8, j.consts + j.alone + channels[i] % 8, 0
        while done < size:
            width = min(REPEAT_BLOCKS, size - done)
            repeats = min(MAX_REPEATS, (size - done) // width)
            at = vector(
                out, at, _VMADD, _F32, j.tag, total + done, s + apart * done, alone, total + done, width, repeats, 1, width,
                apart, apart * width, 0, 0, 1, width, 0,
            )  # fmt: skip
            done += width * repeats
        at = flat(out, at, _LANE_MAX, _F32, j.tag, total, total, -1, -1, 0, 0, size, 0)
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
            room = 40 + most(size, deep, 1) + most(WIDE * deep, size, 1) + deep * (10 * (4 * line + 1)) + (2 * line + 4) * min(size, deep)
            room += (size // 8 + 1) * ((deep + j.ordered) // MAX_REPEATS + 2)
            if at + room + 2 * len(channels) * line + len(padded) * (line + most(WIDE, size, 1)) >= out.shape[0]:
                return -1
            x = j.slot_1 if parity[UB_SLOT] else j.slot_0
            parity[UB_SLOT] ^= 1
            f = x + deep * tile
            top = f + WIDE * deep * tile
            total = top + tile
            wide = WIDE * deep * size
            by_pixel, spread = size < deep, WIDE * deep  # which way fills more of an instruction
            at = load_tile(out, at, j.source, j.tag, source, p, r * j.width + c, size, deep, x)
            for i in range(len(padded)):
                d, mask = x + padded[i] * size, j.consts + MASKS + MASK * i
                at = flat(out, at, _VMIN, j.source, j.tag, d, d, mask, -1, 0, 0, size, 0)
            at = over_planes(out, at, j.source, j.tag, _VMAX, top, x, size, deep)
            at = flat(out, at, _LANE_MAX, j.source, j.tag, top, top, -1, -1, 0, 0, size, 0)
            at = grid(out, at, _VSUB, j.source, j.tag, (size, deep, 1), x, (1, size, 0), x, (1, size, 0), top, (1, 0, 0), 0)
            for i in range(size if by_pixel else deep):
                if by_pixel:
                    at = _exponentials(out, at, j, f + spread * i, x + i, deep, 1, size)
                else:
                    at = _exponentials(out, at, j, f + WIDE * i, x + size * i, size, deep, 1)
            for i in range(len(padded)):
                d, mask = f + WIDE * padded[i], j.consts + MASKS + MASK * i + 1
                at = grid(out, at, _VMUL, _F32, j.tag, (WIDE, size, 1), d, (1, spread, 0), d, (1, spread, 0), mask, (1, 0, 0), 0)
            at = _sums(out, at, j, total, f, size, channels)
            at = flat(out, at, _VMULS, _F32, j.tag, total, total, -1, -1, 0, 0, size, j.part)
            if j.times != -1:
                at = flat(out, at, _VMULS, _F32, j.tag, f, f, -1, -1, 0, 0, wide, j.times)
            at = grid(out, at, _VDIV, _F32, j.tag, (spread, size, 1), f, (1, spread, 0), f, (1, spread, 0), total, (0, 1, 0), 0)
            if not j.from_least:
                at = flat(out, at, _VADDS, _F32, j.tag, f, f, -1, -1, 0, 0, wide, j.rounder)
                at = flat(out, at, _VADDS, _F32, j.tag, f, f, -1, -1, 0, 0, wide, j.more)
            to = _U8 if j.from_least else j.dtype
            for i in range(size if by_pixel else deep):
                if by_pixel:
                    at = paced(out, at, _VCONVERT, to, j.tag, x + i, f + spread * i, deep, size, size, 1, WIDE, _F32)
                else:
                    at = paced(out, at, _VCONVERT, to, j.tag, x + size * i, f + WIDE * i, size, 1, 1, deep, spread, _F32)
            if j.from_least and j.dtype != _U8:
                at = flat(out, at, _VSUB, j.dtype, j.tag, x, x, j.consts + LEAST, -1, 0, 0, deep * size, 0)
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
