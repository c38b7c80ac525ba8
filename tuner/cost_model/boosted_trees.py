"""Built-in cost model: gradient boosting of an estimate's error, in octaves.

The columns of the trees, and the corrected estimate, are `compiler.cost.features.model_input`: a model of the cycles themselves spends its
first trees on the size of segments (docs/decisions.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np
import xgboost as xgb
from numpy.typing import NDArray

from compiler.cost.features import model_input
from tuner.config import ModelSettings, Range
from tuner.cost_model.interface import TrainingRows

BINS = 64  # bins of a column: enough for a few hundred rows, and a search waits for trainings


@dataclass(frozen=True, eq=False)
class BoostedTrees:
    """Gradient-boosted trees.  raw: model in XGBoost's own format (UBJSON)."""

    version: ClassVar[str] = "3"
    ranges: ClassVar[Mapping[str, Range]] = {  # ranges of settings for `tilefarm train --trials`
        "rounds": Range(low=100, high=800, log=True),
        "max_depth": Range(low=3, high=8),
        "learning_rate": Range(low=0.03, high=0.3, log=True),
        "subsample": Range(low=0.5, high=1.0),
        "column_sample": Range(low=0.2, high=1.0),
        "min_child_weight": Range(low=1.0, high=32.0, log=True),
        "l2": Range(low=0.1, high=32.0, log=True),
    }
    booster: xgb.Booster
    raw: bytes

    @classmethod
    def train(cls, rows: TrainingRows, seed: int, settings: ModelSettings) -> Self:
        columns, expected = model_input(rows.features)
        error_octaves = np.log2(rows.cycles / expected)
        parameters = {
            "objective": "reg:squarederror",
            "tree_method": "hist",
            "max_bin": BINS,
            "max_depth": settings.max_depth,
            "learning_rate": settings.learning_rate,
            "subsample": settings.subsample,
            "colsample_bytree": settings.column_sample,
            "min_child_weight": settings.min_child_weight,
            "lambda": settings.l2,
            "base_score": float(error_octaves.mean()),
            "seed": seed % 2**31,
            "nthread": 1,  # several threads would change the order of sums
            "verbosity": 0,
        }
        matrix = xgb.QuantileDMatrix(columns, label=error_octaves, max_bin=BINS, nthread=1)
        booster = xgb.train(parameters, matrix, num_boost_round=settings.rounds)
        return cls(booster, bytes(booster.save_raw("ubj")))

    def predict(self, features: NDArray[np.float32]) -> NDArray[np.float64]:
        columns, expected = model_input(features)
        error_octaves = self.booster.inplace_predict(np.ascontiguousarray(columns), missing=np.nan)
        return expected * np.exp2(np.asarray(error_octaves, np.float64))

    def save(self) -> bytes:
        return self.raw

    @classmethod
    def load(cls, data: bytes) -> Self:
        booster = xgb.Booster({"nthread": 1})
        booster.load_model(bytearray(data))
        return cls(booster, data)
