"""The walk behind the sanitizer: one legal order of a program, with vector clocks and a shadow of every block (numba).

| name          | shape               | meaning                                                                            |
|---------------|---------------------|------------------------------------------------------------------------------------|
| code          | int32 [n, 32]       | all streams, core after core                                                       |
| queue, place  | int32 [n]           | used queue (core, engine) of a record, and its place in it, from 1                  |
| by_queue      | int32 [n]           | record numbers, queue after queue; queue q has by_queue[queue_start[q]:]            |
| flag          | int32 [n]           | number of the flag of a SET or WAIT                                                |
| waits         | int32 [w]           | WAIT records, flag after flag; flag f has waits[wait_start[f]:wait_start[f + 1]]    |
| clock         | int32 [q, q]        | clock[q, p]: the last place of queue p that has completed before queue q's next     |
| in_order      | bool [q]            | all of the queue has completed before its next; not so of a DMA with several ports  |
| writer        | int32 [blocks]      | last record that wrote a block; UNWRITTEN; or WRITTEN or COLUMNS before the program |
| reader        | int32 [blocks]      | NOBODY; the one last reader; or -2 - node, a list of readers not ordered among them |
| found         | int64 [limit, 6]    | kind, record, memory, first block, one past the last, other record                  |

A race shows in any legal order: two accesses that are not ordered by queues and flags are not ordered by the clocks, whichever
comes first (FastTrack, Flanagan and Freund, PLDI 2009: an epoch where readers are ordered, more only where they are not).  The
constants of DDR are read-only, so they have no shadow.  IM2COL reads exactly the blocks that its taps name, not the whole rows
of `access`: rows that are filled in part are legal.

On a DMA with several ports transfers overlap.  What of them has completed is told by a flag that the queue waits for, and by a move on
chip; that every so many transfers share a port is no order that a program may count on.

What is overwritten in order, before its last reader, is no race.  Records do not say whose data a reader wants, but for which segment,
operator and block they work (TAG, BLOCK), and that bounds it: nothing stays in a core from one segment to the next but what is said to
outlive its own, nothing but L1 passes data between operators inside it, and UB from FIXPIPE to VECTOR, no block reads what a later one has
made, what comes to the shared memory from DDR is an operator's weights, and a FIXPIPE's bias and scale are constants of the model, or what
the host gives for columns.  A read that breaks this found its place overwritten.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from simulator.npu import isa
from simulator.npu.access import MAX_RANGES, accesses, extent, window_of
from simulator.npu.isa import Op
from simulator.npu.parts import Engine, Memory

Int32s = NDArray[np.int32]
Int64s = NDArray[np.int64]

# numba compiles a kernel anew for each Python constant that it is given, but once for all of a numpy type
OUT_OF_BOUNDS, UNWRITTEN_READ, RACE, FLAG_COUNT, CONSTANT_WRITE, OVERWRITTEN_READ = np.arange(6)
UNWRITTEN, WRITTEN, COLUMNS, NOBODY = -1, -2, -3, -1  # COLUMNS: by the host, one value for each column
_NO_OTHER = np.int32(-1)

OPERATOR_BITS = isa.OPERATOR_BITS
_LANES, _SUM_BLOCKS = isa.LANES, isa.SUM_BLOCKS
OP, DTYPE, SRC, DST, S0, S1, TAG, BLOCK = isa.OP, isa.DTYPE, isa.SRC, isa.DST, isa.S0, isa.S1, isa.TAG, isa.BLOCK
ENGINE, _VECTOR = isa.ENGINE, int(Engine.VECTOR)
F_N1, F_SUMS, F_SCALE = isa.F_N1, isa.F_SUMS, isa.F_SCALE
FLAGGED = (int(Op.SET), int(Op.WAIT))
_SET, _WAIT, _COPY, _IM2COL, _FIXPIPE = int(Op.SET), int(Op.WAIT), int(Op.COPY), int(Op.IM2COL), int(Op.FIXPIPE)
_MMAD_IM2COL, F_SIDE = int(Op.MMAD_IM2COL), isa.F_SIDE
_DDR, _L1, _UB, _SHARED = np.int64(Memory.DDR), np.int64(Memory.L1), np.int64(Memory.UB), np.int64(Memory.SHARED)
I_H, I_W, I_PITCH, I_PLANE = isa.I_H, isa.I_W, isa.I_PITCH, isa.I_PLANE
I_OW, I_MOFF, I_M, I_KOFF, I_K, I_LANES = isa.I_OW, isa.I_MOFF, isa.I_M, isa.I_KOFF, isa.I_K, isa.I_LANES
I_RING, I_FIRST = isa.I_RING, isa.I_FIRST
_LOOK_BACK = 16  # findings of one record that a further block may join


class Walk(NamedTuple):
    """What the walk reads and changes (see the table above).

    core_start: int32 [cores + 1] over records.  base: int64 [cores, 7], first shadow block of a memory (DDR: of its block 0).
    limits: int64 [7, 2] as `program.block_limits`.  head, tail: int32 [q] into by_queue.  sets, waited: int32 [flags], how many
    took effect.  snapshot: int32 [w, q], the clock that the i-th WAIT of a flag inherits.  total: int64 [1], findings, also those
    beyond the limit.  depth, count_limit: of the machine.
    """

    code: Int32s
    core_start: Int32s
    queue: Int32s
    place: Int32s
    by_queue: Int32s
    queue_start: Int32s
    flag: Int32s
    waits: Int32s
    wait_start: Int32s
    core_of_queue: Int32s
    base: Int64s
    limits: Int64s
    clock: Int32s
    in_order: NDArray[np.bool_]
    head: Int32s
    tail: Int32s
    sets: Int32s
    waited: Int32s
    snapshot: Int32s
    writer: Int32s
    reader: Int32s
    found: Int64s
    total: Int64s
    depth: int
    count_limit: int


@njit(cache=True)
def _report(w: Walk, kind: int, i: int, memory: int, block: int, other: int) -> None:
    """Add one block to the findings; a finding is a hull of blocks of one record, memory and other record."""
    n = w.total[0]
    for j in range(min(n, w.found.shape[0]) - 1, max(-1, n - 1 - _LOOK_BACK), -1):
        row = w.found[j]
        if row[1] != i:
            break
        if row[0] == kind and row[2] == memory and row[5] == other:
            row[3] = min(row[3], block)
            row[4] = max(row[4], block + 1)
            return
    if n < w.found.shape[0]:
        row = w.found[n]
        row[0], row[1], row[2], row[3], row[4], row[5] = kind, i, memory, block, block + 1, other
    w.total[0] = n + 1


@njit(cache=True)
def _before(w: Walk, other: int, q: int) -> bool:
    """Whether record `other` has completed before what queue q does now, whatever the times."""
    p = w.queue[other]
    return (p == q and w.in_order[q]) or w.clock[q, p] >= w.place[other]


@njit(cache=True)
def _overwritten(code: Int32s, writer: int, i: int, memory: int) -> bool:
    """Whether record i cannot want what record `writer` left in a memory (see the top)."""
    if memory == _DDR:
        return False
    theirs, mine = code[writer, TAG], code[i, TAG]
    if memory == _SHARED:  # all that comes there from DDR are weights
        return code[writer, OP] == _COPY and code[writer, SRC] == _DDR and theirs != mine
    block = code[writer, BLOCK]
    if theirs >> OPERATOR_BITS != mine >> OPERATOR_BITS:
        return memory != _L1 or block >= 0  # else it outlives its segment
    if theirs != mine and memory != _L1 and not (memory == _UB and code[writer, OP] == _FIXPIPE and code[i, ENGINE] == _VECTOR):
        return True
    return max(block, ~block) > max(code[i, BLOCK], ~code[i, BLOCK])


@njit(cache=True)
def _read_constants(w: Walk, i: int, q: int, memory: int, shift: int, first: int) -> None:
    """Report blocks of a FIXPIPE's bias or scale, from `first` on, that are not as they were loaded from constants or columns."""
    stop = first + _SUM_BLOCKS[w.code[i, DTYPE]] * w.code[i, F_N1]
    if first < 0 or stop > w.limits[memory, 0]:
        return
    for block in range(first, stop):
        writer = w.writer[shift + block]
        if writer >= 0 and _before(w, writer, q):
            o = w.code[writer]
            known = w.limits[_DDR, 1]
            if o[OP] != _COPY or o[SRC] != _DDR or (o[S0] >= known and w.writer[o[S0] - known] != COLUMNS):
                _report(w, OVERWRITTEN_READ, i, memory, block, writer)


