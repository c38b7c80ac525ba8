"""Results of jobs: computed once where nothing goes wrong, then looked up by what the job is and what its actor was told.

That a job's result follows from those two alone is what the farm's determinism rests on.  So a job that was never computed is a fault of
the driver's: it handed out other work, or told an actor something else, than it does where nothing goes wrong.
"""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import Any, NamedTuple, NoReturn

from tests.simulated.actors import Dies
from tests.simulated.kernel import SimulationError
from tuner.cost_model.model_file import Models, TrainingOutcome
from tuner.farm.actor_pool import SingleItemMessage
from tuner.farm.jobs import Job, JobResult, JobRunner, Training, Update
from tuner.farm.search_spec import SearchSpec
from tuner.measure.budgeted import BudgetExhausted
from tuner.measure.evaluator import Evaluator
from tuner.measure.request import Measurement, Measurer, Request
from tuner.platform.actors import Message
from tuner.platform.interfaces import Clock

CUTS = (0.0, 0.35, 0.7)  # parts of a job's time after which it may be stopped


class Cut(NamedTuple):
    """What a job has found when it is stopped after this part of its time, with the first ones of its requests."""

    part: float
    requests: int
    result: JobResult


@dataclass
class Recording:
    """results: by digest.  requests: of each, all that are made in their order, those included that nobody survives.  fatal: those.

    kills: whether an request takes its process along.  timed: whether jobs may be stopped; cuts: of each, `CUTS`.
    """

    kills: Callable[[Request], bool]
    timed: bool = False
    results: dict[str, JobResult | TrainingOutcome] = field(default_factory=dict)
    requests: dict[str, list[Request]] = field(default_factory=dict)
    cuts: dict[str, list[Cut]] = field(default_factory=dict)
    fatal: set[Request] = field(default_factory=set)

    def seconds(self, message: Message) -> float:
        """That a message takes an actor of usual speed."""
        told = pickle.loads(message.packed)
        return 0.05 if isinstance(told, SingleItemMessage) else self.seconds_of(told.job)

    def seconds_of(self, job: Job | Training) -> float:
        """That a job takes, or is given."""
        if isinstance(job, Training):
            return 4.0
        whole_s = _whole_s(job)
        return whole_s if job.seconds is None else min(whole_s, job.seconds)

    def found(self, digest: str, job: Job | Training) -> tuple[JobResult | TrainingOutcome, list[Request]] | None:
        """Result and requests of a job in the time that it is given; None where it was never computed."""
        result, requests = self.results.get(digest), self.requests.get(digest, [])
        if result is None:
            return None
        if isinstance(job, Job) and job.seconds is not None and job.seconds < (whole_s := _whole_s(job)):
            cut = [cut for cut in self.cuts[digest] if cut.part * whole_s <= job.seconds][-1]
            return cut.result, requests[: cut.requests]
        return result, requests


def _whole_s(job: Job) -> float:
    return 0.3 + 1.5 * int(_sha(f"{job.epoch} {job.shard}".encode())[:4], 16) / 0xFFFF


def lone_item(message: Message) -> bytes | None:
    """What a message says is to be tried alone; None for a job."""
    told = pickle.loads(message.packed)
    return told.item if isinstance(told, SingleItemMessage) else None


def job_digest(job: Job | Training, heard: str) -> str:
    """heard: digest of everything that its actor was told.  Asks that must not be tried are not part of it, nor is time."""
    if isinstance(job, Training):
        return _sha(f"training {job.number} {job.version} {job.models} {_sha(job.rows)} {job.prior and job.prior.version} {heard}".encode())
    what = f"{job.epoch} {job.shard} {job.version} {job.models} {job.programs} {job.readings}"
    return _sha(f"{what} {heard}".encode())


class Heard:
    """Has as much of `Knowledge` as a job runner needs to hear news: it notes digests."""

    def __init__(self) -> None:
        self.version = 0
        self._epochs = list[str]()
        self._models = ""

    def forget(self) -> None:
        """All that was told."""
        self._epochs, self.version = [], 0

    def learn_epoch(self, findings: Sequence[bytes]) -> None:
        """The next set."""
        self._epochs.append(_epoch_digest(tuple(findings)))
        self.version += 1

    def learn_models(self, models: Models) -> None:
        """Those in use."""
        self._models = _sha(b"|".join(model.raw + model.judge for model in models))

    def digest(self, job: Job | Training) -> str:
        """Of all of it.  Models only where a job predicts by them, or others compete with them."""
        return f"{' '.join(self._epochs)} {self._models if job.models else ''}"


