"""Ray actors as a `Backend`: batching, back-pressure, crash isolation.

The driver keeps two batches in flight per actor and never more, so that no actor waits for the driver and no queue
grows.  An actor works on its batches in order; the one at the head is the one that runs, so it is the suspect when the
actor dies or takes too long.  A suspect is split (`backend.pieces`) until an item is alone; what was queued behind it
goes back unblamed.  Suspects have an actor to themselves: an answer that is on its way when the next batch kills the
actor is lost, and must not be taken for a death of its own.  An item that is alone with a worker when it dies gets one
more worker, so that a machine that goes away under it does not make it a crash.  Results are keyed by item number: late
or repeated answers change nothing.

Where a machine goes away, its workers wait for room elsewhere, and the others go on without them; they come back when there is room.
"""

from __future__ import annotations

import os
import secrets
import socket
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, NamedTuple, Self

import ray
from ray.exceptions import RayError, RayTaskError
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from simulator import terminal
from tuner.farm.backend import (
    DEATHS_ALONE,
    DIED,
    Backend,
    BatchSizer,
    Outcome,
    R,
    SerialBackend,
    T,
    Worker,
    map_ordered,
    one_line,
    pieces,
)
from tuner.farm.cluster import Connection, FarmError, Say, connect, cpus, release, reserve, worker_environment

__all__ = ["Backend", "Outcome", "RayBackend", "SerialBackend", "Worker", "map_ordered"]

BUILD_TRIES = 3
SUSPICION_S = 5.0  # a batch made for 35 ms that runs this long is killed and split; only a lone item gets `item_timeout_s`
POLL_S = 1.0
PATIENCE_S = 20.0  # an actor starts in seconds where there is room


class Shell:
    """The shell around a Worker."""

    def __init__(self, make_worker: Callable[[], Worker[Any, Any]]) -> None:
        self._make_worker = make_worker

    def build(self) -> str:
        """Apart from __init__, so that what goes wrong comes back as the exception it is."""
        self._worker = self._make_worker()
        return f"{socket.gethostname()}:{os.getpid()}"

    def run(self, batch: list[Any]) -> tuple[list[Any], float]:
        start = time.perf_counter()
        values = list(self._worker.run(batch))
        return values, time.perf_counter() - start


def of_worker(error: RayTaskError) -> Exception:
    """What a worker raised, with where in the worker that was."""
    cause = error.cause if isinstance(error.cause, Exception) else error
    cause.add_note(str(error))
    return cause


class _Sent(NamedTuple):
    ref: Any
    ids: list[int]
    suspect: bool


@dataclass
class Slot:
    """One place for a worker: its actor of the moment and the batches it has, the running one first."""

    index: int
    actor: Any = None
    name: str = ""
    building: Any = None  # reference to the pending build(), None when built, or given up
    since: float = 0.0  # when the head batch, or the build, could begin
    sent: deque[_Sent] = field(default_factory=deque)
    alone: Any = None  # reference to what it does beside batches, which it then gets none of
    failed_builds: int = 0
    said: bool = False  # that it waits

    @property
    def works(self) -> bool:
        return self.actor is not None and self.building is None

    @property
    def awaited(self) -> Any:
        if self.building is not None:
            return self.building
        return self.alone if self.alone is not None else self.sent[0].ref if self.sent else None

    @property
    def idle(self) -> bool:
        return self.works and self.alone is None and not self.sent


