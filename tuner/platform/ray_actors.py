"""Actors on Ray: one in each bundle of a placement group, and extra ones where Ray has room; jobs as calls.

A call brings a job and returns the next event of its actor, mostly the job's result.  After any other event, the driver calls for another
one, so that as many calls are out as jobs.  The end of a call puts its actor into a queue, so an event costs the same on farms of every
size.

While a job runs, its actor periodically reports the number of finished items, which separates a hanging job from a long one.  An announced
item is tried when the driver calls for the next event.

An extra actor is a demand of its own, which an autoscaler sees, and Ray places it when a node has room.  It is no placement group of one
bundle: Ray puts a bundle on the emptiest node, and an actor on a node that is in use, until that is half full or more
(`RAY_scheduler_spread_threshold`), so that others can be given back.
"""

from __future__ import annotations

import errno
import queue
import secrets
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from math import inf
from typing import Any, Literal, Self

import ray
from ray.exceptions import (
    ActorUnavailableError,
    NodeDiedError,
    ObjectLostError,
    ObjectStoreFullError,
    OutOfDiskError,
    RayActorError,
    RayError,
    RayTaskError,
)
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from simulator import terminal
from simulator.kernel_archive import KernelArchive, pack_kernels, unpack_kernels
from simulator.npu.errors import BadInputError
from tuner.platform.actors import (
    BUILDING,
    Actor,
    Announced,
    Built,
    Done,
    Draining,
    Event,
    FarmError,
    JobProgress,
    Lost,
    Message,
    Raised,
    Worker,
)
from tuner.platform.crash import error_line
from tuner.platform.node_facts import NodeFacts, differences, find_facts, version_trouble
from tuner.platform.ray_cluster import (
    STORE_BYTES,
    Connection,
    Say,
    cluster_cpus,
    connect,
    release_group,
    reserve_group,
    start_trouble,
)
from tuner.platform.ray_drains import DrainWatch

PULSE_S = 10.0  # a report costs the driver as much as a job, and most jobs end earlier
START_S = 20.0  # with free resources a process starts within seconds; its construction may take minutes
FULL = (errno.ENOSPC, errno.EDQUOT)
STORE_FULL = "make room on its disk, or start Ray with a larger --object-store-memory, and --resume"
NODE_DIED = "its node has died"  # part of Ray's message, its only sign of this for an actor of a node without a notice

Said = tuple[Literal["finished", "announced", "done"], Any]


class RayActor:
    """Ray actor around a worker.  Jobs run in a thread of their own, in order, so that Ray's thread can report progress.

    Not by a second concurrency group: with groups, Ray's thread polls signals a hundred times a second, each time with Python's lock, which
    took 3% of the actor's time.
    """

    def __init__(self, make_worker: Callable[[], Worker], kernels: KernelArchive | None = None) -> None:
        self._make_worker, self._kernels = make_worker, kernels
        self._thread = ThreadPoolExecutor(1)
        self._events: queue.SimpleQueue[bytes | Future[bytes]] = queue.SimpleQueue()  # announced items, and ended jobs
        self._answer = threading.Semaphore(0)
        self._announced = False

    def build(self) -> NodeFacts:
        """Construct the worker; separate from __init__, so that exceptions come back unchanged."""
        if self._kernels is not None:
            unpack_kernels(self._kernels)
            self._kernels = None
        self._worker = self._make_worker()
        return find_facts()

    def pack_kernels(self) -> KernelArchive | None:
        """Kernels for nodes without them."""
        return pack_kernels()

    def work(self, packed: bytes, announces: bool, pulse_s: float, *shared: Any) -> Said:
        """Queue a job, and return the next event."""
        job = self._thread.submit(self._worker.work, packed, shared, self._announce if announces else None)
        job.add_done_callback(self._events.put)
        return self.next_event(pulse_s)

    def next_event(self, pulse_s: float) -> Said:
        """Return the next event of the jobs; an item that was announced before is tried now."""
        if self._announced:
            self._announced = False
            self._answer.release()
        try:
            event = self._events.get(timeout=pulse_s)
        except queue.Empty:
            return "finished", self._worker.done
        if isinstance(event, Future):
            return "done", event.result()
        self._announced = True
        return "announced", event

    def _announce(self, item: bytes) -> None:
        self._events.put(item)
        self._answer.acquire()


@dataclass
class _Running:
    """Running actor.  ready: reference to its pending start, None once built.  calls: its unread calls, the first one build().

    extra: whether it may wait for room.  node: id of its node, once built.  leaves: whether it was said that this will leave.
    start_s: time of its start.

    jobs: without a result yet.  Those behind one that announces are not sent before its result: their calls would be answers.
    """

    actor: Any
    ready: Any
    extra: bool
    node: str = ""
    name: str = "that starts"
    leaves: bool = False
    start_s: float = field(default_factory=time.time)
    calls: deque[Future[Any]] = field(default_factory=deque)
    jobs: deque[Message] = field(default_factory=deque)


