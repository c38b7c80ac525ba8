"""A search in this process, without farm and log: what it asked, and what it knows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from compiler.space.structural_hash import Structures
from compiler.target.target_graph import TargetGraph
from tests.tuning import QUICK
from tuner.config import load_config
from tuner.measure.budgeted import MeasureBudget
from tuner.measure.evaluator import Evaluator
from tuner.measure.request import Measurement, Request
from tuner.search.context import SearchContext
from tuner.search.epoch import first_programs, run_epoch
from tuner.search.epoch_report import Collector
from tuner.search.knowledge import Knowledge
from tuner.search.limits import SearchLimits
from tuner.search.population import Island
from tuner.search.segmentation import Segmentation
from tuner.search.strategy import StrategyContext

LEVELS = ("none", "slight", "severe")


class Local:
    """A `Measurer`.  asked: every request, in order."""

    def __init__(self, u: TargetGraph) -> None:
        self.evaluator, self.asked = Evaluator(u, LEVELS), list[Request]()

    def __call__(self, requests: Sequence[Request]) -> Iterator[Measurement]:
        self.asked += requests
        return map(self.measure, requests)

    def measure(self, request: Request) -> Measurement:
        return self.evaluator.measure(request)

    def measured(self) -> list[Request]:
        return [request for request in self.asked if request.measure]


class Epoch(NamedTuple):
    """Of an island: what it found."""

    island: int
    number: int
    collector: Collector


class LocalSearch:
    """All islands, epoch by epoch: every job knows everything of earlier epochs."""

    def __init__(self, u: TargetGraph, *overrides: str, seed: int = 0) -> None:
        config = load_config(None, (*QUICK, *overrides))
        self.rules = SearchLimits(u, LEVELS, config, {})
        self.known = Knowledge(Structures(u), len(LEVELS))
        self.strategies = [Segmentation(StrategyContext(self.rules, number, seed), None) for number in range(config.islands)]
        self.epoch = 0
        self.epochs: list[Epoch] = []

    @property
    def islands(self) -> list[Island]:
        return [strategy.island for strategy in self.strategies]

    def context(self, island: int = 0, epoch: int | None = None) -> SearchContext:
        return SearchContext(self.rules, self.known, island, self.epoch if epoch is None else epoch, [None] * len(LEVELS))

    def step(self, measure: Local) -> None:
        """An epoch of every island, which hears of nobody's measurements but its own."""
        epochs = [Epoch(number, self.epoch, Collector()) for number in range(1 if self.epoch == 0 else len(self.strategies))]
        for island, number, collector in epochs:
            with self.known.aside():
                strategy = self.strategies[island]
                strategy.tell(self.known, [None] * len(LEVELS))
                asking = strategy.ask(number) if number else first_programs(self.rules, collector)
                assert run_epoch(asking, MeasureBudget(measure, (self.known, collector)), self.known, collector)
        self.known.learn_epoch([epoch.collector.pack(epoch.island, len(LEVELS)) for epoch in epochs])
        self.epochs += epochs
        self.epoch += 1

    def steps(self, measure: Local, count: int) -> LocalSearch:
        for _ in range(count):
            self.step(measure)
        return self