@njit(cache=True)
def _read(w: Walk, i: int, q: int, memory: int, shift: int, block: int, nodes: Int32s, used: Int64s) -> None:
    """Read one block; `nodes` int32 [k, 2] holds (record, next) lists, used[0] of them taken, used[1] heads the free ones."""
    at = shift + block
    last = w.reader[at]
    if last == i:
        return
    writer = w.writer[at]
    if writer == UNWRITTEN:
        _report(w, UNWRITTEN_READ, i, memory, block, _NO_OTHER)
    elif writer >= 0 and not _before(w, writer, q):
        _report(w, RACE, i, memory, block, writer)
    elif writer >= 0 and _overwritten(w.code, writer, i, memory):
        _report(w, OVERWRITTEN_READ, i, memory, block, writer)
    if last == NOBODY or (last >= 0 and _before(w, last, q)):
        w.reader[at] = i
        return
    if last >= 0:
        w.reader[at] = -2 - _node(nodes, used, last, -1)
        last = w.reader[at]
    node = -2 - last
    while node >= 0:  # take the place of a reader that is ordered before
        if _before(w, nodes[node, 0], q):
            nodes[node, 0] = i
            return
        node = nodes[node, 1]
    w.reader[at] = -2 - _node(nodes, used, i, -2 - last)


