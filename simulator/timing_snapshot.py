"""Snapshots of a run between two steps of its clock, and a run that goes on from one.

A snapshot tells nothing of entries that are not dispatched, but that each stream goes on with one for a full queue, or has ended.
Whatever program has the same ones up to there goes on from it and ends as if it had run from its first cycle on.  `flag` stays where it
is from run to run; of `time` a snapshot has all that later cycles look at.

| name      | dtype, shape      | meaning                                                                                             |
|-----------|-------------------|-----------------------------------------------------------------------------------------------------|
| snapshots | int64 [room, row] | a row: NOW, the state of the DDR port, `unit`, `dma`, `ends`, then per queue `time` of `seen` entries    |
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

FROM = 0  # the row that the run goes on from, or -1
COUNT = 1  # rows so far; more are added while there is room
INTERVAL = 2  # steps of the clock between two of them; 0: none
CONTROL = 3

NOW, DDR = 0, 1  # of a row; the state of the port is what lies before TOP in `port`
UNIT = DDR + TOP


def no_snapshots() -> tuple[Ints, Ints]:
    """`snapshots` and `control` of a run that leaves none."""
    return np.empty((0, 0), np.int64), np.array([-1, 0, 0], np.int64)


def row_length(items: int, queues: int, depth: int) -> int:
    """Items of a row: of `unit`, `dma` and `ends` with so many together, and queues of so many entries."""
    return UNIT + items + queues * seen_room(depth)


@njit(cache=True)
def seen_room(depth: int) -> int:
    """For how many times of a queue a row has room: those that it holds, and of a DMA as many that are issued."""
    return 2 * depth


@njit(cache=True)
def seen(unit: Ints, at: int, u: int, e: int, depth: int) -> tuple[int, int]:
    """Entries of queue u, of engine e, at whose times later cycles look.  unit: with the state of `timing_state`, from `at` on.

    Those that are dispatched; before them those whose places the next ones take; and of a DMA those that are issued.
    """
    tail, head = unit[at + u + TAIL], unit[at + u + HEAD]
    begin = min(head, tail - depth)
    if e in (MTE2, MTE3):
        begin = min(begin, unit[at + u + DATA])
    return max(begin, unit[at + u + FIRST]), tail


@njit(cache=True)
def save(row: Ints, time: Ints, unit: Ints, dma: Ints, ends: Ints, port: Ints, now: int) -> bool:
    """Nothing is on the worklist.  Returns whether a row has room for it."""
    depth = port[QUEUE_DEPTH]
    at, room = UNIT + unit.shape[0] + dma.shape[0] + ends.shape[0], seen_room(depth)
    for core in range(unit.shape[0] // CORE):
        for e in range(ENGINES):
            begin, end = seen(unit, 0, core * CORE + e * COLUMNS, e, depth)
            if end - begin > room:
                return False
            row[at : at + end - begin] = time[begin:end]
            at += room
    row[NOW] = now
    row[DDR:UNIT] = port[:TOP]
    at = UNIT
    for array in (unit, dma, ends):
        row[at : at + array.shape[0]] = array
        at += array.shape[0]
    return True


@njit(cache=True)
def resume(
    row: Ints, time: Ints, flag: Ints, unit: Ints, dma: Ints, ends: Ints, port: Ints, word: Ints, queues: Ints, streams: Ints,
    then: Ints, source: NDArray[np.int32], first: int, low: int, begins: Ints,
) -> int:  # fmt: skip
    """The state of a snapshot, of what may be another program behind it; returns the cycle.

    Every SET that has not taken effect is unknown.  then: flags as they were; source to begins: see `timing_again`.
    """
    for slot in range(low, flag.shape[0]):
        if source[slot] >= first:
            flag[slot] = -1
    port[:TOP] = row[DDR:UNIT]
    port[TOP] = -1
    at = UNIT
    for array in (unit, dma, ends):
        array[:] = row[at : at + array.shape[0]]
        at += array.shape[0]
    for core in range(streams.shape[0]):
        for e in range(ENGINES):
            u, stop = core * CORE + e * COLUMNS, queues[core * ENGINES + e, 1]
            unit[u + STOP] = stop
            head = unit[u + HEAD]
            begin, end = seen(unit, 0, u, e, port[QUEUE_DEPTH])
            time[begin:end] = row[at : at + end - begin]
            at += seen_room(port[QUEUE_DEPTH])
            for i in range(begins[core * ENGINES + e], unit[u + DATA] if e in (MTE2, MTE3) else head):
                if word[i] & KIND_MASK == SET or word[i] & KIND_MASK == SET_REMOTE:
                    flag[word[i] >> KIND_BITS] = then[word[i] >> KIND_BITS]
        unit[core * CORE + SCALAR + STOP] = streams[core, 1]
    for core in range(streams.shape[0]):
        for e in range(ENGINES):
            u = core * CORE + e * COLUMNS
            head = unit[u + HEAD]
            if unit[u + STALLED] and word[head] & KIND_MASK == WAIT:
                flag[word[head] >> KIND_BITS] = -2 - u
    return int(row[NOW])
