"""Quick cost guesses: cycles of every run of operators as one segment, in every way, from the cycles of single operators.

A guess only selects the segments that deserve an estimate (`planner.segmentation`).  It adds up engine cycles and bytes of single
operators, without loads and stores between them, and checks L1 roughly.  So thousands of runs cost one kernel call and no decoded plans.

| name   | shape        | meaning                                                                    |
|--------|--------------|----------------------------------------------------------------------------|
| cycles | [ways, n, 6] | of CUBE, MTE1, FIXPIPE, VECTOR, MTE3 on chip, and drains, of operators alone; infinite if one does not fit |
| sizes  | [n, 8]       | of each operator, see `_RESULT` and the next names                           |
| edges  | [e, 4]       | producer, reader, whether it reads all rows at once, whether as its main input; sorted by reader |
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from compiler.cost.ddr_traffic import ddr_rates
from compiler.cost.features import FEATURES, raw_features
from compiler.cost.smallest_indices import smallest_indices
from compiler.segment.blocks import rows_needed
from compiler.space.decode import decode
from compiler.space.gene import EVERY_LENGTH, Gene, most_blocks
from compiler.space.structural_hash import Structures
from compiler.target.capabilities import room_blocks
from compiler.target.target_graph import TargetGraph
from simulator.npu.level import Level
from simulator.npu.parts import BLOCK_BYTES, Memory

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
_OF_ALONE = [FEATURES.index(f"{name}_cycles") for name in ("cube", "mte1", "fixpipe", "vector", "mte3_on_chip", "drain")]
_CHUNK = 512  # blocks that streamed weights take of L1: two small chunks
# result blocks; weight blocks in L1 and in DDR; blocks of inputs from outside; result rows; rows shared with blocks of readers; rows that
# are read at all; storage of the result and of the main input; `most_blocks`
_RESULT, _WEIGHTS, _STORED, _READ, _ROWS, _SHARED_ROWS, _WANTED, _STORAGE, _MAIN, _MOST = range(10)


class OperatorTable(NamedTuple):
    """Table of a model's operators: see the top of this file.

    edge_start: int64 [n + 1], where the edges of a reader begin.  before: int64 [e], the previous reader of the same result, or -1.
    """

    sizes: Ints
    matrix: NDArray[np.bool_]
    escapes: NDArray[np.bool_]
    edges: Ints
    edge_start: Ints
    before: Ints


def operator_table(target_graph: TargetGraph) -> OperatorTable:
    """Table of the operators of a target graph."""
    sizes, edges, start = [], [], [0]
    last: dict[int, int] = {}
    before = []
    for spec in target_graph.operators:
        k, y = spec.index, target_graph.storages[spec.y.storage]
        read = 0
        for read_slice in spec.reads:
            if not any(target_graph.operators[p].y.overlaps(read_slice) for p in target_graph.producers[k]):
                storage = target_graph.storages[read_slice.storage]
                read += read_slice.planes * storage.h * storage.row_blocks
        # rows that two blocks of one more row each share at a reader: its halo
        overlap = 0
        for c in target_graph.consumers[k]:
            reader = target_graph.operators[c]
            if reader.reads[0].overlaps(spec.y):
                overlap = max(overlap, reader.input_rows(2) - 2 * (reader.input_rows(2) - reader.input_rows(1)))
        wanted, block_limit = max(1, rows_needed(target_graph)[k].size), most_blocks(target_graph)[k]
        blocks = spec.y.planes * y.h * y.row_blocks
        weights = spec.weight_blocks, spec.stored_weight_blocks
        sizes.append((blocks, *weights, read, spec.out_h, max(0, overlap), wanted, spec.y.storage, spec.reads[0].storage, block_limit))
        for p in target_graph.producers[k]:
            producer_slice = target_graph.operators[p].y
            reads_whole = spec.right is not None and producer_slice.overlaps(spec.right)
            edges.append((p, k, reads_whole, producer_slice.overlaps(spec.reads[0])))
            before.append(last.get(p, -1))
            last[p] = k
        start.append(len(edges))
    return OperatorTable(
        np.array(sizes, np.int64).reshape(-1, _MOST + 1), np.array([spec.runs_on == "CUBE" for spec in target_graph.operators], np.bool_),
        np.array([spec.index in target_graph.escapes for spec in target_graph.operators], np.bool_),
        np.array(edges, np.int64).reshape(-1, 4), np.array(start, np.int64), np.array(before, np.int64),
    )  # fmt: skip


def single_operator_cycles(target_graph: TargetGraph, structures: Structures, ways: Sequence[Gene]) -> Floats:
    """`cycles` of every single operator, float64 [ways, n, 6].  ways: genes of any position."""
    cycles_of: dict[str, Floats] = {}
    out = np.full((len(ways), len(target_graph.operators), len(_OF_ALONE)), np.inf)
    rows = rows_needed(target_graph)
    for k in range(len(target_graph.operators)):
        structure = structures.structure(k, k + 1)
        if structure not in cycles_of:
            way_cycles = cycles_of[structure] = np.full((len(ways), len(_OF_ALONE)), np.inf)
            for way_index, way in enumerate(ways):
                if way.blocks > most_blocks(target_graph)[k]:
                    continue
                blocks = min(way.blocks, max(1, rows[k].size))  # further blocks are empty for it
                gene = way._replace(start=k, stop=k + 1, blocks=blocks)
                # an operator that needs too much room alone may fit in a run that produces its inputs
                plan = decode(target_graph, gene) or decode(target_graph, gene._replace(prefetch=1))
                if plan is not None:
                    way_cycles[way_index] = raw_features(target_graph, plan, k)[_OF_ALONE]
        out[:, k] = cycles_of[structure]
    return out


def guess_run_cycles(
    target_graph: TargetGraph, table: OperatorTable, ways: Sequence[Gene], cycles: Floats, levels: Sequence[Level]
) -> Floats:
    """Guessed cycles, float64 [levels, ways, n, lengths]; entry l is the run of length l + 1 that ends with the operator.

    Infinite for a run that is not expected to fit.
    """
    machine = target_graph.machine
    port = np.array([(level.share, level.latency_cycles) for level in levels], np.float64)
    groups = [target_graph.images // way.images for way in ways]
    counts = np.array(
        [(way.blocks, min(len(way.cores), way.blocks * group_count), way.images) for way, group_count in zip(ways, groups, strict=True)],
        np.int64,
    )
    out: Floats = np.full((len(levels), len(ways), len(target_graph.operators), EVERY_LENGTH), np.inf)
    rates = np.array([ddr_rates(machine, len(way.cores)) for way in ways]) / BLOCK_BYTES
    _guess(*table, counts, cycles, target_graph.images, room_blocks(machine, Memory.L1), rates, port, out)
    return out


@njit(cache=True)
def _block(sizes: Ints, operator: int, blocks: int) -> int:
    """Blocks of a result in one of `blocks` blocks of rows."""
    high = sizes[operator, _ROWS]
    rows = (high + blocks - 1) // blocks + (sizes[operator, _SHARED_ROWS] if blocks > 1 else 0)
    return sizes[operator, _RESULT] // max(1, high) * min(high, rows)


@njit(cache=True)
def _guess(
    sizes: Ints, matrix: NDArray[np.bool_], escapes: NDArray[np.bool_], edges: Ints, edge_start: Ints, before: Ints, ways: Ints,
    cycles: Floats, images: int, l1_blocks: int, rates: Floats, port: Floats, out: Floats,
) -> None:  # fmt: skip
    """Fill out.  ways: int64 [ways, 3]: blocks, number of loads of resident data, images of a block.

    rates: float64 [ways, 2], blocks per cycle of reads and of writes.
    """
    n, longest = sizes.shape[0], out.shape[3]
    levels, ends = port.shape[0], np.empty(n, np.int64)
    last = np.full(n, -1, np.int64)
    for e in range(edges.shape[0]):
        last[edges[e, 0]] = max(last[edges[e, 0]], edges[e, 1])
    live, weights = np.empty(longest, np.int64), np.empty(longest, np.int64)
    reads = np.empty(longest, np.float64)
    storages = max(sizes[:, _STORAGE].max(), sizes[:, _MAIN].max()) + 1
    resident, produced, ring = np.zeros(storages, np.bool_), np.zeros(storages, np.bool_), np.zeros(storages, np.bool_)
    birth, death, held_blocks = np.zeros(storages, np.int64), np.zeros(storages, np.int64), np.zeros(storages, np.int64)
    for w in range(ways.shape[0]):
        blocks, loads, together = ways[w]
        iterations = blocks * (images // together)
        repeats = iterations > 1
        for i in range(n):
            lowest = np.int64(1) << 40
            for j in range(i + 1, min(n, i + longest) + 1):
                lowest = min(lowest, sizes[j - 1, _MOST])
                for e in range(edge_start[j - 1], edge_start[j]):
                    if edges[e, 0] >= i:
                        lowest = min(lowest, sizes[edges[e, 0], _WANTED])
                if blocks > lowest or not np.isfinite(cycles[w, j - 1, 0]):
                    break
                count = j - i
                live[:count] = 0
                loaded, stored, always = 0, 0, 0
                for c in range(i, j):  # storages in L1
                    ends[c] = -1
                    for e in range(edge_start[c], edge_start[c + 1]):
                        p = edges[e, 0]
                        if p >= i:
                            ends[p] = c
                        s = sizes[p, _STORAGE]
                        resident[s] = produced[s] = ring[s] = False
                        birth[s], death[s], held_blocks[s] = n, -1, 0
                    s = sizes[c, _MAIN]
                    resident[s] = produced[s] = ring[s] = False
                    birth[s], death[s], held_blocks[s] = n, -1, 0
                for c in range(i, j):
                    if matrix[c]:
                        resident[sizes[c, _MAIN]] = True
                    if ends[c] >= 0:
                        resident[sizes[c, _STORAGE]] = True
                        produced[sizes[c, _STORAGE]] = True
                for c in range(i, j):
                    loaded += sizes[c, _READ]
                    reads[c - i] = 0.0 if matrix[c] else sizes[c, _READ]
                    s = sizes[c, _MAIN]
                    if resident[s] and sizes[c, _READ]:
                        held_blocks[s] += sizes[c, _READ] // blocks
                        birth[s], death[s] = min(birth[s], c), max(death[s], c)
                    for e in range(edge_start[c], edge_start[c + 1]):
                        p = edges[e, 0]
                        s = sizes[p, _STORAGE]
                        if resident[s]:
                            birth[s], death[s] = min(birth[s], max(p, i) if p >= i else c), max(death[s], c)
                        if p >= i:
                            continue
                        if not edges[e, 3] or not matrix[c]:
                            reads[c - i] += sizes[p, _RESULT]
                        if before[e] < i:
                            loaded += sizes[p, _RESULT]
                            if resident[s]:
                                held_blocks[s] += sizes[p, _RESULT] if edges[e, 2] else _block(sizes, p, blocks)
                for p in range(i, j):
                    if last[p] >= j or escapes[p] or last[p] < 0:
                        stored += sizes[p, _RESULT]
                    if ends[p] >= 0:
                        s = sizes[p, _STORAGE]
                        held_blocks[s] += _block(sizes, p, blocks)
                        ring[s] |= blocks > 1 and sizes[p, _SHARED_ROWS] > 0
                for c in range(i, j):  # every storage once
                    for e in range(edge_start[c] - 1, edge_start[c + 1]):
                        s = sizes[c, _MAIN] if e < edge_start[c] else sizes[edges[e, 0], _STORAGE]
                        if held_blocks[s]:
                            if repeats and not produced[s]:
                                always += 2 * held_blocks[s]
                            elif ring[s]:
                                always += held_blocks[s]
                            else:
                                for k in range(birth[s], death[s] + 1):
                                    live[k - i] += held_blocks[s]
                            held_blocks[s] = 0
                peak = together * (always + live[:count].max())
                if peak > l1_blocks:
                    continue  # longer runs may store less, shorter ones keep less
                # weights stay, the smallest first, while there is room
                for k in range(count):
                    weights[k] = sizes[i + k, _WEIGHTS]
                room, moved = l1_blocks - peak - _CHUNK, 0.0
                if repeats:
                    for k in smallest_indices(weights[:count], count):
                        size, stored = weights[k], sizes[i + k, _STORED]
                        weights[k] = stored * (loads if size <= room or stored < size else iterations)
                        if size <= room:
                            room -= size
                else:
                    for k in range(count):
                        weights[k] = sizes[i + k, _STORED]
                for k in range(count):
                    moved += weights[k]
                    if matrix[i + k]:
                        reads[k] = reads[k] * images + weights[k]
                    else:
                        reads[k] *= images
                moved = (moved + loaded * images) / rates[w, 0] + stored * images / rates[w, 1]
                cube = mte1 = fixpipe = vector = drain = 0.0
                for k in range(i, j):
                    cube += cycles[w, k, 0]
                    mte1 += cycles[w, k, 1]
                    fixpipe += cycles[w, k, 2]
                    vector += cycles[w, k, 3]
                    drain += cycles[w, k, 5]
                busiest = max(cube, mte1, fixpipe, vector)
                for v in range(levels):
                    serial = iterations * port[v, 1]
                    for k in range(count):
                        busy = cycles[w, i + k, :5].max()
                        serial += max(busy, reads[k] / rates[w, 0] / port[v, 0])
                    bound = max(busiest, moved / port[v, 0]) + drain
                    out[v, w, j - 1, count - 1] = np.sqrt(bound * max(bound, serial))
