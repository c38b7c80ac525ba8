"""Small tuning runs for tests, and what two equal runs must have in common."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import onnx
import pandas as pd

from tests.models import small_model
from tuner.driver import tune
from tuner.farm.actor_pool import ActorPool
from tuner.log.read import read_log, read_tasks
from tuner.runs.folder import read_json
from tuner.summary import Summary
from tuner.tune_request import TuneRequest

ROOT = Path(__file__).parent.parent
QUICK = (
    "use.cost_model=true",
    "use.packaged_model=false",
    "search.changes=8",
    "segments.candidates=48",
    "segments.measured=16",
    "model.min_rows=60",
    "model.growth=0.5",
    "model.rounds=20",
    "search.lag=4",
    "search.proposed=0.5",
    "search.generation=4",
    "farm.checkpoint_every_s=0.001",
    "budget.least_gain=null",
)
"""An epoch of two jobs measures 16 segments and 8 programs; the model is trained and trained again within 48 programs."""
FEW = (*QUICK, "segments.candidates=12", "segments.measured=4")
"""Where a few programs are enough, so are a few segments before them."""

VOLATILE = ["worker", "wall_s", "time", "attempt", "row_id"]


def save_small(name: str, folder: Path) -> Path:
    """The file of one of SMALL_MODELS."""
    path = folder / f"{name}.onnx"
    onnx.save(small_model(name), path)
    return path


def quick(model: Path, out: Path, candidates: int | None = 48, *overrides: str, machine: str = "edge", **values: Any) -> Summary:
    """A quiet run with small generations, on the serial backend unless told otherwise."""
    request = TuneRequest(model, machine, out, candidates, overrides=(*QUICK, *overrides), **{"backend": "serial", "quiet": True, **values})
    return tune(request)


def sorted_log(run: Path) -> pd.DataFrame:
    """The log without what may differ between equal runs."""
    return read_log(run).drop(columns=VOLATILE).sort_values(["seq", "level_index"]).reset_index(drop=True)


def sorted_tasks(run: Path) -> pd.DataFrame:
    return read_tasks(run).sort_values("task").reset_index(drop=True)


def plan_files(run: Path) -> dict[str, bytes]:
    return {str(path.relative_to(run)): path.read_bytes() for path in sorted((run / "plans").rglob("*.json"))}


def assert_equal_runs(a: Path, b: Path) -> None:
    """Plans, log, tasks, compiled file and the summary's results; not when and by whom it was measured."""
    assert plan_files(a) == plan_files(b)
    pd.testing.assert_frame_equal(sorted_log(a), sorted_log(b), check_categorical=False)
    pd.testing.assert_frame_equal(sorted_tasks(a), sorted_tasks(b), check_categorical=False)
    assert (a / "best.onnx").read_bytes() == (b / "best.onnx").read_bytes()
    one, two = read_json(a / "summary.json"), read_json(b / "summary.json")
    for key in ("run", "levels", "candidates", "tasks", "failures", "instructions", "variants", "cost_model"):
        assert one[key] == two[key], key


def take_interrupts() -> None:
    """In a child: SIGINT means something again where the tests themselves run in the background, whose children ignore it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


class GatheredPool(ActorPool):
    """Has no job for anybody before all of its actors are there: one that is there early would do what the others are to do, and all of it
    on a computer where they take long to start."""

    def __init__(self, *values: Any) -> None:
        super().__init__(*values)
        while len(self.names) < self.workers:
            self._crew.turn(1.0)


class Driver:
    """`tilefarm tune` in a process of its own, which finds no modules in its current folder by itself, as an installed command does not."""

    def __init__(
        self,
        model: Path,
        out: Path,
        candidates: int,
        resume: bool = False,
        options: tuple[str, ...] = ("--backend", "serial"),
        cwd: Path = ROOT,
    ) -> None:
        settings = [word for text in QUICK for word in ("--set", text)]
        command = [sys.executable, "-P", "-m", "tests.command", "tune", str(model), "--machine", "edge", "--out", str(out), *settings]
        command += ["--candidates", str(candidates), *(["--resume"] if resume else []), *options]
        self.out = out
        self.process = subprocess.Popen(
            command,
            cwd=cwd,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=take_interrupts,
        )

    def wait_for_parts(self, count: int, timeout_s: float = 120.0) -> None:
        """Until the log has so many parts, or the driver is done."""
        end = time.monotonic() + timeout_s
        while time.monotonic() < end and self.process.poll() is None:
            if len(list((self.out / "log").glob("*.parquet"))) >= count:
                return
            time.sleep(0.002)

    def stop(self, number: signal.Signals) -> tuple[int, str]:
        """Send a signal; exit code and stderr."""
        self.process.send_signal(number)
        return self.wait()

    def wait(self) -> tuple[int, str]:
        """Exit code and stderr."""
        try:
            _, errors = self.process.communicate(timeout=180)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
        return self.process.returncode, errors
