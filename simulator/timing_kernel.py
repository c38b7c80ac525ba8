"""The event loop of the timing model, in numba (`timing.py` is the way in and states the model).

Lazy dataflow: only the ends of DDR transfers depend on what else is going on; everything else is max and plus over times that
are known as soon as their sources have run, and may lie in the future.  So queues run ahead as far as they can, in any order (a
worklist of those that something woke), and only when none can move does the clock step to the next start or end of a data phase.
Exact, because whatever is still unknown then waits for a transfer that has not ended, and so cannot come before that end.

Arrays.  q = core * 7 + engine; entries are instructions in queue order (`queue_start[q]` onwards).

| name        | dtype, shape         | meaning                                                                              |
|-------------|----------------------|--------------------------------------------------------------------------------------|
| word        | int64 [n]            | entry: value << 3 or kind; value = busy cycles, bus units or flag slot              |
| engine      | uint8 [n]            | engine of each instruction in stream order                                           |
| time        | int64 [n]            | of an entry: dispatch cycle, then the cycle in which it left the queue               |
| flag        | int64 [slots]        | cycle in which the SET of a slot takes effect; -1 unknown; -2 - q: q waits for it    |
| head, tail  | int64 [queues]       | next entry to leave, next entry to be dispatched                                     |
| front, done | int64 [queues]       | cycle of the last leaving; completion of all that left (DMA: of all before `data`)   |
| data        | int64 [queues]       | DMA: first entry whose effect is not settled; the transfers in data..head are issued |
| begin       | int64 [2, cores]     | known start of the next data phase (FAR: none) of MTE2, MTE3                         |
| finish      | int64 [2, cores]     | service at which the running transfer ends (FAR: none)                               |
| served      | int64 [2]            | bus units that each always-active MTE2, MTE3 transfer would have had so far          |

A transfer that starts at service v ends at v + bus: all transfers of a kind run at one rate, so steps of the clock touch two counters only.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from simulator.npu.machine import Engine

ENGINES = len(Engine)
KIND_BITS, KIND_MASK = 3, 7
FIXED, TRANSFER, WAIT, SET, SET_REMOTE = range(5)
FAR = np.iinfo(np.int64).max
MTE2, MTE3, CUBE, VECTOR = int(Engine.MTE2), int(Engine.MTE3), int(Engine.CUBE), int(Engine.VECTOR)
SCALAR_UNIT = ENGINES  # on the worklist: the scalar unit of a core, beside its queues
_ITEMS = ENGINES + 1

# constants of a run, int64 [6]
ISSUE_CYCLES, QUEUE_DEPTH, LATENCY, OUTSTANDING, REMOTE_CYCLES, RECORD = range(6)

Ints = NDArray[np.int64]


class State(NamedTuple):
    """Everything that changes in a run (see the table at the top)."""

    time: Ints
    flag: Ints
    head: Ints
    tail: Ints
    front: Ints
    done: Ints
    stalled: Ints  # queues: 1 while waiting for a flag or a completion, so that a dispatch need not wake it
    data: Ints
    inflight: Ints  # queues: transfers issued and not ended
    begin: Ints
    finish: Ints
    began: Ints  # [2, cores]: start of the running data phase
    served: Ints
    active: Ints  # [2]
    moving: Ints  # cores: running transfers
    moving_since: Ints
    moved_cycles: Ints
    transfer_cycles: Ints  # queues
    pc: Ints  # cores: next row to be dispatched
    issued: Ints  # cores: cycle of the last dispatch
    full: Ints  # cores: queue whose lack of room stops the scalar unit, or -1
    work: Ints  # stack of core * 8 + engine (or SCALAR_UNIT); work[-1] holds its height
    queued: NDArray[np.uint8]
    start: Ints  # entries, when recording
    end: Ints
    dispatched: Ints


def new_state(instructions: int, slots: int, cores: int, record: bool) -> State:
    """Room for a run; `reset` makes it ready."""
    queues = cores * ENGINES
    recorded = instructions if record else 0

    def ints(*shape: int) -> Ints:
        return np.empty(shape, np.int64)

    return State(
        time=ints(instructions), flag=ints(slots),
        head=ints(queues), tail=ints(queues), front=ints(queues), done=ints(queues), stalled=ints(queues), data=ints(queues),
        inflight=ints(queues), begin=ints(2, cores), finish=ints(2, cores), began=ints(2, cores), served=ints(2), active=ints(2),
        moving=ints(cores), moving_since=ints(cores), moved_cycles=ints(cores), transfer_cycles=ints(queues),
        pc=ints(cores), issued=ints(cores), full=ints(cores),
        work=ints(cores * _ITEMS + 1), queued=np.empty(cores * _ITEMS, np.uint8),
        start=ints(recorded), end=ints(recorded), dispatched=ints(recorded),
    )  # fmt: skip


@njit(cache=True)
def _reset(s, queue_start, stream_start):
    s.flag[:] = -1
    queues = s.head.shape[0]
    s.head[:] = queue_start[:queues]
    s.tail[:] = queue_start[:queues]
    s.data[:] = queue_start[:queues]
    for array in (s.front, s.done, s.stalled, s.inflight, s.transfer_cycles, s.served, s.active):
        array[:] = 0
    for array in (s.moving, s.moving_since, s.moved_cycles, s.issued):
        array[:] = 0
    s.begin[:] = FAR
    s.finish[:] = FAR
    s.full[:] = -1
    s.queued[:] = 0
    s.work[-1] = 0
    for core in range(s.pc.shape[0]):
        s.pc[core] = stream_start[core]
        _wake(s, core * _ITEMS + SCALAR_UNIT)


@njit(cache=True, inline="always")
def _wake(s, item):
    if not s.queued[item]:
        s.queued[item] = 1
        last = s.work.shape[0] - 1
        s.work[s.work[last]] = item
        s.work[last] += 1


@njit(cache=True, inline="always")
def _fire(s, slot, cycle):
    """A SET takes effect; wakes the queue whose WAIT stands at the head for it."""
    waiter = s.flag[slot]
    s.flag[slot] = cycle
    if waiter <= -2:
        q = -2 - waiter
        s.stalled[q] = 0
        _wake(s, q // ENGINES * _ITEMS + q % ENGINES)


@njit(cache=True, inline="always")
def _start_data(s, k, core, q, bus, now, begin):
    """The transfer at the front of DMA `k` of a core may move data from cycle `begin` on."""
    if begin > now:
        s.begin[k, core] = begin
        return
    s.begin[k, core] = FAR
    s.began[k, core] = now
    s.finish[k, core] = s.served[k] + bus
    s.active[k] += 1
    if s.moving[core] == 0:
        s.moving_since[core] = now
    s.moving[core] += 1


@njit(cache=True)
def _dispatch(s, core, engine, queue_start, stop, c):
    """The scalar unit hands out instructions until a queue is full."""
    pc, issued = s.pc[core], s.issued[core]
    issue, depth = c[ISSUE_CYCLES], c[QUEUE_DEPTH]
    first = core * ENGINES
    s.full[core] = -1
    touched = 0
    while pc < stop:
        e = engine[pc]
        q = first + e
        k = s.tail[q]
        cycle = issued + issue
        old = k - depth
        if old >= queue_start[q]:
            if s.head[q] <= old:
                s.full[core] = q
                break
            cycle = max(cycle, s.time[old])
        issued = cycle
        s.time[k] = cycle
        if c[RECORD]:
            s.dispatched[k] = cycle
        s.tail[q] = k + 1
        touched |= 1 << e
        pc += 1
    s.pc[core], s.issued[core] = pc, issued
    for e in range(ENGINES):
        if touched >> e & 1 and not s.stalled[first + e]:
            _wake(s, core * _ITEMS + e)


@njit(cache=True)
def _advance(s, q, word, c):
    """A queue of fixed-duration entries and flags runs as far as it can."""
    head, tail, front, done = s.head[q], s.tail[q], s.front[q], s.done[q]
    while head < tail:
        w = word[head]
        kind, value = w & KIND_MASK, w >> KIND_BITS
        ready = max(front, s.time[head])
        if kind == FIXED:
            front = max(ready, done)
            done = front + value
            end = done
        elif kind == WAIT:
            cycle = s.flag[value]
            if cycle < 0:
                s.flag[value] = -2 - q
                s.stalled[q] = 1
                break
            front = max(ready, cycle)
            end = front
        else:
            front = ready
            end = max(ready, done)
            _fire(s, value, end + c[REMOTE_CYCLES] if kind == SET_REMOTE else end)
        s.time[head] = front
        if c[RECORD]:
            s.start[head] = ready if kind == WAIT else front
            s.end[head] = end
        head += 1
    s.head[q], s.front[q], s.done[q] = head, front, done


@njit(cache=True)
def _advance_dma(s, q, core, k, word, c, now):
    """A DMA queue issues as far as it can; transfers keep their data phases in order behind `data`."""
    head, tail, front = s.head[q], s.tail[q], s.front[q]
    while head < tail:
        w = word[head]
        kind, value = w & KIND_MASK, w >> KIND_BITS
        ready = max(front, s.time[head])
        settled = s.data[q] == head
        if kind == TRANSFER:
            if s.inflight[q] == c[OUTSTANDING]:
                s.stalled[q] = 1
                break
            s.inflight[q] += 1
            front = ready
            if settled:
                _start_data(s, k, core, q, value, now, max(front + c[LATENCY], s.done[q]))
        elif kind == FIXED:
            if not settled:
                s.stalled[q] = 1
                break
            front = max(ready, s.done[q])
            s.done[q] = front + value
            s.data[q] += 1
            if c[RECORD]:
                s.start[head], s.end[head] = front, s.done[q]
        elif kind == WAIT:
            cycle = s.flag[value]
            if cycle < 0:
                s.flag[value] = -2 - q
                s.stalled[q] = 1
                break
            front = max(ready, cycle)
            if settled:
                s.data[q] += 1
            if c[RECORD]:
                s.start[head], s.end[head] = ready, front
        else:
            front = ready
            if settled:
                _settle_set(s, q, head, kind, value, front, c)
                s.data[q] += 1
        s.time[head] = front
        head += 1
    s.head[q], s.front[q] = head, front


@njit(cache=True, inline="always")
def _settle_set(s, q, entry, kind, slot, left, c):
    cycle = max(left, s.done[q])
    if c[RECORD]:
        s.start[entry], s.end[entry] = left, cycle
    _fire(s, slot, cycle + c[REMOTE_CYCLES] if kind == SET_REMOTE else cycle)


@njit(cache=True)
def _complete(s, k, core, q, word, c, now):
    """The running transfer of a DMA ends: SETs behind it take effect, the next one starts, the queue may issue again."""
    s.finish[k, core] = FAR
    s.active[k] -= 1
    s.moving[core] -= 1
    if s.moving[core] == 0:
        s.moved_cycles[core] += now - s.moving_since[core]
    s.transfer_cycles[q] += now - s.began[k, core]
    s.done[q] = now
    data, head = s.data[q], s.head[q]
    if c[RECORD]:
        s.start[data], s.end[data] = s.began[k, core], now
    data += 1
    while data < head:
        w = word[data]
        kind, value = w & KIND_MASK, w >> KIND_BITS
        if kind == TRANSFER:
            _start_data(s, k, core, q, value, now, max(s.time[data] + c[LATENCY], now))
            break
        if kind != WAIT:
            _settle_set(s, q, data, kind, value, s.time[data], c)
        data += 1
    s.data[q] = data
    if s.inflight[q] == c[OUTSTANDING]:
        # a transfer that waited for this slot is issued now; one that comes later is issued later anyway
        s.front[q] = max(s.front[q], now)
    s.inflight[q] -= 1
    head_waits = head < s.tail[q] and word[head] & KIND_MASK == WAIT
    if not (s.stalled[q] and head_waits):
        s.stalled[q] = 0
        _wake(s, core * _ITEMS + (MTE2 if k == 0 else MTE3))


@njit(cache=True)
def _drain(s, word, engine, queue_start, stream_start, c, now):
    """Let everything run ahead that can."""
    last = s.work.shape[0] - 1
    while s.work[last] > 0:
        s.work[last] -= 1
        item = s.work[s.work[last]]
        s.queued[item] = 0
        core, e = item >> 3, item & 7
        if e == SCALAR_UNIT:
            _dispatch(s, core, engine, queue_start, stream_start[core + 1], c)
            continue
        q = core * ENGINES + e
        if e == MTE2:
            _advance_dma(s, q, core, 0, word, c, now)
        elif e == MTE3:
            _advance_dma(s, q, core, 1, word, c, now)
        else:
            _advance(s, q, word, c)
        if s.full[core] == q and s.head[q] > s.tail[q] - c[QUEUE_DEPTH]:
            _wake(s, core * _ITEMS + SCALAR_UNIT)


@njit(cache=True)
def run(s, word, engine, queue_start, stream_start, rates, changes, c):
    """Simulate; returns the last cycle, or -1 when everything that is left waits for something that cannot come.

    rates: int64 [steps, cores + 1, cores + 1, 2], rates[i] from changes[i] (int64 [steps], the first 0) on.
    """
    _reset(s, queue_start, stream_start)
    cores = s.pc.shape[0]
    now, step = 0, 0
    while True:
        _drain(s, word, engine, queue_start, stream_start, c, now)
        upcoming = FAR
        for k in range(2):
            rate = rates[step, s.active[0], s.active[1], k]
            nearest = FAR
            for core in range(cores):
                nearest = min(nearest, s.finish[k, core])
                upcoming = min(upcoming, s.begin[k, core])
            if nearest != FAR:
                upcoming = min(upcoming, now + (nearest - s.served[k] + rate - 1) // rate)
        if upcoming == FAR:
            break
        if step + 1 < changes.shape[0]:
            upcoming = min(upcoming, changes[step + 1])
        for k in range(2):
            s.served[k] += rates[step, s.active[0], s.active[1], k] * (upcoming - now)
        now = upcoming
        if step + 1 < changes.shape[0] and changes[step + 1] == now:
            step += 1
        for core in range(cores):
            for k in range(2):
                q = core * ENGINES + (MTE2 if k == 0 else MTE3)
                if s.finish[k, core] <= s.served[k]:
                    _complete(s, k, core, q, word, c, now)
                elif s.begin[k, core] <= now:
                    _start_data(s, k, core, q, word[s.data[q]] >> KIND_BITS, now, now)
    last = 0
    for core in range(cores):
        last = max(last, s.issued[core])
        if s.pc[core] != stream_start[core + 1]:
            return -1
    for q in range(s.head.shape[0]):
        last = max(last, s.front[q], s.done[q])
        if s.head[q] != queue_start[q + 1]:
            return -1
    return last


@njit(cache=True)
def compute_union(time, word, queue_start, cores):
    """Cycles in which CUBE or VECTOR works, per core: busy of both, less the overlap of two ordered lists of intervals."""
    out = np.zeros(cores, np.int64)
    for core in range(cores):
        a, a_end = queue_start[core * ENGINES + CUBE], queue_start[core * ENGINES + CUBE + 1]
        b, b_end = queue_start[core * ENGINES + VECTOR], queue_start[core * ENGINES + VECTOR + 1]
        covered, total = 0, 0
        while a < a_end or b < b_end:
            while a < a_end and word[a] & KIND_MASK != FIXED:
                a += 1
            while b < b_end and word[b] & KIND_MASK != FIXED:
                b += 1
            if a < a_end and (b >= b_end or time[a] <= time[b]):
                i = a
                a += 1
            elif b < b_end:
                i = b
                b += 1
            else:
                break
            end = time[i] + (word[i] >> KIND_BITS)
            if end > covered:
                total += end - max(covered, time[i])
                covered = end
        out[core] = total
    return out
