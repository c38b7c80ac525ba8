"""Jobs: packed and unpacked, lag, and the same results wherever, whenever and after whatever they run."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compiler.ops.lower_graph import make_unit
from compiler.space.gene import Gene
from compiler.space.mutators import random_genome
from compiler.space.structural_hash import Structures
from compiler.target.target_graph import TargetGraph
from simulator.npu.errors import BadInputError
from simulator.npu.machine_file import load_machine
from simulator.npu.parts import DataType
from tests.models import small_graph
from tests.tuning import QUICK, ROOT
from tuner.config import load_config
from tuner.cost_model.model_file import TrainingOutcome
from tuner.cost_model.training_rows import pack_rows
from tuner.farm.actor_pool import JobMessage, JobWorker, SingleItemMessage
from tuner.farm.epoch_schedule import BEGAN, EpochSchedule
from tuner.farm.jobs import Broadcast, FailingItem, Job, JobResult, Training, Update, build_job_runner
from tuner.farm.search_spec import SearchSpec
from tuner.log.columns import INTS, compressed, from_bytes, required_schema, to_bytes
from tuner.log.record import EPOCH, RESULTS
from tuner.log.writer import Batch, Origin
from tuner.measure.request import Measurement, Request
from tuner.search.epoch import BEGINNING, EVOLVING, FIRST
from tuner.search.epoch_report import STATUSES, Collector
from tuner.search.hashing import genome_name, key_name
from tuner.search.knowledge import Knowledge
from tuner.search.packing import pack_genomes, pack_individuals, unpack_genome, unpack_genomes, unpack_individuals
from tuner.search.population import Individual
from tuner.testing.samples import sample_rows

LEVELS = ("none", "slight", "severe")
MIXED = required_schema(genome=INTS, cycles=pa.int64(), task=pa.string(), proposed=INTS)


@lru_cache(maxsize=4)
def target_graph(name: str = "residual_block") -> TargetGraph:
    return make_unit(small_graph(name), load_machine("tiny"), DataType.float16)


def spec(*overrides: str, seed: int = 0) -> SearchSpec:
    origin, config = Origin("r", "m", "tiny", "v", seed=seed), load_config(None, (*QUICK, "search.lag=6", *overrides))
    return SearchSpec(origin, target_graph(), LEVELS, config)


# packing


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(0, 5))
def test_genes_and_individuals_survive_packing(seed: int, count: int) -> None:
    rng = np.random.default_rng(seed)
    everyone = [
        Individual(random_genome(target_graph(), rng), rng.integers(1, 1 << 40, 3), f"{int(rng.integers(1 << 30)):032x}")
        for _ in range(count)
    ]
    genes = [gene for m in everyone for gene in m.genome] + [
        Gene(0, 3, 2, 1, -1, 2, "streamed", (1, 2, 63), (0, 1), -1, True, False, "channels")
    ] * count
    genomes = [tuple(genes), (), *(m.genome for m in everyone)]
    columns = from_bytes(to_bytes(pack_individuals(everyone) | {"proposed": pack_genomes(genomes)}, MIXED), MIXED)
    assert repr(unpack_genomes(columns.arrow("proposed"))) == repr(genomes), "numbers stay numbers and switches switches"
    for one, two in zip(everyone, unpack_individuals(columns), strict=True):
        assert (one.genome, one.cycles.tolist(), one.task) == (two.genome, two.cycles.tolist(), two.task)
    for at, genome in enumerate(genomes):
        assert unpack_genome(columns.arrow("proposed"), at) == genome


NUMBERS = required_schema(a=pa.int64(), b=pa.string())
GOOD = to_bytes({"a": np.arange(5), "b": ["x", "yz"]}, NUMBERS)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        GOOD[:-1],
        GOOD[:8] + b"x" + GOOD[9:],
        (1 << 62).to_bytes(8, "little") + GOOD[8:],
        compressed(b"something else"),
        to_bytes({}, required_schema(a=pa.int64())),
        compressed(pa.record_batch([[[1], [2]], [["x"], []]], NUMBERS).serialize()),
    ],
)
def test_bytes_that_are_no_columns_are_refused(data: bytes) -> None:
    with pytest.raises(BadInputError, match="not columns of a search"):
        from_bytes(data, NUMBERS)


def test_columns_come_back_as_they_were() -> None:
    found = from_bytes(GOOD, NUMBERS)
    assert (found["a"].tolist(), found.texts("b")) == ([0, 1, 2, 3, 4], ["x", "yz"])
    assert from_bytes(to_bytes({}, NUMBERS), NUMBERS)["a"].tolist() == []


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_damage_to_columns_is_an_error_or_visible(data: st.DataObject) -> None:
    """Never a crash of the process, whatever the bytes say of their lengths."""
    raw = bytearray(pa.record_batch([[[1, 2, 3]], [["x", "yz"]]], NUMBERS).serialize().to_pybytes())
    for _ in range(3):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    with suppress(BadInputError):
        found = from_bytes(compressed(bytes(raw)), NUMBERS)
        _ = found["a"], found.arrow("b").to_pylist


def test_genomes_and_keys_are_named_alike_everywhere() -> None:
    """Python salts the hashes of texts, not of numbers: a name that changed would be a program measured twice after a resume, and a segment
    that two jobs look for."""
    code = """
