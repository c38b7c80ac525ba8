"""Where the time of a run goes, end to end: the longest chain of work and waits, each of which held up the next one.

An engine that works half of the time may be what all others wait for in turn, and one that is always busy may hold up nobody.  The chain
goes back from the work that ends last: while an engine worked, to the start of that; where it waited for a flag, to the work of the engine
that set it; where it waited for DDR's first data or for the scalar unit, over that time.  So its links fill the run without gap or
overlap, and making one of them shorter makes the run shorter, until another chain is the longest.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from simulator.npu.machine import Engine
from simulator.timeline import Cause, Timeline
from simulator.timing_kernel import ENGINES, Ints

WORK = -1  # instead of a `Cause`
WAITS = {
    Cause.FLAG: "result or flag on its way",
    Cause.LATENCY: "waits for DDR latency",
    Cause.ISSUE: "waits for issue",
    Cause.QUEUE: "waits for room in a queue",
}


class Chain(NamedTuple):
    """int64 [links] each, in order of time; a link ends where the next one begins, the first begins at 0, the last ends with the run.

    row: what worked, or what waited; -1 where nothing was left but what took effect later.  engine: whose queue it is in.  cause: WORK, or
    a `Cause`: FLAG is the way of a flag from one core to another, or results that come out of a pipelined array.
    """

    row: Ints
    engine: Ints
    cause: Ints
    start: Ints
    end: Ints


class Spent(NamedTuple):
    """Cycles of the chain's links of one operator (-1: of none), engine and cause."""

    operator: int
    engine: Engine
    cause: int
    cycles: int


def spent(t: Timeline, chain: Chain) -> list[Spent]:
    """The most first; they add up to the run."""
    operator = np.where(chain.row >= 0, t.operator[chain.row], -1) if len(t.code) else np.full(len(chain.row), -1)
    kinds, which = np.unique(np.column_stack([operator, chain.engine, chain.cause]), axis=0, return_inverse=True)
    cycles = np.bincount(which.reshape(-1), chain.end - chain.start, len(kinds)).astype(np.int64)
    order = np.argsort(-cycles, kind="stable")
    rows = zip(kinds[order].tolist(), cycles[order].tolist(), strict=True)
    return [Spent(operator, Engine(engine), cause, count) for (operator, engine, cause), count in rows]


class _Queue(NamedTuple):
    """What an engine did, in order of time; source: row behind which the SET stood that a stall waited for, -1 if none."""

    start: Ints
    end: Ints
    row: Ints
    cause: Ints
    source: Ints


def critical_chain(t: Timeline) -> Chain:
    """Of several programs, one behind the other: each begins when nothing is left of the one before."""
    runs = [(part.run, part.begin, part.rows) for part in t.parts] or [(t, 0, np.arange(len(t.code)))]
    columns = []
    for run, begin, rows in runs:
        links = np.array(_links(run), np.int64).reshape(-1, 5)[::-1]
        columns.append(np.column_stack([np.append(rows, -1)[links[:, 0]], links[:, 1:3], links[:, 3:] + begin]))
    return Chain(*np.ascontiguousarray(np.concatenate(columns).T))


def _links(t: Timeline) -> list[tuple[int, int, int, int, int]]:
    """Links as (row, engine, cause, start, end), the last one first."""
    work = np.flatnonzero(t.work)
    if not len(work):
        return [(-1, int(Engine.SCALAR), int(Cause.ISSUE), 0, t.cycles)] if t.cycles else []
    queues, between = _queues(t), t.machine.flags.between_cores_cycles
    links: list[tuple[int, int, int, int, int]] = []
    now, row = t.cycles, int(work[np.argmax(t.end[work])])
    queue, handed_on, hops = int(t.core[row]) * ENGINES + int(t.engine[row]), True, 0
    while now > 0:
        q, engine = queues[queue], queue % ENGINES
        i = int(np.searchsorted(q.start, now, "left")) - 1  # the last that began before
        if i >= 0 and q.end[i] >= now and q.source[i] >= 0 and hops <= len(queues):
            source = int(q.source[i])
            crossed = min(between, now - int(q.start[i])) if t.core[source] != queue // ENGINES else 0
            if crossed:
                links.append((int(q.row[i]), engine, int(Cause.FLAG), now - crossed, now))
            now, queue, handed_on, hops = now - crossed, int(t.core[source]) * ENGINES + int(t.engine[source]), True, hops + 1
            continue
        if i >= 0 and q.end[i] >= now:
            row, cause, start = int(q.row[i]), int(q.cause[i]), int(q.start[i])
        else:  # nothing to do until now: results on their way out of an array, or what hands them on was not handed out before
            row, start = (int(q.row[i]), int(q.end[i])) if i >= 0 else (-1, 0)
            cause = int(Cause.FLAG if handed_on else Cause.ISSUE)
        links.append((row, engine, cause, start, now))
        now, handed_on, hops = start, False, 0
    return links


def _queues(t: Timeline) -> list[_Queue]:
    s = t.stalls
    found = []
    for queue, rows in enumerate(t.queues):
        worked = rows[t.work[rows] & (t.end[rows] > t.start[rows])]
        stood = np.flatnonzero((s.core * ENGINES + s.engine == queue) & (s.end > s.start))
        none = np.full(len(worked), -1)
        source = np.where(s.cause[stood] == Cause.FLAG, s.source_row[stood], -1)
        columns = (
            np.concatenate((t.start[worked], s.start[stood])),
            np.concatenate((t.end[worked], s.end[stood])),
            np.concatenate((worked, s.row[stood])),
            np.concatenate((np.full(len(worked), WORK), s.cause[stood])),
            np.concatenate((none, source)),
        )
        order = np.lexsort((columns[1], columns[0]))
        found.append(_Queue(*(column[order].astype(np.int64) for column in columns)))
    return found
