"""Deals: who of a matrix unit's engine and VECTOR makes which product, and the weighting of both under which no deal is better.

Under weights (w, 1 - w) a cycle of both is worth one, so what work is worth is a bound on cycles, whichever of the two does it; of phases
that share no cycle each has a weight of its own (docs/bounds.md, Theorem 1).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from compiler.bound.phases import Phases

Floats = NDArray[np.float64]
GRID = (0.0, 0.25, 0.5, 0.75, 1.0)


def dealt(cycles: Floats, on_vector: Floats, vector: float) -> tuple[float, float]:
    """(the least that the busier of two engines works, the weight of the first in the deal that shows it).

    cycles, on_vector: of every product on the one and on the other.  vector: what the second has to do anyway.  The fractional deal is
    solved by the ratio of the two, as a continuous knapsack; weights (w, 1 - w) are the optimal multipliers of its linear program.
    """
    order = np.argsort(on_vector / np.maximum(cycles, 1e-9), kind="stable")
    order = order[cycles[order] > 0]
    if not len(order):
        return vector, 0.0
    first = cycles.sum() - np.concatenate([[0.0], np.cumsum(cycles[order])])  # after so many products have moved over
    second = vector + np.concatenate([[0.0], np.cumsum(on_vector[order])])
    at = int(np.argmax(second >= first))
    if at == 0:
        return vector, 0.0
    one, other = float(cycles[order[at - 1]]), float(on_vector[order[at - 1]])
    part = float(first[at - 1] - second[at - 1]) / (one + other)
    return float(second[at - 1] + part * other), other / (one + other)


def worth(cycles: Floats, on_vector: Floats, vector: Floats, weights: Floats, phases: Phases) -> Floats:
    """float64 [n]: what every operator's work is worth, in whichever of its phases that is least.

    cycles, on_vector: of the product that it is, on one engine of the matrix unit and on VECTOR.  vector: what only VECTOR does for it.
    weights: of the first engine, for every phase.
    """
    w = weights[:, None]
    each = np.minimum(w * cycles, (1 - w) * on_vector) + (1 - w) * vector
    phase = np.arange(phases.phases)[:, None]
    least: Floats = np.where((phases.first <= phase) & (phase <= phases.last), each, np.inf).min(0)
    return least


def weightings(cycles: Floats, on_vector: Floats, vector: Floats, phases: Phases) -> Iterator[Floats]:
    """Weights for every phase that are worth trying: the best of the whole, those of each phase's own deal, and the same everywhere."""
    for everywhere in (dealt(cycles, on_vector, float(vector.sum()))[1], *GRID):
        yield np.full(phases.phases, everywhere)
    if phases.phases > 1:
        own = [(phases.first == phase) & (phases.last == phase) for phase in range(phases.phases)]
        yield np.array([dealt(cycles[mine], on_vector[mine], float(vector[mine].sum()))[1] for mine in own])
