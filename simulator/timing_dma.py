"""DDR transfers of a queue: they are issued in order, take its DMA ports in turn, get data and end (see `timing_kernel`).

Transfers of a queue take its DMA ports in turn: the next one of a port is so many transfers behind, and follows as in a queue of its own.

A transfer that starts when its kind has had `SERVED` bus units is through when it has had that + bus: all transfers of a kind run at one
rate, so a step of the clock touches two counters only.  On a path slower than its engine's fastest it is held, without drawing, until
bus / the path's rate cycles are over.
"""

from __future__ import annotations

from simulator.pointer import Pointer
from simulator.timing_queues import engine_of, fire, inlined, wake
from simulator.timing_state import (
    ACTIVE,
    AFTER,
    BANK_WAIT,
    BEGAN,
    BEGIN,
    BUS_BITS,
    CORE_MOVED,
    DATA,
    DONE,
    END,
    ENTRY,
    FAR,
    FINISH,
    FIXED,
    FREE,
    FRONT,
    HEAD,
    INFLIGHT,
    KIND_BITS,
    KIND_MASK,
    LATENCY,
    MOVED,
    MOVING,
    MOVING_SINCE,
    MTE2,
    MTE3,
    OUTSTANDING,
    OWNER,
    PATHS,
    PATHS_OF,
    PORT_COLUMNS,
    PORTS,
    RECORD,
    REMOTE_CYCLES,
    RING,
    SCALAR,
    SERVED,
    SET_REMOTE,
    SINCE,
    STALLED,
    START,
    STEPS,
    TAIL,
    TRANSFER,
    TURN,
    WAIT,
)  # fmt: skip


@inlined
def _load_latency(port: Pointer, load: Pointer, cycle: int) -> int:
    """What the background load adds to the latency of what is issued in a cycle."""
    step = port[STEPS] - 1
    while step > 0 and load[step] > cycle:
        step -= 1
    return load[port[STEPS] + step]


@inlined
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


@inlined
def _path(port: Pointer, u: int, word: int) -> int:
    """Where `port` has the path of a transfer."""
    return PATHS + (PATHS_OF if engine_of(u) == MTE3 else 0) + (word >> KIND_BITS & KIND_MASK) * 2


@inlined
def take_port(
    unit: Pointer, port: Pointer, dma: Pointer, ends: Pointer, load: Pointer, u: int, s: int, entry: int, word: int, now: int, issue: int
) -> None:
    """A transfer, issued in a cycle, takes its port, and gets its data when they come and those before it are through."""
    dma[s + ENTRY] = entry
    begin = max(_first_data(port, dma, ends, load, s, issue), dma[s + FREE]) + port[_path(port, u, word)]
    if begin > now:
        dma[s + BEGIN] = begin
    else:
        start_data(unit, port, dma, u, s, word >> BUS_BITS, now)


@inlined
def start_data(unit: Pointer, port: Pointer, dma: Pointer, u: int, s: int, bus: int, now: int) -> None:
    """The transfer of a DMA port moves data from now on."""
    k = 0 if engine_of(u) == MTE2 else 1
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


@inlined
def held_until(port: Pointer, dma: Pointer, s: int, word: int) -> int:
    """The cycle before which the path of a port's running transfer is not through."""
    rate = port[_path(port, dma[s + OWNER], word) + 1]
    return dma[s + BEGAN] + ((word >> BUS_BITS) + rate - 1) // rate if rate else 0


@inlined
def settle_set(unit: Pointer, port: Pointer, flag: Pointer, record: Pointer, word: Pointer, u: int, entry: int, left: int) -> None:
    """A SET of a DMA takes effect: all before it has completed."""
    cycle = max(left, unit[u + DONE])
    if port[RECORD]:
        record[3 * entry + START], record[3 * entry + END] = left, cycle
    if word[entry] & KIND_MASK == SET_REMOTE:
        cycle += port[REMOTE_CYCLES]
    fire(unit, port, flag, word[entry] >> KIND_BITS, cycle)


@inlined
def advance_dma(
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
                take_port(unit, port, dma, ends, load, u, s, head, word[head], now, front)
            unit[u + TURN] = dma[s + AFTER]
        elif kind == FIXED:
            if not settled:
                unit[u + STALLED] = 1
                break
            front = max(ready, unit[u + DONE])
            unit[u + DONE] = front + value
            s = unit[u + TURN]
            for _ in range(port[PORTS if engine_of(u) == MTE2 else PORTS + 1]):
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
                settle_set(unit, port, flag, record, word, u, head, front)
                unit[u + DATA] += 1
        time[head] = front
        head += 1
    unit[u + HEAD], unit[u + FRONT] = head, front


@inlined
def complete(
    unit: Pointer, port: Pointer, time: Pointer, flag: Pointer, dma: Pointer, ends: Pointer, load: Pointer, record: Pointer, word: Pointer,
    u: int, s: int, now: int,
) -> None:  # fmt: skip
    """The running transfer of a DMA port ends: SETs behind it take effect, the port's next one starts, the queue may issue again."""
    scalar = u | SCALAR
    ended, head = dma[s + ENTRY], unit[u + HEAD]
    k = 0 if engine_of(u) == MTE2 else 1
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
                take_port(unit, port, dma, ends, load, u, s, entry, word[entry], now, time[entry])
                break
        elif kind != WAIT and entry < settled:
            settle_set(unit, port, flag, record, word, u, entry, time[entry])
        entry += 1
    if settled:
        unit[u + DATA] = min(oldest, entry)
    unit[u + INFLIGHT] -= 1
    if unit[u + STALLED] and word[head] & KIND_MASK != WAIT:
        # the entry at the head stood there for this end; one that comes later leaves later anyway
        unit[u + FRONT] = max(unit[u + FRONT], now)
        unit[u + STALLED] = 0
        wake(unit, port, u)
