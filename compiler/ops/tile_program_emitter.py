"""Emission of tile programs (`tile_program`) on one block: loads of a tile, steps on UB, store of the result (`instructions.tiles`).

Integers are computed in float32.  VCONVERT writes four adjacent float32 blocks per block of 32 bytes.  A tensor of floats has two (float16)
or four (float32) planes per plane of bytes; SPREAD and GATHER convert between both layouts.  A plane's pixel that is an operand beside an
image is stored twice in float32, because a repeat reads eight blocks.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from numba import njit

from compiler.instructions.builders import DDR, MTE2, UB, Ints, Steps, along, compile_once, copy, flat, inlined, strided
from compiler.instructions.conversion import WIDE, stride_blocks
from compiler.instructions.node_context import Node, Work, count_operands, locate_operand, locate_result, read_table
from compiler.instructions.repeats import by_planes
from compiler.instructions.tiles import UbTiles, load_tile, next_tile, store_tile
from compiler.instructions.vector_grid import grid, grid_of_three
from simulator.npu.isa import MAX_REPEATS, REPEAT_BLOCKS, Op
from simulator.npu.program import Code

FLAT, CONVERT, SPREAD, GATHER, BESIDE, TWICE, COPIED, PLANES, MASKED, LINES, REDUCED, HALVED, SQUARED, COMBINED = range(14)
BY_LINE, BY_PIXEL, WIDE_MASKED, TO_PIXELS, TO_PLANES, SUMMED, LANE = range(14, 21)
"""Modes of steps.  Exponentials (`quantised_softmax`) lie [pixels][planes][WIDE]; all other buffers lie [planes][pixels].

| mode        | meaning                                                                                                |
|-------------|--------------------------------------------------------------------------------------------------------|
| FLAT        | The step takes all blocks of the result as one run.                                                    |
| CONVERT     | VCONVERT between blocks and several adjacent blocks of a wider type each.                              |
| SPREAD      | Planes of floats are copied or converted to adjacent float32 blocks.                                   |
| GATHER      | Adjacent blocks are written to planes of floats, the inverse of SPREAD.                                |
| BESIDE      | The step runs plane by plane, with operands that are constants or one pixel of the plane.              |
| TWICE       | One pixel of every plane is converted to float32 and stored twice.                                     |
| COPIED      | float32 constants of every plane are stored twice, like a pixel.                                       |
| PLANES      | Every plane has its own constants; a repeat takes one plane or eight planes.                           |
| MASKED      | The step takes plane `argument` of all planes, if the tile has this plane.                             |
| LINES       | The step takes one of several adjacent blocks of every pixel.                                          |
| REDUCED     | All planes are reduced to one plane, plane after plane.                                                |
| HALVED      | All planes are reduced to one plane: one half is combined with the other half, repeatedly.             |
| SQUARED     | All planes are reduced to the sum of their squares.                                                    |
| COMBINED    | Every plane is combined with one block per pixel.                                                      |
| BY_LINE     | COMBINED of planes of bytes, on the fastest axes.                                                      |
| BY_PIXEL    | COMBINED of exponentials.                                                                              |
| WIDE_MASKED | MASKED of exponentials.                                                                                |
| TO_PIXELS   | Planes of bytes are converted to exponentials.                                                         |
| TO_PLANES   | Exponentials are converted to planes of bytes.                                                         |
| SUMMED      | The lanes of the first `argument` blocks of every pixel are added in order.                            |
| LANE        | Block `argument` of every pixel is multiplied by a constant block and added to the result.             |
"""
PIXEL_BLOCKS = REPEAT_BLOCKS  # blocks of one pixel of a plane in float32, stored twice
EXTENT, DTYPE = 5, 8  # columns of `places`
LOOP = 9  # column of `steps`
_VCOPY, _VMADD = int(Op.VCOPY), int(Op.VMADD)
_NONE = (0, 0)


class TileJob(NamedTuple):
    """A program on a node's rows.

    together, group, result, packed: see `TileProgram`.  streamed: whether constants are loaded for the planes of a tile, else for all
    planes.  consts: UB address of the constants.
    """

    dtype: int
    tag: int
    tiles: UbTiles
    together: int
    group: int
    consts: int
    streamed: int
    result: int
    packed: int


class _Tile(NamedTuple):
    """Planes [first, first + planes) by `size` pixels of a tile.  plane: first plane of the tile.  slot, consts: UB addresses.

    most_planes, most_size: planes and pixels that buffers have room for.  const_planes: planes with constants in UB.  const_first: index of
    the tile's first plane among these.
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


