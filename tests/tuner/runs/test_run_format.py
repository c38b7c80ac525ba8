"""Formats of a run folder: one of an earlier tree, in `tests/golden/run`, is read, and resumed to an end that a golden says.

Where code moves, log, tasks, checkpoint, models, settings and identity are still read, and the search goes on as it did.  The folder is
that of a run whose budget was spent in the middle of its search; what is made at the end alone (plans, the compiled file) is not in it.

`pytest --update-golden` writes the folder and its end anew: for a change of a format, of settings, of what a search does, or of the
simulator's version.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from simulator.npu.errors import BadInputError
from tests.conftest import GOLDEN_FOLDER
from tests.tuning import FEW, plan_files
from tuner.driver import searched, tune
from tuner.log.read import read_log, read_table, read_tasks
from tuner.runs.folder import SETTINGS, read_json
from tuner.runs.repair import verify_run
from tuner.tune_request import TuneRequest

FOLDER = GOLDEN_FOLDER / "run"
MODEL = "made:bert_base-small"  # a name: a file's path would be in the folder
STOPPED, END = 6, 16  # programs
RUN_SETTINGS = (
    *FEW, "search.lag=0", "model.min_rows=10", "model.growth=1000", "model.rounds=4", "farm.checkpoint_every_s=1000",
    "farm.backend=serial",
)  # fmt: skip
"""One training, before the run stops: what XGBoost learns may depend on its version, but not what its models say."""


@pytest.fixture(scope="module")
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    if request.config.getoption("--update-golden"):
        prior, run = (tmp_path_factory.mktemp("golden") / name for name in ("prior", "run"))
        first = TuneRequest(Path(MODEL), "edge-shared", prior, STOPPED, overrides=RUN_SETTINGS)
        with searched(first):
            (model,) = (prior / "models").glob("*.model")
        with searched(replace(first, out=run, prior=model)):
            pass
        shutil.rmtree(FOLDER, ignore_errors=True)
        shutil.copytree(run, FOLDER, ignore=shutil.ignore_patterns(".*"))
    return FOLDER


@pytest.fixture
def run(folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(folder, tmp_path / "run"))


def test_it_is_read(run: Path) -> None:
    assert verify_run(run) == []
    log, tasks = read_log(run), read_tasks(run)
    assert set(log["task"]) == set(tasks["task"])
    assert list(log["seq"]) == [seq for seq in range(len(tasks)) for _ in range(3)]
    assert log[log["kind"] == "program"]["seq"].nunique() == STOPPED
    assert read_json(run / "models/history.json")


def resume_request(run: Path) -> TuneRequest:
    return TuneRequest(Path(MODEL), "edge-shared", run, END, config=str(run / SETTINGS), resume=True)


def test_its_checkpoint_is_read(run: Path) -> None:
    """Without it, a run begins anew from its log, to the same end."""
    state = run / "checkpoint/state.json"
    state.write_text(state.read_text().replace('"began":1', '"began":0'))
    with pytest.raises(BadInputError, match=r"state\.json: damaged"):
        tune(resume_request(run))


def test_it_is_resumed_to_the_same_end(run: Path, golden: Callable[[str, str], None]) -> None:
    before = len(read_log(run))
    trainings = read_json(run / "models/history.json")
    summary = tune(resume_request(run))
    assert read_json(run / "models/history.json") == trainings
    assert read_log(run)["model_version"].iloc[before:].notna().any(), "predicted by the model of the folder"
    table = read_table(run, "log").table
    volatile = {"worker", "wall_s", "time", "predicted_cycles"}  # the last is of floats, whose last digits are a processor's
    rows = table.drop_columns([name for name in table.column_names if name in volatile])
    rows = rows.sort_by([("seq", "ascending"), ("level_index", "ascending")]).to_pylist()
    assert table.num_rows > before
    lines = {
        "log": [hashlib.sha256(repr(row).encode()).hexdigest()[:16] for row in rows],
        "plans": {name: hashlib.sha256(data).hexdigest()[:16] for name, data in plan_files(run).items()},
        "cycles": {level: each.variant_cycles for level, each in summary.levels.items()},
    }
    golden("run.json", json.dumps(lines, indent=0) + "\n")