@njit(cache=True)
def _node(nodes: Int32s, used: Int64s, record: int, rest: int) -> int:
    node = used[1]
    if node >= 0:
        used[1] = nodes[node, 1]
    else:
        node = used[0]
        used[0] += 1
    nodes[node, 0], nodes[node, 1] = record, rest
    return node


@njit(cache=True)
def _write(w: Walk, i: int, q: int, memory: int, shift: int, block: int, nodes: Int32s, used: Int64s) -> None:
    at = shift + block
    writer = w.writer[at]
    if writer >= 0 and not _before(w, writer, q):
        _report(w, RACE, i, memory, block, writer)
    last = w.reader[at]
    if last >= 0:
        if not _before(w, last, q):
            _report(w, RACE, i, memory, block, last)
    elif last <= -2:
        node = -2 - last
        while node >= 0:
            if not _before(w, nodes[node, 0], q):
                _report(w, RACE, i, memory, block, nodes[node, 0])
            rest = nodes[node, 1]
            nodes[node, 1] = used[1]
            used[1] = node
            node = rest
    w.writer[at] = i
    w.reader[at] = NOBODY


@njit(cache=True)
def _grown(nodes: Int32s, used: Int64s, more: int) -> Int32s:
    """`nodes` with room for `more` readers."""
    if used[0] + more <= nodes.shape[0]:
        return nodes
    wider = np.empty((max(2 * nodes.shape[0], used[0] + more), 2), np.int32)
    wider[: nodes.shape[0]] = nodes
    return wider


