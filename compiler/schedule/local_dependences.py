"""Dependences inside a segment, and its accesses as its neighbours see them: made once, valid in every program.

Within a segment the last conflicting accesses of other engines are the same in every program; accesses that a chain of others implies are
left out.  Accesses before the segment matter at its first access to a cell (a read: the engine's first; a write: the first of
all).  For later segments it stores the last accesses to every cell.

A queue is in order with itself, except the transfers of a DMA with several ports.  Such a transfer waits for its own queue too, by a flag
that the queue both sets and waits for.  Inside a segment every DDR block is written once, so two writes to one granule need no order.

Exact: an omitted instruction lies behind one that is waited for, directly or not.  The clocks of `hazards` know at least what follows from
the segment alone, and later instructions are looked at first, so the clocks cover the omitted one by then.

| array | dtype, shape     | meaning                                                                                                  |
|-------|------------------|----------------------------------------------------------------------------------------------------------|
| start | int32 [n + 1]    | instruction j waits for need[start[j] : start[j + 1]]                                                    |
| need  | int32 [waits]    | instructions of the segment, the later ones first                                                        |
| outer | int32 [outer, 3] | (j, a, b), ascending by j: j is first to touch cells [a >> 1, b), as a write if a & 1                    |
| last  | int32 [cells, 8] | the last reader on every engine since the last write, that write, and its engine; -1: none               |
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


class LocalDependences(NamedTuple):
    """Arrays of a segment: see the table at the top of this file."""

    start: Ints32
    need: Ints32
    outer: Ints32
    last: Ints32

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in self)


def find_dependences(
    engine: Bytes8, span: Ints32, start: Ints32, ddr_cells: int, overlaps: Bytes8, touched: Bytes8, scratch: Scratch
) -> LocalDependences:
    """Find dependences of n records (see `segment_accesses`), whose first `ddr_cells` cells are DDR.

    overlaps: 1 for records that other transfers of their queue may overlap.  Fills touched, uint8 [cells]: 1 if any record accesses the
    cell.
    """
    n, cells = len(engine), len(touched)
    need_start, need = np.empty(n + 1, np.int32), scratch.array("need", n * ENGINES)
    outer, last = scratch.array("outer", cells * (ENGINES + 1), 3), np.empty((cells, 8), np.int32)
    work_arrays = scratch.array("clock", ENGINES, ENGINES), scratch.array("wanted", ENGINES), scratch.array("known", n, ENGINES)
    needs, outers = _scan_records(engine, span, start, ddr_cells, overlaps, last, *work_arrays, need_start, need, outer, touched)
    return LocalDependences(need_start, need[:needs].copy(), outer[:outers].copy(), last)


@njit(cache=True)
def _scan_records(
    engine: Bytes8, span: Ints32, start: Ints32, ddr_cells: int, overlaps: Bytes8, last: Ints32, clock_array: Ints32,
    conflict_array: Ints32, clocks_array: Ints32, need_start: Ints32, need: Ints32, outer: Ints32, touched: Bytes8,
) -> tuple[int, int]:  # fmt: skip
    """Fill need_start, need, outer, last and touched; returns the lengths of need and outer.

    clock_array: int32 [6, 6], and conflict_array: int32 [6], scratch.  clocks_array: int32 [n, 6], scratch: vector clock of every
    instruction.
    """
    clock, conflict, cells, clocks = pointer(clock_array), pointer(conflict_array), pointer(last), pointer(clocks_array)
    engines, spans, starts = pointer(engine), pointer(span), pointer(start)
    last[:] = clock_array[:] = -1
    needs = outers = 0
    for j in range(engine.shape[0]):
        queue: Any = np.int64(engines[j])
        for e in range(ENGINES):
            conflict[e] = -1
        queue_last: Any = np.int64(-1)  # last conflict of its own queue, before j itself updates the cells
        if overlaps[j]:
            for s in range(starts[j], starts[j + 1]):
                write = spans[2 * s] & 1
                for c in range(spans[2 * s] >> 1, spans[2 * s + 1]):
                    cell_row = 8 * c
                    if cells[cell_row + WRITER_ENGINE] == queue and not (write and c < ddr_cells):
                        queue_last = max(queue_last, cells[cell_row + WRITER])
                    if write:
                        queue_last = max(queue_last, cells[cell_row + queue])
        for s in range(starts[j], starts[j + 1]):
            write, stop = spans[2 * s] & 1, spans[2 * s + 1]
            begin = -1  # start of a run of cells with accesses before the segment
            for c in range(spans[2 * s] >> 1, stop):
                cell_row = 8 * c
                writer = cells[cell_row + WRITER]
                if writer >= 0:
                    writer_engine: Any = np.int64(cells[cell_row + WRITER_ENGINE])
                    conflict[writer_engine] = max(conflict[writer_engine], writer)
                if writer < 0 and (write or cells[cell_row + queue] < 0):
                    if begin < 0:
                        begin = c
                elif begin >= 0:
                    outer[outers, 0], outer[outers, 1], outer[outers, 2] = j, begin << 1 | write, c
                    outers += 1
                    begin = -1
                if write:  # later accesses wait for this write, which waits for the readers so far
                    for e in range(ENGINES):
                        conflict[e] = max(conflict[e], cells[cell_row + e])
                        cells[cell_row + e] = -1
                    cells[cell_row + WRITER], cells[cell_row + WRITER_ENGINE] = j, queue
                else:
                    cells[cell_row + queue] = j
            if begin >= 0:
                outer[outers, 0], outer[outers, 1], outer[outers, 2] = j, begin << 1 | write, stop
                outers += 1
        conflict[queue] = queue_last
        need_start[j] = needs
        clock_row = queue * ENGINES
        # the latest conflict first: its clock may cover others
        while True:
            best, source = np.int32(-1), 0
            for e in range(ENGINES):
                if conflict[e] > clock[clock_row + e] and conflict[e] > best:
                    best, source = conflict[e], e
            if best < 0:
                break
            need[needs] = best
            needs += 1
            clock[clock_row + source] = best
            for e in range(ENGINES):
                clock[clock_row + e] = max(clock[clock_row + e], clocks[best * ENGINES + e])
        for e in range(ENGINES):
            clocks[j * ENGINES + e] = clock[clock_row + e]
        if not overlaps[j]:
            clock[clock_row + queue] = j
    need_start[engine.shape[0]] = needs
    for c in range(touched.shape[0]):
        touched[c] = last[c].max() >= 0
    return needs, outers
