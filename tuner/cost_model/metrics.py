"""How well a model ranks what it has not seen: which rows are kept back, and the metrics that the gate compares.

Which rows are held out follows from a hash of the workload (of the features where there is one workload), never from the number of rows:
so two judges are compared on rows that neither was trained on.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numba import njit
from numpy.typing import NDArray

from compiler.cost.context import CONDITIONS
from tuner.cost_model.interface import TrainingRows

REGRET_AT = (1, 8, 32)
MOST_IN_PAIRS = 632  # rows of a workload, evenly spaced: 200,000 pairs
_PAIRS, _REGRETS = 1, 2 + len(REGRET_AT)  # columns of `_of_groups`


@dataclass(frozen=True)
class Metrics:
    """How well a model ranks rows it has not seen: means over the held-out workloads, each ranked apart.

    spearman: rank correlation.  pair_accuracy: share of pairs in the right order (0.5: a coin).  regret[k]: fastest of
    the k best by prediction ÷ fastest of all, minus 1.  log2_error: root mean square of log2(predicted ÷ measured).
    """

    rows: int
    groups: int
    spearman: float
    pair_accuracy: float
    regret: dict[str, float]
    log2_error: float


def usable(rows: TrainingRows) -> TrainingRows:
    """Leave out rows whose cycles or features are no finite numbers, or whose cycles are not positive."""
    good = np.isfinite(rows.cycles) & (rows.cycles > 0) & np.isfinite(rows.features).all(axis=1)
    return rows.some(good)._replace(left_out=int((~good).sum()))


def _target_graph(seed: int, data: bytes) -> float:
    return int.from_bytes(hashlib.sha256(str(seed).encode() + b":" + data).digest()[:8], "big") / 2.0**64


def held_out(rows: TrainingRows, seed: int, share: float) -> NDArray[np.bool_]:
    """Mask of the rows that are kept back: whole workloads, or rows of equal features where there is one workload."""
    names = np.unique(rows.groups)
    if len(names) > 1:
        place = {name: _target_graph(seed, name.encode()) for name in names.tolist()}
        back = {name for name, target_graph in place.items() if target_graph < share}
        if len(back) in (0, len(place)):  # one at least on either side
            first = min(place, key=lambda name: (place[name], name))
            back = {first}
        return np.isin(rows.groups, sorted(back))
    return np.array([_target_graph(seed, row.tobytes()) < share for row in rows.features[:, : -len(CONDITIONS)]], np.bool_)


def by_level(predicted: NDArray[np.float64], rows: TrainingRows) -> dict[str, Metrics]:
    """Of every level that there are rows of, by name."""
    found = {}
    for level in np.unique(rows.levels).tolist():
        own = rows.levels == level
        found[level] = evaluate(predicted[own], rows.some(own))
    return found


def evaluate(predicted: NDArray[np.float64], rows: TrainingRows) -> Metrics:
    """Ranking metrics of rows of one level, workload by workload, then averaged."""
    _, group = np.unique(rows.groups, return_inverse=True)
    order = np.argsort(group, kind="stable")
    ends = np.append(np.flatnonzero(np.diff(group[order])) + 1, len(order)).astype(np.int64)
    each = _of_groups(predicted[order], rows.cycles[order], ends, REGRET_AT) if len(order) else np.zeros((0, _REGRETS))
    each = each[~np.isnan(each[:, _PAIRS])]
    spearman, pairs, *regret = each.mean(0).tolist() if len(each) else [0.0, 0.5, *(0.0 for _ in REGRET_AT)]
    error = np.log2(predicted / rows.cycles) if len(predicted) else np.zeros(1)
    return Metrics(
        rows=len(rows.cycles),
        groups=len(each),
        spearman=spearman,
        pair_accuracy=pairs,
        regret={str(k): value for k, value in zip(REGRET_AT, regret, strict=True)},
        log2_error=float(np.sqrt(np.mean(error**2))),
    )


@njit(cache=True)
def _of_groups(guess: NDArray[np.float64], truth: NDArray[np.float64], ends: NDArray[np.int64], at: tuple[int, ...]) -> NDArray[np.float64]:
    """float64 [groups, (rank correlation, pairs in order, regret at each)]; NaN of a group whose rows all took the same.

    ends: one past each group's last row.
    """
    out = np.full((len(ends), 2 + len(at)), np.nan)
    start = 0
    for g, end in enumerate(ends):
        a, b = guess[start:end], truth[start:end]
        start = end
        least = b.min()
        if b.max() == least:
            continue
        order = np.argsort(a, kind="mergesort")
        x, y = _ranks(a, order), _ranks(b, np.argsort(b, kind="mergesort"))
        x -= x.mean()
        y -= y.mean()
        size = np.sqrt((x * x).sum() * (y * y).sum())
        out[g, 0] = (x * y).sum() / size if size > 0 else 0.0
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
        for k, many in enumerate(at):
            out[g, 2 + k] = b[order[:many]].min() / least - 1
    return out


@njit(cache=True)
def _ranks(values: NDArray[np.float64], order: NDArray[np.int64]) -> NDArray[np.float64]:
    """1 for the smallest; equal values share their mean rank."""
    out = np.empty(len(values))
    i = 0
    while i < len(values):
        j = i
        while j + 1 < len(values) and values[order[j + 1]] == values[order[i]]:
            j += 1
        out[order[i : j + 1]] = 1 + (i + j) / 2
        i = j + 1
    return out


def mean_of(metrics: Mapping[str, Metrics]) -> Metrics:
    """Over levels, each counting the same; rows and groups are summed."""
    each = list(metrics.values())
    if not each:
        return Metrics(0, 0, 0.0, 0.5, {str(k): 0.0 for k in REGRET_AT}, 0.0)

    def mean(values: Iterable[float]) -> float:
        return float(np.mean(list(values)))

    return Metrics(
        sum(m.rows for m in each),
        sum(m.groups for m in each),
        mean(m.spearman for m in each),
        mean(m.pair_accuracy for m in each),
        {str(k): mean(m.regret[str(k)] for m in each) for k in REGRET_AT},
        mean(m.log2_error for m in each),
    )


def merit(metrics: Mapping[str, Metrics]) -> tuple[float, float, float]:
    """What the gate compares, over the levels: the order of pairs first, then rank correlation, then the regret of a short list."""
    mean = mean_of(metrics)
    return mean.pair_accuracy, mean.spearman, -mean.regret["8"]
