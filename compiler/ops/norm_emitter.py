"""Layer normalisation over the channels of every pixel, on one block.

A tile is all planes by some rows.  Sums go over planes first, then over the lanes of a block, which leaves the result in every lane, ready
to be an operand for all planes.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from numba import njit

from compiler.instructions.builders import DDR, MTE2, UB, Ints, TilePlace, copy, flat, general, multiply_add, strided, vector
from compiler.instructions.node_context import UB_SLOT, Node, Work, operand, result, table
from compiler.instructions.tiles import load_tile, store_tile, tiles, with_pixels
from simulator.npu.isa import Op
from simulator.npu.parts import DataType
from simulator.npu.program import Code

_VCOPY, _VADD, _VSUB, _VMUL, _VMADD = (int(o) for o in (Op.VCOPY, Op.VADD, Op.VSUB, Op.VMUL, Op.VMADD))
_VADDS, _VMULS, _VMINS, _VCONVERT = (int(o) for o in (Op.VADDS, Op.VMULS, Op.VMINS, Op.VCONVERT))
_VSQRT, _VRECIPROCAL, _LANE_SUM = int(Op.VSQRT), int(Op.VRECIPROCAL), int(Op.VLANE_SUM)
_F16, _F32 = int(DataType.float16), int(DataType.float32)


class LayerNormJob(NamedTuple):
    """Layer normalisation over `planes` planes with `channels` channels; a tile is all planes by `tile_rows` rows.

    constants: UB address [kinds][planes] of 1 in lanes that are channels, scale and shift, fetched from constants_at for every block unless
    that is -1.  kinds: 3; 1 without scale and shift; 0 where there is no other lane either.  per_channel, epsilon: float32 bits.
    centred: whether the mean is 0.  largest: bits of what 1 / deviation is cut at, so that float16 holds it.
    """

    dtype: int
    tag: int
    planes: int
    width: int
    tile_rows: int
    tile_columns: int
    slot_0: int
    slot_1: int
    constants: int
    constants_at: int
    kinds: int
    centred: int
    per_channel: int
    epsilon: int
    largest: int
    rows: int = 0


@njit(cache=True)
def emit_layer_norm(out: Code, at: int, j: LayerNormJob, source: TilePlace, target: TilePlace, padded: Ints, parity: Ints) -> int:
    """(x - mean) / sqrt(variance + epsilon) * scale + shift.  Squares and their sum are float32: in float16 those of 256 overflow."""
    count, across, tile_rows = tiles(j.rows, j.tile_rows, j.width, j.tile_columns)
    half = j.dtype == _F16
    if j.constants_at >= 0:
        if at >= out.shape[0]:
            return -1
        at = copy(out, at, j.dtype, j.tag, MTE2, DDR, UB, j.constants_at, j.constants, j.kinds * j.planes, 1, 0, 0, 1, 0, 0)
    for tile in range(count):
        r, c = tile // across * tile_rows, tile % across * j.tile_columns
        size = min(tile_rows, j.rows - r) * min(j.tile_columns, j.width - c)
        if at + 64 + (2 * len(padded) + j.planes) * (size // 2040 + 2) + 8 * (j.planes * size // 1020 + size) >= out.shape[0]:
            return -1
        x = j.slot_1 if parity[UB_SLOT] else j.slot_0
        parity[UB_SLOT] ^= 1
        squares = x + j.planes * size
        at = load_tile(out, at, j.dtype, j.tag, source, 0, r * j.width + c, size, j.planes, x)
        at = _mask(out, at, j, x, size, padded)
        if not j.centred:
            at = _tree(out, at, j.dtype, j.tag, squares, x, size, j.planes)
            at = flat(out, at, _VMULS, j.dtype, j.tag, squares, squares, -1, -1, 0, 0, size, j.per_channel)
            at = flat(out, at, _LANE_SUM, j.dtype, j.tag, squares, squares, -1, -1, 0, 0, size, 0)
            at = with_pixels(out, at, j.dtype, j.tag, _VSUB, x, squares, size, j.planes)
            at = _mask(out, at, j, x, size, padded)
        factor = squares
        if half:
            wide = 2 * size  # blocks of float32 in a plane
            at = _convert(out, at, _F32, j.tag, squares, x, j.planes * size)
            at = _sum_of_squares(out, at, j.tag, squares, squares, wide, j.planes)
            factor = squares + wide  # one block of a pixel gets the sum of both
            at = strided(out, at, _VADD, _F32, j.tag, factor, squares, squares + 1, size, 1, 1, 0, 2, 0, 2, 0, 0)
        else:
            at = _sum_of_squares(out, at, j.tag, squares, x, size, j.planes)
        at = flat(out, at, _LANE_SUM, _F32, j.tag, factor, factor, -1, -1, 0, 0, size, 0)
        at = flat(out, at, _VMULS, _F32, j.tag, factor, factor, -1, -1, 0, 0, size, j.per_channel)
        at = flat(out, at, _VADDS, _F32, j.tag, factor, factor, -1, -1, 0, 0, size, j.epsilon)
        at = flat(out, at, _VSQRT, _F32, j.tag, factor, factor, -1, -1, 0, 0, size, 0)
        at = flat(out, at, _VRECIPROCAL, _F32, j.tag, factor, factor, -1, -1, 0, 0, size, 0)
        if half:
            at = flat(out, at, _VMINS, _F32, j.tag, factor, factor, -1, -1, 0, 0, size, j.largest)
            for block in range(2):
                at = strided(out, at, _VCOPY, _F32, j.tag, squares + block, factor, -1, size, 1, 2, 0, 1, 0, 0, 0, 0)
            at = _convert(out, at, _F16, j.tag, factor, squares, size)
        at = with_pixels(out, at, j.dtype, j.tag, _VMUL, x, factor, size, j.planes)
        if j.kinds == 3:
            scale = j.constants + j.planes
            at = multiply_add(out, at, _VMADD, j.dtype, j.tag, x, x, scale, scale + j.planes, j.planes, size)
        at = store_tile(out, at, j.dtype, j.tag, target, 0, r * j.width + c, size, j.planes, x)
    return at


@njit(cache=True)
def _mask(out: Code, at: int, j: LayerNormJob, x: int, size: int, padded: Ints) -> int:
    """Zero in lanes that are no channels."""
    for plane in padded:
        d = x + plane * size
        at = flat(out, at, _VMUL, j.dtype, j.tag, d, d, j.constants + plane, -1, 0, 0, size, 0)
    return at


@njit(cache=True)
def _tree(out: Code, at: int, dtype: int, tag: int, d: int, x: int, size: int, planes: int) -> int:
    """d [size] = sum over planes of x [planes][size]: the upper half onto the lower, until one is left.  d has room for half of x."""
    if planes == 1:
        return at if d == x else flat(out, at, _VCOPY, dtype, tag, d, x, -1, -1, 0, 0, size, 0)
    upper = planes // 2
    left = planes - upper
    at = flat(out, at, _VADD, dtype, tag, d, x, x + left * size, -1, 1, 0, upper * size, 0)
    if left > upper and d != x:
        at = flat(out, at, _VCOPY, dtype, tag, d + upper * size, x + upper * size, -1, -1, 0, 0, size, 0)
    while left > 1:
        upper = left // 2
        left -= upper
        at = flat(out, at, _VADD, dtype, tag, d, d, d + left * size, -1, 1, 0, upper * size, 0)
    return at


@njit(cache=True)
def _sum_of_squares(out: Code, at: int, tag: int, d: int, x: int, size: int, planes: int) -> int:
    """d [size] = sum over planes of the squares of x [planes][size], of float32; d may be x's first plane."""
    at = flat(out, at, _VMUL, _F32, tag, d, x, x, -1, 1, 0, size, 0)
    for c in range(0, size, 8):
        for plane in range(1, planes, 255):
            s, repeats = x + plane * size + c, min(255, planes - plane)
            at = vector(out, at, _VMADD, _F32, tag, d + c, s, s, d + c, min(8, size - c), repeats, 1, 0, 1, size, 1, size, 1, 0, 0)
    return at


@njit(cache=True)
def _convert(out: Code, at: int, to: int, tag: int, d: int, s: int, blocks: int) -> int:
    """`blocks` blocks of float16 from, or to, twice as many of float32."""
    done = 0
    wide = 2 if to == _F32 else 1
    while done < blocks:
        left = blocks - done
        repeats = min(255, left // 8) if left >= 8 else 1
        width = 8 if left >= 8 else left
        source = _F16 if to == _F32 else _F32
        begin, from_ = d + done * wide, s + done * (3 - wide)
        at = vector(out, at, _VCONVERT, to, tag, begin, from_, -1, -1, width, repeats, 1, 8 * wide, 1, 8 * (3 - wide), 0, 0, 0, 0, source)
        done += width * repeats
    return at


@general
@njit(cache=True)
def norm_rows(out: Code, at: int, w: Work, n: Node, j: Any, parity: Ints) -> int:
    """A node's records."""
    start, stop = w.computed[n.k, n.t]
    j.rows = stop - start
    return emit_layer_norm(out, at, j, operand(w, n, 0, start), result(w, n, start), table(w, n, 0, 1)[:, 0], parity)
