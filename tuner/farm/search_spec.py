"""Specification of one search: all that a worker needs to run its jobs, pickled once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from compiler.target.target_graph import TargetGraph
from tuner.config import BUILT_IN, TuneConfig
from tuner.log.writer import Origin
from tuner.measure.evaluator import Board, Evaluator, build_evaluator
from tuner.measure.reading_cost import repeat_count
from tuner.platform.interfaces import Clock
from tuner.platform.real import REAL
from tuner.search.limits import SearchLimits
from tuner.search.strategy import SearchStrategy


@dataclass(frozen=True)
class SearchSpec:
    """Frozen inputs of a search.  origin: values that are the same in all rows of the log; its seed is that of the search.  board: None:
    simulator.

    rules: limits of proposals.  strategy: None: that of the configuration.  evaluator: replaces `build_evaluator`.  clock: of workers.
    """

    origin: Origin
    target_graph: TargetGraph
    levels: tuple[str, ...]
    config: TuneConfig
    board: Board | None = None
    rules: type[SearchLimits] = SearchLimits
    strategy: type[SearchStrategy] | None = None
    evaluator: Callable[[], Evaluator] | None = None
    clock: Clock = REAL.clock

    @property
    def differs(self) -> bool:
        """Whether a second measurement of a task may have another result."""
        return self.origin.runner != BUILT_IN

    @property
    def repeats(self) -> int:
        """Readings of a task at a level."""
        return repeat_count(self.config) if self.differs else 1

    def build_evaluator(self) -> Evaluator:
        """Evaluator of this process, ready to measure."""
        if self.evaluator is not None:
            return self.evaluator()
        return build_evaluator(self.target_graph, self.levels, self.board, self.config.target.name)
