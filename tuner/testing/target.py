"""The contract of a target (`tuner.measure.target.Target`), tried with segments, a stage and a program of a small model."""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from compiler.plan.plan import Infeasible, SegmentPlan
from compiler.space.decode import decode, plan_of
from compiler.target.target_graph import TargetGraph
from tuner.log.record import RESULTS
from tuner.measure.roofline import Roofline
from tuner.measure.target import Target, Timed
from tuner.testing.samples import sample_unit, singles

_CYCLES = RESULTS.index("cycles")


class TargetContract:
    """Base class of a test.  machine: preset or YAML file of the machine that the target times."""

    machine = "edge"

    def target(self, target_graph: TargetGraph, levels: tuple[str, ...]) -> Target:
        """Construct a new target."""
        raise NotImplementedError

    @cached_property
    def target_graph(self) -> TargetGraph:
        return sample_unit(self.machine).target_graph

    @cached_property
    def levels(self) -> tuple[str, ...]:
        return tuple(self.target_graph.machine.contention)

    @cached_property
    def segments(self) -> list[tuple[SegmentPlan, int]]:
        """Every single operator as a segment, with its index."""
        plans = [(decode(self.target_graph, gene), gene.start) for gene in singles(self.machine)]
        return [(plan, start) for plan, start in plans if plan is not None]

    def times(self, target: Target) -> list[NDArray[np.int64]]:
        """Times of every segment, of a stage of two, and of the program."""
        program = plan_of(self.target_graph, [plan for plan, _ in self.segments])
        timings: list[Timed] = [target.alone(plan, start) for plan, start in self.segments]
        timings += [target.stage(self.segments[1:3]), target.program(program)]
        arrays = [timed for timed in timings if isinstance(timed, np.ndarray)]
        assert len(arrays) == len(timings), f"not timed: {[str(timed) for timed in timings if not isinstance(timed, np.ndarray)]}"
        return arrays

    def test_every_kind_is_timed_at_every_level(self) -> None:
        for values in self.times(self.target(self.target_graph, self.levels)):
            assert values.dtype == np.int64, f"{values.dtype}, expected int64"
            assert values.shape == (len(self.levels), len(RESULTS)), f"{values.shape}: a row per level, a column of each of RESULTS"
            assert (values[:, _CYCLES] >= 1).all(), f"cycles {values[:, _CYCLES].tolist()}, at least 1 is expected"
            assert (values >= 0).all(), "what is not known is 0, and nothing is less"

    def test_nothing_is_faster_with_less_of_the_bandwidth(self) -> None:
        level = self.target_graph.machine.contention
        order = sorted(range(len(self.levels)), key=lambda i: (-level[self.levels[i]].share, level[self.levels[i]].latency_cycles))
        for values in self.times(self.target(self.target_graph, self.levels)):
            cycles = values[order, _CYCLES]
            assert (np.diff(cycles) >= 0).all(), f"{cycles.tolist()} cycles at falling shares"

    def test_the_same_plan_takes_the_same_time(self) -> None:
        """Times are equal in a repetition and with a second target, even if the caller changes the arrays, which it owns."""
        target = self.target(self.target_graph, self.levels)
        first = self.times(target)
        copies = [values.copy() for values in first]
        for values in first:
            values[:] = -1
        for repeated in (self.times(target), self.times(self.target(self.target_graph, self.levels))):
            for first_time, second_time in zip(copies, repeated, strict=True):
                np.testing.assert_array_equal(first_time, second_time)

    def test_levels_do_not_depend_on_each_other(self) -> None:
        all_levels = self.times(self.target(self.target_graph, self.levels))
        last = self.times(self.target(self.target_graph, self.levels[-1:]))
        for joint, single in zip(all_levels, last, strict=True):
            np.testing.assert_array_equal(joint[-1:], single)

    def test_no_program_is_faster_than_its_model_can_be(self) -> None:
        program = self.times(self.target(self.target_graph, self.levels))[-1]
        bound = [Roofline(self.target_graph).cycles(0, len(self.target_graph.operators), level) for level in self.levels]
        assert (program[:, _CYCLES] >= bound).all(), f"{program[:, _CYCLES].tolist()} cycles; the roofline says {bound}"

    def test_a_stage_of_one_segment_is_that_segment(self) -> None:
        target = self.target(self.target_graph, self.levels)
        for plan, start in self.segments:
            segment, stage = target.alone(plan, start), target.stage([(plan, start)])
            assert isinstance(segment, np.ndarray), str(segment)
            assert isinstance(stage, np.ndarray), str(stage)
            np.testing.assert_array_equal(segment, stage)

    def test_what_does_not_fit_is_a_value(self) -> None:
        """A segment on a core that the machine does not have gives a value, not an exception."""
        plan, start = self.segments[0]
        target, far = self.target(self.target_graph, self.levels), plan.model_copy(update={"cores": (self.target_graph.machine.cores,)})
        answer = target.stage([(far, start)])
        assert isinstance(answer, Infeasible), f"{answer!r}, expected an Infeasible"
        assert str(answer), "no reason"
