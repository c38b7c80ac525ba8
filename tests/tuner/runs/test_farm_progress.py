"""What `status` says of a farm: of an active run what its driver wrote last, of any run the core hours."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from tuner.platform.local_files import LocalPath
from tuner.platform.real import REAL
from tuner.report.standing_rows import progress_rows
from tuner.runs.farm_progress import FRESH_S, FarmProgress, read_farm_progress
from tuner.runs.farm_state import FarmState, write_farm_state
from tuner.runs.list_runs import RunEntry, State
from tuner.runs.progress import RunProgress

STATE = FarmState(
    nodes={f"node-{k}": 8 - k for k in range(6)}, busy=9, idle=7, joining=1, queued=3, most_jobs=32, busy_share=0.56, driver_share=0.1
)


@pytest.fixture
def folder(tmp_path: Path) -> LocalPath:
    """A run of two searches, of which one has no checkpoint yet."""
    (tmp_path / "checkpoint" / "a").mkdir(parents=True)
    (tmp_path / "checkpoint" / "a" / "state.json").write_text(json.dumps({"state": {"core_s": 6624.0}}))
    searches = [{"run": name, "pieces": [name]} for name in "ab"]
    (tmp_path / "pieces.json").write_text(json.dumps({"version": 1, "searches": searches}))
    (tmp_path / "config.yaml").write_text(yaml.safe_dump({"budget": {"candidates": 9, "core_hours": 4.0}}))
    write_farm_state(LocalPath(tmp_path), replace(STATE, time_us=time.time_ns() // 1000))
    return LocalPath(tmp_path)


def entry(folder: LocalPath, state: State, summary: dict[str, object] | None = None) -> RunEntry:
    return RunEntry(folder, {"run": "r", "levels": ["none"]}, summary, state)


def rows(run: RunEntry, farm: FarmProgress) -> dict[str, object]:
    return progress_rows(run, RunProgress(1, 2, {}, {}, {}, None, 9, None), farm)


def test_active_run_has_nodes_workers_and_a_limit(folder: LocalPath) -> None:
    run = entry(folder, "running")
    farm = read_farm_progress(run, REAL.clock)
    said = rows(run, farm)
    assert said["nodes"] == "6, with workers: node-0 8, node-1 7, node-2 6, node-3 5, and 2 others"
    assert said["workers"] == "9 busy, 7 idle, 1 joining; 3 jobs wait"
    assert said["core hours"] == "1.84 of 4"
    assert said["limited by"] == "workers are 56% busy; the others wait for the slowest job of an epoch (search.lag)"
    value = json.loads(json.dumps(farm.to_json(), allow_nan=False))
    assert value["workers"] == {"busy": 9, "idle": 7, "joining": 1}
    assert value["nodes"] == dict(STATE.nodes)
    assert value["limited_by"] == {"rule": "slowest job", "sentence": said["limited by"]}
    assert (value["core_hours"], value["of_core_hours"], value["queued_jobs"]) == (1.84, 4.0, 3)


@pytest.mark.parametrize("state", ["stopped", "done", "unconfirmed"])
def test_other_runs_have_core_hours_alone(folder: LocalPath, state: State) -> None:
    farm = read_farm_progress(entry(folder, state, None if state == "stopped" else {"core_hours": 2.5}), REAL.clock)
    assert farm == FarmProgress(None, 1.84 if state == "stopped" else 2.5, 4.0)
    assert farm.to_json()["limited_by"] is None
    assert {"nodes", "workers", "limited by"}.isdisjoint(rows(entry(folder, "stopped"), farm))


def test_an_old_state_is_none(folder: LocalPath) -> None:
    write_farm_state(folder, replace(STATE, time_us=round((time.time() - FRESH_S - 1) * 1e6)))
    assert read_farm_progress(entry(folder, "unfinished"), REAL.clock).state is None
    (folder / "config.yaml").unlink()
    assert read_farm_progress(entry(folder, "running"), REAL.clock) == FarmProgress(None, 1.84, None)
