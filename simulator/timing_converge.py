"""Convergence of incremental timing: when a run reaches a state of the previous run, up to a time shift, it adopts the remaining times.

Programs timed one after the other differ in a few segments and have a common suffix: equal entries at shifted positions of their queues,
with shifted numbers of flags.  The previous run left snapshots.  Between two steps of its clock, the new run compares its state with
those snapshots whose remaining entries lie in the common suffix.  If no state that affects later cycles differs, except for the shift,
it stops and takes the remaining times from the previous run.

Differences in the past that no later cycle depends on are allowed: an entry cannot leave its queue before it is dispatched, so completions
and flags before that cycle matter only as completed events.

| name       | dtype, shape       | meaning                                                                                           |
|------------|--------------------|---------------------------------------------------------------------------------------------------|
| queues     | int64 [queues, 2]  | per queue: the first entry of the common suffix, and its shift against the previous program       |
| rows       | int64 [cores, 2]   | the same for the rows of a core's stream                                                          |
| slot_shift | int                | shift of the slots (numbers) of flags against the previous program                                |
| flag       | int64 [slots]      | flags at the end of the previous run, from slot `low` on                                          |
| source     | int32 [slots]      | instruction that sets each flag, ascending                                                        |
| first      | int                | at the resumed snapshot, every SET of an earlier instruction has taken effect                     |
| low        | int                | only earlier instructions set flags of slots below this one                                       |
| begin      | int64 [queues]     | first entry of every queue that belongs to instruction `first` or a later one                     |
| snapshots  | int64 [count, row] | snapshots of the previous run (`timing_snapshot`)                                                 |

Letters: q: number of a queue; e: its engine; u: first column of a queue or scalar unit in `unit`; o: the same in `row`, a snapshot;
s: first column of a DMA port in `dma`.  `dma_row`, `ends_row`, `port_row`: first column of `dma`, of `ends` and of a port in `row`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from simulator.timing_snapshot import DDR, NOW, UNIT, visible_entries, visible_room
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


class CommonSuffix(NamedTuple):
    """The common suffix of two programs (see the table at the top of this file)."""

    queues: Ints
    rows: Ints
    slot_shift: int


class PreviousRun(NamedTuple):
    """The previous run, for the next one (see the same table).  unit: its final state.  cycles: its length."""

    flag: Ints
    source: NDArray[np.int32]
    first: int
    low: int
    begin: Ints
    unit: Ints
    snapshots: Ints
    cycles: int


def no_previous_run(cores: int) -> tuple[CommonSuffix, PreviousRun]:
    """An empty suffix and an empty previous run."""
    empty = np.zeros(0, np.int64)
    no_suffix = CommonSuffix(np.zeros((cores * ENGINES, 2), np.int64), np.zeros((cores, 2), np.int64), 0)
    return no_suffix, PreviousRun(empty, np.zeros(0, np.int32), 0, 0, empty, empty, np.zeros((0, 0), np.int64), 0)


@njit(cache=True)
def _count_equal(word: Ints, stop: int, first: int, old_word: Ints, old_stop: int, old_first: int, slot_shift: int) -> int:
    """Number of equal entries in [first, stop) and [old_first, old_stop), from the end on, with the slots of flags shifted."""
    count = 0
    while stop - count > first and old_stop - count > old_first:
        new, old = word[stop - count - 1], old_word[old_stop - count - 1]
        if (new & KIND_MASK) >= WAIT:  # its value is a slot
            old += slot_shift << KIND_BITS
        if new != old:
            break
        count += 1
    return count


@njit(cache=True)
def find_common_suffix(
    word: Ints, queues: Ints, engine: NDArray[np.uint8], streams: Ints, old_word: Ints, old_queues: Ints, old_engine: NDArray[np.uint8],
    old_streams: Ints, slot_shift: int, common_entries: Ints, common_rows: Ints,
) -> CommonSuffix:  # fmt: skip
    """Common suffix of a program and the previous one.  Arrays as in `incremental_timing.Entries`; `old_` marks the previous program.

    old_queues, old_streams: where the previous entries are still available, from .. to.  common_entries, common_rows: int64 [queues] and
    [cores], sizes of the suffix that the caller guarantees.
    """
    suffix = CommonSuffix(np.empty_like(queues), np.empty_like(streams), slot_shift)
    for q in range(queues.shape[0]):
        stop, old_stop = queues[q, 1], old_queues[q, 1]
        count = common_entries[q] + _count_equal(
            word, stop - common_entries[q], queues[q, 0], old_word, old_stop - common_entries[q], old_queues[q, 0], slot_shift
        )
        suffix.queues[q, 0], suffix.queues[q, 1] = stop - count, stop - old_stop
    for core in range(streams.shape[0]):
        stop, old_stop, count = streams[core, 1], old_streams[core, 1], common_rows[core]
        while stop - count > streams[core, 0] and old_stop - count > old_streams[core, 0]:
            if engine[stop - count - 1] != old_engine[old_stop - count - 1]:
                break
            count += 1
        suffix.rows[core, 0], suffix.rows[core, 1] = stop - count, stop - old_stop
    return suffix


@njit(cache=True)
def _differs_visibly(new: int, old: int, bound: int) -> bool:
    """Whether two cycles differ visibly for later cycles: one of them is later than `bound`."""
    return new != old and (new > bound or old > bound)


@njit(cache=True)
def _leave_bound(unit: Ints, time: Ints, u: int) -> int:
    """A lower bound of the cycle in which the next entry of queue u leaves."""
    head: Any = unit[u + HEAD]
    return time[head] if head < unit[u + TAIL] else unit[(u // CORE) * CORE + SCALAR + ISSUED]


@njit(cache=True)
def _streams_converge(row: Ints, shift: int, unit: Ints, suffix: CommonSuffix) -> bool:
    """Whether scalar units are in their previous state."""
    for core in range(suffix.rows.shape[0]):
        u = core * CORE + SCALAR
        o = UNIT + u
        if unit[u + PC] < suffix.rows[core, 0] or unit[u + PC] != row[o + PC] + suffix.rows[core, 1]:
            return False
        if unit[u + ISSUED] != row[o + ISSUED] + shift or unit[u + FULL] != row[o + FULL] or unit[u + MOVING] != row[o + MOVING]:
            return False
        if unit[u + MOVING] and unit[u + MOVING_SINCE] != row[o + MOVING_SINCE] + shift:
            return False
    return True


@njit(cache=True)
def _flags_converge(
    shift: int, u: int, start: int, settled: int, last: int, issued: int, time: Ints, flag: Ints, unit: Ints, word: Ints, slot_shift: int,
    old_flag: Ints, remote: int,
) -> bool:  # fmt: skip
    """Whether flags that queue u has set, and set flags that it waits for, have the same effect as in the previous run.

    start: first entry of the common suffix.  settled: entries before it have set their flags.  last: latest cycle of those flags.
    issued: no entry is dispatched before this cycle from now on.  remote: cycles until another core sees a flag.
    """
    # set flags that entries of the queue wait for
    for i in range(unit[u + HEAD], unit[u + TAIL]):
        slot = word[i] >> KIND_BITS
        awaits_set_flag = (word[i] & KIND_MASK) == WAIT and flag[slot] >= 0
        if awaits_set_flag and _differs_visibly(flag[slot], old_flag[slot - slot_shift] + shift, time[i]):
            return False
    # flags that the queue has set, from the latest on; entries that wait for other entries are not dispatched yet
    i = settled
    while last + remote > issued:
        i -= 1
        if i < start:
            return False
        kind, slot = word[i] & KIND_MASK, word[i] >> KIND_BITS
        if kind in (SET, SET_REMOTE):
            new, old = flag[slot], old_flag[slot - slot_shift] + shift
            last = max(new, old)
            if new != old and last + remote > issued:
                return False
    return True


@njit(cache=True)
def _queue_converges(
    row: Ints, times_offset: int, shift: int, u: int, start: int, entry_shift: int, issued: int, time: Ints, flag: Ints, unit: Ints,
    port: Ints, word: Ints, slot_shift: int, previous: PreviousRun,
) -> bool:  # fmt: skip
    """Whether queue u and its entries are in their previous state.  times_offset: position of its visible times in a row.

    start, entry_shift: its row of `CommonSuffix.queues`.  issued: see `_flags_converge`.
    """
    o = UNIT + u
    e = u // COLUMNS % (CORE // COLUMNS)
    depth, remote = port[QUEUE_DEPTH], port[REMOTE_CYCLES]
    head, tail, first = unit[u + HEAD], unit[u + TAIL], unit[u + FIRST]
    if head != row[o + HEAD] + entry_shift or tail != row[o + TAIL] + entry_shift or unit[u + STALLED] != row[o + STALLED]:
        return False
    # the same entries: head, tail and issued transfers at shifted places
    settled = head
    if e in (MTE2, MTE3):
        settled = unit[u + DATA]
        if settled != row[o + DATA] + entry_shift or unit[u + INFLIGHT] != row[o + INFLIGHT] or unit[u + TURN] != row[o + TURN]:
            return False
    if settled < start or (entry_shift != 0 and min(tail, tail - entry_shift) < first + depth):
        return False
    # their times, where they can still delay an entry
    begin, _ = visible_entries(unit, 0, u, e, depth)
    for i in range(begin, tail):
        old_time = row[times_offset + i - begin] + shift
        # places of finished entries are free by the cycle `issued`
        if time[i] != old_time and (i >= settled or _differs_visibly(time[i], old_time, issued)):
            return False
    # the cycles in which earlier entries left and completed, where the next entry can see them
    bound = _leave_bound(unit, time, u)
    front, done = row[o + FRONT] + shift, row[o + DONE] + shift
    if _differs_visibly(unit[u + FRONT], front, bound) or _differs_visibly(unit[u + DONE], done, bound - unit[u + LAG]):
        return False
    last = max(max(unit[u + FRONT], front), max(unit[u + DONE], done) + unit[u + LAG])
    return _flags_converge(shift, u, start, settled, last, issued, time, flag, unit, word, slot_shift, previous.flag, remote)


@njit(cache=True)
def _ports_converge(row: Ints, shift: int, time: Ints, unit: Ints, dma: Ints, ends: Ints, port: Ints, suffix: CommonSuffix) -> bool:
    """Whether DMA ports are in their previous state."""
    dma_row, ring = UNIT + unit.shape[0], port[RING]
    ends_row = dma_row + dma.shape[0]
    for s in range(0, dma.shape[0], PORT_COLUMNS):
        u = dma[s + OWNER]
        core, e = u // CORE, u // COLUMNS % (CORE // COLUMNS)
        side = 0 if e == MTE2 else 1  # loads or stores
        entry_shift = suffix.queues[core * ENGINES + e, 1]
        # a running transfer must have the same data left: FINISH is relative to SERVED
        port_row = dma_row + s
        entry, begin, finish, began = row[port_row + ENTRY], row[port_row + BEGIN], row[port_row + FINISH], row[port_row + BEGAN]
        if dma[s + ENTRY] != (FAR if entry == FAR else entry + entry_shift) or dma[s + BEGIN] != (FAR if begin == FAR else begin + shift):
            return False
        if dma[s + FINISH] != (FAR if finish == FAR else finish - row[DDR + SERVED + side] + port[SERVED + side]):
            return False
        if dma[s + BEGAN] != (-1 if began < 0 else began + shift) or (began >= 0 and dma[s + SINCE] != row[port_row + SINCE] + shift):
            return False
        # the past of a port matters only as far as the next transfer can see it
        bound = _leave_bound(unit, time, u)
        if entry == FAR and _differs_visibly(dma[s + FREE], row[port_row + FREE] + shift, bound):
            return False
        if unit[u + DATA] < unit[u + HEAD]:
            bound = min(bound, time[unit[u + DATA]])
        base = s // PORT_COLUMNS * (ring + 1)
        count, old_count = ends[base], row[ends_row + base]
        # the last ends, from the newest on; the rings may be turned against each other
        for i in range(1, ring + 1):
            new = ends[base + 1 + ((count - i) & (ring - 1))] if i <= count else -1
            old = row[ends_row + base + 1 + ((old_count - i) & (ring - 1))] + shift if i <= old_count else -1
            if _differs_visibly(new, old, bound):
                return False
    return True


@njit(cache=True)
def converges(
    row: Ints,
    now: int,
    time: Ints,
    flag: Ints,
    unit: Ints,
    dma: Ints,
    ends: Ints,
    port: Ints,
    word: Ints,
    suffix: CommonSuffix,
    previous: PreviousRun,
) -> bool:
    """Whether a run, with an empty worklist, is in the state of the snapshot `row` of the previous run."""
    shift = now - row[NOW]
    if port[ACTIVE] != row[DDR + ACTIVE] or port[ACTIVE + 1] != row[DDR + ACTIVE + 1] or not _streams_converge(row, shift, unit, suffix):
        return False
    # no entry is dispatched before this cycle
    issued: Any = np.int64(FAR)
    for core in range(suffix.rows.shape[0]):
        issued = min(issued, unit[core * CORE + SCALAR + ISSUED])
    times_offset = UNIT + unit.shape[0] + dma.shape[0] + ends.shape[0]
    for q in range(suffix.queues.shape[0]):
        u = q // ENGINES * CORE + q % ENGINES * COLUMNS
        start, entry_shift = suffix.queues[q, 0], suffix.queues[q, 1]
        offset = times_offset + q * visible_room(port[QUEUE_DEPTH])
        if not _queue_converges(
            row, offset, shift, u, start, entry_shift, issued, time, flag, unit, port, word, suffix.slot_shift, previous
        ):
            return False
    return _ports_converge(row, shift, time, unit, dma, ends, port, suffix)


@njit(cache=True)
def adopt(
    index: int, now: int, flag: Ints, unit: Ints, dma: Ints, ends: Ints, port: Ints, suffix: CommonSuffix, previous: PreviousRun,
    snapshots: Ints,
    count: int,
) -> int:  # fmt: skip
    """Take the rest of the run from snapshot `index` of the previous run on; returns the number of snapshots of this run.

    now: cycle of this run that corresponds to it.  snapshots: `count` snapshots so far; the later ones of the previous run are appended,
    shifted.
    """
    old_snapshots = previous.snapshots
    row = old_snapshots[index]
    shift = now - row[NOW]
    # what a later snapshot has more than that of the previous run
    increment = np.zeros(old_snapshots.shape[1], np.int64)
    increment[NOW] = shift
    for side in range(2):
        increment[DDR + SERVED + side] = port[SERVED + side] - row[DDR + SERVED + side]
    times_offset = UNIT + unit.shape[0] + dma.shape[0] + ends.shape[0]
    # cycles grow by the time shift, entries by the shift of their queue, counters by the difference of the runs so far
    for q in range(suffix.queues.shape[0]):
        u = q // ENGINES * CORE + q % ENGINES * COLUMNS
        o = UNIT + u
        entry_shift, room = suffix.queues[q, 1], visible_room(port[QUEUE_DEPTH])
        increment[o + HEAD] = increment[o + TAIL] = increment[o + DATA] = increment[o + STOP] = entry_shift
        increment[o + FRONT] = increment[o + DONE] = shift
        increment[o + MOVED] = unit[u + MOVED] - row[o + MOVED]
        increment[times_offset + q * room : times_offset + (q + 1) * room] = shift
    for core in range(suffix.rows.shape[0]):
        u = core * CORE + SCALAR
        o = UNIT + u
        increment[o + PC] = increment[o + STOP] = suffix.rows[core, 1]
        increment[o + ISSUED] = increment[o + MOVING_SINCE] = shift
        increment[o + CORE_MOVED] = unit[u + CORE_MOVED] - row[o + CORE_MOVED]
    dma_row = UNIT + unit.shape[0]
    ends_row = dma_row + dma.shape[0]
    ring = port[RING]
    for s in range(0, dma.shape[0], PORT_COLUMNS):
        u = dma[s + OWNER]
        e = u // COLUMNS % (CORE // COLUMNS)
        port_row = dma_row + s
        increment[port_row + ENTRY] = suffix.queues[u // CORE * ENGINES + e, 1]
        increment[port_row + FINISH] = increment[DDR + SERVED + (0 if e == MTE2 else 1)]
        increment[port_row + BEGIN] = increment[port_row + BEGAN] = increment[port_row + FREE] = increment[port_row + SINCE] = shift
        base = ends_row + s // PORT_COLUMNS * (ring + 1)
        increment[base + 1 : base + 1 + ring] = shift
    # flags that are still unknown are set in the common suffix
    for slot in range(previous.low, flag.shape[0]):
        if flag[slot] < 0:
            flag[slot] = previous.flag[slot - suffix.slot_shift] + shift
    # later snapshots, shifted; FAR and -1 stand for no cycle and stay
    for r in range(index, min(old_snapshots.shape[0], index + snapshots.shape[0] - count)):
        for i in range(old_snapshots.shape[1]):
            snapshots[count, i] = old_snapshots[r, i] + increment[i]
        for s in range(0, dma.shape[0], PORT_COLUMNS):
            for column in (ENTRY, BEGIN, FINISH):
                if old_snapshots[r, dma_row + s + column] == FAR:
                    snapshots[count, dma_row + s + column] = FAR
            if old_snapshots[r, dma_row + s + BEGAN] < 0:
                snapshots[count, dma_row + s + BEGAN] = -1
        count += 1
    # counters at the end
    for core in range(suffix.rows.shape[0]):
        u = core * CORE
        for e in range(ENGINES):
            unit[u + e * COLUMNS + MOVED] += previous.unit[u + e * COLUMNS + MOVED] - row[UNIT + u + e * COLUMNS + MOVED]
        unit[u + SCALAR + CORE_MOVED] += previous.unit[u + SCALAR + CORE_MOVED] - row[UNIT + u + SCALAR + CORE_MOVED]
    return count
