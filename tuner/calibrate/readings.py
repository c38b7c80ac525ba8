"""Readings of probes on a board, with standard errors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from simulator.npu.errors import BadInputError
from simulator.npu.machine import Machine
from simulator.npu.program import Program
from tuner.calibrate.probes import Probe, time_program
from tuner.calibrate.programs import encode_program
from tuner.measure.runner_api import Bench, Encoded
from tuner.selection.race import centre

SPREAD_MOST = 0.5  # relative spread of readings; a runner above is no clock
_SAME = 1e-4  # relative error that no number of readings reduces
_EFFICIENCY = 1.05  # standard error of Hodges' and Lehmann's estimate of normal readings, over that of the mean: sqrt(pi / 3) is 1.02
_MAD = 1.4826  # ratio of the standard deviation to the median distance, for normal readings


@dataclass(frozen=True)
class ProbeObservation:
    """Observation of a probe, in cycles, and its standard error."""

    value: float
    error: float


@dataclass
class _ProgramReadings:
    """Readings of one program at one level."""

    program: Encoded
    level: str
    label: str
    cycles: list[int]


class ProbedBoard:
    """Board behind a runner; keeps all its readings.

    machine: its description, for which programs are written.  progress: prints a line about every round.
    """

    def __init__(self, name: str, bench: Bench, machine: Machine, progress: Callable[[str], None] = lambda _: None) -> None:
        self.name, self.machine = name, machine
        self._bench, self._progress = bench, progress
        self._readings: dict[tuple[int, str], _ProgramReadings] = {}
        self._programs: list[Program] = []  # kept alive, so that no id is reused
        self.held_out = 0  # readings of programs that are no probes

    @property
    def readings(self) -> int:
        return sum(len(entry.cycles) for entry in self._readings.values())

    def read(self, label: str, probes: Sequence[Probe], count: int) -> None:
        """Read until every program of the probes has `count` readings, all programs in turn, so that drift affects all alike.

        Raises `BadInputError` for impossible readings.
        """
        entries = [self._program_readings(probe, program) for probe in probes for program in probe.programs]
        self._progress(f"{label}: {len(probes)} probes, {count} readings each")
        for index in range(count):
            for entry in entries if index % 2 == 0 else reversed(entries):
                if len(entry.cycles) <= index:
                    entry.cycles.append(self._read_once(entry))
        for probe in probes:
            self._sensible(probe)

    def observed(self, probe: Probe, noise: float) -> ProbeObservation:
        """Observation of a probe.  noise: spread of one reading, see `noise`."""
        times = [self._program_readings(probe, program).cycles for program in probe.programs]
        centres = [_centre(cycles) for cycles in times]
        errors = [c * max(noise * _EFFICIENCY / np.sqrt(len(cycles)), _SAME) for c, cycles in zip(centres, times, strict=True)]
        half = 0.3  # rounding to an integer number of cycles
        return ProbeObservation(probe.body_value(centres), float(np.hypot(np.linalg.norm(errors), half)) / probe.divisor)

    def centre(self, program: Encoded, level: str, label: str, count: int) -> float:
        """Cycles of a program, from readings that are not stored.  Raises `BadInputError`."""
        entry = _ProgramReadings(program, level, f"{label} at {level}", [])
        self.held_out += count
        return _centre([self._read_once(entry) for _ in range(count)])

    def noise(self, probes: Sequence[Probe]) -> float:
        """Relative standard deviation of a reading, over all programs of the probes."""
        deviations: list[float] = []
        for entry in {
            id(k): k for probe in probes for k in (self._program_readings(probe, program) for program in probe.programs)
        }.values():
            n, values = len(entry.cycles), np.log(entry.cycles)
            if n > 1:
                deviations += (np.abs(values - np.median(values)) * np.sqrt(n / (n - 1))).tolist()
        return _MAD * float(np.median(deviations)) if deviations else 0.0

    def _program_readings(self, probe: Probe, program: Program) -> _ProgramReadings:
        key = (id(program), probe.level)
        if key not in self._readings:
            self._programs.append(program)
            expected = time_program(program, self.machine, probe.level)
            length = "" if len(probe.programs) == 1 else (", shorter" if program is probe.short else ", longer")
            label = f"probe {probe.name!r}{length} at {probe.level}"
            self._readings[key] = _ProgramReadings(encode_program(program, self.machine, probe.level, expected), probe.level, label, [])
        return self._readings[key]

    def _read_once(self, entry: _ProgramReadings) -> int:
        reading = self._bench.once(entry.program, entry.level)
        if reading.cycles is None:
            raise BadInputError(f"--runner {self.name}: {entry.label}: {reading.status}: {reading.error}")
        return reading.cycles

    def _sensible(self, probe: Probe) -> None:
        """Raise `BadInputError` if more work does not take longer, or if readings of one program scatter beyond `SPREAD_MOST`."""
        times = [self._program_readings(probe, program).cycles for program in probe.programs]
        label = f"--runner {self.name}: probe {probe.name!r} at {probe.level}"
        noise = self.noise([probe])
        if noise > SPREAD_MOST:
            raise BadInputError(f"{label}: readings of one program scatter by {noise:.0%}; accepted: up to {SPREAD_MOST:.0%}")
        if not probe.grows or probe.short is None:
            return
        long, short = (_centre(cycles) for cycles in times)
        if long <= short:
            comparison = "the same" if long == short else "less"
            raise BadInputError(
                f"{label}: the work of {probe.divisor:g} repeats more takes {comparison} "
                f"({short:,.0f} cycles, then {long:,.0f}); accepted: longer"
            )


def _centre(cycles: Sequence[int]) -> float:
    """Hodges-Lehmann estimate: nearly as efficient as the mean, robust against outliers."""
    values = np.array(cycles, np.float64)
    return float(values[0]) if (values == values[0]).all() else centre(values)
