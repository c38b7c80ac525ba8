"""Graph of work for placement: the cycles of each node, and the order between nodes.

Nodes are numbered in a topological order, so an edge always goes from a smaller number to a larger one and every loop over the nodes
is a walk along the edges.  Sets of nodes are integers, node i being bit i.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

Nodes = int  # a set: bit i is node i


def members(nodes: Nodes) -> Iterator[int]:
    """Nodes of a set, ascending."""
    while nodes:
        low = nodes & -nodes
        yield low.bit_length() - 1
        nodes ^= low


def node_set(nodes: Iterable[int]) -> Nodes:
    """Set of the given nodes."""
    out = 0
    for node in nodes:
        out |= 1 << node
    return out


@dataclass(frozen=True)
class Dag:
    """Directed acyclic graph with times.

    times: cycles of each node.  successors: successors of each node, ascending, with larger numbers than the node.  Raises ValueError
    otherwise.
    """

    times: tuple[int, ...]
    successors: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        if len(self.times) != len(self.successors):
            raise ValueError(f"{len(self.times)} times for {len(self.successors)} nodes")
        for node, after in enumerate(self.successors):
            if self.times[node] < 0:
                raise ValueError(f"node {node} takes {self.times[node]} cycles; accepted: 0 or more")
            if list(after) != sorted(set(after)) or (after and not node < after[0] <= after[-1] < len(self.times)):
                raise ValueError(f"node {node}: successors {after}; accepted: ascending numbers in {node + 1}..{len(self.times) - 1}")

    @classmethod
    def of(cls, times: Sequence[int], edges: Iterable[tuple[int, int]]) -> Dag:
        """Graph from (before, after) pairs; a pair may occur twice."""
        after: list[set[int]] = [set() for _ in times]
        for a, b in edges:
            after[a].add(b)
        return cls(tuple(times), tuple(tuple(sorted(nodes)) for nodes in after))

    def __len__(self) -> int:
        return len(self.times)

    @property
    def edges(self) -> list[tuple[int, int]]:
        return [(a, b) for a, after in enumerate(self.successors) for b in after]

    @cached_property
    def predecessors(self) -> tuple[tuple[int, ...], ...]:
        before: list[list[int]] = [[] for _ in self.times]
        for a, b in self.edges:
            before[b].append(a)
        return tuple(map(tuple, before))

    @cached_property
    def neighbours(self) -> tuple[Nodes, ...]:
        """Neighbours of each node along edges of either direction."""
        return tuple(node_set(self.successors[i]) | node_set(self.predecessors[i]) for i in range(len(self)))

    @cached_property
    def after(self) -> tuple[Nodes, ...]:
        """Successors of each node as a set."""
        return tuple(map(node_set, self.successors))

    @cached_property
    def level(self) -> tuple[int, ...]:
        """Edges of the longest way to each node."""
        out: list[int] = []
        for before in self.predecessors:
            out.append(1 + max((out[p] for p in before), default=-1))
        return tuple(out)

    def ranks(self, delay: int = 0) -> tuple[int, ...]:
        """Upward rank of each node: the longest path from its start to the end, with `delay` cycles on every edge."""
        out = [0] * len(self)
        for node in range(len(self) - 1, -1, -1):
            out[node] = self.times[node] + max((delay + out[s] for s in self.successors[node]), default=0)
        return tuple(out)

    def critical_path(self, delay: int = 0) -> tuple[int, ...]:
        """Nodes of a longest path, ties to the smaller number."""
        return longest_path(self, (1 << len(self)) - 1, delay)

    @property
    def span(self) -> int:
        """Cycles of the longest path: no number of cores is faster."""
        return max(self.ranks(), default=0)

    @property
    def work(self) -> int:
        """Total cycles of all nodes: the time on a single core."""
        return sum(self.times)

    def components(self, nodes: Nodes) -> tuple[tuple[int, ...], ...]:
        """A set's connected parts (edges taken both ways), by their smallest node."""
        out = []
        while nodes:
            part = fresh = nodes & -nodes
            while fresh:
                reached = 0
                for node in members(fresh):
                    reached |= self.neighbours[node]
                fresh = reached & nodes & ~part
                part |= fresh
            out.append(tuple(members(part)))
            nodes &= ~part
        return tuple(out)


def longest_path(dag: Dag, within: Nodes, delay: int = 0) -> tuple[int, ...]:
    """Longest path through nodes of `within` only; () without any.  Ties go to the smaller number."""
    best = [0] * len(dag)
    onward: list[int | None] = [None] * len(dag)
    for node in range(len(dag) - 1, -1, -1):
        if not within >> node & 1:
            continue
        for successor in dag.successors[node]:
            if within >> successor & 1 and (onward[node] is None or delay + best[successor] > best[node]):
                best[node], onward[node] = delay + best[successor], successor
        best[node] += dag.times[node]
    if not within:
        return ()
    current: int | None = max(members(within), key=lambda node: (best[node], -node))
    path = []
    while current is not None:
        path.append(current)
        current = onward[current]
    return tuple(path)
