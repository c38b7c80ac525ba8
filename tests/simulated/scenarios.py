"""Small real searches, computed once where nothing goes wrong."""

from __future__ import annotations

import atexit
import multiprocessing
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from random import Random
from tempfile import mkdtemp
from types import SimpleNamespace
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa

from compiler.model import ModelSpec, lower_model
from simulator.npu.machine_file import load_machine
from tests.models import small_model
from tests.simulated.actors import Dies
from tests.simulated.disk import SimDisk, SimPlace
from tests.simulated.faults import Faults
from tests.simulated.kernel import US, Crash, Kernel, Process
from tests.simulated.replay import Recording, Replay, build_recording, kills_none, kills_some
from tests.simulated.session import OUT, Disks, Ended, Search, searched
from tests.simulated.world import WorkerClock
from tests.tuning import QUICK
from tuner.cost_model.model_file import TrainingOutcome
from tuner.driver import configured
from tuner.farm.actions import DIED
from tuner.farm.actor_pool import ActorPool
from tuner.farm.initial_model import packaged_prior
from tuner.farm.jobs import Broadcast, FailingItem, Job, JobResult, Training
from tuner.farm.recorder import FEATURE_SETS
from tuner.farm.search_run import SearchRun
from tuner.farm.search_spec import SearchSpec
from tuner.log.drift import Drift
from tuner.log.read import read_table
from tuner.log.record import ORIGIN, log_schema, task_schema
from tuner.log.writer import Origin, RunLog, _Chosen, _described
from tuner.measure.request import Request
from tuner.tune_request import TuneRequest

VOLATILE = ("worker", "wall_s", "time", "attempt", "row_id")
ENOUGH_S = 3000.0  # for any run to come to its end
NO_MODEL = "use.cost_model=false"


@dataclass(frozen=True)
class Scenario:
    """A search and the world it is in.  workers: None for the serial backend.  min_workers: of them from the beginning; None: all.
    recorders: workers of the undisturbed world; None: `workers`.
    warm: it begins with what `plain` found.

    candidates: None where readings are the budget, or the sessions have a time each, and the run ends as saturated.
    turns: how often it comes, among the others.
    """

    name: str
    model: str
    candidates: int | None
    workers: int | None
    lag: int
    overrides: tuple[str, ...] = ()
    kills: Callable[[Request], bool] = kills_none
    mirror: bool = False
    store: bool = False
    warm: bool = False
    turns: int = 3
    measurements: int | None = None
    min_workers: int | None = None
    recorders: int | None = None

    @property
    def serial(self) -> bool:
        """No actors."""
        return self.workers is None

    @property
    def timed(self) -> bool:
        """Its sessions have a time each."""
        return self.candidates is None and self.measurements is None

    def replay(self, recording: Recording, kernel: Kernel, process: Process) -> Replay:
        """As job runners need it in a session."""
        clock = WorkerClock(kernel)
        if not self.serial:
            return Replay(recording, clock)

        def die() -> NoReturn:
            kernel.say("the item that is measured kills the process")
            process.kill()
            raise Crash

        return Replay(recording, clock, die, lambda seconds: kernel.wait(None, round(seconds * US)))


SCENARIOS = (
    Scenario("plain", "residual_block", 28, 4, 8, (NO_MODEL, "farm.checkpoint_every_s=30")),
    Scenario("model", "residual_block", 40, 5, 6),
    Scenario("packaged", "conv_chain", 32, 4, 8, ("use.packaged_model=true", "model.growth=0.2")),
    Scenario("deadly", "inception_block", 28, 4, 8, (NO_MODEL,), kills_some(40)),
    Scenario("crowd", "shuffle_block", 64, 64, 32, (NO_MODEL, "segments.measured=4", "farm.idle_s=1"), turns=1, min_workers=8),
    Scenario("queue", "conv_chain", 36, 4, 24, (NO_MODEL, "segments.measured=4", "farm.checkpoint_every_s=60")),
    Scenario("mirror", "residual_block", 28, 4, 8, (NO_MODEL, "farm.checkpoint_every_s=5"), mirror=True, turns=6),
    Scenario("store", "residual_block", 28, 4, 8, (NO_MODEL, "farm.checkpoint_every_s=5"), store=True),
    Scenario("serial", "residual_block", 24, None, 4, (NO_MODEL,)),
    Scenario("readings", "residual_block", None, 4, 8, (NO_MODEL, "farm.checkpoint_every_s=10"), kills_some(50), measurements=450),
    Scenario("serial-readings", "conv_chain", None, None, 6, (NO_MODEL,), measurements=401, turns=2),
    Scenario("warm", "residual_block", 24, 4, 8, warm=True),
    Scenario("elastic", "residual_block", 28, 9, 8, (NO_MODEL, "farm.checkpoint_every_s=30", "farm.idle_s=2"), min_workers=1),
    Scenario(
        "timed",
        "residual_block",
        None,
        4,
        10,
        (NO_MODEL, "segments.measured=4", "budget.least_gain=1.0", "farm.checkpoint_every_s=4"),
        turns=2,
    ),
    Scenario(
        "thousand",
        "residual_block",
        1200,
        1000,
        1000,
        (NO_MODEL, "search.strategy=tests.simulated.random_search:RandomSearch", "farm.idle_s=5"),
        turns=0,
        min_workers=600,
        recorders=2,
    ),
    Scenario(
        "long",
        "residual_block",
        400,
        16,
        16,
        (NO_MODEL, "segments.measured=12", "farm.checkpoint_every_s=20", "farm.idle_s=1"),
        turns=1,
        min_workers=4,
    ),
)


