"""Element-wise steps on operands of several types on one block: tiles in, steps on UB, tiles out (`instructions.tiles`).

A pixel of every channel beside an image lies behind the buffers of the tile: in float32 twice, which is what a repeat takes of it.
Constants of every channel are such pixels: they come as float32 and are copied twice.

Steps work in float32 on four blocks beside each other for every block of 32 bytes, which is how VCONVERT has them.  Floats lie in planes of
their own outside, two (float16) or four (float32) for a plane of bytes, so their blocks are spread among those four, or gathered from them.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit

from compiler.instructions.builders import DDR, MTE2, UB, Ints, TilePlace, compile_once, copy, flat, vector
from compiler.instructions.conversion import WIDE, stride_blocks
from compiler.instructions.node_context import UB_SLOT, Node, Work, count_operands, locate_operand, locate_result, read_table
from compiler.instructions.tiles import count_tiles, load_tile, store_tile
from simulator.npu.isa import MAX_REPEATS, REPEAT_BLOCKS
from simulator.npu.program import Code

FLAT, CONVERT, SPREAD, GATHER, BESIDE, TWICE, COPIED = range(7)  # how a step goes over a tile
PIXELS = 1 << 20  # buffers from here on are of one pixel
PIXEL_BLOCKS = REPEAT_BLOCKS  # of one in float32
CHANNELS = -(1 << 20)  # CHANNELS - i: block i of a plane's constants
_MOST = REPEAT_BLOCKS * MAX_REPEATS


class TypedJob(NamedTuple):
    """Steps on `rows` rows of `width` blocks and `planes` planes of the result, `together` of which are one plane of bytes.

    blocks: of the buffers, for a block of bytes.
    consts: UB address of constants; consts_at: their DDR address where they come with the planes of a tile, else -1.
    const_blocks: of a plane of bytes where they are the channels', else of all.
    """

    dtype: int
    tag: int
    planes: int
    width: int
    together: int
    blocks: int
    tile_planes: int
    tile_rows: int
    tile_columns: int
    slot_0: int
    slot_1: int
    consts: int
    consts_at: int
    const_blocks: int
    by_channel: int
    result: int
    rows: int = 0


@njit(cache=True)
def _at(job: TypedJob, operand: int, slot: int, tile: int, consts: int) -> int:
    """Address of an operand of a step; -1 without one.  consts: those of the tile's first plane, or of all."""
    if operand <= CHANNELS:
        return consts + CHANNELS - operand
    if operand >= PIXELS:
        return slot + job.blocks * tile + (operand - PIXELS) * (job.tile_planes // job.together)
    return slot + operand * tile if operand >= 0 else consts - 2 - operand if operand < -1 else -1


@njit(cache=True)
def _apart(operand: int, size: int) -> tuple[int, int, int]:
    """Blocks of an operand from plane to plane, from one repeat to the next, and from block to block."""
    return (PIXEL_BLOCKS, 0, 1) if operand >= PIXELS else (size, REPEAT_BLOCKS, 1) if operand >= 0 else (0, 0, 0)


@njit(cache=True)
def _beside(out: Code, cursor: int, job: TypedJob, step: Ints, slot: int, tile: int, deep: int, size: int, consts: int) -> int:
    """Emit a step with operands of one pixel, plane by plane of `size` blocks."""
    _, op, dtype, d, s, s1, s2, imm, _, _ = step
    d0, a0, b0, c0 = (
        _at(job, d, slot, tile, consts),
        _at(job, s, slot, tile, consts),
        _at(job, s1, slot, tile, consts),
        _at(job, s2, slot, tile, consts),
    )
    (ap, ar, ab), (bp, br, bb), (cp, cr, cb) = _apart(s, size), _apart(s1, size), _apart(s2, size)
    for plane in range(deep):
        done = 0
        while done < size:
            remaining = size - done
            width = min(REPEAT_BLOCKS, remaining)
            repeats, k = min(MAX_REPEATS, remaining // width), done // REPEAT_BLOCKS
            cursor = vector(
                out, cursor, op, dtype, job.tag, d0 + plane * size + done, a0 + plane * ap + k * ar,
                b0 + plane * bp + k * br if b0 >= 0 else -1, c0 + plane * cp + k * cr if c0 >= 0 else -1,
                width, repeats, 1, REPEAT_BLOCKS, ab, ar, bb, br, cb, cr, imm,
            )  # fmt: skip
            done += width * repeats
    return cursor


@njit(cache=True)
def _step(out: Code, cursor: int, job: TypedJob, step: Ints, slot: int, tile: int, deep: int, size: int, consts: int) -> int:
    """Emit a step.  step: see `TypedSpec`.  tile: blocks of bytes of a whole tile; deep x size of them are worked on."""
    if step[0] == BESIDE:
        return _beside(out, cursor, job, step, slot, tile, deep, size * WIDE, consts)
    mode, op, dtype, d, s, s1, s2, imm, d_factor, s_factor = step
    if d >= PIXELS:
        size = 1
    d, s, blocks = _at(job, d, slot, tile, consts), _at(job, s, slot, tile, consts), deep * size
    if mode == COPIED:
        for half in range(2):
            for plane in range(0, deep, MAX_REPEATS):
                cursor = vector(
                    out, cursor, op, dtype, job.tag, d + plane * PIXEL_BLOCKS + half * WIDE, s + plane * job.const_blocks, -1, -1, WIDE,
                    min(MAX_REPEATS, deep - plane), 1, PIXEL_BLOCKS, 1, job.const_blocks, 0, 0, 0, 0, imm,
                )  # fmt: skip
        return cursor
    if mode == FLAT:
        first, second = _at(job, s1, slot, tile, consts), _at(job, s2, slot, tile, consts)
        return flat(out, cursor, op, dtype, job.tag, d, s, first, second, int(s1 >= 0), int(s2 >= 0), blocks * d_factor, imm)
    if mode == CONVERT:
        return stride_blocks(out, cursor, op, dtype, job.tag, d, s, blocks, 1, d_factor, 1, s_factor, imm)
    if mode == TWICE:
        for plane in range(0, deep, MAX_REPEATS):
            cursor = vector(
                out, cursor, op, dtype, job.tag, d + plane * PIXEL_BLOCKS, s + plane, -1, -1, 2, min(MAX_REPEATS, deep - plane), 1,
                PIXEL_BLOCKS, 0, 1, 0, 0, 0, 0, imm,
            )  # fmt: skip
        return cursor
    # planes of floats for one of bytes, and blocks of them that lie beside each other
    plane_count, beside = (s_factor, d_factor) if mode == SPREAD else (d_factor, s_factor)
    for part in range(deep * plane_count):
        plane, inside = part // plane_count, part % plane_count * (beside // plane_count)
        wide, narrow = plane * size * beside + inside, part * size
        if mode == SPREAD:
            cursor = stride_blocks(out, cursor, op, dtype, job.tag, d + wide, s + narrow, size, plane_count, beside, 1, 1, imm)
        else:
            cursor = stride_blocks(out, cursor, op, dtype, job.tag, d + narrow, s + wide, size, 1, 1, plane_count, beside, imm)
    return cursor


@njit(cache=True)
def emit_typed(out: Code, cursor: int, job: TypedJob, sources: Ints, target: TilePlace, steps: Ints, inputs: Ints, parity: Ints) -> int:
    """Emit tiles.  sources: int64 [inputs, 7] of Place fields.  inputs: int64 [inputs, 4], see `TypedSpec`.  Returns the next row or -1."""
    count, across, tile_rows = count_tiles(job.rows, job.tile_rows, job.width, job.tile_columns)
    tile_blocks = job.tile_planes // job.together * tile_rows * job.tile_columns
    for p in range(0, job.planes, job.tile_planes):
        deep = min(job.tile_planes, job.planes - p) // job.together
        if cursor >= out.shape[0]:
            return -1
        consts, first_block, blocks = job.consts, 0, job.const_blocks
        if job.by_channel:
            first_block, blocks = p // job.together * blocks, deep * blocks
        if job.consts_at >= 0:
            cursor = copy(out, cursor, job.dtype, job.tag, MTE2, DDR, UB, job.consts_at + first_block, consts, blocks, 1, 0, 0, 1, 0, 0)
        else:
            consts += first_block
        for tile in range(count):
            r, c = tile // across * tile_rows, tile % across * job.tile_columns
            size = min(tile_rows, job.rows - r) * min(job.tile_columns, job.width - c)
            if cursor + 2 * inputs.shape[0] + 4 + steps.shape[0] * (deep * WIDE + 1) * (WIDE * tile_blocks // _MOST + 2) >= out.shape[0]:
                return -1
            slot = job.slot_1 if parity[UB_SLOT] else job.slot_0
            parity[UB_SLOT] ^= 1
            first = r * job.width + c
            for i in range(inputs.shape[0]):
                fields = sources[i]
                place = TilePlace(fields[0], fields[1], fields[2], fields[3], fields[4], fields[5], fields[6])
                buffer, planes, dtype, pixel = inputs[i]
                begin, pixels = (0, 1) if pixel else (first, size)
                cursor = load_tile(
                    out, cursor, dtype, job.tag, place, p // job.together * planes, begin, pixels, deep * planes,
                    _at(job, buffer, slot, tile_blocks, 0),
                )  # fmt: skip
            for k in range(steps.shape[0]):
                cursor = _step(out, cursor, job, steps[k], slot, tile_blocks, deep, size, consts)
            cursor = store_tile(
                out, cursor, job.dtype, job.tag, target, p, first, size, deep * job.together, _at(job, job.result, slot, tile_blocks, 0)
            )
    return cursor


@compile_once
@njit(cache=True)
def typed_rows(out: Code, cursor: int, work: Work, node: Node, job: Any, parity: Ints) -> int:
    """A node's records."""
    start, stop = work.computed[node.k, node.t]
    job.rows = stop - start
    sources = np.empty((count_operands(work, node), 7), np.int64)
    for i in range(sources.shape[0]):
        place = locate_operand(work, node, i, start)
        sources[i, 0], sources[i, 1], sources[i, 2], sources[i, 3] = place.memory, place.base, place.plane, place.wrap
        sources[i, 4], sources[i, 5], sources[i, 6] = place.back, place.width, place.gap
    return emit_typed(
        out, cursor, job, sources, locate_result(work, node, start), read_table(work, node, 0, 10), read_table(work, node, 1, 4), parity
    )
