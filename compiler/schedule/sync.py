"""Flags and issue order: from sequential records to queues that overlap and still mean the same.

Emission writes a stream whose *sequential* execution is right.  `schedule` keeps that meaning while engines run side by side:

1. Hazards.  For each instruction, the last conflicting access of every other engine (by granules of its memories, an over-estimate)
   must have completed.  Vector clocks drop what is already implied, so that waits on one pair of engines come in the order of their
   sets and one flag id per pair suffices (a counting semaphore).  Its count is limited: the SET that could exceed the limit is moved to
   the last instruction of its queue so far, which covers all later waits, and the next instruction of that queue waits for the consumer.
2. Times.  The longest path through queues and flags at full bandwidth: when each instruction could start.
3. Issue.  The scalar unit hands out one stream in order; sorting by those times (ties by the sequential order, which keeps every SET
   before its WAIT) lets loads run ahead of the computation that precedes them in the program, over block and segment borders.

Any stream that lists every SET before its WAIT and keeps the queues' order cannot deadlock, whatever the queues' depth: the oldest
instruction that is not done has nothing left to wait for.

What depends on a segment alone is in its `Footprint`, made once; a program's pass reads a few bytes per record and moves none.  Whoever
wants records calls `write`, which copies each of them once; whoever wants times only reads the `Schedule`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from compiler.emit.records import Code
from simulator.npu import isa
from simulator.npu.access import MAX_RANGES, accesses
from simulator.npu.cycles import CostTables, cap_units, cost_tables, port_units, price
from simulator.npu.isa import Op
from simulator.npu.machine import SHARE_UNIT, Engine, Machine, Memory
from simulator.npu.program import MemoryMap

ENGINES = 6  # all but SCALAR
_LONGEST_COUNT = 1024  # flags never count further, whatever the machine allows: the waits that are remembered stay few
_MTE3 = int(Engine.MTE3)
_DDR = int(Memory.DDR)
# log2 of a granule in blocks, by memory: fine where tiles of one tensor should overlap, and single blocks in L1, where rows of a ring that
# are written and rows that are still read lie side by side; coarse where a slot is the unit
_SHIFT = np.array([6, 0, 6, 6, 5, 3], np.int64)
OP, ENGINE, TAG, BLOCK, FLAG_CORE, FLAG_ENGINE = isa.OP, isa.ENGINE, isa.TAG, isa.BLOCK, isa.FLAG_CORE, isa.FLAG_ENGINE
_SET, _WAIT = int(Op.SET), int(Op.WAIT)
_FAR = np.iinfo(np.int64).max
_LAST_EPOCH = 1 << 30

Bytes8 = NDArray[np.uint8]
Ints32 = NDArray[np.int32]
Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Footprint:
    """What scheduling and timing need of n sequential records.

    Records touch *cells*, runs of granules that no record of the segment tells apart: cell c is granules [bound[c], bound[c + 1]).
    engine: uint8 [n].  span: int32 [s, 2], cells [a >> 1, b) of record i in span[start[i] : start[i + 1]], reads first; a & 1: a write.
    touched: uint8 [cells].
    cost: int64 [n], busy cycles or the bus units of a transfer.  transfer: uint8 [n].  cycles: int64 [n], alone on the bus.
    read_bytes, written_bytes: of DDR.
    """

    engine: Bytes8
    span: Ints32
    start: Ints32
    bound: Ints32
    touched: Bytes8
    cost: Ints
    transfer: Bytes8
    cycles: Ints
    read_bytes: int
    written_bytes: int

    @property
    def nbytes(self) -> int:
        arrays = (self.engine, self.span, self.start, self.bound, self.touched, self.cost, self.transfer, self.cycles)
        return sum(array.nbytes for array in arrays)


@dataclass(frozen=True, eq=False)
class Schedule:
    """Where n instructions and their flags come in the stream.  Views of the synchroniser's scratch: valid until its next call.

    place: int32 [n], stream row; the WAITs stand before it, the SETs behind it.  engine: uint8 [n].
    edge_from: int32 [n, 6], instruction i waits for edge_from[i, :edge_count[i]].
    set_head: int32 [n], set_next: int32 [n * 6]: the SETs behind an instruction as a list of edges i * 6 + k, or -1.
    length: rows of the stream.
    """

    place: Ints32
    engine: Bytes8
    edge_from: Ints32
    edge_count: Ints32
    set_head: Ints32
    set_next: Ints32
    length: int


class _Rows(NamedTuple):
    """Scratch per instruction of a program."""

    engine: Bytes8
    known: Ints32  # [n, 6] vector clock
    edge_from: Ints32
    edge_count: Ints32
    set_head: Ints32
    set_tail: Ints32
    set_next: Ints32
    after: Ints32  # next instruction of the same queue
    end: Ints
    key: Ints
    place: Ints32


class _Queues(NamedTuple):
    """State of a pass, per queue or pair of queues.  Instructions go by epoch + number, so that older marks in `table` mean nothing."""

    table: Ints32  # [granules, 8]: last writer, then the last reader on every engine since
    cell: Ints32  # [cells, 8]: the same, by the records of the segment at hand
    entry: Ints32  # [cells, 16]: the last writer on every engine before the segment, and from 8 on the last one who touched it
    clock: Ints  # [6, 6]
    latest: Ints  # [6] last instruction of every queue
    ring: Ints32  # [6, 6, limit] the last waits from a queue in another
    ring_at: Ints  # [6, 6]
    oldest: Ints  # [6, 6] ring at ring_at
    free: Ints  # [6] cycle in which the queue is free
    key: Ints  # [6] largest key so far
    first: Ints  # [6] first instruction of every queue, or -1


@njit(cache=True)
def _spans(code, offsets, shift, constant_blocks, start, span) -> int:  # type: ignore[no-untyped-def]
    """Fills span and start; returns how many spans, or -1 where there is no room."""
    rows = np.empty((MAX_RANGES, 8), np.int64)
    room = span.shape[0]
    at = 0
    for i in range(code.shape[0]):
        start[i] = at
        count = accesses(code, i, rows)
        for r in range(count):
            memory, write, first_block, length = rows[r, 0], rows[r, 1], rows[r, 2], rows[r, 3]
            if memory == _DDR:
                if first_block < constant_blocks:
                    continue
                first_block -= constant_blocks
            s = shift[memory]
            base = offsets[memory]
            runs, stride = rows[r, 4], rows[r, 5]
            groups, group_stride = rows[r, 6], rows[r, 7]
            if stride == length or stride * runs < (1 << s):
                length += (runs - 1) * stride
                runs = 1
            if runs == 1 and (group_stride == length or group_stride * groups < (1 << s)):
                length += (groups - 1) * group_stride
                groups = 1
            for o in range(groups):
                last = -1
                for k in range(runs):
                    block = first_block + o * group_stride + k * stride
                    g0 = block >> s
                    g1 = (block + length - 1) >> s
                    if stride >= 0 and g0 <= last:
                        g0 = last + 1
                    last = max(last, g1)
                    if g0 > g1:
                        continue
                    a = (base + g0) * 2 + write
                    if at > start[i] and span[at - 1, 1] == base + g0 and span[at - 1, 0] & 1 == write:
                        span[at - 1, 1] = base + g1 + 1
                        continue
                    if at == room:
                        return -1
                    span[at, 0] = a
                    span[at, 1] = base + g1 + 1
                    at += 1
    start[code.shape[0]] = at
    return at


@njit(cache=True)
def _compress(span, at, bound) -> int:  # type: ignore[no-untyped-def]
    """Rewrite spans of granules as spans of cells and fill bound; returns how many.  at: int32 [granules + 1], all 0 before and after."""
    for s in range(span.shape[0]):
        at[span[s, 0] >> 1] = 1
        at[span[s, 1]] = 1
    bounds = 0
    for g in range(at.shape[0]):
        if at[g]:
            at[g] = bounds
            bound[bounds] = g
            bounds += 1
    for s in range(span.shape[0]):
        span[s, 0] = at[span[s, 0] >> 1] << 1 | span[s, 0] & 1
        span[s, 1] = at[span[s, 1]]
    for k in range(bounds):
        at[bound[k]] = 0
    return bounds


@njit(cache=True)
def _touch(span, touched) -> None:  # type: ignore[no-untyped-def]
    for s in range(span.shape[0]):
        for c in range(span[s, 0] >> 1, span[s, 1]):
            touched[c] = 1


@njit(cache=True)
def _enter(bound, touched, epoch, engine, table, cell, entry) -> None:  # type: ignore[no-untyped-def]
    """Cells as the segment finds them.  epoch: of the program, or -1 where nothing ran before."""
    for c in range(touched.shape[0]):
        if not touched[c]:
            continue
        for e in range(8):
            cell[c, e] = -1
        for e in range(16):
            entry[c, e] = -1
        if epoch < 0:
            continue
        for g in range(bound[c], bound[c + 1]):
            w = table[g, 0]
            if w >= epoch:
                e = int(engine[w - epoch])
                entry[c, e] = max(entry[c, e], w)
            for e in range(ENGINES):
                entry[c, 8 + e] = max(entry[c, 8 + e], table[g, 1 + e])
        for e in range(ENGINES):
            entry[c, 8 + e] = max(entry[c, 8 + e], entry[c, e])


@njit(cache=True)
def _leave(bound, touched, table, cell) -> None:  # type: ignore[no-untyped-def]
    """What the segment did to its cells, told to their granules."""
    for c in range(touched.shape[0]):
        if not touched[c]:
            continue
        for g in range(bound[c], bound[c + 1]):
            if cell[c, 0] >= 0:
                for e in range(8):
                    table[g, e] = cell[c, e]
            else:
                for e in range(1, 1 + ENGINES):
                    table[g, e] = max(table[g, e], cell[c, e])


@njit(cache=True)
def _pass(part_engine, span, start, transfer, cycles, latency, first, epoch, q, r):  # type: ignore[no-untyped-def]
    """Hazards and times of one segment's records, which are instructions `first` .. of the program."""
    cell, entry, clock, latest, ring, ring_at, oldest = q.cell, q.entry, q.clock, q.latest, q.ring, q.ring_at, q.oldest
    free, last_key, queue_first = q.free, q.key, q.first
    engine, known, edge_from, edge_count = r.engine, r.known, r.edge_from, r.edge_count
    set_head, set_tail, set_next, after, end, key = r.set_head, r.set_tail, r.set_next, r.after, r.end, r.key
    limit = ring.shape[2]
    need = np.empty(ENGINES, np.int64)
    for j in range(part_engine.shape[0]):
        i = first + j
        me: Any = np.int64(part_engine[j])
        engine[i] = me
        name = epoch + i
        for e in range(ENGINES):
            need[e] = -1
        n0 = n1 = n2 = n3 = n4 = n5 = np.int32(-1)
        for s in range(start[j], start[j + 1]):
            a = span[s, 0]
            write = a & 1
            seen = -1
            for c in range(a >> 1, span[s, 1]):
                w = cell[c, 0]
                if w < 0:
                    at = 8 if write else 0
                    n0, n1, n2 = max(n0, entry[c, at]), max(n1, entry[c, at + 1]), max(n2, entry[c, at + 2])
                    n3, n4, n5 = max(n3, entry[c, at + 3]), max(n4, entry[c, at + 4]), max(n5, entry[c, at + 5])
                elif w != seen:
                    seen = w
                    e = int(engine[w - epoch])
                    need[e] = max(need[e], w)
                if write:
                    n0, n1, n2 = max(n0, cell[c, 1]), max(n1, cell[c, 2]), max(n2, cell[c, 3])
                    n3, n4, n5 = max(n3, cell[c, 4]), max(n4, cell[c, 5]), max(n5, cell[c, 6])
                    # whoever comes later waits for this write, which waits for them
                    cell[c, 1] = cell[c, 2] = cell[c, 3] = cell[c, 4] = cell[c, 5] = cell[c, 6] = -1
                    cell[c, 0] = name
                else:
                    cell[c, 1 + me] = name
        need[0], need[1], need[2] = max(need[0], n0), max(need[1], n1), max(need[2], n2)
        need[3], need[4], need[5] = max(need[3], n3), max(need[4], n4), max(need[5], n5)
        for e in range(ENGINES):  # `limit` of my SETs may still stand with e: no more until e has been waited for
            if oldest[me, e] > clock[me, e]:
                need[e] = latest[e]
        need[me] = -1
        n = 0
        ready = np.int64(0)
        while True:
            best = -1
            for e in range(ENGINES):
                if need[e] > clock[me, e] and need[e] > best:
                    best = need[e]
            if best < 0:
                break
            e = int(engine[best - epoch])
            at = ring_at[e, me]
            early = oldest[e, me] > known[best - epoch, me]
            ring[e, me, at] = name
            at += 1
            if at == limit:
                at = 0
            ring_at[e, me] = at
            oldest[e, me] = ring[e, me, at]
            if early or oldest[e, me] > clock[e, me]:
                best = latest[e]
            source = best - epoch
            edge_from[i, n] = source
            edge = i * ENGINES + n
            if set_head[source] < 0:
                set_head[source] = edge
            else:
                set_next[set_tail[source]] = edge
            set_tail[source] = edge
            set_next[edge] = -1
            n += 1
            ready = max(ready, end[source])
            clock[me, e] = best
            for other in range(ENGINES):
                if known[source, other] > clock[me, other]:
                    clock[me, other] = known[source, other]
        edge_count[i] = n
        set_head[i] = -1
        for e in range(ENGINES):
            known[i, e] = clock[me, e]
        clock[me, me] = name
        if latest[me] >= epoch:
            after[latest[me] - epoch] = i
        else:
            queue_first[me] = i
        after[i] = -1
        latest[me] = name
        # the longest path, with every transfer alone on the bus; key: when the instruction is wanted at its engine
        if transfer[j]:
            begin = max(free[me], ready + latency)
            # wanted when its predecessor's data starts to flow, not before: a queue full of loads would stall the scalar unit
            wanted = max(ready, begin - latency)
        else:
            begin = max(free[me], ready)
            wanted = begin
        end[i] = begin + cycles[j]
        free[me] = end[i]
        last_key[me] = max(last_key[me], wanted)
        key[i] = last_key[me]