@njit(cache=True)
def _gather(w: Walk, i: int, q: int, shift: int, nodes: Int32s, used: Int64s) -> Int32s:
    """The blocks that the taps of an IM2COL or an MMAD_IM2COL name, each once or more."""
    c = w.code[i]
    kh, kw, sh, sw, dh, dw, pt, pl = window_of(w.code, i)
    four = c[I_LANES] == 4
    taps = kh * kw
    per_block = _LANES[c[DTYPE]] // 4 if four else 1
    writer, reader, queue, place, seen = w.writer, w.reader, w.queue, w.place, w.clock[q]
    mine = q if w.in_order[q] else -1
    for k in range(c[I_K]):
        for part in range(per_block):
            tap = (c[I_KOFF] + k) * per_block + part
            start = np.int64(c[S0])
            if four:
                if tap >= taps:
                    break
            else:
                start += tap // taps * c[I_PLANE]
                tap %= taps
            dy, dx = tap // kw * dh - pt, tap % kw * dw - pl
            oy, ox = c[I_MOFF] // c[I_OW], c[I_MOFF] % c[I_OW]
            for _ in range(c[I_M]):
                y, x = oy * sh + dy, ox * sw + dx
                if 0 <= y < c[I_H] and 0 <= x < c[I_W]:
                    row = (c[I_FIRST] + y) % c[I_RING] if c[I_RING] else y
                    block = start + row * c[I_PITCH] + x // per_block
                    at = shift + block
                    if _read_run(w.code, i, mine, _L1, at, at + 1, writer, reader, queue, place, seen) == at:
                        nodes = _grown(nodes, used, 2)
                        _read(w, i, q, _L1, shift, block, nodes, used)
                ox += 1
                if ox == c[I_OW]:
                    ox = 0
                    oy += 1
    return nodes


@njit(cache=True)
def _read_run(
    code: Int32s, i: int, mine: int, memory: int, at: int, stop: int, writer: Int32s, reader: Int32s,
    queue: Int32s, place: Int32s, seen: Int32s,
) -> int:  # fmt: skip
    """Read shadow blocks [at, stop) while all is well; the first one that `_read` has to look at, or stop.

    mine: the record's queue, -1 where that is not in order.
    """
    fine = i  # a record already found to be ordered before this one
    while at < stop:
        last = reader[at]
        if last != i:
            before = writer[at]
            if before != fine and before != WRITTEN and before != COLUMNS:
                if before < 0 or (queue[before] != mine and seen[queue[before]] < place[before]) or _overwritten(code, before, i, memory):
                    return at
                fine = before
            if last < NOBODY or (last >= 0 and queue[last] != mine and seen[queue[last]] < place[last]):
                return at
            reader[at] = i
        at += 1
    return at


@njit(cache=True)
def _write_run(i: int, mine: int, at: int, stop: int, writer: Int32s, reader: Int32s, queue: Int32s, place: Int32s, seen: Int32s) -> int:
    """As `_read_run`, for writes."""
    fine = i
    while at < stop:
        last, before = reader[at], writer[at]
        if before >= 0 and before != fine:
            if queue[before] != mine and seen[queue[before]] < place[before]:
                return at
            fine = before
        if last != NOBODY and last != fine:
            if last < NOBODY or (queue[last] != mine and seen[queue[last]] < place[last]):
                return at
            fine = last
        writer[at] = i
        reader[at] = NOBODY
        at += 1
    return at


