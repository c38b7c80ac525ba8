"""What a search strategy is: which segments and programs an island measures next, whoever wrote it.

A strategy is one island.  It is made anew for every epoch, in the process that runs the epoch's job, from the state that it left, and
is told what all islands know.  It sees neither the clock nor the budget: where that ends, its generator is closed.  So what it asks follows
from what it was told and from its state alone, whoever runs it, when, and beside what.
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
    """Whose island it is.  rules: what the configuration permits.  island: of `islands`, from 0.  seed: of the run."""

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
    """One island, for one epoch.  version: of the class, part of a run's identity."""

    version: ClassVar[str]

    def __init__(self, context: StrategyContext, state: bytes | None) -> None:
        """state: what `state` gave after the island's last epoch, None before its first one."""
        ...

    def tell(self, known: Knowledge, models: Sequence[Predictor | None]) -> None:
        """Once, before `ask`.  known: what all islands found until an earlier epoch, and all that this one did; what it measures now is
        added while it asks.  models: that predict, of every level, None where there is none.
        """
        ...

    def ask(self, epoch: int) -> Asking[None]:
        """An epoch: rounds of requests, each answered before the next; few enough that others hear of them soon.

        epoch: from 1 on.  Before, the first island's job has measured the model layer by layer, and what the run began with
        (`known.elites[0]`).
        """
        ...

    def elites(self) -> Sequence[Individual]:
        """What other islands may take, the best first."""
        ...

    def state(self) -> bytes:
        """After an epoch: all that the next one needs beside what it is told."""
        ...


def find_strategy(name: str) -> type[SearchStrategy]:
    """Raises `BadInputError`."""
    strategy: type[SearchStrategy] = find(STRATEGIES, name).object
    return strategy
