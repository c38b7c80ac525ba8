"""One search of a run: its coordinator, log, checkpoints and progress display.

A training gets only rows that are durable, so the log alone explains every model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from compiler.space.gene import Genome
from simulator.npu.errors import BadInputError, TilefarmError
from simulator.terminal import say
from tuner.config import BUILT_IN
from tuner.cost_model.interface import conditions_of
from tuner.cost_model.model_file import StoredModel
from tuner.cost_model.trainer import Trainer
from tuner.cost_model.training_rows import pack_rows, rows_of_search
from tuner.farm.board_drift import BoardWatch
from tuner.farm.commit_log import Ledger, RunBudget
from tuner.farm.coordinator import Coordinator, Jobs
from tuner.farm.epoch_schedule import EpochSchedule
from tuner.farm.farm_meter import FarmMeter
from tuner.farm.progress_display import ProgressBar
from tuner.farm.reading_conflicts import LoggedReadings
from tuner.farm.saturation import Saturation
from tuner.farm.search_spec import SearchSpec
from tuner.farm.store_client import StoreClient
from tuner.farm.uncommitted import read_ahead
from tuner.farm.warm_start import WarmStart, lines, open_warm_start
from tuner.log.read import read_log
from tuner.log.task_numbers import count, first
from tuner.log.writer import RunLog
from tuner.measure.grants import same_grants
from tuner.measure.replay import read_published
from tuner.measure.runners import runner_origin
from tuner.platform.files import AnyPath
from tuner.platform.interfaces import Platform
from tuner.runs.checkpoint import Checkpoint
from tuner.runs.folder import SearchFolder
from tuner.search.champions import Champions
from tuner.search.epoch import BEGINNING
from tuner.search.epoch_report import Collector
from tuner.search.population import Individual
from tuner.tune_request import Snapshot, TuneRequest


def durable_rows(folder: AnyPath, ledger: Ledger, spec: SearchSpec, tasks: int) -> bytes:
    """Training rows of the first `tasks` tasks in order, packed.  folder: folder of the run, whose log is published first.

    Raises `BadInputError` where it cannot be written or read.
    """
    ledger.log.flush()
    conditions = np.stack(list(conditions_of(spec.target_graph, spec.levels).values()))
    return pack_rows(rows_of_search(folder, ledger.log.origin.run, first(ledger.numbers, tasks), conditions))


class SearchEnd(NamedTuple):
    """End of a search.  best: level -> fastest program.  baselines: level -> fastest program of single operators among the levels with the
    same grant, which share it."""

    best: tuple[Individual, ...]
    baselines: tuple[Individual, ...]


class SearchRun:
    """Search of one run, with its log, checkpoints and progress display.

    said: entries about earlier runs that it begins with (`tuner.farm.warm_start.sources`).  start: makes the initial genomes, when the
    search begins; None if a resumed run does not name them again.  prior: initial model; a copy is in the run's folder of models.
    storing: client of a store; None without one.  meter: None: the farm is not observed.
    """

    def __init__(
        self, world: Platform, spec: SearchSpec, request: TuneRequest, place: SearchFolder, log: RunLog, jobs: Jobs,
        budget: RunBudget, said: Sequence[str] = (), start: Callable[[], Mapping[Genome, str]] | None = dict,
        prior: StoredModel | None = None,
        storing: StoreClient | None = None, meter: FarmMeter | None = None,
    ) -> None:  # fmt: skip
        self.storing, self._meter = storing, meter
        self.clock = world.clock
        config = spec.config
        self.spec, self.levels, self.config, self.place, self.quiet = spec, spec.levels, config, place, request.quiet
        self._watch = request.progress
        self.champions = Champions(len(spec.levels), same_grants(spec.target_graph.machine, spec.levels))
        self.ledger = Ledger(spec.levels, log, self.champions, budget, repeats=spec.repeats)
        self.schedule = EpochSchedule(config.search.shards, config.search.behind)
        self.trainer = Trainer(place.models, config.model)
        trainer = self.trainer if config.use.cost_model else None
        rows = partial(durable_rows, place.path, self.ledger, spec)
        self.saturation = Saturation(config.budget.least_gain, len(spec.levels))
        self.conductor = Coordinator(
            jobs, self.schedule, self.ledger, trainer, self._committed, self._show, self._say, self.saturation, rows
        )
        if storing is not None:
            if storing.packed:
                jobs.broadcast.tell_stored(storing.packed)
            self.conductor.drop = storing.drop
        self.checkpoint = Checkpoint(place.checkpoint, log)
        self.warm_start: list[str] = []  # lines for a person
        self._warm_tasks: list[str] = []
        self._unsaved: list[bytes] = []
        self._began = 0
        self._bar: ProgressBar | None = None
        self._saved_s = self.clock.monotonic_s()
        self._resume(request.warm_start, said, start, prior)

    @contextmanager
    def progress(self) -> Iterator[None]:
        budget, readings = self.ledger.budget, self.ledger.counted.readings
        earlier_count = self.ledger.programs if budget.readings is None else readings
        with ProgressBar(
            self.clock, budget.candidates, budget.seconds(), earlier_count, self.quiet, watch=self._watch, measurements=budget.readings
        ) as bar:
            self._bar = bar
            yield
            bar.finish(self.snapshot())
            self._bar = None

    def _show(self) -> None:
        if self._meter is not None:
            self._meter.look(self.ledger, self.schedule)
        if self._bar is not None:
            self._bar.update(self.snapshot())

    def _say(self, line: str) -> None:
        if self._bar is not None:
            self._bar.say(line)

    def snapshot(self) -> Snapshot:
        champions, failures, tasks, readings = self.ledger.counted
        best = {level: int(m.cycles[i]) for i, level in enumerate(self.levels) if (m := champions.best[i]) is not None}
        baseline = {level: int(m.cycles[i]) for i, level in enumerate(self.levels) if (m := champions.baseline(i)) is not None}
        note = f"epoch {self.schedule.complete}, {tasks} tasks"
        return Snapshot(champions.programs, best, baseline, dict(failures), note, readings)

    def _resume(
        self, paths: Sequence[Path], warm_start: Sequence[str], start: Callable[[], Mapping[Genome, str]] | None, prior: StoredModel | None
    ) -> None:
        """Continue from the last checkpoint.  Measurements after it count: they are neither measured nor logged again when the search
        requests them, and the log's values are used."""
        log, levels = self.ledger.log, len(self.levels)
        checkpoint = self.checkpoint.load() if self.place.resumed else None
        uncommitted_parts = log.numbers.beyond([] if checkpoint is None else checkpoint[0]["numbers"])
        # if readings may differ, also readings of the last epochs before the checkpoint: a job that depends on earlier epochs lacks them
        if rows := log.numbers.beyond([]) if self.spec.differs else uncommitted_parts:
            answers = read_published(self.place.path, log.origin.run, rows, levels)
            self.conductor.jobs.broadcast.tell_answers(answers)
        if self.spec.differs:
            self.ledger.boards = BoardWatch(log, self._say)
            self.ledger.logged = LoggedReadings(levels, answers if rows else None)
        if (lost_rows := sum(self.ledger.log.lost.values())) and not self.quiet:
            say(f"{lost_rows} rows of log and tasks were lost; they are measured again")
        if checkpoint is None:
            if start is None:
                raise BadInputError("--start: the run was stopped before its first checkpoint; name the plans again that it began with")
            if prior is not None:
                self.trainer.begin(prior)
                self.schedule.begin_trained()
            self._begin(open_warm_start(paths, warm_start, self.spec.target_graph, self.levels, self.spec.origin.runner), start())
            return
        state, findings = checkpoint
        self._began, self._unsaved = int(state["began"]), []
        self.champions.restore(state["champions"])
        self.trainer.restore(state["trainer"])
        ledger = self.ledger
        ledger.numbers = state["numbers"]
        ledger.failures.update(state["failures"])
        ledger.readings, ledger.core_s = int(state["readings"]), float(state.get("core_s", 0.0))  # checkpoints of earlier versions lack it
        self.warm_start, self._warm_tasks = list(state["warm_start"]), list(state["warm_tasks"])
        ledger.tasks = log.numbers.names(ledger.numbers) | set(self._warm_tasks)
        if not lost_rows:  # else remaining rows may come behind missing ones, which must be measured again
            ledger.ahead = read_ahead(self.place.path, log.origin.run, uncommitted_parts, self.spec.target_graph, self.champions.empty())
        self.conductor.models_used = int(state["models_used"])
        epochs = self.schedule.restore(state["schedule"], findings[self._began :], len(self.trainer.models))
        for programs, results in zip(self.schedule.programs[1:], epochs, strict=True):
            self.saturation.epoch_done(programs, results)
        self.conductor.begin(findings[: self._began], epochs)

    def _begin(self, warm: WarmStart | None, start: Mapping[Genome, str]) -> None:
        """Begin without measurements, or with those of earlier runs: these are known, not measured again, and train the first models.

        start: programs that are measured first -> their origin.
        """
        programs = {**start, **({} if warm is None else {genome: "warm start" for genome in warm.programs if genome not in start})}
        if programs or (warm is not None and not warm.empty):
            self._unsaved.append(Collector().pack(len(self.levels), programs) if warm is None else warm.findings(programs))
            self._began = 1
        if warm is not None:
            self.warm_start, self._warm_tasks = list(lines(warm)), list(warm.tasks)
            self.ledger.tasks.update(warm.tasks)
            if self.ledger.boards is not None:
                self.ledger.boards.note_start(warm.boards)
            if not self.quiet:
                for line in self.warm_start:
                    say(line)
        self.conductor.begin(self._unsaved)

    def search_until_spent(self) -> None:
        self.conductor.run()
        if self._unsaved:
            self._save(self.clock.monotonic_s())
        self.ledger.log.flush()
        if self.storing is not None:
            self.storing.close()

    def ended(self, end_label: str) -> SearchEnd:
        """Champions and baselines.  Raises `TilefarmError` if no program of single operators could be measured.

        end_label: name of its log.
        """
        champions, failures, *_ = self.ledger.counted
        best = tuple(program for program in champions.best if program is not None)
        baselines = tuple(program for program in map(champions.baseline, range(len(self.levels))) if program is not None)
        if min(len(best), len(baselines)) < len(self.levels):
            counts = ", ".join(f"{count} {status}" for status, count in sorted(failures.items()))
            failure = f"no program of single operators could be measured ({counts})"
            raise TilefarmError(f"{end_label}: {failure}; the column `error` of its log says why")
        return SearchEnd(best, baselines)

    def _first_answer(self) -> None:
        """Raise `BadInputError` if the first program was not measured: a broken runner would otherwise fail for hours."""
        runner, tally = self.spec.origin.runner, self.ledger.counted
        if runner == BUILT_IN or not tally.tasks or tally.failures.total() < tally.tasks:
            return
        self.ledger.log.flush()
        row = read_log(self.place.path, ("status", "error")).astype("str").iloc[-1]
        failure = f"{row['status']}: {row['error']}"
        raise BadInputError(
            f"{runner_origin(runner)}: the first program could not be measured: {failure}; when it can be, give another --out"
        )

    def _committed(self, findings: bytes) -> None:
        """Write a checkpoint after a result, at most as often as configured, and at once after the first one."""
        self._first_answer()
        self._unsaved.append(findings)
        now_s, first = self.clock.monotonic_s(), self.schedule.frontier == (BEGINNING, 0)
        if first or now_s - self._saved_s >= self.config.farm.checkpoint_every_s:
            with nullcontext() if self._meter is None else self._meter.writing():
                self._save(now_s)

    def _save(self, now_s: float) -> None:
        self._saved_s = now_s
        state = {
            "schedule": self.schedule.state(),
            "began": self._began,
            "champions": self.champions.state(),
            "trainer": self.trainer.state(),
            "numbers": self.ledger.numbers,
            "failures": dict(self.ledger.failures),
            "readings": self.ledger.readings,
            "core_s": round(self.ledger.core_s, 3),
            "models_used": self.conductor.models_used,
            "warm_start": self.warm_start,
            "warm_tasks": self._warm_tasks,
        }
        self.checkpoint.save(state, self._unsaved)
        self._unsaved = []
        if self.storing is not None:
            self.storing.step(count(self.ledger.numbers) + len(self.ledger.ahead.tasks))
