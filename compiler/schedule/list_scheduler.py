"""A segment's records in an order in which engines wait less for each other: list scheduling, some records of every engine ahead.

Emitters write operator by operator and tile by tile, and an engine takes its records in their order.  So one that waits, for a result or
for a slot, keeps back others that need not: the next tiles of its own operator, or those of an operator whose inputs are there.

Every engine has a clock.  The record that can begin first is next, and of several the first engine's.  Of one engine's it is the one that
most has to follow on: the longest chain to the segment's end of records that share cells (critical path: Hu 1961; Adam, Chandy and Dickson
1974), in steps of 256 cycles.  Slots that are taken again make chains, too.  So MTE1 brings VECTOR the first channels of a depthwise
convolution while it still has the last ones to bring to CUBE.  Of the same step, and where a segment is not `urgent`, the one that was
emitted first is next.  Of each engine the first `lookahead` records are asked that are not scheduled, as a window of an out-of-order
processor has them (Tomasulo 1967; list scheduling: Graham 1966).

Loads stay in their order unless they may overtake.  Then one that waits for its place in L1 or UB to be read lets others go first, as those
of the next pass do while weights of this one come chunk by chunk.  Where DDR is slower than CUBE, what is wanted first should come first.

A record comes behind all with which it shares a cell that one of the two writes, as it did.  So addresses stay, and the records mean
the same.  How far an engine gets ahead depends on slots: one that is taken again soon ends it.

| array | dtype, shape      | meaning                                                                          |
|-------|-------------------|----------------------------------------------------------------------------------|
| edge  | int32 [edges, 2]  | a record that comes before another one, and the next edge of that, or -1          |
| first | int32 [n]         | the first edge of what record i comes behind, or -1                               |
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from compiler.schedule.local_dependences import ENGINES, Bytes8, Ints32
from compiler.schedule.scratch import Scratch
from simulator.npu.parts import Engine
from simulator.pointer import Pointer, pointer

Ints = NDArray[np.int64]

_LOADS = int(Engine.MTE2)
_NO_EDGE, _NO_READ = -1, -2
_NEVER = np.iinfo(np.int64).max
_PLACE_BITS = (
    20  # of a record's place in its queue, in one number with a cycle: a segment has fewer records (`codegen.lower_segment.CAPACITY`)
)
_STEP_BITS = 8  # of chains' lengths, below which records come as they were emitted: tiles of an operator that begin one after the other
_MOST_STEPS = (1 << 62 - _PLACE_BITS) - 1


def listed(
    engine: Bytes8, span: Ints32, start: Ints32, cells: int, cycles: Ints, late: Ints, lookahead: int, overtake: bool, urgent: bool,
    scratch: Scratch,
) -> Ints:  # fmt: skip
    """int64 [n], the order of n records that touch `cells` cells (see `footprint`).

    overtake: whether loads do.  urgent: see above.  cycles: int64 [n], for which they have their engine.  late: int64 [n], how much later
    what they write is there.
    """
    n = len(engine)
    first, seen, writer, reader = (scratch.array(*of) for of in (("first", n), ("seen", n), ("writer", cells), ("reader", cells)))
    edge, read = scratch.array("edge", 8 * n + 64, 2), scratch.array("read", 4 * len(span) + 16, 2)
    while (used := _behind(span, start, edge, first, read, writer, reader, seen)) < 0:
        if used == _NO_EDGE:
            edge = scratch.array("edge", 2 * len(edge), 2)
        else:
            read = scratch.array("read", 2 * len(read), 2)
    order = np.empty(n, np.int64)
    _list(engine, cycles, late, edge, first, used, lookahead, overtake, urgent, order)
    return order


@njit(cache=True, inline="always")
def _add(edge: Pointer, at: int, first: Pointer, seen: Pointer, before: int, i: int) -> int:
    """An edge from a record to record i, unless there is one."""
    if before == i or seen[before] == i:
        return at
    seen[before] = i
    edge[2 * at], edge[2 * at + 1] = before, first[i]
    first[i] = at
    return at + 1


@njit(cache=True)
def _behind(
    span_array: Ints32, start_array: Ints32, edge_array: Ints32, first_array: Ints32, read_array: Ints32,
    writer_array: Ints32, reader_array: Ints32, seen_array: Ints32,
) -> int:  # fmt: skip
    """Fills edge and first; returns how many edges, or `_NO_EDGE`, or `_NO_READ`, where there is no room.

    read_array: int32 [.., 2], scratch, who, and the read before.  writer_array, reader_array: int32 [cells], scratch, the last write and
    read.  seen_array: int32 [n], scratch.  A record that writes what others have read comes behind these, which came behind the write
    before: that is no edge of its own.
    """
    span, start, edge, first, read = (
        pointer(span_array),
        pointer(start_array),
        pointer(edge_array),
        pointer(first_array),
        pointer(read_array),
    )
    writer, reader, seen = pointer(writer_array), pointer(reader_array), pointer(seen_array)
    writer_array[:] = reader_array[:] = seen_array[:] = -1
    n, at, used = first_array.shape[0], 0, 0
    for i in range(n):
        first[i] = -1
        if at + i > edge_array.shape[0]:  # a record has at most one edge from each before it
            return _NO_EDGE
        for s in range(start[i], start[i + 1]):
            write = span[2 * s] & 1
            for c in range(span[2 * s] >> 1, span[2 * s + 1]):
                k = reader[c]
                if writer[c] >= 0 and (k < 0 or not write):
                    at = _add(edge, at, first, seen, writer[c], i)
                if write:
                    while k >= 0:
                        at = _add(edge, at, first, seen, read[2 * k], i)
                        k = read[2 * k + 1]
                    writer[c], reader[c] = i, -1
                elif k < 0 or read[2 * k] != i:
                    if used == read_array.shape[0]:
                        return _NO_READ
                    read[2 * used], read[2 * used + 1] = i, k
                    reader[c] = used
                    used += 1
    return at


@njit(cache=True)
def _successors(edge: Ints32, first: Ints32, used: int, left: Ints32) -> Any:
    """(where those of each record begin, int32 [n + 1], all of them, int32 [used]); fills left, how many each record comes behind."""
    n = first.shape[0]
    begin, after = np.zeros(n + 2, np.int32), np.empty(used, np.int32)
    for i in range(n):
        e = first[i]
        while e >= 0:
            begin[edge[e, 0] + 2] += 1
            left[i] += 1
            e = edge[e, 1]
    for i in range(n):
        begin[i + 2] += begin[i + 1]
    for i in range(n):
        e = first[i]
        while e >= 0:
            at = begin[edge[e, 0] + 1]
            after[at] = i
            begin[edge[e, 0] + 1] = at + 1
            e = edge[e, 1]
    return begin, after


@njit(cache=True, inline="always")
def _push(heap: Ints, size: int, key: int) -> int:
    """A key more in a heap of `size`, the least one first; returns its size."""
    at = size
    while at > 0 and heap[(at - 1) >> 1] > key:
        heap[at] = heap[(at - 1) >> 1]
        at = (at - 1) >> 1
    heap[at] = key
    return size + 1


@njit(cache=True, inline="always")
def _pop(heap: Ints, size: int) -> int:
    """Without its first key; returns its size."""
    size -= 1
    key, at = heap[size], 0
    while 2 * at + 1 < size:
        child = 2 * at + 1
        if child + 1 < size and heap[child + 1] < heap[child]:
            child += 1
        if heap[child] >= key:
            break
        heap[at] = heap[child]
        at = child
    heap[at] = key
    return size


@njit(cache=True)
def _ranks(begin_of: Ints32, after: Ints32, cycles: Ints, late: Ints, rank: Ints) -> None:
    """rank: int64 [n], how much shorter than the longest chain that one is which begins with a record, in steps, in the place of a heap's
    key; `begin_of`, `after`: see `_successors`."""
    n, longest = rank.shape[0], 0
    for i in range(n - 1, -1, -1):
        chain = 0
        for k in range(begin_of[i], begin_of[i + 1]):
            chain = max(chain, rank[after[k]])
        rank[i] = chain + cycles[i] + late[i]
        longest = max(longest, rank[i])
    for i in range(n):
        rank[i] = min((longest - rank[i]) >> _STEP_BITS, _MOST_STEPS) << _PLACE_BITS


@njit(cache=True, inline="always")
def _wake(now: Ints, nows: Ints, later: Ints, laters: Ints, free: Ints, e: int, rank: Ints, queue: Ints32) -> None:
    """An engine's records that may begin by now."""
    while laters[e] and later[e, 0] >> _PLACE_BITS <= free[e]:
        at = later[e, 0] & ((1 << _PLACE_BITS) - 1)
        nows[e] = _push(now[e], nows[e], rank[queue[e, at]] | at)
        laters[e] = _pop(later[e], laters[e])


