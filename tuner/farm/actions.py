"""Inputs and actions of supervision, as values; `tuner.farm.supervision` decides on actions and performs none."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from tuner.platform.actors import Actor

DIED = "the worker process died"
DEATHS_ALONE = 2  # crashed workers that had only this item, before it counts as a crash; the first may have been killed from outside


@dataclass(frozen=True)
class RetryPolicy:
    """Rules for work items of one kind.

    silence_s: a work item hangs after this time without a finished item; None: never.  announces: it has items, and can announce each
    before it tries it.
    pure: it may be done twice at the same time, and is if it is late.  follows: it may be queued behind another work item.
    followed: another work item may be queued behind it.  comparable: its duration shows the speed of its actor.
    tries: limit of actors that it may crash, if it does not announce.
    """

    silence_s: float | None = None
    announces: bool = False
    pure: bool = False
    follows: bool = False
    followed: bool = False
    comparable: bool = False
    tries: int = DEATHS_ALONE


class WorkItem(NamedTuple):
    """Unit of work, to be done once.

    number: its id.  rank: among waiting ones the smallest is started first.  home: slot with the best caches for it.  until_s: time at
    which it stops by itself, so it must begin before.
    """

    number: int
    kind: RetryPolicy
    home: int | None = None
    until_s: float | None = None
    rank: tuple[int, int] = (0, 0)

    @property
    def order(self) -> tuple[tuple[int, int], int]:
        """The least is wanted first."""
        return self.rank, self.number


class StartActor(NamedTuple):
    slot: int
    actor: Actor


class Kill(NamedTuple):
    actor: Actor


class Send(NamedTuple):
    """Send a message to an actor.  number: id of this message.  name: name of the actor, for the log.  item: this single item instead of
    all."""

    actor: Actor
    number: int
    work: int
    name: str
    announces: bool
    item: bytes | None


class SayLine(NamedTuple):
    """A line for a person."""

    line: str


class Deliver(NamedTuple):
    """A result, the first and only one of this work."""

    work: int
    result: bytes


class Blame(NamedTuple):
    """Blame an item that crashes its actor; its work item is repeated without it.  attempt: earlier crashes."""

    item: bytes
    status: Literal["crash", "timeout"]
    error: str
    attempt: int


class Failed(NamedTuple):
    """Fail a work item that is itself an item, after it crashed the allowed number of actors."""

    work: int
    error: str


class GiveUp(NamedTuple):
    """End the run: it cannot continue."""

    error: Exception


Action = StartActor | Kill | Send | SayLine | Deliver | Blame | Failed | GiveUp
