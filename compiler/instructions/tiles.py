"""Loads and stores of the tiles of VECTOR operators.

A tile is some planes by some rows of the block, [planes][rows * w] blocks in one of two slots of UB.  If one row does not fit, a tile is
some columns of one row.  In both cases the pixels of a plane are adjacent.
"""

from __future__ import annotations

from numba import njit

from compiler.instructions.builders import DDR, MTE1, MTE2, MTE3, UB, TilePlace, dense, move
from simulator.npu.program import Code


@njit(cache=True)
def load_tile(
    out: Code, cursor: int, dtype: int, tag: int, place: TilePlace, plane: int, first: int, size: int, planes: int, target: int
) -> int:
    """Load `size` pixels of every plane into UB, from pixel `first` of the block on, from DDR or L1."""
    engine = MTE2 if place.memory == DDR else MTE1
    return move(out, cursor, dtype, tag, engine, place, first, dense(UB, target, size), 0, plane, planes, size)


@njit(cache=True)
def load_box(
    out: Code, cursor: int, dtype: int, tag: int, place: TilePlace, plane: int, row: int, rows: int, width: int, first: int, columns: int,
    planes: int, target: int,
) -> int:  # fmt: skip
    """Load columns [first, first + columns) of `rows` rows of `width` blocks as a tile [planes][rows][columns]."""
    if columns == width:
        return load_tile(out, cursor, dtype, tag, place, plane, row * width, rows * width, planes, target)
    engine, size = MTE2 if place.memory == DDR else MTE1, rows * columns
    for i in range(rows):
        into = dense(UB, target + i * columns, size)
        cursor = move(out, cursor, dtype, tag, engine, place, (row + i) * width + first, into, 0, plane, planes, columns)
    return cursor


@njit(cache=True)
def store_tile(
    out: Code, cursor: int, dtype: int, tag: int, place: TilePlace, plane: int, first: int, size: int, planes: int, source: int
) -> int:
    """Store a tile from UB to DDR or L1."""
    return move(out, cursor, dtype, tag, MTE3, dense(UB, source, size), 0, place, first, plane, planes, size)


@njit(cache=True)
def count_tiles(rows: int, tile_rows: int, width: int, tile_columns: int) -> tuple[int, int, int]:
    """(tiles, tiles per row, rows of a tile) of a block."""
    across = (width + tile_columns - 1) // tile_columns
    high = min(tile_rows, rows) if across == 1 else 1
    return (rows + high - 1) // high * across, across, high
