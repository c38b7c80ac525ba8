"""Ranking metrics on unseen rows: the choice of held-out rows, and the compared metrics.

A hash of the workload (of the features if there is one workload) decides about held-out rows, never the number of rows: so two judges are
compared on rows that neither was trained on.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numba import njit
from numpy.typing import NDArray

from compiler.cost.level_conditions import CONDITIONS
from tuner.cost_model.interface import TrainingRows

REGRET_AT = (1, 8, 32)  # numbers of best predictions that are measured
MOST_IN_PAIRS = 632  # rows of a workload, evenly spaced: 200,000 pairs
_PAIRS, _REGRETS = 1, 2 + len(REGRET_AT)  # columns of `_group_metrics`


@dataclass(frozen=True)
class Metrics:
    """Ranking quality on unseen rows: means over the held-out workloads, each ranked separately.

    spearman: rank correlation.  pair_accuracy: share of pairs in the right order (0.5: a coin).  regret[k]: fastest of
    the k best by prediction ÷ fastest of all, minus 1.  log2_error: root mean square of log2(predicted ÷ measured).
    """

    rows: int
    groups: int
    spearman: float
    pair_accuracy: float
    regret: dict[str, float]
    log2_error: float


def usable_rows(rows: TrainingRows) -> TrainingRows:
    """Remove rows with non-finite cycles or features, or non-positive cycles."""
    usable = np.isfinite(rows.cycles) & (rows.cycles > 0) & np.isfinite(rows.features).all(axis=1)
    return rows.select(usable)._replace(left_out=int((~usable).sum()))


def _unit_hash(seed: int, data: bytes) -> float:
    return int.from_bytes(hashlib.sha256(str(seed).encode() + b":" + data).digest()[:8], "big") / 2.0**64


def held_out_rows(rows: TrainingRows, seed: int, share: float) -> NDArray[np.bool_]:
    """Mask of held-out rows: entire workloads, or rows of equal features if there is one workload."""
    names = np.unique(rows.groups)
    if len(names) > 1:
        fractions = {name: _unit_hash(seed, name.encode()) for name in names.tolist()}
        held_out = {name for name, fraction in fractions.items() if fraction < share}
        if len(held_out) in (0, len(fractions)):  # keep at least one workload on either side
            first = min(fractions, key=lambda name: (fractions[name], name))
            held_out = {first}
        return np.isin(rows.groups, sorted(held_out))
    return np.array([_unit_hash(seed, row.tobytes()) < share for row in rows.features[:, : -len(CONDITIONS)]], np.bool_)


def metrics_by_level(predicted: NDArray[np.float64], rows: TrainingRows) -> dict[str, Metrics]:
    """Metrics of every level with rows, by name."""
    metrics = {}
    for level in np.unique(rows.levels).tolist():
        in_level = rows.levels == level
        metrics[level] = evaluate_ranking(predicted[in_level], rows.select(in_level))
    return metrics


def evaluate_ranking(predicted: NDArray[np.float64], rows: TrainingRows) -> Metrics:
    """Ranking metrics of rows of one level: by workload, then averaged."""
    _, group = np.unique(rows.groups, return_inverse=True)
    order = np.argsort(group, kind="stable")
    group_ends = np.append(np.flatnonzero(np.diff(group[order])) + 1, len(order)).astype(np.int64)
    scores = _group_metrics(predicted[order], rows.cycles[order], group_ends, REGRET_AT) if len(order) else np.zeros((0, _REGRETS))
    scores = scores[~np.isnan(scores[:, _PAIRS])]
    spearman, pairs, *regret = scores.mean(0).tolist() if len(scores) else [0.0, 0.5, *(0.0 for _ in REGRET_AT)]
    error = np.log2(predicted / rows.cycles) if len(predicted) else np.zeros(1)
    return Metrics(
        rows=len(rows.cycles),
        groups=len(scores),
        spearman=spearman,
        pair_accuracy=pairs,
        regret={str(k): value for k, value in zip(REGRET_AT, regret, strict=True)},
        log2_error=float(np.sqrt(np.mean(error**2))),
    )


@njit(cache=True)
def _group_metrics(
    guess: NDArray[np.float64], truth: NDArray[np.float64], group_ends: NDArray[np.int64], shortlists: tuple[int, ...]
) -> NDArray[np.float64]:
    """Scores, float64 [groups, (rank correlation, pairs in order, regret at each)]; NaN for a group with equal cycles only.

    group_ends: one past each group's last row.
    """
    out = np.full((len(group_ends), 2 + len(shortlists)), np.nan)
    start = 0
    for g, end in enumerate(group_ends):
        a, b = guess[start:end], truth[start:end]
        start = end
        fastest = b.min()
        if b.max() == fastest:
            continue
        order = np.argsort(a, kind="mergesort")
        x, y = _ranks(a, order), _ranks(b, np.argsort(b, kind="mergesort"))
        x -= x.mean()
        y -= y.mean()
        size = np.sqrt((x * x).sum() * (y * y).sum())
        out[g, 0] = (x * y).sum() / size if size > 0 else 0.0
        # pairs of at most MOST_IN_PAIRS rows; equal predictions count half
        step = -(-len(a) // MOST_IN_PAIRS)
        right, pairs = 0.0, 0
        for i in range(0, len(a), step):
            for j in range(i + step, len(a), step):
                if b[i] != b[j]:
                    pairs += 1
                    if a[i] == a[j]:
                        right += 0.5
                    elif (a[i] < a[j]) == (b[i] < b[j]):
                        right += 1.0
        out[g, 1] = right / pairs if pairs else 0.5
        for k, count in enumerate(shortlists):
            out[g, 2 + k] = b[order[:count]].min() / fastest - 1
    return out


@njit(cache=True)
def _ranks(values: NDArray[np.float64], order: NDArray[np.int64]) -> NDArray[np.float64]:
    """Ranks, 1 for the smallest; equal values share their mean rank."""
    out = np.empty(len(values))
    i = 0
    while i < len(values):
        j = i
        while j + 1 < len(values) and values[order[j + 1]] == values[order[i]]:
            j += 1
        out[order[i : j + 1]] = 1 + (i + j) / 2
        i = j + 1
    return out


def mean_metrics(metrics: Mapping[str, Metrics]) -> Metrics:
    """Mean over levels with equal weights; rows and groups are summed."""
    per_level = list(metrics.values())
    if not per_level:
        return Metrics(0, 0, 0.0, 0.5, {str(k): 0.0 for k in REGRET_AT}, 0.0)

    def mean(values: Iterable[float]) -> float:
        return float(np.mean(list(values)))

    return Metrics(
        sum(m.rows for m in per_level),
        sum(m.groups for m in per_level),
        mean(m.spearman for m in per_level),
        mean(m.pair_accuracy for m in per_level),
        {str(k): mean(m.regret[str(k)] for m in per_level) for k in REGRET_AT},
        mean(m.log2_error for m in per_level),
    )


def merit(metrics: Mapping[str, Metrics]) -> tuple[float, float, float]:
    """Order of models by metrics over the levels: pairs in order first, then rank correlation, then the regret of a short list."""
    mean = mean_metrics(metrics)
    return mean.pair_accuracy, mean.spearman, -mean.regret["8"]
