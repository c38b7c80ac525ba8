"""A search in this process, without farm and log: what it asked, and what it knows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from compiler.space.structures import Structures
from compiler.unit.unit import Unit
from tests.tuning import QUICK
from tuner.config import load_config
from tuner.measure.evaluate import Evaluator
from tuner.measure.measurement import Measurement, Request
from tuner.measure.session import Session
from tuner.search.collector import Collector
from tuner.search.context import SearchContext
from tuner.search.epoch import run_epoch
from tuner.search.islands import first_states, unpack_island
from tuner.search.knowledge import Knowledge
from tuner.search.rules import Rules

LEVELS = ("none", "slight", "severe")


class Local:
    """A `Measurer`.  asked: every request, in order."""

    def __init__(self, u: Unit) -> None:
        self.evaluator, self.asked = Evaluator(u, LEVELS), list[Request]()

    def __call__(self, requests: Sequence[Request]) -> Iterator[Measurement]:
        self.asked += requests
        return map(self.measure, requests)

    def measure(self, request: Request) -> Measurement:
        return self.evaluator.measure(request)

    def measured(self) -> list[Request]:
        return [request for request in self.asked if request.measure]


class LocalSearch:
    """All islands, epoch by epoch: every job knows everything of earlier epochs."""

    def __init__(self, u: Unit, *overrides: str, seed: int = 0) -> None:
        config = load_config(None, (*QUICK, *overrides))
        self.rules = Rules(u, LEVELS, config, {})
        self.known = Knowledge(Structures(u), len(LEVELS))
        self.islands = [unpack_island(state) for state in first_states(config, seed)]
        self.epoch = 0
        self.contexts: list[SearchContext] = []

    def context(self, measure: Local, island: int = 0, epoch: int | None = None) -> SearchContext:
        """Of an island that hears of nobody's measurements but its own."""
        collector = Collector()
        session = Session(measure, (self.known, collector))
        return SearchContext(
            self.rules, self.known, collector, session, island, self.epoch if epoch is None else epoch, [None] * len(LEVELS)
        )

    def step(self, measure: Local) -> None:
        """An epoch of every island."""
        contexts = [self.context(measure, number) for number in range(1 if self.epoch == 0 else len(self.islands))]
        for context in contexts:
            with self.known.aside():
                run_epoch(context, self.islands[context.island])
        self.known.learn_epoch([context.collector.pack(context.island, len(LEVELS)) for context in contexts])
        self.contexts += contexts
        self.epoch += 1

    def steps(self, measure: Local, count: int) -> LocalSearch:
        for _ in range(count):
            self.step(measure)
        return self
