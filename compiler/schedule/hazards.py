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

ENGINES = 6  # all but SCALAR


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
    """State of a pass over one core, per queue or pair of queues.  Instructions go by epoch + number, so that older marks mean nothing."""

    table: Ints32  # [granules, 8]: last writer, then the last reader on every engine since
    clock: Ints  # [6, 6]
    latest: Ints  # [6] last instruction of every queue
    ring: Ints32  # [6, 6, limit] the last waits from a queue in another
    ring_at: Ints  # [6, 6]
    oldest: Ints  # [6, 6] ring at ring_at
    free: Ints  # [6] cycle in which the queue is free
    key: Ints  # [6] largest key so far
    first: Ints  # [6] first instruction of every queue, or -1


class Cells(NamedTuple):
    """Scratch per cell of the part at hand."""

    now: Ints32  # [cells, 8]: as `Queues.table`, by the records of the part
    before: Ints32  # [cells, 16]: the last writer on every engine before the part, and from 8 on the last one who touched it


class Remote(NamedTuple):
    """Edges that come from other cores to instructions of the part, in the order of these (see `remote`)."""

    source: Ints32
    target: Ints32
    edges: int
    latency: int  # cycles that a flag takes to another core


@njit(cache=True)
def enter(bound: Ints32, touched: Bytes8, epoch: int, engine: Bytes8, table: Ints32, cell: Ints32, entry: Ints32) -> None:
    """Cells as the part finds them.  epoch: of the program, or -1 where nothing ran before on this core."""
    for c in range(touched.shape[0]):
        if not touched[c]:
            continue
        for e in range(8):
            cell[c, e] = -1
        for e in range(16):
            entry[c, e] = -1
        if epoch < 0:
            continue
        for g in range(bound[c], bound[c + 1]):
            w = table[g, 0]
            if w >= epoch:
                e = int(engine[w - epoch])
                entry[c, e] = max(entry[c, e], w)
            for e in range(ENGINES):
                entry[c, 8 + e] = max(entry[c, 8 + e], table[g, 1 + e])
        for e in range(ENGINES):
            entry[c, 8 + e] = max(entry[c, 8 + e], entry[c, e])


@njit(cache=True)
def leave(bound: Ints32, touched: Bytes8, table: Ints32, cell: Ints32) -> None:
    """What the part did to its cells, told to their granules."""
    for c in range(touched.shape[0]):
        if not touched[c]:
            continue
        for g in range(bound[c], bound[c + 1]):
            if cell[c, 0] >= 0:
                for e in range(8):
                    table[g, e] = cell[c, e]
            else:
                for e in range(1, 1 + ENGINES):
                    table[g, e] = max(table[g, e], cell[c, e])


@njit(cache=True)
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
    span: Ints32,
    start: Ints32,
    transfer: Bytes8,
    cycles: Ints,
    latency: int,
    first: int,
    epoch: int,
    q: Queues,
    cells: Cells,
    remote: Remote,
    r: Rows,
) -> None:
    """Hazards and times of one part's records, which are instructions `first` .. of the program; latency: of a DDR transfer."""
    clock, latest, ring, ring_at, oldest = q.clock, q.latest, q.ring, q.ring_at, q.oldest
    free, last_key, queue_first = q.free, q.key, q.first
    cell, entry = cells.now, cells.before
    engine, known, after, end, key, set_head = r.engine, r.known, r.after, r.end, r.key, r.set_head
    limit = ring.shape[2]
    need = np.empty(ENGINES, np.int64)
    edge = r.edge_start[first]
    from_afar = 0
    for j in range(part_engine.shape[0]):
        i = first + j
        me: Any = np.int64(part_engine[j])
        engine[i] = me
        name = epoch + i
        for e in range(ENGINES):
            need[e] = -1
        n0 = n1 = n2 = n3 = n4 = n5 = np.int32(-1)
        for s in range(start[j], start[j + 1]):
            a = span[s, 0]
            write = a & 1
            seen = -1
            for c in range(a >> 1, span[s, 1]):
                w = cell[c, 0]
                if w < 0:
                    at = 8 if write else 0
                    n0, n1, n2 = max(n0, entry[c, at]), max(n1, entry[c, at + 1]), max(n2, entry[c, at + 2])
                    n3, n4, n5 = max(n3, entry[c, at + 3]), max(n4, entry[c, at + 4]), max(n5, entry[c, at + 5])
                elif w != seen:
                    seen = w
                    e = int(engine[w - epoch])
                    need[e] = max(need[e], w)
                if write:
                    n0, n1, n2 = max(n0, cell[c, 1]), max(n1, cell[c, 2]), max(n2, cell[c, 3])
                    n3, n4, n5 = max(n3, cell[c, 4]), max(n4, cell[c, 5]), max(n5, cell[c, 6])
                    # whoever comes later waits for this write, which waits for them
                    cell[c, 1] = cell[c, 2] = cell[c, 3] = cell[c, 4] = cell[c, 5] = cell[c, 6] = -1
                    cell[c, 0] = name
                else:
                    cell[c, 1 + me] = name
        need[0], need[1], need[2] = max(need[0], n0), max(need[1], n1), max(need[2], n2)
        need[3], need[4], need[5] = max(need[3], n3), max(need[4], n4), max(need[5], n5)
        for e in range(ENGINES):  # `limit` of my SETs may still stand with e: no more until e has been waited for
            if oldest[me, e] > clock[me, e]:
                need[e] = latest[e]
        need[me] = -1
        ready = np.int64(0)
        set_head[i] = -1
        while True:
            best = -1
            for e in range(ENGINES):
                if need[e] > clock[me, e] and need[e] > best:
                    best = need[e]
            if best < 0:
                break
            e = int(engine[best - epoch])
            at = ring_at[e, me]
            early = oldest[e, me] > known[best - epoch, me]
            ring[e, me, at] = name
            at += 1
            if at == limit:
                at = 0
            ring_at[e, me] = at
            oldest[e, me] = ring[e, me, at]
            if early or oldest[e, me] > clock[e, me]:
                best = latest[e]
            source = best - epoch
            _connect(r, edge, source, i)
            edge += 1
            ready = max(ready, end[source])
            clock[me, e] = best
            for other in range(ENGINES):
                if known[source, other] > clock[me, other]:
                    clock[me, other] = known[source, other]
        while from_afar < remote.edges and remote.target[from_afar] == i:
            source = remote.source[from_afar]
            _connect(r, edge, source, i)
            edge += 1
            ready = max(ready, end[source] + remote.latency)
            from_afar += 1
        r.edge_start[i + 1] = edge
        for e in range(ENGINES):
            known[i, e] = clock[me, e]
        clock[me, me] = name
        if latest[me] >= epoch:
            after[latest[me] - epoch] = i
        else:
            queue_first[me] = i
        after[i] = -1
        latest[me] = name
        # the longest path, with every transfer alone on the bus; key: when the instruction is wanted at its engine
        if transfer[j]:
            begin = max(free[me], ready + latency)
            # wanted when its predecessor's data starts to flow, not before: a queue full of loads would stall the scalar unit
            wanted = max(ready, begin - latency)
        else:
            begin = max(free[me], ready)
            wanted = begin
        end[i] = begin + cycles[j]
        free[me] = end[i]
        last_key[me] = max(last_key[me], wanted)
        key[i] = last_key[me]
