"""Where the parts of a program have what lies in the memory that all cores share, and from when to when.

Until a program is linked its records name what is there by its block in DDR (`codegen.shared_memory`).  A *resident*, a tensor or an
operator's weights, lives from the first segment that touches it to the last one.  Residents whose lives overlap lie apart; one that comes
where others were is written only when these have been read, which flags see to (`schedule.synchronize`).
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
    """`blocks` blocks from block `first` of DDR on, in the shared memory at block `at`, in segments birth .. death.

    after: those that were there before, by their place among all.
    """

    first: int
    blocks: int
    birth: int
    death: int
    at: int
    after: tuple[int, ...]


class SharedPlaces(NamedTuple):
    """All residents, by their block in DDR, and the blocks that they need at most."""

    residents: tuple[Resident, ...]
    need: int


NOWHERE = SharedPlaces((), 0)


def shared_places(parts: Sequence[tuple[int, Ints]]) -> SharedPlaces:
    """parts: the number of the segment, ascending, and `Staged.ranges` of every part."""
    lives: dict[tuple[int, int], tuple[int, int]] = {}
    for segment, ranges in parts:
        for first, blocks in ranges.tolist():
            birth, _ = lives.get((first, blocks), (segment, segment))
            lives[first, blocks] = birth, segment
    if not lives:
        return NOWHERE
    at, need = allocate([BufferRequest(Buffer("tensor", first), blocks, *life) for (first, blocks), life in lives.items()])
    known = sorted(lives)
    rows = np.array([(at[Buffer("tensor", first)], blocks, *lives[first, blocks]) for first, blocks in known], np.int64)
    begin, end = rows[:, 0], rows[:, 0] + rows[:, 1]
    over = (begin[:, None] < end) & (begin < end[:, None]) & (rows[:, 3] < rows[:, 2][:, None])
    found = [
        Resident(first, blocks, birth, death, place, tuple(np.flatnonzero(earlier).tolist()))
        for (first, _), (place, blocks, birth, death), earlier in zip(known, rows.tolist(), over, strict=True)
    ]
    return SharedPlaces(tuple(found), need)


def settle(code: Code, places: SharedPlaces) -> None:
    """Addresses in the shared memory in place of those in DDR."""
    if places.residents:
        _settle(code, np.array([(r.first, r.at) for r in places.residents], np.int64))


@njit(cache=True)
def _settle(code: Code, table: Ints) -> None:
    """table: int64 [residents, 2] of (first block in DDR, block there), ascending."""
    for i in range(code.shape[0]):
        for memory, word in ((SRC, S0), (DST, D)):
            if code[i, memory] == SHARED:
                r = np.searchsorted(table[:, 0], code[i, word], side="right") - 1
                code[i, word] += table[r, 1] - table[r, 0]
