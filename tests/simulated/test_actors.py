"""The simulated actors keep what all actors do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from tests.simulated.actors import Dies, SimActors
from tests.simulated.faults import Faults
from tests.simulated.kernel import Kernel, Process
from tests.tuner.platform.actors_contract import COUNT, ActorsContract, Steps
from tuner.platform.actors import Worker


def dies() -> None:
    raise Dies


class TestSimActors(ActorsContract):
    def actors(self, make_worker: Callable[[], Worker]) -> SimActorsHeld:  # type: ignore[override]
        return held(make_worker)

    def make(self) -> Callable[[], Worker]:
        return partial(Steps, dies, lambda seconds: current[-1].elapse(seconds))


current: list[SimActors] = []
SimActorsHeld = object


@contextmanager
def held(make_worker: Callable[[], Worker]) -> Iterator[SimActors]:
    kernel = Kernel(0)
    process = Process(kernel, Faults())
    before, kernel.current = kernel.current, process.main
    current.append(SimActors(kernel, process, COUNT, make_worker, lambda message: 0.001, lambda message: None, set(), pulse_s=0.2))
    yield current[-1]
    current.pop()
    kernel.current = before
