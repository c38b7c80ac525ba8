"""Counts of a product's tiles on one block, shared by estimates, features and stages; `cost.closed_form` derives cycles from them.

A product multiplies the left operand, m by k, with the right operand (weights), k by n.  A tile is one MMAD:

| name    | unit                     | axis                                                              |
|---------|--------------------------|-------------------------------------------------------------------|
| m       | rows: output pixels      | of the left operand's tiles in L0A, and of the result's in L0C    |
| n1      | fractals of columns      | of the right operand's tiles in L0B, and of the result's in L0C   |
| k1      | blocks                   | of both operands' tiles                                           |
| n_outer | 1 or 0                   | 1: the loop over tiles of n is outside the one over m; 0: inside  |

`ops.conv_emitter` loops over chunks of weights along n, then along k, then over tiles of m and n as `n_outer` says, then over tiles of k.
An iteration of the outer loop multiplies the same outer tiles, of all k, with every tile of the inner loop, whose tiles come again in the
next iteration.  So tiles of an operand *stay* in L0 until their last product if there are slots for:

* of the operand of the outer loop (left for n_outer = 0, right for 1): its tiles of all k in the chunk, for one outer step;
* of the operand of the inner loop: its tiles of all k in the chunk, for all inner steps.

A tile that does not stay is loaded again unless it is the last loaded tile.  The last chunk along an axis, and its last tile, may be
smaller; tiles stay in all chunks or in none.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from compiler.ir.im2col import Cut, count_instructions
from compiler.target.capabilities import L0
from compiler.target.zero_blocks import Panels, count_loads
from simulator.npu.cycles import steps

Along = tuple[tuple[int, int], tuple[int, int]]
"""Pieces along an axis: (size, count) of the full ones, and (size, count) of the remainder; (0, 0) without one."""
Pair = tuple[int, int]
"""(number for the left operand, number for the right operand)."""


class Counts(NamedTuple):
    """Counts of one group of a convolution.  rows: padded pixels.  products: MMADs.  results: tiles that leave L0C.

    loads_a, loads_b: instructions that load L0A and L0B.  moved_a: rows x blocks of k loaded to L0A.  moved_b: n1 x blocks of k to L0B.
    blocks: n1 x blocks of k that are multiplied with all rows.
    """

    rows: int
    products: int
    results: int
    loads_a: int
    moved_a: int
    loads_b: int
    moved_b: int
    blocks: int


@njit(cache=True)
def l0_slot_counts(l0: L0, weight_blocks: int, m: int, n1: int, k1: int) -> Pair:
    """(slots of L0A for tiles of m rows by k1 blocks, slots of L0B for tiles of n1 fractals by k1 blocks)."""
    blocks_a, blocks_b, _ = l0_blocks(weight_blocks, 0, m, n1, k1)
    slot_a = (blocks_a + l0.least_a - 1) // l0.least_a * l0.least_a
    slot_b = (blocks_b + l0.least_b - 1) // l0.least_b * l0.least_b
    return max(1, l0.room_a // slot_a), max(1, l0.room_b // slot_b)


@njit(cache=True)
def tiles_stay(tiles_m: int, tiles_n: int, tiles_k: int, n_outer: int, slot_counts: Pair) -> tuple[bool, bool]:
    """(left, right): whether the tiles of an operand stay in L0 until their last product in the chunk.

    tiles_n, tiles_k: tiles along n and k of the first chunk.  slot_counts: `l0_slot_counts`.
    """
    left_tiles = tiles_k * (tiles_m if n_outer else 1)
    right_tiles = tiles_k * (1 if n_outer else tiles_n)
    return left_tiles <= slot_counts[0], right_tiles <= slot_counts[1]


@njit(cache=True)
def loads_of_tiles(tiles_m: int, tiles_n: int, tiles_k: int, n_outer: int, stay: tuple[bool, bool]) -> Pair:
    """(left, right): loads per tile of the left operand into L0A and of the right operand into L0B, in one chunk of weights.

    A tile is loaded once if tiles stay, or if k is one tile and the loop of the other operand is inside or is one tile; else per product.
    """
    left_loads = 1 if stay[0] or (tiles_k == 1 and (n_outer == 0 or tiles_m == 1)) else tiles_n
    right_loads = 1 if stay[1] or (tiles_k == 1 and (n_outer == 1 or tiles_n == 1)) else tiles_m
    return left_loads, right_loads


@njit(cache=True)
def split_axis(length: int, size: int) -> Along:
    """Pieces of at most `size` along an axis of `length`."""
    size = min(size, length)
    remainder = length % size
    return (size, length // size), (remainder, 1 if remainder else 0)


@njit(cache=True)
def single_piece(length: int) -> Along:
    """An axis in one piece, in the form of `split_axis`."""
    return (length, 1), (0, 0)


def nonempty_pieces(length: int, size: int) -> list[tuple[int, int]]:
    """The pieces of `split_axis` that are not empty."""
    return [piece for piece in split_axis(length, size) if piece[1]]


@njit(cache=True)
def l0_blocks(weight_blocks: int, sum_blocks: int, m: int, n1: int, k1: int) -> tuple[int, int, int]:
    """Blocks of L0A, L0B and L0C that a tile takes: m rows by k1 blocks, n1 times a fractal's columns by k1 blocks, and m by n1 sums."""
    return m * k1, n1 * k1 * weight_blocks, n1 * m * sum_blocks


