"""Lower bounds of the cycles of any placement of given segments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from compiler.placement.dag import Dag
from compiler.placement.list_schedule import Widths


@dataclass(frozen=True)
class Bounds:
    """Lower bounds of the cycles of every placement.

    path: longest path, with every segment at its fastest width.  work: least cycles × cores of all segments, divided by the cores.
    bandwidth: all bytes, divided by the bytes that the DDR port moves in a cycle.
    """

    path: int
    work: int
    bandwidth: int

    @property
    def cycles(self) -> int:
        return max(self.path, self.work, self.bandwidth)

    def gap(self, cycles: int) -> float:
        """Relative gap of a program to the bound: 0.1 is a tenth longer."""
        return cycles / self.cycles - 1


def bounds(dag: Dag, times: Sequence[Widths], cores: int, moved_units: int, port_units_per_cycle: int) -> Bounds:
    """Bounds of a graph.  times: cycles of each node of `dag` by number of cores.  moved_units: bus units of all nodes, in any unit."""
    fastest = Dag(tuple(min(t.values()) for t in times), dag.successors)
    work = sum(min(width * cycles for width, cycles in t.items()) for t in times)
    return Bounds(fastest.span, -(-work // cores), -(-moved_units // port_units_per_cycle))
