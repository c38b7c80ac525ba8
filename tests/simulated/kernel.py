"""Virtual time, one event queue, and tasks of which exactly one runs at any moment: every choice is the seed's.

A task is a thread that holds the baton: the driver, or a background step of it.  It may lose the baton at any call to the world, and only
there, so that a publisher stops between its write and its fsync while the driver appends.  Threads and not generators, since the code under
simulation is ordinary code.
"""

from __future__ import annotations

import heapq
import itertools
import threading
from collections.abc import Callable
from random import Random
from typing import TypeVar

from tests.simulated.faults import Faults

R = TypeVar("R")

EPOCH_US = 1_700_000_000_000_000  # of the simulated clock's zero
STEP_US = 20  # a call to the world takes so long at least: who only looks at the clock gets on, too
US = 1_000_000


class Crash(BaseException):
    """The process has ended, at a call to the world.  Not an Exception: no code of the process sees it go by."""


class SimulationError(AssertionError):
    """What must not happen, whatever the world does."""


class Task:
    """wake: held unless it is told to go on.  due: whether what it waits for is there.  until_us: it waits no longer; None: for ever."""

    def __init__(self, process: Process, name: str, index: int) -> None:
        self.process, self.name, self.index = process, name, index
        self.wake = threading.Lock()
        self.wake.acquire()
        self.due: Callable[[], bool] | None = None
        self.until_us: int | None = None
        self.ended = False

    def ready(self, now_us: int) -> bool:
        """To go on."""
        if self.due is None and self.until_us is None:
            return True
        return (self.until_us is not None and self.until_us <= now_us) or (self.due is not None and self.due()) or not self.process.alive


class Process:
    """A driver from its start to its end.  What it holds (locks) ends with it; none of its calls has an effect when it is dead."""

    def __init__(self, kernel: Kernel, faults: Faults) -> None:
        self.kernel, self.faults, self.alive = kernel, faults, True
        self.main = Task(self, "driver", 0)
        self.tasks: list[Task] = []  # beside the main one
        self.calls = self.names = 0
        self.apart = 0
        self.interrupted = False
        self.disk_errors = self.actor_faults = 0
        self.power_lost = False

    def kill(self, power: bool = False) -> None:
        """At once.  power: of the computer."""
        self.alive, self.power_lost = False, power

    def end(self) -> None:
        """Let what is left of its threads see that it is dead."""
        self.alive = False
        self.kernel.reap(self)


