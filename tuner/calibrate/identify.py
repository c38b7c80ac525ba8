"""Class by class, from the readings of a board to a machine: what is known of every value, and how well its class is explained."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np

from simulator.npu.machine import Machine
from tuner.calibrate.classes import ParameterClass, Probes, classes_of
from tuner.calibrate.fit import KnownValue, Problem, Values, known, solve
from tuner.calibrate.keys import Key, Number, value_of, with_values
from tuner.calibrate.probes import Probe
from tuner.calibrate.probes_engines import launch_probes
from tuner.calibrate.queue import QUEUE, queue_depth
from tuner.calibrate.readings import ProbedBoard

Source = Literal["calibrated", "uncertain", "given"]
FIRST_READINGS = 8  # of every program; doubled until all is known, or the most are read
_LEAST_LOAD, _LOADS = 4096, 8  # cycles of a probe's longer program, and times the shortest program of all


@dataclass(frozen=True)
class Identified:
    """Of one value.  half: it is known to +- so much.  source: calibrated to one of its unit or 2%; uncertain: less well; or as given.

    low, high: what it may be, by all that was measured.  why: of what is not calibrated.
    """

    key: Key
    given: Number
    value: Number
    half: float
    source: Source
    low: Number
    high: Number
    why: str = ""


@dataclass(frozen=True)
class ClassFindings:
    """residual, worst: of probes, predicted over observed less 1: root of the mean square, and the one that is farthest off.

    noise: what of `residual` readings alone would leave.  readings: of each program.
    """

    name: str
    findings: tuple[Identified, ...]
    probes: int
    readings: int
    residual: float
    noise: float
    worst: float
    worst_probe: str

    @property
    def unexplained(self) -> bool:
        """Whether the simulator cannot say what the board does, whatever the values."""
        return self.residual > max(4 * self.noise, 0.02)


@dataclass(frozen=True)
class Calibration:
    """machine: with the values found.  spread: standard deviation of a reading, in parts of it."""

    given: Machine
    machine: Machine
    classes: tuple[ClassFindings, ...]
    readings: int
    spread: float

    @property
    def findings(self) -> tuple[Identified, ...]:
        return tuple(finding for each in self.classes for finding in each.findings)


@dataclass
class _Row:
    """A class while it is worked on.  beside: its probes of keys beside its own.  count: readings of each program."""

    row: ParameterClass
    probes: tuple[Probe, ...]
    beside: tuple[Probe, ...]
    count: int = 0


def calibrate(board: ProbedBoard, most_readings: int = 256) -> Calibration:
    """What the board says of the machine that it was described as.  Raises `BadInputError` where it says what cannot be."""
    given = board.machine
    load = _load(board)
    machine, rows = given, []
    made: dict[Probes, tuple[Probe, ...]] = {}  # what several classes look at is read once

    def probes(row: Probes) -> tuple[Probe, ...]:
        key = next((each for each in made if _same(each, row)), row)
        return made.setdefault(key, row(given, load))

    for row in classes_of(given):
        state = _Row(row, probes(row.probes), probes(row.beside_probes))
        rows.append(state)
        machine = _fitted(board, machine, state, most_readings)
    depth = queue_depth(board, machine, load)
    if depth is not None:
        machine = with_values(machine, {depth.key.path: _kept(depth, given.queue_depth)})
    # what a class took for granted is known by now
    found = []
    for state in rows:
        machine, findings = _settled(board, given, machine, state)
        found.append(findings)
    queue = (_unseen(QUEUE, given) if depth is None else _finding(depth, given, 0),)
    return Calibration(
        given,
        machine,
        (*found, ClassFindings("queue", queue, 0, 0, 0.0, 0.0, 0.0, "")),
        board.readings,
        board.spread([probe for state in rows for probe in state.probes]),
    )


def _same(a: Probes, b: Probes) -> bool:
    """Whether two rows name the same probes."""
    parts = [(each.func, each.args) if isinstance(each, partial) else (each, ()) for each in (a, b)]
    return parts[0] == parts[1]


def _load(board: ProbedBoard) -> int:
    """Cycles that a probe should take, so that launching it is a small part."""
    shortest = launch_probes(board.machine, 0)
    board.read("launch", shortest, FIRST_READINGS)
    return max(_LEAST_LOAD, _LOADS * round(board.observed(shortest[0], 0.0).value))


def _observe(board: ProbedBoard, problem: Problem) -> None:
    spread = board.spread(problem.probes)
    problem.observe([board.observed(probe, spread) for probe in problem.probes])


def _fitted(board: ProbedBoard, machine: Machine, state: _Row, most: int) -> Machine:
    """Reads until every value is known as well as is asked for."""
    if not state.probes:
        return machine
    problem = Problem(with_values(machine, state.row.assumed), (*state.row.keys, *state.row.first), state.probes)
    state.count = FIRST_READINGS
    values: Values | None = None
    while True:
        board.read(state.row.name, state.probes, state.count)
        _observe(board, problem)
        values = solve(problem, values)
        if state.count >= most or all(each.enough for each in known(problem, values)):
            return with_values(machine, _by_key(problem, values))
        state.count = min(most, 2 * state.count)


def _by_key(problem: Problem, values: Values) -> dict[str, Number]:
    return {key.path: value for key, value in zip(problem.keys, values, strict=True)}


def _settled(board: ProbedBoard, given: Machine, machine: Machine, state: _Row) -> tuple[Machine, ClassFindings]:
    if not state.probes:
        unseen = tuple(_unseen(key, given) for key in state.row.keys)
        return machine, ClassFindings(state.row.name, unseen, 0, 0, 0.0, 0.0, 0.0, "")
    problem = Problem(machine, state.row.keys, (*state.probes, *state.beside), state.row.beside)
    _observe(board, problem)
    values = solve(problem, problem.given())
    told = known(problem, values)[: len(state.row.keys)]
    findings = tuple(_finding(each, given, state.count) for each in told)
    chosen = tuple(finding.value for finding in findings)
    off = problem.residuals((*chosen, *values[len(chosen) :]))[: len(state.probes)]
    at = int(np.argmax(np.abs(off)))
    # of what may take no time at all, in cycles rather than in parts
    noise = problem.error / np.where(np.abs(problem.seen) < 0.5, 1, np.abs(problem.seen))
    noise = noise[: len(state.probes)]
    result = ClassFindings(
        state.row.name, findings, len(state.probes), state.count,
        float(np.sqrt((off**2).mean())), float(np.sqrt((noise**2).mean())), float(off[at]), state.probes[at].name,
    )  # fmt: skip
    return with_values(machine, {finding.key.path: finding.value for finding in findings}), result


def _unseen(key: Key, given: Machine) -> Identified:
    """What there is no probe for."""
    value = value_of(given, key.path)
    return Identified(key, value, value, 0.0, "given", key.least, key.most, f"no probe: {key.hidden}")


def _kept(told: KnownValue, given: Number) -> Number:
    """What was given, where it is as good as any other; else what is nearest to it of those that are."""
    return min(max(given, told.low), told.high) if told.hidden else told.value


def _finding(told: KnownValue, given: Machine, readings: int) -> Identified:
    key, before = told.key, value_of(given, told.key.path)
    if told.hidden:
        if told.high >= key.most:
            how = f"any value from {told.low:g} on"
        elif told.low <= key.least:
            how = f"any value up to {told.high:g}"
        else:
            how = f"any value from {told.low:g} to {told.high:g}"
        return Identified(key, before, _kept(told, before), 0.0, "given", told.low, told.high, f"{how} gives the same times: {key.hidden}")
    value = _few_digits(told)
    source: Source = "calibrated"
    why = ""
    if told.together:
        source, why = "uncertain", f"only together with {told.together}"
    elif not told.good:
        source, why = "uncertain", f"noise: {readings} readings of each program leave +-{told.half:.2g}"
    return Identified(key, before, value, told.half, source, value - told.half, value + told.half, why)


def _few_digits(told: KnownValue) -> Number:
    """No more digits than are known, where the file takes fractions."""
    if told.key.step >= 1:
        return told.value
    for digits in range(6):
        value = round(told.value, digits)
        if abs(value - told.value) <= told.half / 4 and told.key.least <= value <= told.key.most:
            return int(value) if value == int(value) else value
    return told.value
