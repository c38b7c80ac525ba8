"""A schedule as the event loop wants it: what `simulator.timing.prepare` makes of the linked program, without its records.

Evaluating a program needs times only, and records are 128 bytes each.  Equal to the last cycle, which a test holds; what is shipped is
measured from its own streams (`compiler.build`).

Every queue has its place in one array, with room behind it, so that what a schedule has in common with the one before stays where it is.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numba import njit

from compiler.schedule.footprint import Bytes8, Footprint, Ints, Ints32
from compiler.schedule.part import RECORDS, part_of, part_table
from compiler.schedule.write import Schedule
from simulator.pointer import pointer
from simulator.resuming import Entries
from simulator.timing_again import Alike, alike
from simulator.timing_state import BUS_BITS, ENGINES, FIXED, KIND_BITS, SET, SET_REMOTE, TRANSFER, WAIT

_FIXED, _TRANSFER, _WAIT, _SET, _SET_REMOTE = FIXED, TRANSFER, WAIT, SET, SET_REMOTE
EVERY = 1 << 10  # instructions from one row of cursors to the next
_ENGINES = ENGINES - 1  # that a schedule has queues for: SCALAR takes no instruction


@njit(cache=True)
def _fill(
    first: int,
    start: int,
    core: Bytes8,
    engine: Bytes8,
    edge_start: Ints32,
    edge_to: Ints32,
    set_head: Ints32,
    set_next: Ints32,
    cost: Ints,
    transfer: Bytes8,
    word: Ints,
    limit: Ints,
    before: Ints,
    cursor: Ints,
    same: Ints,
    cursors: Ints,
) -> bool:
    """Entries of a part, whose first instruction is `first`, from its instruction `start` on; an edge is its own flag slot.

    limit, before, cursor, same: int64 [queues], where a queue's room ends, where its entries of the last schedule end, where its next one
    goes, and up to where they are what they were (or -1: so far they are).  cursors: int64 [.., queues], cursor in front of every
    `EVERY`-th instruction.  Returns whether there was room.
    """
    words, nexts, begins = pointer(word), pointer(set_next), pointer(edge_start)
    ends, olds, at_of, equal = pointer(limit), pointer(before), pointer(cursor), pointer(same)
    cores, engines = pointer(core), pointer(engine)
    for j in range(start, cost.shape[0]):
        i = first + j
        if i % EVERY == 0:
            for q in range(cursor.shape[0]):
                cursors[i // EVERY, q] = at_of[q]
        q = np.int64(cores[i]) * ENGINES + engines[i]
        at, end = at_of[q], ends[q]
        if at + begins[i + 1] - begins[i] >= end:
            return False
        for edge in range(begins[i], begins[i + 1]):
            value = np.int64(edge) << KIND_BITS | _WAIT
            if equal[q] < 0 and (at >= olds[q] or words[at] != value):
                equal[q] = at
            words[at] = value
            at += 1
        if transfer[j]:
            value = cost[j] << BUS_BITS | np.int64(transfer[j]) << KIND_BITS | _TRANSFER
        else:
            value = cost[j] << KIND_BITS | _FIXED
        if equal[q] < 0 and (at >= olds[q] or words[at] != value):
            equal[q] = at
        words[at] = value
        at += 1
        out = np.int64(set_head[i])
        while out >= 0:
            if at >= end:
                return False
            value = out << KIND_BITS | (_SET if cores[edge_to[out]] == cores[i] else _SET_REMOTE)
            if equal[q] < 0 and (at >= olds[q] or words[at] != value):
                equal[q] = at
            words[at] = value
            at += 1
            out = nexts[out]
        at_of[q] = at
    return True


@njit(cache=True)
def _fill_parts(
    parts: Ints,
    begun: int,
    core: Bytes8,
    engine: Bytes8,
    edge_start: Ints32,
    edge_to: Ints32,
    set_head: Ints32,
    set_next: Ints32,
    word: Ints,
    limit: Ints,
    before: Ints,
    cursor: Ints,
    same: Ints,
    cursors: Ints,
) -> bool:
    """`_fill` of all parts of a table (`compiler.schedule.part`), from instruction `begun` of the program on."""
    first = 0
    for p in range(parts.shape[0]):
        count = parts[p, RECORDS]
        if begun < first + count:
            part = part_of(parts[p])
            known = core, engine, edge_start, edge_to, set_head, set_next, part.cost, part.transfer
            if not _fill(first, max(0, begun - first), *known, word, limit, before, cursor, same, cursors):
                return False
        first += count
    return True


@njit(cache=True)
def _lengths(core: Bytes8, engine: Bytes8, edge_start: Ints32, edge_from: Ints32, length: Ints) -> None:
    """length: int64 [queues], all 0 before: entries of every queue."""
    for i in range(engine.shape[0]):
        length[np.int64(core[i]) * ENGINES + engine[i]] += 1 + edge_start[i + 1] - edge_start[i]
    for edge in range(edge_from.shape[0]):
        source = edge_from[edge]
        length[np.int64(core[source]) * ENGINES + engine[source]] += 1


class Preparer:
    """Holds the entries of the last schedule; schedules of one synchroniser come to it one after the other, all of them."""

    def __init__(self) -> None:
        self._word, self._queues = np.empty(0, np.int64), np.empty((0, 2), np.int64)
        self._limit, self._cursors = np.empty(0, np.int64), np.empty((0, 0), np.int64)
        # of the last schedule: entries that the next one may write over, and where; engines of its streams, and where these lie; flags
        self._then, self._known = np.empty(0, np.int64), np.empty((0, 2), np.int64)
        self._engine, self._streams, self._slots = np.empty(0, np.uint8), np.empty((0, 2), np.int64), 0

    def forget(self) -> None:
        """The next schedule has nothing in common with the last one."""
        self._limit = np.empty(0, np.int64)

    def entries(self, schedule: Schedule, parts: Sequence[Footprint]) -> tuple[Entries, Ints, Ints, Alike | None]:
        """The schedule of `parts`, on the cores that it uses: the first len(schedule.lengths) of the machine.

        Also int64 [queues] and int64 [cores]: up to which entry, and up to which row, they are those of the schedule before, the end of a
        stream counted as a row; and with what both end.  Arrays are written again by the next call.
        """
        s, cores = schedule, len(schedule.lengths)
        same = None
        if len(self._limit) == cores * ENGINES and len(s.engine) // EVERY < len(self._cursors):
            same = self._filled(s, parts, min(s.kept, int(s.changed.min())))
        stays = same is not None
        if same is None:
            self._lay_out(s, cores)
            same = self._filled(s, parts, 0)
            assert same is not None, "a queue has as many entries as were counted"
            same[:] = -1  # what was there is elsewhere
        start = np.array(s.stream_start, np.int64)
        streams = np.column_stack((start, start + s.lengths))
        slots = len(s.edge_from)
        behind = None
        if stays and len(streams) == len(self._streams):
            behind = alike(
                self._word, self._queues, s.stream, streams, self._then, self._known, self._engine, self._streams, slots - self._slots
            )
        if len(self._engine) != len(s.stream):
            self._engine = np.empty_like(s.stream)
        for begin, end in streams.tolist():
            self._engine[begin:end] = s.stream[begin:end]
        self._streams, self._slots = streams, slots
        transfers = sum([part.transfers for part in parts])
        marks, slots_from = self._cursors[: -(-len(s.engine) // EVERY) or 1], s.edge_start[::EVERY]
        entries = Entries(self._word, self._queues, s.stream, streams, slots, transfers, s.edge_from, marks, slots_from, EVERY)
        return entries, same, start + s.same_rows, behind

    def _lay_out(self, s: Schedule, cores: int) -> None:
        """Room for the entries of a schedule, and some more."""
        length = np.zeros(cores * ENGINES, np.int64)
        _lengths(s.core, s.engine, s.edge_start, s.edge_from, length)
        room = 2 * length + EVERY  # next to none of it is ever touched
        self._limit = np.cumsum(room)
        begin = self._limit - room
        self._queues = np.column_stack((begin, begin))
        if self._limit[-1] > len(self._word):
            self._word = np.empty(self._limit[-1], np.int64)
        self._cursors = np.empty((len(s.engine) // EVERY * 2 + 2, cores * ENGINES), np.int64)
        self._cursors[0] = begin

    def _filled(self, s: Schedule, parts: Sequence[Footprint], kept: int) -> Ints | None:
        """Entries of instructions from `kept` on, or a little before.

        Returns int64 [queues], up to where they are what they were; None where there is no room.
        """
        row = kept // EVERY
        cursor, same = self._cursors[row].copy(), np.full(len(self._limit), -1, np.int64)
        if len(self._then) < len(self._word):
            self._then = np.empty_like(self._word)
        self._known = np.column_stack((cursor, self._queues[:, 1]))
        for begin, end in self._known.tolist():
            self._then[begin:end] = self._word[begin:end]
        edges = s.edge_start, s.edge_to, s.set_head, s.set_next
        known = self._word, self._limit, self._queues[:, 1].copy(), cursor, same, self._cursors
        if not _fill_parts(part_table([part.row for part in parts]), row * EVERY, s.core, s.engine, *edges, *known):
            return None
        self._queues[:, 1] = cursor
        return np.where(same < 0, cursor, same)
