"""Inside a core: which instructions must have completed before each one, and when it could start.

Hazards.  For each instruction, the last conflicting access of every other engine of its core (by granules of its memories, an
over-estimate) must have completed.  Vector clocks drop what is already implied, so that waits on one pair of engines come in the order of
their sets and one flag id per pair suffices (a counting semaphore).  Its count is limited: the SET that could exceed the limit is moved to
the last instruction of its queue so far, which covers all later waits, and the next instruction of that queue waits for the consumer.

Times.  The longest path through queues and flags, every transfer alone on the bus; an instruction's key is when it is wanted at its engine.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit

from compiler.schedule.footprint import Bytes8, Ints, Ints32
from compiler.schedule.history import Past, enter, leave
from compiler.schedule.inside import ENGINES, Inside


class Rows(NamedTuple):
    """Scratch per instruction and per edge of a program.

    core, engine: uint8 [n].  known: int32 [n, 6], vector clock.  after: next instruction of the same queue, or -1.  end, key: cycles.
    Edge k, a SET and its WAIT, leads from instruction edge_from[k] to edge_to[k]; edge_start: int32 [n + 1], the edges to each.
    set_head, set_tail: int32 [n], set_next: int32 [edges]: the edges from each instruction as a list, or -1.
    """

    core: Bytes8
    engine: Bytes8
    known: Ints32
    after: Ints32
    end: Ints
    key: Ints
    place: Ints32
    edge_start: Ints32
    edge_from: Ints32
    edge_to: Ints32
    set_head: Ints32
    set_tail: Ints32
    set_next: Ints32


class Queues(NamedTuple):
    """State of a pass over one core, per queue or pair of queues; -1: nobody."""

    clock: Ints  # [6, 6]
    latest: Ints  # [6] last instruction of every queue
    ring: Ints32  # [6, 6, limit] the last waits from a queue in another
    ring_at: Ints  # [6, 6]
    oldest: Ints  # [6, 6] ring at ring_at
    free: Ints  # [6] cycle in which the queue is free
    key: Ints  # [6] largest key so far
    first: Ints  # [6] first instruction of every queue, or -1


class Remote(NamedTuple):
    """Edges that come from other cores to instructions of the part, in the order of these (see `remote`)."""

    source: Ints32
    target: Ints32
    edges: int
    latency: int  # cycles that a flag takes to another core


@njit(cache=True, inline="always")
def _connect(r: Rows, edge: int, source: int, target: int) -> None:
    r.edge_from[edge] = source
    r.edge_to[edge] = target
    if r.set_head[source] < 0:
        r.set_head[source] = edge
    else:
        r.set_next[r.set_tail[source]] = edge
    r.set_tail[source] = edge
    r.set_next[edge] = -1


@njit(cache=True)
def scan(
    part_engine: Bytes8,
    inside: Inside,
    transfer: Bytes8,
    cycles: Ints,
    latency: int,
    first: int,
    q: Queues,
    cell: Ints32,
    remote: Remote,
    r: Rows,
) -> None:
    """Hazards and times of one part's records, which are instructions `first` .. of the program; latency: of a DDR transfer.

    cell: int32 [cells, 16], what the part finds (see `history`).
    """
    clock, latest, ring, ring_at, oldest = q.clock, q.latest, q.ring, q.ring_at, q.oldest
    free, last_key, queue_first = q.free, q.key, q.first
    engine, known, after, end, key, set_head = r.engine, r.known, r.after, r.end, r.key, r.set_head
    outer, outers = inside.outer, inside.outer.shape[0]
    limit = ring.shape[2]
    need, todo = np.empty(ENGINES, np.int64), np.empty(ENGINES, np.int64)
    edge = r.edge_start[first]
    from_afar = met = 0
    for j in range(part_engine.shape[0]):
        i = first + j
        me: Any = np.int64(part_engine[j])
        engine[i] = me
        count, begin, stop = 0, inside.start[j], inside.start[j + 1]
        full = False  # `limit` of my SETs may still stand with somebody: no more until that one has been waited for
        for e in range(ENGINES):
            full |= oldest[me, e] > clock[me, e]
        if full or (met < outers and outer[met, 0] == j):
            need[:] = -1
            for k in range(begin, stop):
                need[np.int64(part_engine[inside.need[k]])] = first + inside.need[k]
            while met < outers and outer[met, 0] == j:
                a = outer[met, 1]
                for c in range(a >> 1, outer[met, 2]):
                    for e in range(ENGINES):
                        need[e] = max(need[e], np.int64(cell[c, e]))
                    if a & 1:
                        for e in range(ENGINES):
                            need[e] = max(need[e], np.int64(cell[c, 8 + e]))
                met += 1
            for e in range(ENGINES):
                if oldest[me, e] > clock[me, e]:
                    need[e] = latest[e]
            need[me] = -1
            for e in range(ENGINES):
                if need[e] > clock[me, e]:
                    p = count
                    while p > 0 and todo[p - 1] < need[e]:
                        todo[p] = todo[p - 1]
                        p -= 1
                    todo[p] = need[e]
                    count += 1
        else:
            for k in range(begin, stop):
                todo[count] = first + inside.need[k]
                count += 1
        ready = np.int64(0)
        set_head[i] = -1
        for k in range(count):  # the latest first: it may imply others
            best = todo[k]
            its: Any = np.int64(engine[best])
            if best <= clock[me, its]:
                continue
            at = ring_at[its, me]
            early = oldest[its, me] > known[best, me]
            ring[its, me, at] = i
            at += 1
            if at == limit:
                at = 0
            ring_at[its, me] = at
            oldest[its, me] = ring[its, me, at]
            if early or oldest[its, me] > clock[its, me]:
                best = latest[its]
            _connect(r, edge, best, i)
            edge += 1
            ready = max(ready, end[best])
            clock[me, its] = best
            for other in range(ENGINES):
                clock[me, other] = max(clock[me, other], known[best, other])
        while from_afar < remote.edges and remote.target[from_afar] == i:
            source = remote.source[from_afar]
            _connect(r, edge, source, i)
            edge += 1
            ready = max(ready, end[source] + remote.latency)
            from_afar += 1
        r.edge_start[i + 1] = edge
        for e in range(ENGINES):
            known[i, e] = clock[me, e]
        clock[me, me] = i
        if latest[me] >= 0:
            after[latest[me]] = i
        else:
            queue_first[me] = i
        after[i] = -1
        latest[me] = i
        # the longest path, with every transfer alone on the bus; key: when the instruction is wanted at its engine
        if transfer[j]:
            begins = max(free[me], ready + latency)
            # wanted when its predecessor's data starts to flow, not before: a queue full of loads would stall the scalar unit
            wanted = max(ready, begins - latency)
        else:
            begins = max(free[me], ready)
            wanted = begins
        end[i] = begins + cycles[j]
        free[me] = end[i]
        last_key[me] = max(last_key[me], wanted)
        key[i] = last_key[me]


@njit(cache=True)
def advance(
    bound: Ints32,
    touched: Bytes8,
    part_engine: Bytes8,
    inside: Inside,
    transfer: Bytes8,
    cycles: Ints,
    latency: int,
    core: int,
    first: int,
    q: Queues,
    past: Past,
    pieces: int,
    out: Past,
    cell: Ints32,
    remote: Remote,
    r: Rows,
) -> int:
    """`scan` of one part on a core, from its past to the next one, into `out`; returns how many pieces that has."""
    enter(bound, touched, past, pieces, cell)
    r.core[first : first + part_engine.shape[0]] = core
    scan(part_engine, inside, transfer, cycles, latency, first, q, cell, remote, r)
    return leave(bound, touched, inside.last, first, past, pieces, out)
