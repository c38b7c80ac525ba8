"""Cross-validation on unseen networks: k folds of entire networks, each predicted by a model of the others.

The estimate, which needs no model (`compiler.cost.features.estimate_cycles`), is evaluated on the same rows.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from compiler.cost.features import estimate_cycles
from tuner.config import ModelSettings
from tuner.cost_model.interface import CostModel
from tuner.cost_model.log_columns import WIDTH
from tuner.cost_model.metrics import Metrics, mean_metrics, metrics_by_level
from tuner.cost_model.model_file import CheckedModel
from tuner.cost_model.training_rows import LoggedRows
from tuner.log.digests import digest

FOLDS = 5


class UnseenPredictions(NamedTuple):
    """Predicted cycles of every row, by a model without its network.

    held_out: unit of the folds: networks, or workloads if there is one network.  folds: their number.
    """

    predicted: NDArray[np.float64]
    held_out: str
    folds: int


def assign_folds(logged: LoggedRows, seed: int) -> tuple[NDArray[np.int64], str]:
    """Fold number of each row, and the unit of the folds."""
    has_networks = len(np.unique(logged.networks)) > 1
    names, index = np.unique(logged.networks if has_networks else logged.rows.groups, return_inverse=True)
    order = np.argsort([digest([seed, name]) for name in names.tolist()])
    fold = np.empty(len(names), np.int64)
    fold[order] = np.arange(len(names)) % FOLDS
    return fold[index], "networks" if has_networks else "workloads"


def predict_unseen(kind: type[CostModel], logged: LoggedRows, seed: int, settings: ModelSettings) -> UnseenPredictions:
    """Predict every row by a model of the other folds.  Raises `ValueError` for too few rows for two folds."""
    rows, (fold, held_out) = logged.rows, assign_folds(logged, seed)
    numbers = np.unique(fold).tolist()
    if len(numbers) < 2 or min(int((fold != number).sum()) for number in numbers) < 2:
        raise ValueError(f"{len(rows.cycles)} rows of {len(numbers)} {held_out}")
    predicted = np.empty(len(rows.cycles))
    for number in numbers:
        in_fold = fold == number
        predicted[in_fold] = CheckedModel(kind.train(rows.select(~in_fold), seed, settings), WIDTH).predict(rows.features[in_fold])
    return UnseenPredictions(predicted, held_out, len(numbers))


class ModelBesideEstimate(NamedTuple):
    """Metrics of the model and of the estimate on the same rows: means over levels."""

    model: Metrics
    estimate: Metrics


def compare_with_estimate(logged: LoggedRows, predicted: NDArray[np.float64]) -> dict[str, dict[str, ModelBesideEstimate]]:
    """Metrics by network, kind and level: `{"network": {name: ...}, "kind": ..., "level": ...}`, and `{"all": {"": ...}}`."""
    rows, guessed = logged.rows, estimate_cycles(logged.rows.features)

    def evaluate_fold(rows_mask: NDArray[np.bool_]) -> ModelBesideEstimate:
        fold_rows = rows.select(rows_mask)
        return ModelBesideEstimate(*(mean_metrics(metrics_by_level(cycles[rows_mask], fold_rows)) for cycles in (predicted, guessed)))

    slices: dict[str, NDArray[np.str_]] = {"network": logged.networks, "kind": logged.kinds, "level": rows.levels}
    metrics = {
        grouping: {name: evaluate_fold(labels == name) for name in np.unique(labels).tolist()} for grouping, labels in slices.items()
    }
    return metrics | {"all": {"": evaluate_fold(np.ones(len(rows.cycles), np.bool_))}}
