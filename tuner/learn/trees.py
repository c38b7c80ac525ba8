"""Gradient boosting of what an estimate is off by, in octaves: the cost model that comes along.

What trees see, and the estimate that they correct, is `compiler.cost.features.seen`: a model that learns cycles themselves spends its
first trees on how large segments are (docs/decisions.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np
import xgboost as xgb
from numpy.typing import NDArray

from compiler.cost.features import seen
from simulator.npu.level import Level
from tuner.config import ModelSettings
from tuner.learn.cost_model import TrainingRows

BINS = 64  # of a column: few hundred rows fill no more, and a search waits for trainings


@dataclass(frozen=True, eq=False)
class BoostedTrees:
    """level: that it was trained for.  raw: the trees in XGBoost's own format (UBJSON)."""

    version: ClassVar[str] = "2"
    booster: xgb.Booster
    raw: bytes
    level: Level

    @classmethod
    def train(cls, rows: TrainingRows, level: Level, seed: int, settings: ModelSettings) -> Self:
        columns, expected = seen(rows.features, level)
        off = np.log2(rows.cycles / expected)
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
            "base_score": float(off.mean()),
            "seed": seed % 2**31,
            "nthread": 1,  # more threads add in another order
            "verbosity": 0,
        }
        matrix = xgb.QuantileDMatrix(columns, label=off, max_bin=BINS, nthread=1)
        booster = xgb.train(parameters, matrix, num_boost_round=settings.rounds)
        return cls(booster, bytes(booster.save_raw("ubj")), level)

    def predict(self, features: NDArray[np.float32]) -> NDArray[np.float64]:
        columns, expected = seen(features, self.level)
        off = self.booster.inplace_predict(np.ascontiguousarray(columns), missing=np.nan)
        return expected * np.exp2(np.asarray(off, np.float64))

    def save(self) -> bytes:
        return self.raw

    @classmethod
    def load(cls, data: bytes, level: Level) -> Self:
        booster = xgb.Booster({"nthread": 1})
        booster.load_model(bytearray(data))
        return cls(booster, data, level)
