"""The contract of a search strategy (`tuner.search.strategy.SearchStrategy`), tried on a small model."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import ClassVar, NamedTuple

import pandas as pd

from compiler.space.structural_hash import Structures
from compiler.target.target_graph import TargetGraph
from tuner.config import TuneConfig, load_config
from tuner.farm.search_spec import SearchSpec
from tuner.log.writer import Origin
from tuner.measure.budgeted import MeasureBudget
from tuner.measure.evaluator import Evaluator
from tuner.measure.request import Measurement, Request
from tuner.platform.local_files import LocalPath
from tuner.search.ask_tell import Asking, translate
from tuner.search.epoch import first_programs, run_shard
from tuner.search.epoch_report import Collector
from tuner.search.knowledge import Knowledge
from tuner.search.limits import SearchLimits
from tuner.search.strategy import SearchStrategy, StrategyContext
from tuner.search.validate import fault
from tuner.testing.samples import sample_unit
from tuner.testing.shuffled import searched

EPOCHS = 5  # epochs that are examined job by job
MOST_ROUNDS = 1000  # limit of a job
MOST_REQUESTS = 10_000  # limit of a round


class Asked(NamedTuple):
    """Requests of a job, round by round."""

    epoch: int
    shard: int
    rounds: list[Sequence[Request]]


class StrategyContract:
    """Base class of a test.  strategy: tested class.  settings: `a.b=c` texts over the default configuration.  machine: any.

    candidates: programs of the compared searches.
    """

    strategy: ClassVar[type[SearchStrategy]]
    settings: tuple[str, ...] = ()
    machine = "edge"
    candidates = 24

    @cached_property
    def config(self) -> TuneConfig:
        settings = ("search.lag=6", "segments.candidates=8", "segments.measured=3", "farm.checkpoint_every_s=0.001")
        return load_config(None, (*settings, *self.settings))

    @property
    def target_graph(self) -> TargetGraph:
        return sample_unit(self.machine).target_graph

    @cached_property
    def levels(self) -> tuple[str, ...]:
        return tuple(self.target_graph.machine.contention)

    def epochs(self) -> list[Asked]:
        """Jobs of some epochs in sequence."""
        rules, evaluator = SearchLimits(self.target_graph, self.levels, self.config, {}), Evaluator(self.target_graph, self.levels)
        knowledge = Knowledge(Structures(self.target_graph), len(self.levels))
        out: list[Asked] = []
        for epoch in range(EPOCHS):
            findings = []
            for shard in range(rules.shards if epoch else 1):
                collector, rounds = Collector(), list[Sequence[Request]]()
                session = MeasureBudget(lambda requests: map(evaluator.measure, requests), (knowledge, collector))
                with knowledge.temporary():
                    if not epoch:
                        run_shard(first_programs(rules, collector), session, knowledge, collector)
                    else:
                        strategy = self.strategy(StrategyContext(rules, shard, 0))
                        strategy.tell(knowledge, [None] * len(self.levels))
                        watched = partial(self._watched, f"epoch {epoch}, shard {shard}", rounds)
                        run_shard(translate(strategy.ask(epoch), watched), session, knowledge, collector)
                        out.append(Asked(epoch, shard, rounds))
                findings.append(collector.pack(len(self.levels)))
            knowledge.learn_epoch(findings)
        return out

    def _watched(self, label: str, rounds: list[Sequence[Request]], requests: Sequence[Request]) -> Asking[Sequence[Measurement]]:
        """Keeps a round, and lets it be measured."""
        rounds.append(list(requests))
        assert len(rounds) <= MOST_ROUNDS, f"{label}: more than {MOST_ROUNDS} rounds; a job has an end"
        assert len(requests) <= MOST_REQUESTS, f"{label}: {len(requests)} requests in a round, expected {MOST_REQUESTS} at most"
        for request in requests:
            reason = fault(self.target_graph, request)
            assert reason is None, f"{label}: {request.kind} {request.genome}: {reason}"
        return (yield requests)

    @cached_property
    def once(self) -> list[Asked]:
        return self.epochs()

    @cached_property
    def spec(self) -> SearchSpec:
        origin = Origin("contract", "sample", self.target_graph.machine.name, "simulator")
        return SearchSpec(origin, self.target_graph, self.levels, self.config, strategy=self.strategy)

    def searched(self, *candidates: int, workers: int = 1, seed: int = 0) -> pd.DataFrame:
        """Log of a search, in one session for each number of programs in `candidates`."""
        with TemporaryDirectory(prefix="tilefarm-contract-") as name:
            logs = [searched(self.spec, LocalPath(Path(name)), count, workers, seed) for count in candidates]
        return logs[-1]

    @cached_property
    def serial(self) -> pd.DataFrame:
        return self.searched(self.candidates)

    def test_it_has_a_version(self) -> None:
        assert isinstance(self.strategy.version, str), f"version {self.strategy.version!r}, expected a text"
        assert self.strategy.version, "version '', expected a text that is not empty"

    def test_the_same_tells_give_the_same_asks(self) -> None:
        for first_epochs, second_epochs in zip(self.once, self.epochs(), strict=True):
            assert first_epochs.rounds == second_epochs.rounds, (
                f"epoch {second_epochs.epoch}, shard {second_epochs.shard}: told the same, it asked something else"
            )

    def test_it_asks_for_its_unit_alone_and_a_job_ends(self) -> None:
        assert len(self.once) == (EPOCHS - 1) * self.config.search.shards

    def test_it_asks_for_programs(self) -> None:
        programs = {request.genome for epoch in self.once for part in epoch.rounds for request in part if request.kind == "program"}
        assert programs, f"no program in {EPOCHS - 1} epochs of {self.config.search.shards} jobs, which is all that a search is for"

    def test_any_number_of_job_runners_gives_the_same_search(self) -> None:
        """Searches with 2 and 4 job runners, whose jobs end in another order, equal one with a single job runner."""
        for workers, seed in ((2, 1), (4, 2)):
            rows = self.searched(self.candidates, workers=workers, seed=seed)
            assert rows.equals(self.serial), f"{workers} job runners, order {seed}: the log is another one"

    def test_a_search_that_is_resumed_is_the_whole_search(self) -> None:
        for first in (1, self.candidates // 2):
            rows = self.searched(first, self.candidates, workers=2)
            assert rows.equals(self.serial), f"stopped after {first} programs and resumed, the log is another one"

    def test_it_is_closed_where_the_budget_ends(self) -> None:
        programs = self.serial[self.serial["kind"] == "program"]["task"].nunique()
        assert programs <= self.candidates, f"{programs} programs of {self.candidates}"
