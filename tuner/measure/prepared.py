"""A schedule as the event loop wants it: what `simulator.timing.prepare` makes of the linked program, without its records.

Evaluating a program needs times only, and records are 128 bytes each.  Equal to the last cycle, which a test holds; what is shipped is
measured from its own streams (`compiler.build`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numba import njit

from compiler.schedule.footprint import Bytes8, Footprint, Ints, Ints32
from compiler.schedule.write import Schedule
from simulator.npu.machine import Machine
from simulator.pointer import pointer
from simulator.timing import Prepared
from simulator.timing_kernel import BUS_BITS, ENGINES, FIXED, KIND_BITS, SET, SET_REMOTE, TRANSFER, WAIT

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
    length_array: Ints,
    cursor_array: Ints,
    word: Ints,
    queue_start: Ints,
    stream: Bytes8,
    totals: Ints,
) -> None:
    """Fills word [rows], queue_start [cores * ENGINES + 1], stream [rows], totals [3, cores * ENGINES]; an edge is its own flag slot.

    length_array, cursor_array: [cores * ENGINES], scratch, the first all 0.
    """
    queues, n = queue_start.shape[0] - 1, engine.shape[0]
    length, cursor, words, rows, sums = pointer(length_array), pointer(cursor_array), pointer(word), pointer(stream), pointer(totals)
    at_core, at_engine, begins, nexts = pointer(core), pointer(engine), pointer(edge_start), pointer(set_next)
    for i in range(n):
        q: Any = np.int64(at_core[i]) * ENGINES + at_engine[i]
        length[q] += 1 + begins[i + 1] - begins[i]
    for edge in range(begins[n]):
        source = edge_from[edge]
        length[np.int64(at_core[source]) * ENGINES + at_engine[source]] += 1
    queue_start[0] = 0
    for q in range(queues):
        cursor[q] = queue_start[q]
        queue_start[q + 1] = queue_start[q] + length[q]
    for i in range(n):
        e = at_engine[i]
        q = np.int64(at_core[i]) * ENGINES + e
        at, row = cursor[q], stream_start[at_core[i]] + place[i] - (begins[i + 1] - begins[i])
        for edge in range(begins[i], begins[i + 1]):
            words[at] = edge << KIND_BITS | _WAIT
            rows[row] = e
            at += 1
            row += 1
        if transfer[i]:
            words[at] = cost[i] << BUS_BITS | np.int64(transfer[i]) << KIND_BITS | _TRANSFER
            sums[queues + q] += 1
            sums[2 * queues + q] += cost[i]
        else:
            words[at] = cost[i] << KIND_BITS | _FIXED
            sums[q] += cost[i]
        rows[row] = e
        at += 1
        row += 1
        out: Any = np.int64(set_head[i])
        while out >= 0:
            words[at] = out << KIND_BITS | (_SET if at_core[edge_to[out]] == at_core[i] else _SET_REMOTE)
            rows[row] = e
            at += 1
            row += 1
            out = nexts[out]
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
    scratch = np.zeros((2, cores * ENGINES), np.int64)
    _fill(s.place, s.core, s.engine, *edges, cost, transfer, stream_start, *scratch, word, queue_start, stream, totals)
    read, written = sum(part.read_bytes for part in parts), sum(part.written_bytes for part in parts)
    return Prepared.of(machine, word, queue_start, stream, stream_start, len(s.edge_from), totals, read, written)
