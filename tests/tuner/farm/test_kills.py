"""A farm that can be left alone: the driver, or the Ray head under it, is killed at random instants, and the run goes on.

Real processes.  What must hold after every kill: a row that anybody could read stays, none is there twice, and the run that is
resumed ends as the one that nobody interrupted, with the best that its log has.
"""

from __future__ import annotations

import signal
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tests.ray_heads import ray_head
from tests.tuning import Driver, assert_equal_runs, quick, save_small
from tuner.runs.folder import read_json
from tuner.runs.repair import verify_run
from tuner.summary import Summary

N = 48
WHOLE_S = 3.0
"""Start and search of a driver on an idle computer: kills are spread over that."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_small("conv_chain", tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def whole(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run that nobody interrupted."""
    out = tmp_path_factory.mktemp("whole") / "run"
    quick(model, out, N)
    return out


class Watch:
    """Rows that a reader has seen: those must stay, each once."""

    def __init__(self, run: Path) -> None:
        self.run = run
        self.seen: set[str] = set()
        self.parts = 0

    def look(self) -> None:
        """Read the log as anybody would, if it has grown."""
        parts = len(list((self.run / "log").glob("*.parquet")))
        if parts == self.parts:
            return
        self.parts = parts
        rows = pd.read_parquet(self.run / "log", columns=["row_id", "seq", "level"])
        assert not rows["row_id"].duplicated().any()
        assert not rows.duplicated(["seq", "level"]).any()
        lost = self.seen - set(rows["row_id"])
        assert not lost, f"{len(lost)} acknowledged rows are gone"
        self.seen = set(rows["row_id"])

    def look_for(self, seconds: float, driver: Driver) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end and driver.process.poll() is None:
            self.look()
            time.sleep(0.01)


def assert_best_is_the_logs(run: Path) -> None:
    log = pd.read_parquet(run / "log")
    programs = log[(log["kind"] == "program") & (log["status"] == "ok")]
    found = programs["cycles"].groupby(programs["level"].astype("str")).min().to_dict()
    assert found == Summary.model_validate(read_json(run / "summary.json")).own_cycles


def assert_whole(run: Path, whole: Path, watch: Watch) -> None:
    watch.look()
    assert verify_run(run) == []
    assert_best_is_the_logs(run)
    assert_equal_runs(run, whole)


def driver_killed(model: Path, whole: Path, run: Path, seed: int, kills: int) -> int:
    """Kill the driver at `kills` random instants, let it finish; returns how often it was caught at work.

    An instant is so long after a part was published, or after the start: so kills land in every part of a run, not before it.
    """
    rng, watch, caught = np.random.default_rng(seed), Watch(run), 0
    for number in range(kills):
        driver = Driver(model, run, N, resume=(run / "run.json").exists())
        if number % 2:
            driver.wait_for_parts(watch.parts + int(rng.integers(1, 3)))
            watch.look_for(float(rng.uniform(0, 0.2)), driver)
        else:
            watch.look_for(float(rng.uniform(0, WHOLE_S)), driver)
        code, errors = driver.stop(signal.SIGKILL)
        assert code in (-signal.SIGKILL, 0), errors
        caught += code != 0
        if (run / "log").exists():
            watch.look()
            assert verify_run(run) == []
    quick(model, run, N, resume=(run / "run.json").exists())
    assert_whole(run, whole, watch)
    return caught


def test_a_driver_killed_twice(model: Path, whole: Path, tmp_path: Path) -> None:
    """Here, that it works at all; at every instant it is killed in simulation."""
    assert driver_killed(model, whole, tmp_path / "run", seed=0, kills=2)


@pytest.mark.slow
def test_a_driver_killed_twenty_times(model: Path, whole: Path, tmp_path: Path) -> None:
    """In four runs: one would be over before half of the kills."""
    assert sum(driver_killed(model, whole, tmp_path / f"run{seed}", seed, kills=5) for seed in range(1, 5)) >= 10


def head_killed(model: Path, whole: Path, run: Path, seed: int, kills: int) -> list[str]:
    """Kill the head under a driver `kills` times, each time a new head, and let the run finish; what drivers that it caught said.

    Every other time its raylet dies too, which ends the driver at once; a head alone may be missed only after the run has come to its end.
    """
    rng, watch, said = np.random.default_rng(seed), Watch(run), []
    for number in range(kills):
        with ray_head() as head:
            options = ("--backend", "ray", "--address", head.address, "--workers", "1")
            driver = Driver(model, run, N, resume=(run / "run.json").exists(), options=options)
            driver.wait_for_parts(max(1, watch.parts) + 1)
            watch.look_for(float(rng.uniform(0, 0.3)), driver)
            head.kill_gcs()
            if number % 2 == 0:
                head.kill_raylet()
            code, errors = driver.wait()
        if code:
            assert code == 75, errors
            assert "Traceback" not in errors
            said.append(errors.splitlines()[-1])
        watch.look()
        assert verify_run(run) == []
    quick(model, run, N, resume=True)
    assert_whole(run, whole, watch)
    return said


@pytest.mark.slow  # by default in simulation
@pytest.mark.parametrize("kills", [2, 20])
def test_heads_killed_under_a_run(model: Path, whole: Path, tmp_path: Path, kills: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_gcs_rpc_server_reconnect_timeout_s", "4")
    said = head_killed(model, whole, tmp_path / "run", kills, kills)
    assert said
    for line in said:
        assert line.startswith("tilefarm: the Ray cluster went away ("), said
        assert line.endswith("); what was measured is kept, --resume goes on with it"), said
