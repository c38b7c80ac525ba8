"""Actors of the farm: remote processes that receive jobs and send events.

Two implementations: Ray's (`tuner.platform.ray_actors`), and a simulated one that kills, delays, repeats and reorders.  One contract suite
tests both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from simulator.npu.errors import TilefarmError

Actor = int  # number of an actor: new at every start, so that late events of an earlier one are recognised


class Built(NamedTuple):
    """Event of a started actor.  name: host and process, for the log.  node: id of its computer."""

    actor: Actor
    name: str
    node: str = ""


class Lost(NamedTuple):
    """Event of an actor that died, or could not be started.  why: one line.

    outside: its computer or the connection failed: no item of its work can be the cause.
    """

    actor: Actor
    why: str
    outside: bool = False


class Draining(NamedTuple):
    """Event of an actor whose node will leave.  seconds: until then; inf without a deadline."""

    actor: Actor
    seconds: float


class JobProgress(NamedTuple):
    """Event of a living actor.  items: finished ones of its current job."""

    actor: Actor
    job: int
    items: int


class Announced(NamedTuple):
    """Event before an actor tries an item of a job; it waits for an answer.  item: packed, so that it can become a job of its own."""

    actor: Actor
    job: int
    item: bytes


class Done(NamedTuple):
    """Event of a finished job.  result: packed."""

    actor: Actor
    job: int
    result: bytes


class Raised(NamedTuple):
    """Event of an exception in a worker's construction (job BUILDING) or in a job: a bug of the program, which ends the run."""

    actor: Actor
    job: int
    error: Exception


BUILDING = -1


Event = Built | Lost | Draining | JobProgress | Announced | Done | Raised


class Message(NamedTuple):
    """Message to an actor.  job: number of the job.  packed: the job and its data.  shared: results of `Actors.share`, resolved.

    announces: whether every item is announced before it is tried.
    """

    job: int
    packed: bytes
    shared: Sequence[Any]
    announces: bool


class FarmError(TilefarmError):
    """Error of the cluster, not of the input: actors that do not stay alive."""


class ClusterGoneError(FarmError):
    """Error of a cluster that has ended under the driver."""

    exit_code = 75  # EX_TEMPFAIL of sysexits.h: the same command, with --resume, may well succeed


Announce = Callable[[bytes], None]


class Worker(Protocol):
    """Worker of an actor, constructed there.  It may use threads and processes of its own."""

    @property
    def done(self) -> int:
        """Number of items finished so far, over all jobs: sent as `JobProgress`.  Read while a job runs."""
        ...

    def work(self, packed: bytes, shared: Sequence[Any], announce: Announce | None) -> bytes:
        """Run a job; returns its packed result.  announce: called with each item before its trial, returns after an answer; None to skip
        it."""
        ...


class Actors(Protocol):
    """Slots for `count` actors, 0 .. count - 1, with at most one actor in each.

    min_count: slots with reserved room; an actor in another one is built when there is room for it.
    idle_s: time without work after which the actor of another slot should be killed, to give its room back.

    Messages to one actor are processed in order.  Its events arrive in order; events in transit are lost if it dies.  Events of a killed
    actor may still arrive.
    """

    count: int
    min_count: int
    idle_s: float

    def start(self, slot: int, actor: Actor) -> None:
        """Start a new actor in a slot; `Built` or `Lost` follows later."""
        ...

    def kill(self, actor: Actor) -> None:
        """Kill an actor at once; only events in transit follow."""
        ...

    def send(self, actor: Actor, message: Message) -> None: ...

    def share(self, value: Any) -> Any:
        """Return a reference to a value for many messages."""
        ...

    def events(self, patience_s: float) -> list[Event]:
        """Return new events; waits up to `patience_s` for the first.  Raises `ClusterGoneError` if the cluster has ended."""
        ...

    def close(self) -> None: ...
