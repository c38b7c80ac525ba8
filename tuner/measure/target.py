"""Targets: what turns a segment of a plan into something that can be timed.

The NPU is built in (`tuner.measure.npu_target`): it writes records, puts them in order and simulates that, or gives them to a runner.  The
search knows plans and what a target says of them; docs/targets.md shows another one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, cast

import numpy as np
from numpy.typing import NDArray

from compiler.plan.plan import Infeasible, Plan, SegmentPlan
from compiler.target.target_graph import TargetGraph
from tuner.log.record import RESULTS
from tuner.measure.runner_api import Reading
from tuner.plugins import TARGETS, find

Timed = NDArray[np.int64] | Infeasible | Reading
"""int64 [levels, len(RESULTS)] (see `results`), zeros where a level grants too little; or what fits none; or a reading that failed."""

_AT = {name: i for i, name in enumerate(RESULTS)}


class Target(Protocol):
    """Times plans of one unit at some levels of DDR contention.

    The same plan takes the same time, whatever was timed before it.  A segment that does not fit is a value, `Infeasible`; so is what could
    not be timed, a `Reading` whose status says why.  It is made and called in a worker's process, by one thread.
    """

    def alone(self, plan: SegmentPlan, start: int) -> Timed:
        """A segment by itself, its borders drained, as if its cores were the machine's first.  start: its first operator."""

    def stage(self, segments: Sequence[tuple[SegmentPlan, int]]) -> Timed:
        """Some segments, each with its first operator, on the cores of their plans; those that share no tensor may run side by side."""

    def program(self, plan: Plan) -> Timed:
        """A plan of the whole unit.  Its operators come in any topological order."""


class MakesTarget(Protocol):
    """A class of targets."""

    def __call__(self, target_graph: TargetGraph, levels: tuple[str, ...]) -> Target: ...


def find_target(name: str) -> MakesTarget:
    """`npu`, an entry point, or `module:Class`.  Raises `BadInputError`."""
    return cast(MakesTarget, find(TARGETS, name).object)


def results(levels: int, **columns: Sequence[int] | NDArray[np.int64] | int) -> NDArray[np.int64]:
    """Columns of `tuner.log.record.RESULTS` by their names: a number for every level, or one for all.

    A target says `cycles`, at least 1, and what else it knows; the others are 0.  Nobody need say `roofline_cycles`: it is the model's.
    """
    table = np.zeros((levels, len(RESULTS)), np.int64)
    for name, values in columns.items():
        table[:, _AT[name]] = values
    return table
