"""Who is best: per level the fastest whole program measured, and the fastest program of single operators (the baseline)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compiler.space.gene import Gene, Genome, gene_json, gene_values
from tuner.search.population import Individual


class Champions:
    """Ties go to the smaller task digest, so the order of arrival does not matter."""

    def __init__(self, levels: int) -> None:
        self.best: list[Individual | None] = [None] * levels
        self.baseline: Individual | None = None
        self.programs = 0

    def gains(self, cycles: NDArray[np.int64], task: str, single: bool) -> bool:
        """Whether `note` would change anything.  single: of single operators one after the other."""
        new = Individual((), cycles, task)
        best = any(_better(old, new, partial(_cycles_at, level)) is new for level, old in enumerate(self.best))
        return best or (single and _better(self.baseline, new, _mean_log) is new)

    def note(self, individual: Individual) -> None:
        """A whole program was measured."""
        for level in range(len(self.best)):
            self.best[level] = _better(self.best[level], individual, partial(_cycles_at, level))
        if single_operators_in_turn(individual.genome):
            self.baseline = _better(self.baseline, individual, _mean_log)

    def joined(self, other: Champions) -> Champions:
        """The better of both, and the programs of this one."""
        found = Champions(len(self.best))
        found.best, found.baseline, found.programs = list(self.best), self.baseline, self.programs
        for individual in (*other.best, other.baseline):
            if individual is not None:
                found.note(individual)
        return found

    def state(self) -> dict[str, Any]:
        return {
            "best": [None if m is None else individual_json(m) for m in self.best],
            "baseline": None if self.baseline is None else individual_json(self.baseline),
            "programs": self.programs,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        self.best = [None if m is None else individual_from(m) for m in state["best"]]
        self.baseline = None if state["baseline"] is None else individual_from(state["baseline"])
        self.programs = int(state["programs"])


def single_operators_in_turn(genome: Genome) -> bool:
    """Operators one after the other: whatever cores share one, none runs beside another."""
    return all(gene.stop - gene.start == 1 and 0 in gene.cores for gene in genome)


def _cycles_at(level: int, individual: Individual) -> float:
    return int(individual.cycles[level])


def _mean_log(individual: Individual) -> float:
    return float(np.log(individual.cycles).mean())


def _better(old: Individual | None, new: Individual, merit: Callable[[Individual], float]) -> Individual:
    return new if old is None or (merit(new), new.task) < (merit(old), old.task) else old


def individual_json(m: Individual) -> list[Any]:
    """JSON form of a measured genome."""
    return [[gene_json(gene) for gene in m.genome], [int(c) for c in m.cycles], m.task]


def genome_from(rows: Sequence[Sequence[Any]]) -> Genome:
    return tuple(Gene._make(gene_values(row)) for row in rows)


def individual_from(row: Sequence[Any]) -> Individual:
    return Individual(genome_from(row[0]), np.array(row[1], np.int64), str(row[2]))
