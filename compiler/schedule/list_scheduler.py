"""List scheduling of a segment's records: an order in which engines wait less for each other, with some records of lookahead.

Emitters write operator by operator and tile by tile, and an engine takes its records in their order.  So a record that waits, for a result
or for a slot, delays others that need not wait: the next tiles of its own operator, or those of an operator whose inputs are there.

Every engine has a clock.  The next record is the one that can begin first, of several the first engine's.  Within an engine it is the one
with the longest chain of dependent records to the segment's end (critical path: Hu 1961; Adam, Chandy and Dickson 1974), in steps of 256
cycles.  Reused slots make chains, too.  So MTE1 brings VECTOR the first channels of a depthwise convolution while it still has the last
ones to bring to CUBE.  With equal steps, and in a segment that is not `urgent`, the next record is the first emitted one.  Each engine
chooses from its first `lookahead` records that are not scheduled, like the window of an out-of-order processor (Tomasulo 1967; list
scheduling: Graham 1966).

Loads stay in order unless they may overtake.  With overtaking, a load that waits for its slot in L1 or UB lets other loads go first, such
as loads of the next pass while weights of this pass arrive in chunks.  If DDR is slower than CUBE, the order of need is better.

A record comes behind all earlier records that share a cell with it, if one of the two writes.  So addresses stay, and the records mean the
same.  Slots limit how far an engine gets ahead: one that is reused soon ends it.

| array | dtype, shape      | meaning                                                                          |
|-------|-------------------|----------------------------------------------------------------------------------|
| edge  | int32 [edges, 2]  | predecessor of a record, and index of the record's next edge, or -1               |
| first | int32 [n]         | index of the first edge to record i, or -1                                       |
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from compiler.schedule.local_dependences import ENGINES, Bytes8, Ints32
from compiler.schedule.scratch import Scratch
from simulator.npu.parts import Engine
from simulator.pointer import Pointer, pointer

Ints = NDArray[np.int64]

_LOADS = int(Engine.MTE2)
_PREDECESSOR, _NEXT = range(2)  # columns of `edge`
_NO_EDGE_ROOM, _NO_READ_ROOM = -1, -2
_NEVER = np.iinfo(np.int64).max
# bits of a record's place in its queue, in one number with a cycle: a segment has fewer records (`codegen.lower_segment.CAPACITY`)
_PLACE_BITS = 20
_STEP_BITS = 8  # log2 cycles, unit of chain lengths; equal chains, as of an operator's tiles, keep the emitted order
_MOST_STEPS = (1 << 62 - _PLACE_BITS) - 1  # longest chain that fits the bits of a rank


def order_records(
    engine: Bytes8, span: Ints32, start: Ints32, cells: int, cycles: Ints, late: Ints, lookahead: int, overtake: bool, urgent: bool,
    scratch: Scratch,
) -> Ints:  # fmt: skip
    """Order of n records that touch `cells` cells, int64 [n] (arrays: see `segment_accesses`).

    overtake: whether loads may overtake loads.  urgent: see above.  cycles: int64 [n], busy cycles of the engine.  late: int64 [n], cycles
    from the engine's end until the results are visible.
    """
    n = len(engine)
    first, stamp, writer, reader = (
        scratch.array(*name_size) for name_size in (("first", n), ("seen", n), ("writer", cells), ("reader", cells))
    )
    edge, read = scratch.array("edge", 8 * n + 64, 2), scratch.array("read", 4 * len(span) + 16, 2)
    while (used := _find_edges(span, start, edge, first, read, writer, reader, stamp)) < 0:
        if used == _NO_EDGE_ROOM:
            edge = scratch.array("edge", 2 * len(edge), 2)
        else:
            read = scratch.array("read", 2 * len(read), 2)
    order = np.empty(n, np.int64)
    _schedule(engine, cycles, late, edge, first, used, lookahead, overtake, urgent, order)
    return order


@njit(cache=True, forceinline=True)
def _add(edge: Pointer, edge_count: int, first: Pointer, stamp: Pointer, before: int, record: int) -> int:
    """Add an edge from record `before` to record `record`, unless it exists; returns the number of edges."""
    if before == record or stamp[before] == record:
        return edge_count
    stamp[before] = record
    edge[2 * edge_count], edge[2 * edge_count + 1] = before, first[record]
    first[record] = edge_count
    return edge_count + 1


@njit(cache=True)
def _find_edges(
    span_array: Ints32, start_array: Ints32, edge_array: Ints32, first_array: Ints32, read_array: Ints32,
    writer_array: Ints32, reader_array: Ints32, stamp_array: Ints32,
) -> int:  # fmt: skip
    """Fill edge and first; returns the number of edges, or `_NO_EDGE_ROOM` or `_NO_READ_ROOM`.

    read_array: int32 [.., 2], scratch: a reader, and the index of the read before.  writer_array, reader_array: int32 [cells], scratch:
    last write and read.  stamp_array: int32 [n], scratch.  A record that writes cells after reads comes after the readers.  These came
    after the earlier write, so that write needs no edge.
    """
    span, start, edge, first, read = (
        pointer(span_array), pointer(start_array), pointer(edge_array), pointer(first_array), pointer(read_array),
    )  # fmt: skip
    writer, reader, stamp = pointer(writer_array), pointer(reader_array), pointer(stamp_array)
    writer_array[:] = reader_array[:] = stamp_array[:] = -1
    n, edge_count, read_count = first_array.shape[0], 0, 0
    for i in range(n):
        first[i] = -1
        if edge_count + i > edge_array.shape[0]:  # a record has at most one edge from each before it
            return _NO_EDGE_ROOM
        for s in range(start[i], start[i + 1]):
            write = span[2 * s] & 1
            for c in range(span[2 * s] >> 1, span[2 * s + 1]):
                k = reader[c]
                if writer[c] >= 0 and (k < 0 or not write):
                    edge_count = _add(edge, edge_count, first, stamp, writer[c], i)
                if write:
                    while k >= 0:
                        edge_count = _add(edge, edge_count, first, stamp, read[2 * k], i)
                        k = read[2 * k + 1]
                    writer[c], reader[c] = i, -1
                elif k < 0 or read[2 * k] != i:
                    if read_count == read_array.shape[0]:
                        return _NO_READ_ROOM
                    read[2 * read_count], read[2 * read_count + 1] = i, k
                    reader[c] = read_count
                    read_count += 1
    return edge_count


@njit(cache=True)
def _successors(edge: Ints32, first: Ints32, used: int, predecessors: Ints32) -> Any:
    """Successors of all records: (start index of each record, int32 [n + 1]; successors, int32 [used]).

    Fills predecessors: number of predecessors of each record.
    """
    n = first.shape[0]
    begin, after = np.zeros(n + 2, np.int32), np.empty(used, np.int32)
    for i in range(n):
        e = first[i]
        while e >= 0:
            begin[edge[e, _PREDECESSOR] + 2] += 1
            predecessors[i] += 1
            e = edge[e, _NEXT]
    for i in range(n):
        begin[i + 2] += begin[i + 1]
    for i in range(n):
        e = first[i]
        while e >= 0:
            slot = begin[edge[e, _PREDECESSOR] + 1]
            after[slot] = i
            begin[edge[e, _PREDECESSOR] + 1] = slot + 1
            e = edge[e, _NEXT]
    return begin, after


@njit(cache=True, forceinline=True)
def _push(heap: Ints, size: int, key: int) -> int:
    """Push a key on a heap of `size`, the least one first; returns its size."""
    index = size
    while index > 0 and heap[(index - 1) >> 1] > key:
        heap[index] = heap[(index - 1) >> 1]
        index = (index - 1) >> 1
    heap[index] = key
    return size + 1


@njit(cache=True, forceinline=True)
def _pop(heap: Ints, size: int) -> int:
    """Pop the first key of a heap; returns its size."""
    size -= 1
    key, index = heap[size], 0
    while 2 * index + 1 < size:
        child = 2 * index + 1
        if child + 1 < size and heap[child + 1] < heap[child]:
            child += 1
        if heap[child] >= key:
            break
        heap[index] = heap[child]
        index = child
    heap[index] = key
    return size


@njit(cache=True)
def _ranks(successor_start: Ints32, successors: Ints32, cycles: Ints, late: Ints, rank: Ints) -> None:
    """Fill rank, int64 [n]: the longest chain less the longest chain from a record, in steps, shifted to the upper bits of a heap's key."""
    n, longest = rank.shape[0], 0
    for i in range(n - 1, -1, -1):
        chain = 0
        for k in range(successor_start[i], successor_start[i + 1]):
            chain = max(chain, rank[successors[k]])
        rank[i] = chain + cycles[i] + late[i]
        longest = max(longest, rank[i])
    for i in range(n):
        rank[i] = min((longest - rank[i]) >> _STEP_BITS, _MOST_STEPS) << _PLACE_BITS


