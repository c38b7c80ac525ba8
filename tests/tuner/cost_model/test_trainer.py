"""What a run's cost model learns from: rows of its log, and nothing else."""

from __future__ import annotations

from collections import Counter
from hashlib import sha256
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pandas as pd
import pytest

from compiler.cost.features import FEATURES
from compiler.cost.level_conditions import condition_of
from simulator.npu.machine_file import load_machine
from simulator.npu.parts import DataType
from tests.tuning import QUICK, quick, save_small
from tuner.config import load_config
from tuner.cost_model.boosted_trees import BoostedTrees
from tuner.cost_model.judge import train_with_judge
from tuner.cost_model.model_file import load_trained
from tuner.cost_model.training_rows import rows_of_search, unpack_rows
from tuner.farm.coordinator import Coordinator
from tuner.log.read import read_log, read_tasks
from tuner.log.record import FEATURE_PREFIX
from tuner.log.task_numbers import first
from tuner.measure.runner_api import Encoded, Reading
from tuner.measure.simulator_runner import measure as simulated
from tuner.platform.local_files import LocalPath
from tuner.runs.folder import read_json

LEVELS = ("none", "slight", "severe")
EDGE = load_machine("edge")
CONDITIONS_OF = np.stack([condition_of(EDGE, DataType.float16, level) for level in LEVELS])


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_small("residual_block", tmp_path_factory.mktemp("model"))


def test_training_learns_durable_rows_below_its_commit(model: Path, tmp_path: Path) -> None:
    """Features and cycles, bit by bit, of every segment that fits; read by anybody at the moment when it is handed out."""
    run, seen = tmp_path / "RUN", list[tuple[pd.DataFrame, Any]]()
    asked = Coordinator.next_training

    def watched(self: Coordinator) -> Any:
        training = asked(self)
        if training is not None:
            seen.append((pd.read_parquet(run / "log"), unpack_rows(training.rows)))
        return training

    with mock.patch.object(Coordinator, "next_training", watched):
        quick(model, run, 64)
    assert len(seen) >= 2
    tasks = read_tasks(run).set_index("task")
    for log, rows in seen:
        rows_there = log[log["kind"].isin(["operator", "segment"]) & (log["status"] == "ok")].sort_values(["task", "level_index"])
        np.testing.assert_array_equal(rows.cycles, rows_there["cycles"].astype(np.float64))
        features = tasks.loc[rows_there["task"], [FEATURE_PREFIX + name for name in FEATURES]]
        np.testing.assert_array_equal(rows.features[:, : len(FEATURES)], features)
        assert rows.groups.tolist() == rows_there["workload"].astype(str).tolist()
        assert len(rows.cycles) > 60


def retrained(run: Path, settings: tuple[str, ...]) -> dict[str, bool]:
    """File of a model -> whether the log gives it again, byte by byte."""
    state, config = read_json(run / "checkpoint" / "state.json")["state"], load_config(None, settings).model
    trainer, identity = state["trainer"], read_json(run / "run.json")
    found = {}
    for measured, tasks in zip(trainer["asked_at"], trainer["tasks"], strict=True):
        file = run / "models" / f"{measured:07d}.model"
        if file.is_file():
            rows = rows_of_search(LocalPath(run), identity["run"], first(state["numbers"], tasks), CONDITIONS_OF)
            again = train_with_judge(BoostedTrees, rows, identity["seed"], config)
            found[file.name] = again == load_trained(file).model
    return found


READINGS: dict[str, Any] = {}


def never_the_same(program: Encoded, level: str) -> Reading:
    """Another time at every reading; notes what it was asked, and is interrupted where `READINGS` says."""
    READINGS["left"] -= 1
    if READINGS["left"] == 0:
        raise KeyboardInterrupt
    cycles = simulated(program, level).cycles
    assert cycles is not None
    READINGS["asked"][sha256(program.container).hexdigest(), level] += 1
    return Reading(round(cycles * float(np.exp(np.random.default_rng(READINGS["asked"].total()).normal(0, 0.05)))))


NOISY = (*QUICK, "runner.repeats=1", "runner.finalists=1", "runner.readings=1", "farm.checkpoint_every_s=1000")


@pytest.mark.parametrize("stops", [(150, 120), (220, 40, 60)])
def test_stopped_noisy_run_is_explained_by_its_log(model: Path, tmp_path: Path, stops: tuple[int, ...]) -> None:
    """Every reading differs; no published task is measured again; champions and models are those of the log's rows."""
    run, named = tmp_path / "RUN", f"{__name__}:never_the_same"
    READINGS.update(asked=Counter(), left=0)
    published = set[str]()
    for at, left in enumerate((*stops, 1_000_000)):
        READINGS["left"] = left
        before = READINGS["asked"].total()
        try:
            quick(model, run, 48, *NOISY, runner=named, resume=at > 0)
        except KeyboardInterrupt:
            log = read_log(run)
            assert published <= set(log["task"])
            published = set(log["task"])
        else:
            assert left > 1000
        assert READINGS["asked"].total() > before
    log = read_log(run)
    assert not log.duplicated(["task", "level"]).any()
    assert len(published) > 20, "it was stopped in the midst"
    cycles = log.set_index(["task", "level"])["cycles"]
    for _, found, task in read_json(run / "checkpoint" / "state.json")["state"]["champions"]["best"]:
        assert [int(cycles[task, level]) for level in LEVELS] == found, "a champion is what the log says of it"
    models = retrained(run, NOISY)
    assert models
    assert all(models.values()), models


def test_what_was_published_is_not_measured_again(model: Path, tmp_path: Path) -> None:
    """Without a checkpoint the whole log is answered from its rows: the runner is asked for the finals alone, and no row is new."""
    run, named = tmp_path / "RUN", f"{__name__}:never_the_same"
    READINGS.update(asked=Counter(), left=1_000_000)
    quick(model, run, 12, *NOISY, runner=named)
    log = read_log(run)
    (run / "checkpoint" / "state.json").unlink()
    READINGS.update(asked=Counter())
    quick(model, run, 12, *NOISY, runner=named, resume=True)
    after = read_log(run)
    pd.testing.assert_frame_equal(after.astype(str), log.astype(str))
    canaries = read_json(run / "summary.json")["measurements"]["canary"] // len(LEVELS)  # counted for each level, read at one
    finals = READINGS["asked"].total() - canaries
    assert finals <= 3 * 4 < len(log) / 4, "of a finalist and the baseline at each level, twice at most, beside the canary"
