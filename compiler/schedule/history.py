"""What a core's records so far did to its memories, from part to part of a program.

Parts name memory by *cells* of their own (`schedule.footprint`).  Between them the past is a list of *pieces*, runs of granules with one
history each, which is as long as memory has been told apart, not as long as memory is.

| array | dtype, shape       | meaning                                                                                       |
|-------|--------------------|-----------------------------------------------------------------------------------------------|
| bound | int32 [pieces + 1] | piece p is granules [bound[p], bound[p + 1])                                                  |
| last  | int32 [pieces, 8]  | the last reader on every engine since the last write, that write, and its engine; -1: nobody  |
| cell  | int32 [cells, 16]  | the last writer on every engine, and from 8 on the last reader since; of all of a cell's pieces |

What a part leaves of its cells is `inside.Inside.last`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from compiler.schedule.footprint import Bytes8, Ints32
from compiler.schedule.inside import ENGINES, WRITER, WRITER_ENGINE


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
            e = last[q, WRITER_ENGINE]
            if e >= 0:
                cell[c, e] = max(cell[c, e], last[q, WRITER])
            q += 1


@njit(cache=True)
def leave(bound: Ints32, touched: Bytes8, mine: Ints32, first: int, past: Past, pieces: int, out: Past) -> int:
    """The past after a part whose first instruction is `first`, into `out`; returns how many pieces it has.  mine: `Inside.last`."""
    begin, last, new_begin, new = past.bound, past.last, out.bound, out.last
    cells = touched.shape[0]
    at, stop = bound[0], bound[cells]
    if pieces:
        at, stop = min(at, begin[0]), max(stop, begin[pieces])
    n = p = c = 0
    while at < stop:
        while c < cells and (not touched[c] or bound[c + 1] <= at):
            c += 1
        here = c < cells and bound[c] <= at
        upto = bound[c + 1] if here else bound[c] if c < cells else stop
        count = 1
        if here and mine[c, WRITER] >= 0:
            new[n, :] = -1
            new[n, WRITER], new[n, WRITER_ENGINE] = first + mine[c, WRITER], mine[c, WRITER_ENGINE]
        elif pieces and begin[0] <= at < begin[pieces]:  # what the past tells apart stays so
            while begin[p + 1] <= at:
                p += 1
            upto = min(upto, begin[pieces])
            while begin[p + count] < upto:
                count += 1
            for k in range(count):
                new_begin[n + k] = begin[p + k]
                for e in range(8):
                    new[n + k, e] = last[p + k, e]
            p += count - 1
        else:
            if pieces and at < begin[0]:
                upto = min(upto, begin[0])
            new[n, :] = -1
        if here:
            for e in range(ENGINES):
                if mine[c, e] >= 0:
                    new[n : n + count, e] = first + mine[c, e]
        new_begin[n] = at
        n += count
        new_begin[n] = upto
        at = upto
    return n
