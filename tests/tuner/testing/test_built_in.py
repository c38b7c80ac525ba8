"""What comes along keeps the contracts that others have to keep, and contracts tell what breaks them."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import pytest
from numpy.typing import NDArray

from compiler.space.gene import Gene, Genome
from compiler.space.mutators import random_genome
from simulator.npu.container_file import decode
from tuner.cost_model.boosted_trees import BoostedTrees
from tuner.cost_model.interface import Predictor
from tuner.measure.request import Request
from tuner.measure.runner_api import Encoded, Reading, Runner
from tuner.measure.simulator_runner import measure
from tuner.search.ask_tell import Asking
from tuner.search.knowledge import Knowledge
from tuner.search.segmentation import Segmentation
from tuner.search.strategy import StrategyContext
from tuner.testing.cost_model import CostModelContract
from tuner.testing.runner import RunnerContract
from tuner.testing.strategy import StrategyContract


class TestSimulatorByWayOfBytes(RunnerContract):
    tries = 1

    def runner(self) -> Runner:
        return measure


class TestBoostedTrees(CostModelContract):
    model = BoostedTrees
    settings = ("model.rounds=20",)


class TestSegmentation(StrategyContract):
    strategy = Segmentation


def no_look(program: Encoded, level: str) -> Reading:
    """Says something of everything."""
    return Reading(len(program.container) + len(level))


def never_again(program: Encoded, level: str) -> Reading:
    """Does not survive what cannot be run."""
    if broken:
        return Reading(None, "crash", "gone")
    try:
        decode(program.container)
    except Exception:
        broken.append(program)
        raise
    return measure(program, level)


broken: list[Encoded] = []


@pytest.mark.parametrize(
    ("runner", "breaks"),
    [
        (no_look, "test_what_is_no_program_has_no_cycles_and_does_no_harm"),
        (never_again, "test_what_is_no_program_has_no_cycles_and_does_no_harm"),
        (lambda program, level: 17, "test_a_reading_is_one_of_its_own"),
        (lambda program, level: Reading(None, "crash", "no board"), "test_every_kind_of_program_is_read_at_every_level"),
    ],
)
def test_runners_that_break_the_contract(runner: Runner, breaks: str) -> None:
    contract = RunnerContract()
    contract.runner = lambda: runner  # type: ignore[method-assign]
    with pytest.raises(AssertionError):
        getattr(contract, breaks)()


class Pickled(BoostedTrees):
    def save(self) -> bytes:
        return pickle.dumps(self.raw)


class Lucky(BoostedTrees):
    """Predicts what it never said twice."""

    def predict(self, features: NDArray[np.float32]) -> NDArray[np.float64]:
        return super().predict(features) * np.random.default_rng().random(len(features))


class Endless(BoostedTrees):
    def predict(self, features: NDArray[np.float32]) -> NDArray[np.float64]:
        return np.exp2(1.0 / np.maximum(0.0, features[:, 0].astype(np.float64) - 1e-6))


class Falling(BoostedTrees):
    def predict(self, features: NDArray[np.float32]) -> NDArray[np.float64]:
        return np.asarray(1e18 / super().predict(features))


@pytest.mark.parametrize(
    ("model", "breaks"),
    [
        (Pickled, "test_nothing_is_pickled"),
        (Lucky, "test_what_is_loaded_predicts_the_same"),
        (Lucky, "test_every_row_has_cycles_of_its_own"),
        (Endless, "test_features_that_nobody_has_seen_have_cycles_too"),
        (Falling, "test_it_ranks_what_it_has_seen"),
    ],
)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_models_that_break_the_contract(model: type[BoostedTrees], breaks: str) -> None:
    class Contract(CostModelContract):
        settings = ("model.rounds=20",)

    Contract.model = model
    with pytest.raises(AssertionError):
        getattr(Contract(), breaks)()


class Draws:
    """A program a job, drawn at random; what breaks derives from it."""

    version = "1"

    def __init__(self, context: StrategyContext) -> None:
        self.context = context

    def tell(self, known: Knowledge, models: Sequence[Predictor | None]) -> None:
        self.known = known

    def genome(self, epoch: int) -> Genome:
        return random_genome(self.context.target_graph, np.random.default_rng([self.context.shard, epoch]))

    def ask(self, epoch: int) -> Asking[None]:
        yield [Request("program", self.genome(epoch))]


class TestDraws(StrategyContract):
    strategy = Draws
    candidates = 8


class Unseeded(Draws):
    def genome(self, epoch: int) -> Genome:
        return random_genome(self.context.target_graph, np.random.default_rng())


class Remembers(Draws):
    """What only the process knows."""

    asked: ClassVar[list[int]] = []

    def genome(self, epoch: int) -> Genome:
        self.asked.append(1)
        return random_genome(self.context.target_graph, np.random.default_rng(len(self.asked)))


class Beyond(Draws):
    def ask(self, epoch: int) -> Asking[None]:
        yield [Request("segment", (Gene(0, len(self.context.target_graph.operators) + 1),), False)]


class GoesOn(Draws):
    def ask(self, epoch: int) -> Asking[None]:
        while True:
            yield []


class Silent(Draws):
    def ask(self, epoch: int) -> Asking[None]:
        yield from ()


@pytest.mark.parametrize(
    ("strategy", "breaks"),
    [
        (Unseeded, "test_the_same_tells_give_the_same_asks"),
        (Remembers, "test_any_number_of_job_runners_gives_the_same_search"),
        (Remembers, "test_a_search_that_is_resumed_is_the_whole_search"),
        (Beyond, "test_it_asks_for_its_unit_alone_and_a_job_ends"),
        (GoesOn, "test_it_asks_for_its_unit_alone_and_a_job_ends"),
        (Silent, "test_it_asks_for_programs"),
    ],
)
def test_strategies_that_break_the_contract(strategy: type[Draws], breaks: str) -> None:
    class Contract(StrategyContract):
        candidates = 8

    Contract.strategy = strategy
    with pytest.raises(AssertionError):
        getattr(Contract(), breaks)()
