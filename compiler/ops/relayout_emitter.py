"""Emission of a relayout on one block: moves gather the blocks of a tile in UB, and one move stores it.

A place of the result is a group of planes and a pixel.  Both numbers are split into *digits* (mixed radix, the fastest digit last).  A
digit of size SIZE moves the place of the source by GROUP groups and PIXEL pixels per step; with a digit outside [LOW, HIGH), the place has
no source and is filled.  So a run over the last digit, or over the last two, is a move with constant strides.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from numba import njit

from compiler.instructions.builders import DDR, MTE1, MTE2, RECORD_BLOCKS, UB, Ints, TilePlace, block_at, compile_once, copy, flat
from compiler.instructions.node_context import Node, Work, locate_operand, locate_result, read_table
from compiler.instructions.tiles import UbTiles, next_tile, store_tile
from compiler.ir.reach import demanded
from simulator.npu.isa import Op
from simulator.npu.program import Code

_VFILL = int(Op.VFILL)
SIZE, GROUP, PIXEL, LOW, HIGH, DIGIT_WORDS = range(6)  # columns of a table of digits (`ir.operators.relayout.Digit`), and their number
_ROOM = 4  # records that are written between two checks of the room


class RelayoutJob(NamedTuple):
    """Relayout of a node's rows into tiles.  in_w: pixels of an input row.

    group_planes: planes of a group.  group, pixel: place of the source for digits that are all 0.
    fill: float32 bits of places without a source; filled: 1 if there are such places.
    """

    dtype: int
    tag: int
    tiles: UbTiles
    in_w: int
    group_planes: int
    group: int
    pixel: int
    fill: int
    filled: int


@njit(cache=True)
def _source(digits: Ints, count: int, number: int) -> tuple[int, int, bool]:
    """(group, pixel, whether there is a source) of the number that the first `count` digits form."""
    group, pixel, inside = 0, 0, True
    for k in range(count - 1, -1, -1):
        digit = number % digits[k, SIZE]
        number //= digits[k, SIZE]
        group += digit * digits[k, GROUP]
        pixel += digit * digits[k, PIXEL]
        inside = inside and digits[k, LOW] <= digit < digits[k, HIGH]
    return group, pixel, inside


@njit(cache=True)
def _gather(
    out: Code, cursor: int, job: RelayoutJob, source: TilePlace, digits: Ints, target: int, plane_pitch: int, first: int, size: int,
    plane: int, pixel: int, planes: int,
) -> int:  # fmt: skip
    """Move pixels [first, first + size) of `planes` planes to UB, where planes are `plane_pitch` blocks apart; -1 if `out` is too short.

    plane, pixel: place of the source for pixel digits that are all 0.
    """
    engine = MTE2 if source.memory == DDR else MTE1
    count = digits.shape[0]
    inner, middle = digits[count - 1], digits[count - 2]
    inner_size, middle_size = inner[SIZE], middle[SIZE]
    # blocks of the source from one inner digit to the next, and from one middle digit to the next
    step = inner[GROUP] * job.group_planes * source.plane + inner[PIXEL]
    stride = middle[GROUP] * job.group_planes * source.plane + middle[PIXEL]
    done = 0
    while done < size:
        # a part of one inner line, or whole lines of one outer number: inner digits from i on, middle digits from j on
        number = first + done
        i, j = number % inner_size, number // inner_size % middle_size
        run, lines = min(inner_size - i, size - done), 1
        if run == inner_size:
            lines = min(middle_size - j, (size - done) // inner_size)
        group, outer_pixel, inside = _source(digits, count - 2, number // inner_size // middle_size)
        # digits with a source
        i0, i1 = max(i, inner[LOW]), min(i + run, inner[HIGH])
        j0, j1 = max(j, middle[LOW]), min(j + lines, middle[HIGH])
        if inside and i0 < i1 and j0 < j1:
            destination = target + done + (i0 - i) + (j0 - j) * inner_size
            first_plane = plane + group * job.group_planes
            offset = pixel + outer_pixel + i0 * inner[PIXEL] + j0 * middle[PIXEL]
            first_plane += (i0 * inner[GROUP] + j0 * middle[GROUP]) * job.group_planes
            if source.back or step < 0:
                # of a ring, or against the order: block by block
                for b in range(j1 - j0):
                    for a in range(i1 - i0):
                        if cursor + _ROOM >= out.shape[0]:
                            return -1
                        p = first_plane + (a * inner[GROUP] + b * middle[GROUP]) * job.group_planes
                        from_ = block_at(source, p, offset + a * inner[PIXEL] + b * middle[PIXEL])
                        cursor = copy(
                            out, cursor, job.dtype, job.tag, engine, source.memory, UB, from_, destination + b * inner_size + a, 1, planes,
                            source.plane, plane_pitch, 1, 0, 0,
                        )  # fmt: skip
            elif step == 1 and (stride >= 0 or j1 - j0 == 1):
                # adjacent blocks: one move of lines and planes
                if cursor + _ROOM >= out.shape[0]:
                    return -1
                cursor = copy(
                    out, cursor, job.dtype, job.tag, engine, source.memory, UB, block_at(source, first_plane, offset), destination, i1 - i0,
                    j1 - j0, stride, inner_size, planes, source.plane, plane_pitch,
                )  # fmt: skip
            else:
                # single blocks: a move counts two of the three axes, the line and the longer one of middle digits and planes
                counts_planes = planes > j1 - j0 or stride < 0
                for b in range(j1 - j0 if counts_planes else planes):
                    if cursor + _ROOM >= out.shape[0]:
                        return -1
                    from_ = block_at(source, first_plane, offset) + b * (stride if counts_planes else source.plane)
                    count2, sstride2, dstride2 = (planes, source.plane, plane_pitch) if counts_planes else (j1 - j0, stride, inner_size)
                    cursor = copy(
                        out, cursor, job.dtype, job.tag, engine, source.memory, UB, from_,
                        destination + b * (inner_size if counts_planes else plane_pitch), 1, i1 - i0, step, 1, count2, sstride2, dstride2,
                    )  # fmt: skip
        done += run * lines
    return cursor


@njit(cache=True)
def _emit(
    out: Code, cursor: int, job: RelayoutJob, source: TilePlace, target: TilePlace, groups: Ints, pixels: Ints, slot_state: Ints
) -> int:
    """Fill, gather and store every tile; -1 if `out` is too short.  groups, pixels: tables of digits."""
    tiles = job.tiles
    index, tile = 0, next_tile(tiles, 0, slot_state)
    while tile.planes > 0:
        planes, size, slot = tile.planes, tile.size, tile.slot
        if cursor + 8 + 2 * (planes * size // RECORD_BLOCKS + 2) >= out.shape[0]:
            return -1
        if job.filled:
            cursor = flat(out, cursor, _VFILL, job.dtype, job.tag, slot, -1, -1, -1, 0, 0, planes * size, job.fill)
        # planes of one group at a time: `lead` planes of it are before the tile
        done = 0
        while done < planes:
            lead = (tile.plane + done) % job.group_planes
            run = min(job.group_planes - lead, planes - done)
            group, pixel, inside = _source(groups, groups.shape[0], (tile.plane + done) // job.group_planes)
            if inside:
                cursor = _gather(
                    out, cursor, job, source, pixels, slot + done * size, size, tiles.first_row * tiles.width + tile.first, size,
                    (job.group + group) * job.group_planes + lead, job.pixel + pixel - tiles.in_first, run,
                )  # fmt: skip
                if cursor < 0:
                    return -1
            done += run
        if cursor + _ROOM >= out.shape[0]:
            return -1
        cursor = store_tile(out, cursor, job.dtype, job.tag, target, tile.plane, tile.first, size, planes, slot)
        index += 1
        tile = next_tile(tiles, index, slot_state)
    return cursor


@compile_once
@njit(cache=True)
def relayout_rows(out: Code, cursor: int, work: Work, node: Node, job: Any, slot_state: Ints) -> int:
    """A node's records."""
    start, stop = work.computed[node.k, node.t]
    first, _ = demanded(work.reach[node.k], work.bounds, start, stop)
    job.tiles.first_row, job.tiles.rows, job.tiles.in_first = start, stop - start, first * job.in_w
    groups, pixels = read_table(work, node, 0, DIGIT_WORDS), read_table(work, node, 1, DIGIT_WORDS)
    return _emit(out, cursor, job, locate_operand(work, node, 0, first), locate_result(work, node, start), groups, pixels, slot_state)
