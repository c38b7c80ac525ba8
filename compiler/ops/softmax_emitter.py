"""Softmax over the channels of every pixel, on one block.

A tile is all planes of a group, or of several, by some rows.  Sums and maxima go over planes first, then over the lanes of a block, which
leaves the result in every lane, ready to be an operand for all planes.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from numba import njit

from compiler.instructions.builders import DDR, MTE2, UB, Ints, TilePlace, copy, flat, general
from compiler.instructions.node_context import UB_SLOT, Node, Work, operand, result, table
from compiler.instructions.tiles import load_tile, over_planes, store_tile, tiles, with_pixels
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
def emit_softmax(out: Code, at: int, j: SoftmaxJob, source: TilePlace, target: TilePlace, padded: Ints, parity: Ints) -> int:
    """exp(x - max) / sum."""
    count, across, tile_rows = tiles(j.rows, j.tile_rows, j.width, j.tile_columns)
    deep = j.group_planes
    for p in range(0, j.planes, j.tile_planes):
        planes = min(j.tile_planes, j.planes - p)
        masks = j.masks
        if j.masks_at >= 0:
            if at >= out.shape[0]:
                return -1
            at = copy(out, at, j.dtype, j.tag, MTE2, DDR, UB, j.masks_at + p, masks, planes, 1, 0, 0, 1, 0, 0)
            masks -= p
        for tile in range(count):
            r, c = tile // across * tile_rows, tile % across * j.tile_columns
            size = min(tile_rows, j.rows - r) * min(j.tile_columns, j.width - c)
            each = 12 + (size + 7) // 8 * 6 * ((deep + 254) // 255) + size * 4 // 1024
            if at + 20 + len(padded) * (size // 1024 + 2) + planes // deep * each + planes * size // 1024 >= out.shape[0]:
                return -1
            x = j.slot_1 if parity[UB_SLOT] else j.slot_0
            parity[UB_SLOT] ^= 1
            top = x + j.tile_planes * tile_rows * j.tile_columns
            total = top + tile_rows * j.tile_columns
            at = load_tile(out, at, j.dtype, j.tag, source, p, r * j.width + c, size, planes, x)
            for plane in padded:
                if p <= plane < p + planes:
                    d = x + (plane - p) * size
                    at = flat(out, at, _VADD, j.dtype, j.tag, d, d, masks + plane, -1, 0, 0, size, 0)
            for group in range(0, planes, deep):
                first = x + group * size
                at = over_planes(out, at, j.dtype, j.tag, _VMAX, top, first, size, deep)
                at = flat(out, at, _LANE_MAX, j.dtype, j.tag, top, top, -1, -1, 0, 0, size, 0)
                at = with_pixels(out, at, j.dtype, j.tag, _VSUB, first, top, size, deep)
            at = flat(out, at, _VEXP, j.dtype, j.tag, x, x, -1, -1, 0, 0, planes * size, 0)
            for group in range(0, planes, deep):
                first = x + group * size
                at = over_planes(out, at, j.dtype, j.tag, _VADD, total, first, size, deep)
                at = flat(out, at, _LANE_SUM, j.dtype, j.tag, total, total, -1, -1, 0, 0, size, 0)
                at = flat(out, at, _VRECIPROCAL, j.dtype, j.tag, total, total, -1, -1, 0, 0, size, 0)
                at = with_pixels(out, at, j.dtype, j.tag, _VMUL, first, total, size, deep)
            at = store_tile(out, at, j.dtype, j.tag, target, p, r * j.width + c, size, planes, x)
    return at


@general
@njit(cache=True)
def softmax_rows(out: Code, at: int, w: Work, n: Node, j: Any, parity: Ints) -> int:
    """A node's records."""
    start, stop = w.computed[n.k, n.t]
    j.rows = stop - start
    return emit_softmax(out, at, j, operand(w, n, 0, start), result(w, n, start), table(w, n, 0, 1)[:, 0], parity)
