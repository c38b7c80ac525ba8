"""Small models that ask for much: each is taken or refused in one line, with 2 GiB of memory and in bounded time."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

LINE = re.compile(r"(\d+) [a-z_+]+ [\d.]+ s (\d+ operators|refused: .+)")


def answers(first: int, count: int, folder: Path) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.hostile_models", str(first), str(count), str(folder)],
        capture_output=True,
        cwd=Path(__file__).parents[2],
        check=False,
    )
    lines = done.stdout.decode().splitlines()
    for seed, line in enumerate(lines, first):
        found = LINE.fullmatch(line)
        assert found, line + done.stderr.decode()[-2000:]
        assert int(found[1]) == seed
    assert len(lines) == count, (lines[-1:], done.returncode, done.stderr.decode()[-2000:])
    return [line.partition(" s ")[2] for line in lines]


def test_hostile_models_are_taken_or_refused(tmp_path: Path) -> None:
    said = answers(0, 60, tmp_path)
    # they do get past the checker
    assert sum("not a valid ONNX model" not in line for line in said) > 25
    assert sum("bytes of constants" in line for line in said) >= 1
    assert any("operators" in line for line in said)


@pytest.mark.slow
def test_a_thousand_hostile_models_are_taken_or_refused(tmp_path: Path) -> None:
    answers(1000, 1000, tmp_path)
