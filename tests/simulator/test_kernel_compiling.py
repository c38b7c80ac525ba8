"""Kernels are compiled as wholes: what they call is a part of them, until Python calls it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from numba import __version__

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
