"""A world that goes on when a test says so, on real files."""

from __future__ import annotations

from collections.abc import Callable

from tuner.platform.local_files import LocalPath
from tuner.platform.real import RealClock, RealThreads


class Hand(RealClock):
    """A clock that is set."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def monotonic_s(self) -> float:
        return self.now_s


class Closed:
    def close(self) -> None:
        pass


class Steps(RealThreads):
    """Steps that are called by the test, by name."""

    def __init__(self) -> None:
        self.steps: dict[str, Callable[[], float | None]] = {}

    def repeat(self, name: str, step: Callable[[], float | None], first_s: float) -> Closed:  # type: ignore[override]
        self.steps[name] = step
        return Closed()


class Disk(LocalPath):
    """full: files whose names begin so find no space; `monkeypatch.setattr(Disk, "full", "log-")`."""

    full = "-"

    def put(self, chunks, at=None):
        if self.name.startswith(self.full):
            raise OSError(28, "No space left on device")
        super().put(chunks, at)
