"""Where a segment's tensors lie, as tables of `records.places`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import numpy as np

from compiler.records.places import Allocations
from compiler.records.writers import Ints
from compiler.segment.blocks import Blocks, span
from compiler.segment.buffers import Buffer
from compiler.unit.storages import Piece
from compiler.unit.unit import Unit


def allocations_of(unit: Unit, blocks: Blocks, slots: dict[int, int], l1: dict[Buffer, int]) -> Allocations:
    """slots: how many every storage that stays has; l1: its buffers (see `segment.memory`)."""
    kept = [blocks.allocations[storage] for storage in blocks.allocations]
    images = unit.images
    table = np.zeros((len(kept), 7), np.int64)
    at = np.zeros((len(kept), max(slots.values(), default=1)), np.int64)
    rows = np.zeros((len(kept), blocks.count, 2), np.int64)
    for index, allocation in enumerate(kept):
        count, storage = slots[allocation.storage], unit.storages[allocation.storage]
        first, last = span(allocation.rows) if allocation.cached else (0, storage.h if allocation.held else 0)
        ring = allocation.high(count, images) if allocation.cached or allocation.held else 0
        table[index] = allocation.plane, storage.row_blocks, count, ring, first, last - first, storage.first
        single = l1[Buffer("tensor", allocation.storage)]
        at[index, :count] = [l1.get(Buffer("tensor", allocation.storage, slot), single) for slot in range(count)]
        rows[index] = allocation.rows
    return Allocations(_in_ddr(unit), table, at, rows)


@lru_cache(maxsize=1024)
def _in_ddr(unit: Unit) -> Ints:
    return np.array([(s.address, s.image_blocks if s.n > 1 else 0, s.plane_blocks, s.ddr_row_blocks) for s in unit.storages], np.int64)


def places_kept(blocks: Blocks) -> dict[int, int]:
    """Storage -> its place among those that stay."""
    return {storage: at for at, storage in enumerate(blocks.allocations)}


def operand(blocks: Blocks, kept: Mapping[int, int], piece: Piece) -> tuple[int, int, int]:
    """(storage, plane, allocation) of a piece: in L1 where all of it stays there.  kept: `places_kept`."""
    storage, plane, planes = piece
    index = kept.get(storage, -1)
    if index >= 0:
        allocation = blocks.allocations[storage]
        if not allocation.plane <= plane <= plane + planes <= allocation.plane + allocation.planes:
            index = -1
    return storage, plane, index
