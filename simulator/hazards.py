"""Walk of the sanitizer: one legal order of a program, with vector clocks and a shadow of every block (numba).

| name          | shape               | meaning                                                                            |
|---------------|---------------------|------------------------------------------------------------------------------------|
| code          | int32 [n, 32]       | all streams, core after core                                                       |
| queue, place  | int32 [n]           | used queue (core, engine) of a record, and its place in it, from 1                  |
| by_queue      | int32 [n]           | record numbers, queue after queue; queue q has by_queue[queue_start[q]:]            |
| flag          | int32 [n]           | number of the flag of a SET or WAIT                                                |
| waits         | int32 [w]           | WAIT records, flag after flag; flag f has waits[wait_start[f]:wait_start[f + 1]]    |
| clock         | int32 [q, q]        | clock[q, p]: last place of queue p that has completed before the next one of queue q |
| in_order      | bool [q]            | whether all earlier entries complete before the next; false for a DMA with several ports |
| writer        | int32 [blocks]      | last record that wrote a block; UNWRITTEN; or WRITTEN or COLUMNS before the program |
| reader        | int32 [blocks]      | NOBODY; the one last reader; or -2 - node, a list of readers not ordered among them |
| found         | int64 [limit, 6]    | kind, record, memory, first block, one past the last, other record                  |

A race shows in any legal order: two accesses that are not ordered by queues and flags are not ordered by the clocks, whichever
comes first (FastTrack, Flanagan and Freund, PLDI 2009: an epoch where readers are ordered, more only where they are not).  The
constants of DDR are read-only, so they have no shadow.  IM2COL reads exactly the blocks that its taps name, not the whole rows
of `access`: rows that are filled in part are legal.

On a DMA with several ports transfers overlap.  Only a flag that the queue waits for, or an on-chip move, tells that a transfer has
completed.  The order in which transfers take the ports is none that a program may rely on.

Data that is overwritten in order, but before its last reader, is no race.  Records do not say whose data a reader expects.  But they name
their segment, operator and block (TAG, BLOCK), which limits it.  Nothing stays in a core from one segment to the next unless it is marked
to outlive its segment.  Inside a segment only L1 passes data between operators, and UB from FIXPIPE to VECTOR.  No block reads data of a
later block.  Data from DDR in the shared memory are an operator's weights.  Bias and scale of FIXPIPE are constants of the model, or come
from the host with a value per column.  A read that breaks one of these rules read an overwritten place.
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

# numba compiles a kernel again for every Python constant, but once for all values of a numpy type
OUT_OF_BOUNDS, UNWRITTEN_READ, RACE, FLAG_COUNT, CONSTANT_WRITE, OVERWRITTEN_READ = np.arange(6)
UNWRITTEN, WRITTEN, COLUMNS, NOBODY = -1, -2, -3, -1  # COLUMNS: written by the host, one value per column
_NO_OTHER = np.int32(-1)

OPERATOR_BITS = isa.OPERATOR_BITS
_LANES, _SUM_BLOCKS = isa.TYPE_LANES, isa.SUM_BLOCKS
OP, DTYPE, SRC, DST, S0, S1, TAG, BLOCK = isa.OP, isa.DTYPE, isa.SRC, isa.DST, isa.S0, isa.S1, isa.TAG, isa.BLOCK
ENGINE, _VECTOR = isa.ENGINE, int(Engine.VECTOR)
F_N1, F_SUMS, F_SCALE = isa.F_N1, isa.F_SUMS, isa.F_SCALE
FLAG_OPS = (int(Op.SET), int(Op.WAIT))
_SET, _WAIT, _COPY, _IM2COL, _FIXPIPE = int(Op.SET), int(Op.WAIT), int(Op.COPY), int(Op.IM2COL), int(Op.FIXPIPE)
_MMAD_IM2COL, F_SIDE = int(Op.MMAD_IM2COL), isa.F_SIDE
_DDR, _L1, _UB, _SHARED = np.int64(Memory.DDR), np.int64(Memory.L1), np.int64(Memory.UB), np.int64(Memory.SHARED)
I_H, I_W, I_PITCH, I_PLANE = isa.I_H, isa.I_W, isa.I_PITCH, isa.I_PLANE
I_OW, I_MOFF, I_M, I_KOFF, I_K, I_LANES = isa.I_OW, isa.I_MOFF, isa.I_M, isa.I_KOFF, isa.I_K, isa.I_LANES
I_RING, I_FIRST = isa.I_RING, isa.I_FIRST
_LOOK_BACK = 16  # findings of one record that a further block may join


class Walk(NamedTuple):
    """Arrays that the walk reads and changes (see the table above).

    core_start: int32 [cores + 1] over records.  base: int64 [cores, 7], first shadow block of a memory (DDR: of its block 0).
    limits: int64 [7, 2], see `program.block_limits`.  head, tail: int32 [q], indices into by_queue.  sets, waited: int32 [flags], number of
    SETs and WAITs in effect.  snapshot: int32 [w, q], clock that the i-th WAIT of a flag inherits.  total: int64 [1], number of findings,
    also of those beyond the limit.  depth, count_limit: limits of the machine.
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
    findings: Int64s
    total: Int64s
    depth: int
    count_limit: int


