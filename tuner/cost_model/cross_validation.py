"""How well a model knows networks that it has not seen: k folds of whole networks, each answered by a model of the others.

Beside it stands the estimate that needs no model (`compiler.cost.features.estimated`), on the same rows.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from compiler.cost.features import estimated
from tuner.config import ModelSettings
from tuner.cost_model.interface import CostModel
from tuner.cost_model.log_columns import WIDTH
from tuner.cost_model.metrics import Metrics, by_level, mean_of
from tuner.cost_model.model_file import Loaded
from tuner.cost_model.training_rows import LoggedRows
from tuner.log.digests import digest

FOLDS = 5


class Unseen(NamedTuple):
    """Cycles of every row as expected by a model that has not seen its network.

    held_out: what a fold is made of: networks, or workloads where there is one network.  folds: how many.
    """

    predicted: NDArray[np.float64]
    held_out: str
    folds: int


def folds_of(logged: LoggedRows, seed: int) -> tuple[NDArray[np.int64], str]:
    """Number of each row's fold, and what folds are made of."""
    several = len(np.unique(logged.networks)) > 1
    names, at = np.unique(logged.networks if several else logged.rows.groups, return_inverse=True)
    order = np.argsort([digest([seed, name]) for name in names.tolist()])
    fold = np.empty(len(names), np.int64)
    fold[order] = np.arange(len(names)) % FOLDS
    return fold[at], "networks" if several else "workloads"


def predicted_unseen(kind: type[CostModel], logged: LoggedRows, seed: int, settings: ModelSettings) -> Unseen:
    """Raises `ValueError` where there are too few rows for two folds."""
    rows, (fold, held_out) = logged.rows, folds_of(logged, seed)
    numbers = np.unique(fold).tolist()
    if len(numbers) < 2 or min(int((fold != number).sum()) for number in numbers) < 2:
        raise ValueError(f"{len(rows.cycles)} rows of {len(numbers)} {held_out}")
    predicted = np.empty(len(rows.cycles))
    for number in numbers:
        back = fold == number
        predicted[back] = Loaded(kind.train(rows.some(~back), seed, settings), WIDTH).predict(rows.features[back])
    return Unseen(predicted, held_out, len(numbers))


class ModelBesideEstimate(NamedTuple):
    """The same rows by a model, and by the estimate: means over levels."""

    model: Metrics
    estimate: Metrics


def compared(logged: LoggedRows, predicted: NDArray[np.float64]) -> dict[str, dict[str, ModelBesideEstimate]]:
    """By network, kind and level: `{"network": {name: ...}, "kind": ..., "level": ...}`, and `{"all": {"": ...}}`."""
    rows, guessed = logged.rows, estimated(logged.rows.features)

    def of(kept: NDArray[np.bool_]) -> ModelBesideEstimate:
        some = rows.some(kept)
        return ModelBesideEstimate(*(mean_of(by_level(each[kept], some)) for each in (predicted, guessed)))

    slices: dict[str, NDArray[np.str_]] = {"network": logged.networks, "kind": logged.kinds, "level": rows.levels}
    found = {what: {name: of(labels == name) for name in np.unique(labels).tolist()} for what, labels in slices.items()}
    return found | {"all": {"": of(np.ones(len(rows.cycles), np.bool_))}}
