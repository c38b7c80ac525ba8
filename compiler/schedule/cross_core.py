"""Between cores: which moves of other cores a move waits for.

Cores share data only through DDR and the memory on the chip that they share.  A program writes every block of DDR at most once: every
storage has an address of its own (`target.storage`), and every row of it is stored by one block of one segment.  So all that a load from
DDR ever waits for is a store of another core, MTE3 -> MTE2, and two cores that write into one granule are in nobody's way: the table below
keeps the last write of *each* core into every granule.

What lies in the shared memory is written once as well, and goes by its place in DDR: tensors by MTE3, weights by MTE2.  But there one
resident comes where others were (`schedule.shared_memory_allocator`): whoever writes it waits for the last moves that touched these, as
`before` says.

A queue knows what its earlier instructions waited for, so waits on a pair of queues come in the order of their SETs, and one flag id per
pair suffices.  Its count: after `limit` SETs towards a queue, the last of which stands behind the last move so far and so covers all
later waits, the next move waits for that queue's last one so far.  By then every one of those SETs has been taken: the count begins anew.
Such an answer counts as any other SET.  Where both of two queues' counts towards each other are full, each has waited for the other's last
move already.  A count begins anew as well whenever the other side is heard of behind its last wait: at a turn.

Later waits may still be for moves that stand before a turn, and their SETs come before what was heard there.  They count twice: with those
before the turn and with those behind it.  Where there is no room before it, the turn itself is waited for.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from compiler.schedule.segment_accesses import Bytes8, Ints, Ints32
from simulator.npu.parts import Engine

_MTE2, _MTE3 = int(Engine.MTE2), int(Engine.MTE3)
_QUEUES = 2  # of a core that move: those of MTE3 come first, then those of MTE2


class CrossCore(NamedTuple):
    """What is known between the queues of a program's cores; -1: nobody.  Queue q is MTE3 of core q, or MTE2 of core q - cores.

    Without a shared memory only MTE3 writes what others read, and `before` has no rows.
    """

    written: Ints32  # [granules, cores, or queues]: last write of every queue
    before: Ints32  # [granules, queues]: last move of every queue that touched what was there before
    seen: Ints  # [queues, queues]: the last move of the second that the first has waited for
    waited: Ints  # [queues, queues]: the last move of the first that waited for the second
    standing: Ints  # [queues, queues]: SETs of the first towards the second that it does not know to be taken behind its last turn
    turn: Ints  # [queues, queues]: the move of the first at that turn
    early: Ints  # [queues, queues]: SETs of the first towards the second before that turn, not known to be taken at the one before
    full: Ints  # [queues] how many of these are at the limit
    last: Ints  # [queues] last move


def new_cross_core(granules: int, cores: int, shared: bool) -> CrossCore:
    """Nothing moved."""
    queues = _QUEUES * cores
    pairs = (queues, queues)
    return CrossCore(
        np.full((granules, queues if shared else cores), -1, np.int32),
        np.full((granules if shared else 0, queues), -1, np.int32),
        np.full(pairs, -1, np.int64),
        np.full(pairs, -1, np.int64),
        np.zeros(pairs, np.int64),
        np.full(pairs, -1, np.int64),
        np.zeros(pairs, np.int64),
        np.zeros(queues, np.int64),
        np.full(queues, -1, np.int64),
    )


@njit(cache=True)
def forget(c: CrossCore) -> None:
    """A new program: nothing moved."""
    c.written[:] = -1
    c.before[:] = -1
    c.seen[:] = -1
    c.waited[:] = -1
    c.standing[:] = 0
    c.turn[:] = -1
    c.early[:] = 0
    c.full[:] = 0
    c.last[:] = -1


@njit(cache=True)
def _wait(c: CrossCore, me: int, other: int, move: int, name: int, limit: int) -> int:
    """Queue `me` waits with move `name` for a move of another one, or for a later one; returns which."""
    if c.standing[other, me] == limit - 1:
        move = c.last[other]
        c.full[other] += 1
    elif move < c.turn[other, me]:
        if c.early[other, me] == limit:
            move = c.turn[other, me]
        else:
            c.early[other, me] += 1
    c.standing[other, me] += 1
    c.seen[me, other] = move
    c.waited[me, other] = name
    if move >= c.waited[other, me] and c.standing[me, other] > 0:  # all that it waited for of mine has come before
        if c.standing[me, other] == limit:
            c.full[me] -= 1
        behind = c.seen[other, me] >= c.turn[me, other]  # no SET comes before the last turn any more
        c.early[me, other] = c.standing[me, other] if behind else max(c.early[me, other], c.standing[me, other])
        c.standing[me, other], c.turn[me, other] = 0, name
    return move


@njit(cache=True)
def waits(
    engine: Bytes8,
    span: Ints32,
    start: Ints32,
    bound: Ints32,
    core: int,
    first: int,
    limit: int,
    c: CrossCore,
    source: Ints32,
    target: Ints32,
) -> int:
    """Fills source and target with the edges from other cores to a part's instructions (`first` ..); returns how many."""
    granules, writers = c.written.shape
    queues = c.last.shape[0]
    cores = queues // _QUEUES
    need = np.empty(queues, np.int64)
    edges = 0
    for j in range(engine.shape[0]):
        e = engine[j]
        if e != _MTE3 and e != _MTE2:
            continue
        name = first + j
        me = core if e == _MTE3 else cores + core
        if c.full[me]:
            for other in range(queues):
                if c.standing[me, other] == limit:
                    if c.seen[me, other] < c.last[other]:
                        source[edges] = _wait(c, me, other, c.last[other], name, limit)
                        target[edges] = name
                        edges += 1
                    if c.standing[me, other] == limit:
                        c.full[me] -= 1
                        c.standing[me, other] = 0
        if e == _MTE2 or c.before.shape[0]:
            need[:] = -1
            for k in range(start[j], start[j + 1]):
                a = span[k, 0]
                if bound[a >> 1] >= granules:  # DDR comes first
                    continue
                if a & 1 == 0:
                    for g in range(bound[a >> 1], bound[span[k, 1]]):
                        for other in range(writers):
                            need[other] = max(need[other], c.written[g, other])
                elif c.before.shape[0]:
                    for g in range(bound[a >> 1], bound[span[k, 1]]):
                        for other in range(queues):
                            need[other] = max(need[other], c.before[g, other])
            for other in range(queues):
                if other % cores != core and need[other] > c.seen[me, other]:
                    source[edges] = _wait(c, me, other, need[other], name, limit)
                    target[edges] = name
                    edges += 1
        c.last[me] = name
    for j in range(engine.shape[0]):  # nobody on this core waits for itself here, so its writes may be told at the end
        if engine[j] != _MTE3 and (engine[j] != _MTE2 or writers < queues):
            continue
        me = core if engine[j] == _MTE3 else cores + core
        for k in range(start[j], start[j + 1]):
            a = span[k, 0]
            if a & 1 == 0 or bound[a >> 1] >= granules:
                continue
            for g in range(bound[a >> 1], bound[span[k, 1]]):
                c.written[g, me] = first + j
    return edges
