"""Incremental preparation: entries of the event loop from a schedule, without the records from which `simulator.timing.prepare` makes them.

A search needs only times, and every record has 128 bytes.  A test checks that times are equal to the cycle.  Shipped programs are measured
from their own streams (`compiler.build`).

Every queue has a range of one array, with spare room behind it, so that entries shared with the previous schedule stay in place.
Flags have no gaps: *slot* k is the k-th edge, whatever the number of this edge is.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from compiler.schedule.instruction_numbers import EDGE_END, EDGES, FIRST_INSTRUCTION
from compiler.schedule.segment_accesses import Bytes8, Ints, Ints32
from compiler.schedule.segment_table import RECORDS, TRANSFERS, part_of
from compiler.schedule.stream_writer import Schedule
from simulator.incremental_timing import Entries
from simulator.pointer import pointer
from simulator.timing_converge import CommonSuffix, find_common_suffix
from simulator.timing_state import BUS_BITS, ENGINES, FIXED, KIND_BITS, KIND_MASK, SET, SET_REMOTE, TRANSFER, WAIT

_FIXED, _TRANSFER, _WAIT, _SET, _SET_REMOTE = FIXED, TRANSFER, WAIT, SET, SET_REMOTE
EVERY = 1 << 10  # instructions between two rows of cursors
_ENGINES = ENGINES - 1  # engines with queues in a schedule: SCALAR gets no instruction


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
    slot: Ints32,
    word: Ints,
    limit: Ints,
    previous_end: Ints,
    cursor: Ints,
    changed_entry: Ints,
    cursors: Ints,
    slots_from: Ints,
    row: int,
) -> int:
    """Write the entries of a part from its instruction `start` on.  first: first instruction of the part.

    slot: int32 [edges], flag of every edge.  word: entries.  Per queue, int64 [queues]: limit, end of its room; previous_end, end of its
    previous entries; cursor, position of its next entry; changed_entry, position of its first changed entry (-1: none so far).
    cursors, slots_from: see `Entries`; written from row `row` on, one row per `EVERY` instructions.
    Returns the next row, or -1 without enough room.
    """
    words, nexts, edge_begins, slots = pointer(word), pointer(set_next), pointer(edge_start), pointer(slot)
    room_ends, previous_ends, positions, first_changed = pointer(limit), pointer(previous_end), pointer(cursor), pointer(changed_entry)
    cores, engines = pointer(core), pointer(engine)
    for j in range(start, cost.shape[0]):
        i = first + j
        while i >= row * EVERY:
            for q in range(cursor.shape[0]):
                cursors[row, q] = positions[q]
            slots_from[row] = slots[EDGES * first] + edge_begins[i] - EDGES * first
            row += 1
        q = np.int64(cores[i]) * ENGINES + engines[i]
        entry, end = positions[q], room_ends[q]
        if entry + edge_begins[i + 1] - edge_begins[i] >= end:  # entries: WAITs, and the instruction itself
            return -1
        for edge in range(edge_begins[i], edge_begins[i + 1]):
            value = np.int64(slots[edge]) << KIND_BITS | _WAIT
            if first_changed[q] < 0 and (entry >= previous_ends[q] or words[entry] != value):
                first_changed[q] = entry
            words[entry] = value
            entry += 1
        if transfer[j]:
            value = cost[j] << BUS_BITS | np.int64(transfer[j]) << KIND_BITS | _TRANSFER
        else:
            value = cost[j] << KIND_BITS | _FIXED
        if first_changed[q] < 0 and (entry >= previous_ends[q] or words[entry] != value):
            first_changed[q] = entry
        words[entry] = value
        entry += 1
        set_edge = np.int64(set_head[i])
        while set_edge >= 0:
            if entry >= end:
                return -1
            value = np.int64(slots[set_edge]) << KIND_BITS | (_SET if cores[edge_to[set_edge]] == cores[i] else _SET_REMOTE)
            if first_changed[q] < 0 and (entry >= previous_ends[q] or words[entry] != value):
                first_changed[q] = entry
            words[entry] = value
            entry += 1
            set_edge = nexts[set_edge]
        positions[q] = entry
    return row


@njit(cache=True)
def _move(previous: Ints, begin: int, stop: int, shift: int, flag_shift: int, word: Ints) -> None:
    """Copy entries [begin, stop) of the previous schedule to positions higher by `shift`, with flag numbers raised by `flag_shift`."""
    old, new = pointer(previous), pointer(word)
    for row in range(begin, stop):
        new[row + shift] = old[row] + (flag_shift if (old[row] & KIND_MASK) >= _WAIT else 0)


@njit(cache=True)
def _fill_parts(
    parts: Ints,
    number: Ints,
    row: int,
    first_kept: int,
    core: Bytes8,
    engine: Bytes8,
    edge_start: Ints32,
    edge_from: Ints32,
    edge_to: Ints32,
    set_head: Ints32,
    set_next: Ints32,
    slot: Ints32,
    source: Ints32,
    word: Ints,
    limit: Ints,
    previous_end: Ints,
    cursor: Ints,
    changed_entry: Ints,
    cursors: Ints,
    slots_from: Ints,
    rows: int,
    previous: Ints,
    places: Ints,
    places_then: Ints,
) -> tuple[int, int]:
    """Write the entries of all parts from row `row` of the cursors on.  Other arguments: see `_fill`.

    parts: table of parts (`compiler.schedule.segment_table`).  number: numbers of parts (`compiler.schedule.instruction_numbers`).
    first_kept: first of the unchanged parts at the end; their edges are unchanged, too.  source: int32 [edges], instruction that sets
    a flag.
    rows: number of previous rows of cursors.  previous: entries of the previous schedule.  places, places_then: int64 [parts + 1, queues],
    cursors before each part.  Returns the number of rows of cursors, or -1 without enough room, and the number of flags.
    """
    resumed_at, slots, count, moved = row * EVERY, 0, parts.shape[0], 0
    for p in range(count):
        first, stop = EDGES * number[p, FIRST_INSTRUCTION], number[p, EDGE_END]
        if p == first_kept:
            moved = slots - slot[first]
        if resumed_at < number[p, FIRST_INSTRUCTION] + parts[p, RECORDS] and (p < first_kept or moved != 0):
            slot[first] = slots  # a part without edges has a slot here, too
            for edge in range(first, stop):
                slot[edge] = slots + edge - first
                source[slots + edge - first] = edge_from[edge]
        slots += stop - first
    for p in range(first_kept):
        first = number[p, FIRST_INSTRUCTION]
        if resumed_at >= first + parts[p, RECORDS] or resumed_at > first:
            places[p] = places_then[p]
        else:
            places[p] = cursor
        if resumed_at < first + parts[p, RECORDS]:
            part = part_of(parts[p])
            state = core, engine, edge_start, edge_to, set_head, set_next, part.cost, part.transfer, slot
            row = _fill(
                first, max(0, resumed_at - first), *state, word, limit, previous_end, cursor, changed_entry, cursors, slots_from, row
            )
            if row < 0:
                return row, slots
    if first_kept == count:
        places[count] = cursor
        return row, slots
    first, added_parts = number[first_kept, FIRST_INSTRUCTION], count - places_then.shape[0] + 1
    shift = cursor - places_then[first_kept - added_parts]
    while row < rows and row * EVERY <= first:
        cursors[row], slots_from[row] = cursor, slot[EDGES * first]
        row += 1
    for k in range(row, rows):
        cursors[k] += shift
        slots_from[k] += moved
    for p in range(first_kept, count + 1):
        places[p] = places_then[p - added_parts] + shift
    for q in range(cursor.shape[0]):
        stop = places[count, q]
        if stop > limit[q]:
            return -1, slots
        if moved != 0 or shift[q] != 0:
            _move(previous, cursor[q] - shift[q], stop - shift[q], shift[q], moved << KIND_BITS, word)
        if changed_entry[q] < 0 and shift[q] != 0:  # some entry differs: the queues have different lengths
            changed_entry[q] = cursor[q]
            while changed_entry[q] < min(stop, previous_end[q]) and previous[changed_entry[q]] == word[changed_entry[q]]:
                changed_entry[q] += 1
        elif changed_entry[q] < 0 and moved != 0:
            changed_entry[q] = cursor[q]
            while changed_entry[q] < stop and (word[changed_entry[q]] & KIND_MASK) < _WAIT:
                changed_entry[q] += 1
        cursor[q] = stop
    return rows, slots


@njit(cache=True)
def _lengths(parts: Ints, number: Ints, core: Bytes8, engine: Bytes8, edge_start: Ints32, edge_from: Ints32, length: Ints) -> None:
    """Add the number of entries of every queue to `length`, int64 [queues]."""
    for p in range(parts.shape[0]):
        for i in range(number[p, FIRST_INSTRUCTION], number[p, FIRST_INSTRUCTION] + parts[p, RECORDS]):
            length[np.int64(core[i]) * ENGINES + engine[i]] += 1 + edge_start[i + 1] - edge_start[i]
        for edge in range(EDGES * number[p, FIRST_INSTRUCTION], number[p, EDGE_END]):
            source = edge_from[edge]
            length[np.int64(core[source]) * ENGINES + engine[source]] += 1


class Preparer:
    """Preparer of schedules, which keeps the entries of the previous one: it must get every schedule of one synchroniser, in order.

    places: int64 [parts + 1, queues], position of the first entry of every part of the last schedule, and the end.
    """

    def __init__(self) -> None:
        self._word, self._queues = np.empty(0, np.int64), np.empty((0, 2), np.int64)
        self._limit, self._cursors, self._slots_from = np.empty(0, np.int64), np.empty((0, 0), np.int64), np.empty(0, np.int64)
        self._rows, self._slot, self._source = 0, np.empty(0, np.int32), np.empty(0, np.int32)  # cursors; slots and sources of edges
        self.places = np.empty((0, 0), np.int64)
        # previous schedule: entries that may be overwritten, and ranges of its queues; engines of its streams, and ranges of its streams
        self._previous_word, self._previous_queues, self._slots = np.empty(0, np.int64), np.empty((0, 2), np.int64), 0
        self._engine, self._streams = np.empty(0, np.uint8), np.empty((0, 2), np.int64)

    def forget(self) -> None:
        """Forget the previous schedule: the next schedule shares no entry with it."""
        self._limit = np.empty(0, np.int64)

    def entries(self, schedule: Schedule) -> tuple[Entries, Ints, Ints, CommonSuffix | None]:
        """Entries of a schedule, and their overlap with the previous schedule.  The next call overwrites the arrays.

        Returns entries for the first len(schedule.lengths) cores of the machine; per queue, int64 [queues], the position up to which
        entries are shared; per core, int64 [cores], the row up to which rows are shared, with the end of a stream as a row; and the common
        suffix.
        """
        plan, cores, slots_then = schedule, len(schedule.lengths), self._slots
        shared_entries = None
        if (
            len(self._limit) == cores * ENGINES
            and len(plan.engine) // EVERY < len(self._cursors)
            and len(plan.edge_from) <= len(self._slot)
        ):
            shared_entries = self._write_entries(plan, min(plan.reused_count, int(plan.changed.min())), plan.same_parts)
        has_previous = shared_entries is not None
        if shared_entries is None:
            self._lay_out(plan, cores)
            shared_entries = self._write_entries(plan, 0, len(plan.parts))
            assert shared_entries is not None, "a queue has as many entries as were counted"
            shared_entries[:] = -1  # no entry is shared: the previous entries were in another place
        start = np.array(plan.stream_start, np.int64)
        streams = np.column_stack((start, start + plan.lengths))
        suffix = None
        if has_previous and len(streams) == len(self._streams):
            suffix = find_common_suffix(
                self._word,
                self._queues,
                plan.stream,
                streams,
                self._previous_word,
                self._previous_queues,
                self._engine,
                self._streams,
                self._slots - slots_then,
                self.places[-1] - self.places[plan.same_parts],
                np.array(plan.same_end, np.int64),
            )
        if len(self._engine) != len(plan.stream):
            self._engine, has_previous = np.empty_like(plan.stream), False
        for (begin, end), unchanged in zip(streams.tolist(), plan.same_rows, strict=True):
            changed = begin + unchanged if has_previous else begin
            self._engine[changed:end] = plan.stream[changed:end]
        # rows of a stream that has moved have other numbers, so it shares no row
        in_place = np.array_equal(start, self._streams[:, 0])
        same_rows = start + plan.same_rows if in_place else np.full(cores, -1, np.int64)
        self._streams, slots = streams, self._slots
        marks, slots_from, source = self._cursors[: self._rows], self._slots_from[: self._rows], self._source[:slots]
        transfers = int(plan.parts[:, TRANSFERS].sum())
        entries = Entries(self._word, self._queues, plan.stream, streams, slots, transfers, source, marks, slots_from, EVERY)
        return entries, shared_entries, same_rows, suffix

    def _lay_out(self, schedule: Schedule, cores: int) -> None:
        """Allocate room for the entries of a schedule, with spare room behind every queue."""
        length = np.zeros(cores * ENGINES, np.int64)
        _lengths(schedule.parts, schedule.number, schedule.core, schedule.engine, schedule.edge_start, schedule.edge_from, length)
        room = 2 * length + EVERY  # untouched pages take no memory
        self._limit = np.cumsum(room)
        begin = self._limit - room
        self._queues = np.column_stack((begin, begin))
        if self._limit[-1] > len(self._word):
            self._word = np.empty(self._limit[-1], np.int64)
        rows = len(schedule.engine) // EVERY * 2 + 2
        self._cursors, self._slots_from = np.empty((rows, cores * ENGINES), np.int64), np.zeros(rows, np.int64)
        self._cursors[0], self._rows = begin, 1
        if len(schedule.edge_from) > len(self._slot):
            self._slot, self._source = np.empty((2, 2 * len(schedule.edge_from)), np.int32)

    def _write_entries(self, schedule: Schedule, cached_rows: int, first_kept: int) -> Ints | None:
        """Write the entries from the last row of cursors before instruction `cached_rows` on; move entries of parts from `first_kept` on.

        Returns the position up to which entries are unchanged, int64 [queues]; None without enough room.
        """
        row = min(cached_rows // EVERY, self._rows - 1)
        cursor, changed_entry = self._cursors[row].copy(), np.full(len(self._limit), -1, np.int64)
        if len(self._previous_word) < len(self._word):
            self._previous_word = np.empty_like(self._word)
        self._previous_queues = np.column_stack((cursor, self._queues[:, 1]))
        for begin, end in self._previous_queues.tolist():
            self._previous_word[begin:end] = self._word[begin:end]
        edges = schedule.edge_start, schedule.edge_from, schedule.edge_to, schedule.set_head, schedule.set_next, self._slot, self._source
        state = self._word, self._limit, self._queues[:, 1].copy(), cursor, changed_entry, self._cursors, self._slots_from
        places = np.empty((len(schedule.parts) + 1, len(self._limit)), np.int64)
        previous_state = self._rows, self._previous_word, places, self.places
        rows, self._slots = _fill_parts(
            schedule.parts, schedule.number, row, first_kept, schedule.core, schedule.engine, *edges, *state, *previous_state
        )
        if rows < 0:
            return None
        self._queues[:, 1], self._rows, self.places = cursor, max(1, rows), places
        return np.where(changed_entry < 0, cursor, changed_entry)
