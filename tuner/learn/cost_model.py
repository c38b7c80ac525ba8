"""What a cost model is: features of segments to cycles at one level of contention, whoever wrote it.

| name     | dtype          | meaning                                                      |
|----------|----------------|--------------------------------------------------------------|
| features | float32 [n, F] | one row per task, columns in the order of the feature set    |
| cycles   | float64 [n]    | measured run times                                           |
| groups   | [n]            | workload of each row                                         |

A model learns and predicts; which rows it is judged by, whether it is used, and how it is kept is the same for every model
(`tuner.learn.promotion`, `tuner.learn.trained`).
"""

from __future__ import annotations

from typing import ClassVar, NamedTuple, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from simulator.npu.level import Level
from tuner.config import ModelSettings
from tuner.plugins import COST_MODELS, find


class TrainingRows(NamedTuple):
    """What a model learns from: finite features, cycles above 0.  `left_out` counts rows that could not be used."""

    features: NDArray[np.float32]
    cycles: NDArray[np.float64]
    groups: NDArray[np.str_]
    left_out: int = 0


class Predictor(Protocol):
    """What a search needs of a model."""

    def predict(self, features: NDArray[np.float32]) -> NDArray[np.float64]: ...


class CostModel(Protocol):
    """Of one level.  Plain functions of their arguments: the same rows, level, seed and settings give a model of the same bytes.

    version: of the class, part of a run's identity.  level: its share of the DDR bandwidth and the latency that it adds.
    """

    version: ClassVar[str]

    @classmethod
    def train(cls, rows: TrainingRows, level: Level, seed: int, settings: ModelSettings) -> Self:
        """rows: two at least.  settings: the section `model` of the configuration, of which a model takes what it knows."""
        ...

    def predict(self, features: NDArray[np.float32]) -> NDArray[np.float64]:
        """Expected cycles, float64 [n], finite and above 0, for features float32 [n, F] of the width that it was trained with; n > 0."""
        ...

    def save(self) -> bytes:
        """All that `load` needs.  No pickle: the bytes come back from files."""
        ...

    @classmethod
    def load(cls, data: bytes, level: Level) -> Self:
        """What `save` gave, for the level that it was trained for."""
        ...


def find_cost_model(name: str) -> type[CostModel]:
    """Raises `BadInputError`."""
    model: type[CostModel] = find(COST_MODELS, name).object
    return model
