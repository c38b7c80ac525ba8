"""Hazards inside a core: which instructions must have completed before each one, and when it could start.

Hazards.  For each instruction, the last conflicting access of every other engine of its core (by granules of its memories, an
over-estimate) must have completed.  Transfers of a DMA with several ports overlap, so they wait for their own queue too (see
`local_dependences`).  Vector clocks drop waits that others imply, so that waits on one pair of engines come in the order of their sets and
one flag id per pair suffices (a counting semaphore).  Its count is limited: the SET that could exceed the limit is moved to the last
instruction of its queue so far, which covers all later waits, and the next instruction of that queue waits for the consumer.

Times.  The longest path through queues and flags, every transfer alone on the bus.  An instruction's key is the cycle in which its engine
could use it.  A DMA with several ports counts as free again after 1 / ports of a transfer's time.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit

from compiler.schedule.access_history import Intervals, collect_accesses, locate_pieces, record_part
from compiler.schedule.local_dependences import ENGINES, LocalDependences
from compiler.schedule.segment_accesses import Bytes8, Ints, Ints32
from compiler.schedule.segment_table import Part
from simulator.pointer import Pointer, pointer


class RecordRows(NamedTuple):
    """Scratch per instruction and per edge of a program.

    core, engine: uint8 [n].  clocks: int32 [n, 6], vector clock.  after: next instruction of the same queue, or -1.  end, key: cycles.
    Edge k, a SET and its WAIT, leads from instruction edge_from[k] to edge_to[k]; edge_start: int32 [n + 1], the edges to each.
    set_head, set_tail: int32 [n], set_next: int32 [edges]: the edges from each instruction as a list, or -1.
    Numbers of instructions and of edges have gaps (`instruction_numbers`).
    """

    core: Bytes8
    engine: Bytes8
    clocks: Ints32
    after: Ints32
    end: Ints
    key: Ints
    edge_start: Ints32
    edge_from: Ints32
    edge_to: Ints32
    set_head: Ints32
    set_tail: Ints32
    set_next: Ints32


class Queues(NamedTuple):
    """State of a pass over one core, per queue or pair of queues; -1: none.

    All but the ring and scratch are views of `numbers`.
    """

    clock: Ints  # [6, 6] clock of each queue: last instruction of the other queue that it has waited for
    latest: Ints  # [6] last instruction of every queue
    ring: Ints32  # [6, 6, limit] the last waits from a queue in another
    ring_at: Ints  # [6, 6] position in ring
    oldest: Ints  # [6, 6] value of ring at ring_at
    free: Ints  # [6] cycle in which the queue is free
    key: Ints  # [6] largest key so far
    first: Ints  # [6] first instruction of every queue, or -1
    ports: Ints  # [6] DMA ports; 1 of other engines
    full: Ints  # [6] 1: SETs of a queue may have reached the limit, so it must wait for one to be taken
    need: Ints  # [6] scratch, as `todo`
    todo: Ints  # [6]
    numbers: Ints


class CoreStates(NamedTuple):
    """State of a pass over several cores.

    numbers: int64 [cores, NUMBERS], ring: int32 [cores, 6, 6, limit], `Queues` of each core.  ports: see `Queues`.
    ddr: int32 [cores, granules, 8].  wiped: uint8 [cores, granules], scratch, all 0.  bound, last: `Intervals` of each core, and a free
    slot for the next one.  slots: int64 [cores + 1], slot of each core, then the free slot.  pieces: int64 [cores].
    """

    numbers: Ints
    ring: Ints32
    ports: Ints
    scratch: Ints
    ddr: Ints32
    wiped: Bytes8
    bound: Ints32
    last: Ints32
    slots: Ints
    pieces: Ints


_PAIRS = ENGINES * ENGINES
NUMBERS = 3 * _PAIRS + 5 * ENGINES
LATEST, FIRST_OF = 3 * _PAIRS, 3 * _PAIRS + 3 * ENGINES  # offsets in `numbers` of `Queues.latest` and `Queues.first`


def new_states(cores: int, limit: int, ports: Ints, ddr_granules: int, on_chip: int) -> CoreStates:
    """State of `cores` cores before any access.  limit: largest count of a flag."""
    return CoreStates(
        np.empty((cores, NUMBERS), np.int64), np.empty((cores, ENGINES, ENGINES, limit), np.int32), ports,
        np.empty((2, ENGINES), np.int64), np.full((cores, ddr_granules, 8), -1, np.int32), np.zeros((cores, ddr_granules), np.uint8),
        np.zeros((cores + 1, on_chip + 1), np.int32), np.empty((cores + 1, on_chip, 8), np.int32), np.arange(cores + 1),
        np.zeros(cores, np.int64),
    )  # fmt: skip


@njit(cache=True)
def queues_in(numbers: Ints, ring: Ints32, ports: Ints, scratch: Ints) -> Queues:
    """Views of a core's state.  scratch: int64 [2, 6]."""
    pairs = numbers[: 3 * _PAIRS].reshape((3, ENGINES, ENGINES))
    rows = numbers[3 * _PAIRS :].reshape((5, ENGINES))
    return Queues(pairs[0], rows[0], ring, pairs[1], pairs[2], rows[1], rows[2], rows[3], ports, rows[4], scratch[0], scratch[1], numbers)


