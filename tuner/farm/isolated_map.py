"""Function over items, isolated from each other: an item that raises or crashes its process gives an error, and the others continue.

For work that is long compared with a message: whole runs, turns of the finals.  Results come in the order of the items.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Any, Generic, NamedTuple, TypeVar

from simulator import terminal
from tuner.farm.actions import DIED, Blame, Deliver, Failed, RetryPolicy, Send, WorkItem
from tuner.farm.supervisor_loop import SupervisorLoop
from tuner.platform.actors import Actors, Announce
from tuner.platform.crash import error_line
from tuner.platform.interfaces import Clock
from tuner.platform.real import REAL

T = TypeVar("T")
R = TypeVar("R")
POLL_S = 1.0


class Outcome(NamedTuple, Generic[R]):
    """Outcome of an item.  value: result of the function; None if there is an `error`."""

    value: R | None
    error: str | None


IsolatedMap = Callable[[Iterable[T]], Iterator[Outcome[R]]]
Make = Callable[[], Callable[[T], R]]


def _call(call: Callable[[T], R], item: T) -> Outcome[R]:
    try:
        return Outcome(call(item), None)
    except Exception as error:  # noqa: BLE001  one item must not end the others
        return Outcome(None, error_line(error))


@contextmanager
def each_here(make: Make[T, R]) -> Iterator[IsolatedMap[T, R]]:
    """Map in this process, one item after the other; it does not survive a crash or a hang."""
    yield partial(map, partial(_call, make()))


@contextmanager
def each_on_ray(
    make: Make[T, R], min_count: int | None, address: str | None, wait_s: float, run_id: str, resource: str | None = None,
    max_count: int | None = None, idle_s: float = inf,
) -> Iterator[IsolatedMap[T, R]]:  # fmt: skip
    """On actors of Ray, as `RayActors` takes them."""
    from tuner.platform.ray_actors import RayActors  # Ray takes seconds to import

    with RayActors(partial(_make_worker, make), min_count, address, wait_s, run_id, resource, max_count=max_count, idle_s=idle_s) as actors:
        mapping: EachOn[T, R] = EachOn(actors, REAL.clock, terminal.say)
        yield mapping


@dataclass(frozen=True)
class EachWorker(Generic[T, R]):
    """`Worker` around a function."""

    call: Callable[[T], R]
    done: int = 0

    def work(self, packed: bytes, shared: Sequence[Any], announce: Announce | None) -> bytes:
        del shared, announce
        return pickle.dumps(_call(self.call, pickle.loads(packed)))


def _make_worker(make: Make[T, R]) -> EachWorker[T, R]:
    return EachWorker(make())


class EachOn(Generic[T, R]):
    """`IsolatedMap` on actors made by `each_on_ray`; an actor has one item at a time, without a time limit.  say: prints a line."""

    def __init__(self, actors: Actors, clock: Clock, say: Callable[[str], None]) -> None:
        self._crew = SupervisorLoop(actors, clock, self, say, None)
        self._items: dict[int, T] = {}
        self._outcomes: dict[int, Outcome[R]] = {}
        self._number = 0

    def __call__(self, items: Iterable[T]) -> Iterator[Outcome[R]]:
        numbers = []
        for item in items:
            numbers.append(self._number)
            self._items[self._number] = item
            self._crew.submit(WorkItem(self._number, RetryPolicy()))
            self._number += 1
        return self._in_order(numbers)

    def _in_order(self, numbers: Sequence[int]) -> Iterator[Outcome[R]]:
        for number in numbers:
            while number not in self._outcomes:
                self._crew.turn(POLL_S)
            yield self._outcomes.pop(number)

    def message(self, send: Send) -> tuple[bytes, Sequence[Any]]:
        return pickle.dumps(self._items[send.work]), ()

    def delivered(self, done: Deliver) -> None:
        del self._items[done.work]
        self._outcomes[done.work] = pickle.loads(done.result)

    def failed(self, failed: Failed) -> None:
        del self._items[failed.work]
        self._outcomes[failed.work] = Outcome(None, DIED)

    def blamed(self, blame: Blame) -> None:
        raise AssertionError(f"an item is all that there is: {blame}")
