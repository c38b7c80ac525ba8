"""What asks for measurements is a generator: it gives requests, a round at a time, and goes on with the measurements of that round."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from typing import Any, TypeAlias, TypeVar

from tuner.measure.request import Measurement, Request

A = TypeVar("A")
B = TypeVar("B")
T = TypeVar("T")

Asking: TypeAlias = Generator[Sequence[Request], Sequence[Measurement], T]
"""One measurement of each request of a round, in their order; T is what it comes to in the end."""


def answered(asking: Generator[A, B, T], answer: Callable[[A], B]) -> T:
    """To its end.  What `answer` raises closes it: it asks nobody again."""
    answers: Any = None
    with closing(asking):
        while True:
            try:
                asked = asking.send(answers)
            except StopIteration as end:
                found: T = end.value
                return found
            answers = answer(asked)


def translated(asking: Generator[A, B, T], ask: Callable[[A], Asking[B]]) -> Asking[T]:
    """What asks for something else, by whoever asks for measurements in its place."""
    answers: Any = None
    while True:
        try:
            asked = asking.send(answers)
        except StopIteration as end:
            found: T = end.value
            return found
        answers = yield from ask(asked)
