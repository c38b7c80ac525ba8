"""Depthwise convolution on VECTOR: a multiply-add for every tap, over all pixels and planes of a tile.

A tile of the input lies in UB with its padding, so no tap needs its own borders.  The padding on the right of a row is also the padding on
the left of the next row.  With stride 1, results have the row pitch of the input.  Every tap is then one run from the first result to the
last result; the copy out of UB skips the blocks between two rows.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from numba import njit

from compiler.instructions.builders import DDR, FAR, MTE1, MTE2, MTE3, UB, Ints, TilePlace, compile_once, dense, flat, move
from compiler.instructions.conversion import stride_blocks
from compiler.instructions.node_context import Node, Work, locate_operand, locate_result
from compiler.instructions.tiles import UbTiles, next_tile
from compiler.instructions.vector_grid import Axes, grid, grid_of_three, max_instructions
from compiler.ir.reach import demanded
from simulator.npu.isa import REPEAT_BLOCKS, Activation, Op
from simulator.npu.parts import DataType
from simulator.npu.program import Code

_VFILL, _VMUL, _VMADD, _VMAXS, _VMINS, _VCONVERT = (int(o) for o in (Op.VFILL, Op.VMUL, Op.VMADD, Op.VMAXS, Op.VMINS, Op.VCONVERT))
_NONE, _CLIP, _F32 = int(Activation.none), int(Activation.clip), int(DataType.float32)
_STILL: Axes = (0, 0, 0)


class DepthwiseJob(NamedTuple):
    """Depthwise convolution of a node's rows.  weights: UB address of [planes][kh * kw] blocks.

    wide_bias: UB address of the biases in float32, [planes] of two blocks.  bias: UB address of the converted biases, [planes] blocks; -1
    without biases.
    """

    dtype: int
    tag: int
    tiles: UbTiles
    in_h: int
    in_w: int
    kh: int
    kw: int
    sh: int
    sw: int
    dh: int
    dw: int
    pad_top: int
    pad_left: int
    act: int
    limit: int  # float32 bits
    weights: int
    wide_bias: int
    bias: int


class Side(NamedTuple):
    """Pixels under a tile's windows along one axis: `size` in all.  before, after: padding pixels on both sides.  first, inside: first
    pixel in the image, and number of pixels in the image."""

    size: int
    before: int
    first: int
    inside: int
    after: int


@njit(cache=True)
def tile_side(begin: int, results: int, stride: int, kernel: int, dilation: int, length: int) -> Side:
    """Extent of a tile along an axis.  begin: first pixel of the first window, negative in padding.  length: pixels of the image."""
    size = (results - 1) * stride + (kernel - 1) * dilation + 1
    first, end = max(0, begin), min(length, begin + size)
    if end <= first:
        return Side(size, 0, 0, 0, size)
    return Side(size, first - begin, first, end - first, begin + size - end)


class TileShape(NamedTuple):
    """Pitches of a tile in UB, in blocks: row and plane pitch of the input, row and plane pitch of the results."""

    pitch: int
    plane: int
    out_pitch: int
    out_plane: int


@njit(cache=True)
def tile_shape(down: Side, across: Side, rows: int, columns: int, same_pitch: bool) -> TileShape:
    """Layout of a tile.  same_pitch: results have the row pitch of the input, in one run that is padded to whole repeats."""
    pitch = max(columns, across.inside + max(across.before, across.after))
    if down.inside == 0 or across.inside == 0:
        pitch = columns  # every window covers only zeros
    plane = max(down.size * pitch + across.before, (down.size - 1) * pitch + across.size)
    if not same_pitch:
        return TileShape(pitch, plane, columns, rows * columns)
    run = ((rows - 1) * pitch + columns + REPEAT_BLOCKS - 1) // REPEAT_BLOCKS * REPEAT_BLOCKS
    return TileShape(pitch, max(plane, (down.size - rows) * pitch + across.size - columns + run), pitch, run)


@njit(cache=True)
def _padded(
    out: Code, cursor: int, job: DepthwiseJob, source: TilePlace, first_plane: int, planes: int, down: Side, across: Side, pitch: int,
    plane: int, tile_base: int,
) -> int:  # fmt: skip
    """Load a tile of the input from block tile_base on, and fill its padding with zeros."""
    dtype, tag = job.dtype, job.tag
    if down.inside == 0 or across.inside == 0:
        return grid(out, cursor, _VFILL, dtype, tag, (plane, 1, planes), tile_base, (1, 0, plane), -1, _STILL, -1, _STILL, 0)
    head, gap = down.before * pitch + across.before, pitch - across.inside
    tail = plane - (down.before + down.inside) * pitch - across.before
    first = tile_base + head
    if head > 0:
        cursor = grid(out, cursor, _VFILL, dtype, tag, (head, 1, planes), tile_base, (1, 0, plane), -1, _STILL, -1, _STILL, 0)
    if gap > 0:
        cursor = grid(
            out, cursor, _VFILL, dtype, tag, (gap, down.inside, planes), first + across.inside, (1, pitch, plane), -1, _STILL, -1, _STILL, 0
        )  # fmt: skip
    if tail > 0:
        end = first + down.inside * pitch
        cursor = grid(out, cursor, _VFILL, dtype, tag, (tail, 1, planes), end, (1, 0, plane), -1, _STILL, -1, _STILL, 0)
    engine, row = MTE2 if source.memory == DDR else MTE1, down.first - job.tiles.in_first
    if across.inside == job.in_w:
        into = TilePlace(UB, first, plane, FAR, 0, job.in_w, gap)
        return move(out, cursor, dtype, tag, engine, source, row * job.in_w, into, 0, first_plane, planes, down.inside * job.in_w)
    for i in range(down.inside):
        begin = (row + i) * job.in_w + across.first
        cursor = move(
            out, cursor, dtype, tag, engine, source, begin, dense(UB, first + i * pitch, plane), 0, first_plane, planes, across.inside
        )
    return cursor


@njit(cache=True)
def _tiles(out: Code, cursor: int, job: DepthwiseJob, source: TilePlace, target: TilePlace, slot_state: Ints) -> int:
    tiles = job.tiles
    taps, same_pitch = job.kh * job.kw, job.sh == 1 and job.sw == 1
    index, tile = 0, next_tile(tiles, 0, slot_state)
    while tile.planes > 0:
        p, planes, rows, columns, x = tile.plane, tile.planes, tile.rows, tile.columns, tile.slot
        down = tile_side((tiles.first_row + tile.row) * job.sh - job.pad_top, rows, job.sh, job.kh, job.dh, job.in_h)
        across = tile_side(tile.column * job.sw - job.pad_left, columns, job.sw, job.kw, job.dw, job.in_w)
        pitch, plane, out_pitch, out_plane = tile_shape(down, across, rows, columns, same_pitch)
        # upper bound of the records of a tile
        n, every = (out_plane, 1, planes) if same_pitch else (columns, rows, planes), planes * out_plane
        room = (
            taps * max_instructions(n[0], n[1], n[2])
            + 2 * max_instructions(plane, 1, planes)
            + max_instructions(pitch, down.size, planes)
            + every // 1000
        )
        if cursor + room + 4 * (down.size + rows) + 16 >= out.shape[0]:
            return -1
        y = x + planes * plane
        cursor = _padded(out, cursor, job, source, p, planes, down, across, pitch, plane, x)
        # the first tap sets the sums, starting from the bias if one exists; every other tap adds
        ds, xs, ws = (1, out_pitch, out_plane), (job.sw, job.sh * pitch, plane), (0, 0, taps)
        for tap in range(taps):
            from_ = x + tap // job.kw * job.dh * pitch + tap % job.kw * job.dw
            by = job.weights + p * taps + tap
            if tap > 0:
                cursor = grid_of_three(out, cursor, _VMADD, job.dtype, job.tag, n, y, ds, from_, xs, by, ws, y, ds, 0)
            elif job.bias >= 0:
                cursor = grid_of_three(out, cursor, _VMADD, job.dtype, job.tag, n, y, ds, from_, xs, by, ws, job.bias + p, (0, 0, 1), 0)
            else:
                cursor = grid(out, cursor, _VMUL, job.dtype, job.tag, n, y, ds, from_, xs, by, ws, 0)
        if job.act != _NONE:
            cursor = flat(out, cursor, _VMAXS, job.dtype, job.tag, y, y, -1, -1, 0, 0, every, 0)
        if job.act == _CLIP:
            cursor = flat(out, cursor, _VMINS, job.dtype, job.tag, y, y, -1, -1, 0, 0, every, job.limit)
        result_place = TilePlace(UB, y, out_plane, FAR, 0, columns, out_pitch - columns)
        cursor = move(out, cursor, job.dtype, job.tag, MTE3, result_place, 0, target, tile.first, p, planes, rows * columns)
        index += 1
        tile = next_tile(tiles, index, slot_state)
    return cursor


@compile_once
@njit(cache=True)
def depthwise_rows(out: Code, cursor: int, work: Work, node: Node, job: Any, slot_state: Ints) -> int:
    """A node's records."""
    start, stop = work.computed[node.k, node.t]
    first, _ = demanded(work.reach[node.k], work.bounds, start, stop)
    job.tiles.first_row, job.tiles.rows, job.tiles.in_first = start, stop - start, first
    if node.begins and job.bias >= 0:
        if cursor + job.tiles.planes >= out.shape[0]:
            return -1
        cursor = stride_blocks(out, cursor, _VCONVERT, job.dtype, job.tag, job.bias, job.wide_bias, job.tiles.planes, 1, 1, 1, 2, _F32)
    return _tiles(out, cursor, job, locate_operand(work, node, 0, first), locate_result(work, node, start), slot_state)
