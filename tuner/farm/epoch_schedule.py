"""Schedule of jobs: epochs overlap with a fixed lag, without barriers.

Job (e, s) is shard s of epoch e.  It depends on the findings of all epochs up to e - 1 - behind, where `behind` is 1, or 0 for a search
without a lag.  Results are committed in the order (epoch, shard).  So no job waits for the slowest one of its own epoch, and the input of a
job does not depend on the speed of workers.  Only the first epochs have barriers, because all later jobs need the first segments.

A model trained on the first v sets of findings is used from a fixed epoch on, late enough that the training has the time of an epoch.  The
remaining budget of a job is counted from the findings that it depends on.  That too is independent of the speed of workers, and never
less than what really remains; the ledger counts exactly.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from tuner.farm.jobs import Job, JobResult, Training
from tuner.search.epoch import EVOLVING, FIRST

BEGAN = 1  # findings that a run begins with count as one set before epoch 0


class Due(NamedTuple):
    """A job that may run."""

    key: tuple[int, int]
    job: Job


class EpochSchedule:
    """Schedule of one run.  shards: jobs of an epoch, but the first.  frontier: (epoch, shard) of the next commit.

    current: committed findings of the frontier's epoch.  trainings: number of complete epochs -> number of the model trained on them.
    trained: number of trained models.  programs, readings: measured up to each complete epoch.
    """

    def __init__(self, shards: int, behind: int = 1) -> None:
        self.shards, self.behind = shards, behind
        self.frontier = (FIRST, 0)
        self.current: list[bytes] = []
        self.trainings: dict[int, int] = {}
        self.trained = 0
        self.programs, self.readings = [0], [0]
        self._next = self.frontier  # first job that was never started
        self._repeated: list[tuple[int, int]] = []
        self.waiting: dict[tuple[int, int], JobResult] = {}
        self._unlimited: set[tuple[int, int]] = set()

    @property
    def complete(self) -> int:
        """Epochs that are committed."""
        return self.frontier[0]

    @property
    def most_jobs(self) -> int:
        """Most jobs that run at a time."""
        return self.shards * (1 + self.behind)

    @property
    def awaits_model(self) -> bool:
        """Whether the next job waits for a training."""
        return self.models_of(self._next[0]) > self.trained

    def version_of(self, epoch: int) -> int:
        """Epochs that a job depends on: 0 .. version - 1."""
        return min(epoch, max(EVOLVING, epoch - self.behind))

    def in_use_from(self, version: int) -> int:
        """First epoch that predicts by the models of version `version`."""
        return version + 1 if version <= EVOLVING else version + 1 + self.behind

    def next(self, programs: int | None, seconds: float | None, readings: int | None = None) -> Due | None:
        """Earliest job that may start; None if all wait.  programs, readings: budget of the whole run.  seconds: remaining time."""
        key = self._repeated.pop(0) if self._repeated else self._next
        epoch = key[0]
        version, models = self.version_of(epoch), self.models_of(epoch)
        if version > self.complete or models > self.trained:
            return None
        if key == self._next:
            self._next = self._after(key)
        has_limit = key not in self._unlimited
        return Due(
            key,
            Job(
                *key,
                BEGAN + version,
                models,
                None if programs is None or not has_limit else max(0, programs - self.programs[version]),
                None if epoch == FIRST else seconds,  # a run always measures one program
                readings=None if readings is None or not has_limit else max(0, readings - self.readings[version]),
            ),
        )

    def _after(self, key: tuple[int, int]) -> tuple[int, int]:
        epoch, shard = key
        return (epoch, shard + 1) if epoch != FIRST and shard + 1 < self.shards else (epoch + 1, 0)

    def models_of(self, epoch: int) -> int:
        """Number of the models that an epoch predicts by."""
        return max((number for version, number in self.trainings.items() if self.in_use_from(version) <= epoch), default=0)

    def train(self) -> None:
        """From the epochs that are complete now."""
        self.trainings[self.complete] = len(self.trainings) + 1

    def begin_trained(self) -> None:
        """Begin with a trained model from elsewhere: number 1, after 0 epochs."""
        self.trainings[FIRST], self.trained = 1, 1

    def next_training(self) -> Training | None:
        """Training that may run now; trainings run in sequence.  None without one."""
        for epochs, number in self.trainings.items():
            if number == self.trained + 1:
                return Training(number, BEGAN + epochs, self.trained)
        return None

    def received(self, key: tuple[int, int], result: JobResult) -> None:
        self.waiting[key] = result

    def to_commit(self) -> JobResult | None:
        """Result that is next in order, if it was received."""
        return self.waiting.get(self.frontier)

    def again(self) -> None:
        """Repeat a job that stopped early without its limit, because tasks that it counted had been measured by others."""
        self._unlimited.add(self.frontier)
        self.otherwise()

    def otherwise(self) -> None:
        """Repeat the next job in order, with the log's answers."""
        del self.waiting[self.frontier]
        self._repeated.append(self.frontier)

    def committed(self, programs: int, readings: int = 0) -> list[bytes] | None:
        """Moves the frontier on.  Returns the findings of an epoch that is complete now.  programs, readings: measured until now."""
        result = self.waiting.pop(self.frontier)
        self.current.append(result.findings)
        complete, self.frontier = self.complete, self._after(self.frontier)
        if self.complete == complete:
            return None
        self.programs.append(programs)
        self.readings.append(readings)
        findings, self.current = self.current, []
        return findings

    # checkpoint

    def state(self) -> dict[str, Any]:
        """State as JSON, without the findings (`tuner.runs.checkpoint`)."""
        return {
            "frontier": list(self.frontier),
            "trainings": sorted(self.trainings.items()),
            "programs": self.programs,
            "readings": self.readings,
        }

    def restore(self, state: Mapping[str, Any], findings: Sequence[bytes], models: int) -> list[list[bytes]]:
        """Restore a state.  findings: all committed ones, in order; returns those of complete epochs.  models: number of trained ones."""
        epoch, _ = self.frontier = self._next = int(state["frontier"][0]), int(state["frontier"][1])
        self.trainings, self.trained = {int(version): int(number) for version, number in state["trainings"]}, models
        self.programs, self.readings = ([int(count) for count in state[name]] for name in ("programs", "readings"))
        every = iter(findings)
        epochs = [[next(every) for _ in range(1 if complete == FIRST else self.shards)] for complete in range(epoch)]
        self.current = list(every)
        return epochs
