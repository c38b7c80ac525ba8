"""What comes along keeps the contracts that others have to keep, and contracts tell what breaks them."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from numpy.typing import NDArray

from simulator.npu.container import decode
from tuner.contracts.cost_model import CostModelContract
from tuner.contracts.runner import RunnerContract
from tuner.learn.trees import BoostedTrees
from tuner.measure.reading import Encoded, Reading, Runner
from tuner.measure.simulated import measure


class TestSimulatorByWayOfBytes(RunnerContract):
    tries = 1

    def runner(self) -> Runner:
        return measure


class TestBoostedTrees(CostModelContract):
    model = BoostedTrees
    settings = ("model.rounds=20",)


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
