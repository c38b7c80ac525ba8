"""Where a segment's tensors lie, as tables of `records.places`."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from compiler.records.places import Homes
from compiler.records.writers import Ints
from compiler.segment.blocks import Blocks, span
from compiler.segment.buffers import Buffer
from compiler.unit.storages import Piece
from compiler.unit.unit import Unit


def homes_of(unit: Unit, blocks: Blocks, slots: dict[int, int], l1: dict[Buffer, int]) -> Homes:
    """slots: how many every storage that stays has; l1: its buffers (see `segment.memory`)."""
    staged = [blocks.staged[storage] for storage in blocks.staged]
    images = unit.images
    stays = np.zeros((len(staged), 7), np.int64)
    at = np.zeros((len(staged), max(slots.values(), default=1)), np.int64)
    rows = np.zeros((len(staged), blocks.count, 2), np.int64)
    for home, stay in enumerate(staged):
        count, storage = slots[stay.storage], unit.storages[stay.storage]
        first, last = span(stay.rows) if stay.cached else (0, 0)
        ring = stay.high(count, images) if stay.cached else 0
        stays[home] = stay.plane, storage.row_blocks, count, ring, first, last - first, storage.first
        single = l1[Buffer("tensor", stay.storage)]
        at[home, :count] = [l1.get(Buffer("tensor", stay.storage, slot), single) for slot in range(count)]
        rows[home] = stay.rows
    return Homes(_in_ddr(unit), stays, at, rows)


@lru_cache(maxsize=1024)
def _in_ddr(unit: Unit) -> Ints:
    return np.array([(s.address, s.image_blocks if s.n > 1 else 0, s.plane_blocks, s.ddr_row_blocks) for s in unit.storages], np.int64)


def operand(blocks: Blocks, piece: Piece) -> tuple[int, int, int]:
    """(storage, plane, home) of a piece: in L1 where all of it stays there."""
    home = -1
    if piece.storage in blocks.staged:
        stay = blocks.staged[piece.storage]
        if stay.plane <= piece.plane and piece.plane + piece.planes <= stay.plane + stay.planes:
            home = list(blocks.staged).index(piece.storage)
    return piece.storage, piece.plane, home
