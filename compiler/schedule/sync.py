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

from compiler.schedule.footprint import Footprint, Footprints, Ints
from compiler.schedule.hazards import FIRST_OF, RecordRows, Remote, new_states
from compiler.schedule.history import CELL
from compiler.schedule.inside import ENGINES, WRITER, WRITER_ENGINE
from compiler.schedule.order import EVERY, MARK, marks_before, order
from compiler.schedule.part import CELLS, RECORDS, part_table
from compiler.schedule.remote import new_cross_core
from compiler.schedule.resume import COUNT, NEVER, no_borders
from compiler.schedule.shared import NOWHERE, Resident, SharedPlaces
from compiler.schedule.sweep import rewind, sweep, tell_changes
from compiler.schedule.write import Schedule, write
from compiler.unit.unit import Unit
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
    """

    def __init__(self, unit: Unit, footprints: Footprints | None = None) -> None:
        """footprints: of the unit, of another one's; None: it makes its own."""
        machine = unit.machine
        self.footprints = footprints or Footprints(unit)
        self.count_limit = min(machine.flags.count_limit, _LONGEST_COUNT)
        self.shared = machine.shared is not None
        self.ports = np.array([machine.dma_ports(engine) if engine in DMAS else 1 for engine in list(Engine)[:ENGINES]], np.int64)
        self.latency, self.between_cores = machine.ddr.latency_cycles, machine.flags.between_cores_cycles
        self._before = list[Footprint]()  # of the last program: whose past `_states` has, and whose arrays `_table` points to
        self._table, self._cores = part_table(()), np.zeros(0, np.int64)
        self._states = new_states(0, self.count_limit, self.ports, self.footprints.ddr_granules, self.footprints.on_chip)
        self._cross_core, self._remote = _ALONE, Remote(np.empty(0, np.int32), np.empty(0, np.int32), 0, self.between_cores)
        self._taken_over = list[tuple[int, slice]]()  # of the last program: rows of a core's past that residents were given
        self._rows, self._cell = _rows(1 << 12, 1 << 12), np.empty((0, CELL), np.int32)
        self._borders, self._used, self._edges = no_borders(0, self.count_limit), 0, 0  # of the last program: its cores, its edges
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
        n, used = int(table[:, RECORDS].sum()), max(cores, default=0) + 1
        if self._make_room(table, n, used) or used != self._used or shared.residents:
            self._borders.used[:] = 0
        self._borders.forget_behind(_alike(table, places, self._table, self._cores))
        self._used = used
        rows, states, borders = self._rows, self._states, self._borders
        from_border = int(borders.used[COUNT]) - 1
        part_from, kept = borders.last
        changed, keys = np.full(used * ENGINES, NEVER, np.int64), np.full(used, NEVER, np.int64)
        across = self._cross_core if used > 1 else _ALONE
        then = self._table, self._cores
        rewind(*then, table, places, self.count_limit, self._edges, states, across, self._remote, rows, borders, changed, keys)
        for core, granules in self._taken_over:
            states.ddr[core][granules] = -1
        self._taken_over.clear()
        self._before, self._table, self._cores = list(parts), table, places
        rows.edge_start[0], first = 0, kept
        for stop, resident in (*self._arrivals(shared, segments), (len(parts), None)):
            first = sweep(
                table, places, part_from, stop, first, 0 if shared.residents else n, self.latency, self.count_limit, states, across,
                self._cell, self._remote, rows, borders,
            )  # fmt: skip
            part_from = max(part_from, stop)
            if resident is not None:
                self._take_over(resident, shared, used)
        self._edges = int(rows.edge_start[n])
        if from_border >= 0:
            tell_changes(self._edges, states, rows, borders, from_border, changed, keys)
        merged = [self._merge(core, kept, int(keys[core]), changed[core * ENGINES :][:ENGINES]) for core in range(used)]
        self._lengths = tuple(length for length, _ in merged)
        return Schedule(
            rows.place[:n], rows.core[:n], rows.engine[:n], rows.edge_start[: n + 1], rows.edge_from[: self._edges],
            rows.edge_to[: self._edges], rows.set_head[:n], rows.set_next[: self._edges],
            self._stream, tuple(core * self._stream_room for core in range(used)), self._lengths,
            kept, changed, tuple(same for _, same in merged),
        )  # fmt: skip

    def _arrivals(self, shared: SharedPlaces, segments: Sequence[int]) -> list[tuple[int, Resident]]:
        """Residents that come where others were, in their order, each with the first part of the segment where it is born."""
        arriving = sorted((r for r in shared.residents if r.after), key=lambda r: r.birth)
        found = []
        for resident in arriving:
            at = next((index for index, segment in enumerate(segments) if resident.birth <= segment), None)
            if at is not None:
                found.append((at, resident))
        return found

    def _merge(self, core: int, kept: int, key: int, changed: Ints) -> tuple[int, int]:
        """A core's stream; its length, and how many of its rows are what they were, its end counted as one."""
        marks, known = self._marks[core], 0
        if kept:
            known = marks_before(marks[: self._marked[core]], kept, key, changed)
        stream = self._stream[core * self._stream_room :][: self._stream_room]
        before = self._lengths[core] if kept else 0
        first = self._states.numbers[core, FIRST_OF : FIRST_OF + ENGINES]
        length, same, self._marked[core] = order(first, self._rows, marks, known, stream, before)
        return length, same

    def forget_borders(self) -> None:
        """The next program is looked at from its first instruction."""
        self._borders.used[:] = 0

    def write(self, schedule: Schedule, codes: Sequence[Code], tags: Sequence[int]) -> tuple[Code, ...]:
        """The streams; `codes` are the records of the scheduled parts, `tags` what their TAGs get as segment."""
        s = schedule
        out = tuple(np.empty((length, isa.WORDS), np.int32) for length in s.lengths)
        first = 0
        for code, tag in zip(codes, tags, strict=True):
            if len(code):
                stream = out[s.core[first]]
                edges = s.edge_start, s.edge_from, s.edge_to, s.set_head, s.set_next
                write(code, first, tag_of(tag, 0), s.place, s.core, s.engine, *edges, stream)
            first += len(code)
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

    def _make_room(self, table: Ints, n: int, cores: int) -> bool:
        """Scratch for so many instructions and cores; it is never given back.  True where nothing of the last program is left."""
        lost = False
        if len(self._states.numbers) < cores:
            self._states = new_states(cores, self.count_limit, self.ports, self.footprints.ddr_granules, self.footprints.on_chip)
            self._before, self._table, self._cores, lost = [], part_table(()), np.zeros(0, np.int64), True
            self._taken_over.clear()
            while len(self._marks) < cores:
                self._marks.append(np.empty((0, MARK), np.int64))
                self._marked.append(0)
        if self._borders.pieces.shape[1] != cores:
            self._borders = no_borders(cores, self.count_limit)
        self._borders = self._borders.with_room()
        if cores > 1 and len(self._cross_core.seen) < 2 * cores:
            self._cross_core = new_cross_core(self.footprints.ddr_granules, cores, self.shared)
        afar = int(table[:, RECORDS].max(initial=0)) * max(0, len(self._cross_core.seen) - 2)
        if afar > len(self._remote.source):
            source, target = np.empty((2, 2 * afar), np.int32)
            self._remote = Remote(source, target, 0, self.between_cores)
        edges = n * (ENGINES + (2 if self.shared else 1) * (cores - 1))
        if n > len(self._rows.engine) or edges > len(self._rows.edge_from):
            self._rows, lost = _rows(max(n, 2 * len(self._rows.engine)), max(edges, 2 * len(self._rows.edge_from))), True
        room = len(self._rows.engine) + 2 * len(self._rows.edge_from)
        if room > self._stream_room or len(self._stream) < cores * room:
            self._stream, self._stream_room, lost = np.empty(len(self._states.numbers) * room, np.uint8), room, True
        for core in range(cores):
            if len(self._marks[core]) < len(self._rows.engine) // EVERY:
                self._marks[core], lost = np.empty((len(self._rows.engine) // EVERY, MARK), np.int64), True
        cells = int(table[:, CELLS].max(initial=0))
        if cells > len(self._cell):
            self._cell = np.empty((2 * cells, CELL), np.int32)
        return lost


def _alike(table: Ints, cores: Ints, before: Ints, cores_before: Ints) -> int:
    """With how many parts both programs begin: the same arrays on the same cores."""
    most = min(len(cores), len(cores_before))
    other = (table[:most] != before[:most]).any(1) | (cores[:most] != cores_before[:most])
    return int(other.argmax()) if other.any() else most


def _rows(room: int, edges: int) -> RecordRows:
    """Most of the room for edges is never touched: a few kinds of instructions have several, and memory comes with its first use."""
    return RecordRows(
        core=np.empty(room, np.uint8),
        engine=np.empty(room, np.uint8),
        known=np.empty((room, ENGINES), np.int32),
        after=np.empty(room, np.int32),
        end=np.empty(room, np.int64),
        key=np.empty(room, np.int64),
        place=np.empty(room, np.int32),
        edge_start=np.empty(room + 1, np.int32),
        edge_from=np.empty(edges, np.int32),
        edge_to=np.empty(edges, np.int32),
        set_head=np.empty(room, np.int32),
        set_tail=np.empty(room, np.int32),
        set_next=np.empty(edges, np.int32),
    )