@inlined
def _address(places: Ints, place: int, t: _Tile) -> int:
    """Address of an operand of a step; -1 for a missing operand."""
    if place < 0:
        return -1
    constant, tile, line, plane, alike, of_tile, _, of_plane, _ = places[place]
    if constant:
        return t.consts + plane * t.const_planes + alike + of_plane * t.const_first
    begin = (tile * t.most_planes + line) * t.most_size + plane * t.most_planes + alike
    return t.slot + begin + (of_tile * t.size + of_plane) * t.first


@inlined
def _broadcast(places: Ints, place: int) -> int:
    """0 for an operand that is one block, else 1."""
    return int(place >= 0 and places[place, EXTENT] + places[place, EXTENT + 1] + places[place, EXTENT + 2] > 0)


@inlined
def _apart(places: Ints, place: int, size: int) -> tuple[int, Steps]:
    """Strides of an operand in blocks: (from plane to plane, (from block to block, from eight blocks to the next eight))."""
    if place < 0:
        return 0, _NONE
    of_tile, of_plane = places[place, EXTENT], places[place, EXTENT + 2]
    return (of_tile * size, (1, REPEAT_BLOCKS)) if of_tile else (of_plane, (int(of_plane == PIXEL_BLOCKS), 0))


@inlined
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


@inlined
def _step(out: Code, cursor: int, tag: int, step: Ints, places: Ints, t: _Tile) -> int:
    """Emit a step of any mode."""
    mode, op, dtype, d, s, s1, s2, imm, argument, _ = step
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
    if mode in (SPREAD, GATHER):
        return _spread(out, cursor, tag, step, target, a, planes, size, of_tile, beside)
    if mode in (MASKED, WIDE_MASKED) and not t.plane <= argument < t.plane + planes:
        return cursor
    if mode >= BY_LINE:
        return _exponentials(out, cursor, tag, step, target, a, b, t)
    if mode == MASKED:
        begin = (argument - t.plane) * size
        mask = b + (argument - t.plane) * places[s1, EXTENT + 2]
        return flat(out, cursor, op, dtype, tag, target + begin, a + begin, mask, -1, 0, 0, size, imm)
    if mode == LINES:
        second = places[s1, EXTENT + 1] if s1 >= 0 else 0
        return strided(out, cursor, op, dtype, tag, target, a, b, -1, size, 1, (of_line, 0), (beside, 0), (second, 0), _NONE, imm)
    if mode == COMBINED and size < REPEAT_BLOCKS < planes:  # few pixels: planes fill an instruction better
        return strided(out, cursor, op, dtype, tag, target, a, b, -1, planes, size, (size, 1), (size, 1), (0, 1), _NONE, imm)
    if mode == COMBINED:
        return strided(out, cursor, op, dtype, tag, target, a, b, -1, size, planes, (1, size), (1, size), (1, 0), _NONE, imm)
    return _reduce(out, cursor, tag, step, target, a, planes, size * of_line)


@njit(cache=True)
def _spread(
    out: Code, cursor: int, tag: int, step: Ints, target: int, source: int, planes: int, size: int, of_target: int, of_source: int
) -> int:
    """Emit SPREAD or GATHER.  of_target, of_source: planes per plane of the program."""
    mode, op, dtype, imm = step[0], step[1], step[2], step[7]
    count, wide = (of_source, of_target) if mode == SPREAD else (of_target, of_source)
    for part in range(planes * count):
        wider, narrow = part // count * size * wide + part % count * (wide // count), part * size
        if mode == SPREAD:
            cursor = stride_blocks(out, cursor, op, dtype, tag, target + wider, source + narrow, size, count, wide, 1, 1, imm)
        else:
            cursor = stride_blocks(out, cursor, op, dtype, tag, target + narrow, source + wider, size, 1, 1, count, wide, imm)
    return cursor


