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

from typing import NamedTuple

from numba import njit

from compiler.instructions.builders import DDR, MTE1, MTE2, MTE3, UB, Ints, TilePlace, dense, move
from compiler.instructions.node_context import UB_SLOT
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


class UbTiles(NamedTuple):
    """Rows [first_row, first_row + rows) of a result with `planes` planes, each of `width` pixels, cut into tiles of UB.

    tile_planes to tile_columns: size of a tile; one with a part of a row has one row.  slot_0, slot_1: UB addresses of the slots that tiles
    take in turn.  in_first: input row at the base of the main operand; of operators that move pixels, input pixel.  A node's kernel sets
    first_row, rows and in_first.
    """

    planes: int
    width: int
    tile_planes: int
    tile_rows: int
    tile_columns: int
    slot_0: int
    slot_1: int
    first_row: int = 0
    rows: int = 0
    in_first: int = 0


class UbTile(NamedTuple):
    """Planes [plane, plane + planes), rows [row, row + rows) and columns [column, column + columns) of `UbTiles`.

    first, size: first pixel in a plane, and number of pixels.  slot: UB address.
    """

    plane: int
    planes: int
    row: int
    rows: int
    column: int
    columns: int
    first: int
    size: int
    slot: int


@njit(cache=True)
def next_tile(tiles: UbTiles, index: int, slot_state: Ints) -> UbTile:
    """Tile `index`, in the slot that is due; behind the last tile, one without planes.  Runs of planes are the outermost loop."""
    across, tile_rows = -(-tiles.width // tiles.tile_columns), min(tiles.tile_rows, tiles.rows)
    together = -(-tiles.rows // tile_rows) * across
    plane, place = index // together * tiles.tile_planes, index % together
    row, column = place // across * tile_rows, place % across * tiles.tile_columns
    planes = max(0, min(tiles.tile_planes, tiles.planes - plane))
    rows, columns = min(tile_rows, tiles.rows - row), min(tiles.tile_columns, tiles.width - column)
    slot = tiles.slot_1 if slot_state[UB_SLOT] else tiles.slot_0
    if planes > 0:
        slot_state[UB_SLOT] ^= 1
    return UbTile(plane, planes, row, rows, column, columns, row * tiles.width + column, rows * columns, slot)
