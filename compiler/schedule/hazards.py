"""Inside a core: which instructions must have completed before each one, and when it could start.

Hazards.  For each instruction, the last conflicting access of every other engine of its core (by granules of its memories, an
over-estimate) must have completed; of a DMA with several ports, whose transfers overlap, that of its own queue too (see `inside`).
Vector clocks drop what is already implied, so that waits on one pair of engines come in the order of their sets and one flag id per pair
suffices (a counting semaphore).  Its count is limited: the SET that could exceed the limit is moved to the last instruction of its queue
so far, which covers all later waits, and the next instruction of that queue waits for the consumer.

Times.  The longest path through queues and flags, every transfer alone on the bus; an instruction's key is when it is wanted at its engine.
A DMA with several ports is taken for one that is free again after that part of a transfer's time.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit

from compiler.schedule.access_history import Intervals, enter, leave, meet
from compiler.schedule.local_dependences import ENGINES, Inside
from compiler.schedule.segment_accesses import Bytes8, Ints, Ints32
from compiler.schedule.segment_table import Part
from simulator.pointer import Pointer, pointer


class RecordRows(NamedTuple):
    """Scratch per instruction and per edge of a program.

    core, engine: uint8 [n].  known: int32 [n, 6], vector clock.  after: next instruction of the same queue, or -1.  end, key: cycles.
    Edge k, a SET and its WAIT, leads from instruction edge_from[k] to edge_to[k]; edge_start: int32 [n + 1], the edges to each.
    set_head, set_tail: int32 [n], set_next: int32 [edges]: the edges from each instruction as a list, or -1.
    Instructions have numbers with gaps (`numbers`), and edges too.
    """

    core: Bytes8
    engine: Bytes8
    known: Ints32
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
    """State of a pass over one core, per queue or pair of queues; -1: nobody.

    All but the ring and what is scratch are views of `numbers`.
    """

    clock: Ints  # [6, 6]
    latest: Ints  # [6] last instruction of every queue
    ring: Ints32  # [6, 6, limit] the last waits from a queue in another
    ring_at: Ints  # [6, 6]
    oldest: Ints  # [6, 6] ring at ring_at
    free: Ints  # [6] cycle in which the queue is free
    key: Ints  # [6] largest key so far
    first: Ints  # [6] first instruction of every queue, or -1
    ports: Ints  # [6] DMA ports; 1 of other engines
    full: Ints  # [6] 1 where so many SETs of a queue may stand that it must wait for one to be taken
    need: Ints  # [6] scratch, as the next
    todo: Ints  # [6]
    numbers: Ints


class CoreStates(NamedTuple):
    """State of a pass over several cores.

    numbers: int64 [cores, NUMBERS], ring: int32 [cores, 6, 6, limit], of each core's `Queues`; ports: as there.
    ddr: int32 [cores, granules, 8].  wiped: uint8 [cores, granules], scratch, all 0.  bound, last: `Intervals` of each core, and one more,
    into which the next one is written; at: int64 [cores + 1], where in these each core has its own, and which is free;
    pieces: int64 [cores].
    """

    numbers: Ints
    ring: Ints32
    ports: Ints
    scratch: Ints
    ddr: Ints32
    wiped: Bytes8
    bound: Ints32
    last: Ints32
    at: Ints
    pieces: Ints


_PAIRS = ENGINES * ENGINES
NUMBERS = 3 * _PAIRS + 5 * ENGINES
LATEST, FIRST_OF = 3 * _PAIRS, 3 * _PAIRS + 3 * ENGINES  # of `numbers`: `Queues.latest` and `Queues.first`


def new_states(cores: int, limit: int, ports: Ints, ddr_granules: int, on_chip: int) -> CoreStates:
    """Room for so many cores; nothing is touched.  limit: of the count of a flag."""
    return CoreStates(
        np.empty((cores, NUMBERS), np.int64),
        np.empty((cores, ENGINES, ENGINES, limit), np.int32),
        ports,
        np.empty((2, ENGINES), np.int64),
        np.full((cores, ddr_granules, 8), -1, np.int32),
        np.zeros((cores, ddr_granules), np.uint8),
        np.zeros((cores + 1, on_chip + 1), np.int32),
        np.empty((cores + 1, on_chip, 8), np.int32),
        np.arange(cores + 1),
        np.zeros(cores, np.int64),
    )


@njit(cache=True)
def queues_in(numbers: Ints, ring: Ints32, ports: Ints, scratch: Ints) -> Queues:
    """Views.  scratch: int64 [2, 6]."""
    pairs = numbers[: 3 * _PAIRS].reshape((3, ENGINES, ENGINES))
    each = numbers[3 * _PAIRS :].reshape((5, ENGINES))
    return Queues(pairs[0], each[0], ring, pairs[1], pairs[2], each[1], each[2], each[3], ports, each[4], scratch[0], scratch[1], numbers)


@njit(cache=True)
def queues_of(s: CoreStates, core: int) -> Queues:
    """Views."""
    return queues_in(s.numbers[core], s.ring[core], s.ports, s.scratch)


@njit(cache=True)
def begin(s: CoreStates) -> None:
    """No instruction yet."""
    s.numbers[:] = -1
    s.ring[:] = -1
    s.pieces[:] = 0
    for core in range(s.numbers.shape[0]):
        q = queues_of(s, core)
        q.ring_at[:] = 0
        q.free[:] = 0
        q.key[:] = 0
        q.full[:] = 0


FLAGS, KEYS, KEYS_SINCE, TAKEN = range(4)  # of `Seen.all`
_NONE = np.iinfo(np.int64).max


class EngineDrift(NamedTuple):
    """How far instructions that were there in the pass before differ from what they were then; int64 [6], by engine.

    known: the last one whose clock does, or -1.  shift: by how many cycles the last one ends later; since: the first of those that all do.
    all: int64 [4], the last one that waits for others, or -1; by how many cycles all keys are later, and from which instruction on; and
    how many were taken over (`again`).
    """

    known: Ints
    shift: Ints
    since: Ints
    all: Ints


def nothing_seen() -> EngineDrift:
    """Room, to be filled by `forget_seen`."""
    known, shift, since = np.zeros((3, ENGINES), np.int64)
    return EngineDrift(known, shift, since, np.zeros(4, np.int64))


def forget_seen(seen: EngineDrift) -> None:
    """Nothing was there before."""
    seen.known[:], seen.shift[:] = -1, _NONE
    seen.all[:] = -1, _NONE, 0, 0


class Remote(NamedTuple):
    """Edges that come from other cores to instructions of the part, in the order of these (see `remote`)."""

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
def scan(
    part_engine: Bytes8,
    inside: Inside,
    transfer: Bytes8,
    cycles: Ints,
    latency: int,
    first: int,
    q: Queues,
    bound: Ints32,
    ddr: Ints32,
    past: Intervals,
    pieces: int,
    piece: Ints32,
    remote: Remote,
    r: RecordRows,
    seen: EngineDrift,
    again: bool,
) -> None:
    """Hazards and times of one part's records, which are instructions `first` .. of the program; latency: of a DDR transfer.

    bound .. piece: what the part finds (see `history`).  again: the pass before had them, and `r` has what it found: `seen` is told.
    """
    clock, latest, ring, ring_at, oldest = pointer(q.clock), pointer(q.latest), pointer(q.ring), pointer(q.ring_at), pointer(q.oldest)
    free, last_key, queue_first, full = pointer(q.free), pointer(q.key), pointer(q.first), pointer(q.full)
    engine, known, after, end, key = pointer(r.engine), pointer(r.known), pointer(r.after), pointer(r.end), pointer(r.key)
    edge_start, edge_from, edge_to = pointer(r.edge_start), pointer(r.edge_from), pointer(r.edge_to)
    set_head, set_tail, set_next = pointer(r.set_head), pointer(r.set_tail), pointer(r.set_next)
    own, inner, starts, outer = pointer(part_engine), pointer(inside.need), pointer(inside.start), pointer(inside.outer)
    moves, lasts = pointer(transfer), pointer(cycles)
    found = pointer(bound), ddr.shape[0], pointer(ddr), pointer(past.bound), pointer(past.last), pieces, pointer(piece)
    source_of, target_of = pointer(remote.source), pointer(remote.target)
    outers, limit = inside.outer.shape[0], q.ring.shape[2]
    need, todo, ports = pointer(q.need), pointer(q.todo), pointer(q.ports)
    seen_known, seen_shift, seen_since, seen_all = pointer(seen.known), pointer(seen.shift), pointer(seen.since), pointer(seen.all)
    edge: Any = np.int64(edge_start[first])
    from_afar = met = 0
    for j in range(part_engine.shape[0]):
        i = first + j
        me: Any = np.int64(own[j])
        mine = me * ENGINES
        engine[i] = own[j]
        overlaps = moves[j] and ports[me] > 1  # with others of its queue
        count, begin, stop = 0, starts[j], starts[j + 1]
        if full[me]:  # `limit` of my SETs may still stand with somebody: no more until that one has been waited for
            full[me] = 0
            for e in range(ENGINES):
                if e != me and oldest[mine + e] > clock[mine + e]:
                    full[me] = 1
        if full[me] or (met < outers and outer[3 * met] == j):
            for e in range(ENGINES):
                need[e] = -1
            for k in range(begin, stop):
                need[np.int64(own[inner[k]])] = first + inner[k]
            while met < outers and outer[3 * met] == j:
                a = outer[3 * met + 1]
                meet(need, a & 1, a >> 1, outer[3 * met + 2], *found)
                met += 1
            for e in range(ENGINES):
                if e != me and oldest[mine + e] > clock[mine + e]:
                    need[e] = latest[e]
            if not overlaps:
                need[me] = -1
            for e in range(ENGINES):
                if need[e] > clock[mine + e]:
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
        for k in range(count):  # the latest first: it may imply others
            best = todo[k]
            its: Any = np.int64(engine[best])
            if best <= clock[mine + its]:
                continue
            pair = its * ENGINES + me
            at = ring_at[pair]
            # a WAIT before a SET of its own queue has been taken by then
            early = oldest[pair] > (best if its == me else np.int64(known[best * ENGINES + me]))
            ring[pair * limit + at] = i
            at += 1
            if at == limit:
                at = 0
            ring_at[pair] = at
            oldest[pair] = ring[pair * limit + at]
            if its != me and oldest[pair] > clock[pair]:
                full[its] = 1
                early = True
            if early:
                best = latest[its]
            if again and (edge_from[edge] != best or edge_to[edge] != i):
                seen_all[FLAGS] = i
            _connect(edge_from, edge_to, set_head, set_tail, set_next, edge, best, i)
            edge += 1
            ready = max(ready, end[best])
            for other in range(ENGINES):
                clock[mine + other] = max(clock[mine + other], np.int64(known[best * ENGINES + other]))
            clock[mine + its] = best
        while from_afar < remote.edges and target_of[from_afar] == i:
            source = source_of[from_afar]
            _connect(edge_from, edge_to, set_head, set_tail, set_next, edge, source, i)
            edge += 1
            ready = max(ready, end[source] + remote.latency)
            from_afar += 1
        edge_start[i + 1] = edge
        if again:
            for e in range(ENGINES):
                if np.int64(known[i * ENGINES + e]) != clock[mine + e]:
                    seen_known[me] = i
        for e in range(ENGINES):
            known[i * ENGINES + e] = clock[mine + e]
        if not overlaps:
            clock[mine + me] = i
        if latest[me] >= 0:
            after[latest[me]] = i
        else:
            queue_first[me] = i
        after[i] = -1
        latest[me] = i
        # the longest path, with every transfer alone on the bus; key: when the instruction is wanted at its engine
        if moves[j]:
            begins = max(free[me], ready + latency)
            # wanted when its predecessor's data starts to flow, not before: a queue full of loads would stall the scalar unit
            wanted = max(ready, begins - latency)
            free[me] = begins + lasts[j] // ports[me]
        else:
            begins = max(free[me], ready)
            wanted = begins
            free[me] = begins + lasts[j]
        if again and begins + lasts[j] - end[i] != seen_shift[me]:
            seen_shift[me], seen_since[me] = begins + lasts[j] - end[i], i
        end[i] = begins + lasts[j]
        last_key[me] = max(last_key[me], wanted)
        if again and last_key[me] - key[i] != seen_all[KEYS]:
            seen_all[KEYS], seen_all[KEYS_SINCE] = last_key[me] - key[i], i
        key[i] = last_key[me]


@njit(cache=True)
def advance(
    part: Part, latency: int, core: int, first: int, q: Queues, ddr: Ints32, past: Intervals, pieces: int, out: Intervals, piece: Ints32,
    remote: Remote, r: RecordRows, seen: EngineDrift, again: bool,
) -> int:  # fmt: skip
    """`scan` of one part on a core, from its past to the next one, into `ddr` and `out`; returns how many pieces that has."""
    enter(part.bound, part.touched, ddr.shape[0], past, pieces, piece)
    r.core[first : first + part.engine.shape[0]] = core
    found = part.bound, ddr, past, pieces, piece
    scan(part.engine, part.inside, part.transfer, part.cycles, latency, first, q, *found, remote, r, seen, again)
    return leave(part.bound, part.touched, part.inside.last, first, ddr, past, pieces, out)
