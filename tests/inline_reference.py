"""onnxruntime's answer in the process of the tests: `tuner.reference` starts one for it, which imports for longer than most runs here take.

The child, and what becomes of one that dies, is what `tests/tuner/test_reference.py` tests; the tests of the system start processes
of their own, which use it as it is.
"""

from __future__ import annotations

from pathlib import Path

from tuner.reference_body import answer


def run(path: Path, folder: Path, timeout_s: float) -> None:
    """In place of `tuner.reference._run`."""
    answer(folder)
