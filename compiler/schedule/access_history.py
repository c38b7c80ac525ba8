"""What a core's records so far did to its memories, from part to part of a program.

Parts name memory by *cells* of their own (`schedule.segment_accesses`).  Between them the past of DDR is a table of its granules, rows of
tensors: a part touches few of them, and what others left there stays where it is.  The past of the memories on chip is a list of *pieces*,
runs of granules with one history each, which is as long as they have been told apart, not as long as they are; a part touches most of them.

| array | dtype, shape              | meaning                                                                                       |
|-------|---------------------------|-----------------------------------------------------------------------------------------------|
| ddr   | int32 [granules, 8]       | the last reader on every engine since the last write, that write, and its engine; -1: nobody  |
| bound | int32 [pieces + 1]        | piece p is granules [bound[p], bound[p + 1])                                                  |
| last  | int32 [pieces, 8]         | of a piece what `ddr` is of a granule                                                         |
| piece | int32 [cells]             | of a part's cells on chip, the first piece that ends behind where the cell begins             |

What a part leaves of its cells is `inside.Inside.last`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit

from compiler.schedule.local_dependences import ENGINES, WRITER, WRITER_ENGINE
from compiler.schedule.segment_accesses import Bytes8, Ints32
from simulator.pointer import Pointer, pointer


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
def wipe(bound: Ints32, touched: Bytes8, ddr: Ints32, wiped: Bytes8) -> int:
    """Rows of DDR that a part touched are as nobody had: a segment's are few, and the table is as long as the model is large.

    wiped: uint8 [granules], 1 of these from now on.  Returns the first of them, or what is not below it.
    """
    rows = pointer(ddr)
    for c in range(touched.shape[0]):
        if bound[c] >= ddr.shape[0]:
            break
        if touched[c]:
            for k in range(8 * bound[c], 8 * bound[c + 1]):
                rows[k] = -1
            wiped[bound[c] : bound[c + 1]] = 1
    return bound[0] if touched.shape[0] else ddr.shape[0]


@njit(cache=True)
def enter(bound: Ints32, touched: Bytes8, granules: int, past: Intervals, pieces: int, piece: Ints32) -> None:
    """Fills `piece`, as a part finds it.  granules: of DDR."""
    begin, p = past.bound, 0
    for c in range(np.searchsorted(bound[: touched.shape[0]], granules), touched.shape[0]):
        if touched[c]:
            while p < pieces and begin[p + 1] <= bound[c]:
                p += 1
            piece[c] = p


@njit(cache=True, forceinline=True)
def meet(
    need: Pointer, write: int, c: int, stop: int, bound: Pointer, granules: int, ddr: Pointer, begin: Pointer, last: Pointer, pieces: int,
    piece: Pointer,
) -> None:  # fmt: skip
    """need: [6], of every engine the last one that a read, or a write, of a part's cells c .. stop, all of one memory, comes behind."""
    if bound[c] < granules:
        for row in range(8 * bound[c], 8 * bound[stop], 8):
            if ddr[row + WRITER] >= 0:
                writer: Any = np.int64(ddr[row + WRITER_ENGINE])
                need[writer] = max(need[writer], np.int64(ddr[row + WRITER]))
            if write:
                for e in range(ENGINES):
                    need[e] = max(need[e], np.int64(ddr[row + e]))
        return
    p: Any = np.int64(piece[c])
    while p < pieces and begin[p] < bound[stop]:
        if last[8 * p + WRITER] >= 0:
            owner: Any = np.int64(last[8 * p + WRITER_ENGINE])
            need[owner] = max(need[owner], np.int64(last[8 * p + WRITER]))
        if write:
            for e in range(ENGINES):
                need[e] = max(need[e], np.int64(last[8 * p + e]))
        p += 1


@njit(cache=True, forceinline=True)
def _touch(last: Pointer, k: int, stop: int, mine: Pointer, c: int, first: int) -> None:
    """Granules or pieces [k, stop) after a part did to them what it did to its cell c."""
    at = 8 * c
    if mine[at + WRITER] < 0:
        while k < stop:
            for e in range(ENGINES):
                if mine[at + e] >= 0:
                    last[8 * k + e] = first + mine[at + e]
            k += 1
        return
    while k < stop:
        for e in range(ENGINES):
            last[8 * k + e] = first + mine[at + e] if mine[at + e] >= 0 else -1
        last[8 * k + WRITER], last[8 * k + WRITER_ENGINE] = first + mine[at + WRITER], mine[at + WRITER_ENGINE]
        k += 1


@njit(cache=True)
def leave_ddr(bound: Ints32, touched: Bytes8, last: Ints32, first: int, ddr: Ints32) -> int:
    """The part of `leave` that is about DDR; returns how many cells that are."""
    mine, rows, begin, any_touched = pointer(last), pointer(ddr), pointer(bound), pointer(touched)
    c, cells, granules = 0, touched.shape[0], ddr.shape[0]
    while c < cells and begin[c] < granules:
        if any_touched[c]:
            _touch(rows, begin[c], begin[c + 1], mine, c, first)
        c += 1
    return c


@njit(cache=True)
def leave_again(bound: Ints32, touched: Bytes8, last: Ints32, first: int, ddr: Ints32, wiped: Bytes8, least: int) -> None:
    """`leave_ddr` where rows were wiped: elsewhere the part's are there.  least: none before it were."""
    mine, rows = pointer(last), pointer(ddr)
    start: Any = np.searchsorted(bound[: touched.shape[0]], least, side="right")
    for c in range(max(0, start - 1), touched.shape[0]):
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
