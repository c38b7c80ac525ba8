"""What a cost model is: features of segments, and the condition under which each runs, to cycles, whoever wrote it.

| name     | dtype              | meaning                                                                            |
|----------|--------------------|------------------------------------------------------------------------------------|
| features | float32 [n, F + C] | of a task, in the order of the feature set; then its condition: level and machine  |
| cycles   | float64 [n]        | measured run times                                                                 |
| groups   | [n]                | workload of each row: segments over the same operators                             |
| levels   | [n]                | under which condition; only rows of one group and one level are alternatives       |

`compiler.cost.context` has the last C columns, so that one model knows every level, and as many machines as it has seen.
A model learns and predicts; which rows it is judged by, whether it is used, and how it is kept is the same for every model
(`tuner.cost_model.judge`, `tuner.cost_model.model_file`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from compiler.cost.context import condition_of, under
from compiler.target.target_graph import TargetGraph
from tuner.config import ModelSettings
from tuner.plugins import COST_MODELS, find


class TrainingRows(NamedTuple):
    """What a model learns from: finite features, cycles above 0.  `left_out` counts rows that could not be used."""

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
        """Tasks that were measured at every level.  features: [n, F].  cycles: [n, levels]."""
        return cls(
            np.concatenate([under(features, condition) for condition in conditions.values()]),
            cycles.T.ravel().astype(np.float64),
            np.tile(np.asarray(groups, np.str_), len(conditions)),
            np.repeat(np.array(list(conditions), np.str_), len(features)),
        )

    def some(self, kept: NDArray[np.bool_] | NDArray[np.int64]) -> TrainingRows:
        """Of these rows those that are kept: a mask, or their places."""
        return TrainingRows(self.features[kept], self.cycles[kept], self.groups[kept], self.levels[kept])


class Predictor(Protocol):
    """What a search needs of a model: cycles of segments at one level of its machine."""

    def predict(self, features: NDArray[np.float32]) -> NDArray[np.float64]:
        """float64 [n] of features float32 [n, F]."""
        ...


class CostModel(Protocol):
    """Plain functions of their arguments: the same rows, seed and settings give a model of the same bytes.

    version: of the class, part of a run's identity.  A class may have `ranges` as well: name of a setting -> `tuner.config.Range`, where
    `tilefarm train --trials` looks.
    """

    version: ClassVar[str]

    @classmethod
    def train(cls, rows: TrainingRows, seed: int, settings: ModelSettings) -> Self:
        """rows: two at least.  settings: the section `model` of the configuration, of which a model takes what it knows."""
        ...

    def predict(self, features: NDArray[np.float32]) -> NDArray[np.float64]:
        """Expected cycles, float64 [n], finite and above 0, for features of the width that it was trained with; n > 0."""
        ...

    def save(self) -> bytes:
        """All that `load` needs.  No pickle: the bytes come back from files."""
        ...

    @classmethod
    def load(cls, data: bytes) -> Self:
        """What `save` gave."""
        ...


Conditions = Mapping[str, NDArray[np.float32]]  # level -> [C]


def conditions_of(target_graph: TargetGraph, levels: Sequence[str]) -> dict[str, NDArray[np.float32]]:
    """Of levels of a unit's machine."""
    return {level: condition_of(target_graph.machine, target_graph.dtype, level) for level in levels}


@dataclass(frozen=True, eq=False)
class AtLevel:
    """A `Predictor`: a model under one condition (`compiler.cost.context.condition_of`)."""

    model: Predictor
    condition: NDArray[np.float32]

    def predict(self, features: NDArray[np.float32]) -> NDArray[np.float64]:
        return self.model.predict(under(features, self.condition))


def predict_at(models: Sequence[Predictor], features: NDArray[np.float32]) -> NDArray[np.float64]:
    """float64 [n, models] of features float32 [n, F]: what each of them predicts.

    One model under several conditions is asked once: for few rows most of an answer's time is that of asking.
    """
    out = np.empty((len(features), len(models)))
    conditions: dict[int, list[tuple[int, AtLevel]]] = {}
    for k, model in enumerate(models):
        if isinstance(model, AtLevel):
            conditions.setdefault(id(model.model), []).append((k, model))
        else:
            out[:, k] = model.predict(features)
    for alike in conditions.values():
        rows = np.concatenate([under(features, each.condition) for _, each in alike])
        out[:, [k for k, _ in alike]] = alike[0][1].model.predict(rows).reshape(len(alike), -1).T
    return out


def find_cost_model(name: str) -> type[CostModel]:
    """Raises `BadInputError`."""
    model: type[CostModel] = find(COST_MODELS, name).object
    return model
