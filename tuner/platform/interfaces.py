"""Interfaces to the environment besides files (`tuner.platform.files`) and actors (`tuner.platform.actors`)."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol, TypeVar

R = TypeVar("R")


class Clock(Protocol):
    """Time and waiting."""

    def monotonic_s(self) -> float:
        """Return seconds since an arbitrary start; never decreases."""
        ...

    def epoch_us(self) -> int:
        """Return microseconds since 1970, as in the log."""
        ...

    def cpu_s(self) -> float:
        """Return CPU seconds of this process."""
        ...

    def sleep(self, seconds: float) -> None: ...


class Background(Protocol):
    """Repeated steps beside the driver."""

    def close(self) -> None:
        """Stop; returns when no step runs any more."""
        ...


class Threads(Protocol):
    """Work beside the driver's own thread."""

    def lock(self) -> AbstractContextManager[object]:
        """Return a new lock; not re-entrant."""
        ...

    def repeat(self, name: str, step: Callable[[], float | None], first_s: float) -> Background:
        """Run `step` after `first_s` seconds, and again after the seconds that it returned; None ends it.  It must not raise."""
        ...

    def apart(self, call: Callable[[], R]) -> R:
        """Run `call` in a thread without signals (Ctrl-C goes to the main thread), and wait for it."""
        ...


@dataclass(frozen=True)
class Platform:
    """Environment of a driver."""

    clock: Clock
    threads: Threads
