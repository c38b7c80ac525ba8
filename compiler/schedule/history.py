"""What a core's records so far did to its memories, from part to part of a program.

Parts name memory by *cells* of their own (`schedule.footprint`).  Between them the past is a list of *pieces*, runs of granules with one
history each, which is as long as memory has been told apart, not as long as memory is.

| array | dtype, shape       | meaning                                                                                       |
|-------|--------------------|-----------------------------------------------------------------------------------------------|
| bound | int32 [pieces + 1] | piece p is granules [bound[p], bound[p + 1])                                                  |
| last  | int32 [pieces, 8]  | the last reader on every engine since the last write, that write, and its engine; -1: nobody  |
| cell  | int32 [cells, 16]  | the last writer on every engine, and from 8 on the last reader since; of all of a cell's pieces |
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from compiler.schedule.footprint import Bytes8, Ints32

ENGINES = 6  # all but SCALAR
_WRITER, _ENGINE = 6, 7


class Past(NamedTuple):
    """Pieces; `pieces` of them count."""

    bound: Ints32
    last: Ints32


def new_past(granules: int) -> Past:
    """Room for the most that there can be."""
    return Past(np.zeros(granules + 1, np.int32), np.empty((granules, 8), np.int32))


@njit(cache=True)
def enter(bound: Ints32, touched: Bytes8, past: Past, pieces: int, cell: Ints32) -> None:
    """Cells as a part finds them."""
    begin, last = past.bound, past.last
    p = 0
    for c in range(touched.shape[0]):
        if not touched[c]:
            continue
        for e in range(16):
            cell[c, e] = -1
        while p < pieces and begin[p + 1] <= bound[c]:
            p += 1
        q = p
        while q < pieces and begin[q] < bound[c + 1]:
            for e in range(ENGINES):
                cell[c, 8 + e] = max(cell[c, 8 + e], last[q, e])
            e = last[q, _ENGINE]
            if e >= 0:
                cell[c, e] = max(cell[c, e], last[q, _WRITER])
            q += 1


@njit(cache=True)
def leave(bound: Ints32, touched: Bytes8, cell: Ints32, first: int, past: Past, pieces: int, out: Past) -> int:
    """The past after a part whose first instruction is `first`, into `out`; returns how many pieces it has."""
    begin, last, new_begin, new = past.bound, past.last, out.bound, out.last
    cells = touched.shape[0]
    at, stop = bound[0], bound[cells]
    if pieces:
        at, stop = min(at, begin[0]), max(stop, begin[pieces])
    n = p = c = 0
    before = -1  # the piece of the past that the last one is all or some of
    while at < stop:
        while p < pieces and begin[p + 1] <= at:
            p += 1
        while c < cells and bound[c + 1] <= at:
            c += 1
        held, mine = p < pieces and begin[p] <= at, c < cells and bound[c] <= at
        upto = bound[c + 1] if mine else bound[c] if c < cells else stop
        writer = engine = np.int32(-1)
        if mine and touched[c]:
            for e in range(ENGINES):
                if cell[c, e] >= first and cell[c, e] > writer:
                    writer, engine = cell[c, e], np.int32(e)
        else:
            mine = False
        if writer < 0:  # what the past tells apart stays so
            if held:
                upto = min(upto, begin[p + 1])
            elif p < pieces:
                upto = min(upto, begin[p])
        if not mine and n and before == (p if held else pieces):
            new_begin[n] = upto
            at = upto
            continue
        new_begin[n] = at
        for e in range(8):
            new[n, e] = last[p, e] if held and writer < 0 else -1
        if mine:
            for e in range(ENGINES):
                if cell[c, 8 + e] >= first:
                    new[n, e] = cell[c, 8 + e]
            if writer >= 0:
                new[n, _WRITER], new[n, _ENGINE] = writer, engine
        before = -1 if mine else p if held else pieces
        n += 1
        new_begin[n] = upto
        at = upto
    return n
