"""How far a sweep is, and how long it will take."""

from __future__ import annotations

import fcntl
import json
from pathlib import Path

import pandas as pd
import pytest

from simulator.npu.errors import BadInputError
from tests.messages import naming
from tests.rows import write_index
from tests.tuning import quick, save_small
from tuner.cli import main
from tuner.platform.local_files import LocalPath
from tuner.runs.list_runs import open_run
from tuner.runs.progress import read_progress
from tuner.runs.sweep_progress import read_sweep_progress


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A sweep of five runs: one done in 100 s, one failed, one under way with 8 of 32 programs, two not begun."""
    out = tmp_path / "SWEEP"
    out.mkdir()
    (out / "run.json").write_text('{"run": "sweep-0", "machines": []}')
    (out / ".lock").touch()
    states = ("done", "done", "failed", "waiting", "waiting", "waiting")  # the run that is done has a row per level
    paths = ("net-s0", "net-s0", "net-s1", "net-s2", "net-s3", "net-s4")
    walls = (100.0, 100.0, None, None, None, None)
    write_index(out, pd.DataFrame({"path": paths, "state": states, "wall_s": walls}))
    begun = out / "net-s2"
    quick(save_small("conv_chain", tmp_path), begun, 8)
    (begun / "summary.json").unlink()
    settings = (begun / "config.yaml").read_text()
    assert "candidates: 8\n" in settings
    (begun / "config.yaml").write_text(settings.replace("candidates: 8\n", "candidates: 32\n"))
    return out


def test_stopped_sweep_reports_progress_and_its_continuation(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    now = read_sweep_progress(LocalPath(folder))
    states = {"done": 1, "unconfirmed": 0, "failed": 1, "waiting": 3}
    assert (now.state, now.runs, now.started_runs, now.left_s) == ("stopped", states, (), None)
    assert main(["status", str(folder)]) == 0
    shown = capsys.readouterr().out
    assert "runs done    1 of 5" in shown
    assert "runs failed  1" in shown
    assert "tilefarm sweep with --resume" in shown
    assert "time left" not in shown


def test_a_sweep_that_goes_on_says_how_long(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with (folder / ".lock").open() as sweep, (folder / "net-s2" / ".lock").open() as cell:
        fcntl.flock(sweep, fcntl.LOCK_EX)
        fcntl.flock(cell, fcntl.LOCK_EX)
        now = read_sweep_progress(LocalPath(folder))
        assert [(run.path.name, run.state, s.programs, s.budget) for run, s in now.started_runs] == [("net-s2", "running", 8, 32)]
        assert now.left_s == pytest.approx(100.0 * 2.75), "three runs of 100 s, of which one is a quarter done"
        assert main(["status", str(folder)]) == 0
        shown = capsys.readouterr().out
        assert "time left    about 5 min" in shown
        assert shown.splitlines()[-1].split() == ["net-s2", "running", "8", "of", "32"]
        assert main(["status", str(folder), "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["begun"][0]["of"] == 32
        # where no run has ended, those under way tell
        index = pd.read_parquet(folder / "index.parquet").assign(state=["waiting"] * 6, wall_s=None)
        write_index(folder, index)
        mine = read_progress(open_run(folder / "net-s2")).left_s
        assert mine is not None
        assert read_sweep_progress(LocalPath(folder)).left_s == pytest.approx(mine / 0.75 * 4.75)


def test_a_copy_does_not_tell_who_is_running(folder: Path) -> None:
    from tuner.platform.remote_files import place

    now = read_sweep_progress(place(folder.as_uri()))
    assert now.state == "unfinished"
    assert [(run.state, s.programs) for run, s in now.started_runs] == [("unfinished", 8)]
    assert now.left_s is None


def test_a_table_that_cannot_be_read_is_said(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "index.parquet").write_bytes(b"rubbish")
    with pytest.raises(BadInputError, match=naming("index.parquet", "Parquet")):
        read_sweep_progress(LocalPath(folder))
    (folder / "index.parquet").unlink()
    assert main(["status", str(folder)]) == 2
    assert "index.parquet: no file there" in capsys.readouterr().err
