"""Loop of the driver: hand out jobs, receive results, commit them in order.  All other work is done in actors."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import Literal, Protocol, Self

from tuner.cost_model.model_file import TrainingOutcome
from tuner.cost_model.trainer import Trainer
from tuner.farm.commit_log import Ledger
from tuner.farm.crash_journal import Attempts
from tuner.farm.epoch_schedule import BEGAN, EpochSchedule
from tuner.farm.jobs import Broadcast, FailingItems, Job, JobResult, JobRunner, Training, build_job_runner
from tuner.farm.saturation import Saturation
from tuner.farm.search_spec import SearchSpec
from tuner.log.task_numbers import count
from tuner.measure.request import Measurement, Request
from tuner.runs.farm_state import StaffCounts

IDLE_EPOCHS = 10  # epochs without a new task, after which none is expected any more
POLL_S = 1.0

Stopped = Literal["budget", "core hours", "saturated", "exhausted"]
Key = tuple[int, int]
TRAINING: Key = (-1, 0)  # the key of a training: they run one after the other


class Jobs(Protocol):
    """Executor of jobs.  Results come in any order, each once.

    Requests that crash their workers are handled here: later jobs get them in `failing`.
    """

    broadcast: Broadcast

    @property
    def workers(self) -> int: ...

    @property
    def free(self) -> bool:
        """Whether another job can be started now."""
        ...

    def start(self, key: Key, job: Job | Training) -> None: ...

    def finished(self, patience_s: float) -> list[tuple[Key, JobResult | TrainingOutcome]]:
        """Finished jobs; waits up to `patience_s` for one."""
        ...


class SerialJobs:
    """Executor in this process, one job after the other.  It does not survive a crash or a hang; `tuner.farm.actor_pool.ActorPool` does.

    attempts: journal of the current request, so that the next process knows which request crashed this one.
    """

    workers = 1

    def __init__(
        self, spec: SearchSpec, attempts: Attempts | None = None, build: Callable[[SearchSpec], JobRunner] = build_job_runner
    ) -> None:
        self._thresholds, self._frozen = gc.get_threshold(), gc.get_freeze_count()
        self.job_runner = build(spec)
        self._attempts = attempts
        self._failing_items: FailingItems = () if attempts is None else attempts.failing
        self.broadcast = Broadcast()
        self._heard_models = 0
        self._job: tuple[Key, Job | Training] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._job = None
        del self.job_runner  # compiled programs are large, and the search is a reference cycle that the collector would free much later
        if not self._frozen:  # see `tuner.measure.evaluator.build_evaluator`; unlike a worker's process, this one continues
            gc.unfreeze()
        gc.set_threshold(*self._thresholds)

    def counts(self) -> StaffCounts:
        return StaffCounts(int(self._job is not None), int(self._job is None), 0, 0)

    def nodes(self) -> Mapping[str, int]:
        return {"driver": 1}

    @property
    def free(self) -> bool:
        return self._job is None

    def start(self, key: Key, job: Job | Training) -> None:
        self._job = (key, job)

    def finished(self, patience_s: float) -> list[tuple[Key, JobResult | TrainingOutcome]]:
        del patience_s
        assert self._job is not None
        (key, job), self._job = self._job, None
        update = self.broadcast.update(job, (self.job_runner.known.version, self._heard_models))
        self._heard_models = job.models or self._heard_models
        if isinstance(job, Job):
            job = job._replace(failing=self._failing_items)
        return [(key, self.job_runner.work(job, update, None if self._attempts is None else self._attempted))]

    def _attempted(self, requests: Sequence[Request]) -> Iterator[Measurement]:
        assert self._attempts is not None
        for request in requests:
            # features are computed from a plan, and requested a hundred times as often
            with self._attempts.at(request) if request.measure else nullcontext():
                measurement = self.job_runner.measure(request)
            yield measurement


class Coordinator:
    """Driver of one search.  on_commit: called with the findings of every committed result.  models_used: number of the model of the newest
    logged epoch.

    show: called regularly.  say: prints a line.  saturation: ends the search when more programs would gain next to nothing.
    rows: number of tasks -> training rows of the first ones in order (`tuner.farm.search_run`); needed with a trainer.
    drop: called with a wrong pack of the store and the task that shows it.
    """

    def __init__(
        self,
        jobs: Jobs,
        schedule: EpochSchedule,
        ledger: Ledger,
        trainer: Trainer | None,
        on_commit: Callable[[bytes], None] = lambda _: None,
        show: Callable[[], None] = lambda: None,
        say: Callable[[str], None] = lambda _: None,
        saturation: Saturation | None = None,
        rows: Callable[[int], bytes] | None = None,
    ) -> None:
        self.jobs, self.schedule, self.ledger, self.trainer = jobs, schedule, ledger, trainer
        self.on_commit, self.show, self.say = on_commit, show, say
        self.saturation = saturation
        self.rows = rows
        self.drop: Callable[[str, str], None] = lambda pack, task: None
        self.dropped: dict[str, str] = {}  # pack -> task
        self.models_used = 0
        self._running = 0
        self._training = False
        self._idle = 0
        self._placed = 0

    def begin(self, began: Sequence[bytes], epochs: Sequence[Sequence[bytes]] = ()) -> None:
        """Pass on the initial findings of the run, and the findings of earlier sessions."""
        assert BEGAN == 1
        for findings in (began, *epochs):
            self.jobs.broadcast.tell_epoch(findings)
        for models in self.trainer.models if self.trainer is not None else ():
            self.jobs.broadcast.tell_models(models)
        self._placed = len(self.ledger.tasks)

    def run(self) -> None:
        """Run until the budget is spent, or until `IDLE_EPOCHS` epochs had no new task."""
        single_worker = self.jobs.workers == 1
        while self.stopped is None:
            if not single_worker or self.schedule.to_commit() is None:  # a single worker has to know what all earlier jobs spent
                self._hand_out()  # before every commit: no worker waits for a result that its next job does not depend on
            if (next_one := self.schedule.to_commit()) is not None:
                self._commit(next_one)
                continue
            self.show()
            for key, result in self.jobs.finished(POLL_S):
                self._receive(key, result)
        if self.stopped == "core hours" or (self.stopped == "budget" and self.ledger.budget.deadline is not None):
            self._gather()

    @property
    def stopped(self) -> Stopped | None:
        """Reason why the search has ended; None while it runs."""
        if self.ledger.spent:
            return "budget"
        return "core hours" if self.ledger.core_hours_spent else self._found_all

    @property
    def _found_all(self) -> Literal["saturated", "exhausted"] | None:
        """Reason why no new tasks are wanted, whatever the budget."""
        if self.saturation is not None and self.saturation.reached:
            return "saturated"
        return "exhausted" if self._idle >= IDLE_EPOCHS else None

    def _hand_out(self) -> None:
        while self.jobs.free:
            training = None if self._training else self.next_training()
            if training is not None:
                self._training = True
                self.jobs.start(TRAINING, training)
                continue
            budget = self.ledger.budget
            entry = self.schedule.next(budget.candidates, budget.seconds(), budget.readings)
            if entry is None:
                return
            self._running += 1
            log_answers, (key, job) = self.ledger.logged, entry
            if self.dropped:
                job = job._replace(dropped=tuple(self.dropped))
            if log_answers is not None:
                job = job._replace(answers=log_answers.since(job.version - BEGAN, self.ledger.ahead.tasks))
                if job.readings is not None and key == self.schedule.frontier and self.jobs.workers == 1:
                    job = job._replace(readings=max(0, (budget.readings or 0) - self.ledger.readings))  # all before it have their place
            self.jobs.start(key, job)

    def next_training(self) -> Training | None:
        """Training that may run now, with its rows."""
        training = self.schedule.next_training()
        if training is None:
            return None
        assert self.trainer is not None
        assert self.rows is not None
        return training._replace(rows=self.rows(self.trainer.tasks[training.number - 1]), prior=self.trainer.prior)

    def _receive(self, key: Key, result: JobResult | TrainingOutcome) -> None:
        self.ledger.core_s += result.cpu_s
        if isinstance(result, JobResult):
            self._running -= 1
            for pack, task in result.differing:
                if pack not in self.dropped:
                    self.dropped[pack] = task
                    self.drop(pack, task)
            self.schedule.received(key, result)
            return
        assert self.trainer is not None
        self._training = False
        self.schedule.trained += 1
        for line in self.trainer.finished(result):
            self.say(line)
        self.jobs.broadcast.tell_models(result.models)

    def _commit(self, result: JobResult) -> bool:
        """Commit a result; returns whether it has its place."""
        epoch = self.schedule.frontier[0]
        place = self.ledger.commit(result, epoch)
        self.models_used = self.schedule.models_of(epoch)
        if place == "otherwise":
            self.schedule.otherwise()
            return False
        if place == "later":
            if not self.ledger.spent:
                self.schedule.again()
            return False
        findings = self.schedule.committed(self.ledger.champions.programs, self.ledger.readings)
        if self.trainer is not None:
            self.trainer.measured += result.segments
        if findings is not None:
            self._epoch_done(findings)
        self.on_commit(result.findings)
        return True

    def _epoch_done(self, findings: Sequence[bytes]) -> None:
        self.jobs.broadcast.tell_epoch(findings)
        if self.saturation is not None:
            self.saturation.epoch_done(self.schedule.programs[-1], findings)
        self._idle = self._idle + 1 if len(self.ledger.tasks) == self._placed else 0
        self._placed = len(self.ledger.tasks)
        if self.trainer is not None and self.trainer.due(count(self.ledger.numbers)):
            self.schedule.train()

    def _gather(self) -> None:
        """After a limit of time: log what other jobs have measured so far.  They stop by themselves at a deadline, and are not waited for
        where core hours are spent."""
        while self._running and self.stopped == "budget":
            for key, result in self.jobs.finished(POLL_S):
                if isinstance(result, JobResult):
                    self._receive(key, result)
        while self._found_all is None and (job_result := self.schedule.to_commit()) is not None:
            if not (job_result.complete and self._commit(job_result)):
                break
        for key in sorted(self.schedule.waiting):
            self.ledger.keep(self.schedule.waiting[key])
