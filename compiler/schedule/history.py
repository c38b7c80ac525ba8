"""What a core's records so far did to its memories, from part to part of a program.

Parts name memory by *cells* of their own (`schedule.footprint`).  Between them the past of DDR is a table of its granules, rows of tensors:
a part touches few of them, and what others left there stays where it is.  The past of the memories on chip is a list of *pieces*, runs
of granules with one history each, which is as long as they have been told apart, not as long as they are; a part touches most of them.

| array | dtype, shape              | meaning                                                                                       |
|-------|---------------------------|-----------------------------------------------------------------------------------------------|
| ddr   | int32 [granules, 8]       | the last reader on every engine since the last write, that write, and its engine; -1: nobody  |
| bound | int32 [pieces + 1]        | piece p is granules [bound[p], bound[p + 1])                                                  |
| last  | int32 [pieces, 8]         | of a piece what `ddr` is of a granule                                                         |
| cell  | int32 [cells, 16]         | the last writer on every engine, and from 8 on the last reader since; of all that a cell is   |

What a part leaves of its cells is `inside.Inside.last`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit

from compiler.schedule.footprint import Bytes8, Ints32
from compiler.schedule.inside import ENGINES, WRITER, WRITER_ENGINE
from simulator.pointer import Pointer, pointer

CELL = 2 * 8  # columns of `cell`: writers, and readers


class Intervals(NamedTuple):
    """Of the memories on chip; so many count as `leave` says."""

    bound: Ints32
    last: Ints32


def no_pieces(granules: int) -> Intervals:
    """Room for the most that there can be."""
    return Intervals(np.zeros(granules + 1, np.int32), np.empty((granules, 8), np.int32))


def no_rows(granules: int) -> Ints32:
    """Of DDR, nothing touched."""
    return np.full((granules, 8), -1, np.int32)


@njit(cache=True)
def wipe(bound: Ints32, touched: Bytes8, ddr: Ints32, wiped: Bytes8) -> None:
    """Rows of DDR that a part touched are as nobody had: a segment's are few, and the table is as long as the model is large.

    wiped: uint8 [granules], 1 of these from now on.
    """
    rows = pointer(ddr)
    for c in range(touched.shape[0]):
        if bound[c] >= ddr.shape[0]:
            break
        if touched[c]:
            for k in range(8 * bound[c], 8 * bound[c + 1]):
                rows[k] = -1
            wiped[bound[c] : bound[c + 1]] = 1


@njit(cache=True)
def _gather(cell: Pointer, c: int, last: Pointer, k: int, stop: int) -> None:
    """What is known of granules or pieces [k, stop), as one cell."""
    at = CELL * c
    for e in range(CELL):
        cell[at + e] = -1
    r0: Any = np.int32(-1)  # readers, in registers: what is behind a pointer is loaded again after every store
    r1, r2, r3, r4, r5 = r0, r0, r0, r0, r0
    while k < stop:
        row = 8 * k
        r0, r1, r2 = max(r0, last[row]), max(r1, last[row + 1]), max(r2, last[row + 2])
        r3, r4, r5 = max(r3, last[row + 3]), max(r4, last[row + 4]), max(r5, last[row + 5])
        writer = last[row + WRITER_ENGINE]
        if writer >= 0:
            cell[at + writer] = max(cell[at + writer], last[row + WRITER])
        k += 1
    at += CELL // 2
    cell[at], cell[at + 1], cell[at + 2], cell[at + 3], cell[at + 4], cell[at + 5] = r0, r1, r2, r3, r4, r5


@njit(cache=True)
def enter(bound: Ints32, touched: Bytes8, ddr: Ints32, past: Intervals, pieces: int, cell: Ints32) -> None:
    """Cells as a part finds them."""
    begin, found, rows, last = past.bound, pointer(cell), pointer(ddr), pointer(past.last)
    p = 0
    for c in range(touched.shape[0]):
        if not touched[c]:
            continue
        if bound[c] < ddr.shape[0]:
            _gather(found, c, rows, bound[c], bound[c + 1])
            continue
        while p < pieces and begin[p + 1] <= bound[c]:
            p += 1
        q = p
        while q < pieces and begin[q] < bound[c + 1]:
            q += 1
        _gather(found, c, last, p, q)


@njit(cache=True)
def _touch(last: Pointer, k: int, stop: int, mine: Pointer, c: int, first: int) -> None:
    """Granules or pieces [k, stop) after a part did to them what it did to its cell c."""
    at = 8 * c
    written = mine[at + WRITER] >= 0
    while k < stop:
        row = 8 * k
        for e in range(ENGINES):
            if mine[at + e] >= 0:
                last[row + e] = first + mine[at + e]
            elif written:
                last[row + e] = -1
        if written:
            last[row + WRITER], last[row + WRITER_ENGINE] = first + mine[at + WRITER], mine[at + WRITER_ENGINE]
        k += 1


@njit(cache=True)
def leave_ddr(bound: Ints32, touched: Bytes8, last: Ints32, first: int, ddr: Ints32) -> int:
    """The part of `leave` that is about DDR; returns how many cells that are."""
    mine, rows = pointer(last), pointer(ddr)
    c = 0
    while c < touched.shape[0] and bound[c] < ddr.shape[0]:
        if touched[c]:
            _touch(rows, bound[c], bound[c + 1], mine, c, first)
        c += 1
    return c


@njit(cache=True)
def leave_again(bound: Ints32, touched: Bytes8, last: Ints32, first: int, ddr: Ints32, wiped: Bytes8) -> None:
    """`leave_ddr` where rows were wiped: elsewhere the part's are there."""
    mine, rows = pointer(last), pointer(ddr)
    for c in range(touched.shape[0]):
        if bound[c] >= ddr.shape[0]:
            break
        if touched[c]:
            for k in range(bound[c], bound[c + 1]):
                if wiped[k]:
                    _touch(rows, k, k + 1, mine, c, first)


@njit(cache=True)
def leave(bound: Ints32, touched: Bytes8, last: Ints32, first: int, ddr: Ints32, past: Intervals, pieces: int, out: Intervals) -> int:
    """The past after a part whose first instruction is `first`: into `ddr`, and as pieces into `out`; returns how many.

    last: `Inside.last`.
    """
    begin, new_begin = past.bound, out.bound
    mine, old, new = pointer(last), pointer(past.last), pointer(out.last)
    cells = touched.shape[0]
    c = leave_ddr(bound, touched, last, first, ddr)
    at, stop = max(bound[c], ddr.shape[0]), bound[cells]
    if pieces:
        at, stop = min(at, begin[0]), max(stop, begin[pieces])
    n = p = 0
    while at < stop:
        while c < cells and (not touched[c] or bound[c + 1] <= at):
            c += 1
        here = c < cells and bound[c] <= at
        upto = bound[c + 1] if here else bound[c] if c < cells else stop
        kept, count = not here or last[c, WRITER] < 0, 1
        if kept and pieces and begin[0] <= at < begin[pieces]:  # what the past tells apart stays so
            while begin[p + 1] <= at:
                p += 1
            upto = min(upto, begin[pieces])
            while begin[p + count] < upto:
                count += 1
            for k in range(count):
                new_begin[n + k] = begin[p + k]
            for k in range(8 * count):
                new[8 * n + k] = old[8 * p + k]
            p += count - 1
        else:
            if kept and pieces and at < begin[0]:
                upto = min(upto, begin[0])
            for k in range(8):
                new[8 * n + k] = -1
        if here:
            _touch(new, n, n + count, mine, c, first)
        new_begin[n] = at
        n += count
        new_begin[n] = upto
        at = upto
    return n
