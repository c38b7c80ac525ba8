"""What a process with kernels does not wait for: what numba compiles with, BLAS, and a look for garbage as it ends."""

from __future__ import annotations

import subprocess
import sys

from tests.tuning import ROOT


def said(code: str) -> list[str]:
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.split()


KERNEL = """
import sys
import numpy as np
{first}
import simulator
from simulator.instruction_effects import _in_order

def can_compile():
    return "numba.typed.typedlist" in sys.modules

read, written = np.arange(6).reshape(1, 2, 3), np.zeros((1, 2, 3), np.int64)
_in_order(written, read)
print(sum(_in_order.stats.cache_hits.values()), (written == read).all(), can_compile())
import numba
print(numba.njit(lambda a: np.dot(a, a))(np.ones((2, 2)))[0, 0], can_compile())
"""


def test_kernels_are_loaded_without_what_compiles_others() -> None:
    said(KERNEL.format(first=""))  # compiled, where no test has done so
    for first in ("", "import numba"):
        assert said(KERNEL.format(first=first)) == ["1", "True", "False", "2.0", "True"]


def test_numba_finds_no_blas_which_others_still_do() -> None:
    code = (
        "import simulator, sys, numpy, numba\n"
        "from numba.core.registry import cpu_target\n"
        "cpu_target.target_context.refresh()\n"
        "print('numba.np.arraymath' in sys.modules, 'scipy.linalg' in sys.modules)\n"
        "print(numba.njit(lambda a: numpy.dot(a, a))(numpy.ones((2, 2)))[0, 0])\n"
        "print('scipy.linalg.cython_blas' in sys.modules)"
    )
    assert said(code) == ["True", "False", "2.0", "True"]


def test_no_garbage_is_looked_for_at_the_end() -> None:
    code = (
        "import atexit, gc\n"
        "atexit.register(lambda: print(gc.get_freeze_count() > 0, len(gc.get_objects()) < 100))\n"  # runs behind what is registered later
        "import simulator.command"
    )
    assert said(code) == ["True", "True"]
