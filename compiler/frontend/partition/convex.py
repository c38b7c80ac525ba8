"""Heaviest convex set of nodes that avoids given nodes: the largest subgraph that never waits for nodes outside it.

A set is convex if no path leaves it and returns.  Label every node 0 (before the set), 1 (in it) or 2 (after it): labels never fall
along an edge, and a node to be avoided is 0 or 2.  With p = [label >= 1] and q = [label >= 2] every such rule is an implication
(p_u -> p_v and q_u -> q_v along edges, q_v -> p_v, and p_v -> q_v for nodes to be avoided), and the weight of the set is the
sum of w_v p_v - w_v q_v: the heaviest closure of a graph, which is a minimum cut (Picard, Management Science 22/11, 1976).  The cut is
found by Dinic's algorithm (1970), exactly, in integers of any size.  Nodes with the same avoided nodes before and after them get the same
label, so the network has one node per such class: a dozen for a model of a thousand nodes with a few to avoid.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

_UNLIMITED = None


class _Flow:
    """Flow network with arcs in pairs: arc i ^ 1 is the reverse of arc i."""

    def __init__(self, nodes: int) -> None:
        self.arcs: list[list[int]] = [[] for _ in range(nodes)]
        self.head: list[int] = []
        self.room: list[int | None] = []  # residual capacity, None: unlimited

    def arc(self, start: int, end: int, capacity: int | None) -> None:
        for tail, head, room in ((start, end, capacity), (end, start, 0)):
            self.arcs[tail].append(len(self.head))
            self.head.append(head)
            self.room.append(room)

    def cut(self, source: int, sink: int) -> list[bool]:
        """Flags of nodes on the source's side of a minimum cut (of several cuts the one with the fewest nodes)."""
        while True:
            level = self._levels(source)
            if level[sink] < 0:
                return [depth >= 0 for depth in level]
            self._block(source, sink, level)

    def _levels(self, source: int) -> list[int]:
        level = [-1] * len(self.arcs)
        level[source] = 0
        queue = deque([source])
        while queue:
            tail = queue.popleft()
            for arc in self.arcs[tail]:
                head = self.head[arc]
                if self.room[arc] != 0 and level[head] < 0:
                    level[head] = level[tail] + 1
                    queue.append(head)
        return level

    def _block(self, source: int, sink: int, level: list[int]) -> None:
        """Push flow along shortest paths until each of them has a full arc."""
        next_arc = [0] * len(self.arcs)  # earlier arcs of a node lead nowhere any more: no arc is tried twice
        path: list[int] = []
        node = source
        while True:
            if node == sink:
                push = min(room for arc in path if (room := self.room[arc]) is not None)
                for arc in path:
                    room, back = self.room[arc], self.room[arc ^ 1]
                    self.room[arc] = None if room is None else room - push
                    self.room[arc ^ 1] = None if back is None else back + push
                path, node = [], source
                continue
            while next_arc[node] < len(self.arcs[node]):
                arc = self.arcs[node][next_arc[node]]
                if self.room[arc] != 0 and level[self.head[arc]] == level[node] + 1:
                    break
                next_arc[node] += 1
            else:
                if not path:
                    return
                node = self.head[path.pop() ^ 1]
                next_arc[node] += 1
                continue
            path.append(arc)
            node = self.head[arc]


def heaviest_convex(edges: Sequence[tuple[int, int]], weights: Sequence[int], avoided: set[int]) -> set[int]:
    """Nodes of the heaviest convex set.  edges: (from, to), from < to.  weights: above 0; those of avoided nodes do not count."""
    count = len(weights)
    before, after = _masks(count, edges, avoided)
    classes: dict[tuple[int, int], list[int]] = {}
    for v in range(count):
        if v not in avoided:
            classes.setdefault((before[v], after[v]), []).append(v)
    class_count, number = len(classes), {v: i for i, v in enumerate(sorted(avoided))}
    # p of class i is node i, q is k + i; both of an avoided node are node 2 k + its number
    source, sink = 2 * class_count + len(avoided), 2 * class_count + len(avoided) + 1
    flow = _Flow(sink + 1)
    for i, ((avoided_before, avoided_after), nodes) in enumerate(classes.items()):
        weight = sum(weights[v] for v in nodes)
        flow.arc(source, i, weight)
        flow.arc(class_count + i, sink, weight)
        flow.arc(class_count + i, i, _UNLIMITED)
        for j in number.values():
            if avoided_after >> j & 1:
                flow.arc(i, 2 * class_count + j, _UNLIMITED)
            if avoided_before >> j & 1:
                flow.arc(2 * class_count + j, class_count + i, _UNLIMITED)
    for u, i in number.items():
        for j in range(len(number)):
            if after[u] >> j & 1:
                flow.arc(2 * class_count + i, 2 * class_count + j, _UNLIMITED)
    on_source_side = flow.cut(source, sink)
    return {v for i, nodes in enumerate(classes.values()) if on_source_side[i] and not on_source_side[class_count + i] for v in nodes}


def _masks(count: int, edges: Sequence[tuple[int, int]], avoided: set[int]) -> tuple[list[int], list[int]]:
    """Bit sets of the avoided nodes before and after every node, in the order of their numbers."""
    bit = {v: 1 << i for i, v in enumerate(sorted(avoided))}
    before, after = [0] * count, [0] * count
    for u, v in sorted(edges, key=lambda edge: edge[1]):
        before[v] |= before[u] | bit.get(u, 0)
    for u, v in sorted(edges, key=lambda edge: -edge[0]):
        after[u] |= after[v] | bit.get(v, 0)
    return before, after
