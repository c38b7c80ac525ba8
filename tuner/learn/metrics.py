"""How well a model ranks what it has not seen: which rows are kept back, and the metrics that the gate compares.

Which rows are held out follows from a hash of the workload (of the features where there is one workload), never from the number of rows:
so two judges are compared on rows that neither was trained on.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tuner.learn.cost_model import Rows

REGRET_AT = (1, 8, 32)
MAX_PAIRS = 200_000


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


def usable(features: NDArray[np.float32], cycles: NDArray[Any], groups: Sequence[Any] | NDArray[Any]) -> Rows:
    """Leave out rows whose cycles or features are no finite numbers, or whose cycles are not positive."""
    x, y = np.asarray(features, np.float32), np.asarray(cycles, np.float64)
    good = np.isfinite(y) & (y > 0) & np.isfinite(x).all(axis=1)
    return Rows(x[good], y[good], np.asarray(groups).astype(str)[good], int((~good).sum()))


def _unit(seed: int, data: bytes) -> float:
    return int.from_bytes(hashlib.sha256(str(seed).encode() + b":" + data).digest()[:8], "big") / 2.0**64


def held_out(rows: Rows, seed: int, share: float) -> NDArray[np.bool_]:
    """Mask of the rows that are kept back: whole workloads, or rows of equal features where there is one workload."""
    names = np.unique(rows.groups)
    if len(names) > 1:
        place = {name: _unit(seed, name.encode()) for name in names.tolist()}
        back = {name for name, unit in place.items() if unit < share}
        if len(back) in (0, len(place)):  # one at least on either side
            first = min(place, key=lambda name: (place[name], name))
            back = {first}
        return np.isin(rows.groups, sorted(back))
    return np.array([_unit(seed, row.tobytes()) < share for row in rows.features], np.bool_)


def evaluate(predicted: NDArray[np.float64], rows: Rows, seed: int) -> Metrics:
    """Ranking metrics, workload by workload, then averaged."""
    rng = np.random.default_rng(seed)
    spearmans, pairs, regrets = [], [], {k: list[float]() for k in REGRET_AT}
    for name in np.unique(rows.groups):
        own = rows.groups == name
        guess, truth = predicted[own], rows.cycles[own]
        if len(np.unique(truth)) < 2:
            continue
        a, b = _ranks(guess), _ranks(truth)
        spearmans.append(float(np.corrcoef(a, b)[0, 1]) if a.std() > 0 else 0.0)
        pairs.append(_pair_accuracy(a, b, rng))
        order = np.argsort(guess, kind="stable")
        for k in REGRET_AT:
            regrets[k].append(float(truth[order[:k]].min() / truth.min() - 1))
    error = np.log2(predicted / rows.cycles) if len(predicted) else np.zeros(1)
    return Metrics(
        rows=len(rows.cycles),
        groups=len(spearmans),
        spearman=float(np.mean(spearmans)) if spearmans else 0.0,
        pair_accuracy=float(np.mean(pairs)) if pairs else 0.5,
        regret={str(k): float(np.mean(values)) if values else 0.0 for k, values in regrets.items()},
        log2_error=float(np.sqrt(np.mean(error**2))),
    )


def _ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """1 for the smallest; equal values share their mean rank."""
    return np.asarray(pd.Series(values).rank(), np.float64)


def _pair_accuracy(guess: NDArray[np.float64], truth: NDArray[np.float64], rng: np.random.Generator) -> float:
    n = len(truth)
    if n * (n - 1) // 2 <= MAX_PAIRS:
        i, j = np.triu_indices(n, 1)
    else:
        i, j = rng.integers(0, n, (2, MAX_PAIRS))
    differ = truth[i] != truth[j]
    i, j = i[differ], j[differ]
    product = np.sign(guess[i] - guess[j]) * np.sign(truth[i] - truth[j])
    return float(np.mean((product + 1) / 2)) if len(product) else 0.5


def merit(metrics: Metrics) -> tuple[float, float, float]:
    """What the gate compares: the order of pairs first, then rank correlation, then the regret of a short list."""
    return metrics.pair_accuracy, metrics.spearman, -metrics.regret.get("8", 0.0)
