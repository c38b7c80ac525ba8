"""An exception in a line, for the log; a bug's details in a file, for whoever mends it.

Little is imported here: what is broken may be what would be imported.
"""

from __future__ import annotations

import os
import platform
import tempfile
import traceback
from collections.abc import Iterable
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from simulator.npu.errors import BadInputError
from simulator.npu.files import atomic_write

_PACKAGES = ("tilefarm", "numba", "numpy", "onnx", "onnxruntime", "pandas", "pyarrow", "pydantic", "ray", "typer", "xgboost")


def one_line(error: BaseException) -> str:
    """An exception as the log shows it."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:500]


def details(error: BaseException, doing: str) -> str:
    """What was being done, with what versions, and the whole traceback."""
    versions = ", ".join(f"{name} {version_of(name)}" for name in _PACKAGES)
    head = (doing, f"Python {platform.python_version()} on {platform.platform()}, {os.cpu_count()} CPUs", versions)
    return "\n".join((*head, "", *traceback.format_exception(error)))


def keep(text: str, folders: Iterable[Path]) -> Path | None:
    """Write `crash-*.txt` into the first of `folders` that takes it, else among the temporary files; None where nothing can be written."""
    data = [text.encode(errors="backslashreplace")]
    for folder in folders:
        path = folder / f"crash-{datetime.now(UTC):%Y%m%dT%H%M%S}-{os.getpid()}.txt"
        try:
            atomic_write(path, data)
        except BadInputError:
            continue
        return path
    try:
        # in a folder of everybody's the file is the user's own, under a name that nobody can take before
        descriptor, name = tempfile.mkstemp(prefix="tilefarm-crash-", suffix=".txt")
        with os.fdopen(descriptor, "wb") as file:
            file.writelines(data)
    except OSError:
        return None
    return Path(name)


def version_of(package: str, missing: str = "(not installed)") -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return missing
