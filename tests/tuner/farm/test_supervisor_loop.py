"""A driver that was away for a while takes nobody for silent who said something meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tuner.farm.actions import Blame, Deliver, Failed, RetryPolicy, Send, WorkItem
from tuner.farm.supervisor_loop import SupervisorLoop
from tuner.platform.actors import Actor, Built, Done, Event, Message


class Clock:
    """Goes on when it is told to."""

    now_s = 0.0

    def monotonic_s(self) -> float:
        return self.now_s

    def epoch_us(self) -> int:
        return int(self.now_s * 1e6)

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


class Scripted:
    """Says what it is given to say, and remembers what it was told."""

    count = min_count = 1
    idle_s = 60.0

    def __init__(self) -> None:
        self.said: list[Event] = []
        self.sent: list[Message] = []
        self.killed: list[Actor] = []

    def start(self, slot: int, actor: Actor) -> None:
        self.said.append(Built(actor, f"host:{slot}"))

    def kill(self, actor: Actor) -> None:
        self.killed.append(actor)

    def send(self, actor: Actor, message: Message) -> None:
        self.sent.append(message)

    def share(self, value: Any) -> Any:
        return value

    def events(self, patience_s: float) -> list[Event]:
        said, self.said = self.said, []
        return said

    def close(self) -> None:
        pass


class Client:
    def __init__(self) -> None:
        self.done: list[Deliver] = []

    def message(self, send: Send) -> tuple[bytes, Sequence[Any]]:
        return b"%d" % send.work, ()

    def delivered(self, done: Deliver) -> None:
        self.done.append(done)

    def failed(self, failed: Failed) -> None:
        raise AssertionError(failed)

    def blamed(self, blame: Blame) -> None:
        raise AssertionError(blame)


def test_returning_driver_listens_before_it_judges() -> None:
    actors, clock, client, said = Scripted(), Clock(), Client(), list[str]()
    crew = SupervisorLoop(actors, clock, client, said.append, 8.0)
    crew.turn(1.0)
    crew.submit(WorkItem(5, RetryPolicy(60.0, announces=True)))
    (message,) = actors.sent
    assert message.packed == b"5"
    clock.now_s = 1000.0
    actors.said.append(Done(0, message.job, b"result"))
    crew.turn(1.0)
    assert client.done == [Deliver(5, b"result")]
    assert not actors.killed
    crew.submit(WorkItem(6, RetryPolicy(60.0, announces=True)))
    clock.now_s += 61.0
    crew.turn(1.0)
    assert actors.killed == [0]
    assert said == ["w0@host:0 gave no sign of life; what it did is done again item by item"]
