"""Programs timed where they were not tuned: on machines a little unlike the one described, and under a load that comes and goes.

The same programs, to the bit: only the clock is another one.  So this works where the simulator is the clock.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.ddr import ContentionTrace
from simulator.npu.level import SHARE_UNIT, Level
from simulator.npu.machine import Machine
from simulator.npu.machine_parts import Ddr
from simulator.npu.program import Program
from simulator.timing import Prepared, prepare, simulate_levels, simulate_trace

LESS, MORE = 0.7, 1.3  # of what the description says
PHASES = 20  # at which an inference meets the load, evenly over its period; a 95th percentile needs no fewer
PERIODS = 4  # of the load in an inference: shorter ones come to the mean share again, longer ones to a level of their own
_COVERED = 8  # inferences that the load comes and goes for; at half of its share, one takes twice as long at most
CONDITIONS = (
    "the machine as described", "DDR latency -30%", "DDR latency +30%", "DDR rate -30%", "DDR rate +30%", "on/off load, mean",
    "on/off load, 95th percentile",
)  # fmt: skip


def perturbed(machine: Machine) -> tuple[Machine, ...]:
    """Those of `CONDITIONS`, after the machine itself: latency of its DDR and of its levels, and rate of its DDR, less and more.

    DMAs draw as much as they do: another DRAM makes no wire wider.
    """

    def later(of: Ddr | Level, by: float) -> Any:
        return of.model_copy(update={"latency_cycles": round(of.latency_cycles * by)})

    def wider(ddr: Ddr, by: float) -> Ddr:
        return ddr.model_copy(update={"bytes_per_cycle": round(ddr.bytes_per_cycle * by, 6)})

    ddr, levels = machine.ddr, machine.contention
    found: list[dict[str, Any]] = [
        {"ddr": later(ddr, by), "contention": {name: later(level, by) for name, level in levels.items()}} for by in (LESS, MORE)
    ]
    found += [{"ddr": wider(ddr, by)} for by in (LESS, MORE)]
    return tuple(machine.model_copy(update=changed) for changed in found)


def on_off(share_units: int, cycles: int) -> ContentionTrace:
    """A load that leaves `share_units` in the mean: all of the port while it is off, half of that share while it is on.

    cycles: of an inference, which has `PERIODS` periods.  At a share of 1 there is no load, on or off.
    """
    on_units = max(1, share_units // 2)
    period = max(2, cycles // PERIODS)
    on = round(period * (SHARE_UNIT - share_units) / (SHARE_UNIT - on_units))
    if not 0 < on < period:
        return ContentionTrace.constant(share_units)
    begins = range(0, _COVERED * PERIODS * period, period)
    steps = [step for begin in begins for step in ((begin, on_units), (begin + on, SHARE_UNIT))]
    return ContentionTrace.of([*steps, (begins.stop, share_units)])


def out_of_sample(programs: Sequence[Sequence[Program]], machine: Machine, cycles: Mapping[str, int]) -> NDArray[np.float64]:
    """float64 [conditions, programs, levels]: cycles under each of `CONDITIONS`.

    programs: each as the programs that it runs one after the other.  cycles: level -> of an inference, about, from which the load has its
    period: the same for all programs.  Mean and percentile are over the phases of the load.
    """
    levels = tuple(cycles)
    times = np.empty((len(CONDITIONS), len(programs), len(levels)))
    described = [[prepare(program, machine) for program in each] for each in programs]
    for at, prepared in enumerate(described):
        times[0, at] = _at_levels(prepared, machine, levels)
    for condition, clock in enumerate(perturbed(machine), 1):
        for at, each in enumerate(programs):
            times[condition, at] = _at_levels([prepare(program, clock) for program in each], clock, levels)
    loads = [on_off(machine.contention[level].share_units, cycles[level]) for level in levels]
    for at, prepared in enumerate(described):
        for level, load in enumerate(loads):
            met = _phases(prepared, machine, load, max(2, cycles[levels[level]] // PERIODS))
            times[-2, at, level], times[-1, at, level] = met.mean(), np.percentile(met, 95, method="inverted_cdf")
    return times


def _at_levels(prepared: Sequence[Prepared], machine: Machine, levels: tuple[str, ...]) -> list[int]:
    timings = [simulate_levels(program, machine, levels) for program in prepared]
    return [sum(timing[level].cycles for timing in timings) for level in levels]


def _phases(prepared: Sequence[Prepared], machine: Machine, load: ContentionTrace, period: int) -> NDArray[np.int64]:
    """int64 [phases]: an inference that begins at each of them; one where the load never changes."""
    starts = [period * phase // PHASES for phase in range(PHASES)] if len(load.cycles) > 1 else [0]
    found = []
    for start in starts:
        now = start
        for program in prepared:
            now += simulate_trace(program, machine, load.after(now)).cycles
        found.append(now - start)
    return np.array(found, np.int64)
