"""Search in virtual time: the real coordinator, schedule, pool and supervision run empty jobs of given durations."""

from __future__ import annotations

import heapq
import pickle
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from itertools import count
from math import inf
from types import MappingProxyType
from typing import Any, NamedTuple, cast

from tuner.cost_model.model_file import TrainedModel, TrainingOutcome
from tuner.cost_model.trainer import Trainer
from tuner.farm.actor_pool import ActorPool
from tuner.farm.commit_log import Ledger, Order, RunBudget
from tuner.farm.coordinator import TRAINING, Coordinator, Key
from tuner.farm.epoch_schedule import EpochSchedule
from tuner.farm.jobs import Job, JobResult, Training
from tuner.log.writer import Batch, RunLog
from tuner.platform.actors import Actor, Built, Done, Event, Message
from tuner.search.champions import Champions

TRAINED = TRAINING[0]  # in a key, in place of the epoch; behind it the number of a training

TICK_S = 1e-6  # who looks when something is due just now, looks again a little later, as on a clock


def job_key(job: Job | Training) -> Key:
    return (TRAINED, job.number) if isinstance(job, Training) else (job.epoch, job.shard)


def empty_result(job: Job | Training) -> JobResult | TrainingOutcome:
    if isinstance(job, Training):
        return TrainingOutcome(cast(TrainedModel, None), "new", {}, ())
    return JobResult(Batch(b"", b"", b"", 0), True, 0, 0.0)


class VirtualActors:
    """`Actors` and `Clock` in virtual time.

    seconds: duration of a job on an actor.  message_s: time of the driver for a message and its answer.  results: packed results of jobs;
    others are empty.  assignment: job -> its actor.
    """

    def __init__(
        self, count_: int, seconds: Callable[[Key, Actor], float], message_s: float, results: Mapping[Key, bytes] = MappingProxyType({})
    ) -> None:
        self.count = self.min_count = count_
        self.idle_s, self.now_s, self.assignment = inf, 0.0, dict[Key, Actor]()
        self._seconds, self._message_s, self._results, self._free_s = seconds, message_s, results, [0.0] * count_
        self._events, self._numbers = list[tuple[float, int, Event]](), count()

    def start(self, slot: int, actor: Actor) -> None:
        assert slot == actor, "no actor is lost"
        heapq.heappush(self._events, (0.0, next(self._numbers), Built(actor, "virtual")))

    def kill(self, actor: Actor) -> None:
        raise NotImplementedError(actor)

    def send(self, actor: Actor, message: Message) -> None:
        self.now_s += self._message_s
        job = pickle.loads(message.packed).job
        self.assignment[job_key(job)] = actor
        self._free_s[actor] = max(self.now_s, self._free_s[actor]) + self._seconds(job_key(job), actor)
        result = self._results.get(job_key(job)) or pickle.dumps(empty_result(job))
        heapq.heappush(self._events, (self._free_s[actor], next(self._numbers), Done(actor, message.job, result)))

    def share(self, value: Any) -> Any:
        return value

    def events(self, patience_s: float) -> list[Event]:
        next_s = self._events[0][0] if self._events else float("inf")
        self.now_s = max(self.now_s, min(next_s, self.now_s + max(patience_s, TICK_S)))
        events = []
        while self._events and self._events[0][0] <= self.now_s:
            events.append(heapq.heappop(self._events)[2])
        return events

    def close(self) -> None: ...

    def monotonic_s(self) -> float:
        return self.now_s

    def epoch_us(self) -> int:
        return round(self.now_s * 1e6)

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


class CountingLedger(Ledger):
    """Ledger with a budget of jobs."""

    def __init__(self, jobs: int) -> None:
        super().__init__((), cast(RunLog, None), Champions(0), RunBudget())
        self._jobs = jobs

    @property
    def spent(self) -> bool:
        return len(self.tasks) == self._jobs

    def commit(self, result: JobResult, epoch: int) -> Order:
        del result, epoch
        self.tasks.add(str(len(self.tasks)))
        return "here"


@dataclass
class PlannedTrainer:
    """`Trainer` with trainings after given numbers of epochs."""

    schedule: EpochSchedule
    epochs: Collection[int]
    prior: None = None
    measured: int = 0
    models: list[tuple[()]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.tasks = [0] * (self.schedule.trained + len(self.epochs))
        self.models = [()] * self.schedule.trained

    def due(self, tasks: int) -> bool:
        del tasks
        return self.schedule.complete in self.epochs

    def finished(self, outcome: TrainingOutcome) -> list[str]:
        del outcome
        return []


class Played(NamedTuple):
    """Search in virtual time.  commits_s: times of the commits, from the start on.  assignment: job -> its actor."""

    commits_s: list[float]
    assignment: dict[Key, Actor]


def play(
    schedule: EpochSchedule,
    jobs: int,
    workers: int,
    seconds: Callable[[Key, Actor], float],
    trainings: Collection[int] = (),
    message_s: float = 0.0,
    commit_s: float = 0.0,
) -> Played:
    """Play a number of jobs.  trainings: numbers of complete epochs, each followed by a training.  message_s, commit_s: time of the driver
    for a message and a commit.
    """
    actors, commits_s = VirtualActors(workers, seconds, message_s), list[float]()

    def committed(findings: bytes) -> None:
        del findings
        actors.now_s += commit_s
        commits_s.append(actors.now_s)

    pool, trainer = ActorPool(actors, actors, lambda _: None, None), cast(Trainer, PlannedTrainer(schedule, trainings))
    driver = Coordinator(pool, schedule, CountingLedger(jobs), trainer, committed, rows=lambda _: b"")
    driver.begin(())
    driver.run()
    return Played(commits_s, actors.assignment)