@njit(cache=True)
def partial_blocks(sum_blocks: int, pixels: int, n1: int, tile_m: int) -> int:
    """Blocks of L0C for the partial sums of all pixels in one chunk of n1."""
    return (pixels + tile_m - 1) // tile_m * tile_m * n1 * sum_blocks


@njit(cache=True)
def padded_rows(fractal_rows: int, pixels: int, tile: int) -> int:
    """Rows of all tiles of `pixels` pixels; the last tile is padded to whole fractals.  tile: rows of a full tile."""
    full_rows = pixels // tile * tile
    return full_rows + (pixels - full_rows + fractal_rows - 1) // fractal_rows * fractal_rows


@njit(cache=True)
def count_chunk(
    tiles_m: int, tiles_n: int, tiles_k: int, copies_k: int, n_outer: int, stay: tuple[bool, bool]
) -> tuple[int, int, int, int, int]:
    """(products, loads of L0A, loads per left tile, loads of L0B, loads per right tile) of one chunk of weights.

    copies_k: instructions that load a row of the left operand's tiles.
    """
    left_loads, right_loads = loads_of_tiles(tiles_m, tiles_n, tiles_k, n_outer, stay)
    return tiles_m * tiles_n * tiles_k, left_loads * tiles_m * copies_k, left_loads, right_loads * tiles_n * tiles_k, right_loads


@njit(cache=True)
def count_product(
    fractal_rows: int, pixels: int, along_n: Along, along_k: Along, tile_m: int, tile_n1: int, tile_k1: int, n_outer: int, cut: Cut,
    slot_counts: Pair,
) -> Counts:  # fmt: skip
    """Count a dense product.  along_n, along_k: chunks of n1 and of blocks of k.  cut: ends of IM2COLs along k (`ir.im2col`).
    slot_counts: `l0_slot_counts`."""
    tiles_m, rows = (pixels + tile_m - 1) // tile_m, padded_rows(fractal_rows, pixels, tile_m)
    first_n, first_k = along_n[0][0], along_k[0][0]  # sizes of the first chunk
    stay = tiles_stay(tiles_m, (first_n + tile_n1 - 1) // tile_n1, (first_k + tile_k1 - 1) // tile_k1, n_outer, slot_counts)
    products = results = loads_a = moved_a = loads_b = moved_b = blocks = 0
    for size_n, count_n in along_n:
        tiles_n = (size_n + tile_n1 - 1) // tile_n1
        results += count_n * tiles_m * tiles_n
        start = 0
        for size_k, count_k in along_k:
            if not count_k:
                continue
            chunks = count_n * count_k
            tiles_k = (size_k + tile_k1 - 1) // tile_k1
            stop = start + size_k * count_k
            copies = count_instructions(cut, start, stop, size_k, tile_k1)  # in all chunks of k
            chunk_products, chunk_loads_a, left_loads, chunk_loads_b, right_loads = count_chunk(
                tiles_m, tiles_n, tiles_k, copies, n_outer, stay
            )
            start = stop
            products += chunks * chunk_products
            loads_a += count_n * chunk_loads_a  # of all chunks of k, as `copies` is
            moved_a += chunks * left_loads * rows * size_k
            loads_b += chunks * chunk_loads_b
            moved_b += chunks * right_loads * size_n * size_k
            blocks += chunks * size_n * size_k
    return Counts(rows, products, results, loads_a, moved_a, loads_b, moved_b, blocks)


@njit(cache=True)
def count_panel_product(
    panels: Panels, fractal_rows: int, pixels: int, along_n: Along, along_k: Along, tile_m: int, tile_n1: int, tile_k1: int, n_outer: int,
    slot_counts: Pair,
) -> Counts:  # fmt: skip
    """Counts of a product with zero blocks, from its panels.  The other parameters: see `count_product`."""
    tiles_m, rows = (pixels + tile_m - 1) // tile_m, padded_rows(fractal_rows, pixels, tile_m)
    results = 0
    for size_n, count_n in along_n:
        results += count_n * tiles_m * ((size_n + tile_n1 - 1) // tile_n1)
    first_n, first_k = along_n[0][0], along_k[0][0]  # sizes of the first chunk
    stay = tiles_stay(tiles_m, (first_n + tile_n1 - 1) // tile_n1, (first_k + tile_k1 - 1) // tile_k1, n_outer, slot_counts)
    loads_a, moved_a, loads_b, moved_b = count_loads(panels, tiles_m, n_outer, stay)
    return Counts(rows, tiles_m * panels.panels, results, loads_a, rows * moved_a, loads_b, moved_b, panels.blocks)


@njit(cache=True)
def all_steps(length: int, tile: int, axis: NDArray[np.int64]) -> int:
    """Steps of MMAD of all tiles along one axis, including the remainder.

    length, tile: elements of the axis, and of a full tile.  axis: int64 [3], the axis's row of `CostTables.matrix`.
    """
    count = length // tile
    remainder = length - count * tile
    return count * steps(tile, axis) + (steps(remainder, axis) if remainder else 0)
