"""Waits between cores: which transfers of other cores a transfer waits for.

Cores share data only through DDR and the memory on the chip that they share.  A program writes every block of DDR at most once: every
storage has an address of its own (`target.storage`), and every row of it is stored by one block of one segment.  So a load from DDR waits
only for a store of another core, MTE3 -> MTE2.  Two cores that write into one granule need no wait: the table below keeps the last write
of *each* core into every granule.

Data in the shared memory is also written once, and named by its DDR address: tensors are written by MTE3, weights by MTE2.  But a resident
may reuse blocks of earlier residents (`schedule.shared_memory_allocator`).  Its writer waits for the last transfers that touched those
blocks; `before` has them.

A queue knows which instructions its earlier waits covered.  So waits on a pair of queues come in the order of their SETs, and one flag id
per pair suffices.  The count of a flag is limited.  After `limit` SETs towards a queue, the last SET stands behind the last transfer so
far and covers all later waits; the next transfer waits for the last instruction so far of the other queue.  By then all of those SETs have
been taken, and the count begins at zero.  Such an answer counts as a SET too.  If two queues have full counts towards each other, each has
waited for the other's last transfer already.  A count also restarts at a *turn*: a wait for the other side behind its last own wait.

Later waits may still be for transfers before a turn, and their SETs come before the turn.  They count twice: with the SETs before the turn
and with those behind it.  If there is no room before the turn, the wait is for the turn itself.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from compiler.schedule.segment_accesses import Bytes8, Ints, Ints32
from simulator.npu.parts import Engine

_MTE2, _MTE3 = int(Engine.MTE2), int(Engine.MTE3)
_QUEUES = 2  # DMA queues of a core: MTE3, then MTE2


class CrossCore(NamedTuple):
    """State of waits between the queues of a program's cores; -1: none.  Queue q is MTE3 of core q, or MTE2 of core q - cores.

    Without a shared memory only MTE3 writes data that others read, and `before` has no rows.
    """

    written: Ints32  # [granules, cores, or queues]: last write of every queue
    any_written: Bytes8  # [granules]: whether there is one
    before: Ints32  # [granules, queues]: last transfer of every queue that touched the earlier residents of these blocks
    seen: Ints  # [queues, queues]: last transfer of the second queue that the first has waited for
    waited: Ints  # [queues, queues]: last transfer of the first queue that waited for the second
    standing: Ints  # [queues, queues]: SETs of the first queue towards the second since its last turn, maybe not taken yet
    turn: Ints  # [queues, queues]: transfer of the first queue at that turn
    early: Ints  # [queues, queues]: SETs of the first queue before that turn, maybe not taken at the turn before
    full: Ints  # [queues]: number of these counts at the limit
    last: Ints  # [queues]: last transfer


def new_cross_core(granules: int, cores: int, shared: bool) -> CrossCore:
    """State before any transfer."""
    queues = _QUEUES * cores
    pairs = (queues, queues)
    return CrossCore(
        np.full((granules, queues if shared else cores), -1, np.int32), np.zeros(granules, np.uint8),
        np.full((granules if shared else 0, queues), -1, np.int32),
        np.full(pairs, -1, np.int64), np.full(pairs, -1, np.int64), np.zeros(pairs, np.int64), np.full(pairs, -1, np.int64),
        np.zeros(pairs, np.int64), np.zeros(queues, np.int64), np.full(queues, -1, np.int64),
    )  # fmt: skip


@njit(cache=True)
def reset_cross_core(cross: CrossCore) -> None:
    """Reset the state for a new program."""
    for g in range(cross.any_written.shape[0]):
        if cross.any_written[g]:
            cross.written[g] = -1
            cross.any_written[g] = 0
    cross.before[:] = -1
    cross.seen[:] = -1
    cross.waited[:] = -1
    cross.standing[:] = 0
    cross.turn[:] = -1
    cross.early[:] = 0
    cross.full[:] = 0
    cross.last[:] = -1


@njit(cache=True)
def _wait(cross: CrossCore, queue: int, source: int, move: int, instruction: int, limit: int) -> int:
    """Let instruction `instruction` of `queue` wait for transfer `move` of queue `source` or a later one; returns the transfer waited
    for."""
    # the last SET of a full count comes from the source's last transfer, so that it covers all later waits
    if cross.standing[source, queue] == limit - 1:
        move = cross.last[source]
        cross.full[source] += 1
    elif move < cross.turn[source, queue]:
        if cross.early[source, queue] == limit:
            move = cross.turn[source, queue]
        else:
            cross.early[source, queue] += 1
    cross.standing[source, queue] += 1
    cross.seen[queue, source] = move
    cross.waited[queue, source] = instruction
    if move >= cross.waited[source, queue] and cross.standing[queue, source] > 0:  # a turn: the source waited for all SETs of `queue`
        if cross.standing[queue, source] == limit:
            cross.full[queue] -= 1
        past_turn = cross.seen[source, queue] >= cross.turn[queue, source]  # no SET comes before the last turn any more
        cross.early[queue, source] = (
            cross.standing[queue, source] if past_turn else max(cross.early[queue, source], cross.standing[queue, source])
        )
        cross.standing[queue, source], cross.turn[queue, source] = 0, instruction
    return move


@njit(cache=True)
def find_cross_core_waits(
    engine: Bytes8, span: Ints32, start: Ints32, bound: Ints32, core: int, first: int, limit: int, cross: CrossCore, source: Ints32,
    target: Ints32,
) -> int:  # fmt: skip
    """Fill source and target with the edges from other cores to a part's instructions (`first` ..); returns how many."""
    granules, writers = cross.written.shape
    queues = cross.last.shape[0]
    cores = queues // _QUEUES
    need = np.empty(queues, np.int64)
    edges = 0
    for j in range(engine.shape[0]):
        e = engine[j]
        if e != _MTE3 and e != _MTE2:
            continue
        instruction = first + j
        waiter = core if e == _MTE3 else cores + core
        # full counts towards other queues: wait until these have taken the SETs
        if cross.full[waiter]:
            for queue in range(queues):
                if cross.standing[waiter, queue] == limit:
                    if cross.seen[waiter, queue] < cross.last[queue]:
                        source[edges] = _wait(cross, waiter, queue, cross.last[queue], instruction, limit)
                        target[edges] = instruction
                        edges += 1
                    if cross.standing[waiter, queue] == limit:
                        cross.full[waiter] -= 1
                        cross.standing[waiter, queue] = 0
        if e == _MTE2 or cross.before.shape[0]:
            need[:] = -1
            for k in range(start[j], start[j + 1]):
                a = span[k, 0]
                if bound[a >> 1] >= granules:  # DDR comes first
                    continue
                if a & 1 == 0:
                    for g in range(bound[a >> 1], bound[span[k, 1]]):
                        if cross.any_written[g]:
                            for queue in range(writers):
                                need[queue] = max(need[queue], cross.written[g, queue])
                elif cross.before.shape[0]:
                    for g in range(bound[a >> 1], bound[span[k, 1]]):
                        for queue in range(queues):
                            need[queue] = max(need[queue], cross.before[g, queue])
            for queue in range(queues):
                if queue % cores != core and need[queue] > cross.seen[waiter, queue]:
                    source[edges] = _wait(cross, waiter, queue, need[queue], instruction, limit)
                    target[edges] = instruction
                    edges += 1
        cross.last[waiter] = instruction
    for j in range(engine.shape[0]):  # writes are recorded at the end: a core does not wait for itself here
        if engine[j] != _MTE3 and (engine[j] != _MTE2 or writers < queues):
            continue
        waiter = core if engine[j] == _MTE3 else cores + core
        for k in range(start[j], start[j + 1]):
            a = span[k, 0]
            if a & 1 == 0 or bound[a >> 1] >= granules:
                continue
            for g in range(bound[a >> 1], bound[span[k, 1]]):
                cross.written[g, waiter] = first + j
                cross.any_written[g] = 1
    return edges
