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
from hypothesis import HealthCheck, given, settings
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
from tuner.farm import epoch_schedule as schedule_module
from tuner.farm.actor_pool import JobMessage, JobWorker, SingleItemMessage
from tuner.farm.epoch_schedule import BEGAN, EpochSchedule, in_use_from, version_of
from tuner.farm.jobs import PROGRAMS, Broadcast, EpochResult, FailingItem, Job, Training, Update, build_job_runner
from tuner.farm.search_spec import SearchSpec
from tuner.log.columns import INTS, compressed, from_bytes, schema_of, to_bytes
from tuner.log.record import EPOCH, RESULTS
from tuner.log.writer import Batch, Origin
from tuner.measure.request import Measurement, Request
from tuner.search.epoch import BEGINNING, EVOLVING, FIRST
from tuner.search.epoch_report import STATUSES, Collector
from tuner.search.hashing import genome_name, key_name
from tuner.search.island_state import pack_island, unpack_island
from tuner.search.knowledge import Knowledge
from tuner.search.packing import pack_genomes, pack_individuals, unpack_genome, unpack_genomes, unpack_individuals
from tuner.search.population import ChildRecord, Individual, Island
from tuner.testing.samples import sample_rows

LEVELS = ("none", "slight", "severe")
MIXED = schema_of(genome=INTS, cycles=pa.int64(), task=pa.string(), proposed=INTS)


@lru_cache(maxsize=4)
def target_graph(name: str = "residual_block") -> TargetGraph:
    return make_unit(small_graph(name), load_machine("tiny"), DataType.float16)


def spec(*overrides: str, seed: int = 0) -> SearchSpec:
    origin, config = Origin("r", "m", "tiny", "v", seed=seed), load_config(None, (*QUICK, "search.islands=3", *overrides))
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


def test_an_island_goes_on_where_it_was() -> None:
    island = Island(
        np.random.default_rng([3, 4]), [Individual(random_genome(target_graph(), np.random.default_rng(0)), np.array([1, 2, 3]), "t")]
    )
    island.rng.integers(10, size=3)
    island.grown = {2: ChildRecord(3, 1), 0: ChildRecord(1 << 40, 5)}
    again = unpack_island(pack_island(island))
    assert again.grown == island.grown
    assert again.rng.integers(1 << 30, size=5).tolist() == island.rng.integers(1 << 30, size=5).tolist()
    assert [m.task for m in again.members] == ["t"]
    with pytest.raises(BadInputError, match="not columns of a search"):
        unpack_island(b"something else")