@njit(cache=True)
def _reduce(out: Code, cursor: int, tag: int, step: Ints, target: int, source: int, planes: int, size: int) -> int:
    """target [size] = all planes of source [planes][size] reduced.  In mode HALVED, target has room for half of the planes."""
    mode, op, dtype, second = step[0], step[1], step[2], source + size
    if mode == SQUARED:
        cursor = flat(out, cursor, op, dtype, tag, target, source, source, -1, 1, 0, size, 0)
        by_pixel, by_plane = (1, 0), (1, size)
        return strided(
            out, cursor, _VMADD, dtype, tag, target, second, second, target, size, planes - 1, by_pixel, by_plane, by_plane, by_pixel, 0
        )
    if planes == 1:
        return flat(out, cursor, _VCOPY, dtype, tag, target, source, -1, -1, 0, 0, size, 0)
    if mode == REDUCED:
        cursor = flat(out, cursor, op, dtype, tag, target, source, second, -1, 1, 0, size, 0)
        by_pixel, by_plane = (1, 0), (1, size)
        return strided(
            out, cursor, op, dtype, tag, target, target, second + size, -1, size, planes - 2, by_pixel, by_pixel, by_plane, _NONE, 0
        )
    upper = planes // 2
    remaining = planes - upper
    cursor = flat(out, cursor, op, dtype, tag, target, source, source + remaining * size, -1, 1, 0, upper * size, 0)
    if remaining > upper:
        cursor = flat(out, cursor, _VCOPY, dtype, tag, target + upper * size, source + upper * size, -1, -1, 0, 0, size, 0)
    while remaining > 1:
        upper = remaining // 2
        remaining -= upper
        cursor = flat(out, cursor, op, dtype, tag, target, target, target + remaining * size, -1, 1, 0, upper * size, 0)
    return cursor


@njit(cache=True)
def _exponentials(out: Code, cursor: int, tag: int, step: Ints, target: int, a: int, b: int, t: _Tile) -> int:
    """Emit a step on exponentials, or on the bytes they are computed from."""
    mode, op, dtype, _, _, _, _, imm, argument, _ = step
    planes, size, spread = t.planes, t.size, WIDE * t.planes
    if mode == BY_LINE:
        return grid(out, cursor, op, dtype, tag, (size, planes, 1), target, (1, size, 0), a, (1, size, 0), b, (1, 0, 0), imm)
    if mode == BY_PIXEL:
        return grid(out, cursor, op, dtype, tag, (spread, size, 1), target, (1, spread, 0), a, (1, spread, 0), b, (0, 1, 0), imm)
    if mode == WIDE_MASKED:
        begin, pitches = WIDE * (argument - t.plane), (1, spread, 0)
        return grid(out, cursor, op, dtype, tag, (WIDE, size, 1), target + begin, pitches, a + begin, pitches, b, (1, 0, 0), imm)
    if mode == SUMMED:
        return strided(out, cursor, op, dtype, tag, target, a, b, -1, size, argument, (1, 0), (spread, 1), (1, 0), _NONE, imm)
    if mode == LANE:
        one, pitches = (1, 1, 1), (spread, spread, spread)
        return grid_of_three(out, cursor, op, dtype, tag, (size, 1, 1), target, one, a + argument, pitches, b, (0, 0, 0), target, one, imm)
    # instructions run along the longer axis, to have full repeats
    by_pixel = size < planes
    count, blocks = (size, planes) if by_pixel else (planes, size)
    bytes_apart, floats_apart = (1, spread) if by_pixel else (size, WIDE)
    byte_steps = (size, REPEAT_BLOCKS * size) if by_pixel else (1, REPEAT_BLOCKS)
    float_steps = (1, REPEAT_BLOCKS * WIDE) if by_pixel else (planes, REPEAT_BLOCKS * spread)
    for i in range(count):
        if mode == TO_PIXELS:
            d, s = target + i * floats_apart, a + i * bytes_apart
            cursor = along(out, cursor, op, dtype, tag, d, s, b, -1, blocks, float_steps, byte_steps, _NONE, _NONE, imm)
        else:
            d, s = target + i * bytes_apart, a + i * floats_apart
            cursor = along(out, cursor, op, dtype, tag, d, s, -1, -1, blocks, byte_steps, float_steps, _NONE, _NONE, imm)
    return cursor


