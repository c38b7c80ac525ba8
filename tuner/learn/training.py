"""The cost models of a run, in the driver: when to train, every version kept, promoted only when better.

A run may begin with a model from elsewhere, its prior (`begin`): the first in use, and what the first training has to beat.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from tuner.config import ModelSettings
from tuner.learn.trained import SUFFIX, KeptModel, Models, Trained, TrainedModel, load_trained
from tuner.store.runfolder import write_json
from tuner.world.place import Place

PRIOR = f"prior{SUFFIX}"
HISTORY = "history.json"


class Trainer:
    """Due when measured segments have grown by `growth` since the last time; the first time after `min_rows`.

    By growth, because what another hundred of them teach falls and what a training takes rises with how many there are.

    measured: segments so far.  models: in use after each training that is done, the prior first where there is one.
    """

    def __init__(self, folder: Place, settings: ModelSettings) -> None:
        self.folder, self.settings = folder, settings
        self.measured = self.trained_at = 0
        self.asked_at: list[int] = []  # segments measured when each training was asked for; of a prior 0
        self.tasks: list[int] = []  # that had their place then: what each learns from
        self.models: list[Models] = []
        self.files: list[str | None] = []  # of `models`
        self.history: list[dict[str, object]] = []

    def begin(self, prior: KeptModel) -> None:
        """With the copy of a model that is in the folder (`PRIOR`)."""
        self.asked_at, self.tasks, self.models, self.files = [0], [0], [(prior.model,)], [PRIOR]

    def due(self, tasks: int) -> bool:
        """Whether to train now; to be asked where it is fixed what was measured, and then done.  tasks: that have their place."""
        if self.measured < max(self.settings.min_rows, (1 + self.settings.growth) * self.trained_at):
            return False
        self.trained_at = self.measured
        self.asked_at.append(self.measured)
        self.tasks.append(tasks)
        return True

    def finished(self, trained: Trained) -> list[str]:
        """Keep what the next training in order made; returns a line per level for a person."""
        name = f"{self.asked_at[len(self.models)]:07d}{SUFFIX}"
        trained.candidate.save(self.folder / name, self.settings.name)
        metrics = trained.candidate.metrics
        self.history += [{"file": name, "level": level, "promoted": trained.promoted, **asdict(m)} for level, m in metrics.items()]
        self.models.append(trained.models)
        self.files.append(name if trained.promoted else self.files[-1] if self.files else None)
        write_json(self.folder / HISTORY, self.history)
        verdict = "promoted" if trained.promoted else "kept the older one"
        return [
            f"cost model {level}: pairs {m.pair_accuracy:.1%}, rms {m.log2_error:.3f} octaves, {verdict}" for level, m in metrics.items()
        ]

    def state(self) -> dict[str, Any]:
        """As JSON; trainings that are not done are asked for again."""
        return {
            "measured": self.measured,
            "trained_at": self.trained_at,
            "asked_at": self.asked_at,
            "tasks": self.tasks,
            "files": self.files,
            "history": self.history,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        self.measured, self.trained_at = int(state["measured"]), int(state["trained_at"])
        self.tasks = list(state["tasks"])
        self.asked_at, self.files, self.history = list(state["asked_at"]), list(state["files"]), list(state["history"])
        kept: dict[str, TrainedModel] = {}
        for name in dict.fromkeys(name for name in self.files if name is not None):
            kept[name] = load_trained(self.folder / name).model
        self.models = [() if name is None else (kept[name],) for name in self.files]