class RayBackend(Generic[T, R]):
    """`workers` actors with one CPU each.

    make_worker: called once in every actor; picklable (a function, `functools.partial`, a dataclass with `__call__`).
    workers: None takes every CPU that is free.  wait_s: how long to wait for room (`BadInputError` after it).
    item_timeout_s: a lone item that runs longer is a `timeout`; None: never.  in_flight: batches per actor.
    max_batch: 1 for items that are large.  resource: a custom Ray resource that each worker takes one unit of.
    """

    shell: type[Shell] = Shell

    def __init__(
        self,
        make_worker: Callable[[], Worker[T, R]],
        workers: int | None = None,
        address: str | None = None,
        wait_s: float = 300.0,
        run_id: str = "run",
        *,
        item_timeout_s: float | None = 60.0,
        build_timeout_s: float = 300.0,
        in_flight: int = 2,
        max_batch: int | None = None,
        resource: str | None = None,
        say: Say = terminal.say,
    ) -> None:
        self._connection: Connection = connect(address, workers)
        self._group: Any = None
        self._slots: list[Slot] = []
        self._name = f"tilefarm-{run_id}-{secrets.token_hex(3)}"  # one run may have several farms on one cluster
        self._item_timeout_s, self._build_timeout_s, self._in_flight = item_timeout_s, build_timeout_s, in_flight
        self._say = say
        self._sizer = BatchSizer(max_batch) if max_batch else BatchSizer()
        self._items: dict[int, T] = {}
        self._fresh: deque[int] = deque()
        self._suspects: deque[list[int]] = deque()
        self._deaths: dict[int, int] = {}
        self._answers: dict[int, Outcome[R]] = {}
        self._submitted = self._collected = self._born = 0
        try:
            self.workers = workers or max(1, cpus()[0])
            self._group = reserve(self.workers, wait_s, self._name, say, resource)
            self._make_worker = ray.put(make_worker)
            self._options: dict[str, Any] = {
                "num_cpus": 1,
                "max_restarts": 0,
                "max_task_retries": 0,
                "runtime_env": {"env_vars": worker_environment()},
                "resources": {resource: 1} if resource else None,
            }
            self._slots = [Slot(index) for index in range(self.workers)]
            for slot in self._slots:
                self._start(slot)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        try:
            if isinstance(raised[1], RayError):
                self._connection.check()  # what Ray says of its own end is many things
        finally:
            self.close()

    @property
    def outstanding(self) -> int:
        return self._submitted - self._collected

    @property
    def replaced(self) -> int:
        """Actors that died or were killed and were replaced."""
        return self._born - self.workers

    @property
    def names(self) -> list[str]:
        """Of the workers that are there: `w0@host:pid`."""
        return [slot.name for slot in self._slots if slot.works]

    def submit(self, items: Iterable[T]) -> None:
        for item in items:
            self._items[self._submitted] = item
            self._fresh.append(self._submitted)
            self._submitted += 1
        self._dispatch()

    def collect(self, count: int) -> list[Outcome[R]]:
        if count > self.outstanding:
            raise ValueError(f"collect({count}) with {self.outstanding} items outstanding")
        wanted = range(self._collected, self._collected + count)
        for number in wanted:
            while number not in self._answers:
                self._poll(POLL_S)
                self._dispatch()
        self._collected += count
        self._dispatch()
        return [self._answers.pop(number) for number in wanted]

    def close(self) -> None:
        """End the actors, give the room back, leave Ray if this object joined it."""
        if ray.is_initialized() and self._connection.answers:  # else Ray gives all of it back as it finds that this driver has gone
            for slot in self._slots:
                if slot.actor is not None:
                    ray.kill(slot.actor, no_restart=True)
            if self._group is not None:
                release(self._group)
        self._slots, self._group = [], None
        self._connection.close()

    # actors

    def _start(self, slot: Slot) -> None:
        slot.name = f"{self._name}-w{slot.index}.{self._born}"
        strategy = PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=slot.index)
        options = {**self._options, "name": slot.name, "scheduling_strategy": strategy}
        slot.actor = ray.remote(self.shell).options(**options).remote(self._make_worker)
        slot.building = slot.actor.build.remote()
        slot.since = time.monotonic()
        self._born += 1

    def _built(self, slot: Slot) -> None:
        try:
            where = ray.get(slot.building)
        except RayTaskError as error:
            raise of_worker(error) from None
        except RayError as error:
            self._build_failed(slot, one_line(error))
            return
        slot.name, slot.building, slot.failed_builds, slot.since = f"w{slot.index}@{where}", None, 0, time.monotonic()
        if slot.said:
            self._say(f"worker {slot.index} is back")
            slot.said = False

    def _build_failed(self, slot: Slot, why: str) -> None:
        slot.failed_builds += 1
        if slot.failed_builds < BUILD_TRIES:
            self._replace(slot)
            return
        ray.kill(slot.actor, no_restart=True)
        slot.actor = slot.building = None
        left = sum(other.actor is not None for other in self._slots)
        text = f"worker {slot.index} died {BUILD_TRIES} times while it started: {why}"
        if not left:
            raise FarmError(text)
        self._say(f"{text}; going on with {left} of {self.workers}")

    def _replace(self, slot: Slot) -> None:
        ray.kill(slot.actor, no_restart=True)
        self._start(slot)

    # batches

    def _dispatch(self) -> None:
        # what an actor that is not there yet was given, nobody else would do
        ready = [slot for slot in self._slots if slot.works and slot.alone is None and len(slot.sent) < self._in_flight]
        for depth in range(self._in_flight):  # the idle first, so that a few items are spread over all actors
            for slot in ready:
                if len(slot.sent) != depth or (slot.sent and slot.sent[-1].suspect):
                    continue
                suspect = bool(self._suspects)
                if suspect and slot.sent:
                    continue  # it drains, and then takes one
                if ids := self._next_batch():
                    if not slot.sent:
                        slot.since = time.monotonic()
                    slot.sent.append(_Sent(slot.actor.run.remote([self._items[i] for i in ids]), ids, suspect))

    def _next_batch(self) -> list[int]:
        while self._suspects:
            if ids := [i for i in self._suspects.popleft() if i in self._items]:
                return ids
        size = min(len(self._fresh), self._sizer.size(len(self._fresh), self.workers * self._in_flight))
        return [self._fresh.popleft() for _ in range(size)]

    def _allowed_s(self, slot: Slot) -> float | None:
        if slot.building is not None:
            return None if any(other.works for other in self._slots) else self._build_timeout_s
        if self._item_timeout_s is None or len(slot.sent[0].ids) == 1:
            return self._item_timeout_s
        expected_s = (self._sizer.item_s or 0.0) * len(slot.sent[0].ids)
        return min(self._item_timeout_s, max(SUSPICION_S, 20 * expected_s))

    def _poll(self, patience_s: float) -> None:
        busy = [slot for slot in self._slots if slot.awaited is not None]
        now = time.monotonic()
        for slot in busy:
            allowed_s = self._allowed_s(slot)
            if allowed_s is not None:
                patience_s = min(patience_s, max(0.0, slot.since + allowed_s - now) + 0.01)
        waited = [slot.awaited for slot in busy]
        any_ready, _ = ray.wait(waited, num_returns=1, timeout=patience_s, fetch_local=False)
        self._connection.check()  # before a worker that went with the cluster is taken for one that died
        ready = set(ray.wait(waited, num_returns=len(waited), timeout=0, fetch_local=False)[0]) if any_ready else set()
        for slot in busy:
            if slot.awaited in ready:
                self._arrived(slot)
                continue
            allowed_s, waited_s = self._allowed_s(slot), time.monotonic() - slot.since
            replaced = slot.building is not None and self.replaced > 0  # at the start kernels are compiled, which takes longer
            if replaced and waited_s > PATIENCE_S and not slot.said and any(other.works for other in self._slots):
                slot.said = True
                self._say(f"worker {slot.index} waits for room on the cluster; the others go on")
            if allowed_s is not None and waited_s > allowed_s:
                if slot.building is not None:
                    self._build_failed(slot, f"not ready within {allowed_s:g} s")
                else:
                    self._lost(slot, "timeout", f"no answer within {allowed_s:g} s")

    def _arrived(self, slot: Slot) -> None:
        """What the slot was awaited for is there."""
        self._built(slot) if slot.building is not None else self._answered(slot)

    def _answered(self, slot: Slot) -> None:
        head = slot.sent[0]
        try:
            values, wall_s = ray.get(head.ref)
        except RayTaskError as error:  # the worker raised: the actor lives
            slot.sent.popleft()
            slot.since = time.monotonic()
            if len(head.ids) > 1:
                self._suspects.extendleft(reversed(pieces(head.ids)))
            else:
                cause = error.cause if isinstance(error.cause, BaseException) else error
                self._answer(head.ids[0], Outcome("crash", None, one_line(cause), slot.name, 0.0, self._deaths.get(head.ids[0], 0)))
            return
        except RayError as error:
            self._lost(slot, "crash", one_line(error))
            return
        slot.sent.popleft()
        slot.since = time.monotonic()
        self._sizer.note(len(head.ids), wall_s)
        for number, value in zip(head.ids, values, strict=True):
            attempt = self._deaths.get(number, 0)
            self._answer(number, Outcome("ok", value, None, slot.name, wall_s / len(values), attempt))

    def _lost(self, slot: Slot, status: Literal["crash", "timeout"], why: str) -> None:
        """The actor is gone, or about to be: split the batch that ran, put the others back, get a new actor."""
        suspect, *behind = [sent.ids for sent in slot.sent]
        slot.sent.clear()
        self._suspects.extendleft(reversed(behind))
        number = suspect[0]
        if len(suspect) > 1:
            self._suspects.extendleft(reversed(pieces(suspect)))
        elif status == "timeout" and behind:  # it may be done, its answer held back by a process that the next one stopped
            self._suspects.appendleft(suspect)
        else:
            self._deaths[number] = self._deaths.get(number, 0) + 1
            if status == "timeout" or self._deaths[number] >= DEATHS_ALONE:
                error = why if status == "timeout" else DIED
                wall_s = time.monotonic() - slot.since
                self._answer(number, Outcome(status, None, error, slot.name, wall_s, self._deaths[number] - 1))
            else:
                self._suspects.appendleft(suspect)
        self._replace(slot)

    def _answer(self, number: int, outcome: Outcome[R]) -> None:
        del self._items[number]
        self._deaths.pop(number, None)
        self._answers[number] = outcome
