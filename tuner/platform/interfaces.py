"""The seam: what there is of the world beside files (`tuner.platform.files`) and actors (`tuner.platform.actors`)."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol, TypeVar

R = TypeVar("R")


class Clock(Protocol):
    """Time, and the passing of it."""

    def monotonic_s(self) -> float:
        """Seconds since some moment; never goes back."""
        ...

    def epoch_us(self) -> int:
        """Microseconds since 1970, as the log has them."""
        ...

    def sleep(self, seconds: float) -> None: ...


class Background(Protocol):
    """Steps that are repeated beside the driver."""

    def close(self) -> None:
        """Returns when no step runs, and none will."""
        ...


class Threads(Protocol):
    """Work beside the driver's own."""

    def lock(self) -> AbstractContextManager[object]:
        """A new lock; not re-entrant."""
        ...

    def repeat(self, name: str, step: Callable[[], float | None], first_s: float) -> Background:
        """Run `step` after `first_s` seconds, and again after as many as it returned; None ends it.  It raises nothing."""
        ...

    def apart(self, call: Callable[[], R]) -> R:
        """Run `call` where no signal interrupts it (Ctrl-C comes to the main thread), and wait for it."""
        ...


@dataclass(frozen=True)
class Platform:
    """What a driver lives in."""

    clock: Clock
    threads: Threads
