"""Names of forms: what segments have in common that differ in their channels alone."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

from compiler.space.gene import MAX_SEGMENT
from compiler.unit.unit import Unit


class Forms:
    """Of the runs of operators of a unit.  Runs of equal form have equal kinds, windows, rows and columns, wired in the same way.

    What is fastest for one of them is often among the fastest for the others: their blocks and halos are the same.
    """

    def __init__(self, unit: Unit) -> None:
        self._unit = unit
        self._words = [spec.form for spec in unit.operators]

    def form(self, start: int, stop: int) -> str:
        """16 hex digits over operators [start, stop)."""
        unit, rows = self._unit, list[object]()
        for k in range(start, stop):
            leaves = k in unit.escapes or any(c >= stop for c in unit.consumers[k])
            rows.append((self._words[k], [s - start for s in unit.producers[k] if s >= start], leaves))
        return hashlib.sha256(repr(rows).encode()).hexdigest()[:16]


def runs(unit: Unit) -> Iterator[tuple[int, int]]:
    """(start, stop) of every run that may be a segment, in their order."""
    count = len(unit.operators)
    for start in range(count):
        for stop in range(start + 1, min(count, start + MAX_SEGMENT) + 1):
            yield start, stop
