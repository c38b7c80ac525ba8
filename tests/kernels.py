"""Kernels that most tests need, compiled by one process beside those that need none.

With -n, every process of tests would compile them for itself, at the same time: a minute of each core, of which one would do.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from simulator.kernel_cache import _note
from simulator.kernel_compiling import compiles_part

ROOT = Path(__file__).parent.parent
_VARIABLE = "TILEFARM_TESTS_COMPILING"
POLL_S = 0.2


def compile_beside() -> Callable[[], None]:
    """Begin with it, where nobody has done it yet; returns what ends it.

    A file is locked as long as that process lives, and processes that this one starts are told which.
    """
    if _note().is_file():
        return lambda: None
    descriptor, path = tempfile.mkstemp(prefix="tilefarm-compiling-")
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.kernels"], cwd=ROOT, pass_fds=(descriptor,), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    os.close(descriptor)
    os.environ[_VARIABLE] = path

    def end() -> None:
        process.kill()
        process.wait()
        os.unlink(path)

    return end


def wait_for_those_compiled_beside() -> None:
    """From now on: who asks here for a kernel that is not there waits until it is, or until the process that compiles them has ended.

    A search here waits for that end before it takes the lock of those that compile: else each of the two would wait for the other.
    """
    if (path := os.environ.get(_VARIABLE)) is None:
        return
    from numba.core.caching import Cache

    from tuner.farm import jobs

    load, compiling = Cache.load_overload, jobs.compiling

    def patient(cache: Any, *what: Any) -> Any:
        while (found := load(cache, *what)) is None and not compiles_part():
            if _ended(path, fcntl.LOCK_NB):
                Cache.load_overload = load
                return load(cache, *what)
            time.sleep(POLL_S)
        return found

    def behind() -> AbstractContextManager[bool]:
        _ended(path)
        return compiling()

    Cache.load_overload, jobs.compiling = patient, behind


def _ended(path: str, how: int = 0) -> bool:
    with open(path) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | how)
        except BlockingIOError:
            return False
    return True


def compile_them() -> None:
    """By a small run, and by running what it has found."""
    from tests.tuning import FEW, quick, save_small
    from tuner.cli import main

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        quick(save_small("residual_block", folder), folder / "run", 8, *FEW, "model.min_rows=10")  # trains a model, too
        main(["run", str(folder / "run" / "best.onnx"), "--input", "random", "--level", "severe", "--check"])


if __name__ == "__main__":
    compile_them()
