"""Results of jobs: computed once where nothing goes wrong, then looked up by what the job is and what its actor was told.

That a job's result follows from those two alone is what the farm's determinism rests on.  So a job that was never computed is a fault of
the driver's: it handed out other work, or told an actor something else, than it does where nothing goes wrong.
"""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

import numpy as np

from compiler.cost.features import FEATURE_SET, FEATURES
from tests.simulated.actors import Dies
from tests.simulated.kernel import SimulationError
from tuner.farm.jobs import Job, News, Result, Training, Workshop, WorkshopSpec
from tuner.farm.recorder import FEATURE_SETS, Answers
from tuner.farm.workers import Lone
from tuner.learn.trained import Models, Trained
from tuner.measure.evaluate import Answer, Ask, Evaluator
from tuner.measure.outcome import Outcome
from tuner.store.schema import FEATURE_PREFIX, FeatureSet, task_schema
from tuner.store.travelling import packed, side_by_side, travelling, unpacked
from tuner.world.actors import Message


@dataclass
class Recording:
    """results: by digest.  asks: of each, all that are made in their order, those included that nobody survives.  fatal: those.

    kills: whether an ask takes its process along.
    """

    kills: Callable[[Ask], bool]
    results: dict[str, Result | Trained] = field(default_factory=dict)
    asks: dict[str, list[Ask]] = field(default_factory=dict)
    fatal: set[Ask] = field(default_factory=set)

    def seconds(self, message: Message) -> float:
        """That a message takes an actor of usual speed."""
        told = pickle.loads(message.packed)
        return 0.05 if isinstance(told, Lone) else self.seconds_of(told.job)

    def seconds_of(self, job: Job | Training) -> float:
        """That a job takes."""
        return 4.0 if isinstance(job, Training) else 0.3 + 1.5 * int(_sha(job.state)[:4], 16) / 0xFFFF


def lone_item(message: Message) -> bytes | None:
    """What a message says is to be tried alone; None for a job."""
    told = pickle.loads(message.packed)
    return told.item if isinstance(told, Lone) else None


def job_digest(job: Job | Training, heard: str) -> str:
    """heard: digest of everything that its actor was told.  Asks that must not be tried are not part of it, nor is time."""
    if isinstance(job, Training):
        return _sha(f"training {job.number} {job.version} {job.models} {heard}".encode())
    own = " ".join(map(_sha, job.own))
    return _sha(f"{job.epoch} {job.island} {job.version} {job.models} {job.programs} {_sha(job.state)} [{own}] {heard}".encode())


class Heard:
    """Has as much of `Knowledge` as a workshop needs to hear news: it notes digests."""

    def __init__(self) -> None:
        self.version = 0
        self._epochs = list[str]()
        self._models = ""

    def forget(self) -> None:
        """All that was told."""
        self._epochs, self.version = [], 0

    def learn_epoch(self, findings: Sequence[bytes]) -> None:
        """The next set."""
        self._epochs.append(_sha(b"".join(bytes.fromhex(_sha(each)) for each in findings)))
        self.version += 1

    def learn_models(self, models: Models) -> None:
        """Those in use."""
        self._models = _sha(b"|".join(b"" if model is None else model.raw + model.judge for model in models))

    def digest(self, job: Job | Training) -> str:
        """Of all of it.  Models only where a job predicts by them, or others compete with them."""
        return f"{' '.join(self._epochs)} {self._models if job.models else ''}"


class RecordingWorkshop(Workshop):
    """A real one, that notes what it was asked for and what came of it."""

    def __init__(self, spec: WorkshopSpec, evaluator: Evaluator, replay: Replay) -> None:
        super().__init__(spec, evaluator)
        self.replay, self.recording, self.heard, self._asks = replay, replay.recording, Heard(), list[Ask]()

    def hear(self, news: News) -> None:
        """And note it."""
        if news.first != self.heard.version:
            self.heard.forget()
        super().hear(news)
        for findings in news.epochs:
            self.heard.learn_epoch(findings)
        if news.models is not None:
            self.heard.learn_models(news.models)

    def answered(self, ask: Ask) -> Outcome[Answer]:
        """Unless it kills."""
        if self.recording.kills(ask):
            self.recording.fatal.add(ask)
            self.replay.die()
        return super().answered(ask)

    def _spared(self, answers: Answers, culprits: Any) -> Answers:  # type: ignore[override]
        inner = Workshop._spared(answers, culprits)

        def noted(asks: Sequence[Ask]) -> Iterator[Outcome[Answer]]:
            for ask, outcome in zip(asks, inner(asks), strict=True):
                self._asks.append(ask)
                yield outcome

        return noted

    def work(self, job: Job | Training, news: News, answers: Answers | None = None) -> Result | Trained:
        """And note it."""
        self._asks = []
        result = super().work(job, news, answers)
        digest = job_digest(job, self.heard.digest(job))
        if isinstance(result, Result):
            result = slim(result)
        self.recording.results[digest], self.recording.asks[digest] = result, self._asks
        self.replay.sleep(self.recording.seconds_of(job))
        return result