@njit(cache=True, inline="always")
def _next(nows: Ints, later: Ints, laters: Ints, free: Ints, e: int) -> int:
    """The cycle in which an engine's next record can begin."""
    if nows[e]:
        return free[e]
    return later[e, 0] >> _PLACE_BITS if laters[e] else _NEVER


@njit(cache=True)
def _list(
    engine: Bytes8, cycles: Ints, late: Ints, edge: Ints32, first: Ints32, used: int, lookahead: int, overtake: bool, urgent: bool,
    order: Ints,
) -> None:  # fmt: skip
    n = engine.shape[0]
    left = np.zeros(n, np.int32)
    begin_of, after = _successors(edge, first, used, left)
    rank = np.zeros(n, np.int64)
    if urgent:
        _ranks(begin_of, after, cycles, late, rank)
    queue, length, place = np.empty((ENGINES, n), np.int32), np.zeros(ENGINES, np.int64), np.empty(n, np.int32)
    for i in range(n):
        place[i] = length[engine[i]]
        queue[engine[i], length[engine[i]]] = i
        length[engine[i]] += 1
    free, ready, begin = np.zeros(ENGINES, np.int64), np.zeros(n, np.int64), np.full(ENGINES, _NEVER, np.int64)
    # of what nobody holds back: (rank, place) of those that may begin at once, and (cycle, place) of those that may later
    now, later = np.empty((ENGINES, lookahead), np.int64), np.empty((ENGINES, lookahead), np.int64)
    nows, laters, behind = np.zeros(ENGINES, np.int64), np.zeros(ENGINES, np.int64), np.zeros(ENGINES, np.int64)
    for e in range(ENGINES):
        behind[e] = min(length[e], lookahead if overtake or e != _LOADS else 1)  # of its queue, the first place that is not looked at yet
        for w in range(behind[e]):
            if left[queue[e, w]] == 0:
                nows[e] = _push(now[e], nows[e], rank[queue[e, w]] | w)
        if nows[e]:
            begin[e] = 0
    for done in range(n):
        e = int(np.argmin(begin))
        if nows[e] == 0:
            free[e] = later[e, 0] >> _PLACE_BITS
            _wake(now, nows, later, laters, free, e, rank, queue)
        i = queue[e, now[e, 0] & ((1 << _PLACE_BITS) - 1)]
        nows[e] = _pop(now[e], nows[e])
        order[done] = i
        free[e] += cycles[i]
        if behind[e] < length[e]:
            other = queue[e, behind[e]]
            if left[other] == 0:
                laters[e] = _push(later[e], laters[e], ready[other] << _PLACE_BITS | behind[e])
            behind[e] += 1
        _wake(now, nows, later, laters, free, e, rank, queue)
        begin[e] = _next(nows, later, laters, free, e)
        over = free[e] + late[i]
        for k in range(begin_of[i], begin_of[i + 1]):
            other = after[k]
            left[other] -= 1
            ready[other] = max(ready[other], over)
            o = engine[other]
            if left[other] == 0 and place[other] < behind[o]:
                if ready[other] <= free[o]:
                    nows[o] = _push(now[o], nows[o], rank[other] | place[other])
                else:
                    laters[o] = _push(later[o], laters[o], ready[other] << _PLACE_BITS | place[other])
                begin[o] = _next(nows, later, laters, free, o)
