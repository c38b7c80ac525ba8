"""A pass that comes to where the pass before it was: what that found is true from there on, some cycles later.

Programs that are scheduled one after the other differ in a few parts; behind these they have the same parts, of which instructions and
edges have the same numbers (`numbers`).  The pass before left borders.  Where the new one comes to the part behind one of them, and its
state is the same but for a shift of the clock and for what nobody can see any more, what was found of the parts behind it holds.

Nobody sees an instruction that all have waited for.  *All* are the engines that the parts ahead use: one that idles there, as VECTOR does
through most of a network, knows of next to nothing, and what it would wait for is looked at where it works again.  So what was found is
taken over from border to border, as long as the same engines work; from there the pass goes on, with the state that it would have come
to.  Of engines that worked that is the state of the pass before, of those that idled it is what it was, and what parts did to memories is
done again, which takes little.

Why that is exact.  An instruction of a part ahead looks at its queue's clock, at what it may have to wait for, at the clocks and ends of
these, at counts that could be full, and at the cycle when its queue is free.  What it may have to wait for is met in memories, or is the
last one of a queue.  If its own queue knows of it, it is left out whatever it is; else all of these are the same, or nothing is taken
over: numbers as they are, of instructions that both programs have and whose clocks were found equal; cycles with one shift.  Counts are
compared with clocks: entries that lie before everything they could be compared with need not be equal.  Clocks only grow, so that all of
this stays so.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from compiler.schedule.hazards import CoreStates, EngineDrift, Queues, RecordRows, queues_in, queues_of
from compiler.schedule.incremental_checkpoint import NEVER, PAST, Borders
from compiler.schedule.local_dependences import ENGINES, WRITER, WRITER_ENGINE
from compiler.schedule.segment_accesses import Ints


@njit(cache=True)
def _of_border(b: Borders, k: int, s: CoreStates) -> Queues:
    return queues_in(b.numbers[k, 0], b.ring[k, 0], s.ports, s.scratch)


@njit(cache=True)
def _settled(x: int, engine: int, used: int, tail: int, shift: int, seen: EngineDrift) -> bool:
    """Whether an instruction, of those that both programs have behind what differs, has the same clock and ends `shift` cycles later."""
    return bool(used >> engine & 1) and x >= tail and x > seen.known[engine] and x >= seen.since[engine] and seen.shift[engine] == shift


@njit(cache=True)
def _memories_meet(s: CoreStates, b: Borders, k: int, base: Ints, used: int, tail: int, shift: int, seen: EngineDrift, low: Ints) -> bool:
    """Whether what was last done to memories on chip is the same.  base: int64 [6], of every engine what all know of.

    low: int64 [6], lowered to the first of each engine that somebody may wait for.
    """
    row, pieces, pieces_then, past = s.at[0], s.pieces[0], b.pieces[k, 0], b.at[k, PAST]
    bound, last = s.bound[row], s.last[row]
    bound_then, last_then = b.past[past : past + pieces_then + 1], b.past[past + pieces_then + 1 : past + 1 + 9 * pieces_then]
    p = o = 0
    at: Any = np.int64(NEVER)
    if pieces:
        at = np.int64(bound[0])
    if pieces_then:
        at = min(at, np.int64(bound_then[0]))
    while p < pieces or o < pieces_then:
        here, there = p < pieces and bound[p] <= at, o < pieces_then and bound_then[o] <= at
        for e in range(ENGINES + 1):
            x: Any = np.int64(last[p, e]) if here else np.int64(-1)
            y: Any = np.int64(last_then[8 * o + e]) if there else np.int64(-1)
            mine: Any = np.int64(e)
            its: Any = np.int64(e)
            if e == WRITER:
                mine = np.int64(last[p, WRITER_ENGINE]) if x >= 0 else np.int64(0)
                its = np.int64(last_then[8 * o + WRITER_ENGINE]) if y >= 0 else np.int64(0)
            if x > base[mine] or y > base[its]:
                if x != y or mine != its or not _settled(x, mine, used, tail, shift, seen):
                    return False
                low[mine] = min(low[mine], x)
        at = np.int64(NEVER)  # where one of both ends or begins
        if p < pieces:
            at = np.int64(bound[p + 1]) if here else np.int64(bound[p])
        if o < pieces_then:
            at = min(at, np.int64(bound_then[o + 1]) if there else np.int64(bound_then[o]))
        if p < pieces and bound[p + 1] <= at:
            p += 1
        if o < pieces_then and bound_then[o + 1] <= at:
            o += 1
    return True


@njit(cache=True)
def _counts_meet(q: Queues, then: Queues, its: int, me: int, least: int, middle: int, tail: int) -> bool:
    """Whether the last waits of queue `me` for queue `its` are the same, apart from those up to `least`."""
    limit = q.ring.shape[2]
    for j in range(limit):
        x = np.int64(q.ring[its, me, (q.ring_at[its, me] + j) % limit])
        y = np.int64(then.ring[its, me, (then.ring_at[its, me] + j) % limit])
        if (x != y or middle <= x < tail) and (x > least or y > least):
            return False
    return True


@njit(cache=True)
def converges(
    s: CoreStates, b: Borders, k: int, used: int, moving: int, middle: int, tail: int, latency: int, r: RecordRows, seen: EngineDrift
) -> int:
    """By how many cycles a pass is later than the one before was at border `k`, or `NEVER` where it is not where that was.

    used: engines of the parts ahead, a bit for each; moving: of both programs, those with transfers.  middle .. tail: instructions that are
    others.
    """
    q, then = queues_of(s, 0), _of_border(b, k, s)
    shift: Any = np.int64(NEVER)
    for e in range(ENGINES):
        if q.latest[e] != then.latest[e] or middle <= q.latest[e] < tail or q.full[e] != then.full[e]:
            return NEVER
        if used >> e & 1:
            if shift == NEVER:
                shift = seen.shift[e]
            if not _settled(q.latest[e], e, used, tail, shift, seen):
                return NEVER
            if q.free[e] != then.free[e] + shift or q.key[e] != then.key[e] + shift or min(q.free[e], then.free[e]) < latency:
                return NEVER
    base, low = np.full(ENGINES, NEVER), q.latest.copy()
    for me in range(ENGINES):
        if used >> me & 1:
            for e in range(ENGINES):
                clock = q.clock[me, e]
                if clock != then.clock[me, e] or middle <= clock < tail:
                    return NEVER
                base[e] = min(base[e], clock)
    for e in range(ENGINES):
        if moving >> e & 1 and base[e] < tail:  # what others did to DDR, everybody knows of
            return NEVER
    if shift == NEVER or not _memories_meet(s, b, k, base, used, tail, shift, seen, low):
        return NEVER
    for its in range(ENGINES):
        for me in range(ENGINES):
            if used >> its & 1:
                least = min(q.clock[its, me], np.int64(r.known[low[its], me]))
                if used >> me & 1:
                    if not _counts_meet(q, then, its, me, least, middle, tail):
                        return NEVER
                elif max(q.oldest[its, me], then.oldest[its, me]) > min(q.clock[its, me], then.clock[its, me]):
                    return NEVER
    return shift


@njit(cache=True)
def go_on_as(s: CoreStates, b: Borders, k: int, used: int, shift: int) -> None:
    """The state at border `k`, apart from what was done to memories, of a pass that met the one before at an earlier one."""
    q, then = queues_of(s, 0), _of_border(b, k, s)
    for me in range(ENGINES):
        if used >> me & 1:
            q.latest[me], q.full[me] = then.latest[me], then.full[me]
            q.free[me], q.key[me] = then.free[me] + shift, then.key[me] + shift
            q.clock[me] = then.clock[me]
            for its in range(ENGINES):
                if used >> its & 1:
                    q.ring[its, me] = then.ring[its, me]
                    q.ring_at[its, me], q.oldest[its, me] = then.ring_at[its, me], then.oldest[its, me]


@njit(cache=True)
def follow(s: CoreStates, b: Borders, k: int, used: int, r: RecordRows) -> None:
    """What was behind border `k` comes behind what is there now."""
    q = queues_of(s, 0)
    for e in range(ENGINES):
        if used >> e & 1:
            r.after[q.latest[e]] = b.following[k, e]


@njit(cache=True)
def adopt(first: int, count: int, edge: int, edges: int, tail: int, shift: int, r: RecordRows) -> None:
    """Instructions of a part are what they were, `shift` cycles later, and wait again for those before `tail`: edges `edge` .. `edges`."""
    for i in range(first, first + count):
        r.end[i] += shift
        r.key[i] += shift
    for k in range(edge, edges):
        i = r.edge_from[k]
        if i < tail:
            r.set_next[k] = -1
            if r.set_head[i] < 0:
                r.set_head[i] = k
            else:
                r.set_next[r.set_tail[i]] = k
            r.set_tail[i] = k
