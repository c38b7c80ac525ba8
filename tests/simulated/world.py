"""Clock and threads of a simulated process."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from tests.simulated.kernel import EPOCH_US, US, Kernel, Process, Task
from tuner.platform.interfaces import Platform

R = TypeVar("R")


class SimClock:
    """Both clocks are the kernel's; who looks, gets on."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel

    def monotonic_s(self) -> float:
        """Of the kernel."""
        self._kernel.call("monotonic_s")
        return self._kernel.now_us / US

    def epoch_us(self) -> int:
        """Of the kernel."""
        self._kernel.call("epoch_us")
        return EPOCH_US + self._kernel.now_us

    def cpu_s(self) -> float:
        """As if nothing else ran."""
        return self._kernel.now_us / US

    def sleep(self, seconds: float) -> None:
        """Others run, and events happen."""
        self._kernel.call("sleep")
        self._kernel.wait(None, max(0, round(seconds * US)))


class WorkerClock(SimClock):
    """Of a worker beside the driver, whose looks are no calls of the driver's."""

    def monotonic_s(self) -> float:
        return self.cpu_s()

    def epoch_us(self) -> int:
        return EPOCH_US + self._kernel.now_us


class SimLock:
    """Not re-entrant: a task that takes it twice waits for ever, which ends the simulation."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._holder: Task | None = None

    def __enter__(self) -> object:
        self._kernel.call("lock")
        if self._holder is not None:
            self._kernel.wait(lambda: self._holder is None, None)
        self._holder = self._kernel.current
        return self

    def __exit__(self, *_: object) -> None:
        # no call to the world: one that raised here would hide that the lock is free
        self._holder = None


class SimBackground:
    """Steps in a task of their own."""

    def __init__(self, kernel: Kernel, process: Process, name: str, step: Callable[[], float | None], first_s: float) -> None:
        self._kernel, self._step, self._first_s = kernel, step, first_s
        self._stopped = False
        self._task = kernel.spawn(process, name, self._run)

    def _run(self) -> None:
        wait_s: float | None = self._first_s
        while wait_s is not None:
            self._kernel.wait(lambda: self._stopped, round(wait_s * US))
            if self._stopped:
                return
            wait_s = self._step()

    def close(self) -> None:
        """Waits for a step that runs."""
        self._kernel.call("close of a thread")
        self._stopped = True
        if not self._task.ended:
            self._kernel.wait(lambda: self._task.ended, None)


class SimThreads:
    """Tasks of the kernel."""

    def __init__(self, kernel: Kernel, process: Process) -> None:
        self._kernel, self._process = kernel, process

    def lock(self) -> SimLock:
        """A new one."""
        return SimLock(self._kernel)

    def repeat(self, name: str, step: Callable[[], float | None], first_s: float) -> SimBackground:
        """A task for it."""
        self._kernel.call("repeat")
        return SimBackground(self._kernel, self._process, name, step, first_s)

    def apart(self, call: Callable[[], R]) -> R:
        """Ctrl-C waits until it is done, as who waits for a thread does."""
        self._kernel.call("apart")
        self._process.apart += 1
        try:
            return call()
        finally:
            self._process.apart -= 1
            if not self._process.apart:
                self._kernel.call("apart, done")


def simulated_world(kernel: Kernel, process: Process) -> Platform:
    """What a driver that runs as this process lives in."""
    return Platform(SimClock(kernel), SimThreads(kernel, process))
