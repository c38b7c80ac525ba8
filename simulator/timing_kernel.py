"""The event loop of the timing model, in numba (`timing.py` is the way in and states the model).

Lazy dataflow: only the ends of DDR transfers depend on what else is going on; everything else is max and plus over times that
are known as soon as their sources have run, and may lie in the future.  So queues run ahead as far as they can, in any order (a
worklist of those that something woke), and only when none can move does the clock step to the next start or end of a data phase.
Exact, because whatever is still unknown then waits for a transfer that has not ended, and so cannot come before that end.

`timing_state` says what the arrays are.  Transfers of a queue take its DMA ports in turn: the next one of a port is so many transfers
behind, and follows as in a queue of its own.

A transfer that starts when its kind has had `SERVED` bus units is through when it has had that + bus: all transfers of a kind run at one
rate, so a step of the clock touches two counters only.  On a path slower than its engine's fastest it is held, without drawing, until
bus / the path's rate cycles are over.

Between two steps of the clock, when nothing can run ahead any more, a run is fully described by its state; there it may leave a snapshot,
and a later run may go on from one (`timing_snapshot`).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from simulator.pointer import Pointer, pointer
from simulator.timing_snapshot import COUNT, FROM, INTERVAL, resume, save
from simulator.timing_state import (
    ACTIVE,
    AFTER,
    BANK_WAIT,
    BEGAN,
    BEGIN,
    BUS_BITS,
    COLUMN_BITS,
    COLUMNS,
    CORE_MOVED,
    DATA,
    DISPATCHED,
    DONE,
    END,
    ENTRY,
    FAR,
    FINISH,
    FIRST,
    FIXED,
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
    NEXT,
    OUTSTANDING,
    OWNER,
    PATHS,
    PATHS_OF,
    PC,
    PORT_COLUMNS,
    PORTS,
    QUEUE_DEPTH,
    QUEUED,
    RECORD,
    REMOTE_CYCLES,
    RING,
    SCALAR,
    SCALAR_UNIT,
    SERVED,
    SET_REMOTE,
    SINCE,
    STALLED,
    START,
    STEPS,
    STOP,
    TAIL,
    TOP,
    TRANSFER,
    TURN,
    UNITS,
    WAIT,
    Ints,
    reset,
)  # fmt: skip

# Helpers of the loop take ten pointers each and would return a status that nobody raises: as calls they cost a part of its time that shows.
_inlined = njit(cache=True, forceinline=True, error_model="numpy")


@_inlined
def _engine(u: int) -> int:
    return u >> COLUMN_BITS & (UNITS - 1)


@_inlined
def _wake(unit: Pointer, port: Pointer, u: int) -> None:
    if not unit[u + QUEUED]:
        unit[u + QUEUED] = 1
        unit[u + NEXT] = port[TOP]
        port[TOP] = u


@_inlined
def _fire(unit: Pointer, port: Pointer, flag: Pointer, slot: int, cycle: int) -> None:
    """A SET takes effect; wakes the queue whose WAIT stands at its head for it."""
    waiter = flag[slot]
    flag[slot] = cycle
    if waiter <= -2:
        unit[-2 - waiter + STALLED] = 0
        _wake(unit, port, -2 - waiter)


@_inlined
def _load_latency(port: Pointer, load: Pointer, cycle: int) -> int:
    """What the background load adds to the latency of what is issued in a cycle."""
    step = port[STEPS] - 1
    while step > 0 and load[step] > cycle:
        step -= 1
    return load[port[STEPS] + step]


@_inlined
def _first_data(port: Pointer, dma: Pointer, ends: Pointer, load: Pointer, s: int, issue: int) -> int:
    """When the first data of the foremost transfer of a DMA port may come, start-up and data before it aside.

    Each transfer of the same port that is in flight at `issue` holds it up by BANK_WAIT, but not beyond its own end: with k of them
    LATENCY + what the load adds + k * BANK_WAIT.  That "but" makes it monotone in `issue` and in the ends.  What is in flight is exact in
    whatever order queues run ahead: all before the foremost transfer have ended, and are known.
    """
    at = issue
    wait, ring = port[BANK_WAIT], port[RING]
    latency = port[LATENCY] + _load_latency(port, load, issue)
    # where data before it end later than that, they alone count
    if wait and issue + ring * wait + latency > dma[s + FREE]:
        base = s // PORT_COLUMNS * (ring + 1)
        count = ends[base]
        first, oldest = count, max(0, count - ring)
        while first > oldest and ends[base + 1 + (first - 1 & ring - 1)] > issue:
            first -= 1
        while first < count:
            at = max(at, min(ends[base + 1 + (first & ring - 1)], at + wait))
            first += 1
    return at + latency


@_inlined
def _path(port: Pointer, u: int, word: int) -> int:
    """Where `port` has the path of a transfer."""
    return PATHS + (PATHS_OF if _engine(u) == MTE3 else 0) + (word >> KIND_BITS & KIND_MASK) * 2


@_inlined
def _take_port(
    unit: Pointer, port: Pointer, dma: Pointer, ends: Pointer, load: Pointer, u: int, s: int, entry: int, word: int, now: int, issue: int
) -> None:
    """A transfer, issued in a cycle, takes its port, and gets its data when they come and those before it are through."""
    dma[s + ENTRY] = entry
    begin = max(_first_data(port, dma, ends, load, s, issue), dma[s + FREE]) + port[_path(port, u, word)]
    if begin > now:
        dma[s + BEGIN] = begin
    else:
        _start_data(unit, port, dma, u, s, word >> BUS_BITS, now)


@_inlined
def _start_data(unit: Pointer, port: Pointer, dma: Pointer, u: int, s: int, bus: int, now: int) -> None:
    """The transfer of a DMA port moves data from now on."""
    k = 0 if _engine(u) == MTE2 else 1
    scalar = u | SCALAR
    dma[s + BEGIN] = FAR
    dma[s + BEGAN] = now
    dma[s + FINISH] = port[SERVED + k] + bus
    port[ACTIVE + k] += 1
    since, other = now, dma[s + AFTER]
    while other != s:
        if dma[other + BEGAN] >= 0:
            since = dma[other + SINCE]
        other = dma[other + AFTER]
    dma[s + SINCE] = since
    if unit[scalar + MOVING] == 0:
        unit[scalar + MOVING_SINCE] = now
    unit[scalar + MOVING] += 1


@_inlined
def _held_until(port: Pointer, dma: Pointer, s: int, word: int) -> int:
    """The cycle before which the path of a port's running transfer is not through."""
    rate = port[_path(port, dma[s + OWNER], word) + 1]
    return dma[s + BEGAN] + ((word >> BUS_BITS) + rate - 1) // rate if rate else 0


