"""Emission of a reflow on one block: VECTOR writes filled pixels, moves load all other pixels."""

from __future__ import annotations

from typing import Any, NamedTuple

from numba import njit

from compiler.instructions.builders import DDR, MTE1, MTE2, UB, Ints, TilePlace, compile_once, dense, flat, move
from compiler.instructions.node_context import UB_SLOT, Node, Work, locate_operand, locate_result
from compiler.instructions.tiles import count_tiles, store_tile
from compiler.ir.reach import demanded
from simulator.npu.isa import Op
from simulator.npu.program import Code

_VFILL = int(Op.VFILL)


class ReflowJob(NamedTuple):
    """Reflow of output rows [first_row, first_row + rows) of `width` pixels.

    The output is `before` filled pixels, then `pixels` pixels of the input, then filled pixels.  in_first: input pixel at `source.base`.
    """

    dtype: int
    tag: int
    planes: int
    width: int
    before: int
    pixels: int
    fill: int  # float32 bits of filled pixels
    tile_planes: int
    tile_rows: int
    tile_columns: int
    slot_0: int
    slot_1: int
    first_row: int = 0
    rows: int = 0
    in_first: int = 0


@njit(cache=True)
def emit_reflow(out: Code, cursor: int, job: ReflowJob, source: TilePlace, target: TilePlace, parity: Ints) -> int:
    count, tiles_per_row, tile_rows = count_tiles(job.rows, job.tile_rows, job.width, job.tile_columns)
    for p in range(0, job.planes, job.tile_planes):
        planes = min(job.tile_planes, job.planes - p)
        for tile in range(count):
            r, c = tile // tiles_per_row * tile_rows, tile % tiles_per_row * job.tile_columns
            size = min(tile_rows, job.rows - r) * min(job.tile_columns, job.width - c)
            if cursor + 8 + 2 * planes * (size // 2040 + 2) >= out.shape[0]:
                return -1
            slot = job.slot_1 if parity[UB_SLOT] else job.slot_0
            parity[UB_SLOT] ^= 1
            first = (job.first_row + r) * job.width + c - job.before  # input pixel of the tile's first place
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
                cursor = move(out, cursor, job.dtype, job.tag, engine, source, start - job.in_first, inside, 0, p, planes, stop - start)
            cursor = store_tile(out, cursor, job.dtype, job.tag, target, p, r * job.width + c, size, planes, slot)
    return cursor


@compile_once
@njit(cache=True)
def reflow_rows(out: Code, cursor: int, work: Work, node: Node, job: Any, parity: Ints) -> int:
    """A node's records."""
    start, stop = work.computed[node.k, node.t]
    first, _ = demanded(work.reach[node.k], work.bounds, start, stop)
    job.first_row, job.rows, job.in_first = start, stop - start, first * work.reach[node.k, 2]
    return emit_reflow(out, cursor, job, locate_operand(work, node, 0, first), locate_result(work, node, start), parity)
