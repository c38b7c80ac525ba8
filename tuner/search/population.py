"""Population: the measured programs that a search continues from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from compiler.plan.plan import Infeasible, Plan
from compiler.space.decode import decode_all
from compiler.space.gene import Genome
from compiler.target.target_graph import TargetGraph
from tuner.measure.grants import NEVER

MEMBERS, ELITES = 32, 4  # members; of every level the fastest that always stay
_FASTER = 1e-4  # least gain that counts, as a share of the cycles


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


@dataclass(frozen=True)
class Population:
    """Population, ordered with the best of every level first.

    idle: number of programs since a level's best became faster, for each level; () before the first program.
    """

    members: tuple[Individual, ...] = ()
    idle: tuple[int, ...] = ()

    def admit(self, new: Sequence[Individual]) -> Population:
        """Population of old and new members: the `ELITES` of every level, then the best by mean rank over the levels."""
        everyone = sorted({member.task: member for member in [*self.members, *new]}.values(), key=lambda member: member.task)
        if not everyone:
            return self
        cycles = np.stack([member.cycles for member in everyone])
        order = np.argsort(cycles, axis=0, kind="stable")
        ranks = np.empty_like(order)
        for level in range(cycles.shape[1]):
            ranks[order[:, level], level] = np.arange(len(everyone))
        keep = dict.fromkeys(order[:ELITES].ravel().tolist()) | dict.fromkeys(np.argsort(ranks.sum(1), kind="stable").tolist())
        members = tuple(everyone[index] for index in [*keep][:MEMBERS])
        if not self.members:
            return Population(members, (0,) * cycles.shape[1])
        idle = (
            0 if cycles[:, level].min() < (1 - _FASTER) * self.best(level).cycles[level] else count + len(new)
            for level, count in enumerate(self.idle)
        )
        return Population(members, tuple(idle))

    def parent(self, level: int, rng: np.random.Generator) -> Individual:
        """Member to change: the fastest with other borders than faster ones, the n-th of these with a probability of 2 ** -n."""
        distinct = dict[tuple[int, ...], Individual]()
        for member in sorted(self.members, key=lambda member: (int(member.cycles[level]), member.task)):
            if member.cycles[level] < NEVER or not distinct:
                distinct.setdefault(tuple(gene.start for gene in member.genome), member)
        return [*distinct.values()][min(int(rng.geometric(0.5)), len(distinct)) - 1]

    def best(self, level: int) -> Individual:
        """Fastest member at a level."""
        return min(self.members, key=lambda member: (int(member.cycles[level]), member.task))
