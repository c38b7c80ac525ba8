"""Training, and the gate: a model is used only where it ranks rows that it has not seen better than the one before it.

A model is trained twice: on the rows that are not held out, which says how good it is, and on all of them, which is what a search uses.
The first of the two, the judge, stays beside the second, because that is what a later candidate can be compared with.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tuner.config import ModelSettings
from tuner.learn.cost_model import CostModel, TrainingRows
from tuner.learn.metrics import Metrics, by_level, held_out, merit, usable
from tuner.learn.trained import Loaded, TrainedModel


def train(kind: type[CostModel], rows: TrainingRows, seed: int, settings: ModelSettings) -> TrainedModel:
    """Fit the judge on the rows that are not held out, measure it on those that are, and fit on all.  Same rows and seed, same bytes.

    Raises `ValueError` where fewer than two usable rows are left to learn from.
    """
    rows = usable(rows)
    back = held_out(rows, seed, settings.hold_out)
    if (~back).sum() < 2:
        raise ValueError(f"{(~back).sum()} rows to learn from ({rows.left_out} left out, {int(back.sum())} held out)")
    judge, whole = (kind.train(rows.some(kept), seed, settings) for kept in (~back, np.ones_like(back)))
    unseen, width = rows.some(back), rows.features.shape[1]
    metrics = by_level(Loaded(judge, width).predict(unseen.features), unseen)
    return TrainedModel(whole.save(), judge.save(), width, len(rows.cycles), rows.left_out, metrics)


class Retrained(NamedTuple):
    """`model` is the one to use (None: none has earned it yet); `candidate` what was trained; `incumbent` on the same rows."""

    model: TrainedModel | None
    promoted: bool
    candidate: TrainedModel
    incumbent: dict[str, Metrics] | None


def retrain(kind: type[CostModel], rows: TrainingRows, seed: int, settings: ModelSettings, current: TrainedModel | None) -> Retrained:
    """Train, and promote only a model that ranks the held-out rows better than the current one (than a coin, if none)."""
    candidate = train(kind, rows, seed, settings)
    if current is None:
        promoted = any(each.groups for each in candidate.metrics.values()) and merit(candidate.metrics)[0] > 0.5
        return Retrained(candidate if promoted else None, promoted, candidate, None)
    clean = usable(rows)
    unseen = clean.some(held_out(clean, seed, settings.hold_out))
    incumbent = by_level(current.judge_of(kind).predict(unseen.features), unseen)
    promoted = merit(candidate.metrics) > merit(incumbent)
    return Retrained(candidate if promoted else current, promoted, candidate, incumbent)
