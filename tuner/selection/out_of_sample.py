"""Times of programs outside their tuning conditions: on slightly different machines, and under a load that comes and goes.

The programs are the same to the bit: only the clock differs.  So this needs the simulator as the clock.
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

LESS, MORE = 0.7, 1.3  # factors on described values
PHASES = 20  # phases of the load at the start of an inference, evenly over its period; enough for a 95th percentile
PERIODS = 4  # load periods per inference: shorter periods act as their mean, longer ones as a constant level
_COVERED = 8  # inferences covered by the load; at half of the share one takes at most twice as long
CONDITIONS = (
    "the machine as described", "DDR latency -30%", "DDR latency +30%", "DDR rate -30%", "DDR rate +30%", "on/off load, mean",
    "on/off load, 95th percentile",
)  # fmt: skip


def perturb_machine(machine: Machine) -> tuple[Machine, ...]:
    """Machines of `CONDITIONS`, after the described one: latency of its DDR and of its levels, and rate of its DDR, less and more.

    The rates of the DMAs stay: another DRAM does not change them.
    """

    def scale_latency(model: Ddr | Level, factor: float) -> Any:
        return model.model_copy(update={"latency_cycles": round(model.latency_cycles * factor)})

    def scale_bandwidth(ddr: Ddr, factor: float) -> Ddr:
        return ddr.model_copy(update={"bytes_per_cycle": round(ddr.bytes_per_cycle * factor, 6)})

    ddr, levels = machine.ddr, machine.contention
    changes: list[dict[str, Any]] = [
        {"ddr": scale_latency(ddr, scale), "contention": {name: scale_latency(level, scale) for name, level in levels.items()}}
        for scale in (LESS, MORE)
    ]
    changes += [{"ddr": scale_bandwidth(ddr, scale)} for scale in (LESS, MORE)]
    return tuple(machine.model_copy(update=update) for update in changes)


def on_off(share_units: int, cycles: int) -> ContentionTrace:
    """Load that leaves `share_units` on average: the complete port while off, half of that share while on.

    cycles: cycles of an inference, which has `PERIODS` periods.  At a share of 1 there is no load.
    """
    on_units = max(1, share_units // 2)
    period = max(2, cycles // PERIODS)
    on_cycles = round(period * (SHARE_UNIT - share_units) / (SHARE_UNIT - on_units))
    if not 0 < on_cycles < period:
        return ContentionTrace.constant(share_units)
    phases = range(0, _COVERED * PERIODS * period, period)
    steps = [step for begin in phases for step in ((begin, on_units), (begin + on_cycles, SHARE_UNIT))]
    return ContentionTrace.of([*steps, (phases.stop, share_units)])


def out_of_sample(programs: Sequence[Sequence[Program]], machine: Machine, cycles: Mapping[str, int]) -> NDArray[np.float64]:
    """Cycles under each of `CONDITIONS`, float64 [conditions, programs, levels].

    programs: each as its sequence of NPU programs.  cycles: level -> approximate cycles of an inference, for the period of the load, equal
    for all programs.  Mean and percentile are over the phases of the load.
    """
    levels = tuple(cycles)
    times = np.empty((len(CONDITIONS), len(programs), len(levels)))
    described = [[prepare(program, machine) for program in parts] for parts in programs]
    for index, prepared in enumerate(described):
        times[0, index] = _level_cycles(prepared, machine, levels)
    for condition, clock in enumerate(perturb_machine(machine), 1):
        for index, parts in enumerate(programs):
            times[condition, index] = _level_cycles([prepare(program, clock) for program in parts], clock, levels)
    loads = [on_off(machine.contention[level].share_units, cycles[level]) for level in levels]
    for index, prepared in enumerate(described):
        for level, load in enumerate(loads):
            durations = _phases(prepared, machine, load, max(2, cycles[levels[level]] // PERIODS))
            times[-2, index, level], times[-1, index, level] = durations.mean(), np.percentile(durations, 95, method="inverted_cdf")
    return times


def _level_cycles(prepared: Sequence[Prepared], machine: Machine, levels: tuple[str, ...]) -> list[int]:
    timings = [simulate_levels(program, machine, levels) for program in prepared]
    return [sum(timing[level].cycles for timing in timings) for level in levels]


def _phases(prepared: Sequence[Prepared], machine: Machine, load: ContentionTrace, period: int) -> NDArray[np.int64]:
    """Duration of an inference for each phase, int64 [phases]; a single one for a constant load."""
    starts = [period * phase // PHASES for phase in range(PHASES)] if len(load.cycles) > 1 else [0]
    durations = []
    for start in starts:
        clock = start
        for program in prepared:
            clock += simulate_trace(program, machine, load.after(clock)).cycles
        durations.append(clock - start)
    return np.array(durations, np.int64)
