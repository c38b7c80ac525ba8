"""Searches whose world fails in every way that a seed says end as if nothing had happened; bugs do not."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulated.scenarios import computed

ROOT = Path(__file__).parent.parent.parent
SEEDS, NAMES = 2, ("plain", "model", "mirror", "elastic", "serial-readings")
"""A few seeds of some scenarios; `.ci/run` has 60 over all of them, 400 with `CI_SLOW`."""
FOUND = 400
"""Within so many seeds every planted bug is found."""


def command(*options: str) -> subprocess.CompletedProcess[str]:
    """In a process of its own: it may part into several, which those that have threads cannot."""
    words = [sys.executable, "-m", "tests.simulated", *options]
    return subprocess.run(words, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=1800)


def test_every_seed_ends_as_the_undisturbed_run() -> None:
    done = command("--seeds", str(SEEDS), "--processes", "1", "--scenario", *NAMES)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.fullmatch(rf"{SEEDS * len(NAMES)} seeds, 0 failed, .*", done.stdout.strip()), done.stdout


def test_actors_that_come_and_go_change_no_row() -> None:
    """One is there from the beginning; eight come, are taken away, and come back."""
    steady, elastic = computed("plain"), computed("elastic")
    assert elastic.ended == steady.ended
    assert elastic.log.equals(steady.log)
    assert elastic.tasks.equals(steady.tasks)


def test_failing_seed_prints_its_replay() -> None:
    done = command("--seeds", "4", "--scenario", "plain", "--bug", "checkpoint-ahead-of-log")
    assert done.returncode == 1
    line = next(line.strip() for line in done.stdout.splitlines() if line.startswith("  python -m tests.simulated"))
    again = command(*line.split()[3:])
    assert again.returncode == 1
    assert "counts what is not there" in again.stdout


@pytest.mark.slow
def test_planted_bugs_are_found() -> None:
    done = command("--bugs", "--seeds", str(FOUND))
    assert done.returncode == 0, done.stdout + done.stderr
