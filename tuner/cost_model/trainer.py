"""Cost models of a run, in the driver: times of training, stored versions, and the model in use after each training.

A run may start with a model from elsewhere, its prior (`begin`): the first in use, and judged with every training, as the estimate is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, NamedTuple

from tuner.config import ModelSettings
from tuner.cost_model.messages import Proposer, describe_judgement
from tuner.cost_model.model_file import SUFFIX, Models, StoredModel, TrainedModel, TrainingOutcome, load_trained
from tuner.platform.files import AnyPath
from tuner.runs.folder import write_json

PRIOR = f"prior{SUFFIX}"
HISTORY = "history.json"


class Judgement(NamedTuple):
    """Judgement after `segments` segments: the chosen proposer, and the share of pairs in the right order for each."""

    segments: int
    chosen: Proposer
    pairs: Mapping[Proposer, float]


class Trainer:
    """Schedule of trainings: due when the measured segments have grown by `growth` since the last; the first time after `min_rows`.

    The growth is relative, because the benefit of another hundred segments falls and the cost of a training rises with their number.

    measured: segments with results so far; lost boards do not count.  models: model in use after each finished training; the initial model
    comes first, if there is one.
    """

    def __init__(self, folder: AnyPath, settings: ModelSettings) -> None:
        self.folder, self.settings = folder, settings
        self.measured = self.trained_at = 0
        self.requested_at: list[int] = []  # measured segments at the request of each training; of a prior 0
        self.tasks: list[int] = []  # committed tasks at that time: the training rows of each
        self.models: list[Models] = []
        self.files: list[str | None] = []  # file of each entry of `models`; None for the estimate
        self.history: list[dict[str, object]] = []
        self.judged: list[Judgement] = []
        self.prior: TrainedModel | None = None

    def begin(self, prior: StoredModel) -> None:
        """Start with the copy of a model in the folder (`PRIOR`)."""
        self.prior = prior.model
        self.requested_at, self.tasks, self.models, self.files = [0], [0], [(prior.model,)], [PRIOR]

    def due(self, tasks: int) -> bool:
        """Whether to train now.  Called when the measured tasks are fixed, which are then trained on.  tasks: number of committed tasks."""
        if self.measured < max(self.settings.min_rows, (1 + self.settings.growth) * self.trained_at):
            return False
        self.trained_at = self.measured
        self.requested_at.append(self.measured)
        self.tasks.append(tasks)
        return True

    def finished(self, trained: TrainingOutcome) -> list[str]:
        """Store the result of the next training in order; returns lines for a person."""
        segments = self.requested_at[len(self.models)]
        name = f"{segments:07d}{SUFFIX}"
        trained.candidate.save(self.folder / name, self.settings.name)
        promoted = trained.chosen == "new"
        metrics = trained.candidate.metrics
        self.history += [{"file": name, "level": level, "promoted": promoted, **asdict(m)} for level, m in metrics.items()]
        files = {"estimate": None, "prior": PRIOR, "older": self.files[-1] if self.files else None, "new": name}
        self.models.append(trained.models)
        self.files.append(files[trained.chosen])
        self.judged.append(Judgement(segments, trained.chosen, {proposer: round(pairs, 4) for proposer, pairs in trained.pairs.items()}))
        write_json(self.folder / HISTORY, self.history)
        return ["cost model " + describe_judgement(*self.judged[-1])]

    def state(self) -> dict[str, Any]:
        """State as JSON; unfinished trainings are requested again."""
        return {
            "measured": self.measured,
            "trained_at": self.trained_at,
            "asked_at": self.requested_at,
            "tasks": self.tasks,
            "files": self.files,
            "history": self.history,
            "judged": [judgement._asdict() for judgement in self.judged],
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        self.measured, self.trained_at = int(state["measured"]), int(state["trained_at"])
        self.tasks = list(state["tasks"])
        self.requested_at, self.files, self.history = list(state["asked_at"]), list(state["files"]), list(state["history"])
        self.judged = [Judgement(**row) for row in state["judged"]]
        loaded: dict[str, TrainedModel] = {}
        for name in dict.fromkeys(name for name in self.files if name is not None):
            loaded[name] = load_trained(self.folder / name).model
        self.prior = loaded.get(PRIOR)
        self.models = [() if name is None else (loaded[name],) for name in self.files]
