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
from tuner.search.epoch import first_programs, run_shard
from tuner.search.epoch_report import Collector
from tuner.search.knowledge import Knowledge
from tuner.search.limits import SearchLimits
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


class Finished(NamedTuple):
    """A job's report."""

    shard: int
    epoch: int
    collector: Collector


class LocalSearch:
    """All jobs, epoch by epoch: each knows everything of earlier epochs."""

    def __init__(self, u: TargetGraph, *overrides: str, seed: int = 0) -> None:
        self.rules = SearchLimits(u, LEVELS, load_config(None, (*QUICK, *overrides)), {})
        self.known = Knowledge(Structures(u), len(LEVELS))
        self.seed = seed
        self.epoch = 0
        self.jobs: list[Finished] = []

    def context(self, shard: int = 0, epoch: int | None = None) -> SearchContext:
        return SearchContext(self.rules, self.known, shard, self.epoch if epoch is None else epoch, self.seed, [None] * len(LEVELS))

    def step(self, measure: Local) -> None:
        """All jobs of an epoch, each of which hears of nobody's measurements but its own."""
        jobs = [Finished(shard, self.epoch, Collector()) for shard in range(self.rules.shards if self.epoch else 1)]
        for shard, epoch, collector in jobs:
            with self.known.temporary():
                strategy = Segmentation(StrategyContext(self.rules, shard, self.seed))
                strategy.tell(self.known, [None] * len(LEVELS))
                asking = strategy.ask(epoch) if epoch else first_programs(self.rules, collector)
                assert run_shard(asking, MeasureBudget(measure, (self.known, collector)), self.known, collector)
        self.known.learn_epoch([job.collector.pack(len(LEVELS)) for job in jobs])
        self.jobs += jobs
        self.epoch += 1

    def steps(self, measure: Local, count: int) -> LocalSearch:
        for _ in range(count):
            self.step(measure)
        return self