KEY = ("task", "island", "generation", "level")
TASK_KEY = ("task", "parents")  # jobs that do not know of one another may propose the same program


@dataclass(frozen=True)
class Rows:
    """log, tasks: without what may differ, and without numbers.  places: of the rows of the log, by `KEY`, and of tasks by `TASK_KEY`."""

    log: pa.Table
    tasks: pa.Table
    places: dict[tuple[Any, ...], int]

    @staticmethod
    def of(recording: Recording, log: pa.Table) -> Rows:
        """Of all jobs.  log: of some of them."""
        batches = [result.batch.opened() for result in recording.results.values() if isinstance(result, JobResult)]
        chosen = [_Chosen(opened, np.ones(len(opened.names), np.bool_), np.arange(len(opened.names))) for opened in batches]
        origin = Origin(**{name: log[name][0].as_py() for name in ORIGIN})
        writer = SimpleNamespace(origin=origin, _rows=SimpleNamespace(schema=log_schema()), _drift=Drift())
        rows = plain_table(RunLog._numbered(writer, chosen), (*VOLATILE, "seq"))  # type: ignore[arg-type]
        tasks = plain_table(_described(chosen, task_schema(FEATURE_SETS)))
        places = {key: at for at, key in enumerate(keys(rows, KEY))}
        return Rows(rows, tasks, places | {key: at for at, key in enumerate(keys(tasks, TASK_KEY))})


