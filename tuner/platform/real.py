"""Real environment: this computer's clocks and threads."""

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
    """Clock of the operating system."""

    def monotonic_s(self) -> float:
        """Return seconds since about the start of the computer."""
        return time.monotonic()

    def epoch_us(self) -> int:
        """Return microseconds since 1970."""
        return time.time_ns() // 1000

    def cpu_s(self) -> float:
        """Return CPU seconds of this process."""
        return time.process_time()

    def sleep(self, seconds: float) -> None:
        """Suspend this thread."""
        time.sleep(seconds)


class Repeated:
    """Daemon thread that repeats a step."""

    def __init__(self, name: str, step: Callable[[], float | None], first_s: float) -> None:
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(step, first_s), name=name, daemon=True)
        self._thread.start()

    def _run(self, step: Callable[[], float | None], wait_s: float | None) -> None:
        while wait_s is not None and not self._stop.wait(wait_s):
            wait_s = step()

    def close(self) -> None:
        """Stop after a running step."""
        self._stop.set()
        self._thread.join()


class RealThreads:
    """Threads of this process."""

    def lock(self) -> AbstractContextManager[object]:
        """Return a new lock."""
        return threading.Lock()

    def repeat(self, name: str, step: Callable[[], float | None], first_s: float) -> Repeated:
        """Repeat a step in a thread that does not keep the process alive."""
        return Repeated(name, step, first_s)

    def apart(self, call: Callable[[], R]) -> R:
        """Run a call in a thread that receives no signals."""
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(call).result()


REAL = Platform(RealClock(), RealThreads())
