"""Searches to compare ours with: random, evolution, simulated annealing and Optuna's TPE, over any space to draw from and to change.

All start at the same point, measure through the same meter, and know nothing but what it says.  Points that do not fit cost nothing, and
neither does a repeat.
"""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Callable, Hashable
from contextlib import suppress
from typing import Any, Protocol, TypeVar

import numpy as np
import optuna

P = TypeVar("P", bound=Hashable)
Measure = Callable[[P], float | None]
"""log2 of a point's cycles, None where it does not fit; raises `Spent`."""

Rng = np.random.Generator
POPULATION, TOURNAMENT, CROSSOVER, AGAIN, MOST_MOVES = 32, 3, 0.3, 0.7, 4  # those of configs/tune/default.yaml
HOT, COLD = 0.15, 0.005  # octaves that annealing takes for a small loss, at the start and at the end
ASKS = 64  # asks per measurement of the budget after which a strategy that only repeats itself is stopped


class Spent(Exception):
    """The budget."""


class Space(Protocol[P]):
    """Points that fit mostly; what does not is repaired."""

    start: P

    def random(self, rng: Rng) -> P: ...

    def neighbour(self, point: P, rng: Rng) -> P:
        """One small change, repaired; the point itself where the draw came to nothing."""
        ...

    def crossover(self, a: P, b: P, rng: Rng) -> P: ...

    def parameters(self, point: P) -> dict[str, Any]:
        """What `suggested` would have to draw."""
        ...

    def suggested(self, trial: optuna.Trial) -> P: ...


class Meter:
    """Counts what is measured and keeps the best so far.  spent, best: after each measurement; cost: of one, in units of the budget."""

    def __init__(self, oracle: Callable[[Any], float | None], budget: float) -> None:
        self.oracle, self.budget = oracle, budget
        self.spent: list[float] = []
        self.best: list[float] = []
        self._known: dict[Hashable, float | None] = {}
        self._asked = 0

    def __call__(self, point: Hashable) -> float | None:
        self._asked += 1
        if self._asked > ASKS * self.budget:
            raise Spent
        if point in self._known:
            return self._known[point]
        if self.spent and self.spent[-1] >= self.budget:
            raise Spent
        value = self._known[point] = self.oracle(point)
        if value is not None:
            self.note(1.0, value)
        return value

    def note(self, cost: float, value: float) -> None:
        self.spent.append((self.spent[-1] if self.spent else 0.0) + cost)
        self.best.append(min(value, self.best[-1]) if self.best else value)


def random_search(space: Space[P], measure: Measure[P], seed: int, budget: int) -> None:
    rng = np.random.default_rng(seed)
    measure(space.start)
    while True:
        measure(space.random(rng))


def evolution(space: Space[P], measure: Measure[P], seed: int, budget: int) -> None:
    """Steady state: a child of tournament winners displaces the worst."""
    rng = np.random.default_rng(seed)
    people: list[tuple[float, int, P]] = []
    born = 0

    def admit(point: P) -> None:
        nonlocal born
        value = measure(point)
        if value is not None and all(point != other for _, _, other in people):
            born += 1
            insort(people, (value, born, point))
            del people[POPULATION:]

    def parent() -> P:
        return people[int(rng.integers(len(people), size=TOURNAMENT).min())][2]

    admit(space.start)
    for _ in range(POPULATION // 2):
        admit(space.random(rng))
    while True:
        crossed = rng.random() < CROSSOVER
        child = space.crossover(parent(), parent(), rng) if crossed else parent()
        if not crossed or rng.random() < AGAIN:
            moves = 1
            while moves < MOST_MOVES and rng.random() < AGAIN:
                moves += 1
            for _ in range(moves):
                child = space.neighbour(child, rng)
        admit(child)


def annealing(space: Space[P], measure: Measure[P], seed: int, budget: int) -> None:
    """One walker; the temperature falls geometrically over the budget."""
    rng = np.random.default_rng(seed)
    here, value = space.start, measure(space.start)
    assert value is not None
    best, lowest, steps = here, value, 0
    while True:
        there = space.neighbour(here, rng)
        found = measure(there)
        if found is None:
            continue
        steps += 1
        heat = HOT * (COLD / HOT) ** min(1.0, steps / budget)
        if found <= value or rng.random() < math.exp((value - found) / heat):
            here, value = there, found
        if found < lowest:
            best, lowest = there, found
        elif steps % 64 == 0:
            here, value = best, lowest


def tpe(space: Space[P], measure: Measure[P], seed: int, budget: int) -> None:
    """Optuna with its own defaults."""
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed))
    study.enqueue_trial(space.parameters(space.start))
    while True:
        trial = study.ask()
        value = measure(space.suggested(trial))
        study.tell(trial, value, None if value is not None else optuna.trial.TrialState.FAIL)


STRATEGIES: dict[str, Callable[[Space[Any], Measure[Any], int, int], None]] = {
    "random": random_search,
    "evolution": evolution,
    "annealing": annealing,
    "tpe": tpe,
}


def run(name: str, space: Space[P], oracle: Callable[[P], float | None], seed: int, budget: int) -> Meter:
    """One search to the end of its budget."""
    meter = Meter(oracle, budget)
    with suppress(Spent):
        STRATEGIES[name](space, meter, seed, budget)
    return meter
