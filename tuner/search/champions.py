"""Who is best: per level the fastest whole program measured, and per grant the fastest program of single operators (the baseline)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compiler.space.gene import Gene, Genome, gene_json, gene_values
from tuner.measure.grants import NEVER
from tuner.search.population import Individual


class Champions:
    """Ties go to the smaller task digest, so the order of arrival does not matter.

    groups: places of levels that grant the same (`tuner.measure.grants.same_grants`); None: all do.  A baseline is one of a group: the
    best over its levels of those programs that fit it.
    """

    def __init__(self, levels: int, groups: Sequence[Sequence[int]] | None = None) -> None:
        self.best: list[Individual | None] = [None] * levels
        self._groups = [list(group) for group in groups or (range(levels),)]
        self.baselines: list[Individual | None] = [None] * len(self._groups)
        self.programs = 0

    def baseline(self, level: int) -> Individual | None:
        """Of the group that a level is in."""
        return next(baseline for group, baseline in zip(self._groups, self.baselines, strict=True) if level in group)

    def gains(self, cycles: NDArray[np.int64], task: str, single: bool) -> bool:
        """Whether `note` would change anything.  single: of single operators one after the other."""
        new = Individual((), cycles, task)
        best = any(_better(old, new, [level], _cycles) is new for level, old in enumerate(self.best))
        pairs = zip(self.baselines, self._groups, strict=True)
        return best or (single and any(_better(old, new, group, _mean_log) is new for old, group in pairs))

    def note(self, individual: Individual) -> None:
        """A whole program was measured."""
        for level in range(len(self.best)):
            self.best[level] = _better(self.best[level], individual, [level], _cycles)
        if single_operators_in_turn(individual.genome):
            pairs = zip(self.baselines, self._groups, strict=True)
            self.baselines = [_better(old, individual, group, _mean_log) for old, group in pairs]

    def empty(self) -> Champions:
        """For the same levels, of no program."""
        return Champions(len(self.best), self._groups)

    def joined(self, other: Champions) -> Champions:
        """The better of both, and the programs of this one."""
        found = self.empty()
        found.best, found.baselines, found.programs = list(self.best), list(self.baselines), self.programs
        for individual in (*other.best, *other.baselines):
            if individual is not None:
                found.note(individual)
        return found

    def state(self) -> dict[str, Any]:
        return {
            "best": [None if m is None else individual_json(m) for m in self.best],
            "baselines": [None if m is None else individual_json(m) for m in self.baselines],
            "programs": self.programs,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        self.best = [None if m is None else individual_from(m) for m in state["best"]]
        self.baselines = [None if m is None else individual_from(m) for m in state["baselines"]]
        self.programs = int(state["programs"])


def single_operators_in_turn(genome: Genome) -> bool:
    """Operators one after the other: whatever cores share one, none runs beside another."""
    return all(gene.stop - gene.start == 1 and 0 in gene.cores for gene in genome)


def _cycles(cycles: NDArray[np.int64]) -> float:
    return int(cycles[0])


def _mean_log(cycles: NDArray[np.int64]) -> float:
    return float(np.log(cycles).mean())


def _better(
    old: Individual | None, new: Individual, levels: Sequence[int], merit: Callable[[NDArray[np.int64]], float]
) -> Individual | None:
    """The better one at these levels; what does not fit them is none."""
    mine = new.cycles[levels]
    if (mine >= NEVER).any():
        return old
    return new if old is None or (merit(mine), new.task) < (merit(old.cycles[levels]), old.task) else old


def individual_json(m: Individual) -> list[Any]:
    """JSON form of a measured genome."""
    return [[gene_json(gene) for gene in m.genome], [int(c) for c in m.cycles], m.task]


def genome_from(rows: Sequence[Sequence[Any]]) -> Genome:
    return tuple(Gene._make(gene_values(row)) for row in rows)


def individual_from(row: Sequence[Any]) -> Individual:
    return Individual(genome_from(row[0]), np.array(row[1], np.int64), str(row[2]))
