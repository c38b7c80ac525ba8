"""List scheduling of segments that may be split over cores, with flags between them instead of barriers.

Heterogeneous Earliest Finish Time (Topcuoglu et al., 2002) on equal cores: nodes by upward rank, each where it finishes first.  A node
may take several cores; their number is fixed first for all nodes (Radulescu and van Gemund, A Low-Cost Approach towards Mixed Task and
Data Parallel Scheduling, 2001: widen nodes on the critical path until it is no longer than the work per core), or node by node.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from compiler.placement.dag import Dag

Widths = Mapping[int, int]  # number of cores -> cycles on them


@dataclass(frozen=True)
class ListSchedule:
    """List schedule.  cores, start, finish: for each node, times in cycles.  order: topological order of placement.  cycles: total."""

    cores: tuple[tuple[int, ...], ...]
    start: tuple[int, ...]
    finish: tuple[int, ...]
    order: tuple[int, ...]

    @property
    def cycles(self) -> int:
        return max(self.finish, default=0)


def list_schedule(
    dag: Dag, times: Sequence[Widths], cores: int, delay: int = 0, widths: Sequence[int] | None = None, in_order: bool = False
) -> ListSchedule:
    """Place every node on the cores where it finishes first; ties to fewer cores, then to the smaller numbers.

    times: cycles of each node by number of cores.  delay: cycles from a node's end to the start of its successor on another core.
    widths: number of cores of each node, if fixed.  in_order: take nodes by number, as the streams of a program do, instead of by rank.
    """
    free = [0] * cores
    taken: list[tuple[int, ...]] = [()] * len(dag)
    start, finish = [0] * len(dag), [0] * len(dag)
    shortest = Dag(tuple(min(t.values()) if widths is None else t[widths[i]] for i, t in enumerate(times)), dag.successors)
    ranks = shortest.ranks(delay)
    # a node's rank exceeds its successors' unless it takes no time, where the smaller number comes first: a topological order
    order = range(len(dag)) if in_order else sorted(range(len(dag)), key=lambda node: (-ranks[node], node))
    for node in order:
        choices = []
        for width in sorted(times[node]) if widths is None else [widths[node]]:
            if width > cores:
                continue
            for chosen in _sets_of_cores(free, width, [taken[p] for p in dag.predecessors[node]]):
                ready = max((finish[p] + _flag(taken[p], chosen, delay) for p in dag.predecessors[node]), default=0)
                begin = max(ready, max(free[core] for core in chosen))
                choices.append((begin + times[node][width], width, chosen, begin))
        if not choices:
            raise ValueError(f"node {node}: no time for {cores} cores or fewer; it has times for {sorted(times[node])}")
        finish[node], _, taken[node], start[node] = min(choices)
        for core in taken[node]:
            free[core] = finish[node]
    return ListSchedule(tuple(taken), tuple(start), tuple(finish), tuple(order))


def _flag(before: tuple[int, ...], after: tuple[int, ...], delay: int) -> int:
    return delay if before != after or len(before) > 1 else 0


def _sets_of_cores(free: Sequence[int], width: int, near: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """Candidate cores: those that are free first, and those of a predecessor."""
    first = sorted(range(len(free)), key=lambda core: (free[core], core))[:width]
    return [tuple(sorted(first)), *dict.fromkeys(cores for cores in near if len(cores) == width)]


def allocate_widths(dag: Dag, times: Sequence[Widths], cores: int) -> tuple[int, ...]:
    """Number of cores for each node.  All begin with the fewest; nodes on the critical path get more while it exceeds the work per core.

    The node with the best ratio is widened: least added work (cycles × cores) per saved time.
    """
    widths = [min(t) for t in times]
    allowed = [sorted(width for width in t if width <= cores) for t in times]
    while True:
        now = Dag(tuple(t[width] for t, width in zip(times, widths, strict=True)), dag.successors)
        work = sum(t[width] * width for t, width in zip(times, widths, strict=True))
        if now.span * cores <= work:
            return tuple(widths)
        best: tuple[float, int, int] | None = None
        for node in now.critical_path():
            for width in allowed[node]:
                gain = times[node][widths[node]] - times[node][width]
                if width > widths[node] and gain > 0:
                    added = times[node][width] * width - times[node][widths[node]] * widths[node]
                    merit = (added / gain, node, width)
                    best = merit if best is None or merit < best else best
        if best is None:
            return tuple(widths)
        widths[best[1]] = best[2]
