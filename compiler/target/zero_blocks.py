"""Zero blocks of weights, which products skip: grouped convolutions whose groups do not fill planes have many of them.

`needed` is int64 [n1, k1] for a group's blocks of weights: 1 if the block has a weight in any group.  Its size is 0 if all are needed.  In
a tile each n1 is multiplied with all blocks of k from its first needed one to its last: blocks between cost less than another MMAD.
Neighbouring n1 with the same range form a *panel*: one load of L0B and one MMAD.  A tile without needed blocks is skipped.

Resident weights that are expanded on chip (`target.weight_expansion`) take L1 only for multiplied blocks, *packed* panel by panel in the
order of tiles.  That is often a third or a quarter of a group's blocks, and free L1 decides how early later weights can be loaded.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from compiler.ir.im2col import Cut, count_instructions
from simulator.npu.cycles import steps

Ints = NDArray[np.int64]
EVERYWHERE: Ints = np.zeros((0, 0), np.int64)


def no_zero_blocks() -> Ints:
    """The default of a field: no zero blocks."""
    return EVERYWHERE


class Panels(NamedTuple):
    """Counts of a tiling's panels for one tile of rows, in all chunks of weights of a group.

    panels: number of panels, so of MMADs and of loads of L0B.  steps: their steps along k and n.  blocks: multiplied blocks, n1 x k.
    The other fields are pairs (count, `of_` blocks) for the cases of `count_loads`.  tiles: IM2COLs of all tiles with panels, and their
    blocks of k.  changes: the same without tiles that follow a tile of the same k.  distinct: the same with each k of a chunk once.
    single: panels and blocks of rows of tiles with a single tile along k.  only: the same of chunks with a single tile.
    """

    panels: int
    steps: int
    blocks: int
    tiles: int
    of_tiles: int
    changes: int
    of_changes: int
    distinct: int
    of_distinct: int
    single: int
    of_single: int
    only: int
    of_only: int


@njit(cache=True)
def mark_multiplied(needed: Ints, chunk_k1: int, tile_k1: int) -> Ints:
    """int64 [n1, k1]: 1 for every block that is multiplied if weights are cut into such chunks and tiles."""
    out = np.zeros_like(needed)
    for n in range(needed.shape[0]):
        for chunk in range(0, needed.shape[1], chunk_k1):
            end = min(chunk + chunk_k1, needed.shape[1])
            for start in range(chunk, end, tile_k1):
                first, last = -1, -1
                for k in range(start, min(start + tile_k1, end)):
                    if needed[n, k]:
                        last = k
                        if first < 0:
                            first = k
                if first >= 0:
                    out[n, first : last + 1] = 1
    return out


@njit(cache=True)
def find_panel(needed: Ints, n: int, n_stop: int, k: int, k_stop: int) -> tuple[int, int, int]:
    """(n1 of the panel at n, its first block of k, its number of blocks of k or 0 without one), in a tile with blocks [k, k_stop) of k.

    A panel either begins the sums of all its n1 or adds to all of them: MMAD sets or adds.
    """
    first, size = _span(needed, n, k, k_stop)
    begins, count = size > 0 and begins_sum(needed, n, first), 1
    while n + count < n_stop:
        next_first, next_size = _span(needed, n + count, k, k_stop)
        if next_size != size or (size and (next_first != first or begins_sum(needed, n + count, first) != begins)):
            break
        count += 1
    return count, first, size


@njit(cache=True)
def _span(needed: Ints, n: int, k: int, k_stop: int) -> tuple[int, int]:
    first, last = k_stop, k_stop - 1
    for block in range(k, k_stop):
        if needed[n, block]:
            first = min(first, block)
            last = block
    return first, last + 1 - first


@njit(cache=True)
def pack_panels(needed: Ints, tile_n1: int, tile_k1: int) -> Ints:
    """int64 [n1, k1]: number of blocks before each block of weights if panels are packed; -1 for blocks that are not multiplied.

    needed: from `mark_multiplied`, for one chunk.  A panel itself is [n1][k1], the order of L0B.
    """
    n1, k1 = needed.shape
    out, used = np.full((n1, k1), -1, np.int64), 0
    for n_start in range(0, n1, tile_n1):
        n_stop = min(n_start + tile_n1, n1)
        for k_start in range(0, k1, tile_k1):
            n = n_start
            while n < n_stop:
                wide, first, size = find_panel(needed, n, n_stop, k_start, min(k_start + tile_k1, k1))
                for i in range(wide):
                    for k in range(size):
                        out[n + i, first + k] = used
                        used += 1
                n += wide
    return out


@njit(cache=True)
def begins_sum(needed: Ints, n: int, first: int) -> bool:
    """Whether the sum of n1 number n begins with block `first` of k: no earlier block is multiplied."""
    return not needed[n, :first].any()


@njit(cache=True)
def count_panels(
    needed: Ints, chunk_n1: int, chunk_k1: int, tile_n1: int, tile_k1: int, cut: Cut, unit_k: int, axis_k: Ints, unit_n: int, axis_n: Ints
) -> Panels:
    """Count the panels of a tiling.  axis_k, axis_n: see `CostTables.matrix`; unit_k, unit_n: lanes of a block of k, columns of an n1."""
    n1, k1 = needed.shape
    count = all_steps = blocks = tiles = of_tiles = changes = of_changes = distinct = of_distinct = single = of_single = only = of_only = 0
    # chunks of n1 and k, rows of tiles along n, tiles of k; counts before each row or chunk show whether it has a single tile
    for chunk_n in range(0, n1, chunk_n1):
        end_n = min(chunk_n + chunk_n1, n1)
        for chunk_k in range(0, k1, chunk_k1):
            end_k, before, in_chunk, last = min(chunk_k + chunk_k1, k1), (count, blocks), 0, -1
            for k in range(chunk_k, end_k, tile_k1):
                k_stop = min(k + tile_k1, end_k)
                if needed[chunk_n:end_n, k:k_stop].any():
                    distinct, of_distinct = distinct + count_instructions(cut, k, k_stop, k_stop - k, k_stop - k), of_distinct + k_stop - k
            for n in range(chunk_n, end_n, tile_n1):
                n_stop, so_far, in_row = min(n + tile_n1, end_n), (count, blocks), 0
                for k in range(chunk_k, end_k, tile_k1):
                    k_stop, column, count_before = min(k + tile_k1, end_k), n, count
                    while column < n_stop:
                        wide, _, size = find_panel(needed, column, n_stop, k, k_stop)
                        if size:
                            count += 1
                            all_steps += steps(size * unit_k, axis_k) * steps(wide * unit_n, axis_n)
                            blocks += size * wide
                        column += wide
                    if count == count_before:
                        continue
                    copies = count_instructions(cut, k, k_stop, k_stop - k, k_stop - k)
                    in_row += 1
                    tiles, of_tiles = tiles + copies, of_tiles + k_stop - k
                    if k != last:
                        changes, of_changes, last = changes + copies, of_changes + k_stop - k, k
                if in_row == 1:
                    single, of_single = single + count - so_far[0], of_single + blocks - so_far[1]
                in_chunk += in_row
            if in_chunk == 1:
                only, of_only = only + count - before[0], of_only + blocks - before[1]
    return Panels(count, all_steps, blocks, tiles, of_tiles, changes, of_changes, distinct, of_distinct, single, of_single, only, of_only)


@njit(cache=True)
def count_loads(panels: Panels, tiles_m: int, n_outer: int, stay: tuple[bool, bool]) -> tuple[int, int, int, int]:
    """(IM2COLs, blocks of k loaded into L0A per row, loads of L0B, n1 x blocks of k of these loads).

    stay: whether tiles of the left and of the right operand stay (`ops.tile_counts.tiles_stay`).
    """
    reloads = n_outer and tiles_m > 1
    copies, moved = (
        (panels.distinct, panels.of_distinct)
        if stay[0]
        else (panels.tiles, panels.of_tiles)
        if reloads
        else (panels.changes, panels.of_changes)
    )
    once, of_once = (
        (panels.panels, panels.blocks) if stay[1] else (panels.single, panels.of_single) if n_outer else (panels.only, panels.of_only)
    )
    return tiles_m * copies, moved, once + tiles_m * (panels.panels - once), of_once + tiles_m * (panels.blocks - of_once)
