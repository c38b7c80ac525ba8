"""What a board said of the probes, and how sure that is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from simulator.npu.errors import BadInputError
from simulator.npu.machine import Machine
from simulator.npu.program import Program
from tuner.calibrate.probes import Probe, timed
from tuner.calibrate.programs import encoded
from tuner.measure.runner_api import Bench, Encoded
from tuner.selection.race import centre

SPREAD_MOST = 0.5  # of a reading, in parts of it: beyond that it is no clock
_SAME = 1e-4  # of a time: nothing is known better, however often it is read
_EFFICIENCY = 1.05  # standard error of Hodges' and Lehmann's estimate of normal readings, over that of the mean: sqrt(pi / 3) is 1.02
_MAD = 1.4826  # from the median of distances to the standard deviation of normal readings


@dataclass(frozen=True)
class Observed:
    """Of a probe, in cycles: what was seen, and its standard error."""

    value: float
    error: float


@dataclass
class _Kept:
    """Of one program at one level."""

    program: Encoded
    level: str
    where: str
    cycles: list[int]


class ProbedBoard:
    """A runner that is asked again and again; keeps what it said.

    machine: as it was described; what programs are written for.  heard: of every round, for progress.
    """

    def __init__(self, name: str, bench: Bench, machine: Machine, heard: Callable[[str], None] = lambda _: None) -> None:
        self.name, self.machine = name, machine
        self._bench, self._heard = bench, heard
        self._kept: dict[tuple[int, str], _Kept] = {}
        self._programs: list[Program] = []  # so that no id is given twice
        self.held_out = 0  # readings of what is no probe

    @property
    def readings(self) -> int:
        return sum(len(kept.cycles) for kept in self._kept.values())

    def read(self, what: str, probes: Sequence[Probe], count: int) -> None:
        """Every program of the probes has been read `count` times after this, all in turn: a drift is in all of them.

        Raises `BadInputError` for what no board can say.
        """
        kept = [self._of(probe, program) for probe in probes for program in probe.programs]
        self._heard(f"{what}: {len(probes)} probes, {count} readings each")
        for at in range(count):
            for each in kept if at % 2 == 0 else reversed(kept):
                if len(each.cycles) <= at:
                    each.cycles.append(self._once(each))
        for probe in probes:
            self._sensible(probe)

    def observed(self, probe: Probe, spread: float) -> Observed:
        """spread: of one reading, see `spread`."""
        times = [self._of(probe, program).cycles for program in probe.programs]
        centres = [_centre(each) for each in times]
        errors = [c * max(spread * _EFFICIENCY / np.sqrt(len(each)), _SAME) for c, each in zip(centres, times, strict=True)]
        half = 0.3  # a whole number of cycles, or what a clock in seconds rounds to, is known to that
        return Observed(probe.of(centres), float(np.hypot(np.linalg.norm(errors), half)) / probe.per)

    def centre(self, program: Encoded, level: str, where: str, count: int) -> float:
        """Cycles of a program that is kept no longer.  Raises `BadInputError`."""
        kept = _Kept(program, level, f"{where} at {level}", [])
        self.held_out += count
        return _centre([self._once(kept) for _ in range(count)])

    def spread(self, probes: Sequence[Probe]) -> float:
        """Standard deviation of a reading, in parts of it, over all programs of the probes."""
        apart: list[float] = []
        for kept in {id(k): k for probe in probes for k in (self._of(probe, program) for program in probe.programs)}.values():
            n, values = len(kept.cycles), np.log(kept.cycles)
            if n > 1:
                apart += (np.abs(values - np.median(values)) * np.sqrt(n / (n - 1))).tolist()
        return _MAD * float(np.median(apart)) if apart else 0.0

    def _of(self, probe: Probe, program: Program) -> _Kept:
        key = (id(program), probe.level)
        if key not in self._kept:
            self._programs.append(program)
            expected = timed(program, self.machine, probe.level)
            length = "" if len(probe.programs) == 1 else (", shorter" if program is probe.less else ", longer")
            where = f"probe {probe.name!r}{length} at {probe.level}"
            self._kept[key] = _Kept(encoded(program, self.machine, probe.level, expected), probe.level, where, [])
        return self._kept[key]

    def _once(self, kept: _Kept) -> int:
        reading = self._bench.once(kept.program, kept.level)
        if reading.cycles is None:
            raise BadInputError(f"--runner {self.name}: {kept.where}: {reading.status}: {reading.error}")
        return reading.cycles

    def _sensible(self, probe: Probe) -> None:
        """Raises `BadInputError` where more work does not take longer, or readings of one program have nothing to do with each other."""
        times = [self._of(probe, program).cycles for program in probe.programs]
        where = f"--runner {self.name}: probe {probe.name!r} at {probe.level}"
        spread = self.spread([probe])
        if spread > SPREAD_MOST:
            raise BadInputError(f"{where}: readings of one program scatter by {spread:.0%}; accepted: up to {SPREAD_MOST:.0%}")
        if not probe.grows or probe.less is None:
            return
        more, less = (_centre(each) for each in times)
        if more <= less:
            how = "the same" if more == less else "less"
            raise BadInputError(
                f"{where}: the work of {probe.per:g} repeats more takes {how} ({less:,.0f} cycles, then {more:,.0f}); accepted: longer"
            )


def _centre(cycles: Sequence[int]) -> float:
    """Hodges' and Lehmann's estimate: as sure as a mean, and outliers do not move it."""
    values = np.array(cycles, np.float64)
    return float(values[0]) if (values == values[0]).all() else centre(values)
