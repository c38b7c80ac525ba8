"""Emission of tile programs on one block: tiles in, steps on UB, tiles out (`instructions.tiles`); tables are those of `tile_program`.

Integers are worked on in float32, four blocks beside each other for every block of 32 bytes, which is how VCONVERT has them.  Floats lie in
planes of their own outside, two (float16) or four (float32) for a plane of bytes, so their blocks are spread among those four, or gathered
from them.  A pixel of every plane beside an image is in float32 twice, which is what a repeat takes of it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit

from compiler.instructions.builders import DDR, MTE2, UB, Ints, Steps, TilePlace, along, compile_once, copy, flat, strided
from compiler.instructions.conversion import WIDE, stride_blocks
from compiler.instructions.node_context import UB_SLOT, Node, Work, count_operands, locate_operand, locate_result, read_table
from compiler.instructions.repeats import by_planes
from compiler.instructions.tiles import count_tiles, load_tile, store_tile
from simulator.npu.isa import MAX_REPEATS, REPEAT_BLOCKS
from simulator.npu.program import Code

FLAT, CONVERT, SPREAD, GATHER, BESIDE, TWICE, COPIED, PLANES, MASKED = range(9)
"""Modes: how a step goes over a tile.

FLAT      all blocks of the result, end to end
CONVERT   block by block, each of which is several beside each other on one side
SPREAD    planes of floats to blocks beside each other, GATHER back again
BESIDE    plane by plane, beside constants or one pixel of each
TWICE     one pixel of every plane, to float32 twice; COPIED: constants, which are float32 already
PLANES    constants of each plane, plane by plane or eight planes of a pixel at a time
MASKED    the plane that `argument` counts in all planes, if it is in the tile
"""
PIXEL_BLOCKS = REPEAT_BLOCKS  # of one pixel in float32
EXTENT, DTYPE = 5, 8  # columns of the places
_NONE = (0, 0)


class TileJob(NamedTuple):
    """A program on `rows` rows of `width` blocks and `planes` planes of the result, `together` of which are one plane of the program.

    group: planes of the program that a loop goes over at a time.  consts: UB address of constants, those of all planes or, where they are
    streamed, those of the tile's.  packed: whether buffers of a smaller tile lie closer to one another.
    """

    dtype: int
    tag: int
    planes: int
    width: int
    together: int
    group: int
    tile_planes: int
    tile_rows: int
    tile_columns: int
    slot_0: int
    slot_1: int
    consts: int
    streamed: int
    result: int
    packed: int
    rows: int = 0


class _Tile(NamedTuple):
    """Planes [first, first + planes) by `size` pixels of a tile whose first plane is `plane`.

    most_planes, most_size: those of the largest tile, for which buffers have room.  const_planes, const_first: planes that constants are
    there for, and which of them is the tile's first one.
    """

    slot: int
    most_planes: int
    most_size: int
    consts: int
    const_planes: int
    const_first: int
    plane: int
    first: int
    planes: int
    size: int


@njit(cache=True)
def _address(places: Ints, place: int, t: _Tile) -> int:
    """Address of an operand of a step; -1 without one."""
    if place < 0:
        return -1
    constant, tile, line, plane, alike, of_tile, _, of_plane, _ = places[place]
    if constant:
        return t.consts + plane * t.const_planes + alike + of_plane * t.const_first
    begin = (tile * t.most_planes + line) * t.most_size + plane * t.most_planes + alike
    return t.slot + begin + (of_tile * t.size + of_plane) * t.first


@njit(cache=True)
def _broadcast(places: Ints, place: int) -> int:
    """0 for an operand that is one block, else 1."""
    return int(place >= 0 and places[place, EXTENT] + places[place, EXTENT + 1] + places[place, EXTENT + 2] > 0)


@njit(cache=True)
def _apart(places: Ints, place: int, size: int) -> tuple[int, Steps]:
    """Blocks of an operand from plane to plane; from block to block, and from eight to the next eight."""
    if place < 0:
        return 0, _NONE
    of_tile, of_plane = places[place, EXTENT], places[place, EXTENT + 2]
    return (of_tile * size, (1, REPEAT_BLOCKS)) if of_tile else (of_plane, (int(of_plane == PIXEL_BLOCKS), 0))


@njit(cache=True)
def _beside(out: Code, cursor: int, tag: int, step: Ints, places: Ints, t: _Tile) -> int:
    """Emit a step plane by plane."""
    _, op, dtype, d, s, s1, s2, imm, _, _ = step
    (dp, ds), (ap, s0s), (bp, s1s), (cp, s2s) = (
        _apart(places, d, t.size), _apart(places, s, t.size), _apart(places, s1, t.size), _apart(places, s2, t.size),
    )  # fmt: skip
    target, a, b, c = _address(places, d, t), _address(places, s, t), _address(places, s1, t), _address(places, s2, t)
    for p in range(t.planes):
        cursor = along(out, cursor, op, dtype, tag, target + p * dp, a + p * ap, b + p * bp, c + p * cp, dp, ds, s0s, s1s, s2s, imm)
    return cursor


@njit(cache=True)
def _step(out: Code, cursor: int, tag: int, step: Ints, places: Ints, t: _Tile) -> int:
    """Emit a step of any mode."""
    mode, op, dtype, d, s, s1, s2, imm, _, _ = step
    planes, size = t.planes, t.size
    if mode == BESIDE or (mode == PLANES and by_planes(planes, size)):
        return _beside(out, cursor, tag, step, places, t)
    target, a, b, c = _address(places, d, t), _address(places, s, t), _address(places, s1, t), _address(places, s2, t)
    of_tile, of_line, of_plane = places[d, EXTENT], places[d, EXTENT + 1], places[d, EXTENT + 2]
    beside = places[s, EXTENT] if of_tile else places[s, EXTENT + 1]
    if mode == FLAT:
        blocks = (of_tile * planes + of_line) * size + of_plane * planes
        return flat(out, cursor, op, dtype, tag, target, a, b, c, _broadcast(places, s1), _broadcast(places, s2), blocks, imm)
    if mode == CONVERT:
        blocks = planes * size if of_tile else size
        return stride_blocks(out, cursor, op, dtype, tag, target, a, blocks, 1, of_tile + of_line, 1, beside, imm)
    if mode == PLANES:
        return strided(out, cursor, op, dtype, tag, target, a, b, c, planes, size, (size, 1), (size, 1), (1, 0), (1, 0), imm)
    if mode == TWICE:
        return strided(out, cursor, op, dtype, tag, target, a, -1, -1, 2, planes, (1, PIXEL_BLOCKS), (0, 1), _NONE, _NONE, imm)
    if mode == COPIED:
        pitches = (1, places[s, EXTENT + 2])
        for half in range(0, PIXEL_BLOCKS, WIDE):
            cursor = strided(
                out, cursor, op, dtype, tag, target + half, a, -1, -1, WIDE, planes, (1, PIXEL_BLOCKS), pitches, _NONE, _NONE, imm
            )
        return cursor
    # planes of floats for one of bytes, and blocks of them that lie beside each other
    count, wide = (beside, of_tile) if mode == SPREAD else (of_tile, beside)
    for part in range(planes * count):
        wider, narrow = part // count * size * wide + part % count * (wide // count), part * size
        if mode == SPREAD:
            cursor = stride_blocks(out, cursor, op, dtype, tag, target + wider, a + narrow, size, count, wide, 1, 1, imm)
        else:
            cursor = stride_blocks(out, cursor, op, dtype, tag, target + narrow, a + wider, size, 1, 1, count, wide, imm)
    return cursor


@njit(cache=True)
def emit_tiles(
    out: Code, cursor: int, job: TileJob, sources: Ints, target: TilePlace, steps: Ints, places: Ints, constants: Ints, parity: Ints
) -> int:
    """Emit tiles.  sources: int64 [inputs, 7] of Place fields.  Returns the next row or -1."""
    count, across, tile_rows = count_tiles(job.rows, job.tile_rows, job.width, job.tile_columns)
    most_planes, most_size = job.tile_planes // job.together, tile_rows * job.tile_columns
    inputs = sources.shape[0]
    # runs of planes, constants of a run, tiles; loads, steps, and the store of a tile
    for p in range(0, job.planes, job.tile_planes):
        first, planes = p // job.together, min(job.tile_planes, job.planes - p) // job.together
        const_planes, const_first = (most_planes, 0) if job.streamed else (job.planes // job.together, first)
        if cursor + constants.shape[0] >= out.shape[0]:
            return -1
        for i in range(constants.shape[0] if job.streamed else 0):
            source, begin_plane, begin, alike, of_plane = constants[i]
            cursor = copy(
                out, cursor, job.dtype, job.tag, MTE2, DDR, UB, source + of_plane * first, job.consts + begin_plane * const_planes + begin,
                alike + of_plane * planes, 1, 0, 0, 1, 0, 0,
            )  # fmt: skip
        for tile in range(count):
            r, c = tile // across * tile_rows, tile % across * job.tile_columns
            size = min(tile_rows, job.rows - r) * min(job.tile_columns, job.width - c)
            # upper bound of the records of a step, or of the moves
            room = (WIDE * planes + 1) * (WIDE * size * planes // (REPEAT_BLOCKS * MAX_REPEATS) + 2) + 8 * inputs
            if cursor + room >= out.shape[0]:
                return -1
            slot = job.slot_1 if parity[UB_SLOT] else job.slot_0
            parity[UB_SLOT] ^= 1
            full_tile = _Tile(slot, most_planes, most_size, job.consts, const_planes, const_first, first, 0, planes, size)
            pixel = r * job.width + c
            for i in range(inputs):
                fields = sources[i]
                place = TilePlace(fields[0], fields[1], fields[2], fields[3], fields[4], fields[5], fields[6])
                factor, begin, pixels = (places[i, EXTENT], pixel, size) if places[i, EXTENT] else (places[i, EXTENT + 2], 0, 1)
                cursor = load_tile(
                    out, cursor, places[i, DTYPE], job.tag, place, first * factor, begin, pixels, planes * factor,
                    _address(places, i, full_tile),
                )  # fmt: skip
            for k in range(steps.shape[0]):
                if cursor + room >= out.shape[0]:
                    return -1
                cursor = _step(out, cursor, job.tag, steps[k], places, full_tile)
            cursor = store_tile(
                out, cursor, job.dtype, job.tag, target, p, pixel, size, planes * job.together, _address(places, job.result, full_tile)
            )
    return cursor


@compile_once
@njit(cache=True)
def program_rows(out: Code, cursor: int, work: Work, node: Node, job: Any, parity: Ints) -> int:
    """A node's records."""
    start, stop = work.computed[node.k, node.t]
    job.rows = stop - start
    sources = np.empty((count_operands(work, node), 7), np.int64)
    for i in range(sources.shape[0]):
        place = locate_operand(work, node, i, start)
        sources[i, 0], sources[i, 1], sources[i, 2], sources[i, 3] = place.memory, place.base, place.plane, place.wrap
        sources[i, 4], sources[i, 5], sources[i, 6] = place.back, place.width, place.gap
    steps, places, constants = read_table(work, node, 0, 10), read_table(work, node, 1, 9), read_table(work, node, 2, 5)
    return emit_tiles(out, cursor, job, sources, locate_result(work, node, start), steps, places, constants, parity)
