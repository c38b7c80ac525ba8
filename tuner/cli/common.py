"""What `tune`, `study` and `sweep` say alike."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from simulator.terminal import say

UNCONFIRMED = 4  # exit code where values are not onnxruntime's


@contextmanager
def resumable(out: Path) -> Iterator[None]:
    """Whoever interrupts is told how to go on."""
    from tuner.runs.folder import IDENTITY

    try:
        yield
    except KeyboardInterrupt:
        if (out / IDENTITY).is_file():
            say(f"{out}: --resume continues it")
        raise


def quiet(_: str) -> None:
    """In the place of `say`."""
