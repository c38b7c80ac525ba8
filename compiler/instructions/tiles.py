"""Loads and stores of the tiles of VECTOR operators.

A tile is some planes by some rows of a segment's block of rows, as [planes][pixels] in one of two slots of UB; a pixel of a plane is one
block of C0 channels.  If one row does not fit, a tile is some columns of one row.  In both cases the pixels of a plane are adjacent.

| parameter      | meaning                                                                                         |
|----------------|-------------------------------------------------------------------------------------------------|
| out, cursor    | int32 [n, WORDS], and the next free record in it; functions return the cursor behind their last |
| dtype, tag     | words of every record                                                                           |
| place          | the tensor's rows of the segment's block, in DDR or L1                                          |
| plane, planes  | first plane of the tile, and number of planes                                                   |
| first, size    | first pixel of the tile in a plane of `place`, and number of pixels                             |
| target, source | address of the tile in UB, in blocks of C0 channels                                             |
"""

from __future__ import annotations

from numba import njit

from compiler.instructions.builders import DDR, MTE1, MTE2, MTE3, UB, TilePlace, dense, move
from simulator.npu.program import Code


@njit(cache=True)
def load_tile(
    out: Code, cursor: int, dtype: int, tag: int, place: TilePlace, plane: int, first: int, size: int, planes: int, target: int
) -> int:
    """Load a tile from DDR or L1 into UB."""
    engine = MTE2 if place.memory == DDR else MTE1
    return move(out, cursor, dtype, tag, engine, place, first, dense(UB, target, size), 0, plane, planes, size)


@njit(cache=True)
def load_box(
    out: Code, cursor: int, dtype: int, tag: int, place: TilePlace, plane: int, row: int, rows: int, width: int, first: int, columns: int,
    planes: int, target: int,
) -> int:  # fmt: skip
    """Load columns [first, first + columns) of rows [row, row + rows), each of `width` pixels, as a tile [planes][rows][columns]."""
    if columns == width:
        return load_tile(out, cursor, dtype, tag, place, plane, row * width, rows * width, planes, target)
    engine = MTE2 if place.memory == DDR else MTE1
    for i in range(rows):
        tile_row = dense(UB, target + i * columns, rows * columns)
        cursor = move(out, cursor, dtype, tag, engine, place, (row + i) * width + first, tile_row, 0, plane, planes, columns)
    return cursor


@njit(cache=True)
def store_tile(
    out: Code, cursor: int, dtype: int, tag: int, place: TilePlace, plane: int, first: int, size: int, planes: int, source: int
) -> int:
    """Store a tile from UB to DDR or L1."""
    return move(out, cursor, dtype, tag, MTE3, dense(UB, source, size), 0, place, first, plane, planes, size)


@njit(cache=True)
def count_tiles(rows: int, tile_rows: int, width: int, tile_columns: int) -> tuple[int, int, int]:
    """(tiles, tiles per row, rows of a tile) of a segment's block of `rows` rows of `width` pixels.

    tile_rows, tile_columns: size of a tile by its tiling.
    """
    tiles_per_row = (width + tile_columns - 1) // tile_columns
    rows_of_tile = min(tile_rows, rows) if tiles_per_row == 1 else 1
    return (rows + rows_of_tile - 1) // rows_of_tile * tiles_per_row, tiles_per_row, rows_of_tile
