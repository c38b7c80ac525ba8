"""Times of programs by the simulator, for a search that requests many similar programs.

A program is scheduled, prepared and simulated only from its first difference to an earlier program, and only up to where it converges with
it.  All else is reused, so times are equal to the cycle.  A timer remembers one program and overwrites it with the next one.  There are
several timers, because a search alternates between parents; a program goes to the timer whose program has the most common beginning and
end.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from compiler.l2_costs import L2Costs
from compiler.l2_warmth import WarmInputs
from compiler.pipeline import Compiler, ScheduledShare
from compiler.schedule.incremental_prepare import Preparer
from compiler.schedule.stream_writer import Schedule
from compiler.schedule.synchronize import Synchroniser
from simulator.incremental_timing import IncrementalRuns, Times
from simulator.npu.machine import Machine
from simulator.npu.parts import Engine
from simulator.timing_state import Ints

KEPT = 4  # timers
_INSTRUCTIONS = 1 << 21  # limit over all timers; an instruction takes some hundred bytes
_ALIKE = 0.1  # least common share of a program's instructions; below it, the least recently used timer is replaced


class ProgramTimes(NamedTuple):
    """busy_cycles: int64 [7] by `Engine`, summed over cores.  load_store_cycles: see `simulator.timing.Timing`."""

    cycles: int
    busy_cycles: Ints
    load_store_cycles: int


class Timer:
    """Times of one program after the other, each computed from its first difference to the last program.

    resuming: False: every program is timed from its beginning.  l2_bytes: granted part of the L2; None: all of it, and levels that grant
    less have a timer of their own behind this one.  alone: programs are segments, whose inputs an L2 may have (`l2_warmth`).
    """

    def __init__(self, compiler: Compiler, clock: Machine, resuming: bool = True, l2_bytes: int | None = None, alone: bool = False) -> None:
        self._compiler, self._clock, self._resuming = compiler, clock, resuming
        self._synchroniser = Synchroniser(compiler.target_graph, compiler.synchroniser.footprints)
        self._preparer = Preparer()
        self._l2_costs: L2Costs | None = None
        if clock.l2 is not None:
            inputs = WarmInputs(compiler.target_graph, l2_bytes or clock.l2.bytes, clock.l2.line_bytes) if alone else None
            self._l2_costs = L2Costs(clock, compiler.target_graph.memory.size_blocks, l2_bytes, inputs)
        self._alone, self._l2_bytes, self._smaller = alone, l2_bytes, dict[int | None, Timer]()  # by the L2 that they have
        self._runs: dict[tuple[str, int], IncrementalRuns] = {}
        self._parts: list[ScheduledShare] = []
        self.instructions = 0  # number in the last program

    def shared_length(self, parts: Sequence[ScheduledShare]) -> int:
        """Number of instructions in the common beginning and end of a program and the last one."""
        begin, shared_records = _shared_prefix(parts, self._parts)
        _, same_end = _shared_prefix(parts[: begin - len(parts) - 1 : -1], self._parts[: begin - len(self._parts) - 1 : -1])
        return shared_records + same_end

    def times(self, parts: list[ScheduledShare], levels: Sequence[str]) -> dict[str, ProgramTimes]:
        """Times of the program with these parts, at some levels of the clock's machine."""
        self._parts, self.instructions = parts, _instructions(parts)
        by_l2: dict[int | None, list[str]] = {}
        for level in levels:
            by_l2.setdefault(self._clock.contention[level].l2_bytes, []).append(level)
        times: dict[str, ProgramTimes] = {}
        for l2_bytes, names in by_l2.items():
            timer = self if l2_bytes == self._l2_bytes else self._smaller.get(l2_bytes)
            if timer is None:
                timer = self._smaller[l2_bytes] = Timer(self._compiler, self._clock, self._resuming, l2_bytes, self._alone)
            times |= timer.simulated(timer.scheduled(parts), names)
        return times

    def scheduled(self, parts: list[ScheduledShare]) -> Schedule:
        """Valid until the next call."""
        if not self._resuming:
            self._synchroniser.forget_borders()
            self._preparer.forget()
        self._parts, self.instructions = parts, _instructions(parts)
        schedule = self._compiler.schedule(parts, self._synchroniser)
        return schedule if self._l2_costs is None else self._l2_costs.scheduled(schedule, parts)

    def simulated(self, schedule: Schedule, levels: Sequence[str]) -> dict[str, ProgramTimes]:
        """Times of the last schedule.  schedule: result of the last `scheduled`; it may be simulated only once."""
        footprints = [part.lowered.footprint for part in self._parts]
        program, words, rows, suffix = self._preparer.entries(schedule)
        cores = len(schedule.lengths)
        for (_, core_program), runs in self._runs.items():
            if core_program == cores:
                runs.set_common_parts(words, rows, suffix)
            else:
                runs.forget()
        busy_cycles = np.concatenate([footprint.totals for footprint in footprints]).reshape(-1, 2, len(Engine))[:, 0].sum(0)
        busy_cycles[Engine.SCALAR] += sum(schedule.lengths) * self._clock.issue_cycles
        times = {}
        for level in levels:
            key = level, cores
            if key not in self._runs:
                self._runs[key] = IncrementalRuns(self._clock, self._clock.contention[level], cores, self._resuming)
            times[level] = _level_times(busy_cycles, self._runs[key].run(program))
        return times


def _shared_prefix(parts: Sequence[ScheduledShare], last_parts: Sequence[ScheduledShare]) -> tuple[int, int]:
    """Number of common leading parts, and their number of instructions."""
    count = shared_records = 0
    for new, old in zip(parts, last_parts, strict=False):
        if new.lowered is not old.lowered or new.core != old.core:
            break
        count, shared_records = count + 1, shared_records + new.lowered.records
    return count, shared_records


def _instructions(parts: Sequence[ScheduledShare]) -> int:
    return sum([part.lowered.records for part in parts])


def _level_times(busy_cycles: Ints, times: Times) -> ProgramTimes:
    return ProgramTimes(times.cycles, busy_cycles + times.moved.sum(0), times.load_store_cycles)


class Timers:
    """Several timers with the interface of a single timer."""

    def __init__(self, compiler: Compiler, clock: Machine, resuming: bool = True) -> None:
        self._compiler, self._clock, self._resuming = compiler, clock, resuming
        self._timers = list[Timer]()  # least recently used first

    def times(self, parts: list[ScheduledShare], levels: Sequence[str]) -> dict[str, ProgramTimes]:
        """See `Timer.times`."""
        times = self.choose(parts).times(parts, levels)
        while len(self._timers) > 1 and sum(timer.instructions for timer in self._timers) > _INSTRUCTIONS:
            self._timers.pop(0)
        return times

    def choose(self, parts: list[ScheduledShare]) -> Timer:
        """Timer for a program; it becomes the most recently used timer."""
        timer = self._find_timer(parts)
        if timer in self._timers:
            self._timers.remove(timer)
        self._timers.append(timer)
        return timer

    def _find_timer(self, parts: list[ScheduledShare]) -> Timer:
        shared_lengths = [timer.shared_length(parts) for timer in self._timers]
        if max(shared_lengths, default=0) > _ALIKE * _instructions(parts):
            return self._timers[shared_lengths.index(max(shared_lengths))]
        if self._timers and len(self._timers) == (KEPT if self._resuming else 1):
            return self._timers[0]
        return Timer(self._compiler, self._clock, self._resuming)
