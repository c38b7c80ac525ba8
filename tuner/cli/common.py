"""Messages and exit codes that `tune`, `study` and `sweep` share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from simulator.terminal import say

UNCONFIRMED = 4  # exit code where values are not onnxruntime's


@contextmanager
def resumable(out: Path) -> Iterator[None]:
    """Print the command's way to continue after an interrupt."""
    from tuner.runs.folder import IDENTITY

    try:
        yield
    except KeyboardInterrupt:
        if (out / IDENTITY).is_file():
            say(f"{out}: --resume continues it")
        raise


def drop_line(line: str) -> None:
    """Drop a progress line; used in place of `say`."""
