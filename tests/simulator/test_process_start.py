"""What a process with kernels does not wait for: numba's BLAS, and a look for garbage as it ends."""

from __future__ import annotations

import subprocess
import sys

from tests.tuning import ROOT


def said(code: str) -> list[str]:
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.split()


def test_kernels_are_loaded_without_a_blas_which_others_still_find() -> None:
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
