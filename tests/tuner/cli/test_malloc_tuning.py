"""What a command frees it has again: the kernel is not asked for the pages of every copy."""

from __future__ import annotations

import ctypes
import subprocess
import sys

import pytest

from tests.tuning import ROOT

SIZE_BYTES = 1 << 28  # thousands of pages, or a hundred large ones


def faults_of_the_second(first: str) -> int:
    """Pages that the kernel makes for a large value after one of the same size was freed."""
    code = (
        f"import resource; from tuner.cli.malloc_tuning import keep_freed_memory; {first}\n"
        "faults = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_minflt\n"
        f"made = b'x' * {SIZE_BYTES}; del made; before = faults()\n"
        f"made = b'y' * {SIZE_BYTES}; print(faults() - before)"
    )
    return int(subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stdout)


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="another C library than glibc")
def test_memory_that_was_freed_is_used_again() -> None:
    assert faults_of_the_second("keep_freed_memory()") < faults_of_the_second("") / 4
