"""Text of exceptions: one line for the log; for a bug, a file with details.

Few imports: an import may be the very fault.
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


def error_line(error: BaseException) -> str:
    """Exception as a line of the log."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:500]


def crash_details(error: BaseException, doing: str) -> str:
    """Details of an error: the command, versions, and the complete traceback."""
    versions = ", ".join(f"{name} {version_of(name)}" for name in _PACKAGES)
    head = (doing, f"Python {platform.python_version()} on {platform.platform()}, {os.cpu_count()} CPUs", versions)
    return "\n".join((*head, "", *traceback.format_exception(error)))


def write_crash_file(text: str, folders: Iterable[Path]) -> Path | None:
    """Write `crash-*.txt` into the first writable folder of `folders`, else into the temporary folder; None if nothing can be written."""
    data = [text.encode(errors="backslashreplace")]
    for folder in folders:
        path = folder / f"crash-{datetime.now(UTC):%Y%m%dT%H%M%S}-{os.getpid()}.txt"
        try:
            atomic_write(path, data)
        except BadInputError:
            continue
        return path
    try:
        # the file is private and has an unpredictable name, since the folder is shared
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
