"""Element-wise chains on one block: tiles in, primitives on UB, tiles out (`instructions.tiles`)."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit

from compiler.instructions.builders import DDR, MTE2, UB, Ints, TilePlace, compile_once, copy, flat, multiply_add
from compiler.instructions.node_context import UB_SLOT, Node, Work, count_operands, locate_operand, locate_result, read_table
from compiler.instructions.tiles import count_tiles, load_tile, store_tile
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
def emit_vector(out: Code, cursor: int, job: VectorJob, sources: Ints, target: TilePlace, steps: Ints, parity: Ints) -> int:
    """`sources`: int64 [inputs, 8] of Place fields and 1 for an input that is one pixel; `steps`: int64 [s, 9] (see VectorSpec).

    Returns the next row or -1.
    """
    count, across, tile_rows = count_tiles(job.rows, job.tile_rows, job.width, job.tile_columns)
    inputs = sources.shape[0]
    tile_blocks = job.tile_planes * tile_rows * job.tile_columns
    deep = 1
    for s in range(steps.shape[0]):
        if steps[s, 0] == _VMADD and not steps[s, 7]:
            deep = job.tile_planes if job.fetches else job.planes
    # runs of planes, constants of a run, tiles; loads, steps, and the store of a tile
    for p in range(0, job.planes, job.tile_planes):
        planes = min(job.tile_planes, job.planes - p)
        if cursor + 2 * steps.shape[0] >= out.shape[0]:
            return -1
        for s in range(steps.shape[0] if job.fetches else 0):
            if steps[s, 4] >= 0:
                for side in range(2):
                    const_slot, source = job.consts + (2 * s + side) * deep, steps[s, 4 + side]
                    first, blocks = (0, 1) if steps[s, 7] else (p, planes)
                    cursor = copy(out, cursor, job.dtype, job.tag, MTE2, DDR, UB, source + first, const_slot, blocks, 1, 0, 0, 1, 0, 0)
        for tile in range(count):
            r, c = tile // across * tile_rows, tile % across * job.tile_columns
            rows, columns = min(tile_rows, job.rows - r), min(job.tile_columns, job.width - c)
            if cursor + (2 * inputs + 4 + steps.shape[0] * (planes * 2 + tile_blocks // 2040 + 2)) >= out.shape[0]:
                return -1
            slot = job.slot_1 if parity[UB_SLOT] else job.slot_0
            parity[UB_SLOT] ^= 1
            size = rows * columns
            for i in range(inputs):
                fields = sources[i]
                place = TilePlace(fields[0], fields[1], fields[2], fields[3], fields[4], fields[5], fields[6])
                first, pixels = (0, 1) if fields[7] else (r * job.width + c, size)
                cursor = load_tile(out, cursor, job.dtype, job.tag, place, p, first, pixels, planes, slot + i * tile_blocks)
            for s in range(steps.shape[0]):
                op, imm, rhs_buffer = steps[s, 0], steps[s, 1], steps[s, 3]
                dst, lhs = slot + steps[s, 6] * tile_blocks, slot + steps[s, 2] * tile_blocks
                rhs, step = (slot + rhs_buffer * tile_blocks, 1) if rhs_buffer >= 0 else (-1, 0)
                if op == _VMADD and steps[s, 7]:
                    scale, third = job.consts + 2 * s * deep, steps[s, 8]
                    factor = rhs if rhs_buffer >= 0 else scale
                    summand, along = (slot + third * tile_blocks, 1) if third >= 0 else (scale + deep, 0)
                    cursor = flat(out, cursor, op, job.dtype, job.tag, dst, lhs, factor, summand, step, along, planes * size, 0)
                elif op == _VMADD:
                    scale = job.consts + 2 * s * deep + (0 if job.fetches else p)
                    cursor = multiply_add(out, cursor, op, job.dtype, job.tag, dst, lhs, scale, scale + deep, planes, size)
                elif 0 <= rhs_buffer < inputs and sources[rhs_buffer, 7]:
                    for plane in range(planes):
                        begin = plane * size
                        cursor = flat(out, cursor, op, job.dtype, job.tag, dst + begin, lhs + begin, rhs + plane, -1, 0, 0, size, imm)
                else:
                    cursor = flat(out, cursor, op, job.dtype, job.tag, dst, lhs, rhs, -1, step, 0, planes * size, imm)
            cursor = store_tile(
                out, cursor, job.dtype, job.tag, target, p, r * job.width + c, size, planes, slot + job.result * tile_blocks
            )
    return cursor


@compile_once
@njit(cache=True)
def chain_rows(out: Code, cursor: int, work: Work, node: Node, job: Any, parity: Ints) -> int:
    """A node's records."""
    start, stop = work.computed[node.k, node.t]
    job.rows = stop - start
    begin = work.jobs.read_start[node.k]
    sources = np.empty((count_operands(work, node), 8), np.int64)
    for i in range(sources.shape[0]):
        place = locate_operand(work, node, i, start)
        sources[i, 0], sources[i, 1], sources[i, 2], sources[i, 3], sources[i, 4] = (
            place.memory,
            place.base,
            place.plane,
            place.wrap,
            place.back,
        )
        sources[i, 5], sources[i, 6], sources[i, 7] = place.width, place.gap, work.jobs.reads[begin + i, 5]
    return emit_vector(out, cursor, job, sources, locate_result(work, node, start), read_table(work, node, 0, 9), parity)
