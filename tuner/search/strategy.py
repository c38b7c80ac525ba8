"""Protocol of a search strategy: chooses the next segments and programs that an island measures.

A strategy is one island.  It is constructed for every epoch, in the process of the epoch's job, from its last state, and receives the
knowledge of all islands.  It sees neither the clock nor the budget: at their end its generator is closed.  So its requests depend only on
the knowledge and its state, not on the process, the time or other jobs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

from compiler.target.target_graph import TargetGraph
from tuner.config import TuneConfig
from tuner.cost_model.interface import Predictor
from tuner.plugins import STRATEGIES, find
from tuner.search.ask_tell import Asking
from tuner.search.knowledge import Knowledge
from tuner.search.limits import SearchLimits
from tuner.search.population import Individual


@dataclass(frozen=True, eq=False)
class StrategyContext:
    """Context of an island.  rules: options permitted by the configuration.  island: index, below `islands`.  seed: seed of the run."""

    rules: SearchLimits
    island: int
    seed: int

    @property
    def target_graph(self) -> TargetGraph:
        return self.rules.target_graph

    @property
    def levels(self) -> tuple[str, ...]:
        return self.rules.levels

    @property
    def islands(self) -> int:
        return self.rules.islands

    @property
    def config(self) -> TuneConfig:
        return self.rules.config


class SearchStrategy(Protocol):
    """Strategy of one island, for one epoch.  version: version of the class, part of a run's identity."""

    version: ClassVar[str]

    def __init__(self, context: StrategyContext, state: bytes | None) -> None:
        """Construct from the result of `state` after the island's last epoch, None before its first one."""
        ...

    def tell(self, known: Knowledge, models: Sequence[Predictor | None]) -> None:
        """Receive knowledge, once, before `ask`.  known: findings of all islands up to an earlier epoch, and all of this island; its
        measurements are added while it asks.  models: one for every level, None without a model.
        """
        ...

    def ask(self, epoch: int) -> Asking[None]:
        """Yield an epoch's rounds of requests, each answered before the next; few enough that other islands receive them soon.

        epoch: from 1 on.  Before, the first island's job has measured the model layer by layer, and the run's initial programs
        (`known.elites[0]`).
        """
        ...

    def elites(self) -> Sequence[Individual]:
        """Return individuals for other islands, the best first."""
        ...

    def state(self) -> bytes:
        """Return the state after an epoch: all that the next epoch needs besides the knowledge."""
        ...


def find_strategy(name: str) -> type[SearchStrategy]:
    """Find a strategy by name.  Raises `BadInputError`."""
    strategy: type[SearchStrategy] = find(STRATEGIES, name).object
    return strategy
