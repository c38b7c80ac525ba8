"""Training and judgement: the best ranking of unseen segments decides whether a model or the built-in estimate proposes measurements.

A model is trained twice: without the held-out rows, for its evaluation (this one is the *judge*), and on all rows, for the search.  The
judge is stored beside the other model, because later candidates are compared with it.
The estimate and a model from another run have seen none of the rows, so all are compared on the same held-out rows.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from compiler.cost.features import estimate_cycles
from tuner.config import ModelSettings
from tuner.cost_model.interface import CostModel, TrainingRows
from tuner.cost_model.messages import Proposer
from tuner.cost_model.metrics import Metrics, held_out_rows, mean_metrics, merit, metrics_by_level, usable_rows
from tuner.cost_model.model_file import CheckedModel, Models, TrainedModel, TrainingOutcome


def train_with_judge(kind: type[CostModel], rows: TrainingRows, seed: int, settings: ModelSettings) -> TrainedModel:
    """Fit the judge without the held-out rows, evaluate it on them, and fit on all rows.  Same rows and seed, same bytes.

    Raises `ValueError` for fewer than two usable training rows.
    """
    rows = usable_rows(rows)
    in_test = held_out_rows(rows, seed, settings.hold_out)
    if (~in_test).sum() < 2:
        raise ValueError(f"{(~in_test).sum()} rows to learn from ({rows.left_out} left out, {int(in_test.sum())} held out)")
    judge, full = (kind.train(rows.select(mask), seed, settings) for mask in (~in_test, np.ones_like(in_test)))
    unseen, width = rows.select(in_test), rows.features.shape[1]
    metrics = metrics_by_level(CheckedModel(judge, width).predict(unseen.features), unseen)
    return TrainedModel(full.save(), judge.save(), width, len(rows.cycles), rows.left_out, metrics)


def retrain(
    kind: type[CostModel],
    rows: TrainingRows,
    seed: int,
    settings: ModelSettings,
    older: TrainedModel | None = None,
    prior: TrainedModel | None = None,
) -> TrainingOutcome:
    """Train, and choose the best ranking of the held-out rows: the estimate, the initial model, the model in use, or the new one.

    older: model in use; None: the estimate.  Among equals the earliest wins, which is also the cheapest.
    """
    candidate = train_with_judge(kind, rows, seed, settings)
    clean = usable_rows(rows)
    unseen = clean.select(held_out_rows(clean, seed, settings.hold_out))
    contenders: dict[Proposer, TrainedModel | None] = {"estimate": None, "prior": prior, "older": older if older != prior else None}
    metrics: dict[Proposer, Mapping[str, Metrics]] = {"estimate": metrics_by_level(estimate_cycles(unseen.features), unseen)}
    metrics |= {
        proposer: metrics_by_level(model.judge_of(kind).predict(unseen.features), unseen)
        for proposer, model in contenders.items()
        if model is not None
    }
    metrics |= {"new": candidate.metrics}
    contenders |= {"new": candidate}
    winner = max(metrics, key=lambda proposer: merit(metrics[proposer]))  # the first one of equals
    model = contenders[winner]
    models: Models = () if model is None else (model,)
    return TrainingOutcome(
        candidate, winner, {proposer: mean_metrics(level_metrics).pair_accuracy for proposer, level_metrics in metrics.items()}, models
    )
