"""Protocol of a search strategy: chooses the segments and programs that a job measures.

A job is a shard of an epoch.  Its strategy is constructed for it, in its process, and receives what earlier jobs learned.  It sees neither
the clock nor the budget: at their end its generator is closed.  So its requests depend only on that knowledge and on the job's numbers, not
on the process, the time or other jobs.
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


@dataclass(frozen=True, eq=False)
class StrategyContext:
    """Context of a job.  rules: options permitted by the configuration.  shard: index, below `shards`.  seed: seed of the run."""

    rules: SearchLimits
    shard: int
    seed: int

    @property
    def target_graph(self) -> TargetGraph:
        return self.rules.target_graph

    @property
    def levels(self) -> tuple[str, ...]:
        return self.rules.levels

    @property
    def shards(self) -> int:
        return self.rules.shards

    @property
    def config(self) -> TuneConfig:
        return self.rules.config


class SearchStrategy(Protocol):
    """Strategy of one job.  version: version of the class, part of a run's identity."""

    version: ClassVar[str]

    def __init__(self, context: StrategyContext) -> None: ...

    def tell(self, known: Knowledge, models: Sequence[Predictor | None]) -> None:
        """Receive knowledge, once, before `ask`.  known: findings of all jobs up to an earlier epoch (`search.lag`); the job's own
        measurements are added while it asks.  models: one for every level, None without a model.
        """
        ...

    def ask(self, epoch: int) -> Asking[None]:
        """Yield the job's rounds of requests, each answered before the next; few enough that other jobs receive them soon.

        epoch: from 1 on.  Before, one job has measured the model layer by layer, and the run's initial programs
        (`known.population`).
        """
        ...


def find_strategy(name: str) -> type[SearchStrategy]:
    """Find a strategy by name.  Raises `BadInputError`."""
    strategy: type[SearchStrategy] = find(STRATEGIES, name).object
    return strategy