@njit(cache=True)
def _touch(w: Walk, i: int, q: int, rows: Int64s, nodes: Int32s, used: Int64s) -> Int32s:
    """Everything that record i reads and writes."""
    base = w.base[w.core_of_queue[q]]
    writer, reader, queue, place, seen = w.writer, w.reader, w.queue, w.place, w.clock[q]
    mine = q if w.in_order[q] else -1
    if w.code[i, OP] == _FIXPIPE:
        side = np.int64(w.code[i, F_SIDE]) if w.code[i, F_SIDE] else _UB
        _read_constants(w, i, q, side, base[side], np.int64(w.code[i, S1]))
        if w.code[i, F_SUMS]:
            _read_constants(w, i, q, side, base[side], np.int64(w.code[i, F_SCALE]))
    for j in range(accesses(w.code, np.int64(i), rows)):
        row = rows[j]
        memory, write, first, length = row[0], row[1], row[2], row[3]
        lo, hi = extent(row)
        if lo < 0 or hi > w.limits[memory, 0]:
            _report(w, OUT_OF_BOUNDS, i, memory, lo, _NO_OTHER)
            _report(w, OUT_OF_BOUNDS, i, memory, hi - 1, _NO_OTHER)
            continue
        readable = w.limits[memory, 1]  # below it: constants, no shadow
        if not write and hi <= readable:
            continue
        if not write and (w.code[i, OP] == _IM2COL or (w.code[i, OP] == _MMAD_IM2COL and memory == _L1 and j > 0)):  # 0: its weights
            nodes = _gather(w, i, q, base[_L1], nodes, used)
            continue
        shift = base[memory]
        for outer in range(row[6]):
            for inner in range(row[4]):
                start = first + inner * row[5] + outer * row[7]
                stop = start + length
                if write:
                    while start < readable and start < stop:
                        _report(w, CONSTANT_WRITE, i, memory, start, _NO_OTHER)
                        start += 1
                    while start < stop:
                        start = _write_run(i, mine, shift + start, shift + stop, writer, reader, queue, place, seen) - shift
                        if start < stop:
                            _write(w, i, q, memory, shift, start, nodes, used)
                            start += 1
                else:
                    start = max(start, readable)
                    while start < stop:
                        start = _read_run(w.code, i, mine, memory, shift + start, shift + stop, writer, reader, queue, place, seen) - shift
                        if start < stop:
                            nodes = _grown(nodes, used, 2)
                            _read(w, i, q, memory, shift, start, nodes, used)
                            start += 1
    return nodes


@njit(cache=True)
def _set(w: Walk, i: int, q: int) -> None:
    f = w.flag[i]
    k = w.sets[f]
    first, count = w.wait_start[f], w.wait_start[f + 1] - w.wait_start[f]
    if k < count:
        w.snapshot[first + k] = w.clock[q]
        w.snapshot[first + k, q] = w.place[i]
    k += 1
    w.sets[f] = k
    if k > w.count_limit:  # the count stays within its limit only if the WAIT so many places back is over
        back = k - w.count_limit
        ordered = False
        if back <= count:
            wait = w.waits[first + back - 1]
            ordered = w.place[wait] < w.place[i] if w.queue[wait] == q else _before(w, wait, q)
        if not ordered:
            _report(w, FLAG_COUNT, i, _DDR, np.int64(f), _NO_OTHER)


@njit(cache=True)
def walk(w: Walk) -> None:
    """Run every queue as far as it goes; where a head is left before its queue's end the program is deadlocked.

    The scalar unit hands out a core's stream in order and waits where a queue holds `depth` entries, as in `timing`.
    """
    cores = w.core_start.shape[0] - 1
    pc = w.core_start[:cores].copy()
    rows = np.empty((MAX_RANGES, 8), np.int64)
    nodes = np.empty((64, 2), np.int32)
    used = np.array([0, -1], np.int64)
    moved = True
    while moved:
        moved = False
        for core in range(cores):
            while pc[core] < w.core_start[core + 1]:
                q = w.queue[pc[core]]
                if w.tail[q] - w.head[q] == w.depth:
                    break
                w.tail[q] += 1
                pc[core] += 1
                moved = True
        for q in range(w.head.shape[0]):
            while w.head[q] < w.tail[q]:
                i = w.by_queue[w.head[q]]
                op = w.code[i, OP]
                if op == _WAIT:
                    f = w.flag[i]
                    k = w.waited[f]
                    if k >= w.sets[f]:
                        break
                    w.waited[f] = k + 1
                    inherited = w.snapshot[w.wait_start[f] + k]
                    for p in range(inherited.shape[0]):
                        if inherited[p] > w.clock[q, p]:
                            w.clock[q, p] = inherited[p]
                elif op == _SET:
                    _set(w, i, q)
                else:
                    on_chip = op == _COPY and w.code[i, SRC] != _DDR and w.code[i, DST] != _DDR
                    if on_chip:  # has all ports of its DMA
                        w.clock[q, q] = w.place[i]
                    nodes = _touch(w, i, q, rows, nodes, used)
                w.head[q] += 1
                moved = True
