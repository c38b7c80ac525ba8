"""Linear clustering: contract a graph of many small nodes into one of few, so that a search over its parts stays small.

Clusters are paths (Kim and Browne, A General Approach to Mapping of Parallel Computations upon Multiprocessor Architectures, 1988): the
longest remaining path is one, and so on until nothing remains.  Their edges are contracted if that leaves a graph without cycles.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import pairwise

from compiler.placement.dag import Dag, longest_path


@dataclass(frozen=True)
class Quotient:
    """dag: one node per cluster, its time the sum of its members'.  clusters: members of each node, in topological order."""

    dag: Dag
    clusters: tuple[tuple[int, ...], ...]


def linear_clusters(dag: Dag, delay: int = 0) -> tuple[tuple[int, ...], ...]:
    """Paths that contain every node once, the longest (times, and `delay` per edge) first."""
    remaining, out = (1 << len(dag)) - 1, []
    while remaining:
        path = longest_path(dag, remaining, delay)
        out.append(path)
        for node in path:
            remaining &= ~(1 << node)
    return tuple(out)


def contract(dag: Dag, paths: Sequence[Sequence[int]], longest: int | None = None) -> Quotient:
    """Contract the edges along `paths`, in order, wherever possible.

    An edge can be contracted if no other path joins its ends; otherwise the quotient would have a cycle.  longest: limit of the longest
    path of the quotient in cycles.  A cluster starts when all of it can, so every contraction reduces parallelism.
    """
    graph = _Contracting(dag)
    for path in paths:
        for a, b in pairwise(path):
            graph.join(a, b, longest)
    return graph.quotient()


class _Contracting:
    """Graph during contraction.  A group is named by its first member."""

    def __init__(self, dag: Dag) -> None:
        self.dag = dag
        self.group = list(range(len(dag)))
        self.nodes = {i: [i] for i in range(len(dag))}
        self.times = dict(enumerate(dag.times))
        self.after = {i: set(nodes) for i, nodes in enumerate(dag.successors)}
        self.before = {i: set(nodes) for i, nodes in enumerate(dag.predecessors)}

    def join(self, source: int, target: int, longest: int | None) -> bool:
        """Contract the edge between the groups of two nodes.  False, without a change, if a cycle would follow."""
        first, second = self.group[source], self.group[target]
        if first == second or second not in self.after[first] or self._another_way(first, second):
            return False
        if longest is not None and self._longest_through(first, second) > longest:
            return False
        for node in self.nodes[second]:
            self.group[node] = first
        self.nodes[first] += self.nodes.pop(second)
        self.times[first] += self.times.pop(second)
        after, before = self.after.pop(second), self.before.pop(second)
        self.after[first] = (self.after[first] | after) - {second}
        self.before[first] = (self.before[first] | before) - {first}
        for group in after:
            self.before[group] = (self.before[group] - {second}) | {first}
        for group in before - {first}:
            self.after[group] = (self.after[group] - {second}) | {first}
        return True

    def _another_way(self, first: int, second: int) -> bool:
        """Whether a path of two edges or more leads from one group to the other."""
        todo = [group for group in self.after[first] if group != second]
        seen = set(todo)
        while todo:
            for group in self.after[todo.pop()]:
                if group == second:
                    return True
                if group not in seen:
                    seen.add(group)
                    todo.append(group)
        return False

    def _longest_through(self, first: int, second: int) -> int:
        """Cycles of the longest path through the two groups if they were one."""
        before, after = self._longest_path_from(self.before, (first, second)), self._longest_path_from(self.after, (first, second))
        return before + self.times[first] + self.times[second] + after

    def _longest_path_from(self, onward: dict[int, set[int]], pair: tuple[int, int]) -> int:
        """Longest path that starts next to the pair and leads away from it."""
        best: dict[int, int] = {}
        todo = [group for end in pair for group in onward[end] if group not in pair]
        while todo:
            group = todo[-1]
            missing = [g for g in onward[group] if g not in best]
            if missing:
                todo += missing
            else:
                best[group] = self.times[group] + max((best[g] for g in onward[group]), default=0)
                todo.pop()
        return max((best[group] for end in pair for group in onward[end] if group not in pair), default=0)

    def quotient(self) -> Quotient:
        """Groups in a topological order, ties by their smallest member."""
        waits = {group: len(before) for group, before in self.before.items()}
        ready = [(min(self.nodes[group]), group) for group, count in waits.items() if not count]
        heapify(ready)
        number: dict[int, int] = {}
        while ready:
            _, group = heappop(ready)
            number[group] = len(number)
            for following in self.after[group]:
                waits[following] -= 1
                if not waits[following]:
                    heappush(ready, (min(self.nodes[following]), following))
        if len(number) < len(waits):
            raise RuntimeError("the quotient has a cycle")
        edges = [(number[a], number[b]) for a, after in self.after.items() for b in after]
        dag = Dag.of([self.times[group] for group in number], edges)
        return Quotient(dag, tuple(tuple(sorted(self.nodes[group])) for group in number))
