"""Random and hand-made graphs of work, for the tests of placement."""

from __future__ import annotations

from hypothesis import strategies as st

from compiler.placement.dag import Dag


@st.composite
def dags(draw: st.DrawFn, most: int = 12, least_time: int = 0) -> Dag:
    """Up to `most` nodes, any edges from smaller to larger numbers."""
    count = draw(st.integers(1, most))
    times = draw(st.lists(st.integers(least_time, 20), min_size=count, max_size=count))
    pairs = [(a, b) for b in range(count) for a in range(b)]
    return Dag.of(times, [pair for pair in pairs if draw(st.booleans())])


def cell() -> Dag:
    """An Inception cell: 0, then branches 1-2-3, 4-5, 6 and 7-8, then 9."""
    edges = [(0, 1), (1, 2), (2, 3), (3, 9), (0, 4), (4, 5), (5, 9), (0, 6), (6, 9), (0, 7), (7, 8), (8, 9)]
    return Dag.of([10, 4, 6, 5, 3, 7, 5, 2, 4, 10], edges)
