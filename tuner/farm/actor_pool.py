"""Jobs of a search on actors: a job runs without a round trip inside.

An actor keeps all findings that it has received; a job brings the missing ones.  `tuner.farm.supervision` decides on the jobs of lost
actors.

Messages to actors are jobs; or single items of a lost job, to find the item that crashes workers.
"""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from tuner.cost_model.model_file import TrainingOutcome
from tuner.farm.actions import Blame, Deliver, Failed, RetryPolicy, Send, WorkItem
from tuner.farm.coordinator import Key
from tuner.farm.jobs import Broadcast, FailingItem, Job, JobResult, JobRunner, Training, Update, build_job_runner
from tuner.farm.search_spec import SearchSpec
from tuner.farm.supervisor_loop import SupervisorLoop
from tuner.measure.request import Measurement, Request
from tuner.platform.actors import Actor, Actors, Announce, FarmError
from tuner.platform.interfaces import Clock
from tuner.runs.farm_state import StaffCounts
from tuner.search.epoch import EVOLVING


class JobMessage(NamedTuple):
    """Job, for the actor of this name.  first: see `Update`; the other fields of an update are shared values (`JobWorker.work`)."""

    name: str
    job: Job | Training
    first: int


class SingleItemMessage(NamedTuple):
    """Packed request that is tried alone."""

    name: str
    item: bytes


class JobWorker:
    """`Worker` around a JobRunner.

    Messages are bytes: Ray would search every argument, in Python, for functions and classes that cannot be imported elsewhere.
    """

    def __init__(self, spec: SearchSpec, build: Callable[[SearchSpec], JobRunner] = build_job_runner) -> None:
        self.job_runner = build(spec)

    @property
    def done(self) -> int:
        return self.job_runner.done

    def work(self, message_bytes: bytes, shared: Sequence[Any], announce: Announce | None) -> bytes:
        message = pickle.loads(message_bytes)
        self.job_runner.worker = message.name
        if isinstance(message, SingleItemMessage):
            self.job_runner.measure(pickle.loads(message.item))
            return b""

        def measure_announced(requests: Sequence[Request]) -> Iterator[Measurement]:
            assert announce is not None
            for request in requests:
                announce(pickle.dumps(request.identity))
                yield self.job_runner.measure(request)

        models, answers, stored_results, *epochs = shared
        update = Update(message.first, epochs, models, answers, stored_results)
        return pickle.dumps(self.job_runner.work(message.job, update, None if announce is None else measure_announced))


SILENCE_S = 60.0  # a job hangs after this time without a finished item; compiling a kernel takes half a minute, once
TRAINING_SILENCE_S = 600.0  # a training that takes longer hangs
TRAINING_TRIES = 3  # actors that a training may crash


class _StartedJob(NamedTuple):
    """Job on an actor.  until_s: monotonic time at which the job has to stop; None: no limit."""

    key: Key
    job: Job | Training
    until_s: float | None


class ActorPool:
    """`Jobs` on actors that were made with `JobWorker`.  say: prints a line.

    item_timeout_s: an item that takes longer is a `timeout`; None: neither items nor jobs hang.
    """

    def __init__(self, actors: Actors, clock: Clock, say: Callable[[str], None], item_timeout_s: float | None = 60.0) -> None:
        self.broadcast = Broadcast(actors.share)
        self._received: dict[Actor, tuple[int, int]] = {}  # (version, models) of the last job that the actor received
        self._jobs: dict[int, _StartedJob] = {}
        self._number = 0
        self._results: list[tuple[Key, JobResult | TrainingOutcome]] = []
        self.failing: dict[Request, FailingItem] = {}
        silence_s = None if item_timeout_s is None else max(SILENCE_S, item_timeout_s)  # no item is finished while one runs
        self._shard_policy = RetryPolicy(silence_s, announces=True, pure=True, follows=True, followed=True)
        self._evolving = replace(self._shard_policy, comparable=True)  # earlier epochs are shorter or longer
        self._training = RetryPolicy(None if item_timeout_s is None else TRAINING_SILENCE_S, follows=True, tries=TRAINING_TRIES)
        self._crew = SupervisorLoop(actors, clock, self, say, item_timeout_s)

    # called by the coordinator

    @property
    def workers(self) -> int:
        return self._crew.actors.count

    @property
    def replaced(self) -> int:
        """Actors that died or were killed and were replaced."""
        return self._crew.supervision.replaced

    @property
    def names(self) -> list[str]:
        """Names of living actors: `w0@host:pid`."""
        return self._crew.supervision.names

    def counts(self) -> StaffCounts:
        return self._crew.supervision.counts()

    def nodes(self) -> Mapping[str, int]:
        """See `Staff`; names are `w0@host:pid`."""
        return Counter(name.partition("@")[2].rpartition(":")[0] for name in self.names)

    @property
    def free(self) -> bool:
        """Always True: jobs without a free actor wait here, and the fastest actor takes the first one."""
        return True

    def start(self, key: Key, job: Job | Training) -> None:
        number, self._number = self._number, self._number + 1
        if isinstance(job, Training):
            self._jobs[number] = _StartedJob(key, job, None)
            self._crew.submit(WorkItem(number, self._training, rank=key))
            return
        until_s = None if job.seconds is None else self._crew.clock.monotonic_s() + job.seconds
        self._jobs[number] = _StartedJob(key, job, until_s)
        policy = self._evolving if job.epoch >= EVOLVING else self._shard_policy
        home = job.shard % self._crew.supervision.homes  # its actor has tiled the structures of the shard in earlier epochs
        self._crew.submit(WorkItem(number, policy, home, until_s, key))

    def finished(self, patience_s: float) -> list[tuple[Key, JobResult | TrainingOutcome]]:
        clock = self._crew.clock
        end_s = clock.monotonic_s() + patience_s
        while True:
            self._crew.turn(0.0 if self._results else max(0.0, end_s - clock.monotonic_s()))
            if self._results or clock.monotonic_s() >= end_s:
                completed, self._results = self._results, []
                return completed

    # called by the supervisor loop

    def message(self, send: Send) -> tuple[bytes, Sequence[Any]]:
        """Packed message to an actor: a job with the news that the actor lacks, or a single item of a lost job."""
        if send.item is not None:
            return pickle.dumps(SingleItemMessage(send.name, send.item)), ()
        _, job, until_s = self._jobs[send.work]
        update = self.broadcast.update(job, self._received.get(send.actor, (0, 0)))
        self._received[send.actor] = (job.version, job.models or self._received.get(send.actor, (0, 0))[1])
        if isinstance(job, Job):
            seconds = None if until_s is None else max(0.0, until_s - self._crew.clock.monotonic_s())
            job = job._replace(seconds=seconds, failing=tuple(self.failing.items()))
        shared = (update.models, update.answers, update.stored_results, *update.epochs)
        return pickle.dumps(JobMessage(send.name, job, update.first)), shared

    def delivered(self, done: Deliver) -> None:
        self._results.append((self._jobs.pop(done.work).key, pickle.loads(done.result)))

    def failed(self, failed: Failed) -> None:
        raise FarmError(f"the cost model could not be trained: {TRAINING_TRIES} workers were lost: {failed.error}")

    def blamed(self, blame: Blame) -> None:
        self.failing[pickle.loads(blame.item)] = FailingItem(blame.status, blame.error, blame.attempt)
