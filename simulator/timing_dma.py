"""DDR transfers of a queue u: issue in order, a DMA port, data, and end (see `timing_kernel`).

Transfers of a queue take its DMA ports in turn, so the transfers of one port are in order as in a queue of their own.

All transfers of a kind run at one rate, so they share a counter, `SERVED`.  A transfer that starts at SERVED = s ends at s + bus, and a
step of the clock updates two counters only.  On a path slower than the engine's fastest, the transfer also has to last bus / the path's
rate cycles; it draws nothing in the additional cycles, nor in those in which it moves what an L2 holds (`l2_traffic`).

Ports are taken in turn, not first free, because the bounds of a run could not be proved for a choice by time.
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
    DRAWN_MASK,
    END,
    ENTRY,
    FAR,
    FINISH,
    FIXED,
    FREE,
    FRONT,
    HEAD,
    HIT_SHIFT,
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
    """Latency added by the background load to a transfer issued in a cycle."""
    step = port[STEPS] - 1
    while step > 0 and load[step] > cycle:
        step -= 1
    return load[port[STEPS] + step]


@inlined
def _first_data(port: Pointer, dma: Pointer, ends: Pointer, load: Pointer, dma_port: int, issue: int) -> int:
    """Earliest first data of the oldest transfer of a DMA port, without start-up and without data of earlier transfers.

    Each transfer of the same port in flight at `issue` delays it by BANK_WAIT, but not beyond its own end; with k of them the latency is
    LATENCY + the load's latency + k * BANK_WAIT.  That limit makes it monotone in `issue` and in the ends.  The transfers in flight are
    known exactly, in whatever order queues are simulated: all earlier transfers of the port have ended."""
    cycle = issue
    wait, ring = port[BANK_WAIT], port[RING]
    latency = port[LATENCY] + _load_latency(port, load, issue)
    # if earlier data end later, only they count
    if wait and issue + ring * wait + latency > dma[dma_port + FREE]:
        base = dma_port // PORT_COLUMNS * (ring + 1)
        count = ends[base]
        first, oldest = count, max(0, count - ring)
        while first > oldest and ends[base + 1 + ((first - 1) & (ring - 1))] > issue:
            first -= 1
        while first < count:
            cycle = max(cycle, min(ends[base + 1 + (first & (ring - 1))], cycle + wait))
            first += 1
    return cycle + latency


@inlined
def _path(port: Pointer, u: int, word: int) -> int:
    """Index of the path of a transfer in `port`."""
    return PATHS + (PATHS_OF if engine_of(u) == MTE3 else 0) + (word >> KIND_BITS & KIND_MASK) * 2


@inlined
def drawn_units(port: Pointer, word: int) -> int:
    """Bus units of a transfer."""
    return word >> BUS_BITS & port[DRAWN_MASK]


@inlined
def take_port(
    unit: Pointer, port: Pointer, dma: Pointer, ends: Pointer, load: Pointer, u: int, dma_port: int, entry: int, word: int, now: int,
    issue: int,
) -> None:  # fmt: skip
    """Let a transfer, issued in cycle `issue`, take its DMA port.  Its data start when they arrive and earlier data have ended."""
    dma[dma_port + ENTRY] = entry
    begin = max(_first_data(port, dma, ends, load, dma_port, issue), dma[dma_port + FREE]) + port[_path(port, u, word)]
    if begin > now:
        dma[dma_port + BEGIN] = begin
    else:
        start_data(unit, port, dma, u, dma_port, drawn_units(port, word), now)


@inlined
def start_data(unit: Pointer, port: Pointer, dma: Pointer, u: int, dma_port: int, bus: int, now: int) -> None:
    """The transfer of a DMA port moves data from cycle `now` on."""
    k = 0 if engine_of(u) == MTE2 else 1
    scalar = u | SCALAR
    dma[dma_port + BEGIN] = FAR
    dma[dma_port + BEGAN] = now
    dma[dma_port + FINISH] = port[SERVED + k] + bus
    port[ACTIVE + k] += 1
    since, sibling = now, dma[dma_port + AFTER]
    while sibling != dma_port:
        if dma[sibling + BEGAN] >= 0:
            since = dma[sibling + SINCE]
        sibling = dma[sibling + AFTER]
    dma[dma_port + SINCE] = since
    if unit[scalar + MOVING] == 0:
        unit[scalar + MOVING_SINCE] = now
    unit[scalar + MOVING] += 1


@inlined
def release_cycle(port: Pointer, dma: Pointer, dma_port: int, word: int, now: int) -> int:
    """First cycle in which a port's running transfer may end, whose draw ends now: its path may be slower, and an L2 has its own part."""
    rate, cycle = port[_path(port, dma[dma_port + OWNER], word) + 1], now
    if rate:
        cycle = max(cycle, dma[dma_port + BEGAN] + (drawn_units(port, word) + rate - 1) // rate)
    return cycle + (word >> port[HIT_SHIFT])


@inlined
def settle_set(unit: Pointer, port: Pointer, flag: Pointer, record: Pointer, word: Pointer, u: int, entry: int, leave_cycle: int) -> None:
    """A SET of a DMA takes effect: all earlier entries have completed."""
    cycle = max(leave_cycle, unit[u + DONE])
    if port[RECORD]:
        record[3 * entry + START], record[3 * entry + END] = leave_cycle, cycle
    if (word[entry] & KIND_MASK) == SET_REMOTE:
        cycle += port[REMOTE_CYCLES]
    fire(unit, port, flag, word[entry] >> KIND_BITS, cycle)


@inlined
def advance_dma(
    unit: Pointer, port: Pointer, time: Pointer, flag: Pointer, dma: Pointer, ends: Pointer, load: Pointer, record: Pointer, word: Pointer,
    u: int, now: int,
) -> None:  # fmt: skip
    """DMA queue u issues as far as it can; data phases follow at DATA, in order on each of its ports."""
    head, tail, front = unit[u + HEAD], unit[u + TAIL], unit[u + FRONT]
    while head < tail:
        kind, value = word[head] & KIND_MASK, word[head] >> KIND_BITS
        ready = max(front, time[head])
        # settled: all entries before the head have ended, so its own end is known; otherwise `complete` settles it later
        settled = unit[u + DATA] == head
        if kind == TRANSFER:
            if unit[u + INFLIGHT] == port[OUTSTANDING]:
                unit[u + STALLED] = 1
                break
            unit[u + INFLIGHT] += 1
            front = ready
            dma_port = unit[u + TURN]
            # a busy port takes the transfer when its present one ends (`complete`)
            if dma[dma_port + ENTRY] == FAR:
                take_port(unit, port, dma, ends, load, u, dma_port, head, word[head], now, front)
            unit[u + TURN] = dma[dma_port + AFTER]
        elif kind == FIXED:
            if not settled:
                unit[u + STALLED] = 1
                break
            front = max(ready, unit[u + DONE])
            unit[u + DONE] = front + value
            # an on-chip move occupies all ports of the DMA
            dma_port = unit[u + TURN]
            for _ in range(port[PORTS if engine_of(u) == MTE2 else PORTS + 1]):
                dma[dma_port + FREE] = front + value
                dma_port = dma[dma_port + AFTER]
            unit[u + DATA] += 1
            if port[RECORD]:
                record[3 * head + START], record[3 * head + END] = front, front + value
        elif kind == WAIT:
            cycle = flag[value]
            # not set yet: the SET finds this queue by its flag and wakes it (`fire`)
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
    u: int, dma_port: int, now: int,
) -> None:  # fmt: skip
    """The running transfer of a DMA port ends: SETs behind it take effect, the port's next one starts, and the queue may issue again."""
    scalar = u | SCALAR
    ended, head = dma[dma_port + ENTRY], unit[u + HEAD]
    k = 0 if engine_of(u) == MTE2 else 1
    if port[RECORD]:
        record[3 * ended + START], record[3 * ended + END] = dma[dma_port + BEGAN], now
    if dma[dma_port + FINISH] != FAR:  # else its path limited it, and it drew nothing more
        port[ACTIVE + k] -= 1
    if port[BANK_WAIT]:
        ring = port[RING]
        base = dma_port // PORT_COLUMNS * (ring + 1)
        ends[base + 1 + (ends[base] & (ring - 1))] = now
        ends[base] += 1
    unit[scalar + MOVING] -= 1
    if unit[scalar + MOVING] == 0:
        unit[scalar + CORE_MOVED] += now - unit[scalar + MOVING_SINCE]
    # cycles in which any port of the queue moves data count once
    oldest, siblings_move, sibling = FAR, False, dma[dma_port + AFTER]
    while sibling != dma_port:
        oldest = min(oldest, dma[sibling + ENTRY])
        siblings_move = siblings_move or dma[sibling + BEGAN] >= 0
        sibling = dma[sibling + AFTER]
    if not siblings_move:
        unit[u + MOVED] += now - dma[dma_port + SINCE]
    dma[dma_port + ENTRY] = dma[dma_port + BEGIN] = dma[dma_port + FINISH] = FAR
    dma[dma_port + BEGAN] = -1
    dma[dma_port + FREE] = now
    unit[u + DONE] = now
    # settled entries end before the oldest transfer of another port; all that have not ended come after the owner of their port
    ports, entry = port[PORTS + k], ended + 1
    settled = oldest if unit[u + DATA] == ended else 0
    while entry < head:
        kind = word[entry] & KIND_MASK
        if kind == TRANSFER:
            ports -= 1
            if ports == 0:
                take_port(unit, port, dma, ends, load, u, dma_port, entry, word[entry], now, time[entry])
                break
        elif kind != WAIT and entry < settled:
            settle_set(unit, port, flag, record, word, u, entry, time[entry])
        entry += 1
    if settled:
        unit[u + DATA] = min(oldest, entry)
    unit[u + INFLIGHT] -= 1
    if unit[u + STALLED] and (word[head] & KIND_MASK) != WAIT:
        # the head waited for this end; a later head leaves later anyway
        unit[u + FRONT] = max(unit[u + FRONT], now)
        unit[u + STALLED] = 0
        wake(unit, port, u)
