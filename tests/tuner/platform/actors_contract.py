"""What holds for every `Actors`: Ray's, and a simulated one.  A class of tests to be derived from, with actors of one's own.

Jobs are lists of words (`Steps`), so that whoever simulates a process can do what is meant by them.
"""

from __future__ import annotations

import itertools
import os
import pickle
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from tuner.platform.actors import (
    BUILDING,
    Actor,
    Actors,
    Announce,
    Announced,
    Built,
    Done,
    Event,
    JobProgress,
    Lost,
    Message,
    Raised,
    Worker,
)

Word = tuple[Any, ...]
COUNT = 2


def die() -> None:
    os._exit(1)


class Steps:
    """Does what a job says, word by word; its result is what it was told to note.

    ("note", x): note x.  ("remember", x): for later jobs, ("recall",): note what was remembered.  ("shared",): note what was shared.
    ("finish",): an item is finished.  ("announce", x).  ("touch", path): a file is there.  ("die",): the process ends.  ("wait", seconds).
    ("raise", x).
    """

    def __init__(self, die: Callable[[], None] = die, wait: Callable[[float], None] = time.sleep) -> None:
        self.done = 0
        self.remembered: Any = None
        self._die, self._wait = die, wait

    def work(self, packed: bytes, shared: Sequence[Any], announce: Announce | None) -> bytes:
        notes: list[Any] = []
        for name, *what in pickle.loads(packed):
            if name == "note":
                notes += what
            elif name == "remember":
                (self.remembered,) = what
            elif name == "recall":
                notes.append(self.remembered)
            elif name == "shared":
                notes += shared
            elif name == "finish":
                self.done += 1
            elif name == "announce" and announce is not None:
                announce(*what)
            elif name == "touch":
                Path(*what).touch()
            elif name == "die":
                self._die()
            elif name == "wait":
                self._wait(*what)
            elif name == "raise":
                raise RuntimeError(*what)
        return pickle.dumps(notes)


def unbuilt() -> Worker:
    raise RuntimeError("cannot be made")


class Bench:
    """Actors, and what a test does with them again and again."""

    def __init__(self, actors: Actors) -> None:
        self.actors = actors
        self._numbers = itertools.count()

    def start(self, slot: int = 0) -> Actor:
        actor = next(self._numbers)
        self.actors.start(slot, actor)
        return actor

    def built(self, slot: int = 0) -> Actor:
        actor = self.start(slot)
        (event,) = self.hear(1)
        assert isinstance(event, Built)
        assert event.actor == actor
        return actor

    def send(self, actor: Actor, job: int, *words: Word, shared: Sequence[Any] = (), announces: bool = False) -> None:
        self.actors.send(actor, Message(job, pickle.dumps(words), shared, announces))

    def hear(self, count: int, patience_s: float = 30.0) -> list[Event]:
        """As many events as are expected; fewer where they do not come."""
        heard: list[Event] = []
        for _ in range(1000):
            heard += self.actors.events(patience_s if len(heard) < count else 0.0)
            if len(heard) >= count:
                return heard
        return heard


def notes(*what: Any) -> bytes:
    return pickle.dumps(list(what))


