"""Trained models on their way: from whoever trained them to the driver, which keeps them, and to whoever predicts."""

from __future__ import annotations

from typing import NamedTuple

from compiler.cost.features import FEATURES
from tuner.learn.cost_model import CostModel, cost_model_from


class TrainedModel(NamedTuple):
    """One level's model without its trees in memory; promoted: whether it replaces the older one."""

    raw: bytes
    judge: bytes
    share: float
    trained_rows: int
    left_out: int
    metrics: dict[str, object]
    promoted: bool

    def load(self) -> CostModel:
        return cost_model_from(self.raw, self.judge, self.share, len(FEATURES), self.trained_rows, self.left_out, self.metrics)


Models = tuple[TrainedModel | None, ...]  # those in use, by level


class Trained(NamedTuple):
    """Of a training: what was trained, and what is in use after it."""

    candidates: tuple[TrainedModel, ...]
    models: Models
