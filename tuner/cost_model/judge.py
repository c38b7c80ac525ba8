"""Training, and the judge: who ranks what it has not seen better says what is measured, a model or the built-in estimate.

A model is trained twice: on the rows that are not held out, which says how good it is, and on all of them, which is what a search uses.
The first of the two, the judge, stays beside the second, because that is what a later candidate can be compared with.
The estimate needs no training and has seen nothing, nor has a model from elsewhere: both are compared on the same held-out rows.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from compiler.cost.features import estimated
from tuner.config import ModelSettings
from tuner.cost_model.interface import CostModel, TrainingRows
from tuner.cost_model.messages import Proposer
from tuner.cost_model.metrics import Metrics, by_level, held_out, mean_of, merit, usable
from tuner.cost_model.model_file import Loaded, Models, Trained, TrainedModel


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


def retrain(
    kind: type[CostModel],
    rows: TrainingRows,
    seed: int,
    settings: ModelSettings,
    older: TrainedModel | None = None,
    prior: TrainedModel | None = None,
) -> Trained:
    """Train, and choose who ranks the held-out rows best: the estimate, a model that the run began with, the one in use, the new one.

    older: in use, None where the estimate is.  Of equals the one that was there before, and so the cheapest.
    """
    candidate = train(kind, rows, seed, settings)
    clean = usable(rows)
    unseen = clean.some(held_out(clean, seed, settings.hold_out))
    known: dict[Proposer, TrainedModel | None] = {"estimate": None, "prior": prior, "older": older if older != prior else None}
    said: dict[Proposer, Mapping[str, Metrics]] = {"estimate": by_level(estimated(unseen.features), unseen)}
    said |= {who: by_level(model.judge_of(kind).predict(unseen.features), unseen) for who, model in known.items() if model is not None}
    said |= {"new": candidate.metrics}
    known |= {"new": candidate}
    chosen = max(said, key=lambda who: merit(said[who]))  # the first of equals
    model = known[chosen]
    models: Models = () if model is None else (model,)
    return Trained(candidate, chosen, {who: mean_of(each).pair_accuracy for who, each in said.items()}, models)
