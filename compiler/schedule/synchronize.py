"""Flags and issue order: from sequential records to streams that overlap and still mean the same.

Emission writes parts of a program whose *sequential* execution, one after the other, is right.  `schedule` keeps that meaning while the
engines of every core, and cores, run side by side:

1. Flags inside a core (`hazards`) and between the moves of cores (`remote`).  All of them point forward in the sequential order.
2. Times (`hazards`): the longest path through queues and flags at full bandwidth, over all cores; when each instruction could start.
3. Issue (`order`).  The scalar unit of a core hands out one stream in order; sorting by those times (ties by the sequential order) lets
   loads run ahead of the computation that precedes them in the program, over block and segment borders.

No deadlock, whatever the queues' depth.  Times never fall along a queue or from a SET to its WAIT, so (time, sequential number) is one
order of all instructions of all cores in which queues keep theirs and every SET precedes its WAIT, and each stream is a part of it.  Take
the first instruction in that order that is not done.  All before it in its stream are done, so it has been handed out and stands at the
head of its queue; what its WAITs wait for comes earlier and is done.  So it has nothing left to wait for.

What depends on a segment alone is in its `Footprint`, made once; a program's pass reads a few bytes per record and moves none.  Whoever
wants records calls `write`, which copies each of them once; whoever wants times only reads the `Schedule`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from compiler.schedule.cross_core import new_cross_core
from compiler.schedule.hazards import FIRST_OF, RecordRows, Remote, forget_seen, new_states, nothing_seen
from compiler.schedule.incremental_checkpoint import COUNT, NEVER, no_borders, set_aside
from compiler.schedule.incremental_pass import rewind, sweep, tell_changes
from compiler.schedule.instruction_numbers import EDGES, Numbered, no_numbers, numbered
from compiler.schedule.issue_order import EVERY, MARK, ROWS, MergedStream, marks_before, order
from compiler.schedule.local_dependences import ENGINES, WRITER, WRITER_ENGINE
from compiler.schedule.segment_accesses import Footprint, Footprints, Ints
from compiler.schedule.segment_table import part_table
from compiler.schedule.shared_memory_allocator import NOWHERE, Resident, SharedPlaces
from compiler.schedule.stream_writer import Schedule, find_places, write
from compiler.target.target_graph import TargetGraph
from simulator.npu import isa
from simulator.npu.isa import tag_of
from simulator.npu.parts import DMAS, Engine
from simulator.npu.program import Code

_LONGEST_COUNT = 1024  # flags never count further, whatever the machine allows: the waits that are remembered stay few
_MOVING = (int(Engine.MTE3), int(Engine.MTE2))  # in the order of queues in `remote`
_ALONE = new_cross_core(0, 0, False)  # of a program on one core


class Synchroniser:
    """Holds the tables of one unit and scratch; it may be called for any number of programs, one after the other.

    What a program begins with as the one before it did is not looked at again (`resume`), unless residents lie in the shared memory.
    Where a program on one core comes to where the one before was, what is left is that one's (`again`).
    """

    def __init__(self, target_graph: TargetGraph, footprints: Footprints | None = None) -> None:
        """footprints: of the unit, of another one's; None: it makes its own."""
        machine = target_graph.machine
        self.footprints = footprints or Footprints(target_graph)
        self.count_limit = min(machine.flags.count_limit, _LONGEST_COUNT)
        self.shared = machine.shared is not None
        self.ports = np.array([machine.dma_ports(engine) if engine in DMAS else 1 for engine in list(Engine)[:ENGINES]], np.int64)
        self.latency, self.between_cores = machine.ddr.latency_cycles, machine.flags.between_cores_cycles
        self._before = list[Footprint]()  # of the last program: whose past `_states` has, and whose arrays `_table` points to
        self._table, self._cores, self._number = part_table(()), np.zeros(0, np.int64), no_numbers()
        self._states = new_states(0, self.count_limit, self.ports, self.footprints.ddr_granules, self.footprints.on_chip)
        self._cross_core, self._remote = _ALONE, Remote(np.empty(0, np.int32), np.empty(0, np.int32), 0, self.between_cores)
        self._taken_over = list[tuple[int, slice]]()  # of the last program: rows of a core's past that residents were given
        self._rows, self._piece = _rows(1 << 12, 1 << 12), np.empty(0, np.int32)
        self._borders, self._used = no_borders(0, self.count_limit), 0  # of the last program: its cores
        self._later, self._seen = no_borders(1, self.count_limit), nothing_seen()  # see `again`
        self._edges = EDGES  # numbers of edges for each instruction of a part
        self._stream, self._stream_room = np.empty(0, np.uint8), 0  # room for each core
        self._lengths: tuple[int, ...] = ()
        self._marks, self._marked = list[Ints](), list[int]()  # of every core's merge, and how many of them hold

    def schedule(
        self, parts: Sequence[Footprint], cores: Sequence[int], segments: Sequence[int] = (), shared: SharedPlaces = NOWHERE
    ) -> Schedule:
        """Flags and issue order of the parts' records, run one part after the other.

        cores: where each part runs.  shared: what lies in the shared memory; segments: the number of each part's, where something does.
        """
        table, places = part_table([part.row for part in parts]), np.array(cores, np.int64)
        used = max(cores, default=0) + 1
        beside = numbered(table, places, self._table, self._cores, self._number, self._edges)
        number, tail = beside.number, beside.tail
        if self._make_room(beside, used) or used != self._used or shared.residents:
            self._borders.used[:], tail = 0, len(parts)
        rows, states, borders = self._rows, self._states, self._borders
        self._later.used[COUNT] = 0
        if used > 1:
            tail = len(parts)
        elif tail < len(parts):
            further = len(parts) - len(self._table)
            set_aside(borders, self._later, tail - further, further, states, rows)
        borders.forget_behind(beside.begin)
        self._used = used
        from_border = int(borders.used[COUNT]) - 1
        part_from, kept = borders.last
        changed, keys = np.full(used * ENGINES, NEVER, np.int64), np.full(used, NEVER, np.int64)
        across = self._cross_core if used > 1 else _ALONE
        then, now = (self._table, self._cores, self._number), (table, places, number)
        rewind(*then, *now, self.count_limit, states, across, self._remote, rows, borders, changed, keys)
        for core, granules in self._taken_over:
            states.ddr[core][granules] = -1
        self._taken_over.clear()
        self._before, self._table, self._cores, self._number = list(parts), *now
        n, every, middle = int(number[-1, 0]), 0 if shared.residents else int(number[-1, 0]), int(number[beside.begin, 0])
        forget_seen(self._seen)
        for stop, resident in (*self._arrivals(shared, segments), (len(parts), None)):
            enough = sweep(
                *now, part_from, stop, every, self.latency, self.count_limit, states, across, self._piece, self._remote, rows, borders,
                tail, middle, beside.moving, self._later, self._seen,
            )  # fmt: skip
            if not enough:
                return self._with_more_edges(parts, cores, segments, shared)
            part_from = max(part_from, stop)
            if resident is not None:
                self._take_over(resident, shared, used)
        if from_border >= 0:
            tell_changes(table, number, states, rows, borders, from_border, changed, keys)
        flags, shift, keys_since, taken = self._seen.all.tolist()
        ahead = beside.further, max(keys_since, flags + 1, int(number[tail, 0])), shift
        each = [(int(keys[core]), changed[core * ENGINES :][:ENGINES]) for core in range(used)]
        merged = [self._merge(core, kept, *each[core], tail < len(parts), *ahead) for core in range(used)]
        self._lengths, same_rows, same_end = zip(*merged, strict=True)
        edges, same = EDGES * n, max(tail, int(np.searchsorted(number[:-1, 0], flags, side="right")))
        firsts = states.numbers[:used, FIRST_OF : FIRST_OF + ENGINES]
        return Schedule(
            table, number, rows.after[:n], firsts, rows.core[:n], rows.engine[:n], rows.edge_start[: n + 1], rows.edge_from[:edges],
            rows.edge_to[:edges], rows.set_head[:n], rows.set_next[:edges],
            self._stream, tuple(core * self._stream_room for core in range(used)), self._lengths,
            kept, taken, changed, same_rows, same_end, same,
        )  # fmt: skip

    def _with_more_edges(self, parts: Sequence[Footprint], cores: Sequence[int], segments: Sequence[int], shared: SharedPlaces) -> Schedule:
        """From the first instruction, with numbers for the most edges that there can be."""
        self._edges = self._most_edges(len(self._states.numbers))
        self._states.ddr[:] = -1
        self._taken_over.clear()
        self._borders.used[:] = 0
        self._forget()
        return self.schedule(parts, cores, segments, shared)

    def _forget(self) -> None:
        """The next program begins and ends with nothing of the last one."""
        self._before, self._table, self._cores, self._number = [], part_table(()), np.zeros(0, np.int64), no_numbers()

    def _most_edges(self, cores: int) -> int:
        """To an instruction."""
        return ENGINES + (2 if self.shared else 1) * (cores - 1)

    def _arrivals(self, shared: SharedPlaces, segments: Sequence[int]) -> list[tuple[int, Resident]]:
        """Residents that come where others were, in their order, each with the first part of the segment where it is born."""
        arriving = sorted((r for r in shared.residents if r.after), key=lambda r: r.birth)
        found = []
        for resident in arriving:
            at = next((index for index, segment in enumerate(segments) if resident.birth <= segment), None)
            if at is not None:
                found.append((at, resident))
        return found

    def _merge(
        self, core: int, kept: int, key: int, changed: Ints, again: bool, further: int, since: int, shift: int
    ) -> tuple[int, int, int]:
        """A core's stream; its length, how many of its rows are what they were, its end counted as one, and how many of its last ones are.

        again: the program may end as the one before did; what follows then: as `MergedStream` has it.
        """
        marks, known = self._marks[core], 0
        if kept:
            known = marks_before(marks[: self._marked[core]], kept, key, changed)
        stream = self._stream[core * self._stream_room :][: self._stream_room]
        later, rows, begin = marks[:0], 0, 0
        if kept or again:
            rows = self._lengths[core]
        if again:
            later, begin = marks[known : self._marked[core]].copy(), int(marks[known - 1, ROWS]) if known else 0
        then = MergedStream(later, rows, stream[begin:rows].copy(), begin, further, since, shift)
        first = self._states.numbers[core, FIRST_OF : FIRST_OF + ENGINES]
        length, same, end, self._marked[core] = order(first, self._rows, marks, known, stream, then)
        return length, same, end

    def forget_borders(self) -> None:
        """The next program is looked at from its first instruction to its last one."""
        self._used = 0

    def write(self, schedule: Schedule, codes: Sequence[Code], tags: Sequence[int]) -> tuple[Code, ...]:
        """The streams; `codes` are the records of the scheduled parts, `tags` what their TAGs get as segment."""
        s = schedule
        out = tuple(np.empty((length, isa.WORDS), np.int32) for length in s.lengths)
        place = np.empty(len(s.engine), np.int32)
        for at, length, core_first in zip(s.stream_start, s.lengths, s.first, strict=True):
            find_places(core_first, s.stream[at : at + length], s.after, s.edge_start, s.set_head, s.set_next, place)
        for code, tag, first in zip(codes, tags, s.number[:-1, 0].tolist(), strict=True):
            if len(code):
                stream = out[s.core[first]]
                edges = s.edge_start, s.edge_from, s.edge_to, s.set_head, s.set_next
                write(code, first, tag_of(tag, 0), place, s.core, s.engine, *edges, stream)
        return out

    def _take_over(self, resident: Resident, shared: SharedPlaces, cores: int) -> None:
        """Whoever writes a resident comes behind everything that touched those that were there before."""
        granules = self.footprints.granules_of(resident.first, resident.blocks)
        gone = [self.footprints.granules_of(*shared.residents[k][:2]) for k in resident.after]
        for core in range(cores):
            past = np.concatenate([self._states.ddr[core][rows] for rows in gone])
            last = past[:, :ENGINES].max(0)
            for engine in _MOVING:
                last[engine] = max(last[engine], past[past[:, WRITER_ENGINE] == engine, WRITER].max(initial=-1))
            self._states.ddr[core][granules, :ENGINES] = np.maximum(self._states.ddr[core][granules, :ENGINES], last)
            self._taken_over.append((core, granules))
            if cores > 1:
                queues = self._cross_core.before[granules]
                for k, engine in enumerate(_MOVING):
                    at = k * len(self._cross_core.last) // len(_MOVING) + core
                    queues[:, at] = np.maximum(queues[:, at], last[engine])

    def _make_room(self, beside: Numbered, cores: int) -> bool:
        """Scratch for a program on so many cores; it is never given back.  True where nothing of the last program is left."""
        lost, n, longest, cells = False, int(beside.number[-1, 0]), beside.instructions, beside.cells
        if len(self._states.numbers) < cores:
            self._states = new_states(cores, self.count_limit, self.ports, self.footprints.ddr_granules, self.footprints.on_chip)
            self._forget()
            self._taken_over.clear()
            lost = True
            while len(self._marks) < cores:
                self._marks.append(np.empty((0, MARK), np.int64))
                self._marked.append(0)
        if self._borders.pieces.shape[1] != cores:
            self._borders = no_borders(cores, self.count_limit)
        self._borders, self._later = self._borders.with_room(), self._later.with_room()
        if cores > 1 and len(self._cross_core.seen) < 2 * cores:
            self._cross_core = new_cross_core(self.footprints.ddr_granules, cores, self.shared)
        afar = longest * max(0, len(self._cross_core.seen) - 2)
        if afar > len(self._remote.source):
            source, target = np.empty((2, 2 * afar), np.int32)
            self._remote = Remote(source, target, 0, self.between_cores)
        edges = EDGES * n + longest * self._most_edges(cores)  # a part may have more than there are numbers for
        if n > len(self._rows.engine) or edges > len(self._rows.edge_from):
            self._rows, lost = _rows(max(n, 2 * len(self._rows.engine)), max(edges, 2 * len(self._rows.edge_from))), True
        room = len(self._rows.engine) + 2 * len(self._rows.edge_from)
        if room > self._stream_room or len(self._stream) < cores * room:
            self._stream, self._stream_room, lost = np.empty(len(self._states.numbers) * room, np.uint8), room, True
        for core in range(cores):
            if len(self._marks[core]) < len(self._rows.engine) // EVERY:
                self._marks[core], lost = np.empty((len(self._rows.engine) // EVERY, MARK), np.int64), True
        if cells > len(self._piece):
            self._piece = np.empty(2 * cells, np.int32)
        return lost


def _rows(room: int, edges: int) -> RecordRows:
    """Most of the room for edges is never touched: a few kinds of instructions have several, and memory comes with its first use."""
    return RecordRows(
        core=np.empty(room, np.uint8),
        engine=np.empty(room, np.uint8),
        known=np.empty((room, ENGINES), np.int32),
        after=np.empty(room, np.int32),
        end=np.empty(room, np.int64),
        key=np.empty(room, np.int64),
        edge_start=np.empty(room + 1, np.int32),
        edge_from=np.empty(edges, np.int32),
        edge_to=np.empty(edges, np.int32),
        set_head=np.empty(room, np.int32),
        set_tail=np.empty(room, np.int32),
        set_next=np.empty(edges, np.int32),
    )
