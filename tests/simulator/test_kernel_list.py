"""Kernels that every program needs: the list is theirs, and idle cores compile it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from numba import typeof, types

from simulator import kernel_list
from simulator.kernel_addresses import Reference, record_type
from simulator.kernel_list import compile_beside, describe_type, listed_kernels, types_of

ROOT = Path(__file__).parents[2]


class Table(NamedTuple):
    rows: object
    count: int


ARGUMENTS = [
    1, 2.5, True, None, np.zeros(3), np.zeros((2, 3), np.int32).T, np.zeros((4, 4), np.uint8)[::2], (1, 2), (1, np.zeros(2, np.bool_)),
    Table(np.zeros((2, 2), np.int64), 3),
]  # fmt: skip


@pytest.mark.parametrize("argument", ARGUMENTS, ids=[str(typeof(argument)) for argument in ARGUMENTS])
def test_types_survive_json(argument: object) -> None:
    kind = typeof(argument)
    assert types_of(json.loads(json.dumps([describe_type(kind)]))) == (kind,)


class Sizes(NamedTuple):
    rows: int
    columns: int


def test_addresses_and_records_survive_json() -> None:
    """They are arguments of kernels that are called by address."""
    kinds = (Reference(typeof(Table(np.zeros((2, 2), np.int64), 3))), record_type(Sizes))
    assert types_of(json.loads(json.dumps([describe_type(kind) for kind in kinds]))) == kinds


def test_other_types_are_refused() -> None:
    with pytest.raises(ValueError, match="expected arrays, numbers and tuples"):
        describe_type(types.unicode_type)
    with pytest.raises(ValueError, match="no type of an argument"):
        types_of([["set", "int64"]])


def test_listed_kernels_are_there() -> None:
    """Their names and types: that they are those which programs need, the slow test below holds."""
    listed = listed_kernels(search=True)
    assert len(listed) > len(listed_kernels(search=False)) > 40
    for module, name, described in listed:
        kernel = getattr(import_module(module), name)
        assert len(types_of(described)) == len(kernel.py_func.__code__.co_varnames[: kernel.py_func.__code__.co_argcount]), name


def test_once_for_a_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = []
    monkeypatch.setattr(kernel_list, "own_folder", lambda: tmp_path)
    monkeypatch.setattr(subprocess, "Popen", lambda words, **_: begun.append(words[-4:]))
    for _ in range(2):
        compile_beside(2, search=False)
    assert begun == [[str(os.getpid()), str(number), "2", "0"] for number in range(2)]
    monkeypatch.setattr(kernel_list, "own_folder", lambda: tmp_path / "not there")
    compile_beside(2, search=False)
    assert len(begun) == 2


COMPILED = """
import os, sys
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
from simulator.kernel_compiling import listeners
from tuner.cli import main

listeners.append(lambda kernel: kernel is None or print(kernel.name, file=sys.stderr))
sys.exit(main(["compile", "light:squeezenet", "--machine", "edge", "--out", "out.onnx"]))
"""


@pytest.mark.slow
def test_a_command_needs_what_is_listed(tmp_path: Path) -> None:
    """With these compiled, only emitters are left, and what a list cannot say."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), "NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    words = [sys.executable, "-m", "simulator.kernel_list", str(os.getpid()), "0", "1", "0"]
    subprocess.run(words, env=env, check=True, cwd=tmp_path)
    done = subprocess.run([sys.executable, "-c", COMPILED], env=env, cwd=tmp_path, capture_output=True, text=True, check=True)
    compiled = [line for line in done.stderr.splitlines() if line.startswith(("compiler.", "simulator.", "tuner."))]
    assert compiled
    assert all(name.split(".")[2].endswith("_emitter") for name in compiled), compiled


def test_it_ends_with_its_parent(tmp_path: Path) -> None:
    """At the next kernel, of a parent that is not there."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), "NUMBA_CACHE_DIR": str(tmp_path)}
    subprocess.run([sys.executable, "-m", "simulator.kernel_list", "1", "0", "1", "1"], env=env, check=True, timeout=30)
    assert not list(tmp_path.rglob("*.nbi"))
