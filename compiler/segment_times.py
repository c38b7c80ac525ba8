"""Cycles of every segment of a program at one level, from its schedule: no record is written, and none is priced again."""

from __future__ import annotations

import numpy as np

from compiler.l2_costs import L2Costs
from compiler.pipeline import Compiler
from compiler.plan.plan import Infeasible, Plan
from compiler.schedule.incremental_prepare import Preparer
from compiler.schedule.segment_accesses import Ints
from compiler.schedule.synchronize import Synchroniser
from simulator.incremental_timing import IncrementalRuns


class SegmentTimer:
    """Timer of one plan after the other; each is scheduled and simulated only from its first difference to the last one."""

    def __init__(self, compiler: Compiler, level: str) -> None:
        self._compiler, self._machine = compiler, compiler.target_graph.machine
        self._level = self._machine.contention[level]
        self._synchroniser, self._preparer = Synchroniser(compiler.target_graph, compiler.synchroniser.footprints), Preparer()
        self._l2_costs = (
            None
            if self._machine.l2 is None
            else L2Costs(self._machine, compiler.target_graph.memory.size_blocks, self._level.l2_bytes, None)
        )
        self._runs: dict[tuple[int, bool], IncrementalRuns] = {}  # by cores, and whether they record

    def cycles(self, plan: Plan) -> Ints | Infeasible:
        """Cycles by which each segment of a plan ends later than all segments before it, int64 [segments]."""
        parts = self._compiler.parts(plan)
        if isinstance(parts, Infeasible):
            return parts
        schedule = self._compiler.schedule(parts, self._synchroniser)
        if self._l2_costs is not None:
            schedule = self._l2_costs.scheduled(schedule, parts)
        program, words, rows, _ = self._preparer.entries(schedule)
        key = len(schedule.lengths), len(plan.segments) > 1  # records of a large product would take gigabytes
        if key not in self._runs:
            self._runs[key] = IncrementalRuns(self._machine, self._level, key[0], record=key[1])
        for run_key, runs in self._runs.items():
            if run_key == key:
                runs.set_common_parts(words, rows, None)
            else:
                runs.forget()
        cycles = self._runs[key].run(program).cycles
        if not key[1]:
            return np.array([cycles])
        ends = np.zeros(len(plan.segments), np.int64)
        np.maximum.at(ends, [part.segment for part in parts], self._part_ends(self._runs[key].ends))
        return np.diff(np.maximum.accumulate(ends), prepend=0)

    def _part_ends(self, entry_ends: Ints) -> Ints:
        """Last cycle of every part, int64 [parts].  entry_ends: last cycle of every entry."""
        part_ends = np.zeros(len(self._preparer.places) - 1, np.int64)
        for places in self._preparer.places.T:
            filled = np.flatnonzero(np.diff(places))
            if len(filled):
                last = np.maximum.reduceat(entry_ends[: places[-1]], places[filled])
                part_ends[filled] = np.maximum(part_ends[filled], last)
        return part_ends
