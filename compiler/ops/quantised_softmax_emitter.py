"""Softmax of bytes over the channels of every pixel, on one block, in onnxruntime's order (`ir.quantised.tables.softmax`).

The greatest byte and the distance from it are found in bytes, which wrap: an exponential is the float32 of a table that the byte x - max
counts in.  Sums are rounded channel by channel.  Where the machine adds the lanes of a block one after the other, and channels lie in their
order, that is an instruction for a block; lanes that are no channel are 0 by then.  Elsewhere every lane is added alone: a block that is 1
there times exponentials, plus what all lanes have so far.  No exponential is below 0, so the new sum is the greatest of the lanes.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from numba import njit

from compiler.instructions.builders import DDR, MTE2, UB, Ints, TilePlace, compile_once, copy, flat, vector
from compiler.instructions.conversion import WIDE, stride_blocks
from compiler.instructions.node_context import UB_SLOT, Node, Work, locate_operand, locate_result, read_table
from compiler.instructions.tiles import count_tiles, load_tile, reduce_planes, store_tile
from compiler.instructions.vector_grid import grid, max_instructions
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

    source: data type of x.  ordered: blocks of float32 whose lanes are added in their order; 0: lanes one by one, from `lane_constants` on.
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
    lane_constants: int
    ordered: int
    part: int
    times: int
    from_least: int
    rounder: int
    more: int
    rows: int = 0


@njit(cache=True)
def _exponentials(out: Code, cursor: int, job: QuantisedSoftmaxJob, floats: int, source: int, blocks: int, step: int, x_step: int) -> int:
    """floats [blocks][WIDE], `step` times that apart, from bytes source [blocks], x_step apart, by the table of exponentials."""
    done = 0
    while done < blocks:
        remaining = blocks - done
        width, repeats = (REPEAT_BLOCKS, min(MAX_REPEATS, remaining // REPEAT_BLOCKS)) if remaining >= REPEAT_BLOCKS else (remaining, 1)
        cursor = vector(
            out, cursor, _VLUT, _F32, job.tag, floats + done * WIDE * step, source + done * x_step, job.consts, -1, width, repeats,
            step, REPEAT_BLOCKS * WIDE * step, x_step, REPEAT_BLOCKS * x_step, 0, 0, 0, 0, 0,
        )  # fmt: skip
        done += width * repeats
    return cursor


@njit(cache=True)
def _sums(out: Code, cursor: int, job: QuantisedSoftmaxJob, total: int, floats: int, size: int, channels: Ints) -> int:
    """total [size] = all lanes of floats [size][deep * WIDE] that are channels, added in their order."""
    pixel_pitch = WIDE * job.deep
    cursor = flat(out, cursor, _VFILL, _F32, job.tag, total, -1, -1, -1, 0, 0, size, 0)
    for pixel in range(0, size, REPEAT_BLOCKS):
        width, d, s = min(REPEAT_BLOCKS, size - pixel), total + pixel, floats + pixel_pitch * pixel
        for first in range(0, job.ordered, MAX_REPEATS):
            repeats = min(MAX_REPEATS, job.ordered - first)
            cursor = vector(out, cursor, _LANE_ADD, _F32, job.tag, d, s + first, d, -1, width, repeats, 1, 0, pixel_pitch, 1, 1, 0, 0, 0, 0)
    if job.ordered:
        return cursor
    for i in range(len(channels)):
        s, lane_mask, done = floats + channels[i] // 8, job.consts + job.lane_constants + channels[i] % 8, 0
        while done < size:
            width = min(REPEAT_BLOCKS, size - done)
            repeats = min(MAX_REPEATS, (size - done) // width)
            cursor = vector(
                out, cursor, _VMADD, _F32, job.tag, total + done, s + pixel_pitch * done, lane_mask, total + done, width, repeats, 1, width,
                pixel_pitch, pixel_pitch * width, 0, 0, 1, width, 0,
            )  # fmt: skip
            done += width * repeats
        cursor = flat(out, cursor, _LANE_MAX, _F32, job.tag, total, total, -1, -1, 0, 0, size, 0)
    return cursor


@njit(cache=True)
def _emit(
    out: Code, cursor: int, job: QuantisedSoftmaxJob, source: TilePlace, target: TilePlace, channels: Ints, padded: Ints, parity: Ints
) -> int:
    count, across, tile_rows = count_tiles(job.rows, job.tile_rows, job.width, job.tile_columns)
    deep, tile = job.deep, tile_rows * job.tile_columns
    for p in range(0, job.planes, deep):
        if cursor >= out.shape[0]:
            return -1
        if job.consts_at >= 0:
            cursor = copy(out, cursor, job.dtype, job.tag, MTE2, DDR, UB, job.consts_at, job.consts, job.const_blocks, 1, 0, 0, 1, 0, 0)
        for piece in range(count):
            r, c = piece // across * tile_rows, piece % across * job.tile_columns
            size = min(tile_rows, job.rows - r) * min(job.tile_columns, job.width - c)
            line = size // 2040 + 2
            room = (
                40
                + max_instructions(size, deep, 1)
                + max_instructions(WIDE * deep, size, 1)
                + deep * (10 * (4 * line + 1))
                + (2 * line + 4) * min(size, deep)
            )
            room += (size // 8 + 1) * ((deep + job.ordered) // MAX_REPEATS + 2)
            if cursor + room + 2 * len(channels) * line + len(padded) * (line + max_instructions(WIDE, size, 1)) >= out.shape[0]:
                return -1
            x = job.slot_1 if parity[UB_SLOT] else job.slot_0
            parity[UB_SLOT] ^= 1
            f = x + deep * tile
            top = f + WIDE * deep * tile
            total = top + tile
            wide = WIDE * deep * size
            by_pixel, spread = size < deep, WIDE * deep  # which way fills more of an instruction
            # bytes minus their greatest, exponentials, sums, quotients, bytes again
            cursor = load_tile(out, cursor, job.source, job.tag, source, p, r * job.width + c, size, deep, x)
            for i in range(len(padded)):
                d, mask = x + padded[i] * size, job.consts + MASKS + MASK * i
                cursor = flat(out, cursor, _VMIN, job.source, job.tag, d, d, mask, -1, 0, 0, size, 0)
            cursor = reduce_planes(out, cursor, job.source, job.tag, _VMAX, top, x, size, deep)
            cursor = flat(out, cursor, _LANE_MAX, job.source, job.tag, top, top, -1, -1, 0, 0, size, 0)
            cursor = grid(out, cursor, _VSUB, job.source, job.tag, (size, deep, 1), x, (1, size, 0), x, (1, size, 0), top, (1, 0, 0), 0)
            for i in range(size if by_pixel else deep):
                if by_pixel:
                    cursor = _exponentials(out, cursor, job, f + spread * i, x + i, deep, 1, size)
                else:
                    cursor = _exponentials(out, cursor, job, f + WIDE * i, x + size * i, size, deep, 1)
            for i in range(len(padded)):
                d, mask = f + WIDE * padded[i], job.consts + MASKS + MASK * i + 1
                cursor = grid(out, cursor, _VMUL, _F32, job.tag, (WIDE, size, 1), d, (1, spread, 0), d, (1, spread, 0), mask, (1, 0, 0), 0)
            cursor = _sums(out, cursor, job, total, f, size, channels)
            cursor = flat(out, cursor, _VMULS, _F32, job.tag, total, total, -1, -1, 0, 0, size, job.part)
            if job.times != -1:
                cursor = flat(out, cursor, _VMULS, _F32, job.tag, f, f, -1, -1, 0, 0, wide, job.times)
            cursor = grid(out, cursor, _VDIV, _F32, job.tag, (spread, size, 1), f, (1, spread, 0), f, (1, spread, 0), total, (0, 1, 0), 0)
            if not job.from_least:
                cursor = flat(out, cursor, _VADDS, _F32, job.tag, f, f, -1, -1, 0, 0, wide, job.rounder)
                cursor = flat(out, cursor, _VADDS, _F32, job.tag, f, f, -1, -1, 0, 0, wide, job.more)
            to = _U8 if job.from_least else job.dtype
            for i in range(size if by_pixel else deep):
                if by_pixel:
                    cursor = stride_blocks(out, cursor, _VCONVERT, to, job.tag, x + i, f + spread * i, deep, size, size, 1, WIDE, _F32)
                else:
                    cursor = stride_blocks(out, cursor, _VCONVERT, to, job.tag, x + size * i, f + WIDE * i, size, 1, 1, deep, spread, _F32)
            if job.from_least and job.dtype != _U8:
                cursor = flat(out, cursor, _VSUB, job.dtype, job.tag, x, x, job.consts + LEAST, -1, 0, 0, deep * size, 0)
            cursor = store_tile(out, cursor, job.dtype, job.tag, target, p, r * job.width + c, size, deep, x)
    return cursor


@compile_once
@njit(cache=True)
def quantised_softmax_rows(out: Code, cursor: int, work: Work, node: Node, job: Any, parity: Ints) -> int:
    """A node's records."""
    start, stop = work.computed[node.k, node.t]
    job.rows = stop - start
    channels, padded = read_table(work, node, 0, 1)[:, 0], read_table(work, node, 1, 1)[:, 0]
    return _emit(out, cursor, job, locate_operand(work, node, 0, start), locate_result(work, node, start), channels, padded, parity)
