"""The cheapest way to cut operators into runs: a shortest path over their topological order, exact for costs that add up."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def shortest(cost: Floats) -> tuple[list[tuple[int, int]], Floats] | None:
    """(start, stop) of every run, in order, and what covering the first j operators costs, float64 [operators + 1].

    cost: float64 [operators, lengths], of the run that ends before operator j + 1 and has length l + 1; infinite where it may not be
    taken.  Of equal paths the one with the longer last run.  None where no such runs cover all operators.
    """
    operators, lengths = cost.shape
    total = np.full(operators + 1, np.inf)
    total[0] = 0.0
    taken = np.zeros(operators + 1, np.int64)
    for j in range(1, operators + 1):
        most = min(lengths, j)
        paths = total[j - most : j] + cost[j - 1, :most][::-1]
        at = int(paths.argmin())
        total[j], taken[j] = paths[at], j - most + at
    if not np.isfinite(total[-1]):
        return None
    runs, j = list[tuple[int, int]](), operators
    while j:
        runs.append((int(taken[j]), j))
        j = int(taken[j])
    return runs[::-1], total


def around(cost: Floats) -> Floats:
    """float64 [operators, lengths]: of every run, what the cheapest cover with it costs beside it; infinite where there is none.

    cost: as in `shortest`.
    """
    operators, lengths = cost.shape
    before, behind = np.full(operators + 1, np.inf), np.full(operators + 1, np.inf)
    before[0] = behind[-1] = 0.0
    for j in range(1, operators + 1):
        most = min(lengths, j)
        before[j] = (before[j - most : j] + cost[j - 1, :most][::-1]).min()
    for j in range(operators, 0, -1):
        most = min(lengths, j)
        behind[j - most : j] = np.minimum(behind[j - most : j], behind[j] + cost[j - 1, :most][::-1])
    found = np.full_like(cost, np.inf)
    for j in range(1, operators + 1):
        most = min(lengths, j)
        found[j - 1, :most] = before[j - most : j][::-1] + behind[j]
    return found
