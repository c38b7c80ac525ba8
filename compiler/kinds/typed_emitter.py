"""Element-wise steps on operands of several types on one block: tiles in, steps on UB, tiles out (`records.tiles`).

Steps work in float32 on four blocks beside each other for every block of 32 bytes, which is how VCONVERT has them.  Floats lie in planes of
their own outside, two (float16) or four (float32) for a plane of bytes, so their blocks are spread among those four, or gathered from them.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit

from compiler.records.node import UB_SLOT, Node, Work, operand, operands, result, table
from compiler.records.tiles import load_tile, store_tile, tiles
from compiler.records.writers import DDR, MTE2, UB, Ints, TilePlace, copy, flat, general, vector
from simulator.npu.isa import MAX_REPEATS, REPEAT_BLOCKS
from simulator.npu.program import Code

FLAT, CONVERT, SPREAD, GATHER = range(4)  # how a step goes over a tile
WIDE = 4  # blocks of float32 for a block of bytes
_MOST = REPEAT_BLOCKS * MAX_REPEATS


class TypedJob(NamedTuple):
    """Steps on `rows` rows of `width` blocks and `planes` planes of the result, `together` of which are one plane of bytes.

    consts: UB address of constants; consts_at: their DDR address where they come with the planes of a tile, else -1.
    """

    dtype: int
    tag: int
    planes: int
    width: int
    together: int
    tile_planes: int
    tile_rows: int
    tile_columns: int
    slot_0: int
    slot_1: int
    consts: int
    consts_at: int
    const_blocks: int
    result: int
    rows: int = 0


@general
@njit(cache=True)
def _paced(
    out: Code, at: int, op: int, dtype: int, tag: int, d: int, s: int, blocks: int, dbs: int, dstep: int, sbs: int, sstep: int, imm: int
) -> int:  # fmt: skip
    """A VECTOR operation on `blocks` blocks that lie dstep and sstep apart; dbs, sbs: the same in runs of what is converted."""
    done = 0
    while done < blocks:
        left = blocks - done
        width, repeats = (REPEAT_BLOCKS, min(MAX_REPEATS, left // REPEAT_BLOCKS)) if left >= REPEAT_BLOCKS else (left, 1)
        at = vector(
            out, at, op, dtype, tag, d + done * dstep, s + done * sstep, -1, -1, width, repeats, dbs, REPEAT_BLOCKS * dstep, sbs,
            REPEAT_BLOCKS * sstep, 0, 0, 0, 0, imm,
        )  # fmt: skip
        done += width * repeats
    return at


@njit(cache=True)
def _step(out: Code, at: int, j: TypedJob, step: Ints, slot: int, tile: int, deep: int, size: int) -> int:
    """step: see `TypedSpec`.  tile: blocks of bytes of a whole tile; deep x size of them are worked on."""
    mode, op, dtype, d, s, s1, s2, imm, d_factor, s_factor = step
    d, s, blocks = slot + d * tile, slot + s * tile, deep * size
    if mode == FLAT:
        first = j.consts - 2 - s1 if s1 < -1 else slot + s1 * tile if s1 >= 0 else -1
        second = j.consts - 2 - s2 if s2 < -1 else slot + s2 * tile if s2 >= 0 else -1
        return flat(out, at, op, dtype, j.tag, d, s, first, second, int(s1 >= 0), int(s2 >= 0), blocks * d_factor, imm)
    if mode == CONVERT:
        return _paced(out, at, op, dtype, j.tag, d, s, blocks, 1, d_factor, 1, s_factor, imm)
    each = s_factor if mode == SPREAD else d_factor  # planes of floats for one of bytes
    for part in range(deep * each):
        plane, inside = part // each, part % each * (WIDE // each)
        wide, narrow = plane * size * WIDE + inside, part * size
        if mode == SPREAD:
            at = _paced(out, at, op, dtype, j.tag, d + wide, s + narrow, size, each, WIDE, 1, 1, imm)
        else:
            at = _paced(out, at, op, dtype, j.tag, d + narrow, s + wide, size, 1, 1, each, WIDE, imm)
    return at


@njit(cache=True)
def emit_typed(out: Code, at: int, j: TypedJob, sources: Ints, target: TilePlace, steps: Ints, inputs: Ints, parity: Ints) -> int:
    """sources: int64 [inputs, 7] of Place fields.  inputs: int64 [inputs, 3], see `TypedSpec`.  Returns the next row or -1."""
    count, across, tile_rows = tiles(j.rows, j.tile_rows, j.width, j.tile_columns)
    whole = j.tile_planes // j.together * tile_rows * j.tile_columns
    for p in range(0, j.planes, j.tile_planes):
        deep = min(j.tile_planes, j.planes - p) // j.together
        if at >= out.shape[0]:
            return -1
        if j.consts_at >= 0:
            at = copy(out, at, j.dtype, j.tag, MTE2, DDR, UB, j.consts_at, j.consts, j.const_blocks, 1, 0, 0, 1, 0, 0)
        for tile in range(count):
            r, c = tile // across * tile_rows, tile % across * j.tile_columns
            size = min(tile_rows, j.rows - r) * min(j.tile_columns, j.width - c)
            if at + 2 * inputs.shape[0] + 4 + steps.shape[0] * (deep * WIDE + 1) * (WIDE * whole // _MOST + 2) >= out.shape[0]:
                return -1
            slot = j.slot_1 if parity[UB_SLOT] else j.slot_0
            parity[UB_SLOT] ^= 1
            first = r * j.width + c
            for i in range(inputs.shape[0]):
                of = sources[i]
                place = TilePlace(of[0], of[1], of[2], of[3], of[4], of[5], of[6])
                buffer, planes, dtype = inputs[i]
                at = load_tile(
                    out, at, dtype, j.tag, place, p // j.together * planes, first, size, deep * planes, slot + buffer * whole,
                )  # fmt: skip
            for k in range(steps.shape[0]):
                at = _step(out, at, j, steps[k], slot, whole, deep, size)
            at = store_tile(out, at, j.dtype, j.tag, target, p, first, size, deep * j.together, slot + j.result * whole)
    return at


@general
@njit(cache=True)
def typed_rows(out: Code, at: int, w: Work, n: Node, j: Any, parity: Ints) -> int:
    """A node's records."""
    start, stop = w.computed[n.k, n.t]
    j.rows = stop - start
    sources = np.empty((operands(w, n), 7), np.int64)
    for i in range(sources.shape[0]):
        p = operand(w, n, i, start)
        sources[i, 0], sources[i, 1], sources[i, 2], sources[i, 3] = p.memory, p.base, p.plane, p.wrap
        sources[i, 4], sources[i, 5], sources[i, 6] = p.back, p.width, p.gap
    return emit_typed(out, at, j, sources, result(w, n, start), table(w, n, 0, 10), table(w, n, 1, 3), parity)