@_inlined
def _ceil_div(a: int, b: int) -> int:
    """Of what is not negative, and b above 0: without a sign to look at."""
    quotient: Any = np.int64(np.uint64(a + b - 1) // np.uint64(b))
    return quotient


@_inlined
def _dispatch(unit: Pointer, port: Pointer, time: Pointer, record: Pointer, engine: Pointer, u: int) -> None:
    """The scalar unit hands out instructions until a queue is full."""
    pc, stop, cycle = unit[u + PC], unit[u + STOP], unit[u + ISSUED]
    issue, depth = port[ISSUE_CYCLES], port[QUEUE_DEPTH]
    first = u - SCALAR
    unit[u + FULL] = -1
    while pc < stop:
        e: Any = np.int64(engine[pc])
        q = first + e * COLUMNS
        begin = entry = unit[q + TAIL]
        room, waits = unit[q + HEAD] + depth, unit[q + FIRST] + depth
        if entry == room:
            unit[u + FULL] = q
            break
        last = min(stop, pc + room - entry)
        while pc < last and engine[pc] == e:
            cycle += issue
            if entry >= waits:
                cycle = max(cycle, time[entry - depth])
            time[entry] = cycle
            entry += 1
            pc += 1
        if port[RECORD]:
            for i in range(begin, entry):
                record[3 * i + DISPATCHED] = time[i]
        unit[q + TAIL] = entry
        if not unit[q + STALLED]:
            _wake(unit, port, q)
    unit[u + PC], unit[u + ISSUED] = pc, cycle


@_inlined
def _advance(unit: Pointer, port: Pointer, time: Pointer, flag: Pointer, record: Pointer, word: Pointer, u: int) -> None:
    """A queue of fixed-duration entries and flags runs as far as it can."""
    head, tail, front, done = unit[u + HEAD], unit[u + TAIL], unit[u + FRONT], unit[u + DONE]
    while head < tail:
        kind, value = word[head] & KIND_MASK, word[head] >> KIND_BITS
        ready = max(front, time[head])
        if kind == FIXED:
            front = max(ready, done)
            done = front + value
            end = done
        elif kind == WAIT:
            cycle = flag[value]
            if cycle < 0:
                flag[value] = -2 - u
                unit[u + STALLED] = 1
                break
            front = max(ready, cycle)
            end = front
        else:
            front = ready
            end = max(ready, done + unit[u + LAG])
            _fire(unit, port, flag, value, end + port[REMOTE_CYCLES] if kind == SET_REMOTE else end)
        time[head] = front
        if port[RECORD]:
            record[3 * head + START], record[3 * head + END] = ready if kind == WAIT else front, end
        head += 1
    unit[u + HEAD], unit[u + FRONT], unit[u + DONE] = head, front, done


@_inlined
def _settle_set(unit: Pointer, port: Pointer, flag: Pointer, record: Pointer, word: Pointer, u: int, entry: int, left: int) -> None:
    """A SET of a DMA takes effect: all before it has completed."""
    cycle = max(left, unit[u + DONE])
    if port[RECORD]:
        record[3 * entry + START], record[3 * entry + END] = left, cycle
    if word[entry] & KIND_MASK == SET_REMOTE:
        cycle += port[REMOTE_CYCLES]
    _fire(unit, port, flag, word[entry] >> KIND_BITS, cycle)


@_inlined
def _advance_dma(
    unit: Pointer, port: Pointer, time: Pointer, flag: Pointer, dma: Pointer, ends: Pointer, load: Pointer, record: Pointer, word: Pointer,
    u: int, now: int,
) -> None:  # fmt: skip
    """A DMA queue issues as far as it can; data phases follow behind DATA, in order on each of its ports."""
    head, tail, front = unit[u + HEAD], unit[u + TAIL], unit[u + FRONT]
    while head < tail:
        kind, value = word[head] & KIND_MASK, word[head] >> KIND_BITS
        ready = max(front, time[head])
        settled = unit[u + DATA] == head
        if kind == TRANSFER:
            if unit[u + INFLIGHT] == port[OUTSTANDING]:
                unit[u + STALLED] = 1
                break
            unit[u + INFLIGHT] += 1
            front = ready
            s = unit[u + TURN]
            if dma[s + ENTRY] == FAR:
                _take_port(unit, port, dma, ends, load, u, s, head, word[head], now, front)
            unit[u + TURN] = dma[s + AFTER]
        elif kind == FIXED:
            if not settled:
                unit[u + STALLED] = 1
                break
            front = max(ready, unit[u + DONE])
            unit[u + DONE] = front + value
            s = unit[u + TURN]
            for _ in range(port[PORTS if _engine(u) == MTE2 else PORTS + 1]):
                dma[s + FREE] = front + value
                s = dma[s + AFTER]
            unit[u + DATA] += 1
            if port[RECORD]:
                record[3 * head + START], record[3 * head + END] = front, front + value
        elif kind == WAIT:
            cycle = flag[value]
            if cycle < 0:
                flag[value] = -2 - u
                unit[u + STALLED] = 1
                break
            front = max(ready, cycle)
            if settled:
                unit[u + DATA] += 1
            if port[RECORD]:
                record[3 * head + START], record[3 * head + END] = ready, front
        else:
            front = ready
            if settled:
                _settle_set(unit, port, flag, record, word, u, head, front)
                unit[u + DATA] += 1
        time[head] = front
        head += 1
    unit[u + HEAD], unit[u + FRONT] = head, front


@_inlined
def _complete(
    unit: Pointer, port: Pointer, time: Pointer, flag: Pointer, dma: Pointer, ends: Pointer, load: Pointer, record: Pointer, word: Pointer,
    u: int, s: int, now: int,
) -> None:  # fmt: skip
    """The running transfer of a DMA port ends: SETs behind it take effect, the port's next one starts, the queue may issue again."""
    scalar = u | SCALAR
    ended, head = dma[s + ENTRY], unit[u + HEAD]
    k = 0 if _engine(u) == MTE2 else 1
    if port[RECORD]:
        record[3 * ended + START], record[3 * ended + END] = dma[s + BEGAN], now
    if dma[s + FINISH] != FAR:  # else its path held it, and it drew no more
        port[ACTIVE + k] -= 1
    if port[BANK_WAIT]:
        ring = port[RING]
        base = s // PORT_COLUMNS * (ring + 1)
        ends[base + 1 + (ends[base] & ring - 1)] = now
        ends[base] += 1
    unit[scalar + MOVING] -= 1
    if unit[scalar + MOVING] == 0:
        unit[scalar + CORE_MOVED] += now - unit[scalar + MOVING_SINCE]
    oldest, others, other = FAR, False, dma[s + AFTER]
    while other != s:
        oldest = min(oldest, dma[other + ENTRY])
        others = others or dma[other + BEGAN] >= 0
        other = dma[other + AFTER]
    if not others:
        unit[u + MOVED] += now - dma[s + SINCE]
    dma[s + ENTRY] = dma[s + BEGIN] = dma[s + FINISH] = FAR
    dma[s + BEGAN] = -1
    dma[s + FREE] = now
    unit[u + DONE] = now
    # what is settled ends before the oldest transfer of another port; all that has not ended is behind what has its port
    ports, entry = port[PORTS + k], ended + 1
    settled = oldest if unit[u + DATA] == ended else 0
    while entry < head:
        kind = word[entry] & KIND_MASK
        if kind == TRANSFER:
            ports -= 1
            if ports == 0:
                _take_port(unit, port, dma, ends, load, u, s, entry, word[entry], now, time[entry])
                break
        elif kind != WAIT and entry < settled:
            _settle_set(unit, port, flag, record, word, u, entry, time[entry])
        entry += 1
    if settled:
        unit[u + DATA] = min(oldest, entry)
    unit[u + INFLIGHT] -= 1
    if unit[u + STALLED] and word[head] & KIND_MASK != WAIT:
        # the entry at the head stood there for this end; one that comes later leaves later anyway
        unit[u + FRONT] = max(unit[u + FRONT], now)
        unit[u + STALLED] = 0
        _wake(unit, port, u)


@_inlined
def _drain(
    unit: Pointer, port: Pointer, time: Pointer, flag: Pointer, dma: Pointer, ends: Pointer, load: Pointer, record: Pointer, word: Pointer,
    engine: Pointer, now: int,
) -> None:  # fmt: skip
    """Let everything run ahead that can."""
    while port[TOP] >= 0:
        u = port[TOP]
        port[TOP] = unit[u + NEXT]
        unit[u + QUEUED] = 0
        e = _engine(u)
        if e == SCALAR_UNIT:
            _dispatch(unit, port, time, record, engine, u)
            continue
        if e in (MTE2, MTE3):
            _advance_dma(unit, port, time, flag, dma, ends, load, record, word, u, now)
        else:
            _advance(unit, port, time, flag, record, word, u)
        scalar = u | SCALAR
        if unit[scalar + FULL] == u and unit[u + HEAD] > unit[u + TAIL] - port[QUEUE_DEPTH]:
            _wake(unit, port, scalar)


@njit(cache=True, error_model="numpy")
def run(
    time_array: Ints,
    flag_array: Ints,
    unit_array: Ints,
    dma_array: Ints,
    ends_array: Ints,
    record_array: Ints,
    word_array: Ints,
    engine_array: NDArray[np.uint8],
    queues: Ints,
    streams: Ints,
    rates: Ints,
    load_array: Ints,
    port_array: Ints,
    snapshots: Ints,
    control: Ints,
) -> int:
    """Simulate; returns the last cycle, or -1 when all that is left waits for what cannot come.

    queues: int64 [queues, 2], from which entry to which; streams: int64 [cores, 2], the same of `engine_array`.
    rates: int64 [steps, load ports + 1, store ports + 1, 2] (see `ddr`); rates[i] from load_array[i] on, of which the first is 0.
    snapshots, control: see `timing_snapshot`; a run that goes on from one has a load of one step.
    """
    now, step, pause = 0, 0, control[INTERVAL]
    if control[FROM] >= 0:
        row = snapshots[control[FROM]]
        now = resume(row, time_array, flag_array, unit_array, dma_array, ends_array, port_array, word_array, queues, streams)
    else:
        flag_array[:] = -1
        unit_array[:] = 0
        ends_array[:] = 0
        reset(unit_array, dma_array, port_array, queues, streams)
    time, flag, unit, record = pointer(time_array), pointer(flag_array), pointer(unit_array), pointer(record_array)
    word, engine, port = pointer(word_array), pointer(engine_array), pointer(port_array)
    dma, ends, load, steps = pointer(dma_array), pointer(ends_array), pointer(load_array), rates.shape[0]
    units, dma_ports = unit_array.shape[0], dma_array.shape[0]
    load_ports = streams.shape[0] * port_array[PORTS] * PORT_COLUMNS
    rate, loads, stores = pointer(rates), rates.shape[1] - 1, rates.shape[2] - 1
    while True:
        _drain(unit, port, time, flag, dma, ends, load, record, word, engine, now)
        pause -= 1
        if pause == 0:
            pause = control[INTERVAL]
            if control[COUNT] < snapshots.shape[0]:
                save(snapshots[control[COUNT]], time_array, unit_array, dma_array, ends_array, port_array, now)
                control[COUNT] += 1
        at = ((step * (loads + 1) + port[ACTIVE]) * (stores + 1) + port[ACTIVE + 1]) * 2
        read_rate, write_rate = rate[at], rate[at + 1]
        upcoming, read_end, write_end = FAR, FAR, FAR
        for s in range(0, load_ports, PORT_COLUMNS):
            upcoming = min(upcoming, dma[s + BEGIN])
            read_end = min(read_end, dma[s + FINISH])
        for s in range(load_ports, dma_ports, PORT_COLUMNS):
            upcoming = min(upcoming, dma[s + BEGIN])
            write_end = min(write_end, dma[s + FINISH])
        if read_end != FAR:
            upcoming = min(upcoming, now + _ceil_div(read_end - port[SERVED], read_rate))
        if write_end != FAR:
            upcoming = min(upcoming, now + _ceil_div(write_end - port[SERVED + 1], write_rate))
        if upcoming == FAR:
            break
        if step + 1 < steps and load[step + 1] <= upcoming:
            step += 1
            upcoming = load[step]
        port[SERVED] += read_rate * (upcoming - now)
        port[SERVED + 1] += write_rate * (upcoming - now)
        now = upcoming
        for s in range(0, dma_ports, PORT_COLUMNS):
            k = 0 if s < load_ports else 1
            if dma[s + FINISH] <= port[SERVED + k]:
                held = _held_until(port, dma, s, word[dma[s + ENTRY]])
                if held > now:
                    port[ACTIVE + k] -= 1
                    dma[s + FINISH], dma[s + BEGIN] = FAR, held
                    continue
            elif dma[s + BEGIN] > now:
                continue
            elif dma[s + BEGAN] < 0:
                _start_data(unit, port, dma, dma[s + OWNER], s, word[dma[s + ENTRY]] >> BUS_BITS, now)
                continue
            _complete(unit, port, time, flag, dma, ends, load, record, word, dma[s + OWNER], s, now)
    last = 0
    for u in range(0, units, COLUMNS):
        if unit[u + HEAD] != unit[u + STOP]:  # HEAD and PC are the same column
            return -1
        last = max(last, unit[u + ISSUED]) if _engine(u) == SCALAR_UNIT else max(last, unit[u + FRONT], unit[u + DONE] + unit[u + LAG])
    return last
