"""onnxruntime's answer in the process of the tests: `tuner.reference` starts one for it, which imports for longer than most runs here take.

The child, and what becomes of one that dies, is what `tests/tuner/test_reference.py` tests.  Runs that are processes of their own,
`run --check` and the tests of the system use it as it is.
"""

from __future__ import annotations

import contextlib
import io
import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tuner import reference as module


def reference(path: Path, feeds: Mapping[str, NDArray[Any]], timeout_s: float = 0.0) -> module.Reference:
    """What `tuner.reference.reference` answers, by the same code."""
    with tempfile.TemporaryDirectory(prefix="tilefarm-") as folder:
        there, back = Path(folder) / "feeds.npz", Path(folder) / "out.npz"
        names, told = list(feeds), io.StringIO()
        np.savez(there, *(module._as_fed(feeds[name]) for name in names))
        with contextlib.redirect_stdout(told):
            module._child(str(path), str(there), str(back), names)
        said = json.loads(told.getvalue())
        with np.load(back, allow_pickle=False) as arrays:
            outputs = {name: np.asarray(arrays[f"arr_{i}"], np.float32) for i, name in enumerate(said["outputs"])}
    return module.Reference(outputs, said["logits_scale"])
