"""Graph of a genome's segments for placement, and cores for the groups of a stage."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from compiler.placement.list_schedule import Widths
from compiler.placement.port_model import Ints, Wiring, wire_segments
from compiler.space.gene import Genome
from compiler.target.target_graph import TargetGraph

Cores = tuple[int, ...]


def segment_edges(target_graph: TargetGraph, genome: Genome) -> list[tuple[int, int]]:
    """Edges (i, j): segment j reads from DDR a result of segment i, in a genome or some consecutive genes of one.

    Segments are consecutive in the operators' topological order, and every storage has DDR addresses of its own: nothing else orders them.
    """
    segment = {k: i for i, gene in enumerate(genome) for k in range(gene.start, gene.stop)}
    pairs = {(segment[source], i) for k, i in segment.items() for source in target_graph.producers[k] if source in segment}
    return sorted((a, b) for a, b in pairs if a != b)


def segment_wiring(target_graph: TargetGraph, starts: Sequence[int], stop: int | None = None) -> Wiring:
    """Wiring of segments that begin at `starts`, ascending, the last of which ends at `stop` (or with the last operator)."""
    source, target = kernel_edges(target_graph)
    inside = (source >= starts[0]) & (target < (len(target_graph.operators) if stop is None else stop))
    start_array = np.array(starts, np.int64)
    before, after = (np.searchsorted(start_array, operators[inside], "right") - 1 for operators in (source, target))
    crosses = before != after
    return wire_segments(len(starts), before[crosses], after[crosses])


@lru_cache(maxsize=16)
def kernel_edges(target_graph: TargetGraph) -> tuple[Ints, Ints]:
    """Edges of operators, int64 [edges] twice: the second reads a result of the first, ascending by the second."""
    pairs = [(source, k) for k, sources in sorted(target_graph.producers.items()) for source in sources]
    return np.array([a for a, _ in pairs], np.int64), np.array([b for _, b in pairs], np.int64)


def assign_cores(groups: Sequence[Sequence[int]], times: Sequence[Widths], cores: int) -> list[Cores]:
    """Cores of each group of a stage, whose groups run side by side.

    With at least as many groups as cores, the longest group comes first, each on the core with the least work.  With fewer groups, spare
    cores go one by one to the group that takes longest, as long as all of its nodes have times for that many cores.
    """

    def length(group: Sequence[int], width: int) -> int:
        return sum(times[node][width] for node in group)

    if len(groups) >= cores:
        load = [0] * cores
        chosen: list[Cores] = [()] * len(groups)
        for i in sorted(range(len(groups)), key=lambda i: (-length(groups[i], 1), i)):
            core = load.index(min(load))
            load[core] += length(groups[i], 1)
            chosen[i] = (core,)
        return chosen
    # fewer groups than cores: widen the longest group while that makes it faster
    width_options = [sorted(set[int].intersection(*(set(times[node]) for node in group))) for group in groups]
    widths = [1] * len(groups)
    while True:
        spare = cores - sum(widths)
        wider = [
            (length(group, widths[i]), -i, width)
            for i, group in enumerate(groups)
            for width in width_options[i]
            if widths[i] < width <= widths[i] + spare and length(group, width) < length(group, widths[i])
        ]
        if not wider:
            break
        _, negative_index, width = max(wider, key=lambda choice: (choice[0], choice[1], -choice[2]))
        widths[-negative_index] = width
    first, out = 0, []
    for width in widths:
        out.append(tuple(range(first, first + width)))
        first += width
    return out
