"""NPU as a target: plans become records, records are scheduled, and the simulator or a runner times the program.

Cycles of a runner replace the simulator's; other results (bytes, busy cycles, peaks) still come from the simulator.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from compiler.ops.lower_graph import Packed
from compiler.pipeline import Compiler, ScheduledShare, needs_of
from compiler.plan.plan import Infeasible, Plan, SegmentPlan
from compiler.target.target_graph import TargetGraph
from simulator.npu.machine import Machine
from simulator.npu.parts import Engine
from tuner.log.drift import NO_BOARD, BoardReading
from tuner.log.record import RESULTS
from tuner.measure.canary import Canary
from tuner.measure.encode_program import encoded
from tuner.measure.incremental_timer import ProgramTimes, Timer, Timers
from tuner.measure.runner_api import Bench, Kind, Reading
from tuner.measure.target import Timed

_KEPT_TIMES = 1 << 12  # programs and segments whose times are cached
_BUSY = [Engine.MTE1, Engine.MTE2, Engine.MTE3, Engine.CUBE, Engine.VECTOR, Engine.FIXPIPE, Engine.SCALAR]


class Npu:
    """`Target` with the compiler's caches.

    clock: machine that is timed; default: the target graph's machine.  Another one stands for a board that differs from its description.
    bench: runner; None: the simulator only.  Records and constants are kept only for a runner.
    canary: see `attach_board`.  resuming: False: time each program from its beginning, which is slower with equal results.
    """

    def __init__(
        self,
        target_graph: TargetGraph,
        levels: tuple[str, ...],
        cache_bytes: int = 128 << 20,
        records: bool = False,
        clock: Machine | None = None,
        resuming: bool = True,
    ) -> None:
        self.target_graph, self.levels = target_graph, levels
        self.clock = clock or target_graph.machine
        self.compiler = Compiler(target_graph, cache_bytes, records, self.clock.l2 is not None)
        self._granted = {level: target_graph.machine.granted(level) for level in levels}
        # a segment's time is a part of a program's, which is launched once
        launched = self.clock if not self.clock.launch_cycles else self.clock.model_copy(update={"launch_cycles": 0})
        self._segment_timer, self._programs = Timer(self.compiler, launched, False, alone=True), Timers(self.compiler, self.clock, resuming)
        same_machine = self.clock is target_graph.machine  # then a changed program can resume from an earlier one
        self._described = self._programs if same_machine else Timers(self.compiler, target_graph.machine, resuming)
        self._operators = tuple(spec.name for spec in target_graph.operators)
        self._cache = OrderedDict[Hashable, NDArray[np.int64]]()  # times by the simulator; many genes have one plan
        self.bench: Bench | None = None
        self.canary: Canary | None = None
        self.constants: NDArray[np.uint8] = np.zeros(0, np.uint8)

    def alone(self, plan: SegmentPlan, start: int) -> Timed:
        key = plan.key, start, len(plan.cores)
        return self._timed("segment", (plan,), partial(self.compiler.alone, plan, start), self._segment_timer, key)

    def stage(self, segments: Sequence[tuple[SegmentPlan, int]]) -> Timed:
        key = tuple([(plan.key, plan.cores, plan.same_end, start) for plan, start in segments])
        return self._timed("stage", [plan for plan, _ in segments], partial(self.compiler.some, segments), self._segment_timer, key)

    def program(self, plan: Plan) -> Timed:
        times = self._times_as_segment(plan) if self.bench is None else None
        if times is not None:
            return times
        return self._timed("program", plan.segments, partial(self.compiler.parts, plan), self._programs, _key(plan))

    def attach_board(self, bench: Bench, constants: NDArray[np.uint8], canary: Plan | None, readings: int) -> None:
        """Use a runner from now on.  canary: plan of the program that it reads regularly, at the first level that it fits."""
        self.bench, self.constants = bench, constants
        parts = Infeasible("program", "none") if canary is None else self.compiler.parts(canary)
        if canary is None or isinstance(parts, Infeasible):
            self.canary = Canary(bench, None, self.levels[0])
            return
        requirements = needs_of(parts)
        fits = [level for level in self.levels if requirements.fits(self._granted[level])]
        values = self._simulated(self._programs, parts, fits, requirements.shared_bytes)
        expected = {level: int(values[self.levels.index(level), 0]) for level in fits}
        program = encoded(Packed(self.target_graph, constants), "program", self.compiler.link(parts), canary.segments, expected)
        self.canary = Canary(bench, program if fits else None, (fits or self.levels)[0], readings)

    @property
    def board_reading(self) -> BoardReading:
        """Board of the last measurement."""
        return NO_BOARD if self.canary is None else self.canary.board

    def simulated(self, plan: Plan) -> NDArray[np.int64] | Infeasible:
        """Times of a program by the simulator only, on the machine as described."""
        times = self._times_as_segment(plan) if self._described is self._programs else None
        if times is not None:
            return times
        return self._cached(self._described, _key(plan), "program", partial(self.compiler.parts, plan))

    def _times_as_segment(self, plan: Plan) -> NDArray[np.int64] | None:
        """Times of a program of one segment: those of the segment alone, after the launch.

        None for other programs, in another order of operators, and where it does not fit.
        """
        segment, is_alone = plan.segments[0], len(plan.segments) == 1
        if not is_alone or segment.same_end or segment.cores != tuple(range(len(segment.cores))) or segment.operators != self._operators:
            return None
        key = segment.key, 0, len(segment.cores)
        times = self._cached(self._segment_timer, key, "segment", partial(self.compiler.alone, segment, 0))
        if isinstance(times, Infeasible):
            return None
        times[times[:, 0] > 0, 0] += self.clock.launch_cycles
        return times

    def _cached(
        self, timers: Timer | Timers, key: Hashable, kind: Kind, lower: Callable[[], list[ScheduledShare] | Infeasible]
    ) -> NDArray[np.int64] | Infeasible:
        """Times by the simulator, a copy.  key: of all that decides them on these timers.  lower: gives the shares."""
        entry = timers, key
        if entry in self._cache:
            self._cache.move_to_end(entry)
            return self._cache[entry].copy()
        parts = lower()
        if isinstance(parts, Infeasible):
            return parts
        granting = self._fits(kind, parts)
        if isinstance(granting, Infeasible):
            return granting
        self._cache[entry] = self._simulated(timers, parts, *granting)
        if len(self._cache) > _KEPT_TIMES:
            self._cache.popitem(last=False)
        return self._cache[entry].copy()

    def _fits(self, kind: Kind, parts: list[ScheduledShare]) -> tuple[list[str], int] | Infeasible:
        """Levels with a sufficient grant, and the need of shared memory in bytes."""
        requirements = needs_of(parts)
        fits = [level for level in self.levels if requirements.fits(self._granted[level])]
        if not fits:
            return Infeasible(
                kind, f"{requirements.shortage(self._granted[self.levels[0]])} at {self.levels[0]}, and so at every other level"
            )
        return fits, requirements.shared_bytes

    def _timed(
        self, kind: Kind, plans: Sequence[SegmentPlan], lower: Callable[[], list[ScheduledShare] | Infeasible],
        timers: Timer | Timers, key: Hashable,
    ) -> Timed:  # fmt: skip
        """Times by the simulator, then by the runner.  Other arguments: see `_cached`."""
        values = self._cached(timers, key, kind, lower)
        if self.bench is None or isinstance(values, Infeasible):
            return values
        parts = lower()
        assert not isinstance(parts, Infeasible), "it has times"
        rows = np.flatnonzero(values[:, 0]).tolist()
        fits = [self.levels[row] for row in rows]
        expected = dict(zip(fits, values[rows, 0].tolist(), strict=True))
        program = encoded(Packed(self.target_graph, self.constants), kind, self.compiler.link(parts), plans, expected)
        if self.canary is not None:
            self.canary.look(self.bench.repeats * len(fits))
        cycles = self.bench.cycles(program, fits)
        if isinstance(cycles, Reading):
            return cycles
        values[rows, 0] = cycles
        return values

    def _simulated(self, timers: Timer | Timers, parts: list[ScheduledShare], fits: Sequence[str], shared_bytes: int) -> NDArray[np.int64]:
        """Times by the simulator.  fits: levels with a sufficient grant; other rows are zeros.  shared_bytes: need of shared memory."""
        timings = timers.times(parts, fits)
        moved = np.concatenate([part.lowered.moved for part in parts]).reshape(len(parts), -1).sum(0).tolist()
        peaks = [*np.concatenate([part.lowered.peaks for part in parts]).reshape(len(parts), -1).max(0).tolist(), shared_bytes]
        zeros = [0] * len(RESULTS)
        return np.array([_row(timings[level], moved, peaks) if level in timings else zeros for level in self.levels], np.int64)


def _key(plan: Plan) -> Hashable:
    return tuple([(segment.key, segment.cores, segment.same_end) for segment in plan.segments])


def _row(timing: ProgramTimes, moved: list[int], peaks: list[int]) -> list[int]:
    """One level's results in the order of `RESULTS`.  moved: see `LoweredShare`."""
    return [timing.cycles, 0, *moved, *timing.busy_cycles[_BUSY].tolist(), timing.load_store_cycles, *peaks]
