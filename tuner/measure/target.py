"""Targets: time the segments of a plan.  Packagers: write plans as a part's own stack loads them.

The NPU is built in (`tuner.measure.npu_target`): it writes records, schedules them and simulates the program, or passes it to a runner.
The search only knows plans and the results of a target; docs/targets.md shows another target.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from compiler.plan.plan import Infeasible, Plan, SegmentPlan
from compiler.target.target_graph import TargetGraph
from tuner.log.record import RESULTS
from tuner.measure.runner_api import Reading
from tuner.plugins import TARGETS, find

if TYPE_CHECKING:
    from compiler.model import LoweredModel
from compiler.package.stack_files import PackagedFiles

Timed = NDArray[np.int64] | Infeasible | Reading
"""int64 [levels, len(RESULTS)] (see `results`), zeros at levels with too small a grant; or the reason why no level fits; or a failed
reading."""

_AT = {name: i for i, name in enumerate(RESULTS)}


class Target(Protocol):
    """Times plans of one target graph at some levels of DDR contention.

    The same plan takes the same time, regardless of earlier plans.  A segment that does not fit is a value, `Infeasible`; a failed timing
    is a `Reading` with its status.  A target is created and called in a worker's process, by one thread.
    """

    def alone(self, plan: SegmentPlan, start: int) -> Timed:
        """A segment by itself, its borders drained, as if its cores were the machine's first.  start: its first operator."""

    def stage(self, segments: Sequence[tuple[SegmentPlan, int]]) -> Timed:
        """Time segments in parallel, each with its first operator, on the cores of their plans; those without a common tensor may
        overlap."""

    def program(self, plan: Plan) -> Timed:
        """Time a plan of the whole target graph.  Its operators may be in any topological order."""


class MakesTarget(Protocol):
    """A class of targets."""

    def __call__(self, target_graph: TargetGraph, levels: tuple[str, ...]) -> Target: ...


class Packager(Protocol):
    """A function that writes plans, by level, in the form that a part's own stack loads (`tuner.finalize.packagers`).

    Raises `InfeasibleError` where the part has no room for a plan, `UnsupportedError` where it cannot run the model.
    """

    def __call__(self, model: LoweredModel, plans: Mapping[str, Plan]) -> PackagedFiles: ...


def find_target(name: str) -> MakesTarget:
    """`npu`, an entry point, or `module:Class`.  Raises `BadInputError`."""
    return cast(MakesTarget, find(TARGETS, name).object)


def results(levels: int, **columns: Sequence[int] | NDArray[np.int64] | int) -> NDArray[np.int64]:
    """Columns of `tuner.log.record.RESULTS` by name: a number per level, or one for all.

    A target gives `cycles`, at least 1, and any others that it knows; the rest are 0.  `roofline_cycles` is not needed: it follows from the
    model.
    """
    table = np.zeros((levels, len(RESULTS)), np.int64)
    for name, values in columns.items():
        table[:, _AT[name]] = values
    return table