@njit(cache=True)
def queues_of(states: CoreStates, core: int) -> Queues:
    """Views of a core's state."""
    return queues_in(states.numbers[core], states.ring[core], states.ports, states.scratch)


@njit(cache=True)
def reset_states(states: CoreStates) -> None:
    """Reset the state of all cores to no instruction."""
    states.numbers[:] = -1
    states.ring[:] = -1
    states.pieces[:] = 0
    for core in range(states.numbers.shape[0]):
        queues = queues_of(states, core)
        queues.ring_at[:] = 0
        queues.free[:] = 0
        queues.key[:] = 0
        queues.full[:] = 0


LAST_EDGE_CHANGE, KEY_SHIFT, KEY_SHIFT_SINCE, ADOPTED = range(4)  # columns of `EngineDrift.all`
_NONE = np.iinfo(np.int64).max


class EngineDrift(NamedTuple):
    """Differences between a pass and the previous pass, over common instructions; int64 [6], by engine.

    clocks: last instruction with a different clock, or -1.  shift: cycles by which the last instruction ends later.  since: first
    instruction of the run with that shift.
    all: int64 [4], over all engines: last instruction with different edges, or -1; cycles by which all keys are later; first instruction
    with that shift; number of adopted instructions (`incremental_converge`).
    """

    clocks: Ints
    shift: Ints
    since: Ints
    all: Ints


def new_drift() -> EngineDrift:
    """Arrays, to be filled by `reset_drift`."""
    clocks, shift, since = np.zeros((3, ENGINES), np.int64)
    return EngineDrift(clocks, shift, since, np.zeros(4, np.int64))


def reset_drift(drift: EngineDrift) -> None:
    """Reset to no instruction of the previous pass."""
    drift.clocks[:], drift.shift[:] = -1, _NONE
    drift.all[:] = -1, _NONE, 0, 0


class Remote(NamedTuple):
    """Edges from other cores to instructions of the part, in the order of those instructions (see `cross_core`)."""

    source: Ints32
    target: Ints32
    edges: int
    latency: int  # cycles that a flag takes to another core


@njit(cache=True)
def _connect(
    edge_from: Pointer, edge_to: Pointer, set_head: Pointer, set_tail: Pointer, set_next: Pointer, edge: int, source: int, target: int
) -> None:
    edge_from[edge], edge_to[edge], set_next[edge] = source, target, -1
    if set_head[source] < 0:
        set_head[source] = edge
    else:
        set_next[set_tail[source]] = edge
    set_tail[source] = edge


