"""What a product's tiles come to on one block: the one place that counts them, for estimates, features and stages alike.

`kinds.conv_emitter` goes over chunks of weights, and in each over tiles in the order of the tiling, those of k inside.  A tile of an
operand is loaded only where another one came between.  The last chunk along an axis, and the last tile in it, are what is left.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from compiler.ir.im2col import Cut, instructions
from simulator.npu.cycles import steps

Pieces = tuple[tuple[int, int], tuple[int, int]]


class Counts(NamedTuple):
    """Of one group.  rows: pixels, padded.  results: tiles that leave L0C.

    loads_a, loads_b: instructions that load L0A and L0B.  moved_a: rows x blocks of k that come to L0A; moved_b: n1 x blocks of k to L0B.
    """

    rows: int
    products: int
    results: int
    loads_a: int
    moved_a: int
    loads_b: int
    moved_b: int


@njit(cache=True)
def loads_of_tiles(tiles_m: int, tiles_n: int, tiles_k: int, n_outer: int) -> tuple[int, int]:
    """(left, right): loads of every tile of the left operand into L0A, and of the right one into L0B, in one chunk of weights.

    Once where k is one tile and the other operand's loop is inside or has a single tile too, else for every product.
    """
    left = 1 if tiles_k == 1 and (n_outer == 0 or tiles_m == 1) else tiles_n
    right = 1 if tiles_k == 1 and (n_outer == 1 or tiles_n == 1) else tiles_m
    return left, right


@njit(cache=True)
def pieces(length: int, size: int) -> Pieces:
    """(size, count) of the whole pieces of an axis, and of what is left."""
    size = min(size, length)
    rest = length % size
    return (size, length // size), (rest, 1 if rest else 0)


@njit(cache=True)
def padded(pixels: int, tile: int) -> int:
    """Rows of all tiles of so many pixels: the last one ends with sixteen, as whole ones do."""
    whole = pixels // tile * tile
    return whole + (pixels - whole + 15) // 16 * 16


@njit(cache=True)
def counts(pixels: int, along_n: Pieces, along_k: Pieces, tile_m: int, tile_n1: int, tile_k1: int, n_outer: int, cut: Cut) -> Counts:
    """along_n, along_k: chunks of weights, in n1 and in blocks of k.  cut: where IM2COL ends along k."""
    tiles_m, rows = (pixels + tile_m - 1) // tile_m, padded(pixels, tile_m)
    products = results = loads_a = moved_a = loads_b = moved_b = 0
    for size_n, count_n in along_n:
        tiles_n = (size_n + tile_n1 - 1) // tile_n1
        results += count_n * tiles_m * tiles_n
        start = 0
        for size_k, count_k in along_k:
            if not count_k:
                continue
            count, tiles_k, stop = count_n * count_k, (size_k + tile_k1 - 1) // tile_k1, start + size_k * count_k
            left, right = loads_of_tiles(tiles_m, tiles_n, tiles_k, n_outer)
            products += count * tiles_m * tiles_n * tiles_k
            loads_a += count_n * left * tiles_m * instructions(cut, start, stop, size_k, tile_k1)
            start = stop
            moved_a += count * left * rows * size_k
            loads_b += count * right * tiles_n * tiles_k
            moved_b += count * right * size_n * size_k
    return Counts(rows, products, results, loads_a, moved_a, loads_b, moved_b)


@njit(cache=True)
def all_steps(length: int, tile: int, axis: NDArray[np.int64]) -> int:
    """Steps of MMAD of all tiles along one axis, the last one what is left."""
    whole = length // tile
    rest = length - whole * tile
    return whole * steps(tile, axis) + (steps(rest, axis) if rest else 0)


@njit(cache=True)
def steps_of_pieces(along: Pieces, tile: int, lanes: int, axis: NDArray[np.int64]) -> int:
    """`all_steps` of all chunks along an axis; lanes: elements of one unit of it."""
    (size, count), (rest, one) = along
    return count * all_steps(size * lanes, tile * lanes, axis) + one * all_steps(rest * lanes, tile * lanes, axis)
