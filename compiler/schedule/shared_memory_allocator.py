"""Allocation of the shared memory: addresses and lifetimes of the data that parts of a program have in the memory of all cores.

Until a program is linked, its records name this data by its block in DDR (`codegen.shared_memory`).  A *resident*, a tensor or an
operator's weights, lives from the first segment that touches it to the last one.  Residents with overlapping lives have different blocks.
A resident that reuses blocks is written after the reads of the earlier residents, which flags ensure (`schedule.synchronize`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numba import njit

from compiler.instructions.builders import SHARED, Ints
from compiler.segment.allocator import Buffer, BufferRequest, allocate
from simulator.npu import isa
from simulator.npu.program import Code

SRC, DST, S0, D = isa.SRC, isa.DST, isa.S0, isa.D


class Resident(NamedTuple):
    """Data of `blocks` blocks from block `first` of DDR on, at block `block` of the shared memory, in segments birth .. death.

    after: indices of the earlier residents of its blocks.
    """

    first: int
    blocks: int
    birth: int
    death: int
    block: int
    after: tuple[int, ...]


class SharedPlaces(NamedTuple):
    """Addresses of all residents by their DDR block, and the peak of used blocks."""

    residents: tuple[Resident, ...]
    need: int


NO_RESIDENTS = SharedPlaces((), 0)


def allocate_residents(parts: Sequence[tuple[int, Ints]]) -> SharedPlaces:
    """Allocate the residents of a program.  parts: the number of the segment, ascending, and `Staged.ranges` of every part."""
    lives: dict[tuple[int, int], tuple[int, int]] = {}
    for segment, ranges in parts:
        for first, blocks in ranges.tolist():
            birth, _ = lives.get((first, blocks), (segment, segment))
            lives[first, blocks] = birth, segment
    if not lives:
        return NO_RESIDENTS
    addresses, need = allocate([BufferRequest(Buffer("tensor", first), blocks, *life) for (first, blocks), life in lives.items()])
    spans = sorted(lives)
    rows = np.array([(addresses[Buffer("tensor", first)], blocks, *lives[first, blocks]) for first, blocks in spans], np.int64)
    begin, end = rows[:, 0], rows[:, 0] + rows[:, 1]
    predecessors = (begin[:, None] < end) & (begin < end[:, None]) & (rows[:, 3] < rows[:, 2][:, None])
    residents = [
        Resident(first, blocks, birth, death, place, tuple(np.flatnonzero(earlier).tolist()))
        for (first, _), (place, blocks, birth, death), earlier in zip(spans, rows.tolist(), predecessors, strict=True)
    ]
    return SharedPlaces(tuple(residents), need)


def resolve_addresses(code: Code, places: SharedPlaces) -> None:
    """Replace DDR addresses by addresses in the shared memory."""
    if places.residents:
        _rewrite_addresses(code, np.array([(r.first, r.block) for r in places.residents], np.int64))


@njit(cache=True)
def _rewrite_addresses(code: Code, table: Ints) -> None:
    """Replace addresses.  table: int64 [residents, 2] of (first block in DDR, block in the shared memory), ascending."""
    for i in range(code.shape[0]):
        for memory, word in ((SRC, S0), (DST, D)):
            if code[i, memory] == SHARED:
                r = np.searchsorted(table[:, 0], code[i, word], side="right") - 1
                code[i, word] += table[r, 1] - table[r, 0]
