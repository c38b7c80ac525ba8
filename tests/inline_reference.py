"""onnxruntime's answer in the process of the tests: `tuner.reference` starts one for it, which imports for longer than most runs here take.

The child, and what becomes of one that dies, is what `tests/tuner/test_reference.py` tests; the tests of the system start processes
of their own, which use it as it is.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest import mock

from numpy.typing import NDArray

from tuner import reference as module


def reference(path: Path, feeds: Mapping[str, NDArray[Any]], timeout_s: float = module.TIMEOUT_S) -> module.Reference:
    """`tuner.reference.reference` with its child's work done here."""
    with mock.patch.object(module, "_ran", _ran):
        return module.reference(path, feeds, timeout_s)


def _ran(path: Path, there: Path, back: Path, names: list[str], timeout_s: float) -> str:
    told = io.StringIO()
    with contextlib.redirect_stdout(told):
        module._child(str(path), str(there), str(back), names)
    return told.getvalue()
