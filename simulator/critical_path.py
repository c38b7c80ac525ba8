"""The critical path of a run: the longest chain of work and waits, in which each link delays the next one.

An engine that works half of the time may delay all others in turn, and one that is always busy may delay none.  The chain goes back from
the work that ends last.  From work it goes to the start of that work.  From a wait for a flag it goes to the work of the engine that set
the flag, earlier by the latency of results and flags, even if that engine has begun other work since.  Waits for the first data from DDR or
for the scalar unit are links themselves.  So the links fill the run without gap or overlap, and a shorter link makes the run shorter, until
another chain is the longest.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from simulator.npu import isa
from simulator.npu.cycles import latency_cycles
from simulator.npu.isa import Op
from simulator.npu.parts import DMAS, Engine
from simulator.timeline import Cause, Mask, Timeline, matching_sets, preceding_work
from simulator.timing_state import ENGINES, Ints

WORK = -1  # instead of a `Cause`
WAITS = {
    Cause.FLAG: "result or flag on its way",
    Cause.LATENCY: "waits for DDR latency",
    Cause.ISSUE: "waits for issue",
    Cause.QUEUE: "waits for room in a queue",
}


class Chain(NamedTuple):
    """Links of a chain in order of time, int64 [links] each.

    The first link begins at 0.  A link ends where the next one begins, and the last one ends with the run.
    row: the row that works or waits; -1 if no row of the run works.  engine: engine of its queue.  cause: WORK, or a `Cause`.
    FLAG is the time of a flag from core to core (row: the WAIT), or of results leaving a pipelined array (row: the MMAD).
    """

    row: Ints
    engine: Ints
    cause: Ints
    start: Ints
    end: Ints


class ChainCycles(NamedTuple):
    """Cycles of the links with one operator (-1: without an operator), engine and cause."""

    operator: int
    engine: Engine
    cause: int
    cycles: int


def chain_cycles(run: Timeline, chain: Chain) -> list[ChainCycles]:
    """Cycles of the chain by operator, engine and cause, the most first; their sum is the run."""
    operator = np.where(chain.row >= 0, run.operator[chain.row], -1) if len(run.code) else np.full(len(chain.row), -1)
    kinds, inverse = np.unique(np.column_stack([operator, chain.engine, chain.cause]), axis=0, return_inverse=True)
    cycles = np.bincount(inverse.reshape(-1), chain.end - chain.start, len(kinds)).astype(np.int64)
    order = np.argsort(-cycles, kind="stable")
    rows = zip(kinds[order].tolist(), cycles[order].tolist(), strict=True)
    return [ChainCycles(operator, Engine(engine), cause, count) for (operator, engine, cause), count in rows]


def critical_chain(timeline: Timeline) -> Chain:
    """The chain of a run.  Programs that run one behind the other have one chain: each begins when the previous one has ended."""
    runs = [(part.run, part.begin, part.rows) for part in timeline.parts] or [(timeline, 0, np.arange(len(timeline.code)))]
    columns = []
    for run, begin, rows in runs:
        links = np.array(_links(run), np.int64).reshape(-1, 5)[::-1]
        columns.append(np.column_stack([np.append(rows, -1)[links[:, 0]], links[:, 1:3], links[:, 3:] + begin]))
    return Chain(*np.ascontiguousarray(np.concatenate(columns).T))


class _Predecessors(NamedTuple):
    """Predecessors of every row in its own queue, int64 [n] each.

    row: the earlier entry that ended or left last; -1: none.  Of several it is the first one, on a DMA with several ports the last one; the
    walk goes on from there in the same cycle.  cycle: when it ended or left.  work: last work before the row.  setter: SET of a WAIT.
    """

    row: Ints
    cycle: Ints
    work: Ints
    setter: Ints


def _predecessors(run: Timeline) -> _Predecessors:
    """Predecessors of all rows.  On a DMA with several ports: entries that had ended or left by then, and the last work on the same
    port."""
    row, cycle = np.full(len(run.code), -1, np.int64), np.zeros(len(run.code), np.int64)
    ended = np.where(run.code[:, isa.OP] == Op.SET, run.start, run.end)  # a SET has left when it takes effect later
    for rows in run.queues:
        latest = np.maximum.accumulate(ended[rows])
        first = np.concatenate(([True], latest[1:] > latest[:-1])) if len(rows) else latest
        row[rows[1:]] = rows[np.maximum.accumulate(np.where(first, np.arange(len(rows)), 0))[:-1]]
        cycle[rows[1:]] = latest[:-1]
    work = preceding_work(run)
    for engine in DMAS:
        if (ports := run.machine.dma_ports(engine)) > 1:
            for core in range(run.cores):
                rows = run.queues[core * ENGINES + engine]
                _predecessors_over_ports(rows, run.transfer[rows], run.work[rows], run.start[rows], ended[rows], ports, row, cycle, work)
    return _Predecessors(row, cycle, work, matching_sets(run))


@njit(cache=True)
def _predecessors_over_ports(
    rows: Ints, transfer: Mask, works: Mask, start: Ints, ended: Ints, ports: int, row: Ints, cycle: Ints, work: Ints
) -> None:
    """Fill `_Predecessors` for a queue whose DMA has several ports.  rows: rows of the queue; the next four arrays are for its entries."""
    on_port = np.full(ports, -1, np.int64)  # last transfer of each port
    # seen_at: the last entry j whose search met an ended transfer of the port, so that no search has to clear it
    port, seen_at = np.full(len(rows), -1, np.int64), np.full(ports, -1, np.int64)
    turn, last_on_chip = 0, -1
    for j in range(len(rows)):
        entry_row, limit = rows[j], start[j] if works[j] else ended[j]
        row[entry_row], cycle[entry_row] = -1, 0
        i, missing = j - 1, ports
        while i >= 0 and missing:  # entries before the last ended transfer of every port have ended or left earlier
            if ended[i] <= limit:
                if ended[i] > cycle[entry_row] or row[entry_row] < 0:
                    row[entry_row], cycle[entry_row] = rows[i], ended[i]
                if port[i] >= 0 and seen_at[port[i]] < j:
                    seen_at[port[i]] = j
                    missing -= 1
            i -= 1
        # transfers take the ports in turn; work on chip occupies all of them
        if transfer[j]:
            last = max(on_port[turn], last_on_chip)
            work[entry_row] = rows[last] if last >= 0 else -1
            on_port[turn] = j
            port[j] = turn
            turn = (turn + 1) % ports
        elif works[j]:
            last_on_chip = j


def _links(run: Timeline) -> list[tuple[int, int, int, int, int]]:
    """Links as (row, engine, cause, start, end), the last one first.

    The walk follows one row at a time, from the cycle in which it ended, passed or left back to the cause: its own work, the SET
    of a WAIT and its predecessor, the previous entry, or its dispatch.
    """
    before, between, lag = _predecessors(run), run.machine.flags.between_cores_cycles, _lag(run)
    work = np.flatnonzero(run.work)
    if not len(work):
        return [(-1, int(Engine.SCALAR), int(Cause.ISSUE), 0, run.cycles)] if run.cycles else []
    # why a row was issued late: its queue was full, or the scalar unit was busy
    held_up = np.full(len(run.code), int(Cause.ISSUE))
    full = (run.stalls.cause == Cause.QUEUE) & (run.stalls.engine == run.engine[run.stalls.row])
    held_up[run.stalls.row[full]] = int(Cause.QUEUE)
    links: list[tuple[int, int, int, int, int]] = []

    def link(row: int, cause: int, start: int, end: int) -> None:
        if end > start:
            links.append((row, int(run.engine[row]), cause, start, end))

    # walk from the end of the run back to cycle 0
    row, now = _last(run, lag), run.cycles
    while now > 0 and row >= 0:
        if run.work[row]:  # to its start, and on to work that ended then
            end, start = int(run.end[row]), int(run.start[row])
            link(row, int(Cause.FLAG), end, now)  # results leaving the array
            link(row, WORK, start, end)
            now = start
            earlier = int(before.work[row])
            if earlier >= 0 and run.end[earlier] == now:
                row = earlier
                continue
        elif before.setter[row] >= 0 and now > max(int(before.cycle[row]), int(run.dispatch[row])):  # a WAIT: to its SET
            setter = int(before.setter[row])
            far = between if run.core[setter] != run.core[row] else 0
            link(row, int(Cause.FLAG), now - far, now)
            row, now = setter, now - far
            earlier = int(before.work[row])
            if earlier >= 0 and run.end[earlier] + lag[earlier] == now:
                row = earlier
                continue
        # to the previous entry of the queue, over the latency of data and the time until the row was issued
        ready = max(int(before.cycle[row]), int(run.dispatch[row]))
        link(row, int(Cause.LATENCY), ready, now)
        link(row, int(held_up[row]), int(before.cycle[row]), ready)
        row, now = int(before.row[row]), int(before.cycle[row])
    return links


def _lag(run: Timeline) -> Ints:
    """int64 [n]: cycles from the end of a row's work to its results."""
    return np.where(run.work & (run.engine == Engine.CUBE), latency_cycles(run.machine), 0)


def _last(run: Timeline, lag: Ints) -> int:
    """Row that ends the run: work if possible, else the entry that left its queue last."""
    ended = np.where(run.code[:, isa.OP] == Op.SET, run.start, run.end + lag)
    rows = np.flatnonzero(ended == run.cycles)
    return int(rows[np.argmax(run.work[rows])])
