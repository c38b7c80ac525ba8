"""VECTOR kernels on one block: element-wise chains, pixels in another order.  Tile in, primitives on UB, tile out.

A tile is some planes by some rows of the block, [planes][rows * w] blocks in UB, in one of two slots; or, where not even one row fits, by
some columns of one row: pixels that lie side by side in either case.
"""

from __future__ import annotations

from typing import NamedTuple

from numba import njit

from compiler.emit.records import DDR, MTE1, MTE2, MTE3, UB, Ints, Place, copy, dense, flat, move, multiply_add
from simulator.npu.isa import Op
from simulator.npu.program import Code

_VFILL, _VCOPY, _VMADD = int(Op.VFILL), int(Op.VCOPY), int(Op.VMADD)
_ITSELF = -2

UB_SLOT = 0  # the one parity these kernels keep


class VectorJob(NamedTuple):
    """An element-wise chain on `rows` rows of `width` blocks and `planes` planes.  slots: UB addresses; one tile after another within.

    consts: UB address of scale and shift vectors, [2 * step][planes]; where it fetches them itself, [2 * step][tile_planes].
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
    keeps_input: int
    rows: int = 0


@njit(cache=True)
def load_tile(out: Code, at: int, dtype: int, tag: int, place: Place, plane: int, first: int, size: int, planes: int, target: int) -> int:
    """`size` pixels from the block's `first` on of every plane into UB, from DDR or from L1."""
    engine = MTE2 if place.memory == DDR else MTE1
    return move(out, at, dtype, tag, engine, place, first, dense(UB, target, size), 0, plane, planes, size)


@njit(cache=True)
def load_box(
    out: Code, at: int, dtype: int, tag: int, place: Place, plane: int, row: int, rows: int, width: int, first: int, columns: int,
    planes: int, target: int,
) -> int:  # fmt: skip
    """Columns [first, first + columns) of some rows of `width` blocks; tile: [planes][rows][columns]."""
    if columns == width:
        return load_tile(out, at, dtype, tag, place, plane, row * width, rows * width, planes, target)
    engine, size = MTE2 if place.memory == DDR else MTE1, rows * columns
    for i in range(rows):
        into = dense(UB, target + i * columns, size)
        at = move(out, at, dtype, tag, engine, place, (row + i) * width + first, into, 0, plane, planes, columns)
    return at


@njit(cache=True)
def store_tile(out: Code, at: int, dtype: int, tag: int, place: Place, plane: int, first: int, size: int, planes: int, source: int) -> int:
    """One tile out of UB, to DDR or to L1."""
    return move(out, at, dtype, tag, MTE3, dense(UB, source, size), 0, place, first, plane, planes, size)


@njit(cache=True)
def tiles(rows: int, tile_rows: int, width: int, tile_columns: int) -> tuple[int, int, int]:
    """(tiles, those of a row, rows of a tile) of a block's pixels."""
    across = (width + tile_columns - 1) // tile_columns
    high = min(tile_rows, rows) if across == 1 else 1
    return (rows + high - 1) // high * across, across, high


