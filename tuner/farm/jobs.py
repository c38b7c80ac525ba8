"""Jobs: a shard of an epoch, or a training, executed as a whole by any worker.

A job gets all inputs at its start and returns its findings; it requests nothing meanwhile.  So its result does not depend on the worker,
the time, or other jobs.  `JobRunner` runs jobs in this process: in the driver (serial backend) or in an actor.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np

from compiler.plan.plan import Infeasible
from compiler.space.decode import decode
from compiler.space.gene import FORMULA, Gene, Genome, block_counts
from compiler.space.initial import single_operators
from compiler.target.target_graph import TargetGraph
from simulator.kernel_cache import compiling
from simulator.kernel_list import compile_beside
from tuner.config import BUILT_IN
from tuner.cost_model.interface import AtLevel, CostModel, Predictor, conditions_of, find_cost_model
from tuner.cost_model.judge import retrain
from tuner.cost_model.model_file import Models, TrainedModel, TrainingOutcome
from tuner.cost_model.training_rows import unpack_rows
from tuner.farm.reading_conflicts import FirstReadings
from tuner.farm.recorder import Recorder
from tuner.farm.search_spec import SearchSpec
from tuner.log.writer import Batch
from tuner.measure.budgeted import Deadline, Limit, Listener, MeasureBudget
from tuner.measure.evaluator import Evaluator
from tuner.measure.grants import same_grants
from tuner.measure.reading_cost import readings_of
from tuner.measure.replay import unpack_measurements
from tuner.measure.request import Measurement, Measurer, Request
from tuner.measure.store_lookup import NAMED, WORKER, Memo
from tuner.platform.cpus import usable_cpus
from tuner.platform.crash import error_line
from tuner.search.epoch import FIRST, first_programs, run_shard
from tuner.search.epoch_report import Collector
from tuner.search.knowledge import Knowledge
from tuner.search.placement import Placer
from tuner.search.strategy import SearchStrategy, StrategyContext, find_strategy


class FailingItem(NamedTuple):
    """An item that takes its worker with it, and how the log calls that."""

    status: Literal["crash", "timeout"]
    error: str
    attempt: int


FailingItems = Sequence[tuple[Request, FailingItem]]


class Job(NamedTuple):
    """Shard of an epoch.

    version: number of sets of findings that it depends on (the first set is what the run began with).  models: number of the predicting
    model, 0 for none.  programs, readings: remaining budget when its inputs were complete.  seconds: time limit.
    failing: requests that must not be tried.  dropped: wrong packs of the store.
    answers: if readings may differ, readings of the log that the job would not receive otherwise: of placed tasks, and of tasks that are
    ahead (`tuner.farm.reading_conflicts`).
    """

    epoch: int
    shard: int
    version: int
    models: int
    programs: int | None = None
    seconds: float | None = None
    failing: FailingItems = ()
    answers: tuple[bytes, bytes] = (b"", b"")
    readings: int | None = None
    dropped: Sequence[str] = ()


class Training(NamedTuple):
    """Training of model `number`, which competes with model `models`.

    version: number of sets of findings.  rows: training rows from the log (`tuner.cost_model.training_rows.pack_rows`); b''
    before they are read.  prior: initial model of the run, which competes as well.
    """

    number: int
    version: int
    models: int
    rows: bytes = b""
    prior: TrainedModel | None = None


class JobResult(NamedTuple):
    """Result of a job.  batch: measurements, for the log and for later jobs.

    complete: False if it was stopped early: it has only the first measurements.
    segments: number of segments with results.
    cpu_s: CPU time of this process.
    differing: packs of the store whose result for a task, named behind them, differs from a second measurement.
    stored_tasks: number of tasks whose results the store had.
    """

    batch: Batch
    complete: bool
    segments: int
    cpu_s: float
    differing: Sequence[tuple[str, str]] = ()
    stored_tasks: int = 0

    @property
    def findings(self) -> bytes:
        """Message to later jobs."""
        return self.batch.epoch


class Update(NamedTuple):
    """News for a job runner.

    first: number of the first of `epochs`; 0 if it has to start over.  answers: published results of the run for tasks without a place yet
    (`tuner.measure.replay`); None if it has them.  models: the job's model; None if it has it.  stored_results: measurements of other runs
    (`tuner.store.pack_store.STORED`); None if it has them.
    """

    first: int
    epochs: Sequence[Any]  # a sequence of findings each
    models: Any
    answers: Any = None
    stored_results: Any = None


class Broadcast:
    """All values that job runners may need, each told before the first job that needs it.  share: value -> itself, or a reference to it.

    epochs: findings of all jobs, one entry per set.  models: model in use after each training.
    answers: results that earlier sessions published for tasks without a place yet.  stored_results: measurements of other runs.
    """

    def __init__(self, share: Callable[[Any], Any] = lambda value: value) -> None:
        self._share = share
        self.epochs: list[Any] = []
        self.models: list[Any] = []
        self.answers: Any = None
        self.stored_results: Any = None

    def tell_answers(self, packed: bytes) -> None:
        self.answers = self._share(packed)

    def tell_stored(self, packed: bytes) -> None:
        self.stored_results = self._share(packed)

    def tell_epoch(self, findings: Sequence[bytes]) -> None:
        self.epochs.append(self._share(list(findings)))

    def tell_models(self, models: Models) -> None:
        self.models.append(self._share(models))

    def update(self, job: Job | Training, received: tuple[int, int]) -> Update:
        """News for a job runner that has received `received`: number of sets of findings, and number of the model."""
        first = received[0] if received[0] <= job.version else 0
        models = self.models[job.models - 1] if job.models and job.models != received[1] else None
        is_first = received[0] == 0
        return Update(
            first, self.epochs[first : job.version], models, self.answers if is_first else None, self.stored_results if is_first else None
        )


def build_job_runner(spec: SearchSpec) -> JobRunner:
    """Job runner of this process, its kernels compiled."""
    with nullcontext(False) if spec.config.runner.name != BUILT_IN else compiling() as compiles:
        if compiles:
            compile_beside(usable_cpus() - 1, search=True)
        job_runner = JobRunner(spec, spec.build_evaluator())
        job_runner.warm(compiles)
    return job_runner


class JobRunner:
    """Runs jobs.  done: number of finished items so far, which shows that it is alive."""

    def __init__(self, spec: SearchSpec, evaluator: Evaluator) -> None:
        self.spec, self.evaluator = spec, evaluator
        self.rules = spec.rules(spec.target_graph, spec.levels, spec.config, spec.config.level_weights)
        self.known = Knowledge(evaluator.structures, len(spec.levels), same_grants(spec.target_graph.machine, spec.levels))
        self.conditions = conditions_of(spec.target_graph, spec.levels)
        self.models: Models = ()
        self.predictors: list[Predictor | None] = [None] * len(spec.levels)
        self.done = 0
        self.worker = "driver"
        self._earlier: dict[str, Measurement] = {}  # measurements of earlier sessions
        self._first_readings: FirstReadings | None = FirstReadings(len(spec.levels)) if spec.differs else None

    def warm(self, programs: bool) -> None:
        """Compile kernels now if they are not in the cache: inside a job, a minute of compilation would look like a hang.

        programs: include the kernels for programs.
        """
        genome = single_operators(self.rules.target_graph)
        if isinstance(genome, Infeasible):
            return
        if self.rules.placing:
            levels = len(self.rules.levels)
            placer = Placer(self.known.table, self.rules.levels, self.spec.config.placement)
            placer.expected(genome, np.ones((len(genome), levels)), np.zeros(levels))
        if programs:
            list(
                self._measure_here(
                    [Request("program", program) for program in (genome, *_kernel_programs(self.rules.target_graph, genome))]
                )
            )

    @cached_property
    def strategy(self) -> type[SearchStrategy]:
        """Strategy that proposes requests."""
        return self.spec.strategy or find_strategy(self.spec.config.search.strategy)

    @cached_property
    def cost_model(self) -> type[CostModel]:
        """Class of the models that are trained and used here; None without a model."""
        return find_cost_model(self.spec.config.model.name)

    def hear(self, update: Update) -> None:
        if update.first != self.known.version:
            if update.first:
                raise ValueError(f"news from epoch {update.first} on, where {self.known.version} are known")
            self.known.forget()
            if self._first_readings is not None:
                self._first_readings = FirstReadings(len(self.rules.levels))
        for findings in update.epochs:
            self.known.learn_epoch(findings)
            if self._first_readings is not None:
                for job_findings in findings:
                    self._first_readings.learn(job_findings)
            self.done += 1
        if update.answers is not None:
            self._earlier = unpack_measurements(update.answers, len(self.rules.levels))
            self.evaluator.use_published(self._earlier)
        if update.stored_results is not None:  # after `warm`: stored results would leave kernels uncompiled
            self.evaluator.memo = Memo(update.stored_results, len(self.rules.levels), not self.spec.differs)
        if update.models is not None:
            self.models = update.models
            loaded = [model.load(self.cost_model) for model in update.models] or [None]
            self.predictors = [None if loaded[0] is None else AtLevel(loaded[0], condition) for condition in self.conditions.values()]

    def work(self, job: Job | Training, update: Update, measurer: Measurer | None = None) -> JobResult | TrainingOutcome:
        """Run a job.  measurer: replaces the evaluator of this process."""
        self.hear(update)
        if isinstance(job, Training):
            return self._train(job)
        spec, config, clock = self.spec, self.spec.config, self.spec.clock
        begun_s, deadline = clock.cpu_s(), None if job.seconds is None else Deadline(clock, clock.monotonic_s() + job.seconds)
        # predictions of the job's model, or of the estimate
        learns = config.use.cost_model and bool(job.models)
        predictors = self.predictors if learns else [None] * len(self.predictors)
        version = self.models[0].version if learns and self.models else None
        # requests that must not be tried, and packs of the store that must not be used
        failing, memo = dict(job.failing), self.evaluator.memo
        if memo is not None:
            memo.refused_packs.update(job.dropped)
        # listeners receive each measurement: rows for the log, the job's own knowledge, findings for later jobs
        strategy_name = config.search.strategy if spec.strategy is None else spec.strategy.__name__
        recorder, collector = Recorder(spec, job.shard, job.epoch, version, strategy_name), Collector()
        listeners: list[Listener] = [recorder, self.known, collector]
        paid_by_others: ChainMap[str, Measurement] = ChainMap()
        if self._first_readings is not None:
            readings, paid_by_others = self._answering(job, self._first_readings)
            listeners.append(readings)

        def cost(measurement: Measurement) -> int:
            """Readings of a measurement; another job pays for a task that it measured first."""
            return 0 if measurement.task in paid_by_others else readings_of(measurement, len(spec.levels), spec.repeats)

        limit = Limit(job.programs, deadline, job.readings, cost)
        session = MeasureBudget(self._without_failing(measurer or self._measure_here, failing), listeners, limit)
        with self.known.temporary():
            if job.epoch == FIRST:
                asking = first_programs(self.rules, collector, self.known.proposed)
            else:
                strategy = self.strategy(StrategyContext(self.rules, job.shard, spec.origin.seed))
                strategy.tell(self.known, predictors)
                asking = strategy.ask(job.epoch)
            complete = run_shard(asking, session, self.known, collector)
        return JobResult(
            recorder.batch(collector.pack(len(spec.levels))),
            complete,
            len(collector.segments),
            clock.cpu_s() - begun_s,
            () if memo is None else memo.take_reports(),
            recorder.stored,
        )

    def _answering(self, job: Job, first_readings: FirstReadings) -> tuple[FirstReadings, ChainMap[str, Measurement]]:
        """Answer tasks that have a reading, whatever genes request them: readings of the log, of the job's messages, and its own.

        Returns the listener that notes the job's own readings, and the tasks with readings of other jobs.
        """
        levels = len(self.rules.levels)
        job_readings = FirstReadings(levels)
        placed, uncommitted = (unpack_measurements(answer, levels) if answer else {} for answer in job.answers)
        self.evaluator.use_published(
            ChainMap(placed, uncommitted, first_readings.by_task, self._earlier, job_readings.by_task), crashed=True
        )
        return job_readings, ChainMap(placed, first_readings.by_task)

    def _measure_here(self, requests: Sequence[Request]) -> Iterator[Measurement]:
        return map(self.measure, requests)

    def measure(self, request: Request) -> Measurement:
        """Measure a request with the evaluator of this process."""
        clock = self.spec.clock
        begun_s = clock.monotonic_s()
        try:
            measurement = self.evaluator.measure(request)
        except Exception as error:  # noqa: BLE001  one bad candidate must not end the run; its row says what it was
            measurement = self.evaluator.failed(request, "crash", error_line(error))
        finally:
            self.done += 1
        worker = f"{WORKER}{measurement.pack[:NAMED]}" if measurement.pack else self.worker
        return replace(measurement, worker=worker, wall_s=clock.monotonic_s() - begun_s, board=self.evaluator.board_reading)

    def _without_failing(self, measurer: Measurer, failing: Mapping[Request, FailingItem]) -> Measurer:
        """Measurer that skips requests that must not be tried."""
        if not failing:
            return measurer

        def measure_allowed(requests: Sequence[Request]) -> Iterator[Measurement]:
            measured = measurer([request for request in requests if request not in failing])
            for request in requests:
                item = failing.get(request)
                if item is None:
                    yield next(measured)
                else:
                    failed = self.evaluator.failed(request, item.status, item.error)
                    yield replace(failed, worker="driver", attempt=item.attempt)

        return measure_allowed

    def _train(self, training: Training) -> TrainingOutcome:
        begun_s, older = self.spec.clock.cpu_s(), self.models[0] if training.models and self.models else None
        rows = unpack_rows(training.rows)
        trained = retrain(self.cost_model, rows, self.spec.origin.seed, self.spec.config.model, older, training.prior)
        self.done += 1
        return trained._replace(cpu_s=self.spec.clock.cpu_s() - begun_s)


def _kernel_programs(target_graph: TargetGraph, singles: Genome) -> Iterator[Genome]:
    """Programs with a segment of two operators, the first that fits, in each of the ways with kernels of their own."""
    pairs = (Gene(k, k + 2, blocks) for k in range(len(singles) - 1) for blocks in block_counts(target_graph, k, k + 2) if blocks > 1)
    pair = next((gene for gene in pairs if decode(target_graph, gene) is not None), None)
    if pair is None:
        return
    everywhere = tuple(range(target_graph.machine.cores))
    ways = (
        pair._replace(cached=-1),
        pair._replace(cores=everywhere),
        pair._replace(sliding=True, window=FORMULA),
        pair._replace(sliding=True, window=pair.blocks, spread=False),
    )
    for gene in ways:
        yield (*singles[: pair.start], gene, *singles[pair.stop :])
