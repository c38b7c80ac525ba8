"""Flags and issue order: sequential records become overlapping streams with the same meaning.

Emission writes parts whose *sequential* execution is correct.  `schedule` keeps that meaning while the
engines of every core, and the cores, run in parallel:

1. Flags inside a core (`hazards`) and between the transfers of cores (`cross_core`).  All point forward in the sequential order.
2. Times (`hazards`): the longest path through queues and flags at full bandwidth, over all cores; when each instruction could start.
3. Issue (`issue_order`).  The scalar unit of a core issues one stream in order; sorting by those times (ties by the sequential order) lets
   loads run ahead of the computation that precedes them in the program, over block and segment borders.

No deadlock, whatever the queues' depth.  Times never fall along a queue or from a SET to its WAIT, so (time, sequential number) is one
order of all instructions of all cores in which queues keep theirs and every SET precedes its WAIT, and each stream is a part of it.  Take
the first instruction in that order that is not done.  All earlier ones in its stream are done, so it has been issued and is at the head
of its queue.  Its WAITs are for earlier instructions, which are done.  So it can run.

Results that depend on a segment alone are in its `Footprint`, made once; a program's pass reads a few bytes per record and moves none.
`write` copies each record once; timing only reads the `Schedule`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from compiler.schedule.cross_core import new_cross_core
from compiler.schedule.ddr_units import DdrUnits
from compiler.schedule.hazards import FIRST_OF, RecordRows, Remote, new_drift, new_states, reset_drift
from compiler.schedule.incremental_checkpoint import COUNT, NEVER, copy_tail_borders, new_borders
from compiler.schedule.incremental_pass import extend_changes, rewind_pass, schedule_parts
from compiler.schedule.instruction_numbers import EDGE_END, EDGES, FIRST_INSTRUCTION, Numbering, empty_numbers, number_parts
from compiler.schedule.issue_order import MARK, MARK_INTERVAL, ROWS, MergedStream, count_valid_marks, merge_queues
from compiler.schedule.local_dependences import ENGINES, WRITER, WRITER_ENGINE
from compiler.schedule.segment_accesses import Footprint, Footprints, Ints
from compiler.schedule.segment_table import RECORDS, part_table
from compiler.schedule.shared_memory_allocator import NO_RESIDENTS, Resident, SharedPlaces
from compiler.schedule.stream_writer import Schedule, find_rows, write_part
from compiler.target.target_graph import TargetGraph
from simulator.npu import isa
from simulator.npu.isa import tag_of
from simulator.npu.parts import DMAS, Engine
from simulator.npu.program import Code

_LONGEST_COUNT = 1024  # largest count of a flag, even if the machine allows more: waits are remembered in arrays of this length
_LARGE = 1 << 20  # instructions and edges
_MOVING = (int(Engine.MTE3), int(Engine.MTE2))  # in the order of the queues in `cross_core`
_ALONE = new_cross_core(0, 0, False)  # state for a program on one core


class Synchroniser:
    """Scheduler of one target graph with its tables and scratch, for any number of programs one after the other.

    The common first parts of two programs are not scheduled again (`incremental_checkpoint`), except with residents in the
    shared memory.  A program on one core that converges with the previous one adopts its end (`incremental_converge`).
    """

    def __init__(self, target_graph: TargetGraph, footprints: Footprints | None = None) -> None:
        """footprints: cache of the same target graph, to share; None: a new one."""
        machine = target_graph.machine
        self.footprints = footprints or Footprints(target_graph)
        self.count_limit = min(machine.flags.count_limit, _LONGEST_COUNT)
        self.shared = machine.shared is not None
        self.ports = np.array([machine.dma_ports(engine) if engine in DMAS else 1 for engine in list(Engine)[:ENGINES]], np.int64)
        self.latency, self.between_cores = machine.ddr.latency_cycles, machine.flags.between_cores_cycles
        # with a shared memory, residents name granules (`_take_over`); one core has as many as its model is large
        self._units = DdrUnits(self.footprints.ddr_granules) if machine.cores > 1 and not self.shared else None
        self._before = list[Footprint]()  # parts of the last program: `_states` has their history, `_table` points to their arrays
        self._table, self._cores, self._number = part_table(()), np.zeros(0, np.int64), empty_numbers()
        self._states = new_states(0, self.count_limit, self.ports, 0, self.footprints.on_chip)
        self._cross_core, self._remote = _ALONE, Remote(np.empty(0, np.int32), np.empty(0, np.int32), 0, self.between_cores)
        self._taken_over = list[tuple[int, slice]]()  # last program: rows of a core's history that residents changed
        self._rows, self._piece = _rows(1 << 12, 1 << 12), np.empty(0, np.int32)
        self._borders, self._used = new_borders(0, self.count_limit), 0  # last program: borders, and number of its cores
        self._previous_borders, self._drift = new_borders(1, self.count_limit), new_drift()  # see `incremental_converge`
        self._edges = EDGES  # numbers of edges for each instruction of a part
        self._stream, self._stream_room = np.empty(0, np.uint8), 0  # room for each core
        self._lengths: tuple[int, ...] = ()
        self._marks, self._marked = list[Ints](), list[int]()  # marks of every core's merge, and the number of valid ones

    def schedule(
        self, parts: Sequence[Footprint], cores: Sequence[int], segments: Sequence[int] = (), shared: SharedPlaces = NO_RESIDENTS
    ) -> Schedule:
        """Flags and issue order of the parts' records, run one part after the other.

        cores: the core of each part.  shared: residents of the shared memory; segments: the number of each part's segment, if there are
        residents.
        """
        table, places = part_table(self._part_rows(parts)), np.array(cores, np.int64)
        core_count = max(cores, default=0) + 1
        numbering = number_parts(table, places, self._table, self._cores, self._number, self._edges)
        number, tail = numbering.number, numbering.tail
        if self._make_room(numbering, core_count) or core_count != self._used or shared.residents:
            self._borders.used[:], tail = 0, len(parts)
        rows, states, borders = self._rows, self._states, self._borders
        # the previous program's borders in the tail, to converge with
        self._previous_borders.used[COUNT] = 0
        if core_count > 1:
            tail = len(parts)
        elif tail < len(parts):
            part_offset = len(parts) - len(self._table)
            copy_tail_borders(borders, self._previous_borders, tail - part_offset, part_offset, states, rows)
        # back to the last border in front of the first difference
        borders.forget_behind(numbering.begin)
        self._used = core_count
        from_border = int(borders.used[COUNT]) - 1
        part_from, resume_instruction = borders.last
        changed, keys = np.full(core_count * ENGINES, NEVER, np.int64), np.full(core_count, NEVER, np.int64)
        across = self._cross_core if core_count > 1 else _ALONE
        previous, current = (self._table, self._cores, self._number), (table, places, number)
        rewind_pass(*previous, *current, self.count_limit, states, across, self._remote, rows, borders, changed, keys)
        for core, granules in self._taken_over:
            states.ddr[core][granules] = -1
        self._taken_over.clear()
        self._before, self._table, self._cores, self._number = list(parts), *current
        n, changed_from = int(number[-1, FIRST_INSTRUCTION]), int(number[numbering.begin, FIRST_INSTRUCTION])
        # parts of one segment change together: no later program resumes between them
        program_size = 0 if shared.residents or len(parts) > 1 == len(set(segments)) else n
        reset_drift(self._drift)
        for stop, resident in (*self._arrivals(shared, segments), (len(parts), None)):
            enough = schedule_parts(
                *current, part_from, stop, program_size, self.latency, self.count_limit, states, across, self._piece, self._remote,
                rows, borders, tail, changed_from, numbering.transfer_engines, self._previous_borders, self._drift,
            )  # fmt: skip
            if not enough:
                return self._with_more_edges(parts, cores, segments, shared)
            part_from = max(part_from, stop)
            if resident is not None:
                self._take_over(resident, shared, core_count)
        if from_border >= 0:
            extend_changes(table, number, states, rows, borders, from_border, changed, keys)
        last_edge_change, shift, key_shift_since, adopted = self._drift.all.tolist()
        # issue order: merge the changed streams, adopt the others
        ahead = numbering.further, max(key_shift_since, last_edge_change + 1, int(number[tail, FIRST_INSTRUCTION])), shift
        if core_count > 1 and self._grow_streams(table, number, places, core_count):
            resume_instruction = 0
        core_changes = [(int(keys[core]), changed[core * ENGINES :][:ENGINES]) for core in range(core_count)]
        merged = [self._merge(core, resume_instruction, *core_changes[core], tail < len(parts), *ahead) for core in range(core_count)]
        self._lengths, same_rows, same_end = zip(*merged, strict=True)
        edges, same = EDGES * n, max(tail, int(np.searchsorted(number[:-1, FIRST_INSTRUCTION], last_edge_change, side="right")))
        firsts = states.numbers[:core_count, FIRST_OF : FIRST_OF + ENGINES]
        return Schedule(
            table, number, rows.after[:n], firsts, rows.core[:n], rows.engine[:n], rows.edge_start[: n + 1], rows.edge_from[:edges],
            rows.edge_to[:edges], rows.set_head[:n], rows.set_next[:edges],
            self._stream, tuple(core * self._stream_room for core in range(core_count)), self._lengths,
            resume_instruction, adopted, changed, same_rows, same_end, same,
        )  # fmt: skip

    def _part_rows(self, parts: Sequence[Footprint]) -> list[Ints]:
        """Rows of the parts (`segment_table`).  Where units have changed, all rows differ from those of the last program."""
        return [part.row for part in parts] if self._units is None else self._units.rows_of(parts)

    @property
    def _ddr_rows(self) -> int:
        """Needed rows of the history of DDR."""
        return self.footprints.ddr_granules if self._units is None else self._units.count

    def _with_more_edges(self, parts: Sequence[Footprint], cores: Sequence[int], segments: Sequence[int], shared: SharedPlaces) -> Schedule:
        """Schedule from the first instruction, with numbers for the largest possible count of edges."""
        self._edges = self._most_edges(len(self._states.numbers))
        self._states.ddr[:] = -1
        self._taken_over.clear()
        self._borders.used[:] = 0
        self._forget()
        return self.schedule(parts, cores, segments, shared)

    def _forget(self) -> None:
        """Forget the last program: the next one has no parts in common with it."""
        self._before, self._table, self._cores, self._number = [], part_table(()), np.zeros(0, np.int64), empty_numbers()

    def _most_edges(self, cores: int) -> int:
        """Most edges to an instruction."""
        return ENGINES + (2 if self.shared else 1) * (cores - 1)

    def _arrivals(self, shared: SharedPlaces, segments: Sequence[int]) -> list[tuple[int, Resident]]:
        """Residents that reuse blocks, in order, each with the first part of the segment of its birth."""
        arriving = sorted((r for r in shared.residents if r.after), key=lambda r: r.birth)
        arrivals = []
        for resident in arriving:
            part_index = next((index for index, segment in enumerate(segments) if resident.birth <= segment), None)
            if part_index is not None:
                arrivals.append((part_index, resident))
        return arrivals

    def _merge(
        self, core: int, resume_instruction: int, key: int, changed: Ints, may_converge: bool, further: int, since: int, shift: int
    ) -> tuple[int, int, int]:
        """Merge a core's stream.  Returns its length, and the number of unchanged rows at its beginning (its end counts as one) and at its
        end.

        may_converge: whether the program may end like the previous one.  further, since, shift: see `MergedStream`.
        """
        marks, mark_count = self._marks[core], 0
        if resume_instruction:
            mark_count = count_valid_marks(marks[: self._marked[core]], resume_instruction, key, changed)
        stream = self._stream[core * self._stream_room :]
        marks_after, rows, begin = marks[:0], 0, 0
        if resume_instruction or may_converge:
            rows = self._lengths[core]
        if may_converge:
            marks_after, begin = marks[mark_count : self._marked[core]].copy(), int(marks[mark_count - 1, ROWS]) if mark_count else 0
        previous = MergedStream(marks_after, rows, stream[begin:rows].copy(), begin, further, since, shift)
        first = self._states.numbers[core, FIRST_OF : FIRST_OF + ENGINES]
        length, same, end, self._marked[core] = merge_queues(first, self._rows, marks, mark_count, stream, previous)
        return length, same, end

    def _grow_streams(self, table: Ints, number: Ints, places: Ints, cores: int) -> bool:
        """Make room for the streams of a program on several cores; True if nothing of the previous ones remains.

        Room for the largest possible stream, for each of many cores, would take gigabytes.
        """
        rows, begins, stops = self._rows, EDGES * number[:-1, FIRST_INSTRUCTION], number[:-1, EDGE_END]
        counts = np.bincount(places, table[:, RECORDS] + stops - begins, cores).astype(np.int64)  # records and their WAITs
        for begin, stop in zip(begins.tolist(), stops.tolist(), strict=True):
            counts += np.bincount(rows.core[rows.edge_from[begin:stop]], minlength=cores)  # SETs
        need = int(counts.max())
        if need <= self._stream_room and cores * self._stream_room <= len(self._stream):
            return False
        self._stream_room = need + need // 2
        if cores * self._stream_room > len(self._stream):
            self._stream = np.empty(cores * self._stream_room, np.uint8)
        return True

    def forget_borders(self) -> None:
        """Schedule the next program from its first instruction to its last one."""
        self._used = 0

    def write(self, schedule: Schedule, codes: Sequence[Code], tags: Sequence[int]) -> tuple[Code, ...]:
        """Write the streams; `codes` are the records of the scheduled parts, `tags` the segments in their TAGs."""
        s = schedule
        out = tuple(np.empty((length, isa.WORDS), np.int32) for length in s.lengths)
        place = np.empty(len(s.engine), np.int32)
        for row, length, core_first in zip(s.stream_start, s.lengths, s.first, strict=True):
            find_rows(core_first, s.stream[row : row + length], s.after, s.edge_start, s.set_head, s.set_next, place)
        for code, tag, first in zip(codes, tags, s.number[:-1, FIRST_INSTRUCTION].tolist(), strict=True):
            if len(code):
                stream = out[s.core[first]]
                edges = s.edge_start, s.edge_from, s.edge_to, s.set_head, s.set_next
                write_part(code, first, tag_of(tag, 0), place, s.core, s.engine, *edges, stream)
        return out

    def _take_over(self, resident: Resident, shared: SharedPlaces, cores: int) -> None:
        """Let the writer of a resident wait for everything that touched the earlier residents of its blocks."""
        granules = self.footprints.granules_of(resident.first, resident.blocks)
        granules_before = [self.footprints.granules_of(*shared.residents[k][:2]) for k in resident.after]
        for core in range(cores):
            past = np.concatenate([self._states.ddr[core][rows] for rows in granules_before])
            last = past[:, :ENGINES].max(0)
            for engine in _MOVING:
                last[engine] = max(last[engine], past[past[:, WRITER_ENGINE] == engine, WRITER].max(initial=-1))
            self._states.ddr[core][granules, :ENGINES] = np.maximum(self._states.ddr[core][granules, :ENGINES], last)
            self._taken_over.append((core, granules))
            if cores > 1:
                queues = self._cross_core.before[granules]
                for k, engine in enumerate(_MOVING):
                    queue = k * len(self._cross_core.last) // len(_MOVING) + core
                    queues[:, queue] = np.maximum(queues[:, queue], last[engine])

    def _make_room(self, numbering: Numbering, cores: int) -> bool:
        """Grow scratch for a program on `cores` cores; True if nothing of the previous program remains."""
        lost, n, longest, cells = False, int(numbering.number[-1, FIRST_INSTRUCTION]), numbering.instructions, numbering.cells
        rows = self._ddr_rows
        if len(self._states.numbers) < cores or self._states.ddr.shape[1] < rows:
            room = min(self.footprints.ddr_granules, max(2 * rows, self._states.ddr.shape[1]))
            cores_of = max(cores, len(self._states.numbers))
            self._states = new_states(cores_of, self.count_limit, self.ports, room, self.footprints.on_chip)
            self._forget()
            self._taken_over.clear()
            lost = True
            while len(self._marks) < cores:
                self._marks.append(np.empty((0, MARK), np.int64))
                self._marked.append(0)
        if self._borders.pieces.shape[1] != cores:
            self._borders = new_borders(cores, self.count_limit)
        self._borders, self._previous_borders = self._borders.with_room(), self._previous_borders.with_room()
        if cores > 1 and (len(self._cross_core.seen) < 2 * cores or len(self._cross_core.written) < rows):
            room = self._states.ddr.shape[1]
            self._cross_core = new_cross_core(room, max(cores, len(self._cross_core.seen) // 2), self.shared)
        edge_room = longest * max(0, len(self._cross_core.seen) - 2)
        if edge_room > len(self._remote.source):
            source, target = np.empty((2, 2 * edge_room), np.int32)
            self._remote = Remote(source, target, 0, self.between_cores)
        edges = EDGES * n + longest * self._most_edges(cores)  # a part may have more than there are numbers for
        if n > len(self._rows.engine) or edges > len(self._rows.edge_from):
            room, edge_room = _larger(len(self._rows.engine)), _larger(len(self._rows.edge_from))
            self._rows, lost = _rows(max(n, room), max(edges, edge_room)), True
        room = len(self._rows.engine) + 2 * len(self._rows.edge_from)
        if cores == 1 and room > len(self._stream):
            self._stream, lost = np.empty(room, np.uint8), True
        for core in range(cores):
            if len(self._marks[core]) < len(self._rows.engine) // MARK_INTERVAL:
                self._marks[core], lost = np.empty((len(self._rows.engine) // MARK_INTERVAL, MARK), np.int64), True
        if cells > len(self._piece):
            self._piece = np.empty(2 * cells, np.int32)
        return lost


def _larger(room: int) -> int:
    """Room that scratch grows to: twice as much, where that is no large part of a computer's memory."""
    return 2 * room if room < _LARGE else room + room // 4


def _rows(room: int, edges: int) -> RecordRows:
    """Arrays per instruction and edge.

    Most of the room for edges is never touched: a few kinds of instructions have several, and memory comes with its first use.
    """
    return RecordRows(
        core=np.empty(room, np.uint8), engine=np.empty(room, np.uint8), clocks=np.empty((room, ENGINES), np.int32),
        after=np.empty(room, np.int32), end=np.empty(room, np.int64), key=np.empty(room, np.int64),
        edge_start=np.empty(room + 1, np.int32), edge_from=np.empty(edges, np.int32), edge_to=np.empty(edges, np.int32),
        set_head=np.empty(room, np.int32), set_tail=np.empty(room, np.int32), set_next=np.empty(edges, np.int32),
    )  # fmt: skip
