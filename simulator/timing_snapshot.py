"""Snapshots of a run between two steps of its clock, and resuming from one.

A snapshot depends only on dispatched entries, and on how each stream continues: with an entry for a full queue, or not at all.
Any program with the same dispatched entries can resume from it, and ends as if it had run from its first cycle.  `flag` is kept
from run to run; of `time` a snapshot has the entries that later cycles read.

| name      | dtype, shape      | meaning                                                                                             |
|-----------|-------------------|-----------------------------------------------------------------------------------------------------|
| snapshots | int64 [room, row] | a row: NOW, the state of the DDR port, `unit`, `dma`, `ends`, then per queue `time` of `visible_entries` |
| control   | int64 [3]         | FROM, COUNT, INTERVAL                                                                               |
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from simulator.timing_state import (
    COLUMNS,
    CORE,
    DATA,
    ENGINES,
    FIRST,
    HEAD,
    KIND_BITS,
    KIND_MASK,
    MTE2,
    MTE3,
    QUEUE_DEPTH,
    SCALAR,
    SET,
    SET_REMOTE,
    STALLED,
    STOP,
    TAIL,
    TOP,
    WAIT,
    Ints,
)

FROM = 0  # row from which the run resumes, or -1
COUNT = 1  # rows so far; more are added while there is room
INTERVAL = 2  # steps of the clock between two rows; 0: no snapshots
CONTROL = 3

NOW, DDR = 0, 1  # columns of a row; the state of the port is `port` before TOP
UNIT = DDR + TOP


def no_snapshots() -> tuple[Ints, Ints]:
    """`snapshots` and `control` of a run without snapshots."""
    return np.empty((0, 0), np.int64), np.array([-1, 0, 0], np.int64)


def row_length(items: int, queues: int, depth: int) -> int:
    """Length of a row.  items: total length of `unit`, `dma` and `ends`.  depth: entries of a queue."""
    return UNIT + items + queues * visible_room(depth)


@njit(cache=True)
def visible_room(depth: int) -> int:
    """Times per queue in a row: entries in the queue, and the same number of issued entries of a DMA."""
    return 2 * depth


@njit(cache=True)
def visible_entries(unit: Ints, offset: int, u: int, engine: int, depth: int) -> tuple[int, int]:
    """(first, stop): entries of queue u whose times later cycles read.  unit: state of `timing_state`, at `offset` of an array.

    These are the dispatched entries, the entries before them whose places become free next, and the issued entries of a DMA.
    """
    tail, head = unit[offset + u + TAIL], unit[offset + u + HEAD]
    begin = min(head, tail - depth)
    if engine in (MTE2, MTE3):
        begin = min(begin, unit[offset + u + DATA])
    return max(begin, unit[offset + u + FIRST]), tail


@njit(cache=True)
def save_snapshot(row: Ints, time: Ints, unit: Ints, dma: Ints, ends: Ints, port: Ints, now: int) -> bool:
    """Write a snapshot; the worklist must be empty.  Returns False where the row is too short."""
    depth = port[QUEUE_DEPTH]
    offset, room = UNIT + unit.shape[0] + dma.shape[0] + ends.shape[0], visible_room(depth)
    for core in range(unit.shape[0] // CORE):
        for e in range(ENGINES):
            begin, end = visible_entries(unit, 0, core * CORE + e * COLUMNS, e, depth)
            if end - begin > room:
                return False
            row[offset : offset + end - begin] = time[begin:end]
            offset += room
    row[NOW] = now
    row[DDR:UNIT] = port[:TOP]
    offset = UNIT
    for array in (unit, dma, ends):
        row[offset : offset + array.shape[0]] = array
        offset += array.shape[0]
    return True


@njit(cache=True)
def resume_snapshot(
    row: Ints, time: Ints, flag: Ints, unit: Ints, dma: Ints, ends: Ints, port: Ints, word: Ints, queues: Ints, streams: Ints,
    old_flag: Ints, source: NDArray[np.int32], first: int, low: int, begins: Ints,
) -> int:  # fmt: skip
    """Restore a snapshot, for a program that may differ behind it; returns its cycle.

    Every SET without effect yet becomes unknown.  old_flag: previous flags.  source to begins: see `timing_converge`.
    """
    # flags of later instructions are unknown again; flags below `low` were set before the snapshot
    for slot in range(low, flag.shape[0]):
        if source[slot] >= first:
            flag[slot] = -1
    # the state; its worklist was empty when it was saved
    port[:TOP] = row[DDR:UNIT]
    port[TOP] = -1
    offset = UNIT
    for array in (unit, dma, ends):
        array[:] = row[offset : offset + array.shape[0]]
        offset += array.shape[0]
    for core in range(streams.shape[0]):
        for e in range(ENGINES):
            u, stop = core * CORE + e * COLUMNS, queues[core * ENGINES + e, 1]
            unit[u + STOP] = stop
            head = unit[u + HEAD]
            begin, end = visible_entries(unit, 0, u, e, port[QUEUE_DEPTH])
            time[begin:end] = row[offset : offset + end - begin]
            offset += visible_room(port[QUEUE_DEPTH])
            # a SET that was issued early has taken effect although its instruction comes later
            for i in range(begins[core * ENGINES + e], unit[u + DATA] if e in (MTE2, MTE3) else head):
                if (word[i] & KIND_MASK) == SET or (word[i] & KIND_MASK) == SET_REMOTE:
                    flag[word[i] >> KIND_BITS] = old_flag[word[i] >> KIND_BITS]
        unit[core * CORE + SCALAR + STOP] = streams[core, 1]
    for core in range(streams.shape[0]):
        for e in range(ENGINES):
            u = core * CORE + e * COLUMNS
            head = unit[u + HEAD]
            # queues that wait for a flag register with it again
            if unit[u + STALLED] and (word[head] & KIND_MASK) == WAIT:
                flag[word[head] >> KIND_BITS] = -2 - u
    return int(row[NOW])
