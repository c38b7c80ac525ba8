"""Identification of a machine from a board's readings, class by class: accuracy of every value, misfit of every class."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np

from simulator.npu.machine import Machine
from tuner.calibrate.classes import ParameterClass, Probes, parameter_classes
from tuner.calibrate.fit import FittedValue, Problem, Values, estimate_accuracy, solve
from tuner.calibrate.keys import Key, Number, read_value, with_values
from tuner.calibrate.probes import Probe
from tuner.calibrate.probes_engines import launch_probes
from tuner.calibrate.queue import QUEUE, find_queue_depth
from tuner.calibrate.readings import ProbedBoard

Source = Literal["calibrated", "uncertain", "given"]
FIRST_READINGS = 8  # readings of every program; doubled until all values are accurate, or up to the limit
_LEAST_LOAD, _LOADS = 4096, 8  # cycles of a probe's longer program, and times the shortest program of all


@dataclass(frozen=True)
class ValueFinding:
    """Outcome for one value.  half: half-width of its interval.  source: calibrated (to one unit or 2%), uncertain, or as given.

    low, high: the possible range by all measurements.  why: reason for a value that is not calibrated.
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
    """Outcome for one class.  residual, worst: relative errors of predicted probe times: root mean square, and largest.

    noise: share of `residual` explained by the noise of readings.  readings: readings of each program.
    """

    name: str
    findings: tuple[ValueFinding, ...]
    probes: int
    readings: int
    residual: float
    noise: float
    worst: float
    worst_probe: str

    @property
    def unexplained(self) -> bool:
        """Whether no values make the simulator agree with the board."""
        return self.residual > max(4 * self.noise, 0.02)


@dataclass(frozen=True)
class Calibration:
    """Outcome of a calibration.  machine: machine with the fitted values.  spread: relative standard deviation of a reading."""

    given: Machine
    machine: Machine
    classes: tuple[ClassFindings, ...]
    readings: int
    spread: float

    @property
    def findings(self) -> tuple[ValueFinding, ...]:
        return tuple(finding for fitted_class in self.classes for finding in fitted_class.findings)


@dataclass
class _Row:
    """Class during the fit.  shared_probes: probes of the keys beside its own.  count: readings of each program."""

    row: ParameterClass
    probes: tuple[Probe, ...]
    shared_probes: tuple[Probe, ...]
    count: int = 0


def calibrate_board(board: ProbedBoard, most_readings: int = 256) -> Calibration:
    """Fit the machine to the board that it describes.  Raises `BadInputError` for impossible readings."""
    start = board.machine
    load = _load(board)
    machine, rows = start, []
    cache: dict[Probes, tuple[Probe, ...]] = {}  # probes shared by several classes are read once

    def probes(row: Probes) -> tuple[Probe, ...]:
        key = next((builder for builder in cache if _has_same_probes(builder, row)), row)
        return cache.setdefault(key, row(start, load))

    for row in parameter_classes(start):
        state = _Row(row, probes(row.probes), probes(row.beside_probes))
        rows.append(state)
        machine = _fit_until_accurate(board, machine, state, most_readings)
    depth = find_queue_depth(board, machine, load)
    if depth is not None:
        machine = with_values(machine, {depth.key.path: _nearest_to_given(depth, start.queue_depth)})
    # second pass: the assumed values are fitted now
    class_findings = []
    for state in rows:
        machine, findings = _settle_class(board, start, machine, state)
        class_findings.append(findings)
    queue = (_finding_without_probe(QUEUE, start) if depth is None else finding_of(depth, start, 0),)
    return Calibration(
        start,
        machine,
        (*class_findings, ClassFindings("queue", queue, 0, 0, 0.0, 0.0, 0.0, "")),
        board.readings,
        board.noise([probe for state in rows for probe in state.probes]),
    )


def _has_same_probes(first: Probes, second: Probes) -> bool:
    """Whether two rows have the same probes."""
    parts = [(builder.func, builder.args) if isinstance(builder, partial) else (builder, ()) for builder in (first, second)]
    return parts[0] == parts[1]


def _load(board: ProbedBoard) -> int:
    """Cycles of a probe, so that its launch is a small part."""
    shortest = launch_probes(board.machine, 0)
    board.read("launch", shortest, FIRST_READINGS)
    return max(_LEAST_LOAD, _LOADS * round(board.observed(shortest[0], 0.0).value))


def _observe(board: ProbedBoard, problem: Problem) -> None:
    noise = board.noise(problem.probes)
    problem.observe([board.observed(probe, noise) for probe in problem.probes])


