"""Training, and the gate: a model is used only where it ranks rows that it has not seen better than the one before it.

A model is trained twice: on the rows that are not held out, which says how good it is, and on all of them, which is what a search uses.
The first of the two, the judge, stays beside the second, because that is what a later candidate can be compared with.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.npu.level import Level
from tuner.config import ModelSettings
from tuner.learn.cost_model import CostModel, TrainingRows
from tuner.learn.metrics import Metrics, evaluate, held_out, merit, usable
from tuner.learn.trained import Loaded, TrainedModel


def train(
    kind: type[CostModel],
    features: NDArray[np.float32],
    cycles: NDArray[Any],
    groups: Sequence[Any] | NDArray[Any],
    level: Level,
    seed: int,
    settings: ModelSettings,
) -> TrainedModel:
    """Fit the judge on the rows that are not held out, measure it on those that are, and fit on all.  Same rows and seed, same bytes.

    level: at which the cycles were measured.  Raises `ValueError` where fewer than two usable rows are left to learn
    from.
    """
    rows = usable(features, cycles, groups)
    back = held_out(rows, seed, settings.hold_out)
    if (~back).sum() < 2:
        raise ValueError(f"{(~back).sum()} rows to learn from ({rows.left_out} left out, {int(back.sum())} held out)")
    judge, whole = (kind.train(_some(rows, kept), level, seed, settings) for kept in (~back, np.ones_like(back)))
    unseen, width = _some(rows, back), rows.features.shape[1]
    metrics = evaluate(Loaded(judge, width).predict(unseen.features), unseen, seed)
    return TrainedModel(whole.save(), judge.save(), level, width, len(rows.cycles), rows.left_out, metrics)


class Retrained(NamedTuple):
    """`model` is the one to use (None: none has earned it yet); `candidate` what was trained; `incumbent` on the same rows."""

    model: TrainedModel | None
    promoted: bool
    candidate: TrainedModel
    incumbent: Metrics | None


def retrain(
    kind: type[CostModel], rows: TrainingRows, level: Level, seed: int, settings: ModelSettings, current: TrainedModel | None
) -> Retrained:
    """Train, and promote only a model that ranks the held-out rows better than the current one (than a coin, if none)."""
    candidate = train(kind, rows.features, rows.cycles, rows.groups, level, seed, settings)
    if current is None:
        promoted = candidate.metrics.groups > 0 and candidate.metrics.pair_accuracy > 0.5
        return Retrained(candidate if promoted else None, promoted, candidate, None)
    clean = usable(rows.features, rows.cycles, rows.groups)
    unseen = _some(clean, held_out(clean, seed, settings.hold_out))
    incumbent = evaluate(current.judge_of(kind).predict(unseen.features), unseen, seed)
    promoted = merit(candidate.metrics) > merit(incumbent)
    return Retrained(candidate if promoted else current, promoted, candidate, incumbent)


def _some(rows: TrainingRows, kept: NDArray[np.bool_]) -> TrainingRows:
    return TrainingRows(rows.features[kept], rows.cycles[kept], rows.groups[kept])
