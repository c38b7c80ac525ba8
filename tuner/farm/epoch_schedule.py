"""Schedule of jobs: epochs of islands overlap with a fixed lag, without barriers.

Job (e, i) is epoch e of island i.  It depends on its island's findings up to epoch e - 1, and on all islands' findings up to e - 1 - LAG.
Results are committed in the order (epoch, island).  So no island waits for the slowest of its own epoch, and the input of a job does not
depend on the speed of workers.  Only the first epochs have barriers, because all islands need the first segments.

A model trained on the first v sets of findings is used from a fixed epoch on, late enough that the training has the time of an epoch.  The
remaining budget of a job is counted from the findings that it depends on.  That too is independent of the speed of workers, and never
less than what really remains; the ledger counts exactly.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from tuner.farm.jobs import EpochResult, Job, Training
from tuner.search.epoch import EVOLVING, FIRST, LAG


def version_of(epoch: int) -> int:
    """Epochs that a job builds on, of all islands: 0 .. version - 1."""
    return min(epoch, max(EVOLVING, epoch - LAG))


def in_use_from(version: int) -> int:
    """First epoch that predicts by the models of version `version`."""
    return version + 1 if version <= EVOLVING else version + 1 + LAG


BEGAN = 1  # findings that a run begins with count as one set before epoch 0


class Due(NamedTuple):
    """A job that may run."""

    key: tuple[int, int]
    job: Job


class EpochSchedule:
    """Schedule of one run.  frontier: (epoch, island) of the next commit.  states: committed states of the islands.

    current: committed findings of the frontier's epoch.  trainings: number of complete epochs -> number of the model trained on them.
    trained: number of trained models.  programs, readings: measured up to each complete epoch.
    """

    def __init__(self, states: Sequence[bytes]) -> None:
        self.islands = len(states)
        self.states = list(states)
        self.frontier = (FIRST, 0)
        self.current: list[bytes] = []
        self.trainings: dict[int, int] = {}
        self.trained = 0
        self.programs, self.readings = [0], [0]
        self._ahead = list(states)  # states of the islands as received
        self._own = [list[bytes]() for _ in states]  # findings of the islands' last epochs, as many as a job may need
        self._next = [FIRST] + [FIRST + 1] * (self.islands - 1)
        self._running: set[tuple[int, int]] = set()
        self.waiting: dict[tuple[int, int], EpochResult] = {}
        self._unlimited: set[tuple[int, int]] = set()
        self._stale: set[tuple[int, int]] = set()  # running jobs that depend on a job that is repeated

    @property
    def complete(self) -> int:
        """Epochs that are committed."""
        return self.frontier[0]

    def width(self, epoch: int) -> int:
        """Islands of an epoch."""
        return 1 if epoch == FIRST else self.islands

    def next(self, programs: int | None, seconds: float | None, readings: int | None = None) -> Due | None:
        """Earliest job that may start; None if all wait.  programs, readings: budget of the whole run.  seconds: remaining time."""
        ready = [(epoch, island) for island, epoch in enumerate(self._next) if self._may(epoch, island)]
        if not ready:
            return None
        epoch, island = key = min(ready)
        self._running.add(key)
        version = version_of(epoch)
        limited = key not in self._unlimited
        return Due(
            key,
            Job(
                epoch,
                island,
                BEGAN + version,
                self.models_of(epoch),
                self._ahead[island],
                tuple(self._own[island][version - epoch :]) if epoch > version else (),
                None if programs is None or not limited else max(0, programs - self.programs[version]),
                None if epoch == FIRST else seconds,  # a run always measures one program
                readings=None if readings is None or not limited else max(0, readings - self.readings[version]),
            ),
        )

    def _may(self, epoch: int, island: int) -> bool:
        key = (epoch, island)
        if key in self._running or key in self.waiting:
            return False
        return version_of(epoch) <= self.complete and self.models_of(epoch) <= self.trained

    def models_of(self, epoch: int) -> int:
        """Number of the models that an epoch predicts by."""
        return max((number for version, number in self.trainings.items() if in_use_from(version) <= epoch), default=0)

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

    def received(self, key: tuple[int, int], result: EpochResult) -> bool:
        """Receive a result; its island may continue, other islands once it is committed.  False if it depends on a repeated job: it is
        repeated too."""
        epoch, island = key
        self._running.discard(key)
        if key in self._stale:
            self._stale.discard(key)
            return False
        self.waiting[key] = result
        if result.complete:
            self._ahead[island], self._next[island] = result.state, epoch + 1
            self._own[island] = [*self._own[island], result.findings][-2 * LAG - 1 :]  # needed, or dropped by a repeat
        return True

    def to_commit(self) -> EpochResult | None:
        """Result that is next in order, if it was received."""
        return self.waiting.get(self.frontier)

    def again(self) -> None:
        """Repeat a job that stopped early without its limit, because tasks that it counted had been measured by others."""
        del self.waiting[self.frontier]
        self._unlimited.add(self.frontier)

    def otherwise(self) -> list[EpochResult]:
        """Repeat the next job in order with the log's answers, and its island's later jobs.  Returns the dropped results of later jobs."""
        epoch, island = self.frontier
        first = self.waiting.pop(self.frontier)
        later = sorted(key for key in self.waiting if key[1] == island)
        dropped = [self.waiting.pop(key) for key in later]
        for result in (first, *dropped):
            if result.complete:
                self._own[island].pop()
        self._stale |= {key for key in self._running if key[1] == island}
        self._ahead[island], self._next[island] = self.states[island], epoch
        return dropped

    def committed(self, programs: int, readings: int = 0) -> list[bytes] | None:
        """Moves the frontier on.  Returns the findings of an epoch that is complete now.  programs, readings: measured until now."""
        (epoch, island), result = self.frontier, self.waiting.pop(self.frontier)
        self.states[island] = result.state
        self.current.append(result.findings)
        if island + 1 < self.width(epoch):
            self.frontier = (epoch, island + 1)
            return None
        self.frontier = (epoch + 1, 0)
        self.programs.append(programs)
        self.readings.append(readings)
        findings, self.current = self.current, []
        return findings

    # checkpoint

    def state(self) -> dict[str, Any]:
        """State as JSON, without the findings (`tuner.runs.checkpoint`)."""
        return {
            "frontier": list(self.frontier),
            "islands": [base64.b64encode(state).decode() for state in self.states],
            "trainings": sorted(self.trainings.items()),
            "programs": self.programs,
            "readings": self.readings,
        }

    def restore(self, state: Mapping[str, Any], findings: Sequence[bytes], trained: int) -> list[list[bytes]]:
        """Restore a state.  findings: all committed findings, in order.  Returns those of complete epochs."""
        self.frontier = epoch, island = int(state["frontier"][0]), int(state["frontier"][1])
        self.states = [base64.b64decode(text) for text in state["islands"]]
        self.trainings, self.trained = {int(version): int(number) for version, number in state["trainings"]}, trained
        self.programs, self.readings = ([int(count) for count in state[name]] for name in ("programs", "readings"))
        epochs: list[list[bytes]] = []
        offset = 0
        for complete_epoch in range(epoch):
            epochs.append(list(findings[offset : offset + self.width(complete_epoch)]))
            offset += self.width(complete_epoch)
        self.current = list(findings[offset:])
        self._ahead = list(self.states)
        self._next = [epoch + (i < island) for i in range(self.islands)]
        if epoch == FIRST:
            self._next[1:] = [FIRST + 1] * (self.islands - 1)
        every = [*epochs, self.current]
        self._own = [[every[e][i] for e in range(max(FIRST + 1, n - LAG), n)] for i, n in enumerate(self._next)]
        return epochs
