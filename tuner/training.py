"""The cost model of a run: trained from its own Parquet log, one model per level, promoted only when better, every version kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

import simulator
from compiler.tile.features import FEATURE_SET, FEATURES
from tuner.config import Model as ModelParams
from tuner.cost_model import CostModel, Rows, load_cost_model, retrain, rows_from_log
from tuner.log import RunLog, read_log, read_tasks
from tuner.runfolder import write_json
from tuner.search.search import Search


class Trainer:
    """Retrains when `retrain_every` more segments were measured since the last time; the first time after `min_rows`."""

    def __init__(self, folder: Path, run: Path, levels: Sequence[str], params: ModelParams, seed: int) -> None:
        self.folder, self.run, self.levels, self.params, self.seed = folder, run, tuple(levels), params, seed
        self.trained_at = 0
        self.files: list[str | None] = [None] * len(self.levels)
        self.history: list[dict[str, object]] = []

    def due(self, search: Search) -> bool:
        if self.trained_at == 0:
            return search.measured_segments >= self.params.min_rows
        return search.measured_segments - self.trained_at >= self.params.retrain_every

    def train(self, search: Search, log: RunLog, before: int) -> list[str]:
        """Retrain from rows with seq < `before`, so that what a killed session measured beyond its checkpoint changes nothing.

        Returns a line per level for a person.
        """
        log.flush()
        rows, tasks = read_log(self.run), read_tasks(self.run)
        rows = rows[(rows["seq"] < before) & (rows["run"].astype("str") == log.origin.run)]
        self.trained_at = search.measured_segments
        lines = []
        for at, level in enumerate(self.levels):
            parts = [rows_from_log(tasks, rows, kind, level, simulator.VERSION, FEATURE_SET, FEATURES) for kind in ("operator", "segment")]
            data = Rows(
                np.concatenate([p.features for p in parts]),
                np.concatenate([p.cycles for p in parts]),
                np.concatenate([p.groups for p in parts]),
                sum(p.left_out for p in parts),
            )
            result = retrain(data, self.seed, self.params, search.models[at])
            name = f"{level}-{self.trained_at:07d}.ubj"
            result.candidate.save(self.folder / name)
            metrics = result.candidate.metrics
            self.history.append({"file": name, "level": level, "promoted": result.promoted, **asdict(metrics)})
            if result.promoted:
                self.files[at], search.models[at] = name, result.model
            verdict = "promoted" if result.promoted else "kept the older one"
            lines.append(f"cost model {level}: pairs {metrics.pair_accuracy:.1%}, rms {metrics.log2_error:.3f} octaves, {verdict}")
        write_json(self.folder / "history.json", self.history)
        return lines

    def state(self) -> dict[str, Any]:
        return {"trained_at": self.trained_at, "files": self.files, "history": self.history}

    def restore(self, state: Mapping[str, Any], search: Search) -> None:
        self.trained_at = int(state["trained_at"])
        self.files = list(state["files"])
        self.history = list(state["history"])
        models: list[CostModel | None] = [None if name is None else load_cost_model(self.folder / name) for name in self.files]
        search.models = models