class RecordingJobRunner(JobRunner):
    """A real one, that notes what it was asked for and what came of it."""

    def __init__(self, spec: SearchSpec, evaluator: Evaluator, replay: Replay) -> None:
        super().__init__(spec, evaluator)
        self.replay, self.recording, self.heard = replay, replay.recording, Heard()
        self._asks = list[tuple[Request, Measurement]]()

    def hear(self, update: Update) -> None:
        """And note it."""
        if update.first != self.heard.version:
            self.heard.forget()
        super().hear(update)
        for findings in update.epochs:
            self.heard.learn_epoch(findings)
        if update.models is not None:
            self.heard.learn_models(update.models)

    def measure(self, request: Request) -> Measurement:
        """Unless it kills."""
        if self.recording.kills(request):
            self.recording.fatal.add(request)
            self.replay.die()
        return super().measure(request)

    def _without_failing(self, measurer: Measurer, failing: Any) -> Measurer:
        inner = super()._without_failing(measurer, failing)

        def noted(requests: Sequence[Request]) -> Iterator[Measurement]:
            for request, measurement in zip(requests, inner(requests), strict=True):
                self._asks.append((request, measurement))
                yield measurement

        return noted

    def work(self, job: Job | Training, update: Update, measurer: Measurer | None = None) -> JobResult | TrainingOutcome:
        """And note it."""
        self._asks = []
        result = super().work(job, update, measurer)
        digest, asks = job_digest(job, self.heard.digest(job)), self._asks
        self.recording.results[digest], self.recording.requests[digest] = result, [request for request, _ in asks]
        if self.recording.timed and isinstance(job, Job):
            self.recording.cuts[digest] = [self._cut(job, asks, part) for part in CUTS]
        self.replay.sleep(self.recording.seconds_of(job))
        return result

    def _cut(self, job: Job, asks: Sequence[tuple[Request, Measurement]], part: float) -> Cut:
        """The same again, with an end to its time in the midst of it; nothing is measured."""
        known = asks[: int(part * len(asks))]
        left = iter(known)

        def measurer(requests: Sequence[Request]) -> Iterator[Measurement]:
            for request in requests:
                if (found := next(left, None)) is None:
                    raise BudgetExhausted
                assert found[0] == request
                yield found[1]

        result = super().work(job, Update(self.known.version, (), None), measurer)
        assert isinstance(result, JobResult)
        assert not (asks and result.complete)
        return Cut(part, len(known), result)


class ReplayingJobRunner(JobRunner):
    """Looks up what a job's result is."""

    def __init__(self, replay: Replay) -> None:
        self.replay, self.heard, self.done, self.worker = replay, Heard(), 0, "driver"
        self.known = self.heard  # type: ignore[assignment]
        self._first_readings = None

    def hear(self, update: Update) -> None:
        """Only that it was told."""
        super().hear(update._replace(models=None, answers=None, stored_results=None))
        if update.models is not None:
            self.heard.learn_models(update.models)

    def measure(self, request: Request) -> Measurement:
        """Survived, or not."""
        if request in self.replay.recording.fatal:
            self.replay.die()
        self.done += 1
        return Measurement("ok", worker=self.worker)

    def work(self, job: Job | Training, update: Update, measurer: Measurer | None = None) -> JobResult | TrainingOutcome:
        """Raises `SimulationError` for one that is not there."""
        self.hear(update)
        recording, digest = self.replay.recording, job_digest(job, self.heard.digest(job))
        found = recording.found(digest, job)
        if found is None:
            what = job if isinstance(job, Training) else job._replace(failing=())
            raise SimulationError(f"an actor was given a job that the undisturbed run has not, or told something else before it: {what}")
        if isinstance(job, Job):
            if spared := [request for request, _ in job.failing if request not in recording.fatal]:
                raise SimulationError(
                    f"what the world did is blamed on an item that does no harm: {spared[0].kind} of {spared[0].genome[0]}"
                )
            self._try(found[1], dict(job.failing), measurer)
        self.replay.sleep(recording.seconds_of(job))
        return found[0]

    def _try(self, requests: Sequence[Request], spared: dict[Request, Any], measurer: Measurer | None) -> None:
        fatal = self.replay.recording.fatal
        if measurer is None:
            if any(request in fatal and request not in spared for request in requests):
                self.replay.die()
            self.done += len(requests)
            return
        for _ in measurer([request for request in requests if request not in spared]):
            pass


def _dies() -> NoReturn:
    raise Dies


def _no_time(seconds: float) -> None:
    del seconds


@dataclass(frozen=True)
class Replay:
    """A recording, and what else a job runner of it needs.

    clock: of workers.  die: what an item does that nobody survives.  sleep: for so many seconds of a job, where no actor takes them.
    """

    recording: Recording
    clock: Clock
    die: Callable[[], NoReturn] = _dies
    sleep: Callable[[float], None] = _no_time


def build_replaying(replay: Replay, spec: SearchSpec) -> JobRunner:
    """Job runner that looks results up."""
    del spec
    return ReplayingJobRunner(replay)


def build_recording(replay: Replay, spec: SearchSpec) -> RecordingJobRunner:
    """Job runner that computes results, and notes them."""
    return RecordingJobRunner(replace(spec, clock=replay.clock), spec.build_evaluator(), replay)


@lru_cache(maxsize=256)
def _epoch_digest(findings: tuple[bytes, ...]) -> str:
    """Once for all actors that are told them."""
    return _sha(b"".join(bytes.fromhex(_sha(each)) for each in findings))


def kills_none(request: Request) -> bool:
    """Nothing does harm."""
    del request
    return False


def kills_some(one_in: int) -> Callable[[Request], bool]:
    """Of the segments that are measured, some."""

    return partial(_kills, one_in)


def _kills(one_in: int, request: Request) -> bool:
    return request.measure and request.kind == "segment" and int(_sha(repr(request).encode())[:8], 16) % one_in == 0


def _sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:32]
