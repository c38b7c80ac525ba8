"""A run that has come to where the run before it was, but for a shift in time: what follows takes what it took then.

At a level nothing depends on the cycle itself: rates of the DDR port, latencies and what refresh and banks leave are means (`ddr`), so the
shift may be any number of cycles.  (A background load with more than one step would have to be shifted as well.)  Two states are *equal*
where the programs go on alike and every number that a later cycle looks at is the same, counted from `now`:

* positions, counted from the ends of queues and streams: what is dispatched, has left, is settled, and which transfers have which DMA port;
* dispatch cycles of what a queue holds, the cycles in which the transfers under way were issued, the scalar unit's last cycle;
* of a DMA port begin, end (in bus units that are left) and since when it moves data;
* effects of SETs that are there and whose WAIT is to come.

Other numbers are looked at as one side of a maximum only, whose other side is never below a *floor*: the first cycle in which the next
instruction of a queue may come to its head.  Below the floor they are equal, whatever they are: when an idle engine was last at work, when
entries left a queue that was not full, ends of transfers that no later one was in flight with.

Words of flags are equal where slots are, numbered from `SLOTS` further on.  `olds` are snapshots of the run before (`timing_snapshot`),
`old_flag` its flags.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from simulator.timing_snapshot import COUNT, CYCLES, DDR, MET, NOW, SHIFT, SLOTS, UNIT, window
from simulator.timing_state import (
    ACTIVE,
    BANK_WAIT,
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
    ISSUE_CYCLES,
    ISSUED,
    KIND_BITS,
    KIND_MASK,
    LAG,
    LATENCY,
    MOVED,
    MOVING,
    MOVING_SINCE,
    MTE2,
    MTE3,
    OWNER,
    PORT_COLUMNS,
    QUEUE_DEPTH,
    RING,
    SCALAR,
    SCALAR_UNIT,
    SERVED,
    SET,
    SET_REMOTE,
    SINCE,
    STALLED,
    STOP,
    TAIL,
    TURN,
    UNITS,
    WAIT,
    Ints,
)  # fmt: skip


@njit(cache=True)
def left(unit: Ints, at: int, units: int) -> int:
    """Of state `unit`, which lies in an array from `at` on: a number that falls as a run goes on, and is the same where positions are."""
    found = 0
    for u in range(at, at + units, COLUMNS):
        e = (u - at) // COLUMNS % UNITS
        found += unit[u + STOP] - unit[u + HEAD]  # HEAD and PC are the same column
        if e != SCALAR_UNIT:
            found += unit[u + STOP] - unit[u + TAIL]
        if e in (MTE2, MTE3):
            found += unit[u + STOP] - unit[u + DATA]
    return found


@njit(cache=True)
def _last(unit: Ints, at: int, units: int) -> int:
    """The last cycle that anything has come to so far."""
    found = 0
    for u in range(at, at + units, COLUMNS):
        if (u - at) // COLUMNS % UNITS == SCALAR_UNIT:
            found = max(found, unit[u + ISSUED])
        else:
            found = max(found, unit[u + FRONT], unit[u + DONE] + unit[u + LAG])
    return found


@njit(cache=True)
def _floors(unit: Ints, u: int, time: Ints, port: Ints) -> tuple[int, int]:
    """Of queue u: the floor, and that of transfers, which may have left the queue before."""
    floor = unit[(u | SCALAR) + ISSUED] + port[ISSUE_CYCLES]
    if unit[u + HEAD] < unit[u + TAIL]:
        floor = time[unit[u + HEAD]]
    moving = floor
    if u // COLUMNS % UNITS in (MTE2, MTE3) and unit[u + DATA] < unit[u + HEAD]:
        moving = time[unit[u + DATA]]
    return floor, moving


@njit(cache=True)
def _window_of(row: Ints, unit: Ints, dma: Ints, ends: Ints, u: int, port: Ints) -> int:
    """Where a row has its window of queue u: the first item behind it."""
    e, core = u // COLUMNS % UNITS, u // CORE
    at = UNIT + unit.shape[0] + dma.shape[0] + ends.shape[0] + core * (ENGINES + 2) * port[QUEUE_DEPTH]
    for other in range(e + 1):
        at += window(other, port[QUEUE_DEPTH])
    return at


@njit(cache=True)
def _equal_above(a: int, b: int, floor: int, shift: int) -> bool:
    """a: here.  b: of the run before, so many cycles earlier."""
    return max(a, floor) == max(b + shift, floor)


@njit(cache=True)
def rejoins(
    row: Ints, old_flag: Ints, control: Ints, time: Ints, flag: Ints, unit: Ints, dma: Ints, ends: Ints, port: Ints, word: Ints, load: Ints,
    now: int,
) -> bool:  # fmt: skip
    """Whether the state is equal to that of a row of the run before.

    All entries from there on are known to be equal, and so are rows of streams.  load: of one step.
    """
    shift, units, mine = now - row[NOW], unit.shape[0], UNIT + unit.shape[0]
    for k in range(2):
        if row[DDR + ACTIVE + k] != port[ACTIVE + k]:
            return False
    for u in range(0, units, COLUMNS):
        q = UNIT + u
        if unit[u + STOP] - unit[u + HEAD] != row[q + STOP] - row[q + HEAD]:  # HEAD and PC are the same column
            return False
        if u // COLUMNS % UNITS == SCALAR_UNIT:
            if unit[u + ISSUED] != row[q + ISSUED] + shift or unit[u + FULL] != row[q + FULL] or unit[u + MOVING] != row[q + MOVING]:
                return False
            if unit[u + MOVING] > 0 and unit[u + MOVING_SINCE] != row[q + MOVING_SINCE] + shift:
                return False
            continue
        if unit[u + STOP] - unit[u + TAIL] != row[q + STOP] - row[q + TAIL] or unit[u + STALLED] != row[q + STALLED]:
            return False
        if u // COLUMNS % UNITS in (MTE2, MTE3):
            if unit[u + STOP] - unit[u + DATA] != row[q + STOP] - row[q + DATA]:
                return False
            if unit[u + INFLIGHT] != row[q + INFLIGHT] or unit[u + TURN] != row[q + TURN]:
                return False
    if _last(row, UNIT, units) >= control[CYCLES]:  # what comes later may have ended before
        return False
    for u in range(0, units, COLUMNS):
        e = u // COLUMNS % UNITS
        if e == SCALAR_UNIT:
            continue
        q, behind, depth, tail = UNIT + u, _window_of(row, unit, dma, ends, u, port), port[QUEUE_DEPTH], unit[u + TAIL]
        low = unit[u + DATA] if e in (MTE2, MTE3) else unit[u + HEAD]
        if low < tail - window(e, depth):
            return False
        next_dispatch = unit[(u | SCALAR) + ISSUED] + port[ISSUE_CYCLES]
        for i in range(1, window(e, depth) + 1):
            here, there = tail - i >= unit[u + FIRST], row[q + TAIL] - i >= row[q + FIRST]
            if tail - i >= low:
                if time[tail - i] != row[behind - i] + shift:
                    return False
            elif i <= depth:
                a = time[tail - i] if here else 0
                b = row[behind - i] + shift if there else 0
                if max(a, next_dispatch) != max(b, next_dispatch):
                    return False
        floor, moving = _floors(unit, u, time, port)
        if not _equal_above(unit[u + FRONT], row[q + FRONT], floor, shift):
            return False
        if not _equal_above(unit[u + DONE], row[q + DONE], min(floor - unit[u + LAG], moving), shift):
            return False
        for i in range(unit[u + HEAD], unit[u + STOP]):
            if word[i] & KIND_MASK == WAIT:
                slot = word[i] >> KIND_BITS
                if flag[slot] >= 0 and not _equal_above(flag[slot], old_flag[slot - control[SLOTS]], floor, shift):
                    return False
    for s in range(0, dma.shape[0], PORT_COLUMNS):
        u, r = dma[s + OWNER], mine + s
        k = 0 if u // COLUMNS % UNITS == MTE2 else 1
        _, moving = _floors(unit, u, time, port)
        for column in (ENTRY, BEGIN, FINISH, BEGAN):
            a, b = dma[s + column], row[r + column]
            if a == FAR or b == FAR or a < 0 or b < 0:
                if a != b:
                    return False
            elif column == ENTRY:
                if unit[u + STOP] - a != row[UNIT + u + STOP] - b:
                    return False
            elif column == FINISH:
                if a - port[SERVED + k] != b - row[DDR + SERVED + k]:
                    return False
            elif a != b + shift:
                return False
        if dma[s + BEGAN] >= 0 and dma[s + SINCE] != row[r + SINCE] + shift:
            return False
        if not _equal_above(dma[s + FREE], row[r + FREE], moving + port[LATENCY] + load[1], shift):
            return False
        if port[BANK_WAIT]:
            ring = port[RING]
            base, old = s // PORT_COLUMNS * (ring + 1), mine + dma.shape[0] + s // PORT_COLUMNS * (ring + 1)
            for i in range(ring):
                a = ends[base + 1 + (ends[base] - 1 - i & ring - 1)] if i < ends[base] else 0
                b = row[old + 1 + (row[old] - 1 - i & ring - 1)] + shift if i < row[old] else 0
                if max(a, moving) != max(b, moving):
                    return False
    return True


@njit(cache=True)
def end_of(unit: Ints, control: Ints) -> int:
    """The last cycle of a run whose state is equal to that of the run before."""
    return max(_last(unit, 0, unit.shape[0]), control[CYCLES] + control[SHIFT])


@njit(cache=True)
def _later(mine: int, met: int, then: int, floor: int, shift: int) -> int:
    """A number of a later row: as it is here where nothing has changed it since, or else the old one, shifted.

    mine: here.  met, then: in the row that was met, and in the later one.
    """
    return mine if then == met and met + shift <= floor else then + shift


@njit(cache=True)
def carry(
    olds: Ints, old_flag: Ints, control: Ints, rows: Ints, time: Ints, flag: Ints, unit: Ints, dma: Ints, ends: Ints, port: Ints,
    word: Ints, load: Ints,
) -> int:  # fmt: skip
    """Rows of the run before, from the one that was met on, as rows of this run, behind those that it has; returns how many there are then.

    Flags get what they would have had at its end.
    """
    met, shift, count = control[MET], control[SHIFT], control[COUNT]
    base, units, ports = olds[met], unit.shape[0], UNIT + unit.shape[0]
    served = np.array([port[SERVED] - base[DDR + SERVED], port[SERVED + 1] - base[DDR + SERVED + 1]])
    for r in range(met, olds.shape[0]):
        if count == rows.shape[0]:
            break
        old, row = olds[r], rows[count]
        fits = True
        row[:] = old
        row[NOW] += shift
        row[DDR + SERVED] += served[0]
        row[DDR + SERVED + 1] += served[1]
        for u in range(0, units, COLUMNS):
            q, e = UNIT + u, u // COLUMNS % UNITS
            further = unit[u + STOP] - base[q + STOP]
            row[q + FIRST], row[q + STOP] = unit[u + FIRST], unit[u + STOP]
            row[q + HEAD] += further  # or PC
            if e == SCALAR_UNIT:
                row[q + ISSUED] += shift
                row[q + MOVING_SINCE] += shift
                row[q + CORE_MOVED] += unit[u + CORE_MOVED] - base[q + CORE_MOVED]
                continue
            row[q + TAIL] += further
            row[q + DATA] += further
            row[q + MOVED] += unit[u + MOVED] - base[q + MOVED]
            floor, moving = _floors(unit, u, time, port)
            row[q + FRONT] = _later(unit[u + FRONT], base[q + FRONT], old[q + FRONT], floor, shift)
            row[q + DONE] = _later(unit[u + DONE], base[q + DONE], old[q + DONE], min(floor - unit[u + LAG], moving), shift)
            behind, length = _window_of(row, unit, dma, ends, u, port), window(e, port[QUEUE_DEPTH])
            if e in (MTE2, MTE3) and row[q + DATA] < row[q + TAIL] - length:
                fits = False
            for i in range(1, length + 1):
                entry = row[q + TAIL] - i
                if unit[u + FIRST] <= entry < unit[u + HEAD]:
                    row[behind - i] = time[entry]
                else:
                    row[behind - i] += shift
        for s in range(0, dma.shape[0], PORT_COLUMNS):
            u, at = dma[s + OWNER], ports + s
            _, moving = _floors(unit, u, time, port)
            row[at + ENTRY] += 0 if old[at + ENTRY] == FAR else unit[u + STOP] - base[UNIT + u + STOP]
            row[at + BEGIN] += 0 if old[at + BEGIN] == FAR else shift
            row[at + FINISH] += 0 if old[at + FINISH] == FAR else served[0 if u // COLUMNS % UNITS == MTE2 else 1]
            row[at + BEGAN] += 0 if old[at + BEGAN] < 0 else shift
            row[at + SINCE] += shift
            row[at + FREE] = _later(dma[s + FREE], base[at + FREE], old[at + FREE], moving + port[LATENCY] + load[1], shift)
            if port[BANK_WAIT]:
                ring = port[RING]
                mine, of = s // PORT_COLUMNS * (ring + 1), ports + dma.shape[0] + s // PORT_COLUMNS * (ring + 1)
                since = old[of] - base[of]
                row[of] = ends[mine] + since
                for i in range(ring):
                    to = of + 1 + (row[of] - 1 - i & ring - 1)
                    if i < since:
                        row[to] = old[of + 1 + (old[of] - 1 - i & ring - 1)] + shift
                    elif i - since < ends[mine]:
                        row[to] = ends[mine + 1 + (ends[mine] - 1 - (i - since) & ring - 1)]
        count += fits
    for u in range(0, units, COLUMNS):
        e = u // COLUMNS % UNITS
        if e != SCALAR_UNIT:
            for i in range(unit[u + DATA] if e in (MTE2, MTE3) else unit[u + HEAD], unit[u + STOP]):
                if word[i] & KIND_MASK == SET or word[i] & KIND_MASK == SET_REMOTE:
                    slot = word[i] >> KIND_BITS
                    flag[slot] = old_flag[slot - control[SLOTS]] + shift
    return count
