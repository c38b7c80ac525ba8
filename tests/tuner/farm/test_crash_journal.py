"""The serial backend has nobody to see it die: the next session knows what it died of, tries that once more, and no third time."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pandas as pd
import pytest

from compiler.space.gene import Gene
from simulator.npu.errors import BadInputError
from tests.tuning import QUICK, ROOT, plan_files, quick, save_small, sorted_log, sorted_tasks
from tuner.farm.crash_journal import INTERRUPTED, Attempts
from tuner.log.read import read_log
from tuner.measure.evaluator import Evaluator
from tuner.measure.request import Measurement, Request
from tuner.platform.local_files import LocalPath
from tuner.platform.real import REAL
from tuner.runs.folder import read_json
from tuner.runs.repair import verify_run

REQUEST = Request("segment", (Gene(1, 2, 3, choices=(1,), cores=(0, 1)),))
N = 8
OTHER = Request("program", (Gene(0, 1), Gene(1, 2, 3)))


def ended_at(folder: Path, request: Request) -> None:
    """A session that measured another request and then ended in the midst of this one."""
    attempts = Attempts(LocalPath(folder), REAL.clock, 60.0)
    with attempts.at(OTHER):
        pass
    attempts.at(request).__enter__()


def test_second_end_at_a_request_is_its_fault(tmp_path: Path) -> None:
    for request in (REQUEST, OTHER, REQUEST):
        assert Attempts(LocalPath(tmp_path), REAL.clock, 60.0).failing == ()
        ended_at(tmp_path, request)
    for _ in range(2):
        ((request, culprit),) = Attempts(LocalPath(tmp_path), REAL.clock, 60.0).failing
    assert request == REQUEST
    assert hash(request) == hash(REQUEST)
    assert culprit == ("crash", "the worker process died", 1)


def test_interrupted_request_is_innocent_until_it_hangs(tmp_path: Path) -> None:
    for timeout_s, found in ((60.0, []), (60.0, []), (0.0, []), (0.0, [(REQUEST, ("timeout", INTERRUPTED, 1))])):
        with suppress(KeyboardInterrupt), Attempts(LocalPath(tmp_path), REAL.clock, timeout_s).at(REQUEST):
            raise KeyboardInterrupt
        assert list(Attempts(LocalPath(tmp_path), REAL.clock, timeout_s).failing) == found


def test_half_lines_and_old_genes_accuse_nobody(tmp_path: Path) -> None:
    ended_at(tmp_path, REQUEST)
    path = tmp_path / "attempts.jsonl"
    whole = path.read_bytes()
    path.write_bytes(b'["crash", "segment", [[1, 2, {}]], true]\n' * 2 + b"[]\n" * 2 + whole + whole[:-9])
    assert Attempts(LocalPath(tmp_path), REAL.clock, 60.0).failing == ()
    ended_at(tmp_path, REQUEST)
    assert [request for request, _ in Attempts(LocalPath(tmp_path), REAL.clock, 60.0).failing] == [REQUEST]


def test_a_folder_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match=r"attempts\.jsonl: cannot be written: No such file"):
        Attempts(LocalPath(tmp_path / "missing"), REAL.clock, 60.0)


HARMFUL = """
import os, signal, sys
import tests.inline_reference, tuner.verify.reference
from compiler.space.gene import Gene
from tuner.cli import main
from tuner.measure.evaluator import Evaluator
from tuner.platform.local_files import LocalPath
from tuner.platform.real import REAL

measure = Evaluator.measure

def harmful(self, request):
    if request.measure and request.kind == "segment" and request.genome == (Gene(1, 2),):
        os.kill(os.getpid(), signal.SIGKILL)
    return measure(self, request)

Evaluator.measure = harmful
tuner.verify.reference._run = tests.inline_reference.run
sys.exit(main(sys.argv[1:]))
"""


def killed_by_it(model: Path, run: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", HARMFUL, "tune", str(model), "--machine", "edge", "--out", str(run), "--backend", "serial"]
    words = [word for text in QUICK for word in ("--set", text)]
    return subprocess.run(
        [*command, "--candidates", str(N), *words, *options], cwd=ROOT, capture_output=True, text=True, timeout=300, check=False
    )


def test_task_that_crashes_twice_is_logged_and_survived(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As one where the same task raises."""
    model = save_small("residual_block", tmp_path)
    told, killed = tmp_path / "told", tmp_path / "killed"
    assert killed_by_it(model, killed).returncode == -9
    assert verify_run(killed) == []
    assert killed_by_it(model, killed, "--resume").returncode == -9
    done = killed_by_it(model, killed, "--resume")

    measure = Evaluator.measure

    def harmful(self: Evaluator, request: Request) -> Measurement:
        if request.measure and request.kind == "segment" and request.genome == (Gene(1, 2),):
            raise RuntimeError("harm")
        return measure(self, request)

    monkeypatch.setattr(Evaluator, "measure", harmful)
    quick(model, told, N)
    assert done.returncode == 0, done.stderr
    assert "1 tasks each ended 2 sessions, and are not tried again" in done.stderr

    log = read_log(killed)
    bad = log[log["status"] == "crash"]
    assert set(bad["error"]) == {"the worker process died"}
    assert set(bad["attempt"]) == {1}
    assert bad["task"].nunique() == 1
    assert plan_files(killed) == plan_files(told)
    pd.testing.assert_frame_equal(sorted_log(killed).drop(columns="error"), sorted_log(told).drop(columns="error"), check_categorical=False)
    pd.testing.assert_frame_equal(sorted_tasks(killed), sorted_tasks(told), check_categorical=False)
    assert read_json(killed / "summary.json")["failures"] == read_json(told / "summary.json")["failures"]
    lines = (killed / "checkpoint" / "attempts.jsonl").read_text().splitlines()
    assert [json.loads(line)[:2] for line in lines] == [["crash", "segment"]] * 2