class Kernel:
    """rng: of whoever has none of its own.  trace: what happened, where somebody wants to read it."""

    def __init__(self, seed: int, trace: list[str] | None = None) -> None:
        self.seed, self.trace = seed, trace
        self.rng = Random(f"{seed} kernel")
        self.now_us = 0
        self.events = self.deaths = 0
        self.events_max: int | None = None
        self.until_us: int | None = None
        self._queue: list[tuple[int, int, Callable[[], None]]] = []
        self._sequence = itertools.count()
        self.current: Task | None = None
        self.failed: BaseException | None = None  # of a background step

    def stream(self, purpose: str) -> Random:
        """Choices of one kind do not move those of another."""
        return Random(f"{self.seed} {purpose}")

    def say(self, what: str) -> None:
        """For the trace."""
        if self.trace is not None:
            self.trace.append(f"{self.now_us / US:12.6f} {self.current.name if self.current else '-':9} {what}")

    def forget(self) -> None:
        """What was to happen to a driver that is not there any more."""
        self._queue.clear()

    def at(self, after_us: int, event: Callable[[], None]) -> None:
        """Events do not call the world: they change what somebody waits for."""
        heapq.heappush(self._queue, (self.now_us + max(0, after_us), next(self._sequence), event))

    # a task's side

    def call(self, what: str, took_us: int = STEP_US) -> None:
        """At the beginning of every call to the world: time passes, others may run, the process may end."""
        task = self.current
        assert task is not None
        process = task.process
        if not process.alive:
            raise Crash
        process.calls += 1
        faults = process.faults
        self.now_us += took_us
        self._happen(process)
        if not process.alive:
            raise Crash
        if process.calls == faults.crash_at or process.names == faults.crash_after:
            self.say(f"CRASH {'of the computer' if faults.power else 'of the process'} at {what}")
            process.kill(faults.power)
            raise Crash
        if process.calls in faults.interrupts_at:
            process.interrupted = True
        if process.tasks and self.rng.random() < faults.switch:
            self._yield(task)
        if not process.alive:
            raise Crash
        if process.interrupted and task is process.main and not process.apart:
            process.interrupted = False
            self.say(f"Ctrl-C at {what}")
            raise KeyboardInterrupt

    def wait(self, due: Callable[[], bool] | None, for_us: int | None) -> None:
        """Until `due` is true, not longer than `for_us`."""
        task = self.current
        assert task is not None
        if not task.process.alive:
            raise Crash
        if due is None and for_us is None:
            raise SimulationError(f"{task.name} waits for nothing")
        task.due, task.until_us = due, None if for_us is None else self.now_us + for_us
        try:
            self._yield(task)
        finally:
            task.due = task.until_us = None
        if not task.process.alive:
            raise Crash

    def spawn(self, process: Process, name: str, body: Callable[[], None]) -> Task:
        """A task beside the driver's."""
        task = Task(process, name, len(process.tasks) + 1)
        process.tasks.append(task)
        threading.Thread(target=self._run, args=(task, body), name=name, daemon=True).start()
        return task

    def _run(self, task: Task, body: Callable[[], None]) -> None:
        task.wake.acquire()
        try:
            body()
        except Crash:
            pass
        except BaseException as error:  # noqa: BLE001  a thread that raises is a fault of the program's
            self.failed = error
        task.ended = True
        task.process.tasks.remove(task)
        self._pass(self._next(task))

    def _yield(self, task: Task) -> None:
        """To whoever is ready, perhaps itself."""
        following = self._next(task)
        if following is not task:
            self._pass(following)
            task.wake.acquire()

    def _pass(self, task: Task) -> None:
        self.current = task
        task.wake.release()

    def _next(self, task: Task) -> Task:
        process = task.process
        if not process.alive:
            return process.main
        while True:
            ready = [each for each in (process.main, *process.tasks) if each.ready(self.now_us)]
            if ready:
                return ready[0] if len(ready) == 1 else ready[self.rng.randrange(len(ready))]
            ends = [each.until_us for each in (process.main, *process.tasks) if each.until_us is not None]
            if self._queue:
                ends.append(self._queue[0][0])
            if not ends:
                self.failed = SimulationError(f"everybody waits for ever: {', '.join(t.name for t in (process.main, *process.tasks))}")
                process.kill()
                return process.main
            self.now_us = max(self.now_us, min(ends))
            self._happen(process)
            if not process.alive:
                return process.main

    def _happen(self, process: Process) -> None:
        """Events whose time has come."""
        queue = self._queue
        try:
            if (self.events_max is not None and self.events > self.events_max) or (
                self.until_us is not None and self.now_us > self.until_us
            ):
                raise SimulationError(f"it does not end: {self.events} events, {self.now_us / US:.0f} s")
            while queue and queue[0][0] <= self.now_us:
                self.events += 1
                heapq.heappop(queue)[2]()
        except Exception as error:  # noqa: BLE001  of whoever's turn it was, on whose thread no event has any business to raise
            self.failed = error
            process.kill()

    # the runner's side

    def run(self, process: Process, body: Callable[[], R]) -> R:
        """The driver, on this thread.  Raises `Crash` where its process was killed, `SimulationError` for what must not be."""
        self.current = process.main
        try:
            return body()
        finally:
            process.end()
            self.current = None
            if self.failed is not None:
                failed, self.failed = self.failed, None
                if isinstance(failed, SimulationError):
                    raise failed
                raise SimulationError(f"in the background: {failed!r}") from failed

    def reap(self, process: Process) -> None:
        """Its threads end one by one, each at the call where it stopped."""
        while process.tasks:
            self.current = process.tasks[0]
            process.tasks[0].wake.release()
            process.main.wake.acquire()
