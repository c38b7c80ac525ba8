"""Expected improvement by measuring segments: possible gain of the best segmentation, and present errors of predictions.

A segment is worth a measurement if a segmentation with it may be cheaper than the best known one.  Other segments of that segmentation
count with their measured or predicted cycles, so pairs of segments that pay only together are found, too.  The gain is the expected
improvement (Jones, Schonlau and Welch, Journal of Global Optimization 1998) for a price with a log-normal error.

| name      | shape               | meaning                                                            |
|-----------|---------------------|--------------------------------------------------------------------|
| cost      | [operators, lengths] | of runs, measured or predicted; see `planner.shortest_path`               |
| predicted | [genes, levels]     | cycles alone, `NEVER` where a gene does not fit a level            |
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from compiler.cost.features import estimate_cycles
from compiler.cost.level_conditions import condition_of, join_condition
from compiler.planner.shortest_path import cover_costs, shortest_cover
from compiler.space.gene import Gene
from tuner.cost_model.interface import predict_at
from tuner.measure.grants import NEVER
from tuner.search.ask_tell import Asking
from tuner.search.context import SearchContext
from tuner.search.table import cost_after_border

Floats = NDArray[np.float64]

ERROR = 0.1  # standard deviation of a prediction's logarithm
_DOUBT = 0.5  # weight of factor 1; one measurement of the same operators has weight 1
_erf = np.vectorize(math.erf, otypes=[np.float64])


def expected_savings(
    context: SearchContext, genes: Sequence[Gene], predicted: Floats, levels: Iterable[int], width: int | None
) -> Asking[Floats]:
    """Expected saving of each gene, float64 [genes]: share of the best segmentation's cycles, summed over the levels.

    width: as in `SegmentTable.costs`.
    """
    singles = [gene for genome in context.single_operators() for gene in genome if not context.table.known(gene)]
    raws = yield from context.features(singles)
    unpredicted = [(gene, raw) for gene, raw in zip(singles, raws, strict=True) if raw is not None]
    predicted_singles = np.zeros((0, predicted.shape[1]))
    if unpredicted:
        predicted_singles = context.predicted([gene for gene, _ in unpredicted], np.stack([raw for _, raw in unpredicted]))
    positions = np.array([(gene.stop - 1, gene.stop - gene.start - 1) for gene in genes])
    total, longest = np.zeros(len(genes)), max((gene.stop - gene.start for gene in genes), default=0)
    for level in levels:
        border = float(context.known.border[level])
        cost, _ = context.table.costs(level, border, width, room=longest)
        single_cycles = zip((gene for gene, _ in unpredicted), predicted_singles[:, level].tolist(), strict=True)
        _improve_paths(cost, single_cycles, border)
        best = shortest_cover(cost)
        if best is None:  # no measured or predicted gene covers some operator at this level
            continue
        # the room of a run: the most it may cost in a segmentation that beats the best
        current_cycles = float(best[1][-1])
        _improve_paths(cost, zip(genes, predicted[:, level].tolist(), strict=True), border)
        room = current_cycles - cover_costs(cost)[positions[:, 0], positions[:, 1]]
        total += expected_gain(room, np.maximum(predicted[:, level] - border, 0.5 * predicted[:, level])) / current_cycles
    return total


def _improve_paths(cost: Floats, prices: Iterable[tuple[Gene, float]], border: float) -> None:
    for gene, cycles in prices:
        index = gene.stop - 1, gene.stop - gene.start - 1
        if cycles < NEVER:
            cost[index] = min(cost[index], cost_after_border(cycles, border))


def expected_gain(room: Floats, price: Floats) -> Floats:
    """Expected improvement, float64 [n]: the mean of max(0, room - X) for a log-normal X around each price."""
    means = np.zeros(len(room))
    positive = room > 0
    share = np.log(room[positive] / price[positive]) / ERROR
    means[positive] = room[positive] * _normal(share) - price[positive] * math.exp(ERROR**2 / 2) * _normal(share - ERROR)
    return np.maximum(means, 0.0)


def _normal(deviation: Floats) -> Floats:
    return 0.5 * (1.0 + _erf(deviation / math.sqrt(2.0)))


def corrections(context: SearchContext, genes: Sequence[Gene]) -> Floats:
    """Correction factors, float64 [genes, levels]: ratio of measured to predicted cycles of the measured segments that share operators.

    The ratios' geometric mean; a ratio's weight is the square of (shared operators / operators of gene and segment together)."""
    table, levels = context.table, context.rules.levels
    fastest = table.fastest
    if not fastest:
        return np.ones((len(genes), len(levels)))
    rows = [(number, look, cycles) for number, ways in enumerate(fastest.values()) for _, look, cycles in ways]
    group, looks, cycles = zip(*rows, strict=True)
    predicted = _predict_proposals(context, np.frombuffer(b"".join(looks), np.float32).reshape(len(rows), -1))
    errors = np.log(np.stack(cycles)) - np.log(predicted)
    count = np.bincount(group, minlength=len(fastest))
    mean = np.column_stack([np.bincount(group, errors[:, level], len(fastest)) for level in range(len(levels))]) / count[:, None]
    runs = np.array(table.runs_of({structure: number for number, structure in enumerate(fastest)}))
    start, stop = (np.array(bounds)[:, None] for bounds in zip(*(gene[:2] for gene in genes), strict=True))
    overlap = np.maximum(0, np.minimum(stop, runs[:, 1]) - np.maximum(start, runs[:, 0]))
    union = (stop - start) + (runs[:, 1] - runs[:, 0]) - overlap
    weight = (overlap / union) ** 2 * count[runs[:, 2]]
    return np.asarray(np.exp((weight @ mean[runs[:, 2]]) / (weight.sum(1) + _DOUBT)[:, None]))


def _predict_proposals(context: SearchContext, features: NDArray[np.float32]) -> Floats:
    """Present predictions for measured segments, float64 [n, levels]; features: scaled."""
    target_graph, models = context.target_graph, [model for model in context.models if model is not None]
    if models:
        return predict_at(models, features)
    conditions = [condition_of(target_graph.machine, target_graph.dtype, level) for level in context.rules.levels]
    return np.column_stack([estimate_cycles(join_condition(features, condition)) for condition in conditions])