class ActorsContract:
    """To be derived from.  A process may take as long as it likes to start; nothing else here takes long."""

    def actors(self, make_worker: Callable[[], Worker]) -> AbstractContextManager[Actors]:
        """COUNT places, nobody started, whose workers are made so."""
        raise NotImplementedError

    def make(self) -> Callable[[], Worker]:
        """Makes a `Steps` that lives in this kind of process."""
        return Steps

    @pytest.fixture
    def bench(self) -> Iterator[Bench]:
        with self.actors(self.make()) as actors:
            assert actors.count == COUNT
            yield Bench(actors)

    def test_worker_with_memory_does_jobs_in_order(self, bench: Bench) -> None:
        actor = bench.built()
        bench.send(actor, 7, ("remember", "x"), ("note", 1))
        bench.send(actor, 3, ("recall",), ("shared",), shared=[None, bench.actors.share({"a": 5}), 6])
        assert bench.hear(2) == [Done(actor, 7, notes(1)), Done(actor, 3, notes("x", None, {"a": 5}, 6))]
        assert bench.actors.events(0.0) == []
        bench.actors.kill(actor)
        other = bench.built()
        bench.send(other, 4, ("recall",))
        assert bench.hear(1) == [Done(other, 4, notes(None))], "another process"

    def test_large_result_is_heard_in_its_turn(self, bench: Bench) -> None:
        actor, large = bench.built(), b"x" * (2 << 20)
        bench.send(actor, 0, ("note", large))
        bench.send(actor, 1, ("note", 1))
        assert bench.hear(2) == [Done(actor, 0, notes(large)), Done(actor, 1, notes(1))]

    def test_actors_are_concurrent_and_killed_ones_are_silent(self, bench: Bench) -> None:
        one, two = bench.start(0), bench.start(1)
        names = {event.actor: event.name for event in bench.hear(2) if isinstance(event, Built)}
        assert set(names) == {one, two}
        assert names[one] != names[two]
        bench.send(one, 0, ("wait", 1000.0))
        bench.send(two, 1, ("note", 5))
        assert bench.hear(1) == [Done(two, 1, notes(5))]
        bench.actors.kill(one)
        bench.send(one, 2)
        bench.send(two, 3, ("note", 6))
        assert bench.hear(1) == [Done(two, 3, notes(6))]
        assert bench.actors.events(0.2) == []

    def test_last_announcement_is_heard_before_its_attempt(self, bench: Bench) -> None:
        for fatal in range(3):
            actor = bench.built()
            bench.send(actor, fatal, *(("announce", b"%d" % at) for at in range(fatal + 1)), ("die",), announces=True)
            bench.send(actor, 9, ("note", "behind"))
            *announced, last = bench.hear(fatal + 2)
            assert announced == [Announced(actor, fatal, b"%d" % at) for at in range(fatal + 1)]
            assert isinstance(last, Lost)
            assert (last.actor, last.outside) == (actor, False)
            assert last.why
            assert "\n" not in last.why
            assert bench.actors.events(0.1) == []

    def test_nothing_is_tried_before_somebody_heard_of_it(self, bench: Bench, tmp_path: Path) -> None:
        actor, tried = bench.built(), tmp_path / "tried"
        bench.send(actor, 0, ("announce", b"a"), ("touch", str(tried)), ("announce", b"a"), ("note", 1), announces=True)
        bench.send(actor, 1, ("announce", b"b"), ("note", 2))
        time.sleep(0.5)
        assert not tried.exists()
        announced = Announced(actor, 0, b"a")
        assert bench.hear(4) == [announced, announced, Done(actor, 0, notes(1)), Done(actor, 1, notes(2))]
        assert tried.exists()

    def test_a_job_that_goes_on_says_so(self, bench: Bench) -> None:
        actor = bench.built()
        bench.send(actor, 5, ("finish",), ("finish",), ("wait", 1.0), ("finish",))
        *words, done = bench.hear(2)
        while not isinstance(done, Done):
            words, done = [*words, done], bench.hear(1)[0]
        assert words
        assert all(isinstance(word, JobProgress) and (word.actor, word.job) == (actor, 5) and word.items in (2, 3) for word in words)

    def test_what_raises_is_told_as_it_was_raised(self, bench: Bench) -> None:
        actor = bench.built()
        bench.send(actor, 5, ("raise", "harm"))
        (event,) = bench.hear(1)
        assert isinstance(event, Raised)
        assert (event.actor, event.job, type(event.error), event.error.args) == (actor, 5, RuntimeError, ("harm",))

    def test_worker_that_cannot_be_made_is_reported(self) -> None:
        with self.actors(unbuilt) as actors:
            bench = Bench(actors)
            actor = bench.start()
            (event,) = bench.hear(1)
        assert isinstance(event, Raised)
        assert (event.actor, event.job, str(event.error)) == (actor, BUILDING, "cannot be made")
