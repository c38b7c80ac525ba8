"""The examples of the page on plug-ins, as the files that they say they are."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import tuner
from simulator.npu.errors import BadInputError
from tests.docs.fences import ROOT, example_files
from tests.tuning import QUICK, quick, save_small
from tuner.cost_model.model_file import load_trained
from tuner.log.read import read_log
from tuner.plugins import files_digest
from tuner.runs.folder import read_json

PAGE = ROOT / "docs/plug-ins.md"


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    yield from example_files(PAGE, tmp_path, monkeypatch)


def test_the_linear_model_tunes(files: Path) -> None:
    model, run = save_small("residual_block", files), files / "RUN"
    quick(model, run, 64, "model.name=linear:Linear")
    assert read_json(run / "run.json")["plugins"] == [
        {"kind": "cost model", "name": "linear:Linear", "version": "1", "digest": files_digest(str(files / "linear.py"))}
    ]
    history = read_json(run / "models" / "history.json")
    assert any(row["promoted"] for row in history)
    kept = load_trained(run / "models" / history[0]["file"])
    assert kept.kind == "linear:Linear"
    assert len(kept.model.raw) == 8 * (kept.model.width + 1)
    predicted = read_log(run, ("model_version", "predicted_cycles")).dropna()
    assert len(predicted) > 10, "its predictions are in the log"
    quick(model, run, 68, "model.name=linear:Linear", resume=True)
    (files / "linear.py").write_text((files / "linear.py").read_text().replace('version = "1"', 'version = "2"'))
    del sys.modules["linear"]
    with pytest.raises(BadInputError, match=r"begun with cost model linear:Linear 1 \(source \w{8}\), not cost model linear:Linear 2 \("):
        quick(model, run, 72, "model.name=linear:Linear", resume=True)


def test_random_search_tunes(files: Path) -> None:
    model = save_small("residual_block", files)
    summary = quick(model, files / "RUN", 32, "use.cost_model=false", strategy="random_search:RandomSearch")
    assert summary.candidates == 32
    (said,) = read_json(files / "RUN" / "run.json")["plugins"]
    assert (said["kind"], said["name"], said["version"]) == ("strategy", "random_search:RandomSearch", "1")
    log = read_log(files / "RUN", ("kind", "status", "generation", "proposed_by"))
    assert set(log.loc[log["generation"] > 0, "proposed_by"]) == {"random_search:RandomSearch"}
    assert set(log.loc[log["generation"] == 0, "proposed_by"]) <= {"baseline", "prediction"}
    assert set(log["kind"]) == {"program"}, "and of segments nothing"
    result = tuner.Search(str(model), "edge", (*QUICK, "use.cost_model=false"), candidates=32, strategy="random_search:RandomSearch").run()
    assert result.cycles == {level: row.cycles for level, row in summary.levels.items()}


def test_contracts_are_run_by_a_third_party(files: Path) -> None:
    """In a process of its own, which finds nothing of the tests here."""
    env = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{files}", "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_mine.py"]
    done = subprocess.run(words, cwd=files, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert "passed" in done.stdout, json.dumps(done.stdout)
