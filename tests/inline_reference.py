"""onnxruntime's answer in the process of the tests: `tuner.verify.reference` starts one for it, whose imports take longer than most runs.

The child, and what becomes of one that dies, is what `tests/tuner/verify/test_reference.py` tests; commands that tests start as processes
use it as it is.
"""

from __future__ import annotations

from pathlib import Path

from tuner.verify.reference_body import run_job


def run(path: Path, folder: Path, timeout_s: float) -> None:
    """In place of `tuner.verify.reference._run`."""
    run_job(folder)
