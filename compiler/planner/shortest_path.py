"""Shortest path: the cheapest cut of operators into runs, over their topological order; exact for costs that add up."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def shortest_cover(cost: Floats) -> tuple[list[tuple[int, int]], Floats] | None:
    """Runs of the cheapest cover, (start, stop) in order, and the cost of covering the first j operators, float64 [operators + 1].

    cost: float64 [operators, lengths]; entry l is the run of length l + 1 that ends before operator j + 1; infinite if not allowed.
    Ties: the path with the longer last run.  None if no runs cover all operators.
    """
    operators, lengths = cost.shape
    total = np.full(operators + 1, np.inf)
    total[0] = 0.0
    previous = np.zeros(operators + 1, np.int64)
    by_start = cost[:, ::-1]
    for j in range(1, operators + 1):
        count = min(lengths, j)
        paths = total[j - count : j] + by_start[j - 1, lengths - count :]
        best = int(paths.argmin())
        total[j], previous[j] = paths[best], j - count + best
    if not np.isfinite(total[-1]):
        return None
    runs, j = list[tuple[int, int]](), operators
    while j:
        runs.append((int(previous[j]), j))
        j = int(previous[j])
    return runs[::-1], total


def cover_costs(cost: Floats) -> Floats:
    """Least cost of a cover that contains a run, without the cost of the run itself, float64 [operators, lengths]; infinite without a
    cover.

    cost: see `shortest_cover`.
    """
    operators, lengths = cost.shape
    before, after = np.full(operators + 1, np.inf), np.full(operators + 1, np.inf)
    before[0] = after[-1] = 0.0
    for j in range(1, operators + 1):
        count = min(lengths, j)
        before[j] = (before[j - count : j] + cost[j - 1, :count][::-1]).min()
    for j in range(operators, 0, -1):
        count = min(lengths, j)
        after[j - count : j] = np.minimum(after[j - count : j], after[j] + cost[j - 1, :count][::-1])
    cover_cost = np.full_like(cost, np.inf)
    for j in range(1, operators + 1):
        count = min(lengths, j)
        cover_cost[j - 1, :count] = before[j - count : j][::-1] + after[j]
    return cover_cost
