"""Jobs: an epoch of an island, or a training, run whole wherever there is room.

A job is told what it needs to know and returns what it found; it asks nobody.  So what comes of it does not depend on who runs it, when,
or beside what.  `JobRunner` runs jobs in this process: in the driver (the serial backend), or in an actor.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from compiler.plan.plan import Infeasible
from compiler.space.decode import decode
from compiler.space.gene import AHEAD_KIB, FORMULA, Gene, Genome, block_counts
from compiler.space.starts import single_operators
from compiler.unit.unit import Unit
from simulator.kernel_cache import compiling
from tuner.config import BUILT_IN, TuneConfig
from tuner.farm.recorder import Answers, Enough, Facts, Limit, Measured, Recorder, workload
from tuner.learn.cost_model import CostModel, Retrained, TrainingRows, retrain
from tuner.learn.trained import Models, Trained, TrainedModel
from tuner.measure.evaluate import Answer, Ask, Evaluator
from tuner.measure.outcome import Outcome
from tuner.measure.shared import WORKER, SharedResults
from tuner.search.context import SearchContext
from tuner.search.epoch import LAG, exchanges, run_epoch
from tuner.search.islands import pack_island, unpack_island
from tuner.search.knowledge import Knowledge, Learnable
from tuner.search.placing import Placer
from tuner.search.rules import Rules
from tuner.world.crash import one_line


class FailingItem(NamedTuple):
    """An item that takes its worker with it, and how the log calls that."""

    status: Literal["crash", "timeout"]
    error: str
    attempt: int


FailingItems = Sequence[tuple[Ask, FailingItem]]


class Job(NamedTuple):
    """An epoch of an island.

    version: sets of findings that it builds on, of all islands (the first is what the run began with).  own: its island's findings that are
    not among them, epoch by epoch.  state: of the island.  models: number of the models that predict, 0 for none.  programs: that could
    still be measured when what it builds on was complete.  seconds: for which it may still go on.  failing: asks that must not be tried.
    """

    epoch: int
    island: int
    version: int
    models: int
    state: bytes
    own: Sequence[bytes] = ()
    programs: int | None = None
    seconds: float | None = None
    failing: FailingItems = ()


class Training(NamedTuple):
    """Models number `number`, from `version` sets of findings; `models` are those that they compete with."""

    number: int
    version: int
    models: int


class Result(NamedTuple):
    """Of a job.  whole: False where it was stopped before its end: it measured a beginning of what it would have.

    segments: how many were measured.  cpu_s: time of this process that it took.
    """

    state: bytes
    findings: bytes
    measured: Measured
    whole: bool
    segments: int
    cpu_s: float


class Update(NamedTuple):
    """What a job runner has not heard of yet.

    first: number of the first of `epochs`; 0 where it has to begin again.  models: those of the job's number, None where it has them.
    """

    first: int
    epochs: Sequence[Any]  # a sequence of findings each
    models: Any


class Broadcast:
    """Everything that job runners may have to hear.  Holds what it is given: values, or references to them.

    epochs: findings of all islands, one entry for each set.  models: those in use after each training.
    """

    def __init__(self) -> None:
        self.epochs: list[Any] = []
        self.models: list[Any] = []

    def update(self, job: Job | Training, heard: tuple[int, int]) -> Update:
        """For a job runner that has heard of so many sets of findings, and has the models of that number."""
        first = heard[0] if heard[0] <= job.version else 0
        models = self.models[job.models - 1] if job.models and job.models != heard[1] else None
        return Update(first, self.epochs[first : job.version], models)


@dataclass(frozen=True)
class JobRunnerSpec:
    """Makes a JobRunner where it is called."""

    evaluator: Callable[[], Evaluator]
    facts: Facts
    config: TuneConfig
    weights: Mapping[str, float]
    seed: int
    rules: type[Rules] = Rules

    def __call__(self) -> JobRunner:
        with nullcontext(False) if self.config.runner.name != BUILT_IN else compiling() as here:
            job_runner = JobRunner(self, self.evaluator())
            job_runner.warm(here)
        return job_runner


class JobRunner:
    """Runs jobs.  done: items finished so far, which tells somebody else that it is alive."""

    def __init__(self, spec: JobRunnerSpec, evaluator: Evaluator) -> None:
        self.spec, self.evaluator = spec, evaluator
        facts = spec.facts
        self.rules = spec.rules(facts.unit, facts.levels, spec.config, spec.weights)
        self.known = Knowledge(evaluator.structures, len(facts.levels))
        self.models: Models = (None,) * len(facts.levels)
        self.predictors: list[CostModel | None] = [None] * len(facts.levels)
        self.done = 0
        self.worker = "driver"

    def warm(self, whole: bool) -> None:
        """Kernels are compiled here where nobody has yet: in a job, half a minute for one would look like a job that hangs.

        whole: those that programs need too.
        """
        genome = single_operators(self.rules.unit)
        if isinstance(genome, Infeasible):
            return
        if self.rules.placing:
            levels = len(self.rules.levels)
            placer = Placer(self.known.table, self.rules.levels, self.spec.config.placement)
            placer.expected(genome, np.ones((len(genome), levels)), np.zeros(levels))
        if whole:
            list(self._here([Ask("program", each) for each in (genome, *_of_every_kind(self.rules.unit, genome))]))

    def share(self, results: SharedResults) -> None:
        """From now on, after `warm`: results of others compile no kernel."""
        assert self.evaluator.bench is None
        self.evaluator.shared = results

    def hear(self, update: Update) -> None:
        if update.first != self.known.version:
            if update.first:
                raise ValueError(f"news from epoch {update.first} on, where {self.known.version} are known")
            self.known.forget()
        for findings in update.epochs:
            self.known.learn_epoch(findings)
            self.done += 1
        if update.models is not None:
            self.models = update.models
            self.predictors = [None if model is None else model.load() for model in update.models]

    def work(self, job: Job | Training, update: Update, answers: Answers | None = None) -> Result | Trained:
        """answers: where asks go instead of the evaluator here."""
        self.hear(update)
        if isinstance(job, Training):
            return self._train()
        begun = time.process_time()
        limit = Limit(job.programs, None if job.seconds is None else time.monotonic() + job.seconds)
        spec, config = self.spec, self.spec.config
        predictors = self.predictors if config.learns and job.models else [None] * len(self.predictors)
        versions = [None if model is None else model.version for model in predictors]
        failing = dict(job.failing)
        recorder = Recorder(spec.facts, self._spared(answers or self._here, failing), job.island, job.epoch, versions, limit)
        island = unpack_island(job.state)
        with self.known.aside():
            for findings in job.own:
                self.known.learn(findings)
            context = SearchContext(self.rules, self.known, recorder, job.island, job.epoch, predictors)
            whole = True
            try:
                run_epoch(context, island)
            except Enough:
                whole = False
        if exchanges(job.epoch + 1 + LAG, config.search.exchange_every):
            context.findings.elites = island.members[: config.search.elites]
        levels = len(spec.facts.levels)
        return Result(
            pack_island(island, levels),
            context.findings.pack(job.island, levels),
            recorder.measured(),
            whole,
            len(context.findings.segments),
            time.process_time() - begun,
        )

    def _here(self, asks: Sequence[Ask]) -> Iterator[Outcome[Answer]]:
        for ask in asks:
            yield self.answered(ask)

    def answered(self, ask: Ask) -> Outcome[Answer]:
        """By the evaluator here."""
        begun = time.perf_counter()
        try:
            answer = self.evaluator.answer(ask)
        except Exception as error:  # noqa: BLE001  one bad candidate must not end the run; its row says what it was
            return Outcome("crash", None, one_line(error), self.worker, time.perf_counter() - begun)
        finally:
            self.done += 1
        return Outcome("ok", answer, None, WORKER if answer.shared else self.worker, time.perf_counter() - begun)

    @staticmethod
    def _spared(answers: Answers, failing: Mapping[Ask, FailingItem]) -> Answers:
        """Answers without what must not be tried."""
        if not failing:
            return answers

        def spared(asks: Sequence[Ask]) -> Iterator[Outcome[Answer]]:
            told = answers([ask for ask in asks if ask not in failing])
            for ask in asks:
                found = failing.get(ask)
                yield next(told) if found is None else Outcome(found.status, None, found.error, "driver", 0.0, found.attempt)

        return spared

    def _train(self) -> Trained:
        """One model per level, from everything that is known."""
        facts, learnable = self.spec.facts, self.known.learnable
        features = np.concatenate([part.features for part in learnable])
        cycles = np.concatenate([part.cycles for part in learnable])
        groups = self._workloads(learnable)
        candidates, in_use = [], list(self.models)
        for level, (current, share) in enumerate(zip(self.predictors, self.rules.shares, strict=True)):
            rows = TrainingRows(features, cycles[:, level].astype(np.float64), groups)
            result = retrain(rows, share, self.spec.seed, self.spec.config.model, current)
            candidates.append(_packed(result))
            if result.promoted:
                in_use[level] = candidates[-1]
            self.done += 1
        assert len(candidates) == len(facts.levels)
        return Trained(tuple(candidates), tuple(in_use))

    def _workloads(self, learnable: Sequence[Learnable]) -> np.ndarray:
        facts = self.spec.facts
        spans, at = np.unique(np.concatenate([part.spans for part in learnable]), axis=0, return_inverse=True)
        names = [spec.name for spec in facts.unit.operators]
        texts = [workload(facts.origin.model, names[start], names[stop - 1]) for start, stop in spans.tolist()]
        return np.array(texts)[at.ravel()]


def _of_every_kind(unit: Unit, singles: Genome) -> Iterator[Genome]:
    """Programs with a segment of two operators, the first that fits, in each of the ways that have kernels of their own."""
    pairs = (Gene(k, k + 2, blocks) for k in range(len(singles) - 1) for blocks in block_counts(unit, k, k + 2) if blocks > 1)
    pair = next((gene for gene in pairs if decode(unit, gene) is not None), None)
    if pair is None:
        return
    everywhere = tuple(range(unit.machine.cores))
    ways = (
        pair._replace(cached=-1),
        pair._replace(cores=everywhere),
        pair._replace(sliding=True, window=FORMULA, ahead_kib=AHEAD_KIB[-1]),
        pair._replace(sliding=True, window=pair.blocks, spread=False),
    )
    for gene in ways:
        yield (*singles[: pair.start], gene, *singles[pair.stop :])


def _packed(result: Retrained) -> TrainedModel:
    model = result.candidate
    return TrainedModel(model.raw, model.judge, model.share, model.trained_rows, model.left_out, model.facts, result.promoted)
