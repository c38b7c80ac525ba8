"""What measuring segments is expected to bring: how much cheaper the best segmentation may become, and how wrong predictions are by now.

A segment is worth its measurement where a segmentation with it may be cheaper than the best one that is known.  What the rest of it costs
is known where that was measured, and predicted where not: two segments that pay only together are found so, too.  How much cheaper is the
expected improvement (Jones, Schonlau and Welch, Journal of Global Optimization 1998) of a price that is off by a factor, log-normally.

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

from compiler.cost.context import condition_of, under
from compiler.cost.features import estimated
from compiler.planner.shortest_path import around, shortest
from compiler.space.gene import Gene
from tuner.cost_model.interface import predict_at
from tuner.measure.grants import NEVER
from tuner.search.ask_tell import Asking
from tuner.search.context import SearchContext
from tuner.search.table import less_border

Floats = NDArray[np.float64]

ERROR = 0.1  # of a prediction, as the standard deviation of its logarithm
_DOUBT = 0.5  # of a segment that shares all operators: how much of what one measurement says is believed
_erf = np.vectorize(math.erf, otypes=[np.float64])


def promises(context: SearchContext, genes: Sequence[Gene], predicted: Floats, levels: Iterable[int], width: int | None) -> Asking[Floats]:
    """float64 [genes]: expected share of the best segmentation's cycles that each of them saves, over the levels.

    width: as in `SegmentTable.costs`.
    """
    alone = [gene for genome in context.single_operators() for gene in genome if not context.table.known(gene)]
    raws = yield from context.features(alone)
    open_ = [(gene, raw) for gene, raw in zip(alone, raws, strict=True) if raw is not None]
    guessed = (
        context.predicted([gene for gene, _ in open_], np.stack([raw for _, raw in open_])) if open_ else np.zeros((0, predicted.shape[1]))
    )
    where = np.array([(gene.stop - 1, gene.stop - gene.start - 1) for gene in genes])
    total, longest = np.zeros(len(genes)), max((gene.stop - gene.start for gene in genes), default=0)
    for level in levels:
        border = float(context.known.border[level])
        cost, _ = context.table.costs(level, border, width, room=longest)
        _lower(cost, ((gene, cycles) for (gene, _), cycles in zip(open_, guessed[:, level].tolist(), strict=True)), border)
        best = shortest(cost)
        if best is None:  # some operator has no way at this level
            continue
        now = float(best[1][-1])
        _lower(cost, zip(genes, predicted[:, level].tolist(), strict=True), border)
        room = now - around(cost)[where[:, 0], where[:, 1]]
        total += improvement(room, np.maximum(predicted[:, level] - border, 0.5 * predicted[:, level])) / now
    return total


def _lower(cost: Floats, prices: Iterable[tuple[Gene, float]], border: float) -> None:
    for gene, cycles in prices:
        at = gene.stop - 1, gene.stop - gene.start - 1
        if cycles < NEVER:
            cost[at] = min(cost[at], less_border(cycles, border))


def improvement(room: Floats, price: Floats) -> Floats:
    """float64 [n]: the mean of max(0, room - X) for a log-normal X around each price."""
    found = np.zeros(len(room))
    some = room > 0
    share = np.log(room[some] / price[some]) / ERROR
    found[some] = room[some] * _normal(share) - price[some] * math.exp(ERROR**2 / 2) * _normal(share - ERROR)
    return np.maximum(found, 0.0)


def _normal(x: Floats) -> Floats:
    return 0.5 * (1.0 + _erf(x / math.sqrt(2.0)))


def corrections(context: SearchContext, genes: Sequence[Gene]) -> Floats:
    """float64 [genes, levels]: by which factors segments took longer than predicted that share operators with these: the geometric mean,
    weighted by the square of the share of operators that both have of those that either has."""
    table, levels = context.table, context.rules.levels
    known = table.fastest
    if not known:
        return np.ones((len(genes), len(levels)))
    rows = [(at, look, cycles) for at, found in enumerate(known.values()) for _, look, cycles in found]
    which, looks, cycles = zip(*rows, strict=True)
    predicted = _again(context, np.frombuffer(b"".join(looks), np.float32).reshape(len(rows), -1))
    off = np.log(np.stack(cycles)) - np.log(predicted)
    count = np.bincount(which, minlength=len(known))
    mean = np.column_stack([np.bincount(which, off[:, level], len(known)) for level in range(len(levels))]) / count[:, None]
    runs = np.array(table.runs_of({structure: at for at, structure in enumerate(known)}))
    start, stop = (np.array(each)[:, None] for each in zip(*(gene[:2] for gene in genes), strict=True))
    both = np.maximum(0, np.minimum(stop, runs[:, 1]) - np.maximum(start, runs[:, 0]))
    either = (stop - start) + (runs[:, 1] - runs[:, 0]) - both
    weight = (both / either) ** 2 * count[runs[:, 2]]
    return np.asarray(np.exp((weight @ mean[runs[:, 2]]) / (weight.sum(1) + _DOUBT)[:, None]))


def _again(context: SearchContext, features: NDArray[np.float32]) -> Floats:
    """What is predicted now of segments that were measured, float64 [n, levels]; features: scaled."""
    target_graph, models = context.target_graph, [model for model in context.models if model is not None]
    if models:
        return predict_at(models, features)
    conditions = [condition_of(target_graph.machine, target_graph.dtype, level) for level in context.rules.levels]
    return np.column_stack([estimated(under(features, condition)) for condition in conditions])
