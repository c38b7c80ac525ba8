"""Emission of a relayout on one block: moves gather the blocks of a tile in UB, and one move stores it."""

from __future__ import annotations

from typing import Any, NamedTuple

from numba import njit

from compiler.instructions.builders import DDR, MTE1, MTE2, UB, Ints, TilePlace, block_at, compile_once, copy, flat
from compiler.instructions.node_context import Node, Work, locate_operand, locate_result, read_table
from compiler.instructions.tiles import UbTiles, next_tile, store_tile
from compiler.ir.reach import demanded
from simulator.npu.isa import Op
from simulator.npu.program import Code

_VFILL = int(Op.VFILL)
SIZE, GROUP, PIXEL, LOW, HIGH, DIGIT_WORDS = range(6)
_ROOM = 4  # records that are written between two checks of the room


class RelayoutJob(NamedTuple):
    """Relayout of a node's rows.  deep: planes of a group.  group, pixel: place of the input for digits that are all 0.

    fill: float32 bits of places without a source; filled: 1 if there are such places.
    """

    dtype: int
    tag: int
    tiles: UbTiles
    in_w: int
    deep: int
    group: int
    pixel: int
    fill: int
    filled: int


@njit(cache=True)
def _source(digits: Ints, count: int, value: int) -> tuple[int, int, bool]:
    """(group, pixel, whether it has a source) of a value of the first `count` digits."""
    group, pixel, inside = 0, 0, True
    for k in range(count - 1, -1, -1):
        digit = value % digits[k, SIZE]
        value //= digits[k, SIZE]
        group += digit * digits[k, GROUP]
        pixel += digit * digits[k, PIXEL]
        inside = inside and digits[k, LOW] <= digit < digits[k, HIGH]
    return group, pixel, inside


@njit(cache=True)
def _gather(
    out: Code, cursor: int, job: RelayoutJob, source: TilePlace, digits: Ints, target: int, tile: int, first: int, size: int, plane: int,
    pixel: int, planes: int,
) -> int:  # fmt: skip
    """Moves of pixels [first, first + size) of `planes` planes to UB, where planes are `tile` blocks apart.

    plane, pixel: place of the input for pixel digits that are all 0.
    """
    engine = MTE2 if source.memory == DDR else MTE1
    count = digits.shape[0]
    inner, middle = digits[count - 1], digits[count - 2]
    n, m = inner[SIZE], middle[SIZE]
    step, stride = inner[GROUP] * job.deep * source.plane + inner[PIXEL], middle[GROUP] * job.deep * source.plane + middle[PIXEL]
    done = 0
    while done < size:
        value = first + done
        i, j = value % n, value // n % m
        run, lines = min(n - i, size - done), 1
        if run == n:
            lines = min(m - j, (size - done) // n)
        group, above, inside = _source(digits, count - 2, value // n // m)
        i0, i1 = max(i, inner[LOW]), min(i + run, inner[HIGH])
        j0, j1 = max(j, middle[LOW]), min(j + lines, middle[HIGH])
        if inside and i0 < i1 and j0 < j1:
            to = target + done + (i0 - i) + (j0 - j) * n
            first_plane = plane + group * job.deep
            offset = pixel + above + i0 * inner[PIXEL] + j0 * middle[PIXEL]
            first_plane += (i0 * inner[GROUP] + j0 * middle[GROUP]) * job.deep
            if source.back or step < 0:
                # of a ring, or against the order: block by block
                for b in range(j1 - j0):
                    for a in range(i1 - i0):
                        if cursor + _ROOM >= out.shape[0]:
                            return -1
                        p = first_plane + (a * inner[GROUP] + b * middle[GROUP]) * job.deep
                        from_ = block_at(source, p, offset + a * inner[PIXEL] + b * middle[PIXEL])
                        cursor = copy(
                            out, cursor, job.dtype, job.tag, engine, source.memory, UB, from_, to + b * n + a, 1, planes, source.plane,
                            tile, 1, 0, 0,
                        )  # fmt: skip
            elif step == 1 and (stride >= 0 or j1 - j0 == 1):
                if cursor + _ROOM >= out.shape[0]:
                    return -1
                cursor = copy(
                    out, cursor, job.dtype, job.tag, engine, source.memory, UB, block_at(source, first_plane, offset), to, i1 - i0,
                    j1 - j0, stride, n, planes, source.plane, tile,
                )  # fmt: skip
            else:
                # single blocks: two of the three axes are counted by the move
                deep = planes > j1 - j0 or stride < 0
                for b in range(j1 - j0 if deep else planes):
                    if cursor + _ROOM >= out.shape[0]:
                        return -1
                    from_ = block_at(source, first_plane, offset) + b * (stride if deep else source.plane)
                    count2, sstride2, dstride2 = (planes, source.plane, tile) if deep else (j1 - j0, stride, n)
                    cursor = copy(
                        out, cursor, job.dtype, job.tag, engine, source.memory, UB, from_, to + b * (n if deep else tile), 1, i1 - i0, step,
                        1, count2, sstride2, dstride2,
                    )  # fmt: skip
        done += run * lines
    return cursor


@njit(cache=True)
def _emit(out: Code, cursor: int, job: RelayoutJob, source: TilePlace, target: TilePlace, groups: Ints, pixels: Ints, parity: Ints) -> int:
    tiles = job.tiles
    index, tile = 0, next_tile(tiles, 0, parity)
    while tile.planes > 0:
        planes, size, slot = tile.planes, tile.size, tile.slot
        if cursor + 8 + 2 * (planes * size // 2040 + 2) >= out.shape[0]:
            return -1
        if job.filled:
            cursor = flat(out, cursor, _VFILL, job.dtype, job.tag, slot, -1, -1, -1, 0, 0, planes * size, job.fill)
        done = 0
        while done < planes:
            lead = (tile.plane + done) % job.deep
            run = min(job.deep - lead, planes - done)
            group, pixel, inside = _source(groups, groups.shape[0], (tile.plane + done) // job.deep)
            if inside:
                cursor = _gather(
                    out, cursor, job, source, pixels, slot + done * size, size, tiles.first_row * tiles.width + tile.first, size,
                    (job.group + group) * job.deep + lead, job.pixel + pixel - tiles.in_first, run,
                )  # fmt: skip
                if cursor < 0:
                    return -1
            done += run
        if cursor + _ROOM >= out.shape[0]:
            return -1
        cursor = store_tile(out, cursor, job.dtype, job.tag, target, tile.plane, tile.first, size, planes, slot)
        index += 1
        tile = next_tile(tiles, index, parity)
    return cursor


@compile_once
@njit(cache=True)
def relayout_rows(out: Code, cursor: int, work: Work, node: Node, job: Any, parity: Ints) -> int:
    """A node's records."""
    start, stop = work.computed[node.k, node.t]
    first, _ = demanded(work.reach[node.k], work.bounds, start, stop)
    job.tiles.first_row, job.tiles.rows, job.tiles.in_first = start, stop - start, first * job.in_w
    groups, pixels = read_table(work, node, 0, DIGIT_WORDS), read_table(work, node, 1, DIGIT_WORDS)
    return _emit(out, cursor, job, locate_operand(work, node, 0, first), locate_result(work, node, start), groups, pixels, parity)
