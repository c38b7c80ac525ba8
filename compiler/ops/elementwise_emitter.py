"""Element-wise chains on one block: tiles in, primitives on UB, tiles out (`instructions.tiles`)."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit

from compiler.instructions.builders import DDR, MTE2, UB, Ints, TilePlace, copy, flat, general, multiply_add
from compiler.instructions.node_context import UB_SLOT, Node, Work, operand, operands, result, table
from compiler.instructions.tiles import load_tile, store_tile, tiles
from simulator.npu.isa import Op
from simulator.npu.program import Code

_VMADD = int(Op.VMADD)


class VectorJob(NamedTuple):
    """An element-wise chain on `rows` rows of `width` blocks and `planes` planes.  slots: UB addresses; one tile after another within.

    consts: UB address of scale and shift vectors, [2 * step][planes]; where it fetches them itself, [2 * step][tile_planes]; where a block
    of each serves all planes in every step, [2 * step].
    """

    dtype: int
    tag: int
    planes: int
    width: int
    tile_planes: int
    tile_rows: int
    tile_columns: int
    slot_0: int
    slot_1: int
    consts: int
    fetches: int
    result: int  # the buffer of the last value
    rows: int = 0


@njit(cache=True)
def emit_vector(out: Code, at: int, j: VectorJob, sources: Ints, target: TilePlace, steps: Ints, parity: Ints) -> int:
    """`sources`: int64 [inputs, 8] of Place fields and 1 for an input that is one pixel; `steps`: int64 [s, 9] (see VectorSpec).

    Returns the next row or -1.
    """
    count, across, tile_rows = tiles(j.rows, j.tile_rows, j.width, j.tile_columns)
    inputs = sources.shape[0]
    tile_blocks = j.tile_planes * tile_rows * j.tile_columns
    deep = 1
    for s in range(steps.shape[0]):
        if steps[s, 0] == _VMADD and not steps[s, 7]:
            deep = j.tile_planes if j.fetches else j.planes
    for p in range(0, j.planes, j.tile_planes):
        planes = min(j.tile_planes, j.planes - p)
        if at + 2 * steps.shape[0] >= out.shape[0]:
            return -1
        for s in range(steps.shape[0] if j.fetches else 0):
            if steps[s, 4] >= 0:
                for side in range(2):
                    here, source = j.consts + (2 * s + side) * deep, steps[s, 4 + side]
                    first, blocks = (0, 1) if steps[s, 7] else (p, planes)
                    at = copy(out, at, j.dtype, j.tag, MTE2, DDR, UB, source + first, here, blocks, 1, 0, 0, 1, 0, 0)
        for tile in range(count):
            r, c = tile // across * tile_rows, tile % across * j.tile_columns
            rows, columns = min(tile_rows, j.rows - r), min(j.tile_columns, j.width - c)
            if at + (2 * inputs + 4 + steps.shape[0] * (planes * 2 + tile_blocks // 2040 + 2)) >= out.shape[0]:
                return -1
            slot = j.slot_1 if parity[UB_SLOT] else j.slot_0
            parity[UB_SLOT] ^= 1
            size = rows * columns
            for i in range(inputs):
                of = sources[i]
                place = TilePlace(of[0], of[1], of[2], of[3], of[4], of[5], of[6])
                first, pixels = (0, 1) if of[7] else (r * j.width + c, size)
                at = load_tile(out, at, j.dtype, j.tag, place, p, first, pixels, planes, slot + i * tile_blocks)
            for s in range(steps.shape[0]):
                op, imm, other = steps[s, 0], steps[s, 1], steps[s, 3]
                made, left = slot + steps[s, 6] * tile_blocks, slot + steps[s, 2] * tile_blocks
                right, step = (slot + other * tile_blocks, 1) if other >= 0 else (-1, 0)
                if op == _VMADD and steps[s, 7]:
                    scale, third = j.consts + 2 * s * deep, steps[s, 8]
                    factor = right if other >= 0 else scale
                    summand, along = (slot + third * tile_blocks, 1) if third >= 0 else (scale + deep, 0)
                    at = flat(out, at, op, j.dtype, j.tag, made, left, factor, summand, step, along, planes * size, 0)
                elif op == _VMADD:
                    scale = j.consts + 2 * s * deep + (0 if j.fetches else p)
                    at = multiply_add(out, at, op, j.dtype, j.tag, made, left, scale, scale + deep, planes, size)
                elif 0 <= other < inputs and sources[other, 7]:
                    for plane in range(planes):
                        begin = plane * size
                        at = flat(out, at, op, j.dtype, j.tag, made + begin, left + begin, right + plane, -1, 0, 0, size, imm)
                else:
                    at = flat(out, at, op, j.dtype, j.tag, made, left, right, -1, step, 0, planes * size, imm)
            at = store_tile(out, at, j.dtype, j.tag, target, p, r * j.width + c, size, planes, slot + j.result * tile_blocks)
    return at


@general
@njit(cache=True)
def chain_rows(out: Code, at: int, w: Work, n: Node, j: Any, parity: Ints) -> int:
    """A node's records."""
    start, stop = w.computed[n.k, n.t]
    j.rows = stop - start
    begin = w.jobs.read_start[n.k]
    sources = np.empty((operands(w, n), 8), np.int64)
    for i in range(sources.shape[0]):
        p = operand(w, n, i, start)
        sources[i, 0], sources[i, 1], sources[i, 2], sources[i, 3], sources[i, 4] = p.memory, p.base, p.plane, p.wrap, p.back
        sources[i, 5], sources[i, 6], sources[i, 7] = p.width, p.gap, w.jobs.reads[begin + i, 5]
    return emit_vector(out, at, j, sources, result(w, n, start), table(w, n, 0, 9), parity)
