"""Kernels that most tests need, compiled by one process beside those that need none.

With -n, processes of tests would all wait for the kernels that they meet first.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from simulator.kernel_cache import compiled_note

ROOT = Path(__file__).parent.parent


def compile_beside() -> Callable[[], None]:
    """Begin with it, where nobody has done it yet; returns what ends it."""
    if compiled_note().is_file():
        return lambda: None
    process = subprocess.Popen([sys.executable, "-m", "tests.kernels"], cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def end() -> None:
        process.kill()
        process.wait()

    return end


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