def keys(table: pa.Table, columns: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    """Of its rows."""
    return zip(*(table[name].to_pylist() for name in columns), strict=True)


@dataclass(frozen=True)
class Computed:
    """A scenario as it goes where nothing goes wrong.  log, tasks: its rows without what may differ.  calls, names: of the driver to the
    world.  every: rows of all jobs that there can be, where sessions have a time each."""

    scenario: Scenario
    search: Search
    disks: Disks
    recording: Recording
    ended: Ended
    log: pa.Table
    tasks: pa.Table
    calls: int
    names: int
    time_s: float
    events: int
    every: Rows | None

    @property
    def levels(self) -> tuple[str, ...]:
        """Of contention."""
        return tuple(self.search.opened.machine.contention)


def plain_table(table: pa.Table, but: tuple[str, ...] = ()) -> pa.Table:
    """Without some columns, and without dictionaries, in one chunk: so that equal rows are equal tables."""
    columns = {}
    for field in table.schema:
        if field.name not in but:
            column = table[field.name]
            columns[field.name] = column.cast(field.type.value_type) if pa.types.is_dictionary(field.type) else column
    return pa.table(columns).combine_chunks()


def rows_of(disk: SimDisk) -> tuple[pa.Table, pa.Table]:
    """Log and tasks on a disk, as readers see them."""
    run = SimPlace(disk, OUT)
    return plain_table(read_table(run, "log").table, VOLATILE), plain_table(read_table(run, "tasks").table, VOLATILE)


def _ahead(replay: Replay, run: SearchRun) -> None:
    """What actors could be at when the end is reached, where others are slower: in other worlds it is begun, and never committed."""
    jobs = run.conductor.jobs
    if not isinstance(jobs, ActorPool):
        return
    schedule, budget = run.schedule, run.ledger.budget
    alone = _Alone(replay, run.spec, jobs.broadcast)
    schedule.waiting.clear()
    schedule._repeated, schedule._next = [], schedule.frontier
    while True:
        if (due := schedule.next(budget.candidates, None, budget.readings)) is not None:
            result = alone.work(due.job)
            assert isinstance(result, JobResult)
            schedule.received(due.key, result)
        elif (training := run.conductor.next_training()) is not None:
            trained = alone.work(training)
            assert isinstance(trained, TrainingOutcome)
            schedule.trained += 1
            jobs.broadcast.tell_models(trained.models)
        else:
            return


class _Alone:
    """A worker beside the farm.  Requests that kill are found by the way."""

    def __init__(self, replay: Replay, spec: SearchSpec, broadcast: Broadcast) -> None:
        self._replay, self._build, self._broadcast = replay, partial(build_recording, replay, spec), broadcast
        self._runner, self._models = self._build(), 0

    def work(self, job: Job | Training) -> JobResult | TrainingOutcome:
        fatal = FailingItem("crash", DIED, 1)
        while True:
            if isinstance(job, Job):
                job = job._replace(failing=tuple((request, fatal) for request in self._replay.recording.fatal))
            update = self._broadcast.update(job, (self._runner.heard.version, self._models))
            self._models = job.models or self._models
            try:
                return self._runner.work(job, update)
            except Dies:
                self._runner, self._models = self._build(), 0


_COMPUTED: dict[str, Computed] = {}


def computed(name: str) -> Computed:
    """A scenario by its name."""
    if name not in _COMPUTED:
        _COMPUTED[name] = _compute(name)
    return _COMPUTED[name]


def compute(names: Sequence[str], processes: int) -> None:
    """Scenarios beside each other, before the processes part that need them all.  The last ones take longest."""
    _earlier()  # the folder is this process's
    with multiprocessing.get_context("fork").Pool(processes) as pool:
        for found in pool.imap_unordered(computed, [name for name in reversed(names) if name not in _COMPUTED]):
            _COMPUTED[found.scenario.name] = found


def _compute(name: str) -> Computed:
    (scenario,) = (each for each in SCENARIOS if each.name == name)
    if scenario.recorders is not None:  # its jobs are the same, and each worker learns of all of them
        alone = _compute_scenario(replace(scenario, workers=scenario.recorders, min_workers=None))
        return replace(alone, scenario=scenario, search=_search(scenario))
    return _compute_scenario(scenario)


def _compute_scenario(scenario: Scenario) -> Computed:
    search, recording, disks = _search(scenario), Recording(scenario.kills, scenario.timed), Disks(SimDisk(Random(0)), SimDisk(Random(0)))
    kernel = Kernel(0)
    while True:
        process, before = Process(kernel, Faults(switch=0.0)), len(recording.fatal)
        replay = scenario.replay(recording, kernel, process)
        build = partial(build_recording, replay)
        session = partial(searched, search, recording, build, disks, kernel, process, set(), partial(_ahead, replay))
        try:
            ended = kernel.run(process, session)
        except Crash:  # of the serial backend, with the items that kill; each of them does so twice
            assert scenario.serial
            assert len(recording.fatal) >= before
        else:
            break
    log, tasks = rows_of(disks.here)
    every = Rows.of(recording, log) if scenario.timed else None
    time_s = kernel.now_us / US
    return Computed(scenario, search, disks, recording, ended, log, tasks, process.calls, process.names, time_s, kernel.events, every)


@cache
def _earlier() -> Path:
    """A run, on the computer's own disk: `plain`."""
    folder = Path(mkdtemp(prefix="tilefarm-simulated-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    run = SimPlace(computed("plain").disks.here, OUT)
    for path in run.glob("**/*"):
        if path.is_file():
            file = folder / path.relative_to(run)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(path.read_bytes())
    return folder


def _search(scenario: Scenario) -> Search:
    opened = lower_model(ModelSpec(Path("m.onnx"), load_machine("edge")), small_model(scenario.model), "m")
    request = TuneRequest(
        Path("m.onnx"),
        "edge",
        Path(*OUT),
        scenario.candidates,
        measurements=scenario.measurements,
        overrides=(*QUICK, f"search.lag={scenario.lag}", "farm.checkpoint_every_s=8", *scenario.overrides),
        backend="serial" if scenario.serial else "ray",
        workers=scenario.workers if scenario.min_workers is None else {"min": scenario.min_workers, "max": scenario.workers or 0},
        resume=True,
        mirror="sim://bucket/RUN" if scenario.mirror else None,
        store="sim://bucket/STORE" if scenario.store else None,
        warm_start=(_earlier(),) if scenario.warm else (),
        seconds=ENOUGH_S if scenario.timed else None,
    )
    config = configured(request)
    return Search(opened, config, request, packaged_prior(config, lambda line: None))
