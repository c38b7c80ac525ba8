"""Islands: separate populations of genomes that exchange their best from time to time."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from compiler.plan.plan import Infeasible, Plan
from compiler.space.decode import decode_all
from compiler.space.gene import Genome
from compiler.target.target_graph import TargetGraph
from tuner.config import SearchSettings


@dataclass(frozen=True, eq=False)
class Individual:
    """Measured program.  cycles: int64 [levels]; task: digest of its task, which breaks ties."""

    genome: Genome
    cycles: NDArray[np.int64]
    task: str

    def plan(self, target_graph: TargetGraph) -> Plan:
        """Plan of the measured genome."""
        plan = decode_all(target_graph, self.genome)
        if isinstance(plan, Infeasible):
            raise RuntimeError(f"a measured genome has no plan: {plan}")
        return plan


class ChildRecord(NamedTuple):
    """Record of a level's children: cycles of its best program when it last became faster; number of children since."""

    cycles: int
    since: int


@dataclass
class Island:
    """Population, ordered with the best of every level first.  grown: level -> number of grown children."""

    rng: np.random.Generator
    members: list[Individual] = field(default_factory=list)
    grown: dict[int, ChildRecord] = field(default_factory=dict)

    def aside(self, number: int) -> np.random.Generator:
        """Generator independent of the island's, the same until the island draws."""
        bits = self.rng.bit_generator
        assert isinstance(bits, np.random.PCG64)
        return np.random.Generator(bits.jumped(number))

    def admit(self, new: list[Individual], search: SearchSettings) -> None:
        """Keep `elites` of every level, then the best by mean rank over the levels, `population` in all."""
        pool = {member.task: member for member in [*self.members, *new]}
        everyone = sorted(pool.values(), key=lambda m: m.task)
        if not everyone:
            return
        cycles = np.stack([m.cycles for m in everyone])
        order = np.argsort(cycles, axis=0, kind="stable")
        ranks = np.empty_like(order)
        for level in range(cycles.shape[1]):
            ranks[order[:, level], level] = np.arange(len(everyone))
        keep: dict[int, None] = {}
        for place in range(search.elites):
            for level in range(cycles.shape[1]):
                if place < len(everyone):
                    keep.setdefault(int(order[place, level]))
        for index in np.argsort(ranks.sum(1), kind="stable"):
            keep.setdefault(int(index))
        self.members = [everyone[index] for index in list(keep)[: max(search.population, len(keep) and search.elites)]]

    def best(self, level: int) -> Individual:
        """Fastest member at a level."""
        return min(self.members, key=lambda m: (int(m.cycles[level]), m.task))
