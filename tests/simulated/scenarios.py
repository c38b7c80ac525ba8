"""Small real searches, computed once where nothing goes wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from random import Random

import pyarrow as pa

from compiler.kinds.build import make_unit
from simulator.npu.machine import DataType, load_machine
from tests.models import small_graph
from tests.simulated.actors import Dies
from tests.simulated.disk import SimDisk, SimPlace
from tests.simulated.faults import Faults
from tests.simulated.kernel import Kernel, Process
from tests.simulated.replay import Recording, RecordingJobRunner, kills_none, kills_some, recording_worker
from tests.simulated.session import OUT, Ended, Search, searched
from tests.tuning import QUICK
from tuner.config import load_config
from tuner.farm.jobs import EpochResult, FailingItem, Job, JobRunnerSpec, Training
from tuner.farm.one_search import OneSearch
from tuner.farm.orders import DIED
from tuner.farm.pool import ActorPool
from tuner.learn.trained import Trained
from tuner.measure.evaluate import EvaluatorSpec
from tuner.measure.measurement import Request
from tuner.store.read import read_table

VOLATILE = ("worker", "wall_s", "time", "attempt", "row_id")


@dataclass(frozen=True)
class Scenario:
    """A search and the world it is in."""

    name: str
    model: str
    candidates: int
    workers: int
    islands: int
    overrides: tuple[str, ...] = ()
    kills: Callable[[Request], bool] = kills_none


SCENARIOS = (
    Scenario("plain", "residual_block", 40, 4, 4, ("use.cost_model=false", "farm.checkpoint_every_s=30")),
    Scenario("model", "residual_block", 48, 5, 3),
    Scenario("deadly", "inception_block", 40, 4, 4, ("use.cost_model=false",), kills_some(40)),
    Scenario("crowd", "shuffle_block", 64, 64, 16, ("use.cost_model=false", "segments.measured=8")),
    Scenario("queue", "conv_chain", 60, 4, 12, ("use.cost_model=false", "segments.measured=8", "farm.checkpoint_every_s=60")),
)


@dataclass(frozen=True)
class Computed:
    """A scenario as it goes where nothing goes wrong.  log, tasks: its rows without what may differ.  calls: of the driver to the world."""

    scenario: Scenario
    search: Search
    recording: Recording
    ended: Ended
    log: pa.Table
    tasks: pa.Table
    calls: int
    time_s: float
    events: int


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


def _ahead(spec: JobRunnerSpec, recording: Recording, run: OneSearch, jobs: ActorPool) -> None:
    """What islands could be at when the end is reached, where others are slower: in other worlds it is begun, and never committed."""
    schedule, candidates = run.schedule, run.ledger.budget.candidates
    schedule._running.clear()
    schedule.waiting.clear()
    while True:
        if (due := schedule.next(candidates, None)) is not None:
            result = _computed_alone(spec, recording, jobs, due.job)
            assert isinstance(result, EpochResult)
            schedule.received(due.key, result)
        elif (training := schedule.next_training()) is not None:
            trained = _computed_alone(spec, recording, jobs, training)
            assert isinstance(trained, Trained)
            schedule.trained += 1
            jobs.tell_models(trained.models)
        else:
            return


def _computed_alone(spec: JobRunnerSpec, recording: Recording, jobs: ActorPool, job: Job | Training) -> EpochResult | Trained:
    """Asks that kill are found by the way."""
    fatal = FailingItem("crash", DIED, 1)
    while True:
        job_runner = RecordingJobRunner(spec, spec.evaluator(), recording)
        if isinstance(job, Job):
            job = job._replace(failing=tuple((request, fatal) for request in recording.fatal))
        try:
            return job_runner.work(job, jobs._broadcast.update(job, (0, 0)))
        except Dies:
            pass


@cache
def computed(name: str) -> Computed:
    """A scenario by its name."""
    (scenario,) = (each for each in SCENARIOS if each.name == name)
    unit = make_unit(small_graph(scenario.model), load_machine("edge"), DataType.float16)
    levels = tuple(unit.machine.contention)
    overrides = (*QUICK, f"search.islands={scenario.islands}", "farm.checkpoint_every_s=8", *scenario.overrides)
    search = Search(unit, levels, load_config(None, overrides), scenario.candidates, scenario.workers)
    spec = JobRunnerSpec(EvaluatorSpec(unit, levels), search.facts, search.config, {}, 0)
    recording = Recording(scenario.kills)
    kernel, disk = Kernel(0), SimDisk(Random(0))
    process = Process(kernel, Faults(switch=0.0))
    ended = kernel.run(
        process,
        lambda: searched(
            search, recording, lambda: recording_worker(spec, recording), disk, kernel, process, set(), partial(_ahead, spec, recording)
        ),
    )
    log, tasks = rows_of(disk)
    return Computed(scenario, search, recording, ended, log, tasks, process.calls, kernel.now_us / 1e6, kernel.events)
