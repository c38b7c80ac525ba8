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

from compiler.schedule.footprint import Footprint, Footprints, Ints32
from compiler.schedule.hazards import Queues, RecordRows, Remote, advance
from compiler.schedule.history import CELL, no_pieces, no_rows, wipe
from compiler.schedule.inside import ENGINES, WRITER, WRITER_ENGINE
from compiler.schedule.order import order
from compiler.schedule.remote import forget, new_cross_core, waits
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
    """Holds the tables of one unit and scratch; it may be called for any number of programs, one after the other."""

    def __init__(self, unit: Unit) -> None:
        machine = unit.machine
        self.footprints = Footprints(unit)
        self.count_limit = min(machine.flags.count_limit, _LONGEST_COUNT)
        self.shared = machine.shared is not None
        self.ports = np.array([machine.dma_ports(engine) if engine in DMAS else 1 for engine in list(Engine)[:ENGINES]], np.int64)
        self.latency, self.between_cores = machine.ddr.latency_cycles, machine.flags.between_cores_cycles
        self._ddr: list[Ints32] = []  # of every core
        self._before = list[tuple[Footprint, int]]()  # whose past is in there
        self._pasts = [no_pieces(self.footprints.on_chip)]  # of every core, and one more to write the next one into
        self._rings: list[np.ndarray[tuple[int, ...], np.dtype[np.int32]]] = []
        self._cross_core = new_cross_core(0, 0, False)
        self._taken_over = list[tuple[int, slice]]()  # of the last program: rows of a core's past that residents were given
        self._rows, self._cell = _rows(1 << 12, 1 << 12), np.empty((0, CELL), np.int32)

    def schedule(
        self, parts: Sequence[Footprint], cores: Sequence[int], segments: Sequence[int] = (), shared: SharedPlaces = NOWHERE
    ) -> Schedule:
        """Flags and issue order of the parts' records, run one part after the other.

        cores: where each part runs.  shared: what lies in the shared memory; segments: the number of each part's, where something does.
        """
        n, used = sum(len(part.engine) for part in parts), max(cores, default=0) + 1
        self._make_room(parts, n, used)
        rows, pasts = self._rows, self._pasts
        queues = [self._queues(core) for core in range(used)]
        for part, core in self._before:
            wipe(part.bound, part.touched, self._ddr[core])
        for core, granules in self._taken_over:
            self._ddr[core][granules] = -1
        self._taken_over.clear()
        self._before = list(zip(parts, cores, strict=True))
        if used > 1:
            forget(self._cross_core)
        pieces = [0] * used
        rows.edge_start[0] = first = 0
        born = 0
        arriving = sorted((r for r in shared.residents if r.after), key=lambda r: r.birth)
        for index, (part, core) in enumerate(self._before):
            while born < len(arriving) and arriving[born].birth <= segments[index]:
                self._take_over(arriving[born], shared, used)
                born += 1
            remote = self._remote(part, core, first) if used > 1 else _NOBODY
            records = part.bound, part.touched, part.engine, part.inside, part.transfer, part.cycles
            past = self._ddr[core], pasts[core], pieces[core], pasts[-1]
            pieces[core] = advance(*records, self.latency, core, first, queues[core], *past, self._cell, remote, rows)
            pasts[core], pasts[-1] = pasts[-1], pasts[core]
            first += len(part.engine)
        lengths = tuple(order(q.first, rows) for q in queues)
        edges = int(rows.edge_start[n])
        return Schedule(
            rows.place[:n], rows.core[:n], rows.engine[:n], rows.edge_start[: n + 1], rows.edge_from[:edges], rows.edge_to[:edges],
            rows.set_head[:n], rows.set_next[:edges], lengths,
        )  # fmt: skip

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

    def _queues(self, core: int) -> Queues:
        pairs = (ENGINES, ENGINES)
        self._rings[core][:] = -1
        return Queues(
            np.full(pairs, -1, np.int64),
            np.full(ENGINES, -1, np.int64),
            self._rings[core],
            np.zeros(pairs, np.int64),
            np.full(pairs, -1, np.int64),
            np.zeros(ENGINES, np.int64),
            np.zeros(ENGINES, np.int64),
            np.full(ENGINES, -1, np.int64),
            self.ports,
            np.zeros(ENGINES, np.int64),
            np.empty(ENGINES, np.int64),
            np.empty(ENGINES, np.int64),
        )

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

    def _make_room(self, parts: Sequence[Footprint], n: int, cores: int) -> None:
        """Scratch for so many instructions and cores; it is never given back."""
        while len(self._rings) < cores:
            self._pasts.append(no_pieces(self.footprints.on_chip))
            self._ddr.append(no_rows(self.footprints.ddr_granules))
            self._rings.append(np.empty((ENGINES, ENGINES, self.count_limit), np.int32))
        if cores > 1 and len(self._cross_core.seen) < 2 * cores:
            self._cross_core = new_cross_core(self.footprints.ddr_granules, cores, self.shared)
        edges = n * (ENGINES + (2 if self.shared else 1) * (cores - 1))
        if n > len(self._rows.engine) or edges > len(self._rows.edge_from):
            self._rows = _rows(max(n, 2 * len(self._rows.engine)), max(edges, 2 * len(self._rows.edge_from)))
        cells = max((len(part.touched) for part in parts), default=0)
        if cells > len(self._cell):
            self._cell = np.empty((2 * cells, CELL), np.int32)


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