def _fit_until_accurate(board: ProbedBoard, machine: Machine, state: _Row, limit: int) -> Machine:
    """Read until every value is accurate enough."""
    if not state.probes:
        return machine
    problem = Problem(with_values(machine, state.row.assumed), (*state.row.keys, *state.row.first), state.probes)
    state.count = FIRST_READINGS
    values: Values | None = None
    while True:
        board.read(state.row.name, state.probes, state.count)
        _observe(board, problem)
        values = solve(problem, values)
        if state.count >= limit or all(estimate.converged for estimate in estimate_accuracy(problem, values)):
            return with_values(machine, _values_by_key(problem, values))
        state.count = min(limit, 2 * state.count)


def _values_by_key(problem: Problem, values: Values) -> dict[str, Number]:
    return {key.path: value for key, value in zip(problem.keys, values, strict=True)}


def _settle_class(board: ProbedBoard, start: Machine, machine: Machine, state: _Row) -> tuple[Machine, ClassFindings]:
    if not state.probes:
        unseen = tuple(_finding_without_probe(key, start) for key in state.row.keys)
        return machine, ClassFindings(state.row.name, unseen, 0, 0, 0.0, 0.0, 0.0, "")
    problem = Problem(machine, state.row.keys, (*state.probes, *state.shared_probes), state.row.absorbing)
    _observe(board, problem)
    values = solve(problem, problem.start_values())
    estimates = estimate_accuracy(problem, values)[: len(state.row.keys)]
    findings = tuple(finding_of(estimate, start, state.count) for estimate in estimates)
    value_tuple = tuple(finding.value for finding in findings)
    deviation = problem.residuals((*value_tuple, *values[len(value_tuple) :]))[: len(state.probes)]
    worst_index = int(np.argmax(np.abs(deviation)))
    # absolute, in cycles, for times near 0
    noise = problem.error / np.where(np.abs(problem.observed_values) < 0.5, 1, np.abs(problem.observed_values))
    noise = noise[: len(state.probes)]
    class_findings = ClassFindings(
        state.row.name, findings, len(state.probes), state.count,
        float(np.sqrt((deviation**2).mean())), float(np.sqrt((noise**2).mean())), float(deviation[worst_index]),
        state.probes[worst_index].name,
    )  # fmt: skip
    return with_values(machine, {finding.key.path: finding.value for finding in findings}), class_findings


def _finding_without_probe(key: Key, start: Machine) -> ValueFinding:
    """Finding for a key without a probe."""
    value = read_value(start, key.path)
    return ValueFinding(key, value, value, 0.0, "given", key.least, key.greatest, f"no probe: {key.hidden}")


def _nearest_to_given(estimate: FittedValue, start: Number) -> Number:
    """Given value if inside the unobservable range, else the nearest end of the range."""
    return min(max(start, estimate.low), estimate.high) if estimate.hidden else estimate.value


def finding_of(fit: FittedValue, start: Machine, readings: int) -> ValueFinding:
    """Finding for a fitted value, of so many readings."""
    key, old = fit.key, read_value(start, fit.key.path)
    if fit.hidden:
        if fit.high >= key.greatest:
            scope = f"any value from {fit.low:g} on"
        elif fit.low <= key.least:
            scope = f"any value up to {fit.high:g}"
        else:
            scope = f"any value from {fit.low:g} to {fit.high:g}"
        return ValueFinding(
            key, old, _nearest_to_given(fit, old), 0.0, "given", fit.low, fit.high, f"{scope} gives the same times: {key.hidden}"
        )
    # the key is observable: only its accuracy is in question
    value = _few_digits(fit)
    source: Source = "calibrated"
    reason = ""
    if fit.partner:
        source, reason = "uncertain", f"only together with {fit.partner}"
    elif not fit.accurate:
        source, reason = "uncertain", f"noise: {readings} readings of each program leave +-{fit.half:.2g}"
    return ValueFinding(key, old, value, fit.half, source, value - fit.half, value + fit.half, reason)


def _few_digits(estimate: FittedValue) -> Number:
    """Value rounded to its accuracy, where the file takes fractions."""
    if estimate.key.step >= 1:
        return estimate.value
    for digits in range(6):
        value = round(estimate.value, digits)
        if abs(value - estimate.value) <= estimate.half / 4 and estimate.key.least <= value <= estimate.key.greatest:
            return int(value) if value == int(value) else value
    return estimate.value
