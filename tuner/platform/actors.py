"""Actors as the farm sees them: processes elsewhere that are sent jobs, and events that come back.

Two implementations: Ray's (`tuner.platform.ray_actors`), and a simulated one that kills, delays, repeats and reorders.  What they have in
common is held by one contract suite.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from simulator.npu.errors import TilefarmError

Actor = int  # number of an actor: every start has a new one, so that what an earlier one said is known as such


class Built(NamedTuple):
    """An actor is there.  name: host and process, for the log."""

    actor: Actor
    name: str


class Lost(NamedTuple):
    """An actor has died, or could not be started.  why: one line.

    outside: its computer went away, or the way there: nothing that it was at can have done that.
    """

    actor: Actor
    why: str
    outside: bool = False


class Progress(NamedTuple):
    """items: that the actor has finished of the job it is at; it is alive."""

    actor: Actor
    job: int
    items: int


class Announced(NamedTuple):
    """The actor is about to try an item of a job, and waits until this was heard.  item: packed, so that it can be a job of its own."""

    actor: Actor
    job: int
    item: bytes


class Done(NamedTuple):
    """result: what the job returned, packed."""

    actor: Actor
    job: int
    result: bytes


class Raised(NamedTuple):
    """What makes an actor's worker raised (job BUILDING), or the code of a job: a fault of the program's, which ends the run."""

    actor: Actor
    job: int
    error: Exception


BUILDING = -1


Event = Built | Lost | Progress | Announced | Done | Raised


class Message(NamedTuple):
    """job: its number.  packed: the job and what goes with it.  shared: of `Actors.share`, opened for the actor.

    announces: whether every item is announced before it is tried.
    """

    job: int
    packed: bytes
    shared: Sequence[Any]
    announces: bool


class FarmError(TilefarmError):
    """The cluster, not the input: actors that cannot be kept alive."""


class ClusterGoneError(FarmError):
    """All of the cluster under the driver has ended."""

    exit_code = 75  # EX_TEMPFAIL of sysexits.h: the same command, with --resume, may well succeed


Announce = Callable[[bytes], None]


class Worker(Protocol):
    """What an actor works with, made there.  A job of its own thread, or process, is nobody else's business."""

    @property
    def done(self) -> int:
        """Items finished so far, of all jobs: what `Progress` says.  Read beside a job that runs."""
        ...

    def work(self, packed: bytes, shared: Sequence[Any], announce: Announce | None) -> bytes:
        """A job's result.  announce: called with each item before it is tried, returns when that was heard; None where nobody asks."""
        ...


class Actors(Protocol):
    """Places for `count` actors, `slot` 0 .. count - 1, at most one actor in each.

    Messages to one actor are worked on in the order in which they were sent.  Its events come in order, unless it died: what was on its way
    then may be lost.  Events of an actor that was killed may still come.
    """

    count: int

    def start(self, slot: int, actor: Actor) -> None:
        """A new actor there; `Built` or `Lost` follows, some time."""
        ...

    def kill(self, actor: Actor) -> None:
        """At once; no event follows but those that are on their way."""
        ...

    def send(self, actor: Actor, message: Message) -> None: ...

    def share(self, value: Any) -> Any:
        """A reference to a value for many messages."""
        ...

    def events(self, patience_s: float) -> list[Event]:
        """What has come; waits so long for a first one.  Raises `ClusterGoneError` where all of it went away."""
        ...

    def close(self) -> None: ...
