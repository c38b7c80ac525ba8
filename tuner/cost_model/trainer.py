"""The cost models of a run, in the driver: when to train, every version kept, and who is in use after each training.

A run may begin with a model from elsewhere, its prior (`begin`): the first in use, and judged with every training, as the estimate is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, NamedTuple

from tuner.config import ModelSettings
from tuner.cost_model.messages import Proposer, describe_judgement
from tuner.cost_model.model_file import SUFFIX, KeptModel, Models, Trained, TrainedModel, load_trained
from tuner.platform.files import AnyPath
from tuner.runs.folder import write_json

PRIOR = f"prior{SUFFIX}"
HISTORY = "history.json"


class Judged(NamedTuple):
    """Of a training after so many segments: who says from then on what is measured, and whose share of pairs was in the right order."""

    segments: int
    chosen: Proposer
    pairs: Mapping[Proposer, float]


class Trainer:
    """Due when measured segments have grown by `growth` since the last time; the first time after `min_rows`.

    By growth, because what another hundred of them teach falls and what a training takes rises with how many there are.

    measured: segments so far that have results: a board that has gone leaves none.  models: in use after each training that is done, the
    prior first where there is one.
    """

    def __init__(self, folder: AnyPath, settings: ModelSettings) -> None:
        self.folder, self.settings = folder, settings
        self.measured = self.trained_at = 0
        self.asked_at: list[int] = []  # segments measured when each training was asked for; of a prior 0
        self.tasks: list[int] = []  # that had their place then: what each learns from
        self.models: list[Models] = []
        self.files: list[str | None] = []  # of `models`; None for the estimate
        self.history: list[dict[str, object]] = []
        self.judged: list[Judged] = []
        self.prior: TrainedModel | None = None

    def begin(self, prior: KeptModel) -> None:
        """With the copy of a model that is in the folder (`PRIOR`)."""
        self.prior = prior.model
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
        """Keep what the next training in order made; returns lines for a person."""
        segments = self.asked_at[len(self.models)]
        name = f"{segments:07d}{SUFFIX}"
        trained.candidate.save(self.folder / name, self.settings.name)
        promoted = trained.chosen == "new"
        metrics = trained.candidate.metrics
        self.history += [{"file": name, "level": level, "promoted": promoted, **asdict(m)} for level, m in metrics.items()]
        files = {"estimate": None, "prior": PRIOR, "older": self.files[-1] if self.files else None, "new": name}
        self.models.append(trained.models)
        self.files.append(files[trained.chosen])
        self.judged.append(Judged(segments, trained.chosen, {who: round(pairs, 4) for who, pairs in trained.pairs.items()}))
        write_json(self.folder / HISTORY, self.history)
        return ["cost model " + describe_judgement(*self.judged[-1])]

    def state(self) -> dict[str, Any]:
        """As JSON; trainings that are not done are asked for again."""
        return {
            "measured": self.measured,
            "trained_at": self.trained_at,
            "asked_at": self.asked_at,
            "tasks": self.tasks,
            "files": self.files,
            "history": self.history,
            "judged": [each._asdict() for each in self.judged],
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        self.measured, self.trained_at = int(state["measured"]), int(state["trained_at"])
        self.tasks = list(state["tasks"])
        self.asked_at, self.files, self.history = list(state["asked_at"]), list(state["files"]), list(state["history"])
        self.judged = [Judged(**each) for each in state["judged"]]
        kept: dict[str, TrainedModel] = {}
        for name in dict.fromkeys(name for name in self.files if name is not None):
            kept[name] = load_trained(self.folder / name).model
        self.prior = kept.get(PRIOR)
        self.models = [() if name is None else (kept[name],) for name in self.files]
