"""Ask/tell protocol as a generator: it yields a round of requests and continues with their measurements."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from typing import Any, TypeAlias, TypeVar

from tuner.measure.request import Measurement, Request

A = TypeVar("A")
B = TypeVar("B")
T = TypeVar("T")

Asking: TypeAlias = Generator[Sequence[Request], Sequence[Measurement], T]
"""Generator of rounds; receives one measurement for each request, in order; T is its return value."""


def run_to_end(asking: Generator[A, B, T], answer: Callable[[A], B]) -> T:
    """Run a generator to its end.  An exception of `answer` closes it without another question."""
    answers: Any = None
    with closing(asking):
        while True:
            try:
                question = asking.send(answers)
            except StopIteration as end:
                outcome: T = end.value
                return outcome
            answers = answer(question)


def translate(asking: Generator[A, B, T], ask: Callable[[A], Asking[B]]) -> Asking[T]:
    """Translate a generator of other questions into one of measurements."""
    answers: Any = None
    while True:
        try:
            question = asking.send(answers)
        except StopIteration as end:
            outcome: T = end.value
            return outcome
        answers = yield from ask(question)
