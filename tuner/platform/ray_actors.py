"""Actors on Ray: one in each bundle of a placement group, jobs as calls with streamed results.

While a job runs, its actor periodically reports the number of finished items, which separates a hanging job from a long one.  An
announcement is an item of the stream, held back by Ray until the driver has taken it.
"""

from __future__ import annotations

import os
import queue
import secrets
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Self

import ray
from ray.exceptions import ActorUnavailableError, NodeDiedError, RayError, RayTaskError
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from simulator import terminal
from tuner.platform.actors import BUILDING, Actor, Announced, Built, Done, Event, JobProgress, Lost, Message, Raised, Worker
from tuner.platform.crash import error_line
from tuner.platform.ray_cluster import Say, cluster_cpus, connect, release_group, reserve_group, start_trouble, worker_environment

PULSE_S = 10.0  # a report costs the driver as much as a job, and most jobs end earlier
START_S = 20.0  # with free resources a process starts within seconds; its construction may take minutes
NODE_DIED = "its node has died"  # part of Ray's message, its only sign of this for an actor

Said = tuple[Literal["finished", "announced", "done"], Any]


class RayActor:
    """Ray actor around a worker.  A job runs in its own thread, so that Ray's thread can report progress.

    Not by a second concurrency group: with groups, Ray's thread polls signals a hundred times a second, each time with Python's lock, which
    took 3% of the actor's time.
    """

    def __init__(self, make_worker: Callable[[], Worker]) -> None:
        self._make_worker = make_worker
        self._thread = ThreadPoolExecutor(1)

    def build(self) -> str:
        """Construct the worker; separate from __init__, so that exceptions come back unchanged."""
        self._worker = self._make_worker()
        return f"{socket.gethostname()}:{os.getpid()}"

    @ray.method(num_returns="streaming")
    def work(self, packed: bytes, announces: bool, pulse_s: float, *shared: Any) -> Iterator[Said]:
        announcements: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        answer = threading.Semaphore(0)

        def announce(item: bytes) -> None:
            announcements.put(item)
            answer.acquire()

        working = self._thread.submit(self._worker.work, packed, shared, announce if announces else None)
        working.add_done_callback(lambda _: announcements.put(None))
        while True:
            try:
                item = announcements.get(timeout=pulse_s)
            except queue.Empty:
                yield "finished", self._worker.done
                continue
            if item is None:
                yield "done", working.result()
                return
            yield "announced", item  # resumes when the driver has taken it
            answer.release()


class _Sent(NamedTuple):
    job: int
    stream: Any


@dataclass
class _Running:
    """Running actor.  ready, building: references to its pending start, and build(); the latter None once built."""

    actor: Any
    ready: Any
    building: Any
    sent: deque[_Sent] = field(default_factory=deque)

    @property
    def awaited(self) -> Any:
        return self.building if self.building is not None else self.sent[0].stream if self.sent else None


