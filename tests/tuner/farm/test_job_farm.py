"""Jobs on actors: an item that kills or stops its worker is found, logged, and asked by nobody again; the rest is as it would have been."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import pandas as pd
import pytest
from ray import cloudpickle

from compiler.kinds.build import make_unit
from compiler.unit.unit import Unit
from simulator.npu.machine import DataType, load_machine
from tests.models import small_graph
from tests.tuning import QUICK
from tuner.conduct import Conductor, Jobs, SerialJobs
from tuner.config import load_config
from tuner.evaluate import Answer, Ask, Evaluator
from tuner.farm import actors, job_farm
from tuner.farm.job_farm import JobFarm
from tuner.ledger import Budget, Ledger
from tuner.log.read import read_log
from tuner.log.recorder import FEATURE_SETS, Facts
from tuner.log.run_log import Origin, RunLog
from tuner.model.training import Trainer
from tuner.search.champions import Champions
from tuner.search.islands import first_states
from tuner.search.jobs import WorkshopSpec
from tuner.search.schedule import Schedule

cloudpickle.register_pickle_by_value(sys.modules[__name__])

LEVELS = ("none", "slight", "severe")
N = 24


class Fragile(Evaluator):
    """Measuring a certain operator in three blocks does harm: raises, ends the process, or never comes back.

    hurry: measurements after which it is as fast as others.
    """

    harm, hurry = "raise", 0

    def answer(self, ask: Ask) -> Answer:
        if ask.measure and self.hurry:
            self.hurry -= 1
            time.sleep(0.5)
        if ask.measure and ask.kind == "segment" and (ask.genome[0].start, ask.genome[0].stop, ask.genome[0].blocks) == (1, 2, 3):
            if self.harm == "exit":
                os._exit(1)
            if self.harm == "stop":
                os.kill(os.getpid(), signal.SIGSTOP)
            raise RuntimeError("harm")
        return super().answer(ask)


class Make:
    def __init__(self, unit: Unit, harm: str, hurry: int) -> None:
        self.unit, self.harm, self.hurry = unit, harm, hurry

    def __call__(self) -> Fragile:
        found = Fragile(self.unit, LEVELS)
        found.harm, found.hurry = self.harm, self.hurry
        return found


def spec(harm: str, hurry: int = 0) -> WorkshopSpec:
    unit = make_unit(small_graph("residual_block"), load_machine("edge"), DataType.float16)
    config = load_config(None, QUICK)
    return WorkshopSpec(Make(unit, harm, hurry), Facts(Origin("r", "m", "edge", "v"), unit, LEVELS), config, {}, 0)


def searched(made: WorkshopSpec, jobs: Jobs, folder: Path) -> pd.DataFrame:
    (folder / "models").mkdir(parents=True)
    schedule = Schedule(first_states(3, made.config, 0))
    with RunLog(folder, made.facts.origin, FEATURE_SETS) as log:
        ledger = Ledger(LEVELS, log, Champions(3), Budget(N))
        conductor = Conductor(jobs, schedule, ledger, Trainer(folder / "models", LEVELS, made.config.model))
        conductor.begin(())
        conductor.run()
    return read_log(folder).drop(columns=["worker", "wall_s", "time", "attempt", "row_id", "status", "error"])


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> pd.DataFrame:
    """Of the serial backend, where the harm is an exception."""
    made = spec("raise")
    with SerialJobs(made) as jobs:
        return searched(made, jobs, tmp_path_factory.mktemp("serial") / "run")


@pytest.mark.usefixtures("local_ray")
@pytest.mark.parametrize(("harm", "status"), [("exit", "crash"), ("stop", "timeout")])
def test_the_item_at_fault_is_found_and_the_rest_goes_on(
    harm: str, status: str, expected: pd.DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_farm, "SILENCE_S", 3.0)
    monkeypatch.setattr(job_farm, "PULSE_S", 0.5)
    monkeypatch.setattr(actors, "SUSPICION_S", 2.0)
    made, said = spec(harm), list[str]()
    with JobFarm(made, 2, run_id=f"harm-{harm}", item_timeout_s=8.0, say=said.append) as jobs:
        found = searched(made, jobs, tmp_path / "run")
        assert jobs.replaced >= 2
        assert {culprit.status for _, culprit in jobs.culprits} == {status}
    pd.testing.assert_frame_equal(found, expected, check_categorical=False)
    log = read_log(tmp_path / "run")
    bad = log[log["status"] != "ok"]
    assert set(bad["status"]) - {"infeasible"} == {status}
    assert any("what it did is done again item by item" in line for line in said)


@pytest.mark.usefixtures("local_ray")
def test_a_job_that_is_slow_and_goes_on_is_left_alone(expected: pd.DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_farm, "SILENCE_S", 5.0)
    monkeypatch.setattr(job_farm, "PULSE_S", 0.5)
    said = list[str]()
    with JobFarm(spec("raise", hurry=16), 2, run_id="slow", say=said.append) as jobs:
        begin = time.monotonic()
        found = searched(spec("raise"), jobs, tmp_path / "run")
        assert time.monotonic() - begin > 1.5 * 5.0
        assert jobs.replaced == 0
    assert not said
    pd.testing.assert_frame_equal(found, expected, check_categorical=False)


@pytest.mark.usefixtures("local_ray")
def test_a_worker_killed_from_outside_costs_no_row(expected: pd.DataFrame, tmp_path: Path) -> None:
    made = spec("raise")

    class Killing(JobFarm):
        """Kills the worker of the third job that it starts."""

        started = 0

        def start(self, key, job) -> None:  # type: ignore[no-untyped-def]
            super().start(key, job)
            Killing.started += 1
            if Killing.started == 3:
                slot = next(slot for slot in self._slots if slot.alone is not None)
                time.sleep(0.05)
                os.kill(int(slot.name.rsplit(":")[-1]), signal.SIGKILL)

    with Killing(made, 2, run_id="outside", say=lambda _: None) as jobs:
        found = searched(made, jobs, tmp_path / "run")
        assert jobs.replaced == 1
        assert not jobs.culprits
    pd.testing.assert_frame_equal(found, expected, check_categorical=False)
