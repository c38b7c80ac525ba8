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

from compiler.schedule.footprint import Footprint, Footprints, Ints, Ints32
from compiler.schedule.hazards import Queues, RecordRows, Remote, advance, begin, new_queues
from compiler.schedule.history import CELL, leave_ddr, no_pieces, no_rows, wipe
from compiler.schedule.inside import ENGINES, WRITER, WRITER_ENGINE
from compiler.schedule.order import EVERY, MARK, marks_before, order
from compiler.schedule.remote import forget, new_cross_core, waits
from compiler.schedule.resume import BORDERS, NEVER, PartBorder, cut, mark_changed, next_key
from compiler.schedule.shared import NOWHERE, Resident, SharedPlaces
from compiler.schedule.write import Schedule, write
from compiler.unit.unit import Unit
from simulator.npu import isa
from simulator.npu.isa import tag_of
from simulator.npu.parts import DMAS, Engine
from simulator.npu.program import Code

_LONGEST_COUNT = 1024  # flags never count further, whatever the machine allows: the waits that are remembered stay few
_MOVING = (int(Engine.MTE3), int(Engine.MTE2))  # in the order of queues in `remote`
_NOBODY = Remote(np.empty(0, np.int32), np.empty(0, np.int32), 0, 0)


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
        self._ddr: list[Ints32] = []  # of every core
        self._before = list[tuple[Footprint, int]]()  # whose past is in there
        self._pasts = [no_pieces(self.footprints.on_chip)]  # of every core, and one more to write the next one into
        self._queues = list[Queues]()  # of every core, behind the last program
        self._cross_core = new_cross_core(0, 0, False)
        self._taken_over = list[tuple[int, slice]]()  # of the last program: rows of a core's past that residents were given
        self._rows, self._cell = _rows(1 << 12, 1 << 12), np.empty((0, CELL), np.int32)
        self._borders, self._used, self._edges = list[PartBorder](), 0, 0  # of the last program; how many cores and edges it has
        self._stream, self._stream_room = np.empty(0, np.uint8), 0  # room for each core
        self._lengths: tuple[int, ...] = ()
        self._marks, self._marked = list[Ints](), list[int]()  # of every core's merge, and how many of them hold

    def schedule(
        self, parts: Sequence[Footprint], cores: Sequence[int], segments: Sequence[int] = (), shared: SharedPlaces = NOWHERE
    ) -> Schedule:
        """Flags and issue order of the parts' records, run one part after the other.

        cores: where each part runs.  shared: what lies in the shared memory; segments: the number of each part's, where something does.
        """
        n, used = sum(len(part.engine) for part in parts), max(cores, default=0) + 1
        fresh = self._make_room(parts, n, used) or used != self._used or bool(shared.residents)
        new = list(zip(parts, cores, strict=True))
        border = None if fresh else self._border(new)
        changed, keys = np.full(used * ENGINES, NEVER, np.int64), [NEVER] * used
        if border is not None:
            keys = [next_key(q, last, self._rows) for q, last in zip(self._at(border), self._queues, strict=False)]
            cut(border.first, border.edges, self._edges, self._rows, changed)
        pieces = self._begin(border, new, used)
        rows, pasts, queues = self._rows, self._pasts, self._queues[:used]
        first, part_from, edges_from = (0, 0, 0) if border is None else (border.first, border.part, border.edges)
        rows.edge_start[0], born, last_border = 0, 0, first
        arriving = sorted((r for r in shared.residents if r.after), key=lambda r: r.birth)
        for index, (part, core) in enumerate(new[part_from:], part_from):
            while born < len(arriving) and arriving[born].birth <= segments[index]:
                self._take_over(arriving[born], shared, used)
                born += 1
            if (first - last_border) * BORDERS > n and not shared.residents:
                last_border = first
                self._borders.append(PartBorder.of(index, first, int(rows.edge_start[first]), queues, pasts, pieces))
            remote = self._remote(part, core, first) if used > 1 else _NOBODY
            records = part.bound, part.touched, part.engine, part.inside, part.transfer, part.cycles
            past = self._ddr[core], pasts[core], pieces[core], pasts[-1]
            pieces[core] = advance(*records, self.latency, core, first, queues[core], *past, self._cell, remote, rows)
            pasts[core], pasts[-1] = pasts[-1], pasts[core]
            first += len(part.engine)
        self._edges = int(rows.edge_start[n])
        kept = 0
        if border is not None:
            kept = border.first
            mark_changed(kept, edges_from, self._edges, rows, changed)
            keys = [min(key, next_key(q, last, rows)) for key, q, last in zip(keys, self._at(border), queues, strict=True)]
        merged = [self._merge(core, kept, keys[core], changed[core * ENGINES :][:ENGINES]) for core in range(used)]
        self._lengths = tuple(length for length, _ in merged)
        return Schedule(
            rows.place[:n], rows.core[:n], rows.engine[:n], rows.edge_start[: n + 1], rows.edge_from[: self._edges],
            rows.edge_to[: self._edges], rows.set_head[:n], rows.set_next[: self._edges],
            self._stream, tuple(core * self._stream_room for core in range(used)), self._lengths,
            kept, changed, tuple(same for _, same in merged),
        )  # fmt: skip

    def _border(self, new: Sequence[tuple[Footprint, int]]) -> PartBorder | None:
        """The last one up to which a program is what the one before was."""
        same = 0
        for (part, core), (old, old_core) in zip(new, self._before, strict=False):
            if part is not old or core != old_core:
                break
            same += 1
        while self._borders and self._borders[-1].part > same:
            self._borders.pop()
        return self._borders[-1] if self._borders else None

    def _at(self, border: PartBorder) -> list[Queues]:
        """Queues of every core as they are at a border, in arrays of their own."""
        found = [new_queues(0, self.ports) for _ in border.cores]
        for queues, core in zip(found, border.cores, strict=True):
            queues.numbers[:] = core.numbers
        return found

    def _begin(self, border: PartBorder | None, new: list[tuple[Footprint, int]], used: int) -> list[int]:
        """The state at a border, or of no instruction yet; returns how many pieces every core's past has."""
        for part, core in self._before:
            wipe(part.bound, part.touched, self._ddr[core])
        for core, granules in self._taken_over:
            self._ddr[core][granules] = -1
        self._taken_over.clear()
        self._before, self._used = new, used
        if used > 1:
            forget(self._cross_core)
        if border is None:
            self._borders.clear()
            for queues in self._queues[:used]:
                begin(queues)
            return [0] * used
        first = 0
        for part, core in new[: border.part]:
            leave_ddr(part.bound, part.touched, part.inside.last, first, self._ddr[core])
            if used > 1:
                self._remote(part, core, first)
            first += len(part.engine)
        for queues, past, core_then in zip(self._queues, self._pasts, border.cores, strict=False):
            queues.numbers[:], queues.ring[:] = core_then.numbers, core_then.ring
            past.bound[: len(core_then.past.bound)], past.last[: len(core_then.past.last)] = core_then.past
            for latest in queues.latest.tolist():
                if latest >= 0:
                    self._rows.after[latest] = -1
        return [len(core_then.past.last) for core_then in border.cores]

    def _merge(self, core: int, kept: int, key: int, changed: Ints) -> tuple[int, int]:
        """A core's stream; its length, and how many of its rows are what they were, its end counted as one."""
        marks, known = self._marks[core], 0
        if kept:
            known = marks_before(marks[: self._marked[core]], kept, key, changed)
        stream = self._stream[core * self._stream_room :][: self._stream_room]
        before = self._lengths[core] if kept else 0
        length, same, self._marked[core] = order(self._queues[core].first, self._rows, marks, known, stream, before)
        return length, same

    def forget_borders(self) -> None:
        """The next program is looked at from its first instruction."""
        self._borders.clear()

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

    def _remote(self, part: Footprint, core: int, first: int) -> Remote:
        room = len(part.engine) * (len(self._cross_core.seen) - 2)
        source, target = np.empty(room, np.int32), np.empty(room, np.int32)
        count = waits(
            part.engine, part.span, part.start, part.bound, core, first, self.count_limit, self._cross_core, source, target,
        )  # fmt: skip
        return Remote(source, target, count, self.between_cores)

    def _take_over(self, resident: Resident, shared: SharedPlaces, cores: int) -> None:
        """Whoever writes a resident comes behind everything that touched those that were there before."""
        granules = self.footprints.granules_of(resident.first, resident.blocks)
        gone = [self.footprints.granules_of(*shared.residents[k][:2]) for k in resident.after]
        for core in range(cores):
            past = np.concatenate([self._ddr[core][rows] for rows in gone])
            last = past[:, :ENGINES].max(0)
            for engine in _MOVING:
                last[engine] = max(last[engine], past[past[:, WRITER_ENGINE] == engine, WRITER].max(initial=-1))
            self._ddr[core][granules, :ENGINES] = np.maximum(self._ddr[core][granules, :ENGINES], last)
            self._taken_over.append((core, granules))
            if cores > 1:
                queues = self._cross_core.before[granules]
                for k, engine in enumerate(_MOVING):
                    at = k * len(self._cross_core.last) // len(_MOVING) + core
                    queues[:, at] = np.maximum(queues[:, at], last[engine])

    def _make_room(self, parts: Sequence[Footprint], n: int, cores: int) -> bool:
        """Scratch for so many instructions and cores; it is never given back.  True where nothing of the last program is left."""
        lost = False
        while len(self._queues) < cores:
            self._pasts.append(no_pieces(self.footprints.on_chip))
            self._ddr.append(no_rows(self.footprints.ddr_granules))
            self._queues.append(new_queues(self.count_limit, self.ports))
            self._marks.append(np.empty((0, MARK), np.int64))
            self._marked.append(0)
        if cores > 1 and len(self._cross_core.seen) < 2 * cores:
            self._cross_core = new_cross_core(self.footprints.ddr_granules, cores, self.shared)
        edges = n * (ENGINES + (2 if self.shared else 1) * (cores - 1))
        if n > len(self._rows.engine) or edges > len(self._rows.edge_from):
            self._rows, lost = _rows(max(n, 2 * len(self._rows.engine)), max(edges, 2 * len(self._rows.edge_from))), True
        room = len(self._rows.engine) + 2 * len(self._rows.edge_from)
        if room > self._stream_room or len(self._stream) < cores * room:
            self._stream, self._stream_room, lost = np.empty(len(self._queues) * room, np.uint8), room, True
        for core in range(cores):
            if len(self._marks[core]) < len(self._rows.engine) // EVERY:
                self._marks[core], lost = np.empty((len(self._rows.engine) // EVERY, MARK), np.int64), True
        cells = max((len(part.touched) for part in parts), default=0)
        if cells > len(self._cell):
            self._cell = np.empty((2 * cells, CELL), np.int32)
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
        place=np.empty(room, np.int32),
        edge_start=np.empty(room + 1, np.int32),
        edge_from=np.empty(edges, np.int32),
        edge_to=np.empty(edges, np.int32),
        set_head=np.empty(room, np.int32),
        set_tail=np.empty(room, np.int32),
        set_next=np.empty(edges, np.int32),
    )