NUMBERS = schema_of(a=pa.int64(), b=pa.string())
GOOD = to_bytes({"a": np.arange(5), "b": ["x", "yz"]}, NUMBERS)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        GOOD[:-1],
        GOOD[:8] + b"x" + GOOD[9:],
        (1 << 62).to_bytes(8, "little") + GOOD[8:],
        compressed(b"something else"),
        to_bytes({}, schema_of(a=pa.int64())),
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
    that two islands look for."""
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


def findings(*genes: Gene, cycles: int = 7, programs: Sequence[int] = (), border: float | None = None, island: int = 0) -> bytes:
    """programs: numbers of so many that nobody knows."""
    collector = Collector()
    values = np.full((3, len(RESULTS)), cycles)
    for gene in genes:
        collector.heard(Request("segment", (gene,)), Measurement("ok", task=str(gene), values=values))
    for number in programs:
        collector.heard(made_up(number), Measurement("ok", task=str(number), values=values))
    collector.border = None if border is None else np.full(3, border)
    return collector.pack(island, 3)


def made_up(number: int) -> Request:
    return Request("program", (Gene(0, 1, number),))


def name_of(number: int) -> int:
    return genome_name(made_up(number).genome)


def test_what_is_aside_is_forgotten() -> None:
    known = Knowledge(Structures(target_graph()), 3)
    known.learn_epoch([findings(Gene(0, 1), programs=[1], border=4.0)])
    with known.aside():
        known.learn(findings(Gene(0, 1, 2), Gene(1, 2), cycles=3, programs=[2], border=8.0))
        assert known.border.tolist() == [5.0] * 3
        assert known.table.best(0, 1, 0) == (3, Gene(0, 1, 2))
        assert known.programs == {name_of(1), name_of(2)}
    assert known.border.tolist() == [2.0] * 3
    assert known.table.best(0, 1, 0) == (7, Gene(0, 1))
    assert not known.table.known(Gene(1, 2))
    assert known.programs == {name_of(1)}
    assert known.version == 1


# schedule


def test_lag_instead_of_barriers() -> None:
    assert [version_of(epoch) for epoch in range(7)] == [0, 1, 2, 2, 3, 4, 5]
    assert [version_of(in_use_from(version)) > version for version in (3, 4, 9)] == [True] * 3, "a training has an epoch's time"
    assert (FIRST, BEGINNING, EVOLVING) == (0, 1, 2)


def blank(job: Job) -> EpochResult:
    found = findings(programs=[job.epoch * 10 + job.island], island=job.island)
    return EpochResult(job.state + bytes([job.epoch]), Batch(found, b"", b"", 3), b"", True, 0, 0.0)


@pytest.fixture(params=[1, 2, 3])
def lag(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """The rule, and others that it might be."""
    monkeypatch.setattr(schedule_module, "LAG", request.param)
    return int(request.param)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 2**32 - 1), st.integers(1, 4), st.integers(1, 5))
def test_any_order_of_work_gives_the_same_jobs(lag: int, seed: int, islands: int, workers: int) -> None:
    """Jobs finish in any order; what each was told follows from its epoch and island alone, and no island waits for the slowest.

    An island's epoch e measures e programs, of which the budget is told as what was complete when what it builds on was.
    """
    rng = np.random.default_rng(seed)
    schedule, running, epochs = EpochSchedule([bytes([i]) for i in range(islands)]), {}, list[list[bytes]]()
    started: dict[tuple[int, int], Job] = {}
    programs = 0
    while schedule.complete < 7:
        while len(running) < workers and (due := schedule.next(1000, None)) is not None:
            assert due.key not in started
            started[due.key] = running[due.key] = due.job
            assert due.key[0] <= schedule.complete + lag
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
    for (epoch, island), job in started.items():
        assert job.version == BEGAN + version_of(epoch)
        assert job.state == bytes([island, *range(1 if island else 0, epoch)])
        assert job.models == (1 if epoch >= in_use_from(3) else 0)
        assert job.programs == 1000 - islands * sum(range(version_of(epoch)))
        assert job.island_findings == tuple(findings(programs=[e * 10 + island], island=island) for e in range(version_of(epoch), epoch))
    for epoch, found in enumerate(epochs[:7]):
        assert [from_bytes(data, EPOCH)["programs"].tolist() for data in found] == [
            [name_of(epoch * 10 + i)] for i in range(1 if epoch == 0 else islands)
        ]


def test_an_island_may_be_an_epoch_ahead() -> None:
    schedule = EpochSchedule([b"a", b"b"])
    for _ in range(5):  # epochs 0, 1 and the first evolving one
        due = schedule.next(None, None)
        assert due is not None
        schedule.received(due.key, blank(due.job))
        while schedule.to_commit() is not None:
            schedule.committed(0)
    slow = schedule.next(None, None)
    fast = schedule.next(None, None)
    assert slow is not None
    assert fast is not None
    assert (slow.key, fast.key) == ((3, 0), (3, 1))
    schedule.received(fast.key, blank(fast.job))
    ahead = schedule.next(None, None)
    assert ahead is not None
    assert ahead.key == (4, 1), "epoch 3 of the other island is still running"
    schedule.received(ahead.key, blank(ahead.job))
    assert schedule.next(None, None) is None, "two ahead would have to know what is not known yet"


@pytest.mark.parametrize("commits", [0, 1, 2, 3, 4, 6, 9])
@pytest.mark.usefixtures("lag")
def test_a_schedule_goes_on_from_its_state(commits: int) -> None:
    schedule, found, epochs = EpochSchedule([b"a", b"b", b"c"]), list[bytes](), list[list[bytes]]()
    for _ in range(commits):
        due = schedule.next(None, None)
        assert due is not None
        result = blank(due.job)
        schedule.received(due.key, result)
        found.append(result.findings)
        if (done := schedule.committed(len(found))) is not None:
            epochs.append(done)
    again = EpochSchedule([b"a", b"b", b"c"])
    assert again.restore(json.loads(json.dumps(schedule.state())), found, 0) == epochs
    for _ in range(6):
        one, two = schedule.next(50, None), again.next(50, None)
        assert one == two
        assert one is not None
        for each in (schedule, again):
            each.received(one.key, blank(one.job))
            while each.to_commit() is not None:
                each.committed(20)


# job runners


def parts(result: EpochResult | TrainingOutcome) -> tuple[object, ...]:
    """Of a result, what may not depend on where it was made; rows without times and workers."""
    assert isinstance(result, EpochResult)
    return result.state, result.findings, result.batch.tasks, result.programs, result.segments, result.complete


def statuses(result: EpochResult) -> list[str]:
    return [STATUSES[code] for code in from_bytes(result.findings, EPOCH)["status"]]


class Course:
    """Three evolving epochs of three islands, job by job; keeps jobs, results and news."""

    def __init__(self, made: SearchSpec) -> None:
        self.spec, self.broadcast = made, Broadcast()
        self.done: list[tuple[Job, EpochResult]] = []
        schedule, job_runner, heard = EpochSchedule([b""] * made.config.islands), build_job_runner(made), 0
        self.broadcast.epochs.append([])
        while schedule.complete < 5:
            due = schedule.next(None, None)
            assert due is not None
            result = job_runner.work(due.job, self.broadcast.update(due.job, (heard, 0)))
            heard = due.job.version
            assert isinstance(result, EpochResult)
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
        pickle.dumps(JobMessage("w0", job, update.first)), (update.models, update.answers, update.stored, *update.epochs), announce
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
    assert isinstance(short, EpochResult)
    assert not short.complete
    assert len(from_bytes(short.programs, PROGRAMS).arrow("genome")) == 2
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
    assert isinstance(found, EpochResult)
    assert bad not in asked
    assert statuses(found).count("timeout") == 1


def test_trainings_repeat_and_their_models_predict(course: Course) -> None:
    training = Training(1, len(course.broadcast.epochs), 0, pack_rows(sample_rows("edge")))
    one, two = (made.work(training, course.broadcast.update(training, (0, 0))) for made in map(build_job_runner, [course.spec] * 2))
    assert isinstance(one, TrainingOutcome)
    assert one == two
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
