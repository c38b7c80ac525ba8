"""Sliding window: the order in which blocks of a segment go through its operators, and which of them overlap in time.

A node is (operator k, iteration t): one block of one image at one operator.  Node (k', t + d) comes after node (k, t) for every edge
(k, k', d) of the segment:

| kind   | d     | because                                                                                                 |
|--------|-------|---------------------------------------------------------------------------------------------------------|
| first  | 1     | an operator takes its blocks in their order                                                             |
| second | 0     | a block's data goes from operator to operator                                                           |
| second | 1     | the halo of the previous block, in a ring, goes from operator to operator as well                       |
| slot   | slots | a slot of a buffer is filled after the last read of its contents from `slots` iterations before;         |
|        |       | 1 if rows of a ring are computed again, because its block is the first one of another core              |

Edges of the first and second kind carry weights, the cycles of the node they leave; a node's weight is the heaviest path from it to the
sink, so of two blocks at one operator the earlier is heavier.  The window holds the iterations from the oldest that is not finished.
Its ready nodes are list-scheduled on a clock per lane (the matrix unit with the engines that feed and empty it; the vector unit) and one
for loads: the next node is the one that can begin first, of several the heaviest, of equals the earlier block's.  Without a limit it is
greedy: the first operator takes all blocks, then the second one does, and every block of every intermediate is alive at once.

Slots are used in turn (iteration modulo slots), so the oldest iteration always has its own, and no order gets stuck.

Records are written node by node in this order, and are right one after the other.  Queues are in order, and both lanes are fed by MTE1:
the lookahead (`schedule.list_scheduler`) makes engines take records of overlapping nodes side by side.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from compiler.cost.ddr_traffic import ddr_rates, load_row_blocks
from compiler.segment.blocks import Blocks
from compiler.target.storage import TensorSlice
from compiler.target.target_graph import TargetGraph
from simulator.npu.parts import BLOCK_BYTES, Engine

FIRST, SECOND, SLOT = 0, 1, 2  # kinds of edges
_ENGINES = int(Engine.SCALAR)  # all but SCALAR
_LOADS = int(Engine.MTE2)

Ints = NDArray[np.int64]
Codes = NDArray[np.int32]


class Timetable(NamedTuple):
    """Nodes in the order of writing, int64 [n, 2] of (operator, iteration), with estimated cycles begin, end: int64 [n]."""

    nodes: Ints
    begin: Ints
    end: Ints


def window_edges(target_graph: TargetGraph, blocks: Blocks, slots: dict[int, int]) -> Ints:
    """Edges of a segment: int64 [e, 4] of (before, after, distance, kind).  slots: see `segment.memory_plan.slot_counts`."""
    start, count = blocks.start, blocks.stop - blocks.start
    rows = [(k, k, 1, FIRST) for k in range(count)]
    data = [(p - start, k) for k in range(count) for p in target_graph.producers[start + k] if start <= p < blocks.stop]
    rows += [(p, k, 0, SECOND) for p, k in data] + [(p, k, 1, SECOND) for p, k in data if blocks.carried[p]]
    for storage, distance in slots.items():
        allocation = blocks.allocations[storage]
        if allocation.held:
            continue  # every row has its own place
        distance = 1 if target_graph.images > 1 and allocation.made_again else distance
        loaded = any(load.storage == storage for load in blocks.loads)
        fillers = _operators(allocation.makers | (allocation.readers if loaded else 0))
        rows += [(reader, filler, distance, SLOT) for reader in _operators(allocation.readers) for filler in fillers]
    return np.array(rows, np.int64)


def _operators(bits: int) -> list[int]:
    """Operators of the segment in a bit set."""
    return [k for k in range(bits.bit_length()) if bits >> k & 1]


def load_readers(target_graph: TargetGraph, blocks: Blocks) -> NDArray[np.bool_]:
    """Readers of every load, bool [loads, operators]; the first of them in the order issues it.

    An operator that streams the same tensor in chunks of its own is no reader: it waits for no slot.
    """
    specs = target_graph.operators[blocks.start : blocks.stop]
    slices = [TensorSlice(load.storage, load.plane, load.planes) for load in blocks.loads]
    reader_bits = [blocks.allocations[load.storage].readers for load in blocks.loads]
    rows = [
        [bool(readers >> k & 1) and any(load_slice.overlaps(read) for read in spec.reads) for k, spec in enumerate(specs)]
        for load_slice, readers in zip(slices, reader_bits, strict=True)
    ]
    return np.array(rows, np.bool_).reshape(len(slices), len(specs))


def load_cycles(target_graph: TargetGraph, blocks: Blocks, iterations: range) -> Ints:
    """Cycles of a load alone on the bus, int64 [loads, iterations]."""
    rate, _ = ddr_rates(target_graph.machine, 1)
    blocks_per_row = [load_row_blocks(target_graph, load) * target_graph.together for load in blocks.loads]
    fresh = np.array([blocks.allocations[load.storage].fresh for load in blocks.loads], np.int64).reshape(-1, blocks.count, 2)
    rows = np.maximum(fresh[:, :, 1] - fresh[:, :, 0], 0)[:, np.array(iterations) % blocks.count]
    sizes = rows * np.array(blocks_per_row, np.int64)[:, None]
    return (sizes * BLOCK_BYTES / rate).astype(np.int64)


def node_sequence(operators: int, iterations: range) -> Ints:
    """Nodes block after block, operator after operator: int64 [n, 2]."""
    nodes = np.empty((len(iterations), operators, 2), np.int64)
    nodes[..., 0], nodes[..., 1] = np.arange(operators), np.arange(iterations.start, iterations.stop)[:, None]
    return nodes.reshape(-1, 2)


def schedule_nodes(cycles: Ints, edge: Ints, lane_of: Ints, window: int | None, load: Ints, reads: NDArray[np.bool_]) -> Timetable:
    """List-schedule the nodes.

    cycles: int64 [operators, iterations, engines], without the loads: int64 [loads, iterations], bool [loads, operators].
    window: iterations at a time, None: greedy.
    """
    operators, count, _ = cycles.shape
    length = cycles[:, :, _LOADS + 1 :].max(2)
    weight = np.zeros((operators, count), np.int64)
    _weigh(length, edge[np.argsort(edge[:, 0], kind="stable")], weight)
    table = Timetable(*(np.empty(shape, np.int64) for shape in ((operators * count, 2), operators * count, operators * count)))
    weight_cycles = np.ascontiguousarray(cycles[:, :, _LOADS])  # weights and constants
    ordered = edge[np.argsort(edge[:, 1], kind="stable")]
    readers, read_loads = np.nonzero(reads.T)
    starts = tuple(np.searchsorted(rows, np.arange(operators + 1)) for rows in (ordered[:, 1], readers))
    _list(weight_cycles, load, read_loads, length, weight, ordered, *starts, lane_of, window or 0, *table)
    return table


@njit(cache=True)
def _weigh(length: Ints, edge: Ints, weight: Ints) -> None:
    """Fill weight, int64 [K, T]: the heaviest path to the sink.  edge: by the operators that they leave."""
    operators, count = weight.shape
    for t in range(count - 1, -1, -1):
        i = edge.shape[0] - 1
        for k in range(operators - 1, -1, -1):
            longest: Any = np.int64(0)
            while i >= 0 and edge[i, 0] == k:
                if edge[i, 3] != SLOT and t + edge[i, 2] < count:
                    longest = max(longest, weight[edge[i, 1], t + edge[i, 2]])
                i -= 1
            weight[k, t] = length[k, t] + longest


@njit(cache=True)
def _ready_cycles(edge: Ints, first: int, stop: int, end: Ints, done: Ints, iteration: int) -> tuple[Any, Any]:
    """Ready cycles of a node: (for its work, for its loads), or (-1, -1) while a node before it is not scheduled.

    first, stop: range of the edges to its operator.
    """
    ready: Any = np.int64(0)
    loads: Any = np.int64(0)
    for i in range(first, stop):
        before, earlier = edge[i, 0], iteration - edge[i, 2]
        if earlier < 0:
            continue
        if done[before] <= earlier:
            return np.int64(-1), np.int64(-1)
        ready = max(ready, end[before, earlier])
        if edge[i, 3] == SLOT:
            loads = max(loads, end[before, earlier])
    return ready, loads


@njit(cache=True)
def _list(
    weight_cycles: Ints, load: Ints, read_loads: Ints, length: Ints, weight: Ints, edge: Ints, edge_start: Ints, read_start: Ints,
    lane_of: Ints, window: int, nodes: Ints, begin: Ints, end_of: Ints,
) -> None:  # fmt: skip
    """Fill nodes, begin and end_of.  window: 0 is greedy.

    edge: by the operators that they lead to.  read_loads: loads that operators read, by operators.  edge_start, read_start: int64
    [operators + 1], ranges of both.
    """
    operators, count = length.shape
    done = np.zeros(operators, np.int64)
    end = np.zeros((operators, count), np.int64)
    loaded = np.full(load.shape, -1, np.int64)
    issued = np.zeros(load.shape, np.int64)
    retired = np.zeros(count, np.int64)  # cycle in which an iteration was finished
    free = np.zeros(2, np.int64)
    loader: Any = np.int64(0)
    for n in range(operators * count):
        oldest = done.min()
        best = -1
        best_start: Any = np.int64(0)
        best_slots: Any = np.int64(0)
        for k in range(operators):
            t = done[k]
            if t == count or (window and t >= oldest + window):
                continue
            ready, slots = _ready_cycles(edge, edge_start[k], edge_start[k + 1], end, done, t)
            if ready < 0:
                continue
            start, bus = max(ready, free[lane_of[k]]), max(loader, slots)
            if window and t >= window:
                start = max(start, retired[t - window])
            # a node's loads come in pieces while it works: it ends after them, but may begin before their end
            arrived: Any = np.int64(0)
            for i in read_loads[read_start[k] : read_start[k + 1]]:
                if loaded[i, t] >= 0:
                    arrived = max(arrived, loaded[i, t])
                    start = max(start, issued[i, t])
                else:
                    bus += load[i, t]
                    arrived = max(arrived, bus)
            if weight_cycles[k, t]:
                arrived = max(arrived, bus + weight_cycles[k, t])
            start = max(start, arrived - length[k, t])
            rank = (-start, weight[k, t], -t)
            if best < 0 or rank > (-best_start, weight[best, done[best]], -done[best]):
                best, best_start, best_slots = k, start, slots
            if not window:
                break  # the operators before this one are done with all blocks
        t = done[best]
        for i in read_loads[read_start[best] : read_start[best + 1]]:
            if loaded[i, t] < 0:
                loader = loaded[i, t] = max(loader, best_slots) + load[i, t]
                issued[i, t] = best_start
        if weight_cycles[best, t]:
            loader = max(loader, best_slots) + weight_cycles[best, t]
        finish = best_start + length[best, t]
        end[best, t] = free[lane_of[best]] = finish
        retired[t] = max(retired[t], finish)
        done[best] += 1
        nodes[n, 0], nodes[n, 1], begin[n], end_of[n] = best, t, best_start, finish


@njit(cache=True)
def node_cycles(rows: Ints, cycles: Ints, engine: Codes) -> Ints:
    """Cycles of nodes without loads, int64 [nodes, engines].  rows: int64 [nodes, 2], behind a node's loads and behind its last record."""
    out = np.zeros((rows.shape[0], _ENGINES), np.int64)
    for n in range(rows.shape[0]):
        for i in range(rows[n, 0], rows[n, 1]):
            out[n, engine[i]] += cycles[i]
    return out
