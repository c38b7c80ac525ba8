"""A schedule as the event loop wants it: what `simulator.timing.prepare` makes of the linked program, without its records.

Evaluating a program needs times only, and records are 128 bytes each.  Equal to the last cycle, which a test holds; what is shipped is
measured from its own stream (`tuner.build`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numba import njit

from compiler.schedule.sync import Footprint, Schedule
from simulator.npu.machine import Machine
from simulator.timing import Prepared
from simulator.timing_kernel import ENGINES, FIXED, KIND_BITS, SET, TRANSFER, WAIT

_FIXED, _TRANSFER, _WAIT, _SET = FIXED, TRANSFER, WAIT, SET


@njit(cache=True)
def _fill(engine, place, edge_from, edge_count, set_head, set_next, cost, transfer, word, queue_start, stream, totals):  # type: ignore[no-untyped-def]
    """Fills word [rows], queue_start [ENGINES + 1], stream [rows], totals [3, ENGINES]; returns how many flag slots there are."""
    n, width = engine.shape[0], edge_from.shape[1]
    flags = np.zeros((ENGINES, ENGINES), np.int64)
    length = np.zeros(ENGINES, np.int64)
    for i in range(n):
        e: Any = np.int64(engine[i])
        length[e] += 1 + edge_count[i]
        for k in range(edge_count[i]):
            source: Any = np.int64(engine[edge_from[i, k]])
            flags[source, e] += 1
            length[source] += 1
    cursor = np.empty(ENGINES, np.int64)
    queue_start[0] = 0
    for e in range(ENGINES):
        cursor[e] = queue_start[e]
        queue_start[e + 1] = queue_start[e] + length[e]
    slots = 0
    waits, sets = np.empty((ENGINES, ENGINES), np.int64), np.empty((ENGINES, ENGINES), np.int64)
    for a in range(ENGINES):
        for b in range(ENGINES):
            waits[a, b] = sets[a, b] = slots
            slots += flags[a, b]
    for i in range(n):
        e = np.int64(engine[i])
        at, row = cursor[e], place[i] - edge_count[i]
        for k in range(edge_count[i]):
            source = np.int64(engine[edge_from[i, k]])
            word[at] = waits[source, e] << KIND_BITS | _WAIT
            waits[source, e] += 1
            stream[row] = e
            at += 1
            row += 1
        if transfer[i]:
            word[at] = cost[i] << KIND_BITS | _TRANSFER
            totals[1, e] += 1
            totals[2, e] += cost[i]
        else:
            word[at] = cost[i] << KIND_BITS | _FIXED
            totals[0, e] += cost[i]
        stream[row] = e
        at += 1
        row += 1
        edge: Any = np.int64(set_head[i])
        while edge >= 0:
            target = np.int64(engine[edge // width])
            word[at] = sets[e, target] << KIND_BITS | _SET
            sets[e, target] += 1
            stream[row] = e
            at += 1
            row += 1
            edge = set_next[edge]
        cursor[e] = at
    return slots


def prepared(machine: Machine, schedule: Schedule, parts: Sequence[Footprint]) -> Prepared:
    """The schedule of `parts` on core 0, the other cores idle."""
    word, stream = np.empty(schedule.length, np.int64), np.empty(schedule.length, np.uint8)
    totals = np.zeros((3, machine.cores, ENGINES), np.int64)
    queue_start = np.full(machine.cores * ENGINES + 1, schedule.length, np.int64)
    stream_start = np.full(machine.cores + 1, schedule.length, np.int64)
    stream_start[0] = 0
    cost = np.concatenate([part.cost for part in parts])
    transfer = np.concatenate([part.transfer for part in parts])
    s = schedule
    edges = (s.edge_from, s.edge_count, s.set_head, s.set_next)
    slots = _fill(s.engine, s.place, *edges, cost, transfer, word, queue_start, stream, totals[:, 0])
    for array in (word, queue_start, stream, stream_start, totals):
        array.flags.writeable = False
    fixed, transfers, bus_units = totals
    read, written = sum(part.read_bytes for part in parts), sum(part.written_bytes for part in parts)
    return Prepared(machine, word, queue_start, stream, stream_start, int(slots), fixed, transfers, bus_units, read, written)
