"""A run that comes to where the run before it was: from there on it is that one, some cycles later.

Programs that are timed one after the other differ in a few segments, and behind these they are the same again: the same entries, at other
places of their queues, with other numbers of flags.  The run before left snapshots.  Where the new run, between two steps of its clock, has
all that is still to come in common with one of them, and differs from it in nothing that later cycles depend on, but for a shift of the
clock, it stops: what is left is taken from the run before.

Cycles that differ otherwise make no difference where they cannot be seen: an entry leaves no earlier than it is handed out, so of what an
idle queue did, of completions and of flags before that nothing is left but that they were.

| name   | dtype, shape      | meaning                                                                                                |
|--------|-------------------|--------------------------------------------------------------------------------------------------------|
| queues | int64 [queues, 2] | from which entry on a queue is as before, and how much further behind in its array than it was then       |
| rows   | int64 [cores, 2]  | the same of a core's stream                                                                            |
| slots  | int               | by how much the numbers of flags have grown                                                            |
| flag   | int64 [slots]     | flags as the run before left them, from slot `low` on                                                  |
| source | int32 [slots]     | the instruction that sets a flag, in an order in which flags come behind who sets them                  |
| first  | int               | where the run goes on from, every SET of an instruction before this one has taken effect                |
| low    | int               | no other instruction sets a flag of a slot below this one                                              |
| begin  | int64 [queues]    | the first entry of every queue that belongs to such an instruction                                     |
| left   | int64 [rows, row] | its snapshots                                                                                          |
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from simulator.timing_snapshot import DDR, NOW, UNIT, seen, seen_room
from simulator.timing_state import (
    ACTIVE,
    BEGAN,
    BEGIN,
    COLUMNS,
    CORE,
    CORE_MOVED,
    DATA,
    DONE,
    ENGINES,
    ENTRY,
    FAR,
    FINISH,
    FIRST,
    FREE,
    FRONT,
    FULL,
    HEAD,
    INFLIGHT,
    ISSUED,
    KIND_BITS,
    KIND_MASK,
    LAG,
    MOVED,
    MOVING,
    MOVING_SINCE,
    MTE2,
    MTE3,
    OWNER,
    PC,
    PORT_COLUMNS,
    QUEUE_DEPTH,
    REMOTE_CYCLES,
    RING,
    SCALAR,
    SERVED,
    SET,
    SET_REMOTE,
    SINCE,
    STALLED,
    STOP,
    TAIL,
    TURN,
    WAIT,
    Ints,
)  # fmt: skip


class Alike(NamedTuple):
    """With what two programs end (see the table at the top of this file)."""

    queues: Ints
    rows: Ints
    slots: int


class Before(NamedTuple):
    """What a run knows of the one before.  unit: as that left it; cycles: it took so many."""

    flag: Ints
    source: NDArray[np.int32]
    first: int
    low: int
    begin: Ints
    unit: Ints
    left: Ints
    cycles: int


def nothing_alike(cores: int) -> tuple[Alike, Before]:
    """Of a run that knows of none before."""
    none, behind = np.zeros(0, np.int64), Alike(np.zeros((cores * ENGINES, 2), np.int64), np.zeros((cores, 2), np.int64), 0)
    return behind, Before(none, np.zeros(0, np.int32), 0, 0, none, none, np.zeros((0, 0), np.int64), 0)


@njit(cache=True)
def _backwards(word: Ints, stop: int, first: int, then: Ints, then_stop: int, then_first: int, slots: int) -> int:
    """How many entries in front of `stop` are those in front of `then_stop`."""
    count = 0
    while stop - count > first and then_stop - count > then_first:
        a, b = word[stop - count - 1], then[then_stop - count - 1]
        if a & KIND_MASK >= WAIT:
            b += slots << KIND_BITS
        if a != b:
            break
        count += 1
    return count


@njit(cache=True)
def alike(
    word: Ints, queues: Ints, engine: NDArray[np.uint8], streams: Ints, then: Ints, queues_then: Ints, engine_then: NDArray[np.uint8],
    streams_then: Ints, slots: int, known: Ints, known_rows: Ints,
) -> Alike:  # fmt: skip
    """With what a program ends that the one before it ended with; arrays as `resuming.Entries` has them, `then` those of the one before.

    queues_then, streams_then: from where they are still known, and where they ended.  known, known_rows: int64 [queues], int64 [cores], so
    many entries and rows of each are.
    """
    found = Alike(np.empty_like(queues), np.empty_like(streams), slots)
    for q in range(queues.shape[0]):
        stop, stop_then = queues[q, 1], queues_then[q, 1]
        count = known[q] + _backwards(word, stop - known[q], queues[q, 0], then, stop_then - known[q], queues_then[q, 0], slots)
        found.queues[q, 0], found.queues[q, 1] = stop - count, stop - stop_then
    for core in range(streams.shape[0]):
        stop, stop_then, count = streams[core, 1], streams_then[core, 1], known_rows[core]
        while stop - count > streams[core, 0] and stop_then - count > streams_then[core, 0]:
            if engine[stop - count - 1] != engine_then[stop_then - count - 1]:
                break
            count += 1
        found.rows[core, 0], found.rows[core, 1] = stop - count, stop - stop_then
    return found


@njit(cache=True)
def _seen(new: int, old: int, bound: int) -> bool:
    """Whether two cycles that should be the same are not, and one of them is later than `bound`."""
    return new != old and (new > bound or old > bound)


@njit(cache=True)
def _next_leaves(unit: Ints, time: Ints, u: int) -> int:
    """The cycle before which a queue's next entry does not leave it."""
    head: Any = unit[u + HEAD]
    return time[head] if head < unit[u + TAIL] else unit[(u // CORE) * CORE + SCALAR + ISSUED]


@njit(cache=True)
def _streams_meet(row: Ints, d: int, unit: Ints, alike: Alike) -> bool:
    """Whether scalar units are where they were."""
    for core in range(alike.rows.shape[0]):
        u = core * CORE + SCALAR
        o = UNIT + u
        if unit[u + PC] < alike.rows[core, 0] or unit[u + PC] != row[o + PC] + alike.rows[core, 1]:
            return False
        if unit[u + ISSUED] != row[o + ISSUED] + d or unit[u + FULL] != row[o + FULL] or unit[u + MOVING] != row[o + MOVING]:
            return False
        if unit[u + MOVING] and unit[u + MOVING_SINCE] != row[o + MOVING_SINCE] + d:
            return False
    return True


@njit(cache=True)
def _flags_meet(
    d: int, u: int, start: int, settled: int, last: int, issued: int, time: Ints, flag: Ints, unit: Ints, word: Ints, slots: int,
    then: Ints, remote: int,
) -> bool:  # fmt: skip
    """Whether flags that a queue has set, or that it will wait for and that are set, count as they did.

    start: from which entry on it is as before.  settled: up to which its SETs have taken effect; last: none later than in this cycle.
    issued: before which no entry is handed out from now on.
    """
    for i in range(unit[u + HEAD], unit[u + TAIL]):
        slot = word[i] >> KIND_BITS
        if word[i] & KIND_MASK == WAIT and flag[slot] >= 0 and _seen(flag[slot], then[slot - slots] + d, time[i]):
            return False
    # what waits for the others is not handed out yet
    i = settled
    while last + remote > issued:
        i -= 1
        if i < start:
            return False
        kind, slot = word[i] & KIND_MASK, word[i] >> KIND_BITS
        if kind in (SET, SET_REMOTE):
            new, old = flag[slot], then[slot - slots] + d
            last = max(new, old)
            if new != old and last + remote > issued:
                return False
    return True


@njit(cache=True)
def _queue_meets(
    row: Ints, held: int, d: int, u: int, start: int, move: int, issued: int, time: Ints, flag: Ints, unit: Ints, port: Ints, word: Ints,
    slots: int, before: Before,
) -> bool:  # fmt: skip
    """Whether a queue is where it was, and all that is in it.  held: where a row has the times of what it holds."""
    o, e, depth, remote = UNIT + u, u // COLUMNS % (CORE // COLUMNS), port[QUEUE_DEPTH], port[REMOTE_CYCLES]
    head, tail, first = unit[u + HEAD], unit[u + TAIL], unit[u + FIRST]
    if head != row[o + HEAD] + move or tail != row[o + TAIL] + move or unit[u + STALLED] != row[o + STALLED]:
        return False
    settled = head
    if e in (MTE2, MTE3):
        settled = unit[u + DATA]
        if settled != row[o + DATA] + move or unit[u + INFLIGHT] != row[o + INFLIGHT] or unit[u + TURN] != row[o + TURN]:
            return False
    if settled < start or (move != 0 and min(tail, tail - move) < first + depth):
        return False
    begin, _ = seen(unit, 0, u, e, depth)
    for i in range(begin, tail):
        then = row[held + i - begin] + d
        if time[i] != then and (i >= settled or _seen(time[i], then, issued)):  # places of those that are over are free by then
            return False
    bound = _next_leaves(unit, time, u)
    front, done = row[o + FRONT] + d, row[o + DONE] + d
    if _seen(unit[u + FRONT], front, bound) or _seen(unit[u + DONE], done, bound - unit[u + LAG]):
        return False
    last = max(max(unit[u + FRONT], front), max(unit[u + DONE], done) + unit[u + LAG])
    return _flags_meet(d, u, start, settled, last, issued, time, flag, unit, word, slots, before.flag, remote)


@njit(cache=True)
def _ports_meet(row: Ints, d: int, time: Ints, unit: Ints, dma: Ints, ends: Ints, port: Ints, alike: Alike) -> bool:
    """Whether DMA ports are what they were."""
    o, ring = UNIT + unit.shape[0], port[RING]
    ended = o + dma.shape[0]
    for s in range(0, dma.shape[0], PORT_COLUMNS):
        u = dma[s + OWNER]
        core, e = u // CORE, u // COLUMNS % (CORE // COLUMNS)
        k, move = 0 if e == MTE2 else 1, alike.queues[core * ENGINES + e, 1]
        entry, begin, finish, began = row[o + s + ENTRY], row[o + s + BEGIN], row[o + s + FINISH], row[o + s + BEGAN]
        if dma[s + ENTRY] != (FAR if entry == FAR else entry + move) or dma[s + BEGIN] != (FAR if begin == FAR else begin + d):
            return False
        if dma[s + FINISH] != (FAR if finish == FAR else finish - row[DDR + SERVED + k] + port[SERVED + k]):
            return False
        if dma[s + BEGAN] != (-1 if began < 0 else began + d) or (began >= 0 and dma[s + SINCE] != row[o + s + SINCE] + d):
            return False
        bound = _next_leaves(unit, time, u)
        if entry == FAR and _seen(dma[s + FREE], row[o + s + FREE] + d, bound):
            return False
        if unit[u + DATA] < unit[u + HEAD]:
            bound = min(bound, time[unit[u + DATA]])
        base = s // PORT_COLUMNS * (ring + 1)
        count, then = ends[base], row[ended + base]
        for i in range(1, ring + 1):
            new = ends[base + 1 + (count - i & ring - 1)] if i <= count else -1
            old = row[ended + base + 1 + (then - i & ring - 1)] + d if i <= then else -1
            if _seen(new, old, bound):
                return False
    return True


@njit(cache=True)
def converges(
    row: Ints, now: int, time: Ints, flag: Ints, unit: Ints, dma: Ints, ends: Ints, port: Ints, word: Ints, alike: Alike, before: Before
) -> bool:
    """Whether a run, with nothing on its worklist, is where the one before was when it left the snapshot `row`."""
    d = now - row[NOW]
    if port[ACTIVE] != row[DDR + ACTIVE] or port[ACTIVE + 1] != row[DDR + ACTIVE + 1] or not _streams_meet(row, d, unit, alike):
        return False
    issued: Any = np.int64(FAR)
    for core in range(alike.rows.shape[0]):
        issued = min(issued, unit[core * CORE + SCALAR + ISSUED])
    held = UNIT + unit.shape[0] + dma.shape[0] + ends.shape[0]
    for q in range(alike.queues.shape[0]):
        u, start, move = q // ENGINES * CORE + q % ENGINES * COLUMNS, alike.queues[q, 0], alike.queues[q, 1]
        at = held + q * seen_room(port[QUEUE_DEPTH])
        if not _queue_meets(row, at, d, u, start, move, issued, time, flag, unit, port, word, alike.slots, before):
            return False
    return _ports_meet(row, d, time, unit, dma, ends, port, alike)


@njit(cache=True)
def adopt(
    k: int, now: int, flag: Ints, unit: Ints, dma: Ints, ends: Ints, port: Ints, alike: Alike, before: Before, snapshots: Ints,
    count: int,
) -> int:  # fmt: skip
    """From snapshot `k` of the run before on this one is the same: fills what is left, with snapshots behind the `count` that there are.

    Returns how many these are now.
    """
    left = before.left
    row = left[k]
    d = now - row[NOW]
    moved = np.zeros(left.shape[1], np.int64)  # what each item of a later snapshot has more
    moved[NOW] = d
    for side in range(2):
        moved[DDR + SERVED + side] = port[SERVED + side] - row[DDR + SERVED + side]
    held = UNIT + unit.shape[0] + dma.shape[0] + ends.shape[0]
    for q in range(alike.queues.shape[0]):
        u, move, room = q // ENGINES * CORE + q % ENGINES * COLUMNS, alike.queues[q, 1], seen_room(port[QUEUE_DEPTH])
        o = UNIT + u
        moved[o + HEAD] = moved[o + TAIL] = moved[o + DATA] = moved[o + STOP] = move
        moved[o + FRONT] = moved[o + DONE] = d
        moved[o + MOVED] = unit[u + MOVED] - row[o + MOVED]
        moved[held + q * room : held + (q + 1) * room] = d
    for core in range(alike.rows.shape[0]):
        u = core * CORE + SCALAR
        o = UNIT + u
        moved[o + PC] = moved[o + STOP] = alike.rows[core, 1]
        moved[o + ISSUED] = moved[o + MOVING_SINCE] = d
        moved[o + CORE_MOVED] = unit[u + CORE_MOVED] - row[o + CORE_MOVED]
    o = UNIT + unit.shape[0]
    ring = port[RING]
    for s in range(0, dma.shape[0], PORT_COLUMNS):
        u = dma[s + OWNER]
        e = u // COLUMNS % (CORE // COLUMNS)
        moved[o + s + ENTRY] = alike.queues[u // CORE * ENGINES + e, 1]
        moved[o + s + FINISH] = moved[DDR + SERVED + (0 if e == MTE2 else 1)]
        moved[o + s + BEGIN] = moved[o + s + BEGAN] = moved[o + s + FREE] = moved[o + s + SINCE] = d
        base = o + dma.shape[0] + s // PORT_COLUMNS * (ring + 1)
        moved[base + 1 : base + 1 + ring] = d
    for slot in range(before.low, flag.shape[0]):
        if flag[slot] < 0:
            flag[slot] = before.flag[slot - alike.slots] + d
    for r in range(k, min(left.shape[0], k + snapshots.shape[0] - count)):
        for i in range(left.shape[1]):
            snapshots[count, i] = left[r, i] + moved[i]
        for s in range(0, dma.shape[0], PORT_COLUMNS):
            for column in (ENTRY, BEGIN, FINISH):
                if left[r, o + s + column] == FAR:
                    snapshots[count, o + s + column] = FAR
            if left[r, o + s + BEGAN] < 0:
                snapshots[count, o + s + BEGAN] = -1
        count += 1
    for core in range(alike.rows.shape[0]):
        u = core * CORE
        for e in range(ENGINES):
            unit[u + e * COLUMNS + MOVED] += before.unit[u + e * COLUMNS + MOVED] - row[UNIT + u + e * COLUMNS + MOVED]
        unit[u + SCALAR + CORE_MOVED] += before.unit[u + SCALAR + CORE_MOVED] - row[UNIT + u + SCALAR + CORE_MOVED]
    return count
