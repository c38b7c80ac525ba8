"""Softmax over the channels of every pixel, on one block.

A tile is all planes of a group, or of several, by some rows.  Sums and maxima go over planes first, then over the lanes of a block, which
leaves the result in every lane, ready to be an operand for all planes.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from numba import njit

from compiler.instructions.builders import DDR, MTE2, UB, Ints, TilePlace, compile_once, copy, flat
from compiler.instructions.node_context import UB_SLOT, Node, Work, locate_operand, locate_result, read_table
from compiler.instructions.tiles import combine_pixels, count_tiles, load_tile, reduce_planes, store_tile
from simulator.npu.isa import Op
from simulator.npu.program import Code

_VCOPY, _VADD, _VSUB, _VMUL, _VMAX = (int(o) for o in (Op.VCOPY, Op.VADD, Op.VSUB, Op.VMUL, Op.VMAX))
_VEXP, _VRECIPROCAL = int(Op.VEXP), int(Op.VRECIPROCAL)
_LANE_MAX, _LANE_SUM = int(Op.VLANE_MAX), int(Op.VLANE_SUM)


class SoftmaxJob(NamedTuple):
    """Softmax over each run of `group_planes` planes of `rows` rows; a tile is `tile_planes`, whole groups, by `tile_rows` rows.

    masks: UB address [planes]; [tile_planes] where they are fetched from masks_at for every tile's planes, else that is -1.
    """

    dtype: int
    tag: int
    planes: int
    group_planes: int
    width: int
    tile_planes: int
    tile_rows: int
    tile_columns: int
    slot_0: int
    slot_1: int
    masks: int
    masks_at: int
    rows: int = 0


@njit(cache=True)
def emit_softmax(out: Code, cursor: int, job: SoftmaxJob, source: TilePlace, target: TilePlace, padded: Ints, parity: Ints) -> int:
    """exp(x - max) / sum."""
    count, across, tile_rows = count_tiles(job.rows, job.tile_rows, job.width, job.tile_columns)
    deep = job.group_planes
    for p in range(0, job.planes, job.tile_planes):
        planes = min(job.tile_planes, job.planes - p)
        masks = job.masks
        if job.masks_at >= 0:
            if cursor >= out.shape[0]:
                return -1
            cursor = copy(out, cursor, job.dtype, job.tag, MTE2, DDR, UB, job.masks_at + p, masks, planes, 1, 0, 0, 1, 0, 0)
            masks -= p
        for tile in range(count):
            r, c = tile // across * tile_rows, tile % across * job.tile_columns
            size = min(tile_rows, job.rows - r) * min(job.tile_columns, job.width - c)
            group_records = 12 + (size + 7) // 8 * 6 * ((deep + 254) // 255) + size * 4 // 1024
            if cursor + 20 + len(padded) * (size // 1024 + 2) + planes // deep * group_records + planes * size // 1024 >= out.shape[0]:
                return -1
            x = job.slot_1 if parity[UB_SLOT] else job.slot_0
            parity[UB_SLOT] ^= 1
            top = x + job.tile_planes * tile_rows * job.tile_columns
            total = top + tile_rows * job.tile_columns
            cursor = load_tile(out, cursor, job.dtype, job.tag, source, p, r * job.width + c, size, planes, x)
            # lanes without a channel become very negative; then x - max, exp, sum, and x / sum, group by group
            for plane in padded:
                if p <= plane < p + planes:
                    d = x + (plane - p) * size
                    cursor = flat(out, cursor, _VADD, job.dtype, job.tag, d, d, masks + plane, -1, 0, 0, size, 0)
            for group in range(0, planes, deep):
                first = x + group * size
                cursor = reduce_planes(out, cursor, job.dtype, job.tag, _VMAX, top, first, size, deep)
                cursor = flat(out, cursor, _LANE_MAX, job.dtype, job.tag, top, top, -1, -1, 0, 0, size, 0)
                cursor = combine_pixels(out, cursor, job.dtype, job.tag, _VSUB, first, top, size, deep)
            cursor = flat(out, cursor, _VEXP, job.dtype, job.tag, x, x, -1, -1, 0, 0, planes * size, 0)
            for group in range(0, planes, deep):
                first = x + group * size
                cursor = reduce_planes(out, cursor, job.dtype, job.tag, _VADD, total, first, size, deep)
                cursor = flat(out, cursor, _LANE_SUM, job.dtype, job.tag, total, total, -1, -1, 0, 0, size, 0)
                cursor = flat(out, cursor, _VRECIPROCAL, job.dtype, job.tag, total, total, -1, -1, 0, 0, size, 0)
                cursor = combine_pixels(out, cursor, job.dtype, job.tag, _VMUL, first, total, size, deep)
            cursor = store_tile(out, cursor, job.dtype, job.tag, target, p, r * job.width + c, size, planes, x)
    return cursor


@compile_once
@njit(cache=True)
def softmax_rows(out: Code, cursor: int, work: Work, node: Node, job: Any, parity: Ints) -> int:
    """A node's records."""
    start, stop = work.computed[node.k, node.t]
    job.rows = stop - start
    return emit_softmax(
        out, cursor, job, locate_operand(work, node, 0, start), locate_result(work, node, start), read_table(work, node, 0, 1)[:, 0], parity
    )