@njit(cache=True)
def emit_vector(out: Code, at: int, j: VectorJob, sources: Ints, target: Place, steps: Ints, parity: Ints) -> int:
    """`sources`: int64 [inputs, 8] of Place fields and 1 for an input that is one pixel; `steps`: int64 [s, 6] (see VectorSpec).

    Returns the next row or -1.
    """
    count, across, tile_rows = tiles(j.rows, j.tile_rows, j.width, j.tile_columns)
    inputs = sources.shape[0]
    tile_blocks = j.tile_planes * tile_rows * j.tile_columns
    deep = j.tile_planes if j.fetches else j.planes
    for p in range(0, j.planes, j.tile_planes):
        planes = min(j.tile_planes, j.planes - p)
        if at + 2 * steps.shape[0] >= out.shape[0]:
            return -1
        for s in range(steps.shape[0] if j.fetches else 0):
            if steps[s, 0] == _VMADD:
                for side in range(2):
                    here, source = j.consts + (2 * s + side) * deep, steps[s, 3 + side] + p
                    at = copy(out, at, j.dtype, j.tag, MTE2, DDR, UB, source, here, planes, 1, 0, 0, 1, 0, 0)
        for tile in range(count):
            r, c = tile // across * tile_rows, tile % across * j.tile_columns
            rows, columns = min(tile_rows, j.rows - r), min(j.tile_columns, j.width - c)
            if at + (2 * inputs + 4 + (steps.shape[0] + 1) * (planes * 2 + tile_blocks // 2040 + 2)) >= out.shape[0]:
                return -1
            slot = j.slot_1 if parity[UB_SLOT] else j.slot_0
            parity[UB_SLOT] ^= 1
            size = rows * columns
            for i in range(inputs):
                of = sources[i]
                place = Place(of[0], of[1], of[2], of[3], of[4], of[5], of[6])
                first, pixels = (0, 1) if of[7] else (r * j.width + c, size)
                at = load_tile(out, at, j.dtype, j.tag, place, p, first, pixels, planes, slot + i * tile_blocks)
            v = slot
            if j.keeps_input:
                v = slot + inputs * tile_blocks
                at = flat(out, at, _VCOPY, j.dtype, j.tag, v, slot, -1, -1, 0, 0, planes * size, 0)
            for s in range(steps.shape[0]):
                op, imm, operand = steps[s, 0], steps[s, 1], steps[s, 2]
                if operand >= 0 and operand < inputs and sources[operand, 7]:
                    for plane in range(planes):
                        begin, pixel = v + plane * size, slot + operand * tile_blocks + plane
                        at = flat(out, at, op, j.dtype, j.tag, begin, begin, pixel, -1, 0, 0, size, imm)
                    continue
                if op == _VMADD:
                    scale = j.consts + 2 * s * deep + (0 if j.fetches else p)
                    at = multiply_add(out, at, op, j.dtype, j.tag, v, scale, scale + deep, planes, size)
                    continue
                target_at, first, other, step = v, v, -1, 0
                if operand >= 0:
                    other, step = slot + operand * tile_blocks, 1
                    if op == _VCOPY:
                        if steps[s, 5]:
                            target_at, other = other, -1
                        else:
                            first, other = other, -1
                    elif steps[s, 5]:
                        first, other = other, v
                elif operand == _ITSELF:
                    other, step = v, 1
                at = flat(out, at, op, j.dtype, j.tag, target_at, first, other, -1, step, 0, planes * size, imm)
            at = store_tile(out, at, j.dtype, j.tag, target, p, r * j.width + c, size, planes, v)
    return at


class ReflowJob(NamedTuple):
    """`rows` rows of `width` pixels from row `first_row` on, of an image that is the `pixels` pixels of another after `before` zeros.

    in_first: the pixel of the other that lies at `source.base`.
    """

    dtype: int
    tag: int
    planes: int
    width: int
    before: int
    pixels: int
    tile_planes: int
    tile_rows: int
    tile_columns: int
    slot_0: int
    slot_1: int
    first_row: int = 0
    rows: int = 0
    in_first: int = 0


@njit(cache=True)
def emit_reflow(out: Code, at: int, j: ReflowJob, source: Place, target: Place, parity: Ints) -> int:
    count, across, tile_rows = tiles(j.rows, j.tile_rows, j.width, j.tile_columns)
    for p in range(0, j.planes, j.tile_planes):
        planes = min(j.tile_planes, j.planes - p)
        for tile in range(count):
            r, c = tile // across * tile_rows, tile % across * j.tile_columns
            size = min(tile_rows, j.rows - r) * min(j.tile_columns, j.width - c)
            if at + 8 + 2 * planes * (size // 2040 + 2) >= out.shape[0]:
                return -1
            slot = j.slot_1 if parity[UB_SLOT] else j.slot_0
            parity[UB_SLOT] ^= 1
            first = (j.first_row + r) * j.width + c - j.before  # the other's pixel that belongs at the tile's first place
            start, stop = max(0, first), min(j.pixels, first + size)
            if start >= stop:
                at = flat(out, at, _VFILL, j.dtype, j.tag, slot, -1, -1, -1, 0, 0, planes * size, 0)
            else:
                begin, left = start - first, first + size - stop
                for plane in range(planes if begin + left > 0 else 0):
                    d = slot + plane * size
                    if begin > 0:
                        at = flat(out, at, _VFILL, j.dtype, j.tag, d, -1, -1, -1, 0, 0, begin, 0)
                    if left > 0:
                        at = flat(out, at, _VFILL, j.dtype, j.tag, d + size - left, -1, -1, -1, 0, 0, left, 0)
                engine = MTE2 if source.memory == DDR else MTE1
                inside = dense(UB, slot + begin, size)
                at = move(out, at, j.dtype, j.tag, engine, source, start - j.in_first, inside, 0, p, planes, stop - start)
            at = store_tile(out, at, j.dtype, j.tag, target, p, r * j.width + c, size, planes, slot)
    return at
