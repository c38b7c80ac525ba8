"""Protocol of a cost model: from features of segments, and the condition of their run, to cycles.

| name     | dtype              | meaning                                                                            |
|----------|--------------------|------------------------------------------------------------------------------------|
| features | float32 [n, F + C] | features of a task, in the order of the feature set; then its condition: level and machine |
| cycles   | float64 [n]        | measured run times                                                                 |
| groups   | [n]                | workload of each row: segments over the same operators                             |
| levels   | [n]                | condition of each row; only rows of one group and one level are alternatives       |

`compiler.cost.level_conditions` has the last C columns, so one model serves every level, and all machines of its training.
A model learns and predicts; its evaluation, its selection and its storage are the same for every model (`tuner.cost_model.judge`,
`tuner.cost_model.model_file`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from compiler.cost.level_conditions import condition_of, join_condition
from compiler.target.target_graph import TargetGraph
from tuner.config import ModelSettings
from tuner.plugins import COST_MODELS, find


class TrainingRows(NamedTuple):
    """Training rows of a model: finite features, cycles above 0.  `left_out` counts unusable rows."""

    features: NDArray[np.float32]
    cycles: NDArray[np.float64]
    groups: NDArray[np.str_]
    levels: NDArray[np.str_]
    left_out: int = 0

    @classmethod
    def at_levels(
        cls,
        features: NDArray[np.float32],
        cycles: NDArray[np.int64],
        groups: Sequence[str] | NDArray[np.str_],
        conditions: Conditions,
    ) -> TrainingRows:
        """Rows of tasks measured at every level.  features: [n, F].  cycles: [n, levels]."""
        return cls(
            np.concatenate([join_condition(features, condition) for condition in conditions.values()]),
            cycles.T.ravel().astype(np.float64),
            np.tile(np.asarray(groups, np.str_), len(conditions)),
            np.repeat(np.array(list(conditions), np.str_), len(features)),
        )

    def select(self, selection: NDArray[np.bool_] | NDArray[np.int64]) -> TrainingRows:
        """Subset of the rows: by a mask, or by indices."""
        return TrainingRows(self.features[selection], self.cycles[selection], self.groups[selection], self.levels[selection])


class Predictor(Protocol):
    """Model in use by a search: cycles of segments at one level of its machine."""

    def predict(self, features: NDArray[np.float32]) -> NDArray[np.float64]:
        """Predict float64 [n] of features float32 [n, F]."""
        ...


class CostModel(Protocol):
    """Cost model of pure functions: the same rows, seed and settings give a model of the same bytes.

    version: version of the class, part of a run's identity.  A class may have `ranges` as well: name of a setting -> `tuner.config.Range`,
    searched by `tilefarm train --trials`.
    """

    version: ClassVar[str]

    @classmethod
    def train(cls, rows: TrainingRows, seed: int, settings: ModelSettings) -> Self:
        """Train a model.  rows: two at least.  settings: the section `model` of the configuration; a model reads its own settings there."""
        ...

    def predict(self, features: NDArray[np.float32]) -> NDArray[np.float64]:
        """Predict cycles, float64 [n], finite and above 0, for features of the trained width; n > 0."""
        ...

    def save(self) -> bytes:
        """Return all bytes that `load` needs.  No pickle: the bytes are read from files."""
        ...

    @classmethod
    def load(cls, data: bytes) -> Self:
        """Restore a model from the bytes of `save`."""
        ...


Conditions = Mapping[str, NDArray[np.float32]]  # level -> [C]


def conditions_of(target_graph: TargetGraph, levels: Sequence[str]) -> dict[str, NDArray[np.float32]]:
    """Conditions of levels of the target graph's machine."""
    return {level: condition_of(target_graph.machine, target_graph.dtype, level) for level in levels}


@dataclass(frozen=True, eq=False)
class AtLevel:
    """Predictor of a model under one condition (`compiler.cost.level_conditions.condition_of`)."""

    model: Predictor
    condition: NDArray[np.float32]

    def predict(self, features: NDArray[np.float32]) -> NDArray[np.float64]:
        return self.model.predict(join_condition(features, self.condition))


def predict_at(models: Sequence[Predictor], features: NDArray[np.float32]) -> NDArray[np.float64]:
    """Predictions of several models: float64 [n, models] of features float32 [n, F].

    A model for several conditions is called once: with few rows the call itself takes most of the time.
    """
    cycles = np.empty((len(features), len(models)))
    levels_of_model: dict[int, list[tuple[int, AtLevel]]] = {}
    for column, model in enumerate(models):
        if isinstance(model, AtLevel):
            levels_of_model.setdefault(id(model.model), []).append((column, model))
        else:
            cycles[:, column] = model.predict(features)
    for members in levels_of_model.values():
        rows = np.concatenate([join_condition(features, member.condition) for _, member in members])
        cycles[:, [column for column, _ in members]] = members[0][1].model.predict(rows).reshape(len(members), -1).T
    return cycles


def find_cost_model(name: str) -> type[CostModel]:
    """Find a cost model by name.  Raises `BadInputError`."""
    model: type[CostModel] = find(COST_MODELS, name).object
    return model