@njit(cache=True, forceinline=True)
def _wake(
    open_heap: Ints, open_size: Ints, waiting_heap: Ints, waiting_size: Ints, free: Ints, engine: int, rank: Ints, queue: Ints32
) -> None:
    """Move an engine's records that may begin by now to the open heap."""
    while waiting_size[engine] and waiting_heap[engine, 0] >> _PLACE_BITS <= free[engine]:
        position = waiting_heap[engine, 0] & ((1 << _PLACE_BITS) - 1)
        open_size[engine] = _push(open_heap[engine], open_size[engine], rank[queue[engine, position]] | position)
        waiting_size[engine] = _pop(waiting_heap[engine], waiting_size[engine])


@njit(cache=True, forceinline=True)
def _next(open_size: Ints, waiting_heap: Ints, waiting_size: Ints, free: Ints, engine: int) -> int:
    """Cycle in which an engine's next record can begin."""
    if open_size[engine]:
        return free[engine]
    return waiting_heap[engine, 0] >> _PLACE_BITS if waiting_size[engine] else _NEVER


@njit(cache=True)
def _schedule(
    engine: Bytes8, cycles: Ints, late: Ints, edge: Ints32, first: Ints32, used: int, lookahead: int, overtake: bool, urgent: bool,
    order: Ints,
) -> None:  # fmt: skip
    """Fill order, int64 [n].  used: number of edges.  Other parameters: see `order_records`."""
    n = engine.shape[0]
    predecessors = np.zeros(n, np.int32)
    successor_start, successors = _successors(edge, first, used, predecessors)
    rank = np.zeros(n, np.int64)
    if urgent:
        _ranks(successor_start, successors, cycles, late, rank)
    # records of every engine as they were emitted
    queue, length, position = np.empty((ENGINES, n), np.int32), np.zeros(ENGINES, np.int64), np.empty(n, np.int32)
    for i in range(n):
        position[i] = length[engine[i]]
        queue[engine[i], length[engine[i]]] = i
        length[engine[i]] += 1
    # cycles: when an engine is free, when a record's inputs are there, when an engine's next record can begin
    free, ready, next_begin = np.zeros(ENGINES, np.int64), np.zeros(n, np.int64), np.full(ENGINES, _NEVER, np.int64)
    # heaps of records without predecessors: (rank, position) of those that may begin at once, (cycle, position) of the later ones
    open_heap, waiting_heap = np.empty((ENGINES, lookahead), np.int64), np.empty((ENGINES, lookahead), np.int64)
    open_size, waiting_size, window_end = np.zeros(ENGINES, np.int64), np.zeros(ENGINES, np.int64), np.zeros(ENGINES, np.int64)
    for e in range(ENGINES):
        window_end[e] = min(length[e], lookahead if overtake or e != _LOADS else 1)  # first position behind the lookahead
        for w in range(window_end[e]):
            if predecessors[queue[e, w]] == 0:
                open_size[e] = _push(open_heap[e], open_size[e], rank[queue[e, w]] | w)
        if open_size[e]:
            next_begin[e] = 0
    for index in range(n):
        # the engine whose next record can begin first; if it must idle until then, more of its records may begin
        e = int(np.argmin(next_begin))
        if open_size[e] == 0:
            free[e] = waiting_heap[e, 0] >> _PLACE_BITS
            _wake(open_heap, open_size, waiting_heap, waiting_size, free, e, rank, queue)
        i = queue[e, open_heap[e, 0] & ((1 << _PLACE_BITS) - 1)]
        open_size[e] = _pop(open_heap[e], open_size[e])
        order[index] = i
        free[e] += cycles[i]
        # the window of its queue moves on
        if window_end[e] < length[e]:
            node = queue[e, window_end[e]]
            if predecessors[node] == 0:
                waiting_size[e] = _push(waiting_heap[e], waiting_size[e], ready[node] << _PLACE_BITS | window_end[e])
            window_end[e] += 1
        _wake(open_heap, open_size, waiting_heap, waiting_size, free, e, rank, queue)
        next_begin[e] = _next(open_size, waiting_heap, waiting_size, free, e)
        # its successors may become ready
        completion = free[e] + late[i]
        for k in range(successor_start[i], successor_start[i + 1]):
            node = successors[k]
            predecessors[node] -= 1
            ready[node] = max(ready[node], completion)
            owner = engine[node]
            if predecessors[node] == 0 and position[node] < window_end[owner]:
                if ready[node] <= free[owner]:
                    open_size[owner] = _push(open_heap[owner], open_size[owner], rank[node] | position[node])
                else:
                    waiting_size[owner] = _push(waiting_heap[owner], waiting_size[owner], ready[node] << _PLACE_BITS | position[node])
                next_begin[owner] = _next(open_size, waiting_heap, waiting_size, free, owner)