from compiler.space.gene import Gene
from tuner.search.hashing import genome_name, key_name
genome = Gene(0, 2, 3, choices=(1, 2)), Gene(2, 3, split="channels")
print(genome_name(genome), key_name(("00ff", genome[1][2:])))
"""
    environment = os.environ | {"PYTHONHASHSEED": "12345"}
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    genome = Gene(0, 2, 3, choices=(1, 2)), Gene(2, 3, split="channels")
    assert done.stdout.split() == [str(genome_name(genome)), str(key_name(("00ff", genome[1][2:])))]


# knowledge


VALUES = np.full((3, len(RESULTS)), 7)


def findings(*genes: Gene, programs: Sequence[int] = (), border: float | None = None) -> bytes:
    """programs: numbers of made-up programs."""
    collector = Collector()
    for request, measurement in measured(*genes, programs=programs):
        collector.heard(request, measurement)
    collector.border = None if border is None else np.full(3, border)
    return collector.pack(3)


def measured(*genes: Gene, programs: Sequence[int] = (), cycles: int = 7) -> list[tuple[Request, Measurement]]:
    requests = [*(Request("segment", (gene,)) for gene in genes), *map(made_up, programs)]
    return [(request, Measurement("ok", task=str(request.genome), values=np.full_like(VALUES, cycles))) for request in requests]


def made_up(number: int) -> Request:
    return Request("program", (Gene(0, 1, number),))


def name_of(number: int) -> int:
    return genome_name(made_up(number).genome)


def test_what_is_aside_is_forgotten() -> None:
    known = Knowledge(Structures(target_graph()), 3)
    known.learn_epoch([findings(Gene(0, 1), programs=[1], border=4.0)])
    with known.temporary():
        for request, measurement in measured(Gene(0, 1, 2), Gene(1, 2), programs=[2], cycles=3):
            known.heard(request, measurement)
        known.add_border(np.full(3, 8.0))
        assert known.border.tolist() == [5.0] * 3
        assert known.table.best(0, 1, 0) == (3, Gene(0, 1, 2))
        assert known.programs.keys() == {name_of(1), name_of(2)}
        assert known.population.best(0).genome == made_up(2).genome
    assert known.border.tolist() == [2.0] * 3
    assert known.table.best(0, 1, 0) == (7, Gene(0, 1))
    assert not known.table.known(Gene(1, 2))
    assert known.programs.keys() == {name_of(1)}
    assert [member.genome for member in known.population.members] == [made_up(1).genome]
    assert known.version == 1


def test_a_job_learns_what_later_jobs_learn() -> None:
    """Measurements of a job in progress, and its findings, give equal knowledge."""
    genes, programs = (Gene(0, 1), Gene(0, 2, 2)), (3, 1, 2)
    told, heard = (Knowledge(Structures(target_graph()), 3) for _ in range(2))
    told.learn_epoch([findings(*genes, programs=programs)])
    for request, measurement in measured(*genes, programs=programs):
        heard.heard(request, measurement)
    assert [(m.genome, m.task) for m in told.population.members] == [(m.genome, m.task) for m in heard.population.members]
    assert {name: cycles.tolist() for name, cycles in told.programs.items() if cycles is not None} == {
        name_of(number): [7, 7, 7] for number in programs
    }
    assert told.programs.keys() == heard.programs.keys()
    assert told.table.cycles.keys() == heard.table.cycles.keys()


# schedule


def test_lag_instead_of_barriers() -> None:
    schedule, sequential = EpochSchedule(4), EpochSchedule(1, 0)
    assert [schedule.version_of(epoch) for epoch in range(7)] == [0, 1, 2, 2, 3, 4, 5]
    assert [sequential.version_of(epoch) for epoch in range(7)] == [0, 1, 2, 3, 4, 5, 6]
    assert [schedule.version_of(schedule.in_use_from(version)) > version for version in (3, 4, 9)] == [True] * 3, "a training takes time"
    assert (FIRST, BEGINNING, EVOLVING) == (0, 1, 2)


@given(st.integers(0, 300))
def test_no_job_lacks_more_than_the_lag(lag: int) -> None:
    search = load_config(None, [f"search.lag={lag}"]).search
    schedule = EpochSchedule(search.shards, search.behind)
    for epoch, shard in ((EVOLVING + 2, 0), (EVOLVING + 5, search.shards - 1)):
        missing = (epoch - schedule.version_of(epoch)) * search.shards + shard
        assert missing < max(1, lag)
    assert schedule.most_jobs <= max(1, lag)


def blank(job: Job) -> JobResult:
    return JobResult(Batch(findings(programs=[job.epoch * 10 + job.shard]), b"", b"", 3), True, 0, 0.0)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 4), st.integers(1, 5), st.integers(0, 3))
def test_any_order_of_work_gives_the_same_jobs(seed: int, shards: int, workers: int, behind: int) -> None:
    """Jobs finish in any order; what each was told follows from its epoch alone, and no job waits for the slowest.

    A job of epoch e measures e programs, of which the budget is told as what was complete when what it builds on was.
    """
    rng = np.random.default_rng(seed)
    schedule, running, epochs = EpochSchedule(shards, behind), {}, list[list[bytes]]()
    started: dict[tuple[int, int], Job] = {}
    programs = 0
    while schedule.complete < 7:
        while len(running) < workers and (due := schedule.next(1000, None)) is not None:
            assert due.key not in started
            started[due.key] = running[due.key] = due.job
            assert due.key[0] <= schedule.complete + behind
            assert due.key[0] <= EVOLVING or len(running) + len(schedule.waiting) <= schedule.most_jobs
        key = sorted(running)[int(rng.integers(len(running)))]
        schedule.received(key, blank(running.pop(key)))
        while schedule.to_commit() is not None:
            programs += schedule.frontier[0]
            done = schedule.committed(programs)
            if done is not None:
                epochs.append(done)
                if schedule.complete == 3:
                    schedule.train()
        if schedule.next_training() is not None:
            assert schedule.next_training() == Training(1, BEGAN + 3, 0)
            schedule.trained += 1
    for (epoch, shard), job in started.items():
        version = schedule.version_of(epoch)
        assert (job.epoch, job.shard, job.version) == (epoch, shard, BEGAN + version)
        assert job.models == (1 if epoch >= schedule.in_use_from(3) else 0)
        assert job.programs == 1000 - shards * sum(range(version))
    for epoch, done in enumerate(epochs[:7]):
        assert [from_bytes(data, EPOCH)["programs"].tolist() for data in done] == [
            [name_of(epoch * 10 + i)] for i in range(1 if epoch == 0 else shards)
        ]


@pytest.mark.parametrize("commits", [0, 1, 2, 3, 4, 6, 9])
@pytest.mark.parametrize("behind", [0, 1, 2])
def test_a_schedule_goes_on_from_its_state(commits: int, behind: int) -> None:
    schedule, finished, epochs = EpochSchedule(3, behind), list[bytes](), list[list[bytes]]()
    for _ in range(commits):
        due = schedule.next(None, None)
        assert due is not None
        result = blank(due.job)
        schedule.received(due.key, result)
        finished.append(result.findings)
        if (done := schedule.committed(len(finished))) is not None:
            epochs.append(done)
    again = EpochSchedule(3, behind)
    assert again.restore(json.loads(json.dumps(schedule.state())), finished, 0) == epochs
    for _ in range(6):
        one, two = schedule.next(50, None), again.next(50, None)
        assert one == two
        assert one is not None
        for each in (schedule, again):
            each.received(one.key, blank(one.job))
            while each.to_commit() is not None:
                each.committed(20)


def test_a_repeated_job_comes_first() -> None:
    schedule = EpochSchedule(3)
    first = schedule.next(None, None)
    assert first is not None
    schedule.received(first.key, blank(first.job))
    schedule.committed(1)
    jobs = [schedule.next(9, None) for _ in range(3)]
    for due in jobs:
        assert due is not None
        schedule.received(due.key, blank(due.job))
    schedule.again()
    assert schedule.to_commit() is None
    repeated = schedule.next(9, None)
    assert repeated is not None
    assert jobs[0] is not None
    assert (repeated.key, repeated.job) == (jobs[0].key, jobs[0].job._replace(programs=None)), "without its limit"
    assert schedule.next(9, None) is None, "the next epoch needs it"


# job runners


def parts(result: JobResult | TrainingOutcome) -> tuple[object, ...]:
    """Of a result, what may not depend on where it was made; rows without times and workers."""
    assert isinstance(result, JobResult)
    return result.findings, result.batch.tasks, result.segments, result.complete


def statuses(result: JobResult) -> list[str]:
    return [STATUSES[code] for code in from_bytes(result.findings, EPOCH)["status"]]


class Course:
    """Three evolving epochs of three jobs; keeps jobs, results and news."""

    def __init__(self, made: SearchSpec) -> None:
        self.spec, self.broadcast = made, Broadcast()
        self.done: list[tuple[Job, JobResult]] = []
        schedule, job_runner, heard = EpochSchedule(made.config.search.shards), build_job_runner(made), 0
        self.broadcast.epochs.append([])
        while schedule.complete < 5:
            due = schedule.next(None, None)
            assert due is not None
            result = job_runner.work(due.job, self.broadcast.update(due.job, (heard, 0)))
            heard = due.job.version
            assert isinstance(result, JobResult)
            self.done.append((due.job, result))
            schedule.received(due.key, result)
            while schedule.to_commit() is not None:
                if (found := schedule.committed(0)) is not None:
                    self.broadcast.epochs.append(found)


@pytest.fixture(scope="module")
def course() -> Course:
    return Course(spec())


def test_job_is_the_same_in_any_job_runner(course: Course) -> None:
    other = build_job_runner(course.spec)
    for job, result in [course.done[-1], course.done[5], course.done[8]]:  # backwards too: it begins again
        assert parts(other.work(job, course.broadcast.update(job, (other.known.version, 0)))) == parts(result)
    fresh = build_job_runner(course.spec)
    job, result = course.done[7]
    assert parts(fresh.work(job, course.broadcast.update(job, (0, 0)))) == parts(result)


def test_announcing_job_is_equal_and_tries_nothing_early(course: Course) -> None:
    worker, job, result = JobWorker(course.spec), *course.done[-1]
    update, said = course.broadcast.update(job, (0, 0)), list[Request]()

    def announce(item: bytes) -> None:
        assert worker.done == before + len(said), "what was announced before is finished, and nothing else"
        said.append(pickle.loads(item))

    before = worker.done + len(update.epochs)
    packed = worker.work(
        pickle.dumps(JobMessage("w0", job, update.first)), (update.models, update.answers, update.stored_results, *update.epochs), announce
    )
    found = pickle.loads(packed)
    assert parts(found) == parts(result)
    assert sum(request.measure for request in said) >= len(statuses(found))
    alone = worker.done
    assert worker.work(pickle.dumps(SingleItemMessage("w0", pickle.dumps(said[-1]))), (), None) == b""
    assert worker.done == alone + 1


def test_what_is_stopped_is_a_beginning(course: Course) -> None:
    job, result = course.done[-1]
    job_runner = build_job_runner(course.spec)
    short = job_runner.work(job._replace(programs=2), course.broadcast.update(job, (0, 0)))
    assert isinstance(short, JobResult)
    assert not short.complete
    assert len(from_bytes(short.findings, EPOCH)["programs"]) == 2
    assert statuses(short) == statuses(result)[: len(statuses(short))]
    again = job_runner.work(job, course.broadcast.update(job, (job.version, 0)))
    assert parts(again) == parts(result), "nothing of it is remembered"


def test_culprits_are_not_tried(course: Course) -> None:
    asked = []
    job = course.done[-1][0]
    job_runner = build_job_runner(course.spec)
    measure = job_runner.evaluator.measure
    job_runner.evaluator.measure = lambda request: asked.append(request) or measure(request)  # type: ignore[method-assign, func-returns-value]
    job_runner.work(job, course.broadcast.update(job, (0, 0)))
    bad = next(request for request in asked if request.measure and request.kind == "segment")
    asked.clear()
    found = job_runner.work(
        job._replace(failing=((bad, FailingItem("timeout", "too long", 0)),)), course.broadcast.update(job, (job.version, 0))
    )
    assert isinstance(found, JobResult)
    assert bad not in asked
    assert statuses(found).count("timeout") == 1


def test_trainings_repeat_and_their_models_predict(course: Course) -> None:
    training = Training(1, len(course.broadcast.epochs), 0, pack_rows(sample_rows("edge")))
    one, two = (made.work(training, course.broadcast.update(training, (0, 0))) for made in map(build_job_runner, [course.spec] * 2))
    assert isinstance(one, TrainingOutcome)
    assert isinstance(two, TrainingOutcome)
    assert min(one.cpu_s, two.cpu_s) > 0
    assert one._replace(cpu_s=0.0) == two._replace(cpu_s=0.0)
    course.broadcast.models.append(one.models)
    job = course.done[-1][0]._replace(models=1)
    job_runner = build_job_runner(course.spec)
    job_runner.work(job, course.broadcast.update(job, (0, 0)))
    assert len(one.models) == 1, "promoted"
    assert all(model is not None for model in job_runner.predictors)
    job_runner.hear(Update(job.version, [], ()))
    assert job_runner.predictors == [None] * 3, "an older number, of which none was promoted"


def test_a_job_runner_that_missed_something_says_so(course: Course) -> None:
    job = course.done[-1][0]
    with pytest.raises(ValueError, match="news from epoch 2 on, where 0 are known"):
        build_job_runner(course.spec).work(job, course.broadcast.update(job, (2, 0)))
