"""The NPU keeps the contract that other targets have to keep, and the contract tells what breaks it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from compiler.plan.plan import SegmentPlan
from compiler.target.target_graph import TargetGraph
from tuner.measure.npu_target import Npu
from tuner.measure.runner_api import Reading
from tuner.measure.target import Target, Timed, results
from tuner.testing.target import TargetContract


class TestNpu(TargetContract):
    def target(self, target_graph: TargetGraph, levels: tuple[str, ...]) -> Target:
        return Npu(target_graph, levels)


class Upside(Npu):
    """Faster with less."""

    def _timed(self, *asked: object) -> Timed:
        found = super()._timed(*asked)  # type: ignore[arg-type]
        return found[::-1].copy() if isinstance(found, np.ndarray) else found


class Tired(Npu):
    """Slower each time."""

    asked = 0

    def _timed(self, *asked: object) -> Timed:
        self.asked += 1
        found = super()._timed(*asked)  # type: ignore[arg-type]
        return found + self.asked if isinstance(found, np.ndarray) else found


class Kept(Npu):
    """Gives away what it keeps."""

    def __init__(self, target_graph: TargetGraph, levels: tuple[str, ...]) -> None:
        super().__init__(target_graph, levels)
        self.kept: dict[tuple[str, int], Timed] = {}

    def alone(self, plan: SegmentPlan, start: int) -> Timed:
        return self.kept.setdefault((plan.key, start), super().alone(plan, start))


class Raises(Npu):
    def stage(self, segments: Sequence[tuple[SegmentPlan, int]]) -> Timed:
        if max(segments[0][0].cores):
            raise IndexError("core")
        return super().stage(segments)


class Instant(Npu):
    def _timed(self, *asked: object) -> Timed:
        return results(len(self.levels), cycles=1)


class Away(Npu):
    def _timed(self, *asked: object) -> Timed:
        return Reading(None, "crash", "not there")


class Apart(Npu):
    """Levels that change what others are."""

    def _timed(self, *asked: object) -> Timed:
        found = super()._timed(*asked)  # type: ignore[arg-type]
        return found + len(self.levels) if isinstance(found, np.ndarray) else found


@pytest.mark.parametrize(
    ("target", "breaks", "error"),
    [
        (Upside, "test_nothing_is_faster_with_less_of_the_bandwidth", AssertionError),
        (Tired, "test_the_same_plan_takes_the_same_time", AssertionError),
        (Kept, "test_the_same_plan_takes_the_same_time", AssertionError),
        (Raises, "test_what_does_not_fit_is_a_value", IndexError),
        (Instant, "test_no_program_is_faster_than_its_model_can_be", AssertionError),
        (Away, "test_every_kind_is_timed_at_every_level", AssertionError),
        (Apart, "test_levels_do_not_depend_on_each_other", AssertionError),
        (Tired, "test_a_stage_of_one_segment_is_that_segment", AssertionError),
    ],
)
def test_targets_that_break_the_contract(target: type[Npu], breaks: str, error: type[Exception]) -> None:
    contract = TargetContract()
    contract.target = target  # type: ignore[method-assign]
    with pytest.raises(error):
        getattr(contract, breaks)()
