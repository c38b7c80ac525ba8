"""Access history of a core's memories: last readers and writers, carried from part to part of a program.

Parts name memory by *cells* of their own (`schedule.segment_accesses`).  The history of DDR is a table of its granules (rows of tensors): a
part touches few of them, and all other rows are unchanged.  The history of on-chip memories is a list of *pieces*, runs of granules
with equal history; a part touches most of these memories, and the list is as long as the number of different histories.

| array | dtype, shape              | meaning                                                                                       |
|-------|---------------------------|-----------------------------------------------------------------------------------------------|
| ddr   | int32 [granules, 8]       | the last reader on every engine since the last write, that write, and its engine; -1: none    |
| bound | int32 [pieces + 1]        | piece p is granules [bound[p], bound[p + 1])                                                  |
| last  | int32 [pieces, 8]         | the same eight columns for every piece                                                        |
| piece | int32 [cells]             | for a part's cells on chip, the first piece that ends behind the cell's first granule         |

`local_dependences.Inside.last` has the last accesses of a part to its own cells.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit

from compiler.schedule.local_dependences import ENGINES, WRITER, WRITER_ENGINE
from compiler.schedule.segment_accesses import Bytes8, Ints32
from simulator.pointer import Pointer, pointer


class Intervals(NamedTuple):
    """History of the memories on chip; `record_part` returns how many pieces count."""

    bound: Ints32
    last: Ints32


def empty_intervals(granules: int) -> Intervals:
    """Empty arrays with room for one piece per granule."""
    return Intervals(np.zeros(granules + 1, np.int32), np.empty((granules, 8), np.int32))


def empty_ddr_history(granules: int) -> Ints32:
    """History of DDR before any access."""
    return np.full((granules, 8), -1, np.int32)


@njit(cache=True)
def reset_ddr_rows(bound: Ints32, touched: Bytes8, ddr: Ints32, wiped: Bytes8) -> int:
    """Reset the rows of DDR that a part touched: these are few, and the table is as long as the model is large.

    wiped: uint8 [granules], set to 1 for these rows.  Returns a lower bound of them.
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
def locate_pieces(bound: Ints32, touched: Bytes8, granules: int, past: Intervals, pieces: int, piece: Ints32) -> None:
    """Fill `piece` for a part's on-chip cells.  granules: granules of DDR."""
    begin, p = past.bound, 0
    for c in range(np.searchsorted(bound[: touched.shape[0]], granules), touched.shape[0]):
        if touched[c]:
            while p < pieces and begin[p + 1] <= bound[c]:
                p += 1
            piece[c] = p


@njit(cache=True, forceinline=True)
def collect_accesses(
    latest: Pointer, write: int, cell: int, cell_stop: int, bound: Pointer, granules: int, ddr: Pointer, begin: Pointer, last: Pointer,
    pieces: int, piece: Pointer,
) -> None:  # fmt: skip
    """Raise `latest` [6] to the last access of every engine that a read or write of a part's cells cell .. cell_stop must follow.

    All these cells are of one memory.
    """
    if bound[cell] < granules:
        for row in range(8 * bound[cell], 8 * bound[cell_stop], 8):
            if ddr[row + WRITER] >= 0:
                writer: Any = np.int64(ddr[row + WRITER_ENGINE])
                latest[writer] = max(latest[writer], np.int64(ddr[row + WRITER]))
            if write:
                for e in range(ENGINES):
                    latest[e] = max(latest[e], np.int64(ddr[row + e]))
        return
    p: Any = np.int64(piece[cell])
    while p < pieces and begin[p] < bound[cell_stop]:
        if last[8 * p + WRITER] >= 0:
            owner: Any = np.int64(last[8 * p + WRITER_ENGINE])
            latest[owner] = max(latest[owner], np.int64(last[8 * p + WRITER]))
        if write:
            for e in range(ENGINES):
                latest[e] = max(latest[e], np.int64(last[8 * p + e]))
        p += 1


