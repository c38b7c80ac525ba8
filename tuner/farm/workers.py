"""What actors of a search do: jobs, and single items of them for whoever looks for the one that does harm."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from tuner.farm.jobs import Job, JobRunner, Training, Update
from tuner.measure.measurement import Measurement, Request
from tuner.world.actors import Announce


class Told(NamedTuple):
    """A job, for an actor of this name.  first: as of `News`, the rest of which is shared: models, answers, stored, then epochs."""

    name: str
    job: Job | Training
    first: int


class Lone(NamedTuple):
    """A request, packed, that is tried alone."""

    name: str
    item: bytes


class JobWorker:
    """`Worker` around a JobRunner.

    Messages are bytes: Ray takes every argument apart on its own, in Python, to look for functions and classes that nobody could import.
    """

    def __init__(self, make: Callable[[], JobRunner]) -> None:
        self.job_runner = make()

    @property
    def done(self) -> int:
        return self.job_runner.done

    def work(self, packed: bytes, shared: Sequence[Any], announce: Announce | None) -> bytes:
        told = pickle.loads(packed)
        self.job_runner.worker = told.name
        if isinstance(told, Lone):
            self.job_runner.measure(pickle.loads(told.item))
            return b""

        def announced(requests: Sequence[Request]) -> Iterator[Measurement]:
            assert announce is not None
            for request in requests:
                announce(pickle.dumps(request.identity))
                yield self.job_runner.measure(request)

        models, answers, stored, *epochs = shared
        update = Update(told.first, epochs, models, answers, stored)
        return pickle.dumps(self.job_runner.work(told.job, update, None if announce is None else announced))