@njit(cache=True)
def _report(walk: Walk, kind: int, record: int, memory: int, block: int, other_record: int) -> None:
    """Add one block to the findings; a finding is a hull of blocks of one record, memory and other record."""
    n = walk.total[0]
    for j in range(min(n, walk.findings.shape[0]) - 1, max(-1, n - 1 - _LOOK_BACK), -1):
        row = walk.findings[j]
        if row[1] != record:
            break
        if row[0] == kind and row[2] == memory and row[5] == other_record:
            row[3] = min(row[3], block)
            row[4] = max(row[4], block + 1)
            return
    if n < walk.findings.shape[0]:
        row = walk.findings[n]
        row[0], row[1], row[2], row[3], row[4], row[5] = kind, record, memory, block, block + 1, other_record
    walk.total[0] = n + 1


@njit(cache=True)
def _precedes(walk: Walk, record: int, queue: int) -> bool:
    """Whether a record has completed before the next entry of a queue in every possible timing."""
    p = walk.queue[record]
    return (p == queue and walk.in_order[queue]) or walk.clock[queue, p] >= walk.place[record]


@njit(cache=True)
def _is_overwritten(code: Int32s, writer: int, reader: int, memory: int) -> bool:
    """Whether record `reader` cannot expect the data that record `writer` left in a memory (see the top)."""
    if memory == _DDR:
        return False
    writer_tag, reader_tag = code[writer, TAG], code[reader, TAG]
    if memory == _SHARED:  # data from DDR there are always weights
        return code[writer, OP] == _COPY and code[writer, SRC] == _DDR and writer_tag != reader_tag
    block = code[writer, BLOCK]
    if writer_tag >> OPERATOR_BITS != reader_tag >> OPERATOR_BITS:
        return memory != _L1 or block >= 0  # else the data outlive their segment
    if (
        writer_tag != reader_tag
        and memory != _L1
        and not (memory == _UB and code[writer, OP] == _FIXPIPE and code[reader, ENGINE] == _VECTOR)
    ):
        return True
    return max(block, ~block) > max(code[reader, BLOCK], ~code[reader, BLOCK])


@njit(cache=True)
def _read_constants(walk: Walk, record: int, queue: int, memory: int, shift: int, first: int) -> None:
    """Report blocks of a FIXPIPE's bias or scale, from `first` on, that are no longer as loaded from constants or columns."""
    stop = first + _SUM_BLOCKS[walk.code[record, DTYPE]] * walk.code[record, F_N1]
    if first < 0 or stop > walk.limits[memory, 0]:
        return
    for block in range(first, stop):
        writer = walk.writer[shift + block]
        if writer >= 0 and _precedes(walk, writer, queue):
            load = walk.code[writer]
            constants = walk.limits[_DDR, 1]
            if load[OP] != _COPY or load[SRC] != _DDR or (load[S0] >= constants and walk.writer[load[S0] - constants] != COLUMNS):
                _report(walk, OVERWRITTEN_READ, record, memory, block, writer)