@njit(cache=True)
def _order(n, queue_first, after, key, edge_count, set_head, set_next, place) -> int:  # type: ignore[no-untyped-def]
    """Queues merged by (key, number), each instruction with its WAITs before and its SETs behind; returns the stream's length."""
    front = queue_first.copy()
    when = np.full(ENGINES, _FAR, np.int64)
    for e in range(ENGINES):
        if front[e] >= 0:
            when[e] = key[front[e]]
    at = 0
    for _ in range(n):
        b = 0
        for e in range(1, ENGINES):
            if when[e] < when[b] or (when[e] == when[b] and front[e] < front[b]):
                b = e
        i = front[b]
        at += edge_count[i]
        place[i] = at
        at += 1
        edge = set_head[i]
        while edge >= 0:
            at += 1
            edge = set_next[edge]
        front[b] = after[i]
        when[b] = key[after[i]] if after[i] >= 0 else _FAR
    return at


@njit(cache=True)
def _write(code, first, tag, core, place, engine, edge_from, edge_count, set_head, set_next, out) -> None:  # type: ignore[no-untyped-def]
    """Records of one segment, and the flags around them, to their rows of the stream."""
    for j in range(code.shape[0]):
        i = first + j
        at = place[i]
        out[at] = code[j]
        out[at, TAG] |= tag
        me, name, block = out[at, ENGINE], out[at, TAG], out[at, BLOCK]
        for k in range(edge_count[i]):
            row = at - edge_count[i] + k
            out[row, :] = 0
            out[row, OP] = _WAIT
            out[row, ENGINE] = me
            out[row, TAG] = name
            out[row, BLOCK] = block
            out[row, FLAG_CORE] = core
            out[row, FLAG_ENGINE] = engine[edge_from[i, k]]
        edge = set_head[i]
        while edge >= 0:
            at += 1
            out[at, :] = 0
            out[at, OP] = _SET
            out[at, ENGINE] = me
            out[at, TAG] = name
            out[at, BLOCK] = block
            out[at, FLAG_CORE] = core
            out[at, FLAG_ENGINE] = engine[edge // ENGINES]
            edge = set_next[edge]


class Synchroniser:
    """Holds the tables of one (machine, memory map) and scratch; it may be called for any number of streams, one after the other."""

    def __init__(self, machine: Machine, memory: MemoryMap, core: int = 0) -> None:
        self.core = core
        self.tables: CostTables = cost_tables(machine)
        self.constant_blocks = memory.constant_blocks
        sizes = [max(0, memory.size_blocks - memory.constant_blocks)]
        sizes += [machine.buffer_blocks(m) for m in Memory if m != Memory.DDR]
        granules = [(size >> int(s)) + 2 for size, s in zip(sizes, _SHIFT, strict=True)]
        self.offsets = np.concatenate(([0], np.cumsum(granules)[:-1])).astype(np.int64)
        self.count_limit = min(machine.flags.count_limit, _LONGEST_COUNT)
        self.latency = machine.ddr.latency_cycles
        port = port_units(machine, SHARE_UNIT)
        self.rates = (min(cap_units(machine, Engine.MTE2), port), min(cap_units(machine, Engine.MTE3), port))
        self._table = np.full((int(sum(granules)), 8), -1, np.int32)
        self._at = np.zeros(len(self._table) + 1, np.int32)
        self._bound = np.empty(len(self._table) + 1, np.int32)
        self._cell, self._entry = np.empty((0, 8), np.int32), np.empty((0, 16), np.int32)
        self._ring = np.empty((ENGINES, ENGINES, self.count_limit), np.int32)
        self._epoch = 0
        self._span = np.empty((1 << 12, 2), np.int32)
        self._rows = _rows(1 << 12)

    def footprint(self, code: Code) -> Footprint:
        """What `schedule` needs of records, apart from what stands before them."""
        start = np.empty(len(code) + 1, np.int32)
        while (used := _spans(code, self.offsets, _SHIFT, self.constant_blocks, start, self._span)) < 0:
            self._span = np.empty((2 * len(self._span), 2), np.int32)
        span = self._span[:used].copy()
        bound = self._bound[: _compress(span, self._at, self._bound)].copy()
        touched = np.zeros(max(0, len(bound) - 1), np.uint8)
        _touch(span, touched)
        cost = price(code, self.tables)
        transfer = cost.bus > 0
        engine = code[:, ENGINE].astype(np.uint8)
        rate = np.where(engine == _MTE3, self.rates[1], self.rates[0])
        return Footprint(
            engine,
            span,
            start,
            bound,
            touched,
            np.where(transfer, cost.bus, cost.busy),
            transfer.view(np.uint8),
            np.where(transfer, (cost.bus + rate - 1) // rate, cost.busy),
            int(cost.useful[cost.useful > 0].sum()),
            -int(cost.useful[cost.useful < 0].sum()),
        )

    def schedule(self, parts: Sequence[Footprint]) -> Schedule:
        """Flags and issue order of the parts' records, run one part after the other."""
        n = sum(len(part.engine) for part in parts)
        if n > len(self._rows.engine):
            self._rows = _rows(max(n, 2 * len(self._rows.engine)))
        if self._epoch + n > _LAST_EPOCH:
            self._table[:] = -1
            self._epoch = 0
        rows, none = self._rows, self._epoch - 1
        self._ring[:] = none
        pairs = (ENGINES, ENGINES)
        cells = max((len(part.touched) for part in parts), default=0)
        if cells > len(self._cell):
            self._cell, self._entry = np.empty((2 * cells, 8), np.int32), np.empty((2 * cells, 16), np.int32)
        queues = _Queues(
            self._table,
            self._cell,
            self._entry,
            np.full(pairs, none, np.int64),
            np.full(ENGINES, none, np.int64),
            self._ring,
            np.zeros(pairs, np.int64),
            np.full(pairs, none, np.int64),
            np.zeros(ENGINES, np.int64),
            np.zeros(ENGINES, np.int64),
            np.full(ENGINES, -1, np.int64),
        )
        first = 0
        for number, part in enumerate(parts):
            _enter(part.bound, part.touched, self._epoch if number else -1, rows.engine, self._table, self._cell, self._entry)
            _pass(part.engine, part.span, part.start, part.transfer, part.cycles, self.latency, first, self._epoch, queues, rows)
            if number + 1 < len(parts):
                _leave(part.bound, part.touched, self._table, self._cell)
            first += len(part.engine)
        self._epoch += n
        length = _order(n, queues.first, rows.after, rows.key, rows.edge_count, rows.set_head, rows.set_next, rows.place)
        edges = rows.edge_from[:n], rows.edge_count[:n]
        return Schedule(rows.place[:n], rows.engine[:n], *edges, rows.set_head[:n], rows.set_next[: n * ENGINES], length)

    def write(self, schedule: Schedule, codes: Sequence[Code]) -> Code:
        """The stream; `codes` are the records of the scheduled parts.  TAG gets the part's number above 16 bits."""
        out = np.empty((schedule.length, isa.WORDS), np.int32)
        first = 0
        for index, code in enumerate(codes):
            _write(
                code, first, index << 16, self.core, schedule.place, schedule.engine, schedule.edge_from, schedule.edge_count,
                schedule.set_head, schedule.set_next, out,
            )  # fmt: skip
            first += len(code)
        return out

    def synchronise(self, code: Code) -> Code:
        """Flags inserted and instructions in issue order: a stream for core `self.core`."""
        return self.write(self.schedule([self.footprint(code)]), [code])


def _rows(room: int) -> _Rows:
    pairs, one = (room, ENGINES), room
    return _Rows(
        engine=np.empty(one, np.uint8),
        known=np.empty(pairs, np.int32),
        edge_from=np.empty(pairs, np.int32),
        edge_count=np.empty(one, np.int32),
        set_head=np.empty(one, np.int32),
        set_tail=np.empty(one, np.int32),
        set_next=np.empty(room * ENGINES, np.int32),
        after=np.empty(one, np.int32),
        end=np.empty(one, np.int64),
        key=np.empty(one, np.int64),
        place=np.empty(one, np.int32),
    )