class RayActors:
    """Group of `min_count` actors with one CPU each, and room permitting up to `max_count`.

    make_worker: called once in every actor; picklable (a function, `functools.partial`, a dataclass with `__call__`).
    min_count: None takes every free CPU.  max_count: None: `min_count`.  wait_s: longest wait for resources (`BadInputError` after it).
    resource: a custom Ray resource; each actor takes one unit.  idle_s: see `Actors`.
    connection: of the caller, who closes it; None: a new one to `address`.
    """

    def __init__(
        self, make_worker: Callable[[], Worker], min_count: int | None = None, address: str | None = None, wait_s: float = 300.0,
        run_id: str = "run", resource: str | None = None, say: Say = terminal.say, max_count: int | None = None, idle_s: float = inf,
        connection: Connection | None = None,
    ) -> None:  # fmt: skip
        self._connection, self._joined = connection or connect(address, min_count), connection is None
        self.idle_s = idle_s
        self._name = f"tilefarm-{run_id}-{secrets.token_hex(3)}"  # one run may have several farms on one cluster
        self._running: dict[Actor, _Running] = {}
        self._ended_calls: queue.SimpleQueue[Actor] = queue.SimpleQueue()  # actors whose calls ended, once for each call
        self._group: Any = None
        self._drains: DrainWatch | None = None
        self._reported_nodes = set[str]()  # nodes that will leave
        self._differences = set[str]()  # kinds of them that were said
        try:
            self.min_count = min_count or max(1, cluster_cpus()[0])
            self.count = max_count or self.min_count
            self._group = reserve_group(self.min_count, wait_s, self._name, say, resource)
            self._make_worker = ray.put(make_worker)
            self._say, self._say_late_s = say, time.monotonic() + START_S
            self._drains, self._driver_facts = DrainWatch(), find_facts()
            # for nodes without compiled kernels; a local cluster, which has an environment, is this computer
            kernels = None if self._connection.environment else pack_kernels()
            self._kernels = None if kernels is None else ray.put(kernels)
            self._lacks_kernels = kernels is None and not self._connection.environment
        except BaseException:
            self.close()
            raise
        environment, resources = self._connection.runtime_environment(), {resource: 1} if resource else None
        self._options = {"num_cpus": 1, "max_restarts": 0, "max_task_retries": 0, "runtime_env": environment, "resources": resources}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self, slot: int, actor: Actor) -> None:
        with self._translate_errors():
            options, extra = {**self._options, "name": f"{self._name}-w{slot}.{actor}"}, slot >= self.min_count
            if not extra:
                options["scheduling_strategy"] = PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=slot)
            handle = ray.remote(RayActor).options(**options).remote(self._make_worker, self._kernels)
            self._running[actor] = _Running(handle, handle.__ray_ready__.remote(), extra)
            self._await(actor, handle.build.remote())

    def kill(self, actor: Actor) -> None:
        if (running := self._running.pop(actor, None)) is not None:
            with self._translate_errors():
                ray.kill(running.actor, no_restart=True)

    def send(self, actor: Actor, message: Message) -> None:
        if (running := self._running.get(actor)) is None:  # the actor died, and its event is not read yet
            return
        if not any(job.announces for job in running.jobs):
            self._send_now(actor, running, message)
        running.jobs.append(message)

    def _send_now(self, actor: Actor, running: _Running, message: Message) -> None:
        with self._translate_errors():
            self._await(actor, running.actor.work.remote(message.packed, message.announces, PULSE_S, *message.shared))

    def _await(self, actor: Actor, reference: Any) -> None:
        call = reference.future()
        self._running[actor].calls.append(call)
        call.add_done_callback(lambda _: self._ended_calls.put(actor))

    def share(self, value: Any) -> Any:
        with self._translate_errors():
            return ray.put(value)

    def events(self, patience_s: float) -> list[Event]:
        ended_actors, events = list[Actor](), list[Event]()
        with suppress(queue.Empty):
            ended_actors.append(self._ended_calls.get(timeout=patience_s))
            while True:
                ended_actors.append(self._ended_calls.get_nowait())
        with self._translate_errors():
            self._say_late()
            self._connection.check()  # before actors lost with the cluster are taken for single deaths
            for actor in ended_actors:
                # a large result may arrive after the end of a later call
                while (running := self._running.get(actor)) is not None and running.calls and running.calls[0].done():
                    events.append(self._event(actor, running))
            built = [event.actor for event in events if isinstance(event, Built)]
            return [*events, *self._drained(built)]

    def _drained(self, built: Sequence[Actor]) -> Iterator[Draining]:
        """Actors whose node will leave: those of nodes that were told since, and those just built."""
        assert self._drains is not None
        seconds_left = self._drains.leave_times
        news = seconds_left.keys() - self._reported_nodes
        self._reported_nodes |= news
        for node, count in Counter(running.node for running in self._running.values() if running.node in news).items():
            time_note = "" if seconds_left[node] == inf else f" in {seconds_left[node] - time.monotonic():.0f} s"
            self._say(f"node {node[:8]} leaves{time_note}; its {count} workers take no more work")
        for actor in [*self._running] if news else built:
            running = self._running.get(actor)
            if running is not None and running.node in seconds_left and not running.leaves:
                running.leaves = True
                yield Draining(actor, max(0.0, seconds_left[running.node] - time.monotonic()))

    def close(self) -> None:
        """End the actors, release their resources, and leave Ray if this object joined it."""
        if ray.is_initialized() and self._connection.answers:  # else Ray releases everything when it notices the end of this driver
            for running in self._running.values():
                ray.kill(running.actor, no_restart=True)
            if self._group is not None:
                release_group(self._group)
        self._running, self._group = {}, None
        if self._drains is not None:
            self._drains.close()
        if self._joined:
            self._connection.close()

    def _say_late(self) -> None:
        """Report once the workers whose processes have not started; Ray retries such starts silently."""
        if time.monotonic() < self._say_late_s:
            return
        self._say_late_s = float("inf")
        if waiting_actors := [running.ready for running in self._running.values() if running.ready is not None and not running.extra]:
            count = len(ray.wait(waiting_actors, num_returns=len(waiting_actors), timeout=0, fetch_local=False)[1])
            if count:
                self._say(f"{count} of {self.min_count} workers have not started in {START_S:g} s: {start_trouble()}")

    def _event(self, actor: Actor, running: _Running) -> Event:
        job = BUILDING if running.ready is not None else running.jobs[0].job
        try:
            result = running.calls.popleft().result()
        except RayTaskError as error:  # raised by a worker or a job
            cause = error.cause if isinstance(error.cause, Exception) else error
            if isinstance(cause, ObjectLostError):  # what was shared with it
                self.kill(actor)
                return Lost(actor, error_line(cause), outside=True)
            if isinstance(cause, OSError) and cause.errno in FULL:
                return Raised(
                    actor, job, FarmError(f"worker {running.name}: {' '.join(str(cause).split())}; make room there, and --resume")
                )
            cause.add_note(str(error))  # the note has the actor's traceback
            return Raised(actor, job, cause)
        except (ObjectStoreFullError, OutOfDiskError) as error:
            return Raised(actor, job, FarmError(f"Ray's object store of worker {running.name} is full ({STORE_FULL}): {error_line(error)}"))
        except RayError as error:
            self.kill(actor)  # an unreachable actor may be alive
            preempted = isinstance(error, RayActorError) and error.preempted
            external = preempted or isinstance(error, NodeDiedError | ActorUnavailableError) or NODE_DIED in str(error)
            return Lost(actor, error_line(error), external)
        if running.ready is not None:
            return self._built(actor, running, result)
        kind, content = result
        if kind == "done":
            if running.jobs.popleft().announces:
                self._send_held(actor, running)
            return Done(actor, job, content)
        self._await(actor, running.actor.next_event.remote(PULSE_S))
        return JobProgress(actor, job, content) if kind == "finished" else Announced(actor, job, content)

    def _built(self, actor: Actor, running: _Running, facts: NodeFacts) -> Event:
        running.ready, running.node, running.name = None, facts.node, facts.name
        if (trouble := version_trouble(self._driver_facts, facts)) is not None:
            return Raised(actor, BUILDING, BadInputError(trouble))
        for kind, line in differences(self._driver_facts, facts, running.start_s, time.time(), STORE_BYTES):
            if kind not in self._differences:
                self._differences.add(kind)
                self._say(line)
        if self._lacks_kernels:
            self._lacks_kernels = False
            running.actor.pack_kernels.remote().future().add_done_callback(self._share_kernels)
        return Built(actor, facts.name, facts.node)

    def _share_kernels(self, call: Future[KernelArchive | None]) -> None:
        """Keep what the first worker has compiled; called by a thread of Ray."""
        try:
            if (kernels := call.result()) is not None:
                self._kernels = ray.put(kernels)
        except RayError:
            self._lacks_kernels = True  # the next worker is asked

    def _send_held(self, actor: Actor, running: _Running) -> None:
        for message in running.jobs:
            self._send_now(actor, running, message)
            if message.announces:
                break

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        """Translate errors of an ended cluster: Ray reports its own end by many types."""
        try:
            yield
        except (ObjectStoreFullError, OutOfDiskError) as error:
            raise FarmError(f"Ray's object store on this computer is full ({STORE_FULL}): {error_line(error)}") from error
        except RayError:
            self._connection.check()
            raise
