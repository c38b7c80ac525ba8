"""What the instructions of a segment wait for among themselves, and what it is to its neighbours: made once, whatever comes before it.

Within a segment the last conflicting accesses of the other engines are the same in every program.  Of these only such count as no chain of
others implies.  What stands before a segment is met where it touches a cell for the first time (a read: the first of its engine; a
write: the first at all), and of itself it leaves the last accesses of every cell.

A queue is in order with itself, but for transfers of a DMA with several ports: one of these waits for its own queue too, by a flag that
the queue sets and waits for.  Inside a segment every place of DDR is written once, so that two writes in one granule of it are apart.

Exact: an instruction that is left out lies behind one that is waited for, directly or not; the clocks of `hazards`, which know at least
what follows from the segment alone, cover it by the time it would be looked at, because later instructions are looked at first.

| array | dtype, shape     | meaning                                                                                                  |
|-------|------------------|----------------------------------------------------------------------------------------------------------|
| start | int32 [n + 1]    | those that instruction j waits for: need[start[j] : start[j + 1]]                                        |
| need  | int32 [waits]    | instructions of the segment, the later ones first                                                        |
| outer | int32 [outer, 3] | (j, a, b), ascending by j: j meets what came before the segment in cells [a >> 1, b); a & 1: as a write   |
| last  | int32 [cells, 8] | the last reader on every engine since the last write, that write, and its engine; -1: nobody              |
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from compiler.schedule.scratch import Scratch
from simulator.pointer import pointer

Bytes8 = NDArray[np.uint8]
Ints32 = NDArray[np.int32]

ENGINES = 6  # all but SCALAR
WRITER, WRITER_ENGINE = 6, 7  # columns of `last`


class Inside(NamedTuple):
    """See the table at the top of this file."""

    start: Ints32
    need: Ints32
    outer: Ints32
    last: Ints32

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in self)


def inside(engine: Bytes8, span: Ints32, start: Ints32, ddr_cells: int, overlaps: Bytes8, touched: Bytes8, scratch: Scratch) -> Inside:
    """Of n records (see `footprint`), the first `ddr_cells` of whose cells are of DDR; overlaps: 1 where others of its queue may.

    Fills touched, uint8 [cells], 1 of those that some record reads or writes.
    """
    n, cells = len(engine), len(touched)
    need_start, need = np.empty(n + 1, np.int32), scratch.array("need", n * ENGINES)
    outer, last = scratch.array("outer", cells * (ENGINES + 1), 3), np.empty((cells, 8), np.int32)
    known = scratch.array("clock", ENGINES, ENGINES), scratch.array("wanted", ENGINES), scratch.array("known", n, ENGINES)
    needs, outers = _look(engine, span, start, ddr_cells, overlaps, last, *known, need_start, need, outer, touched)
    return Inside(need_start, need[:needs].copy(), outer[:outers].copy(), last)


@njit(cache=True)
def _look(
    engine: Bytes8,
    span: Ints32,
    start: Ints32,
    ddr_cells: int,
    overlaps: Bytes8,
    last: Ints32,
    clock_array: Ints32,
    wanted_array: Ints32,
    known: Ints32,
    need_start: Ints32,
    need: Ints32,
    outer: Ints32,
    touched: Bytes8,
) -> tuple[int, int]:
    """Fills need_start, need, outer, last and touched; returns how many it has of need and of outer.

    clock_array: int32 [6, 6], and wanted_array: int32 [6], scratch.  known: int32 [n, 6], scratch: what every instruction knows to be over.
    """
    clock, wanted, cells, over = pointer(clock_array), pointer(wanted_array), pointer(last), pointer(known)
    own, spans, starts = pointer(engine), pointer(span), pointer(start)
    last[:] = clock_array[:] = -1
    needs = outers = 0
    for j in range(engine.shape[0]):
        me: Any = np.int64(own[j])
        for e in range(ENGINES):
            wanted[e] = -1
        own_last: Any = np.int64(-1)  # of my queue, before j itself touches what it reads and writes
        if overlaps[j]:
            for s in range(starts[j], starts[j + 1]):
                write = spans[2 * s] & 1
                for c in range(spans[2 * s] >> 1, spans[2 * s + 1]):
                    at = 8 * c
                    if cells[at + WRITER_ENGINE] == me and not (write and c < ddr_cells):
                        own_last = max(own_last, cells[at + WRITER])
                    if write:
                        own_last = max(own_last, cells[at + me])
        for s in range(starts[j], starts[j + 1]):
            write, stop = spans[2 * s] & 1, spans[2 * s + 1]
            begin = -1  # of a run of cells in which the past is met
            for c in range(spans[2 * s] >> 1, stop):
                at = 8 * c
                writer = cells[at + WRITER]
                if writer >= 0:
                    its: Any = np.int64(cells[at + WRITER_ENGINE])
                    wanted[its] = max(wanted[its], writer)
                if writer < 0 and (write or cells[at + me] < 0):
                    if begin < 0:
                        begin = c
                elif begin >= 0:
                    outer[outers, 0], outer[outers, 1], outer[outers, 2] = j, begin << 1 | write, c
                    outers += 1
                    begin = -1
                if write:  # whoever comes later waits for this write, which waits for them
                    for e in range(ENGINES):
                        wanted[e] = max(wanted[e], cells[at + e])
                        cells[at + e] = -1
                    cells[at + WRITER], cells[at + WRITER_ENGINE] = j, me
                else:
                    cells[at + me] = j
            if begin >= 0:
                outer[outers, 0], outer[outers, 1], outer[outers, 2] = j, begin << 1 | write, stop
                outers += 1
        wanted[me] = own_last
        need_start[j] = needs
        mine = me * ENGINES
        while True:
            best, other = np.int32(-1), 0
            for e in range(ENGINES):
                if wanted[e] > clock[mine + e] and wanted[e] > best:
                    best, other = wanted[e], e
            if best < 0:
                break
            need[needs] = best
            needs += 1
            clock[mine + other] = best
            for e in range(ENGINES):
                clock[mine + e] = max(clock[mine + e], over[best * ENGINES + e])
        for e in range(ENGINES):
            over[j * ENGINES + e] = clock[mine + e]
        if not overlaps[j]:
            clock[mine + me] = j
    need_start[engine.shape[0]] = needs
    for c in range(touched.shape[0]):
        touched[c] = last[c].max() >= 0
    return needs, outers