@njit(cache=True)
def _read(walk: Walk, record: int, queue: int, memory: int, shift: int, block: int, nodes: Int32s, used: Int64s) -> None:
    """Read one block.

    nodes: int32 [k, 2], lists of readers as (record, next).  used: int64 [2], nodes taken from the front, and head of the free list.
    """
    cell = shift + block
    last = walk.reader[cell]
    if last == record:
        return
    writer = walk.writer[cell]
    if writer == UNWRITTEN:
        _report(walk, UNWRITTEN_READ, record, memory, block, _NO_OTHER)
    elif writer >= 0 and not _precedes(walk, writer, queue):
        _report(walk, RACE, record, memory, block, writer)
    elif writer >= 0 and _is_overwritten(walk.code, writer, record, memory):
        _report(walk, OVERWRITTEN_READ, record, memory, block, writer)
    if last == NOBODY or (last >= 0 and _precedes(walk, last, queue)):
        walk.reader[cell] = record
        return
    if last >= 0:
        walk.reader[cell] = -2 - _node(nodes, used, last, -1)
        last = walk.reader[cell]
    node = -2 - last
    while node >= 0:  # take the place of a reader that is ordered before
        if _precedes(walk, nodes[node, 0], queue):
            nodes[node, 0] = record
            return
        node = nodes[node, 1]
    walk.reader[cell] = -2 - _node(nodes, used, record, -2 - last)


@njit(cache=True)
def _node(nodes: Int32s, used: Int64s, record: int, next_node: int) -> int:
    node = used[1]
    if node >= 0:
        used[1] = nodes[node, 1]
    else:
        node = used[0]
        used[0] += 1
    nodes[node, 0], nodes[node, 1] = record, next_node
    return node


@njit(cache=True)
def _write(walk: Walk, record: int, queue: int, memory: int, shift: int, block: int, nodes: Int32s, used: Int64s) -> None:
    cell = shift + block
    writer = walk.writer[cell]
    if writer >= 0 and not _precedes(walk, writer, queue):
        _report(walk, RACE, record, memory, block, writer)
    last = walk.reader[cell]
    if last >= 0:
        if not _precedes(walk, last, queue):
            _report(walk, RACE, record, memory, block, last)
    elif last <= -2:
        node = -2 - last
        while node >= 0:
            if not _precedes(walk, nodes[node, 0], queue):
                _report(walk, RACE, record, memory, block, nodes[node, 0])
            next_node = nodes[node, 1]
            nodes[node, 1] = used[1]
            used[1] = node
            node = next_node
    walk.writer[cell] = record
    walk.reader[cell] = NOBODY


@njit(cache=True)
def _with_room(nodes: Int32s, used: Int64s, more: int) -> Int32s:
    """`nodes` with room for `more` readers."""
    if used[0] + more <= nodes.shape[0]:
        return nodes
    wider = np.empty((max(2 * nodes.shape[0], used[0] + more), 2), np.int32)
    wider[: nodes.shape[0]] = nodes
    return wider


@njit(cache=True)
def _gather(walk: Walk, record: int, queue: int, shift: int, nodes: Int32s, used: Int64s) -> Int32s:
    """Read the blocks that the taps of an IM2COL or an MMAD_IM2COL name, each once or more; returns `nodes`, which may have grown."""
    words = walk.code[record]
    kh, kw, sh, sw, dh, dw, pt, pl = window_of(walk.code, record)
    four = words[I_LANES] == 4
    taps = kh * kw
    per_block = _LANES[words[DTYPE]] // 4 if four else 1
    writers, readers, queues, places, clock = walk.writer, walk.reader, walk.queue, walk.place, walk.clock[queue]
    ordered_queue = queue if walk.in_order[queue] else -1
    for k in range(words[I_K]):
        for part in range(per_block):
            # tap: position in the window, after the plane; pixels of four lanes have a block for several taps
            tap = (words[I_KOFF] + k) * per_block + part
            start = np.int64(words[S0])
            if four:
                if tap >= taps:
                    break
            else:
                start += tap // taps * words[I_PLANE]
                tap %= taps
            dy, dx = tap // kw * dh - pt, tap % kw * dw - pl
            oy, ox = words[I_MOFF] // words[I_OW], words[I_MOFF] % words[I_OW]
            for _ in range(words[I_M]):
                y, x = oy * sh + dy, ox * sw + dx
                if 0 <= y < words[I_H] and 0 <= x < words[I_W]:
                    row = (words[I_FIRST] + y) % words[I_RING] if words[I_RING] else y
                    block = start + row * words[I_PITCH] + x // per_block
                    cell = shift + block
                    # fast path; `_read` examines all other records
                    if _read_run(walk.code, record, ordered_queue, _L1, cell, cell + 1, writers, readers, queues, places, clock) == cell:
                        nodes = _with_room(nodes, used, 2)
                        _read(walk, record, queue, _L1, shift, block, nodes, used)
                ox += 1
                if ox == words[I_OW]:
                    ox = 0
                    oy += 1
    return nodes