@njit(cache=True)
def scan_part(
    part_engine: Bytes8, inside: LocalDependences, transfer: Bytes8, cycles: Ints, latency: int, first: int, queues: Queues,
    bound: Ints32, ddr: Ints32, past: Intervals, pieces: int, piece: Ints32, remote: Remote, rows: RecordRows, drift: EngineDrift,
    compare: bool,
) -> None:  # fmt: skip
    """Find hazards and times of the records of one part; its first instruction is `first`.  latency: latency of a DDR transfer.

    bound .. piece: history before the part (see `access_history`).  compare: `rows` has the part's results of the previous pass;
    differences go to `drift`.
    """
    clock, latest, ring, ring_at, oldest = (
        pointer(queues.clock), pointer(queues.latest), pointer(queues.ring), pointer(queues.ring_at), pointer(queues.oldest)
    )  # fmt: skip
    free, last_key, queue_first, full = pointer(queues.free), pointer(queues.key), pointer(queues.first), pointer(queues.full)
    engine, clocks, after, end, key = pointer(rows.engine), pointer(rows.clocks), pointer(rows.after), pointer(rows.end), pointer(rows.key)
    edge_start, edge_from, edge_to = pointer(rows.edge_start), pointer(rows.edge_from), pointer(rows.edge_to)
    set_head, set_tail, set_next = pointer(rows.set_head), pointer(rows.set_tail), pointer(rows.set_next)
    part_engines, inner, starts, outer = pointer(part_engine), pointer(inside.need), pointer(inside.start), pointer(inside.outer)
    moves, durations = pointer(transfer), pointer(cycles)
    history = pointer(bound), ddr.shape[0], pointer(ddr), pointer(past.bound), pointer(past.last), pieces, pointer(piece)
    source_of, target_of = pointer(remote.source), pointer(remote.target)
    outers, limit = inside.outer.shape[0], queues.ring.shape[2]
    need, todo, ports = pointer(queues.need), pointer(queues.todo), pointer(queues.ports)
    drift_clocks, drift_shift, drift_since, drift_all = (
        pointer(drift.clocks), pointer(drift.shift), pointer(drift.since), pointer(drift.all),
    )  # fmt: skip
    edge: Any = np.int64(edge_start[first])
    remote_index = outer_index = 0
    for j in range(part_engine.shape[0]):
        i = first + j
        queue: Any = np.int64(part_engines[j])
        clock_row = queue * ENGINES
        engine[i] = part_engines[j]
        overlaps = moves[j] and ports[queue] > 1  # overlaps with transfers of its own queue
        count, begin, stop = 0, starts[j], starts[j + 1]
        if full[queue]:  # `limit` SETs may still wait to be taken: no more until one consumer has been waited for
            full[queue] = 0
            for e in range(ENGINES):
                if e != queue and oldest[clock_row + e] > clock[clock_row + e]:
                    full[queue] = 1
        # waits in descending order; those inside the part are sorted already unless outside ones are added
        if full[queue] or (outer_index < outers and outer[3 * outer_index] == j):
            for e in range(ENGINES):
                need[e] = -1
            for k in range(begin, stop):
                need[np.int64(part_engines[inner[k]])] = first + inner[k]
            while outer_index < outers and outer[3 * outer_index] == j:
                a = outer[3 * outer_index + 1]
                collect_accesses(need, a & 1, a >> 1, outer[3 * outer_index + 2], *history)
                outer_index += 1
            for e in range(ENGINES):
                if e != queue and oldest[clock_row + e] > clock[clock_row + e]:
                    need[e] = latest[e]
            if not overlaps:
                need[queue] = -1
            for e in range(ENGINES):
                if need[e] > clock[clock_row + e]:
                    p = count
                    while p > 0 and todo[p - 1] < need[e]:
                        todo[p] = todo[p - 1]
                        p -= 1
                    todo[p] = need[e]
                    count += 1
        else:
            for k in range(begin, stop):
                todo[count] = first + inner[k]
                count += 1
        ready = np.int64(0)
        set_head[i] = -1
        for k in range(count):  # the latest first: it may imply earlier ones
            best = todo[k]
            source_queue: Any = np.int64(engine[best])
            if best <= clock[clock_row + source_queue]:
                continue
            pair = source_queue * ENGINES + queue
            slot = ring_at[pair]
            # a WAIT before a SET of its own queue has been taken by then
            early = oldest[pair] > (best if source_queue == queue else np.int64(clocks[best * ENGINES + queue]))
            ring[pair * limit + slot] = i
            slot += 1
            if slot == limit:
                slot = 0
            ring_at[pair] = slot
            oldest[pair] = ring[pair * limit + slot]
            if source_queue != queue and oldest[pair] > clock[pair]:
                full[source_queue] = 1
                early = True
            if early:
                best = latest[source_queue]
            if compare and (edge_from[edge] != best or edge_to[edge] != i):
                drift_all[LAST_EDGE_CHANGE] = i
            _connect(edge_from, edge_to, set_head, set_tail, set_next, edge, best, i)
            edge += 1
            ready = max(ready, end[best])
            for column in range(ENGINES):
                clock[clock_row + column] = max(clock[clock_row + column], np.int64(clocks[best * ENGINES + column]))
            clock[clock_row + source_queue] = best
        while remote_index < remote.edges and target_of[remote_index] == i:
            source = source_of[remote_index]
            _connect(edge_from, edge_to, set_head, set_tail, set_next, edge, source, i)
            edge += 1
            ready = max(ready, end[source] + remote.latency)
            remote_index += 1
        edge_start[i + 1] = edge
        if compare:
            for e in range(ENGINES):
                if np.int64(clocks[i * ENGINES + e]) != clock[clock_row + e]:
                    drift_clocks[queue] = i
        for e in range(ENGINES):
            clocks[i * ENGINES + e] = clock[clock_row + e]
        if not overlaps:
            clock[clock_row + queue] = i
        if latest[queue] >= 0:
            after[latest[queue]] = i
        else:
            queue_first[queue] = i
        after[i] = -1
        latest[queue] = i
        # the longest path, with every transfer alone on the bus; key: when the instruction is wanted at its engine
        if moves[j]:
            start_cycle = max(free[queue], ready + latency)
            # wanted when its predecessor's data starts to flow, not before: a queue full of loads would stall the scalar unit
            demand_cycle = max(ready, start_cycle - latency)
            free[queue] = start_cycle + durations[j] // ports[queue]
        else:
            start_cycle = max(free[queue], ready)
            demand_cycle = start_cycle
            free[queue] = start_cycle + durations[j]
        if compare and start_cycle + durations[j] - end[i] != drift_shift[queue]:
            drift_shift[queue], drift_since[queue] = start_cycle + durations[j] - end[i], i
        end[i] = start_cycle + durations[j]
        last_key[queue] = max(last_key[queue], demand_cycle)
        if compare and last_key[queue] - key[i] != drift_all[KEY_SHIFT]:
            drift_all[KEY_SHIFT], drift_all[KEY_SHIFT_SINCE] = last_key[queue] - key[i], i
        key[i] = last_key[queue]


@njit(cache=True)
def advance_part(
    part: Part, latency: int, core: int, first: int, queues: Queues, ddr: Ints32, past: Intervals, pieces: int, out: Intervals,
    piece: Ints32, remote: Remote, rows: RecordRows, drift: EngineDrift, compare: bool,
) -> int:  # fmt: skip
    """Run `scan_part` for one part and update the history: `ddr` in place, pieces into `out`; returns the number of pieces."""
    locate_pieces(part.bound, part.touched, ddr.shape[0], past, pieces, piece)
    rows.core[first : first + part.engine.shape[0]] = core
    history = part.bound, ddr, past, pieces, piece
    scan_part(part.engine, part.inside, part.transfer, part.cycles, latency, first, queues, *history, remote, rows, drift, compare)
    return record_part(part.bound, part.touched, part.inside.last, first, ddr, past, pieces, out)
