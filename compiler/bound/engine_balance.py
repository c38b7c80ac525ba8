"""Deals: who of a matrix unit's engine and VECTOR makes which product, and the weighting of both under which no deal is better.

Under weights (w, 1 - w) a cycle of both is worth one, so what work is worth is a bound on cycles, whichever of the two does it; of phases
that share no cycle each has a weight of its own (docs/bounds.md, Theorem 1).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from compiler.bound.engine_work import Shared
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


def worth(product: Shared, vector: Floats, weights: Floats, phases: Phases) -> Floats:
    """float64 [n]: what every operator's work is worth, each cell in whichever of its phases that is least.

    product: of one engine of the matrix unit, or VECTOR.  vector: float64 [n], what only VECTOR does for the operator.
    weights: of the first engine, for every phase.
    """
    w, phase = weights[:, None], np.arange(phases.phases)[:, None]
    allowed = (phases.first <= phase) & (phase <= phases.last)
    cells = np.minimum(w[:, None] * product.cycles, (1 - w[:, None]) * product.on_vector)
    own = np.where(allowed, (1 - w) * vector, np.inf).min(0)
    least: Floats = np.where(allowed[:, :, None], cells, np.inf).min(0).sum(1) + own
    return least


def weightings(product: Shared, vector: Floats, phases: Phases) -> Iterator[Floats]:
    """Weights for every phase that are worth trying: the best of the whole, those of each phase's own deal, and the same everywhere."""
    everything = np.ones(len(vector), np.bool_)
    for everywhere in (_best(product, vector, everything), *GRID):
        yield np.full(phases.phases, everywhere)
    if phases.phases > 1:
        own = [(phases.first == phase) & (phases.last == phase) for phase in range(phases.phases)]
        yield np.array([_best(product, vector, mine) for mine in own])


def _best(product: Shared, vector: Floats, mine: NDArray[np.bool_]) -> float:
    """The weight of the first engine in the best deal of some operators."""
    return dealt(product.cycles[mine].ravel(), product.on_vector[mine].ravel(), float(vector[mine].sum()))[1]
