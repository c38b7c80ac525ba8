"""Layer normalisation over the channels of every pixel, on one block.

A tile is all planes by some rows.  Sums go over planes first, then over the lanes of a block, which leaves the result in every lane, ready
to be an operand for all planes.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from numba import njit

from compiler.instructions.builders import DDR, MTE2, UB, Ints, TilePlace, compile_once, copy, flat, multiply_add, strided, vector
from compiler.instructions.node_context import UB_SLOT, Node, Work, locate_operand, locate_result, read_table
from compiler.instructions.tiles import combine_pixels, count_tiles, load_tile, store_tile
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
def emit_layer_norm(out: Code, cursor: int, job: LayerNormJob, source: TilePlace, target: TilePlace, padded: Ints, parity: Ints) -> int:
    """(x - mean) / sqrt(variance + epsilon) * scale + shift.  Squares and their sum are float32: in float16 those of 256 overflow."""
    count, across, tile_rows = count_tiles(job.rows, job.tile_rows, job.width, job.tile_columns)
    half = job.dtype == _F16
    if job.constants_at >= 0:
        if cursor >= out.shape[0]:
            return -1
        cursor = copy(
            out, cursor, job.dtype, job.tag, MTE2, DDR, UB, job.constants_at, job.constants, job.kinds * job.planes, 1, 0, 0, 1, 0, 0
        )
    for tile in range(count):
        r, c = tile // across * tile_rows, tile % across * job.tile_columns
        size = min(tile_rows, job.rows - r) * min(job.tile_columns, job.width - c)
        if cursor + 64 + (2 * len(padded) + job.planes) * (size // 2040 + 2) + 8 * (job.planes * size // 1020 + size) >= out.shape[0]:
            return -1
        x = job.slot_1 if parity[UB_SLOT] else job.slot_0
        parity[UB_SLOT] ^= 1
        squares = x + job.planes * size
        cursor = load_tile(out, cursor, job.dtype, job.tag, source, 0, r * job.width + c, size, job.planes, x)
        cursor = _mask(out, cursor, job, x, size, padded)
        if not job.centred:  # subtract the mean, and clear the other lanes again
            cursor = _tree(out, cursor, job.dtype, job.tag, squares, x, size, job.planes)
            cursor = flat(out, cursor, _VMULS, job.dtype, job.tag, squares, squares, -1, -1, 0, 0, size, job.per_channel)
            cursor = flat(out, cursor, _LANE_SUM, job.dtype, job.tag, squares, squares, -1, -1, 0, 0, size, 0)
            cursor = combine_pixels(out, cursor, job.dtype, job.tag, _VSUB, x, squares, size, job.planes)
            cursor = _mask(out, cursor, job, x, size, padded)
        # factor = 1 / sqrt(mean of squares + epsilon), in float32
        factor = squares
        if half:
            wide = 2 * size  # blocks of float32 in a plane
            cursor = _convert(out, cursor, _F32, job.tag, squares, x, job.planes * size)
            cursor = _sum_of_squares(out, cursor, job.tag, squares, squares, wide, job.planes)
            factor = squares + wide  # one block of a pixel gets the sum of both
            cursor = strided(
                out, cursor, _VADD, _F32, job.tag, factor, squares, squares + 1, -1, size, 1, (1, 0), (2, 0), (2, 0), (0, 0), 0
            )
        else:
            cursor = _sum_of_squares(out, cursor, job.tag, squares, x, size, job.planes)
        cursor = flat(out, cursor, _LANE_SUM, _F32, job.tag, factor, factor, -1, -1, 0, 0, size, 0)
        cursor = flat(out, cursor, _VMULS, _F32, job.tag, factor, factor, -1, -1, 0, 0, size, job.per_channel)
        cursor = flat(out, cursor, _VADDS, _F32, job.tag, factor, factor, -1, -1, 0, 0, size, job.epsilon)
        cursor = flat(out, cursor, _VSQRT, _F32, job.tag, factor, factor, -1, -1, 0, 0, size, 0)
        cursor = flat(out, cursor, _VRECIPROCAL, _F32, job.tag, factor, factor, -1, -1, 0, 0, size, 0)
        if half:
            cursor = flat(out, cursor, _VMINS, _F32, job.tag, factor, factor, -1, -1, 0, 0, size, job.largest)
            for block in range(2):
                cursor = strided(
                    out, cursor, _VCOPY, _F32, job.tag, squares + block, factor, -1, -1, size, 1, (2, 0), (1, 0), (0, 0), (0, 0), 0
                )
            cursor = _convert(out, cursor, _F16, job.tag, factor, squares, size)
        cursor = combine_pixels(out, cursor, job.dtype, job.tag, _VMUL, x, factor, size, job.planes)
        if job.kinds == 3:
            scale = job.constants + job.planes
            cursor = multiply_add(out, cursor, _VMADD, job.dtype, job.tag, x, x, scale, scale + job.planes, job.planes, size)
        cursor = store_tile(out, cursor, job.dtype, job.tag, target, 0, r * job.width + c, size, job.planes, x)
    return cursor


@njit(cache=True)
def _mask(out: Code, cursor: int, job: LayerNormJob, tile_base: int, size: int, padded: Ints) -> int:
    """Set lanes that are no channels to zero."""
    for plane in padded:
        target = tile_base + plane * size
        cursor = flat(out, cursor, _VMUL, job.dtype, job.tag, target, target, job.constants + plane, -1, 0, 0, size, 0)
    return cursor


@njit(cache=True)
def _tree(out: Code, cursor: int, dtype: int, tag: int, target: int, source: int, size: int, planes: int) -> int:
    """target [size] = sum over planes of source [planes][size], by halves.  target has room for half of source."""
    if planes == 1:
        return cursor if target == source else flat(out, cursor, _VCOPY, dtype, tag, target, source, -1, -1, 0, 0, size, 0)
    upper = planes // 2
    remaining = planes - upper
    cursor = flat(out, cursor, _VADD, dtype, tag, target, source, source + remaining * size, -1, 1, 0, upper * size, 0)
    if remaining > upper and target != source:
        cursor = flat(out, cursor, _VCOPY, dtype, tag, target + upper * size, source + upper * size, -1, -1, 0, 0, size, 0)
    while remaining > 1:
        upper = remaining // 2
        remaining -= upper
        cursor = flat(out, cursor, _VADD, dtype, tag, target, target, target + remaining * size, -1, 1, 0, upper * size, 0)
    return cursor


@njit(cache=True)
def _sum_of_squares(out: Code, cursor: int, tag: int, target: int, source: int, size: int, planes: int) -> int:
    """target [size] = sum over planes of the squares of source [planes][size], float32; target may be its first plane."""
    cursor = flat(out, cursor, _VMUL, _F32, tag, target, source, source, -1, 1, 0, size, 0)
    for c in range(0, size, 8):
        for plane in range(1, planes, 255):
            block, repeats = source + plane * size + c, min(255, planes - plane)
            cursor = vector(
                out, cursor, _VMADD, _F32, tag, target + c, block, block, target + c, min(8, size - c), repeats, 1, 0, 1, size, 1, size, 1,
                0, 0,
            )  # fmt: skip
    return cursor


@njit(cache=True)
def _convert(out: Code, cursor: int, to: int, tag: int, target: int, source: int, blocks: int) -> int:
    """`blocks` blocks of float16 from, or to, twice as many of float32."""
    done = 0
    wide = 2 if to == _F32 else 1
    while done < blocks:
        remaining = blocks - done
        repeats = min(255, remaining // 8) if remaining >= 8 else 1
        width = 8 if remaining >= 8 else remaining
        source_type = _F16 if to == _F32 else _F32
        begin, from_ = target + done * wide, source + done * (3 - wide)
        cursor = vector(
            out, cursor, _VCONVERT, to, tag, begin, from_, -1, -1, width, repeats, 1, 8 * wide, 1, 8 * (3 - wide), 0, 0, 0, 0, source_type
        )
        done += width * repeats
    return cursor


@compile_once
@njit(cache=True)
def norm_rows(out: Code, cursor: int, work: Work, node: Node, job: Any, parity: Ints) -> int:
    """A node's records."""
    start, stop = work.computed[node.k, node.t]
    job.rows = stop - start
    return emit_layer_norm(
        out, cursor, job, locate_operand(work, node, 0, start), locate_result(work, node, start), read_table(work, node, 0, 1)[:, 0], parity
    )