class RayActors:
    """Group of `count` actors with one CPU each.

    make_worker: called once in every actor; picklable (a function, `functools.partial`, a dataclass with `__call__`).
    count: None takes every free CPU.  wait_s: longest wait for resources (`BadInputError` after it).
    resource: a custom Ray resource; each actor takes one unit.
    """

    def __init__(
        self, make_worker: Callable[[], Worker], count: int | None = None, address: str | None = None, wait_s: float = 300.0,
        run_id: str = "run", resource: str | None = None, say: Say = terminal.say,
    ) -> None:  # fmt: skip
        self._connection = connect(address, count)
        self._name = f"tilefarm-{run_id}-{secrets.token_hex(3)}"  # one run may have several farms on one cluster
        self._running: dict[Actor, _Running] = {}
        self._group: Any = None
        try:
            self.count = count or max(1, cluster_cpus()[0])
            self._group = reserve_group(self.count, wait_s, self._name, say, resource)
            self._make_worker = ray.put(make_worker)
            self._say, self._say_late_s = say, time.monotonic() + START_S
        except BaseException:
            self.close()
            raise
        environment, resources = {"env_vars": worker_environment()}, {resource: 1} if resource else None
        self._options = {"num_cpus": 1, "max_restarts": 0, "max_task_retries": 0, "runtime_env": environment, "resources": resources}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self, slot: int, actor: Actor) -> None:
        with self._translate_errors():
            place = PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=slot)
            options = {**self._options, "name": f"{self._name}-w{slot}.{actor}", "scheduling_strategy": place}
            handle = ray.remote(RayActor).options(**options).remote(self._make_worker)
            self._running[actor] = _Running(handle, handle.__ray_ready__.remote(), handle.build.remote())

    def kill(self, actor: Actor) -> None:
        if (running := self._running.pop(actor, None)) is not None:
            with self._translate_errors():
                ray.kill(running.actor, no_restart=True)

    def send(self, actor: Actor, message: Message) -> None:
        if (running := self._running.get(actor)) is None:  # the actor died, and its event is not read yet
            return
        with self._translate_errors():
            work = running.actor.work.options(_generator_backpressure_num_objects=1) if message.announces else running.actor.work
            running.sent.append(_Sent(message.job, work.remote(message.packed, message.announces, PULSE_S, *message.shared)))

    def share(self, value: Any) -> Any:
        with self._translate_errors():
            return ray.put(value)

    def events(self, patience_s: float) -> list[Event]:
        awaited = {actor: running.awaited for actor, running in self._running.items() if running.awaited is not None}
        waited, ready = list(awaited.values()), set[Any]()
        with self._translate_errors():
            if not waited:
                time.sleep(patience_s)
            elif ray.wait(waited, num_returns=1, timeout=patience_s, fetch_local=False)[0]:
                ready = set(ray.wait(waited, num_returns=len(waited), timeout=0, fetch_local=False)[0])
            self._say_late(running.ready for running in self._running.values() if running.building is not None)
            self._connection.check()  # before actors lost with the cluster are taken for single deaths
            return [self._event(actor, self._running[actor]) for actor, reference in awaited.items() if reference in ready]

    def close(self) -> None:
        """End the actors, release their resources, and leave Ray if this object joined it."""
        if ray.is_initialized() and self._connection.answers:  # else Ray releases everything when it notices the end of this driver
            for running in self._running.values():
                ray.kill(running.actor, no_restart=True)
            if self._group is not None:
                release_group(self._group)
        self._running, self._group = {}, None
        self._connection.close()

    def _say_late(self, starts: Iterable[Any]) -> None:
        """Report once the workers whose processes have not started; Ray retries such starts silently."""
        if time.monotonic() < self._say_late_s:
            return
        self._say_late_s = float("inf")
        if pending := list(starts):
            count = len(ray.wait(pending, num_returns=len(pending), timeout=0, fetch_local=False)[1])
            if count:
                self._say(f"{count} of {self.count} workers have not started in {START_S:g} s: {start_trouble()}")

    def _event(self, actor: Actor, running: _Running) -> Event:
        job = BUILDING if running.building is not None else running.sent[0].job
        try:
            if running.building is not None:
                name, running.building = ray.get(running.building), None
                return Built(actor, name)
            kind, content = ray.get(next(running.sent[0].stream))
        except RayTaskError as error:  # raised by a worker or a job
            cause = error.cause if isinstance(error.cause, Exception) else error
            cause.add_note(str(error))  # the note has the actor's traceback
            return Raised(actor, job, cause)
        except RayError as error:
            self.kill(actor)  # an unreachable actor may be alive
            outside = isinstance(error, NodeDiedError | ActorUnavailableError) or NODE_DIED in str(error)
            return Lost(actor, error_line(error), outside)
        if kind == "finished":
            return JobProgress(actor, job, content)
        if kind == "announced":
            return Announced(actor, job, content)
        running.sent.popleft()
        return Done(actor, job, content)

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        """Translate errors of an ended cluster: Ray reports its own end by many types."""
        try:
            yield
        except RayError:
            self._connection.check()
            raise
