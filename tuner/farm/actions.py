"""Inputs and actions of supervision: values, for a machine that does nothing itself (`tuner.farm.supervision`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from tuner.platform.actors import Actor

DIED = "the worker process died"
DEATHS_ALONE = 2  # of workers that had the item alone, which make it a crash: the first may have been ended by somebody else


@dataclass(frozen=True)
class RetryPolicy:
    """How errands of a kind are looked after.

    silence_s: with nothing finished for so long it hangs; None: never.  announces: it has items, and can say which one it is about to try.
    pure: it may be done twice at a time, and is where it is late.  follows: it may lie behind another piece of work.  followed: another one
    may lie behind it.  alike: what one takes tells of the speed of its actor.  tries: actors that it may take along, where it does not
    announce.
    """

    silence_s: float | None = None
    announces: bool = False
    pure: bool = False
    follows: bool = False
    followed: bool = False
    alike: bool = False
    tries: int = DEATHS_ALONE


class WorkItem(NamedTuple):
    """A piece of work, to be done once.

    number: its own.  rank: of those that wait the least is wanted first.  home: slot that does it best.  until_s: it stops by itself then,
    so it must begin before.
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
    """To an actor.  number: of this message.  name: of the actor, for the log.  item: this one alone, instead of the whole."""

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
    """An item that takes its actor along; its work is done again and must not try it.  attempt: deaths before the last one."""

    item: bytes
    status: Literal["crash", "timeout"]
    error: str
    attempt: int


class Failed(NamedTuple):
    """Errand that is one item, and has taken along as many actors as it may."""

    work: int
    error: str


class GiveUp(NamedTuple):
    """The run cannot go on."""

    error: Exception


Action = StartActor | Kill | Send | SayLine | Deliver | Blame | Failed | GiveUp
