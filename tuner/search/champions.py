"""Champions: for each level the fastest measured program, for each grant the fastest program of single operators (the baseline)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compiler.space.gene import Gene, Genome, gene_json, gene_values
from tuner.measure.grants import NEVER
from tuner.search.population import Individual


class Champions:
    """Best programs; ties go to the smaller task digest, so that the order of arrival does not matter.

    groups: indices of levels with equal grants (`tuner.measure.grants.same_grants`); None: all equal.  A group has one baseline: the best
    over its levels of the fitting programs.
    """

    def __init__(self, levels: int, groups: Sequence[Sequence[int]] | None = None) -> None:
        self.best: list[Individual | None] = [None] * levels
        self._groups = [list(group) for group in groups or (range(levels),)]
        self.baselines: list[Individual | None] = [None] * len(self._groups)
        self.programs = 0

    def baseline(self, level: int) -> Individual | None:
        """Baseline of the level's group."""
        return next(baseline for group, baseline in zip(self._groups, self.baselines, strict=True) if level in group)

    def gains(self, cycles: NDArray[np.int64], task: str, single: bool) -> bool:
        """Whether `note` would change a champion.  single: a program of single operators in sequence."""
        new = Individual((), cycles, task)
        best = any(_better_individual(old, new, [level], _cycles) is new for level, old in enumerate(self.best))
        pairs = zip(self.baselines, self._groups, strict=True)
        return best or (single and any(_better_individual(old, new, group, _mean_log) is new for old, group in pairs))

    def note(self, individual: Individual) -> None:
        """Record a measured program."""
        for level in range(len(self.best)):
            self.best[level] = _better_individual(self.best[level], individual, [level], _cycles)
        if is_single_operator_sequence(individual.genome):
            pairs = zip(self.baselines, self._groups, strict=True)
            self.baselines = [_better_individual(old, individual, group, _mean_log) for old, group in pairs]

    def empty(self) -> Champions:
        """New object for the same levels, without programs."""
        return Champions(len(self.best), self._groups)

    def joined(self, champions: Champions) -> Champions:
        """Better programs of both, with the program count of this object."""
        union = self.empty()
        union.best, union.baselines, union.programs = list(self.best), list(self.baselines), self.programs
        for individual in (*champions.best, *champions.baselines):
            if individual is not None:
                union.note(individual)
        return union

    def state(self) -> dict[str, Any]:
        return {
            "best": [None if m is None else individual_json(m) for m in self.best],
            "baselines": [None if m is None else individual_json(m) for m in self.baselines],
            "programs": self.programs,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        self.best = [None if m is None else parse_individual(m) for m in state["best"]]
        self.baselines = [None if m is None else parse_individual(m) for m in state["baselines"]]
        self.programs = int(state["programs"])


def is_single_operator_sequence(genome: Genome) -> bool:
    """Whether single operators run in sequence: an operator may use several cores, but no two run in parallel."""
    return all(gene.stop - gene.start == 1 and 0 in gene.cores for gene in genome)


def _cycles(cycles: NDArray[np.int64]) -> float:
    return int(cycles[0])


def _mean_log(cycles: NDArray[np.int64]) -> float:
    return float(np.log(cycles).mean())


def _better_individual(
    old: Individual | None, new: Individual, levels: Sequence[int], merit: Callable[[NDArray[np.int64]], float]
) -> Individual | None:
    """Better individual at these levels; `old` if the new one does not fit them."""
    cycles = new.cycles[levels]
    if (cycles >= NEVER).any():
        return old
    return new if old is None or (merit(cycles), new.task) < (merit(old.cycles[levels]), old.task) else old


def individual_json(individual: Individual) -> list[Any]:
    """JSON form of a measured genome."""
    return [[gene_json(gene) for gene in individual.genome], [int(c) for c in individual.cycles], individual.task]


def parse_genome(rows: Sequence[Sequence[Any]]) -> Genome:
    return tuple(Gene._make(gene_values(row)) for row in rows)


def parse_individual(row: Sequence[Any]) -> Individual:
    return Individual(parse_genome(row[0]), np.array(row[1], np.int64), str(row[2]))
