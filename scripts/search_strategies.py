"""Reference strategies: random, evolution, simulated annealing and Optuna's TPE, over any space with random points and mutations.

Each is a walk over points, and receives the cycles of each point.  All start at the same point and know nothing else.  A walk becomes a
strategy (`tuner.search.strategy`) by replay: every job repeats the walk over measured programs, then continues for a few points.  A
repeated program is not measured again.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from bisect import insort
from collections.abc import Generator, Hashable, Sequence
from typing import Any, ClassVar, Protocol, TypeAlias, TypeVar

import numpy as np
import optuna

from compiler.space.gene import Genome
from scripts.search_spaces import search_space
from tuner.cost_model.interface import Predictor
from tuner.measure.request import Request
from tuner.search.ask_tell import Asking
from tuner.search.knowledge import Knowledge
from tuner.search.strategy import SearchStrategy, StrategyContext

P = TypeVar("P", bound=Hashable)
Points: TypeAlias = Generator[P, float | None, None]
"""Of each point, log2 of its cycles; None where it does not fit."""

Rng = np.random.Generator
POPULATION, TOURNAMENT, CROSSOVER, AGAIN, MOST_MOVES = 32, 3, 0.3, 0.7, 4  # those of configs/tune/default.yaml
HOT, COLD, COOLING = 0.15, 0.005, 256  # octaves that annealing takes for a small loss, at the start and after so many steps
EPOCH = 32  # new points of a job: each goes the whole way again
REPEATS = 64 * 256  # on the whole way, after which a walk that only repeats itself is stopped


class Space(Protocol[P]):
    """Search space; its points mostly fit, others are repaired."""

    start: P

    def genome(self, point: P) -> Genome: ...

    def random(self, rng: Rng) -> P: ...

    def neighbour(self, point: P, rng: Rng) -> P:
        """Repaired small change of a point; the point itself if the change does not fit."""
        ...

    def crossover(self, a: P, b: P, rng: Rng) -> P: ...

    def parameters(self, point: P) -> dict[str, Any]:
        """Parameters with which `suggested` returns this point."""
        ...

    def suggested(self, trial: optuna.Trial) -> P: ...


class Walk(ABC):
    """A `SearchStrategy`: needs all results of earlier jobs, so `search.lag=0`."""

    version: ClassVar[str] = "2"

    def __init__(self, context: StrategyContext) -> None:
        self.context = context

    @abstractmethod
    def points(self, space: Space[Any], seed: int) -> Points[Any]:
        """Without an end."""

    def space(self) -> Space[Any]:
        return search_space(self.context.target_graph)

    def tell(self, known: Knowledge, models: Sequence[Predictor | None]) -> None:
        """Take the measured programs; segments are ignored."""
        del models
        self.known = known

    def ask(self, epoch: int) -> Asking[None]:
        space = self.space()
        walk, cycles_by_point = self.points(space, self.context.seed), dict[Hashable, float | None]()
        new, repeats, point = 0, 0, next(walk)
        while repeats < REPEATS:
            if point in cycles_by_point:
                repeats += 1
            else:
                genome = space.genome(point)
                if not self.known.measured(genome):
                    if new == EPOCH:
                        return
                    new += 1
                    yield [Request("program", genome)]
                cycles = self.known.program_cycles(genome)
                cycles_by_point[point] = None if cycles is None else float(np.log2(cycles[0]))
            point = walk.send(cycles_by_point[point])


class Random(Walk):
    def points(self, space: Space[P], seed: int) -> Points[P]:
        rng = np.random.default_rng(seed)
        yield space.start
        while True:
            yield space.random(rng)


class Evolution(Walk):
    """Steady state: a child of tournament winners displaces the worst."""

    def points(self, space: Space[P], seed: int) -> Points[P]:
        rng = np.random.default_rng(seed)
        people: list[tuple[float, int, P]] = []
        born = 0

        def admit(point: P) -> Points[P]:
            nonlocal born
            value = yield point
            if value is not None and all(point != existing for _, _, existing in people):
                born += 1
                insort(people, (value, born, point))
                del people[POPULATION:]

        def parent() -> P:
            return people[int(rng.integers(len(people), size=TOURNAMENT).min())][2]

        yield from admit(space.start)
        for _ in range(POPULATION // 2):
            yield from admit(space.random(rng))
        while True:
            crossed = rng.random() < CROSSOVER
            child = space.crossover(parent(), parent(), rng) if crossed else parent()
            if not crossed or rng.random() < AGAIN:
                moves = 1
                while moves < MOST_MOVES and rng.random() < AGAIN:
                    moves += 1
                for _ in range(moves):
                    child = space.neighbour(child, rng)
            yield from admit(child)


class Annealing(Walk):
    """One walker; the temperature falls geometrically."""

    def points(self, space: Space[P], seed: int) -> Points[P]:
        rng = np.random.default_rng(seed)
        point = space.start
        value = yield point
        assert value is not None
        best, lowest, steps = point, value, 0
        while True:
            proposal = space.neighbour(point, rng)
            cycles = yield proposal
            if cycles is None:
                continue
            steps += 1
            heat = HOT * (COLD / HOT) ** min(1.0, steps / COOLING)
            if cycles <= value or rng.random() < math.exp((value - cycles) / heat):
                point, value = proposal, cycles
            if cycles < lowest:
                best, lowest = proposal, cycles
            elif steps % 64 == 0:
                point, value = best, lowest


class Tpe(Walk):
    """Optuna with its own defaults."""

    def points(self, space: Space[P], seed: int) -> Points[P]:
        study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed))
        study.enqueue_trial(space.parameters(space.start))
        while True:
            trial = study.ask()
            value = yield space.suggested(trial)
            study.tell(trial, value, None if value is not None else optuna.trial.TrialState.FAIL)


STRATEGIES: dict[str, type[SearchStrategy]] = {"random": Random, "evolution": Evolution, "annealing": Annealing, "tpe": Tpe}