@njit(cache=True, forceinline=True)
def _update_rows(last: Pointer, row: int, stop: int, part_last: Pointer, cell: int, first: int) -> None:
    """Update granules or pieces [row, stop) with a part's accesses to its cell `cell`; `first`: number of its first instruction."""
    offset = 8 * cell
    # without a write the earlier accesses stay; a write ends their history
    if part_last[offset + WRITER] < 0:
        while row < stop:
            for e in range(ENGINES):
                if part_last[offset + e] >= 0:
                    last[8 * row + e] = first + part_last[offset + e]
            row += 1
        return
    while row < stop:
        for e in range(ENGINES):
            last[8 * row + e] = first + part_last[offset + e] if part_last[offset + e] >= 0 else -1
        last[8 * row + WRITER], last[8 * row + WRITER_ENGINE] = first + part_last[offset + WRITER], part_last[offset + WRITER_ENGINE]
        row += 1


@njit(cache=True)
def record_ddr(bound: Ints32, touched: Bytes8, last: Ints32, first: int, ddr: Ints32) -> int:
    """Update the history of DDR after a part; returns how many of its cells are DDR."""
    part_last, rows, begin, any_touched = pointer(last), pointer(ddr), pointer(bound), pointer(touched)
    c, cells, granules = 0, touched.shape[0], ddr.shape[0]
    while c < cells and begin[c] < granules:
        if any_touched[c]:
            _update_rows(rows, begin[c], begin[c + 1], part_last, c, first)
        c += 1
    return c


@njit(cache=True)
def restore_ddr(bound: Ints32, touched: Bytes8, last: Ints32, first: int, ddr: Ints32, wiped: Bytes8, least: int) -> None:
    """Restore wiped rows from a part's accesses; other rows are unchanged.  least: number below all wiped rows."""
    part_last, rows = pointer(last), pointer(ddr)
    start: Any = np.searchsorted(bound[: touched.shape[0]], least, side="right")
    for c in range(max(0, start - 1), touched.shape[0]):
        if bound[c] >= ddr.shape[0]:
            break
        if touched[c]:
            for k in range(bound[c], bound[c + 1]):
                if wiped[k]:
                    _update_rows(rows, k, k + 1, part_last, c, first)


@njit(cache=True)
def record_part(bound: Ints32, touched: Bytes8, last: Ints32, first: int, ddr: Ints32, past: Intervals, pieces: int, out: Intervals) -> int:
    """Update the history after a part with first instruction `first`.  `ddr` is updated in place, pieces are written to `out`; returns
    their count.

    last: see `Inside.last`.
    """
    begin, new_begin = past.bound, out.bound
    part_last, old, new = pointer(last), pointer(past.last), pointer(out.last)
    cells = touched.shape[0]
    c = record_ddr(bound, touched, last, first, ddr)
    granule, stop = max(bound[c], ddr.shape[0]), bound[cells]
    if pieces:
        granule, stop = min(granule, begin[0]), max(stop, begin[pieces])
    n = p = 0
    # merge two sorted lists: the part's cells and the pieces of the past
    while granule < stop:
        while c < cells and (not touched[c] or bound[c + 1] <= granule):
            c += 1
        in_cell = c < cells and bound[c] <= granule
        end = bound[c + 1] if in_cell else bound[c] if c < cells else stop
        keeps_past, count = not in_cell or last[c, WRITER] < 0, 1
        if keeps_past and pieces and begin[0] <= granule < begin[pieces]:  # pieces with different pasts stay separate
            while begin[p + 1] <= granule:
                p += 1
            end = min(end, begin[pieces])
            while begin[p + count] < end:
                count += 1
            for k in range(count):
                new_begin[n + k] = begin[p + k]
            for k in range(8 * count):
                new[8 * n + k] = old[8 * p + k]
            p += count - 1
        else:
            if keeps_past and pieces and granule < begin[0]:
                end = min(end, begin[0])
            for k in range(8):
                new[8 * n + k] = -1
        if in_cell:
            _update_rows(new, n, n + count, part_last, c, first)
        new_begin[n] = granule
        n += count
        new_begin[n] = end
        granule = end
    return n