@njit(cache=True)
def _read_run(
    code: Int32s, record: int, ordered_queue: int, memory: int, cell: int, stop: int, writers: Int32s, readers: Int32s,
    queues: Int32s, places: Int32s, clock: Int32s,
) -> int:  # fmt: skip
    """Read shadow blocks [cell, stop) while there is no finding; returns the first one that `_read` has to examine, or stop.

    ordered_queue: queue of the record; -1 if it is not in order.
    """
    ordered_record = record  # record found to be ordered before this one
    while cell < stop:
        last = readers[cell]
        if last != record:
            last_writer = writers[cell]
            if last_writer != ordered_record and last_writer != WRITTEN and last_writer != COLUMNS:
                if (
                    last_writer < 0
                    or (queues[last_writer] != ordered_queue and clock[queues[last_writer]] < places[last_writer])
                    or _is_overwritten(code, last_writer, record, memory)
                ):
                    return cell
                ordered_record = last_writer
            if last < NOBODY or (last >= 0 and queues[last] != ordered_queue and clock[queues[last]] < places[last]):
                return cell
            readers[cell] = record
        cell += 1
    return cell


@njit(cache=True)
def _write_run(
    record: int, ordered_queue: int, cell: int, stop: int, writers: Int32s, readers: Int32s, queues: Int32s, places: Int32s, clock: Int32s
) -> int:
    """`_read_run` for writes."""
    ordered_record = record
    while cell < stop:
        last, last_writer = readers[cell], writers[cell]
        if last_writer >= 0 and last_writer != ordered_record:
            if queues[last_writer] != ordered_queue and clock[queues[last_writer]] < places[last_writer]:
                return cell
            ordered_record = last_writer
        if last != NOBODY and last != ordered_record:
            if last < NOBODY or (queues[last] != ordered_queue and clock[queues[last]] < places[last]):
                return cell
            ordered_record = last
        writers[cell] = record
        readers[cell] = NOBODY
        cell += 1
    return cell


@njit(cache=True)
def _access_blocks(walk: Walk, record: int, queue: int, rows: Int64s, nodes: Int32s, used: Int64s) -> Int32s:
    """Read and write all blocks of a record; returns `nodes`, which may have grown."""
    base = walk.base[walk.core_of_queue[queue]]
    writers, readers, queues, places, clock = walk.writer, walk.reader, walk.queue, walk.place, walk.clock[queue]
    ordered_queue = queue if walk.in_order[queue] else -1
    # bias and scale must be as loaded
    if walk.code[record, OP] == _FIXPIPE:
        side = np.int64(walk.code[record, F_SIDE]) if walk.code[record, F_SIDE] else _UB
        _read_constants(walk, record, queue, side, base[side], np.int64(walk.code[record, S1]))
        if walk.code[record, F_SUMS]:
            _read_constants(walk, record, queue, side, base[side], np.int64(walk.code[record, F_SCALE]))
    for j in range(accesses(walk.code, np.int64(record), rows)):
        row = rows[j]
        memory, write, first, length = row[0], row[1], row[2], row[3]
        lo, hi = extent(row)
        if lo < 0 or hi > walk.limits[memory, 0]:
            _report(walk, OUT_OF_BOUNDS, record, memory, lo, _NO_OTHER)
            _report(walk, OUT_OF_BOUNDS, record, memory, hi - 1, _NO_OTHER)
            continue
        readable = walk.limits[memory, 1]  # below it: constants, no shadow
        if not write and hi <= readable:
            continue
        # j = 0 of an MMAD_IM2COL are its weights; an image is read block by block, since rows need not be filled
        if not write and (walk.code[record, OP] == _IM2COL or (walk.code[record, OP] == _MMAD_IM2COL and memory == _L1 and j > 0)):
            nodes = _gather(walk, record, queue, base[_L1], nodes, used)
            continue
        shift = base[memory]
        # runs: the fast path over blocks without findings, then one block at a time
        for outer in range(row[6]):
            for inner in range(row[4]):
                start = first + inner * row[5] + outer * row[7]
                stop = start + length
                if write:
                    while start < readable and start < stop:
                        _report(walk, CONSTANT_WRITE, record, memory, start, _NO_OTHER)
                        start += 1
                    while start < stop:
                        start = _write_run(
                            record, ordered_queue, shift + start, shift + stop, writers, readers, queues, places, clock,
                        ) - shift  # fmt: skip
                        if start < stop:
                            _write(walk, record, queue, memory, shift, start, nodes, used)
                            start += 1
                else:
                    start = max(start, readable)
                    while start < stop:
                        start = _read_run(
                            walk.code, record, ordered_queue, memory, shift + start, shift + stop, writers, readers, queues, places, clock,
                        ) - shift  # fmt: skip
                        if start < stop:
                            nodes = _with_room(nodes, used, 2)
                            _read(walk, record, queue, memory, shift, start, nodes, used)
                            start += 1
    return nodes


