"""The world as it is: this computer's clocks and threads."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import TypeVar

from tuner.platform.interfaces import Platform

R = TypeVar("R")


class RealClock:
    """The operating system's."""

    def monotonic_s(self) -> float:
        """Seconds since the computer was started, or so."""
        return time.monotonic()

    def epoch_us(self) -> int:
        """Microseconds since 1970."""
        return time.time_ns() // 1000

    def sleep(self, seconds: float) -> None:
        """Of this thread."""
        time.sleep(seconds)


class Repeated:
    """A daemon thread that runs a step again and again."""

    def __init__(self, name: str, step: Callable[[], float | None], first_s: float) -> None:
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(step, first_s), name=name, daemon=True)
        self._thread.start()

    def _run(self, step: Callable[[], float | None], wait_s: float | None) -> None:
        while wait_s is not None and not self._stop.wait(wait_s):
            wait_s = step()

    def close(self) -> None:
        """Waits for a step that runs."""
        self._stop.set()
        self._thread.join()


class RealThreads:
    """Of this process."""

    def lock(self) -> AbstractContextManager[object]:
        """A new one."""
        return threading.Lock()

    def repeat(self, name: str, step: Callable[[], float | None], first_s: float) -> Repeated:
        """A thread for it, which does not keep the process."""
        return Repeated(name, step, first_s)

    def apart(self, call: Callable[[], R]) -> R:
        """In a thread that no signal comes to."""
        with ThreadPoolExecutor(1) as aside:
            return aside.submit(call).result()


REAL = Platform(RealClock(), RealThreads())
