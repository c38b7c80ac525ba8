"""A schedule as the event loop wants it: what `simulator.timing.prepare` makes of the linked program, without its records.

Evaluating a program needs times only, and records are 128 bytes each.  Equal to the last cycle, which a test holds; what is shipped is
measured from its own streams (`tuner.build`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numba import njit

from compiler.schedule.footprint import Bytes8, Footprint, Ints, Ints32
from compiler.schedule.write import Schedule
from simulator.npu.machine import Machine
from simulator.timing import Prepared
from simulator.timing_kernel import ENGINES, FIXED, KIND_BITS, SET, SET_REMOTE, TRANSFER, WAIT

_FIXED, _TRANSFER, _WAIT, _SET, _SET_REMOTE = FIXED, TRANSFER, WAIT, SET, SET_REMOTE


@njit(cache=True)
def _fill(
    place: Ints32,
    core: Bytes8,
    engine: Bytes8,
    edge_start: Ints32,
    edge_from: Ints32,
    edge_to: Ints32,
    set_head: Ints32,
    set_next: Ints32,
    cost: Ints,
    transfer: Bytes8,
    stream_start: Ints,
    word: Ints,
    queue_start: Ints,
    stream: Bytes8,
    totals: Ints,
) -> None:
    """Fills word [rows], queue_start [cores * ENGINES + 1], stream [rows], totals [3, cores * ENGINES]; an edge is its own flag slot."""
    queues = queue_start.shape[0] - 1
    length = np.zeros(queues, np.int64)
    for i in range(engine.shape[0]):
        q: Any = np.int64(core[i]) * ENGINES + engine[i]
        length[q] += 1 + edge_start[i + 1] - edge_start[i]
        for edge in range(edge_start[i], edge_start[i + 1]):
            source = edge_from[edge]
            length[np.int64(core[source]) * ENGINES + engine[source]] += 1
    cursor = np.empty(queues, np.int64)
    queue_start[0] = 0
    for q in range(queues):
        cursor[q] = queue_start[q]
        queue_start[q + 1] = queue_start[q] + length[q]
    for i in range(engine.shape[0]):
        e = engine[i]
        q = np.int64(core[i]) * ENGINES + e
        at, row = cursor[q], stream_start[core[i]] + place[i] - (edge_start[i + 1] - edge_start[i])
        for edge in range(edge_start[i], edge_start[i + 1]):
            word[at] = edge << KIND_BITS | _WAIT
            stream[row] = e
            at += 1
            row += 1
        if transfer[i]:
            word[at] = cost[i] << KIND_BITS | _TRANSFER
            totals[1, q] += 1
            totals[2, q] += cost[i]
        else:
            word[at] = cost[i] << KIND_BITS | _FIXED
            totals[0, q] += cost[i]
        stream[row] = e
        at += 1
        row += 1
        out: Any = np.int64(set_head[i])
        while out >= 0:
            word[at] = out << KIND_BITS | (_SET if core[edge_to[out]] == core[i] else _SET_REMOTE)
            stream[row] = e
            at += 1
            row += 1
            out = set_next[out]
        cursor[q] = at


def prepared(machine: Machine, schedule: Schedule, parts: Sequence[Footprint]) -> Prepared:
    """The schedule of `parts`, on the cores that it uses: the first len(schedule.lengths) of the machine."""
    s, cores = schedule, len(schedule.lengths)
    rows = sum(s.lengths)
    word, stream = np.empty(rows, np.int64), np.empty(rows, np.uint8)
    totals = np.zeros((3, cores * ENGINES), np.int64)
    queue_start = np.empty(cores * ENGINES + 1, np.int64)
    stream_start = np.concatenate(([0], np.cumsum(s.lengths))).astype(np.int64)
    cost = np.concatenate([part.cost for part in parts])
    transfer = np.concatenate([part.transfer for part in parts])
    edges = (s.edge_start, s.edge_from, s.edge_to, s.set_head, s.set_next)
    _fill(s.place, s.core, s.engine, *edges, cost, transfer, stream_start, word, queue_start, stream, totals)
    for array in (word, queue_start, stream, stream_start, totals):
        array.flags.writeable = False
    fixed, transfers, bus_units = totals.reshape(3, cores, ENGINES)
    read, written = sum(part.read_bytes for part in parts), sum(part.written_bytes for part in parts)
    return Prepared(machine, word, queue_start, stream, stream_start, len(s.edge_from), fixed, transfers, bus_units, read, written)