FEW_FEATURES = (FeatureSet(FEATURE_SET, FEATURES[:4]),)


def slim(result: Result) -> Result:
    """With few of the features: a part of a hundred columns takes longer to write than all else that a session does."""
    batch, name = result.measured.batch, FEATURE_PREFIX + FEATURES[0]
    table = unpacked(batch.tasks, travelling(task_schema(FEATURE_SETS)))
    block = np.asarray(table[name].flatten()).reshape(table.num_rows, len(FEATURES))[:, : len(FEW_FEATURES[0].features)]
    columns = {column: table[column] for column in table.schema.names} | {name: side_by_side(block)}
    tasks = packed(columns, task_schema(FEW_FEATURES))
    return result._replace(measured=result.measured._replace(batch=batch._replace(tasks=tasks)))


class ReplayingWorkshop(Workshop):
    """Looks up what a job's result is."""

    def __init__(self, replay: Replay) -> None:
        self.replay, self.heard, self.done, self.worker = replay, Heard(), 0, "driver"
        self.known = self.heard  # type: ignore[assignment]

    def hear(self, news: News) -> None:
        """Only that it was told."""
        super().hear(news._replace(models=None))
        if news.models is not None:
            self.heard.learn_models(news.models)

    def answered(self, ask: Ask) -> Outcome[Answer]:
        """Survived, or not."""
        if ask in self.replay.recording.fatal:
            self.replay.die()
        self.done += 1
        return Outcome("ok", None, None, self.worker, 0.0)

    def work(self, job: Job | Training, news: News, answers: Answers | None = None) -> Result | Trained:
        """Raises `SimulationError` for one that is not there."""
        self.hear(news)
        recording, digest = self.replay.recording, job_digest(job, self.heard.digest(job))
        found = recording.results.get(digest)
        if found is None:
            what = job if isinstance(job, Training) else job._replace(state=b"", own=(), culprits=())
            raise SimulationError(f"an actor was given a job that the undisturbed run has not, or told something else before it: {what}")
        if isinstance(job, Job):
            if spared := [ask for ask, _ in job.culprits if ask not in recording.fatal]:
                raise SimulationError(
                    f"what the world did is blamed on an item that does no harm: {spared[0].kind} of {spared[0].genome[0]}"
                )
            self._try(recording.asks[digest], dict(job.culprits), answers)
        self.replay.sleep(recording.seconds_of(job))
        return found

    def _try(self, asks: Sequence[Ask], spared: dict[Ask, Any], answers: Answers | None) -> None:
        fatal = self.replay.recording.fatal
        if answers is None:
            if any(ask in fatal and ask not in spared for ask in asks):
                self.replay.die()
            self.done += len(asks)
            return
        for _ in answers([ask for ask in asks if ask not in spared]):
            pass


def _dies() -> NoReturn:
    raise Dies


def _no_time(seconds: float) -> None:
    del seconds


@dataclass(frozen=True)
class Replay:
    """A recording, and what else a job runner of it needs.

    die: what an item does that nobody survives.  sleep: for so many seconds of a job, where no actor takes them.
    """

    recording: Recording
    die: Callable[[], NoReturn] = _dies
    sleep: Callable[[float], None] = _no_time


@dataclass(frozen=True)
class ReplaySpec(WorkshopSpec):
    """Looks up."""

    replay: Replay = field(kw_only=True)

    def __call__(self) -> Workshop:
        return ReplayingWorkshop(self.replay)


@dataclass(frozen=True)
class RecordingSpec(WorkshopSpec):
    """Computes, and notes it."""

    replay: Replay = field(kw_only=True)

    def __call__(self) -> Workshop:
        return RecordingWorkshop(self, self.evaluator(), self.replay)


def kills_none(ask: Ask) -> bool:
    """Nothing does harm."""
    del ask
    return False


def kills_some(one_in: int) -> Callable[[Ask], bool]:
    """Of the segments that are measured, some."""

    def kills(ask: Ask) -> bool:
        return ask.measure and ask.kind == "segment" and int(_sha(repr(ask).encode())[:8], 16) % one_in == 0

    return kills


def _sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:32]
