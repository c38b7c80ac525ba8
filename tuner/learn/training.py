"""The cost models of a run, in the driver: when to train, every version kept, promoted only when better."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from tuner.config import ModelSettings
from tuner.learn.trained import SUFFIX, Models, Trained, TrainedModel, load_trained
from tuner.store.runfolder import write_json
from tuner.world.place import Place


class Trainer:
    """Due when measured segments have grown by `growth` since the last time; the first time after `min_rows`.

    By growth, because what another hundred of them teach falls and what a training takes rises with how many there are.

    measured: segments so far.  models: those in use after each training that is done.
    """

    def __init__(self, folder: Place, levels: Sequence[str], settings: ModelSettings) -> None:
        self.folder, self.levels, self.settings = folder, tuple(levels), settings
        self.measured = self.trained_at = 0
        self.asked_at: list[int] = []  # segments measured when each training was asked for
        self.models: list[Models] = []
        self.files: list[list[str | None]] = []  # of `models`
        self.history: list[dict[str, object]] = []

    def due(self) -> bool:
        """Whether to train now; to be asked where it is fixed what was measured, and then done."""
        if self.measured < max(self.settings.min_rows, (1 + self.settings.growth) * self.trained_at):
            return False
        self.trained_at = self.measured
        self.asked_at.append(self.measured)
        return True

    @property
    def in_use(self) -> Models:
        """Of the last training that is done."""
        return self.models[-1] if self.models else (None,) * len(self.levels)

    def finished(self, trained: Trained) -> list[str]:
        """Keep what the next training in order made; returns a line per level for a person."""
        at = self.asked_at[len(self.models)]
        files: list[str | None] = list(self.files[-1]) if self.files else [None for _ in self.levels]
        lines = []
        for i, (level, model, promoted) in enumerate(zip(self.levels, trained.candidates, trained.promoted, strict=True)):
            name = f"{level}-{at:07d}{SUFFIX}"
            model.save(self.folder / name, self.settings.name)
            self.history.append({"file": name, "level": level, "promoted": promoted, **asdict(model.metrics)})
            if promoted:
                files[i] = name
            verdict = "promoted" if promoted else "kept the older one"
            pairs, rms = model.metrics.pair_accuracy, model.metrics.log2_error
            lines.append(f"cost model {level}: pairs {pairs:.1%}, rms {rms:.3f} octaves, {verdict}")
        self.models.append(trained.models)
        self.files.append(files)
        write_json(self.folder / "history.json", self.history)
        return lines

    def state(self) -> dict[str, Any]:
        """As JSON; trainings that are not done are asked for again."""
        return {
            "measured": self.measured,
            "trained_at": self.trained_at,
            "asked_at": self.asked_at,
            "files": self.files,
            "history": self.history,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        self.measured, self.trained_at = int(state["measured"]), int(state["trained_at"])
        self.asked_at, self.files, self.history = list(state["asked_at"]), [list(row) for row in state["files"]], list(state["history"])
        kept: dict[str, TrainedModel] = {}
        for name in {name for row in self.files for name in row if name is not None}:
            kept[name] = load_trained(self.folder / name).model
        self.models = [tuple(None if name is None else kept[name] for name in row) for row in self.files]