@njit(cache=True)
def _set(walk: Walk, record: int, queue: int) -> None:
    f = walk.flag[record]
    k = walk.sets[f]
    first, count = walk.wait_start[f], walk.wait_start[f + 1] - walk.wait_start[f]
    if k < count:
        walk.snapshot[first + k] = walk.clock[queue]
        walk.snapshot[first + k, queue] = walk.place[record]
    k += 1
    walk.sets[f] = k
    if k > walk.count_limit:  # the count stays within its limit only if the WAIT that is `count_limit` places back is over
        back = k - walk.count_limit
        ordered = False
        if back <= count:
            wait = walk.waits[first + back - 1]
            ordered = walk.place[wait] < walk.place[record] if walk.queue[wait] == queue else _precedes(walk, wait, queue)
        if not ordered:
            _report(walk, FLAG_COUNT, record, _DDR, np.int64(f), _NO_OTHER)


@njit(cache=True)
def walk_program(walk: Walk) -> None:
    """Run every queue as far as it goes; a queue with entries left at the end is deadlocked.

    The scalar unit hands out a core's stream in order and waits where a queue holds `depth` entries, as in `timing`.
    """
    cores = walk.core_start.shape[0] - 1
    pc = walk.core_start[:cores].copy()
    rows = np.empty((MAX_RANGES, 8), np.int64)
    nodes = np.empty((64, 2), np.int32)
    used = np.array([0, -1], np.int64)
    progress = True
    while progress:
        progress = False
        # dispatch in stream order, as far as queues have room
        for core in range(cores):
            while pc[core] < walk.core_start[core + 1]:
                queue = walk.queue[pc[core]]
                if walk.tail[queue] - walk.head[queue] == walk.depth:
                    break
                walk.tail[queue] += 1
                pc[core] += 1
                progress = True
        # every queue runs up to a WAIT that is not set
        for queue in range(walk.head.shape[0]):
            while walk.head[queue] < walk.tail[queue]:
                record = walk.by_queue[walk.head[queue]]
                op = walk.code[record, OP]
                if op == _WAIT:
                    f = walk.flag[record]
                    k = walk.waited[f]
                    if k >= walk.sets[f]:
                        break
                    walk.waited[f] = k + 1
                    # all that had completed before the SET has now completed for this queue too
                    inherited = walk.snapshot[walk.wait_start[f] + k]
                    for p in range(inherited.shape[0]):
                        if inherited[p] > walk.clock[queue, p]:
                            walk.clock[queue, p] = inherited[p]
                elif op == _SET:
                    _set(walk, record, queue)
                else:
                    on_chip = op == _COPY and walk.code[record, SRC] != _DDR and walk.code[record, DST] != _DDR
                    if on_chip:  # has all ports of its DMA
                        walk.clock[queue, queue] = walk.place[record]
                    nodes = _access_blocks(walk, record, queue, rows, nodes, used)
                walk.head[queue] += 1
                progress = True
