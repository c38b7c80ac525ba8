"""Addresses of the rows of a block's tensors: in DDR, or in a slot or ring of L1.

| array | dtype, shape                | meaning                                                                                        |
|-------|-----------------------------|------------------------------------------------------------------------------------------------|
| ddr   | int64 [storages, 5]         | block of image 0; strides in blocks: group of images, plane, row, image within a group         |
| table | int64 [resident, 8]         | first plane, row stride in blocks, slots, rows of the ring (0: no ring), first row in L1, rows |
|       |                             | in L1 of an image, first block of a row, images of a group (their planes are adjacent)         |
| slots | int64 [resident, slots]     | L1 block of every slot                                                                         |
| rows  | int64 [resident, blocks, 2] | [first, stop) rows of the tensor in L1, per block                                              |

An allocation is the index of a storage among the storages resident in L1, or -1 for DDR.  An operand is (storage, plane, allocation).
"""

from __future__ import annotations

from typing import NamedTuple

from compiler.instructions.builders import DDR, FAR, L1, Ints, TilePlace, compile_once, inlined

START, STOP = range(2)  # columns of `Allocations.rows`


class Allocations(NamedTuple):
    """Tables of addresses, see the docstring of this module."""

    ddr: Ints
    table: Ints
    slots: Ints
    rows: Ints


@compile_once
@inlined
def place_of(
    allocations: Allocations, storage: int, plane: int, allocation: int, column: int, width: int, row: int, block: int, image: int,
    iteration: int, member: int,
) -> TilePlace:  # fmt: skip
    """Address of blocks [column, column + width) of `row` and later rows.  image: group of images.  member: image within the group."""
    if allocation < 0:
        layout = allocations.ddr[storage]
        base = layout[0] + image * layout[1] + member * layout[4] + plane * layout[2] + row * layout[3] + column
        return TilePlace(DDR, base, layout[2], FAR, 0, width, layout[3] - width)
    first_plane, row_blocks, slots, ring, first, height, first_column, together = allocations.table[allocation]
    column -= first_column
    gap = row_blocks - width
    if ring:
        size, at_row = ring * row_blocks, (image * height + row - first) % ring  # images follow each other
        begin = allocations.slots[allocation, 0] + (plane - first_plane) * size + column
        return TilePlace(L1, begin + at_row * row_blocks, size, (ring - at_row) * width, size, width, gap)
    start, stop = allocations.rows[allocation, block]
    size = max(0, stop - start) * row_blocks
    begin = allocations.slots[allocation, iteration % slots] + ((plane - first_plane) * together + member) * size + column
    return TilePlace(L1, begin + (row - start) * row_blocks, size * together, FAR, 0, width, gap)