@compile_once
@njit(cache=True)
def program_rows(out: Code, cursor: int, work: Work, node: Node, job: Any, slot_state: Ints) -> int:
    """A node's records."""
    start, stop = work.computed[node.k, node.t]
    inputs, target = count_operands(work, node), locate_result(work, node, start)
    steps, places, constants = read_table(work, node, 0, 10), read_table(work, node, 1, 9), read_table(work, node, 2, 5)
    tiles = job.tiles
    tiles.rows = stop - start
    most_planes, most_size = tiles.tile_planes // job.together, min(tiles.tile_rows, tiles.rows) * tiles.tile_columns
    # runs of planes: constants of the run, then its tiles; per tile: loads, steps, store
    index, tile = 0, next_tile(tiles, 0, slot_state)
    while tile.planes > 0:
        first, planes, size = tile.plane // job.together, tile.planes // job.together, tile.size
        const_planes, const_first = (most_planes, 0) if job.streamed else (tiles.planes // job.together, first)
        if cursor + constants.shape[0] >= out.shape[0]:
            return -1
        for i in range(constants.shape[0] if job.streamed and tile.first == 0 else 0):
            source, begin_plane, begin, alike, of_plane = constants[i]
            cursor = copy(
                out, cursor, job.dtype, job.tag, MTE2, DDR, UB, source + of_plane * first, job.consts + begin_plane * const_planes + begin,
                alike + of_plane * planes, 1, 0, 0, 1, 0, 0,
            )  # fmt: skip
        # upper bound of the records of a step, or of the moves
        room = (WIDE * planes + 1) * (WIDE * size * planes // (REPEAT_BLOCKS * MAX_REPEATS) + 2) + 8 * inputs
        room += (size // 2 + 4) * (WIDE * planes // MAX_REPEATS + 2)
        if cursor + room >= out.shape[0]:
            return -1
        pixel_room = size if job.packed else most_size
        full_tile = _Tile(tile.slot, most_planes, pixel_room, job.consts, const_planes, const_first, first, 0, planes, size)
        for i in range(inputs):
            place, address = locate_operand(work, node, i, start), _address(places, i, full_tile)
            factor, begin, pixels = (places[i, EXTENT], tile.first, size) if places[i, EXTENT] else (places[i, EXTENT + 2], 0, 1)
            cursor = load_tile(out, cursor, places[i, DTYPE], job.tag, place, first * factor, begin, pixels, planes * factor, address)
        k = group = 0
        while k < steps.shape[0]:
            if cursor + room >= out.shape[0]:
                return -1
            loop = steps[k, LOOP]
            group_tile = _Tile(tile.slot, most_planes, pixel_room, job.consts, const_planes, const_first, first, group, job.group, size)
            cursor = _step(out, cursor, job.tag, steps[k], places, group_tile if loop else full_tile)
            k += 1
            if loop > 0:  # repeat the loop for the next group
                group = group + job.group if group + job.group < planes else 0
                k -= loop if group else 0
        result = _address(places, job.result, full_tile)
        cursor = store_tile(out, cursor, job.dtype, job.tag, target, tile.plane, tile.first, size, planes * job.together, result)
        index += 1
        tile = next_tile(tiles, index, slot_state)
    return cursor
