"""Emission of a reflow on one block: VECTOR writes filled pixels, moves load all other pixels."""

from __future__ import annotations

from typing import Any, NamedTuple

from numba import njit

from compiler.instructions.builders import DDR, MTE1, MTE2, RECORD_BLOCKS, UB, Ints, TilePlace, compile_once, dense, flat, move
from compiler.instructions.node_context import Node, Work, locate_operand, locate_result
from compiler.instructions.tiles import UbTiles, next_tile, store_tile
from compiler.ir.reach import DIVISOR, demanded
from simulator.npu.isa import Op
from simulator.npu.program import Code

_VFILL = int(Op.VFILL)


class ReflowJob(NamedTuple):
    """Reflow of a node's rows.

    The output is `before` filled pixels, then `pixels` pixels of the input, then filled pixels.
    """

    dtype: int
    tag: int
    tiles: UbTiles
    before: int
    pixels: int
    fill: int  # float32 bits of filled pixels


@njit(cache=True)
def emit_reflow(out: Code, cursor: int, job: ReflowJob, source: TilePlace, target: TilePlace, slot_state: Ints) -> int:
    tiles = job.tiles
    index, tile = 0, next_tile(tiles, 0, slot_state)
    while tile.planes > 0:
        planes, size, slot = tile.planes, tile.size, tile.slot
        if cursor + 8 + 2 * planes * (size // RECORD_BLOCKS + 2) >= out.shape[0]:
            return -1
        first = tiles.first_row * tiles.width + tile.first - job.before  # input pixel of the tile's first place
        start, stop = max(0, first), min(job.pixels, first + size)
        if start >= stop:
            cursor = flat(out, cursor, _VFILL, job.dtype, job.tag, slot, -1, -1, -1, 0, 0, planes * size, job.fill)
        else:
            begin, trailing = start - first, first + size - stop
            for plane in range(planes if begin + trailing > 0 else 0):
                d = slot + plane * size
                if begin > 0:
                    cursor = flat(out, cursor, _VFILL, job.dtype, job.tag, d, -1, -1, -1, 0, 0, begin, job.fill)
                if trailing > 0:
                    cursor = flat(out, cursor, _VFILL, job.dtype, job.tag, d + size - trailing, -1, -1, -1, 0, 0, trailing, job.fill)
            engine = MTE2 if source.memory == DDR else MTE1
            inside = dense(UB, slot + begin, size)
            cursor = move(
                out, cursor, job.dtype, job.tag, engine, source, start - tiles.in_first, inside, 0, tile.plane, planes, stop - start
            )
        cursor = store_tile(out, cursor, job.dtype, job.tag, target, tile.plane, tile.first, size, planes, slot)
        index += 1
        tile = next_tile(tiles, index, slot_state)
    return cursor


@compile_once
@njit(cache=True)
def reflow_rows(out: Code, cursor: int, work: Work, node: Node, job: Any, slot_state: Ints) -> int:
    """A node's records."""
    start, stop = work.computed[node.k, node.t]
    first, _ = demanded(work.reach[node.k], work.bounds, start, stop)
    job.tiles.first_row, job.tiles.rows, job.tiles.in_first = start, stop - start, first * work.reach[node.k, DIVISOR]
    return emit_reflow(out, cursor, job, locate_operand(work, node, 0, first), locate_result(work, node, start), slot_state)
