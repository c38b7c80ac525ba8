"""Engine balance: the optimal split of products between the matrix and vector engines, by LP duality.

With weights (w, 1 - w) for cycles of the two engines, the worth of all work is a lower bound on cycles, whichever engine does it.  Phases
that share no cycle have separate weights (docs/bounds.md, Theorem 1).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from compiler.bound.engine_work import Shared
from compiler.bound.phases import Phases

Floats = NDArray[np.float64]
GRID = (0.0, 0.25, 0.5, 0.75, 1.0)  # weights of the first engine to try


def balance_engines(cycles: Floats, on_vector: Floats, vector: float) -> tuple[float, float]:
    """Least work of the busier one of two engines, and the weight of the first engine in the optimal split.

    cycles: cycles of each product on the first engine.  on_vector: cycles of each product on VECTOR.  vector: work that only VECTOR can do.
    The fractional split is a continuous knapsack, solved by the ratio of both cycles; weights (w, 1 - w) are the optimal multipliers of its
    linear program.
    """
    order = np.argsort(on_vector / np.maximum(cycles, 1e-9), kind="stable")
    order = order[cycles[order] > 0]
    if not len(order):
        return vector, 0.0
    first = cycles.sum() - np.concatenate([[0.0], np.cumsum(cycles[order])])  # after the first i products have moved to the second engine
    second = vector + np.concatenate([[0.0], np.cumsum(on_vector[order])])
    position = int(np.argmax(second >= first))
    if position == 0:
        return vector, 0.0
    first_cycles, second_cycles = float(cycles[order[position - 1]]), float(on_vector[order[position - 1]])
    part = float(first[position - 1] - second[position - 1]) / (first_cycles + second_cycles)
    return float(second[position - 1] + part * second_cycles), second_cycles / (first_cycles + second_cycles)


def work_worth(product: Shared, vector: Floats, weights: Floats, phases: Phases) -> Floats:
    """Worth of every operator's work, float64 [n], each `Cells` entry in the phase with the least worth.

    product: cycles of products on one engine of the matrix unit, or on VECTOR.  vector: float64 [n], work that only VECTOR can do.
    weights: weight of the first engine in every phase.
    """
    w, phase = weights[:, None], np.arange(phases.phases)[:, None]
    allowed = (phases.first <= phase) & (phase <= phases.last)
    cells = np.minimum(w[:, None] * product.cycles, (1 - w[:, None]) * product.on_vector)
    vector_worth = np.where(allowed, (1 - w) * vector, np.inf).min(0)
    least: Floats = np.where(allowed[:, :, None], cells, np.inf).min(0).sum(1) + vector_worth
    return least


def weightings(product: Shared, vector: Floats, phases: Phases) -> Iterator[Floats]:
    """Weights to try for every phase: the optimum over all operators, the optimum of each phase alone, and one equal weight everywhere."""
    everything = np.ones(len(vector), np.bool_)
    for everywhere in (_best(product, vector, everything), *GRID):
        yield np.full(phases.phases, everywhere)
    if phases.phases > 1:
        phase_masks = [(phases.first == phase) & (phases.last == phase) for phase in range(phases.phases)]
        yield np.array([_best(product, vector, mask) for mask in phase_masks])


def _best(product: Shared, vector: Floats, mask: NDArray[np.bool_]) -> float:
    """Weight of the first engine in the best split of some operators."""
    return balance_engines(product.cycles[mask].ravel(), product.on_vector[mask].ravel(), float(vector[mask].sum()))[1]
