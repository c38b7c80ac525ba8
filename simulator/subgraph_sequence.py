"""Sums of the timings of programs that run in sequence, as the subgraphs of a model do.

Each program begins with empty engines when the previous one has ended, so cycles, bytes, counters and bounds add up.
"""

from __future__ import annotations

from collections.abc import Sequence

from simulator.npu.level import Level
from simulator.npu.machine import Machine
from simulator.timing import Prepared, Timing, program_bound, simulate


def sum_timings(timings: Sequence[Timing]) -> Timing:
    """The sum of timings, without recorded instructions; a single one is returned as it is."""
    first, *later_timings = timings
    if not later_timings:
        return first
    return Timing(
        sum(t.cycles for t in timings),
        first.busy_cycles + sum(t.busy_cycles for t in later_timings),
        sum(t.ddr_read_bytes for t in timings),
        sum(t.ddr_write_bytes for t in timings),
        sum(t.bus_units for t in timings),
        sum(t.load_store_cycles for t in timings),
        sum(t.compute_cycles for t in timings),
        sum(t.instructions for t in timings),
    )


def simulate_all(programs: Sequence[Prepared], machine: Machine, level: Level) -> Timing:
    """`timing.simulate` of programs one after the other."""
    return sum_timings([simulate(p, machine, level) for p in programs])


def bound_of_all(programs: Sequence[Prepared], machine: Machine, level: Level) -> int:
    """A lower bound of their cycles together: the sum of `timing.program_bound`."""
    return sum(program_bound(p, machine, level) for p in programs)
