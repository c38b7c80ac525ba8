"""Kernels are compiled as wholes: what they call is a part of them, until Python calls it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from numba import __version__

FUNCTIONS = """
import simulator
import numpy as np
from numba import njit


@njit
def squares(count):
    def square(number):
        return number * number

    return np.array([square(i) for i in range(count)]), np.array([1, 2, 3]), sum([i for i in (4, 5)])


@njit
def wrong(row):
    return row.lenght


@njit
def calls_wrong(row):
    return wrong(row)


print(squares(4))
try:
    calls_wrong(np.zeros(3))
except Exception as error:
    lines = (line.partition(" at 0x")[0] for line in str(error).splitlines() if "lenght" in line or "During" in line)
    print(type(error).__name__, *lines, sep="\\n")
"""


def test_closures_lists_and_messages_are_those_of_numba(tmp_path: Path) -> None:
    outputs = []
    for own in ("import simulator", "import sys"):
        (tmp_path / "functions.py").write_text(FUNCTIONS.replace("import simulator", own))
        env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
        words = [sys.executable, str(tmp_path / "functions.py")]
        outputs.append(subprocess.run(words, env=env, capture_output=True, text=True, check=True).stdout)
    assert outputs[0] == outputs[1]
    assert "typing of get attribute" in outputs[0]


KERNELS = """
import numpy as np
from numba import njit


@njit(cache=True)
def share(total, parts):
    if parts == 0:
        raise ValueError("no parts")
    return total // parts


@njit(cache=True)
def shares(totals, parts):
    made = np.empty(totals.shape[0], np.int64)
    for i in range(totals.shape[0]):
        made[i] = share(totals[i], parts)
    return made


@njit(cache=True)
def most(totals, parts):
    return shares(totals, parts).max()


@njit(cache=True)
def both(totals, parts):
    return most(totals, parts) + shares(totals, parts).min()
"""

CALLS = """
import sys
import simulator
import numpy as np
import kernels

names = sys.argv[1:]
totals = np.array([7, 30, 12])
for name in names:
    try:
        print(name, getattr(kernels, name)(totals if name != "share" else 7, 2), end="; ")
        getattr(kernels, name)(totals if name != "share" else 7, 0)
    except ValueError as error:
        print(error)
compiled = {name: sum(getattr(kernels, name).stats.cache_misses.values()) for name in names}
loaded = {name: sum(getattr(kernels, name).stats.cache_hits.values()) for name in names}
print(compiled, loaded)
"""
ANSWERS = {"share": 3, "shares": "[ 3 15  6]", "most": 15, "both": 18}


@pytest.mark.skipif(not __version__.startswith("0.68."), reason="other versions compile as they do")
@pytest.mark.parametrize(
    "order", [("both",), ("share", "shares", "most", "both"), ("both", "most", "shares", "share"), ("most", "both", "most", "shares")]
)
def test_parts_and_kernels_in_any_order(order: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "kernels.py").write_text(KERNELS)

    def told() -> tuple[list[str], str]:
        root = str(Path(__file__).parents[2])
        env = {**os.environ, "PYTHONPATH": f"{root}:{tmp_path}", "NUMBA_CACHE_DIR": str(tmp_path / "cache")}
        done = subprocess.run([sys.executable, "-c", CALLS, *order], env=env, capture_output=True, text=True, check=True)
        *lines, counts = done.stdout.splitlines()
        return lines, counts

    asked = set(order)
    lines, _ = told()
    assert lines == [f"{name} {ANSWERS[name]}; no parts" for name in order]
    files = {path.name.partition("-")[0] for path in (tmp_path / "cache").rglob("*.nbc")}
    assert files == {f"kernels.{name}" for name in asked}, "parts are in no cache"
    again, counts = told()
    assert again == lines
    assert counts == f"{dict.fromkeys(order, 0)} {dict.fromkeys(order, 1)}"


def test_processes_do_not_compile_the_same(tmp_path: Path) -> None:
    """One has the claim on a kernel and compiles it; the others wait, and load it."""
    (tmp_path / "kernels.py").write_text(KERNELS)
    env = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{Path(__file__).parents[2]}", "NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    words = [sys.executable, "-c", CALLS, "both"]
    started = [subprocess.Popen(words, env=env, cwd=tmp_path, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    said = [process.communicate(timeout=300)[0].strip().splitlines()[-1] for process in started]
    assert sorted(said) == ["{'both': 0} {'both': 1}"] * 2 + ["{'both': 1} {'both': 0}"]
