"""Jobs on actors: an item that kills or stops its worker is found, logged, and asked by nobody again; the rest is as it would have been."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import pandas as pd
import pytest
from ray import cloudpickle

from compiler.ops.lower_graph import make_unit
from compiler.space.gene import Gene
from compiler.target.target_graph import TargetGraph
from simulator.npu.machine_file import load_machine
from simulator.npu.parts import DataType
from tests.models import small_graph
from tests.tuning import QUICK, GatheredPool
from tuner.config import load_config
from tuner.cost_model.trainer import Trainer
from tuner.farm import actor_pool, supervision
from tuner.farm.actor_pool import ActorPool, JobWorker
from tuner.farm.commit_log import Ledger, RunBudget
from tuner.farm.coordinator import Coordinator, Jobs, SerialJobs
from tuner.farm.epoch_schedule import EpochSchedule
from tuner.farm.recorder import FEATURE_SETS
from tuner.farm.search_run import durable_rows
from tuner.farm.search_spec import SearchSpec
from tuner.log.read import read_log
from tuner.log.writer import Origin, RunLog
from tuner.measure.evaluator import Evaluator
from tuner.measure.request import Measurement, Request
from tuner.platform import ray_actors
from tuner.platform.local_files import LocalPath
from tuner.platform.ray_actors import RayActors
from tuner.platform.real import REAL
from tuner.search.champions import Champions

cloudpickle.register_pickle_by_value(sys.modules[__name__])

LEVELS = ("none", "slight", "severe")
N = 24


class Fragile(Evaluator):
    """Measuring a certain operator in a certain way does harm: raises, ends the process, or never comes back.

    hurry: measurements after which it is as fast as others.  lame: it never is.
    """

    harm, hurry = "raise", 0
    lame = False

    def measure(self, request: Request) -> Measurement:
        if request.measure and self.lame:
            time.sleep(0.3)
        if request.measure and self.hurry:
            self.hurry -= 1
            time.sleep(0.5)
        if request.measure and request.kind == "segment" and request.genome == (Gene(1, 2),):
            if self.harm == "exit":
                os._exit(1)
            if self.harm == "stop":
                os.kill(os.getpid(), signal.SIGSTOP)
            raise RuntimeError("harm")
        return super().measure(request)


class Make:
    def __init__(self, target_graph: TargetGraph, harm: str, hurry: int) -> None:
        self.target_graph, self.harm, self.hurry = target_graph, harm, hurry

    def __call__(self) -> Fragile:
        found = Fragile(self.target_graph, LEVELS)
        found.harm, found.hurry = self.harm, self.hurry
        return found


def spec(harm: str, hurry: int = 0) -> SearchSpec:
    target_graph = make_unit(small_graph("residual_block"), load_machine("edge"), DataType.float16)
    evaluator = Make(target_graph, harm, hurry)
    return SearchSpec(Origin("r", "m", "edge", "v"), target_graph, LEVELS, load_config(None, QUICK), evaluator=evaluator)


def searched(made: SearchSpec, jobs: Jobs, folder: Path) -> pd.DataFrame:
    (folder / "models").mkdir(parents=True)
    schedule = EpochSchedule(made.config.search.shards)
    with RunLog(LocalPath(folder), REAL, made.origin, FEATURE_SETS) as log:
        ledger = Ledger(LEVELS, log, Champions(3), RunBudget(N))
        rows = partial(durable_rows, LocalPath(folder), ledger, made)
        conductor = Coordinator(jobs, schedule, ledger, Trainer(LocalPath(folder / "models"), made.config.model), rows=rows)
        conductor.begin(())
        conductor.run()
    return read_log(folder).drop(columns=["worker", "wall_s", "time", "attempt", "row_id", "status", "error"])


@contextmanager
def on_actors(made: SearchSpec, name: str, said: list[str], item_timeout_s: float = 60.0) -> Iterator[ActorPool]:
    with RayActors(partial(JobWorker, made), 2, run_id=name, say=said.append) as actors:
        yield GatheredPool(actors, REAL.clock, said.append, item_timeout_s)


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> pd.DataFrame:
    """Of the serial backend, where the harm is an exception."""
    made = spec("raise")
    with SerialJobs(made) as jobs:
        return searched(made, jobs, tmp_path_factory.mktemp("serial") / "run")


@pytest.mark.usefixtures("local_ray")
@pytest.mark.parametrize(("harm", "status"), [pytest.param("exit", "crash", marks=pytest.mark.slow), ("stop", "timeout")])
def test_faulty_item_is_isolated_and_others_continue(
    harm: str, status: str, expected: pd.DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(actor_pool, "SILENCE_S", 3.0)
    monkeypatch.setattr(ray_actors, "PULSE_S", 0.5)
    monkeypatch.setattr(supervision, "HELPS", float("inf"))  # nobody repeats a job for being faster, and is lost with it
    made, said = spec(harm), list[str]()
    with on_actors(made, f"harm-{harm}", said, item_timeout_s=3.0) as jobs:
        found = searched(made, jobs, tmp_path / "run")
        assert jobs.replaced == 4, "as one of many, as what was announced, and alone, twice"
        assert {culprit.status for culprit in jobs.failing.values()} == {status}
    pd.testing.assert_frame_equal(found, expected, check_categorical=False)
    log = read_log(tmp_path / "run")
    bad = log[log["status"] != "ok"]
    assert set(bad["status"]) - {"infeasible"} == {status}
    assert any("what it did is done again item by item" in line for line in said)


@pytest.mark.slow  # by default in simulation
@pytest.mark.usefixtures("local_ray")
def test_slow_job_with_progress_is_left_alone(expected: pd.DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(actor_pool, "SILENCE_S", 5.0)
    monkeypatch.setattr(ray_actors, "PULSE_S", 0.5)
    said = list[str]()
    with on_actors(spec("raise", hurry=16), "slow", said, item_timeout_s=5.0) as jobs:
        begin = time.monotonic()
        found = searched(spec("raise"), jobs, tmp_path / "run")
        assert time.monotonic() - begin > 1.5 * 5.0
        assert jobs.replaced == 0
    assert not said
    pd.testing.assert_frame_equal(found, expected, check_categorical=False)


class OneLame:
    """The first that is made is."""

    def __init__(self, target_graph: TargetGraph, mark: Path) -> None:
        self.target_graph, self.mark = target_graph, mark

    def __call__(self) -> Fragile:
        found = Fragile(self.target_graph, LEVELS)
        try:
            self.mark.open("x").write(str(os.getpid()))
            found.lame = True
        except FileExistsError:
            pass
        return found


@pytest.mark.usefixtures("local_ray")
def test_a_slow_worker_holds_up_nobody(expected: pd.DataFrame, tmp_path: Path) -> None:
    """A job takes it seconds; the other one does what it is late with, and counts."""
    made, mark, said = spec("raise"), tmp_path / "lame", list[str]()
    with on_actors(replace(made, evaluator=OneLame(made.target_graph, mark)), "lame", said) as jobs:
        found = searched(made, jobs, tmp_path / "run")
        (slow,) = [name for name in jobs.names if name.endswith(f":{mark.read_text()}")]
        assert jobs.replaced == 0
    assert not said
    pd.testing.assert_frame_equal(found, expected, check_categorical=False)
    workers = read_log(tmp_path / "run")["worker"]
    assert (workers == slow).sum() < len(workers) / 4


@pytest.mark.usefixtures("local_ray")
def test_a_worker_killed_from_outside_costs_no_row(expected: pd.DataFrame, tmp_path: Path) -> None:
    made = spec("raise")

    class Killing(ActorPool):
        """Kills the worker of the third job that it starts."""

        started = 0

        def start(self, key, job) -> None:  # type: ignore[no-untyped-def]
            super().start(key, job)
            Killing.started += 1
            if Killing.started == 3:
                time.sleep(0.05)
                os.kill(int(self.names[0].rsplit(":")[-1]), signal.SIGKILL)

    with RayActors(partial(JobWorker, made), 2, run_id="outside") as actors:
        jobs = Killing(actors, REAL.clock, lambda _: None)
        found = searched(made, jobs, tmp_path / "run")
        assert jobs.replaced == 1
        assert not jobs.failing
    pd.testing.assert_frame_equal(found, expected, check_categorical=False)
