"""Incremental minimum cut: the maximum flow from one node to the drain while arcs are added.

Shortest augmenting paths suffice: capacities are bytes, graphs have hundreds of nodes.
"""

from __future__ import annotations

from collections import deque

DRAIN = 1
SOURCE = 0
ENDLESS = 1 << 62  # capacity without limit


class GrowingCut:
    """Flow network.  Nodes are numbers, `SOURCE` and `DRAIN` among them.  New arcs keep the flow, so `grow` finds only the increase."""

    def __init__(self) -> None:
        self._arcs: list[list[int]] = [[], []]  # node -> numbers of its arcs
        self._to: list[int] = []
        self._residual: list[int] = []  # remaining capacity; the reverse arc has the number ^ 1
        self.value = 0

    def node(self) -> int:
        self._arcs.append([])
        return len(self._arcs) - 1

    def arc(self, start: int, end: int, capacity: int) -> None:
        for tail, head, residual in ((start, end, capacity), (end, start, 0)):
            self._arcs[tail].append(len(self._to))
            self._to.append(head)
            self._residual.append(residual)

    def grow(self) -> int:
        """Value of the minimum cut of all arcs so far."""
        while path := self._path():
            flow = min(self._residual[arc] for arc in path)
            for arc in path:
                self._residual[arc] -= flow
                self._residual[arc ^ 1] += flow
            self.value += flow
        return self.value

    def _path(self) -> list[int]:
        """Arcs of a shortest path with residual capacity, from the drain back; [] without one."""
        incoming_arcs: dict[int, int] = {SOURCE: -1}
        queue = deque([SOURCE])
        while queue:
            node = queue.popleft()
            for arc in self._arcs[node]:
                head = self._to[arc]
                if self._residual[arc] > 0 and head not in incoming_arcs:
                    incoming_arcs[head] = arc
                    if head == DRAIN:
                        return self._back(incoming_arcs)
                    queue.append(head)
        return []

    def _back(self, incoming_arcs: dict[int, int]) -> list[int]:
        path, node = [], DRAIN
        while (arc := incoming_arcs[node]) >= 0:
            path.append(arc)
            node = self._to[arc ^ 1]
        return path
