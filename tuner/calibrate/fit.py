"""Values of one class from observations: least squares against the simulator, on the grid of legal values.

Times are linear in cycles and in the inverse of rates, except for hidden times and rounding.  So Gauss-Newton steps with differences of
the simulator's own predictions solve a linear class at once, and come close for others; a search over neighbours on the grid of legal
values then ends at the minimum, with roundings and limits.  Deterministic, tens of evaluations; a random search (CMA-ES) needed thousands
for the same minimum.

Accuracy of a value: the curvature at the minimum with all values of the class free, twice the standard error.  Where a value can move
without a change of any probe, only its range is known.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulator.npu.machine import Machine
from tuner.calibrate.keys import Key, Number, read_value, with_values
from tuner.calibrate.probes import Probe, predict_cycles
from tuner.calibrate.readings import ProbeObservation

Values = tuple[Number, ...]

CONFIDENCE = 2.0  # reported uncertainty, in standard errors
DISTINCT = 12.0  # increase of chi squared above the minimum that is a significant difference: three and a half standard errors
_FAR = 1e3  # chi squared
_MISFIT = 9.0  # chi squared per degree of freedom above which other starts are tried
_STEP = 0.05  # relative step of a value, for differences
_SEEN = 0.3  # least joint effect of such a step on all times, in standard errors; below it a value is unobservable


@dataclass(frozen=True)
class FittedValue:
    """Fitted value of a key and its accuracy.

    half: half-width of the confidence interval.  low, high: range around the value without an effect on any probe, other values fixed.
    partner: another key that only a joint change distinguishes from this key, or ''.
    """

    key: Key
    value: Number
    half: float
    low: Number
    high: Number
    partner: str = ""

    @property
    def hidden(self) -> bool:
        """Whether the value can change unnoticed in one direction, by far more than noise explains."""
        threshold = max(2 * self.key.step if self.key.step >= 1 else 0, 0.04 * self.value, 4 * self.half)
        return max(self.high - self.value, self.value - self.low) > threshold or (bool(self.key.choices) and self.high > self.low)

    @property
    def converged(self) -> bool:
        """Whether more readings would not improve the result."""
        return self.hidden or bool(self.partner) or self.half <= max(self.key.step / 3, 0.0075 * self.value)

    @property
    def accurate(self) -> bool:
        """Whether the value is accurate to one unit, or to 2%."""
        return not self.hidden and self.half <= max(self.key.step, 0.02 * self.value)


class Problem:
    """Keys, probes, and their observations.

    machine: machine with the values of all other keys.  absorbing: indices of free keys that are not reported: they absorb changes of the
    others.
    """

    def __init__(self, machine: Machine, keys: Sequence[Key], probes: Sequence[Probe], absorbing: Sequence[Key] = ()) -> None:
        self.machine, self.keys, self.probes = machine, (*keys, *absorbing), tuple(probes)
        self.absorbing = range(len(keys), len(self.keys))
        self.observed_values, self.error = np.zeros(len(probes)), np.ones(len(probes))
        self._predictions: dict[Values, NDArray[np.float64]] = {}

    def observe(self, observed: Sequence[ProbeObservation]) -> None:
        """Set the observations so far; predictions stay cached."""
        self.observed_values = np.array([observation.value for observation in observed])
        self.error = np.array([observation.error for observation in observed])

    def start_values(self) -> Values:
        """Values of the machine."""
        return tuple(read_value(self.machine, key.path) for key in self.keys)

    def times(self, values: Values) -> NDArray[np.float64]:
        """Predicted times, float64 [probes]."""
        if values not in self._predictions:
            machine = with_values(self.machine, {key.path: value for key, value in zip(self.keys, values, strict=True)})
            self._predictions[values] = self.predict(machine)
        return self._predictions[values]

    def predict(self, machine: Machine) -> NDArray[np.float64]:
        """Times by a machine, float64 [probes]."""
        return np.array([probe.body_value(predict_cycles(probe, machine)) for probe in self.probes])

    def deviations(self, values: Values) -> NDArray[np.float64]:
        """Deviations, float64 [probes]: observed less predicted, in standard errors."""
        return (self.observed_values - self.times(values)) / self.error

    def chi(self, values: Values) -> float:
        return float((self.deviations(values) ** 2).sum())

    @property
    def freedom(self) -> int:
        return max(1, len(self.probes) - len(self.keys))

    def residuals(self, values: Values) -> NDArray[np.float64]:
        """Relative residuals, float64 [probes]: predicted over observed, less 1."""
        # absolute, in cycles, for times near 0
        return np.asarray(
            (self.times(values) - self.observed_values) / np.where(np.abs(self.observed_values) < 0.5, 1, self.observed_values)
        )


def solve(problem: Problem, start: Values | None = None) -> Values:
    """Minimise chi squared; among equally good solutions take the first.  start: values of an earlier fit."""
    free = [i for i, key in enumerate(problem.keys) if not key.choices]
    best = _minimise(problem, start or problem.start_values(), free)
    alternatives = [(i, choice) for i, key in enumerate(problem.keys) for choice in key.choices if choice != best[i]]
    best = _best(problem, best, [_with_changes(problem, best, {i: choice}) for i, choice in alternatives], free, _FAR)
    if problem.chi(best) / problem.freedom > _MISFIT:
        best = _best(problem, best, _other_starts(problem, best, free), free, np.inf)
    return best


def _best(problem: Problem, best: Values, starts: Sequence[Values], free: Sequence[int], far: float) -> Values:
    """Best solution from starts in order of fit, up to the first start worse than the best by `far` of chi squared."""
    for start in sorted(starts, key=problem.chi):
        if problem.chi(start) > problem.chi(best) + far:
            break
        solution = _minimise(problem, start, free)
        if problem.chi(solution) < problem.chi(best) - 1e-9:
            best = solution
    return best


def _other_starts(problem: Problem, values: Values, free: Sequence[int]) -> list[Values]:
    """Starts where a limit that hides a value may not bind."""
    return [_with_changes(problem, values, {i: values[i] * factor if values[i] else 8 * factor}) for i in free for factor in (4.0, 0.25)]


def _with_changes(problem: Problem, values: Values, changes: Mapping[int, float]) -> Values:
    return tuple(problem.keys[i].rounded(changes[i]) if i in changes else value for i, value in enumerate(values))


def _minimise(problem: Problem, start: Values, free: Sequence[int]) -> Values:
    best = start
    for _ in range(6):
        step = _newton(problem, best, free)
        candidates = [
            _with_changes(problem, best, {i: _limited_step(problem.keys[i], best[i], move * part) for i, move in step.items()})
            for part in (1, 0.5, 0.2)
        ]
        candidate = min(candidates, key=problem.chi)
        if problem.chi(candidate) >= problem.chi(best):
            break
        best = candidate
    return _neighbours(problem, best, free)


def _limited_step(key: Key, value: Number, move: float) -> float:
    """Value moved in the space with linear times, by a factor of four at most."""
    if not key.inverse:
        return value + move
    inverse = 1 / value + move
    return min(max(1 / inverse if inverse > 0 else 4 * value, value / 4), 4 * value)


def slopes(problem: Problem, values: Values, index: int) -> NDArray[np.float64]:
    """Slopes, float64 [probes]: change of times in standard errors, per change of the linear quantity of a key."""
    key, value = problem.keys[index], values[index]
    step = max(key.step, _STEP * value)
    low, high = (_with_changes(problem, values, {index: value + sign * step}) for sign in (-1, 1))
    run = (1 / high[index] - 1 / low[index]) if key.inverse else high[index] - low[index]
    return (problem.times(high) - problem.times(low)) / problem.error / run if run else np.zeros_like(problem.error)


def _newton(problem: Problem, values: Values, free: Sequence[int]) -> dict[int, float]:
    if not free:
        return {}
    jacobian = np.stack([slopes(problem, values, i) for i in free], 1)
    scale = np.linalg.norm(jacobian, axis=0)
    sensitive = scale > 0
    if not sensitive.any():
        return {}
    move, *_ = np.linalg.lstsq(jacobian[:, sensitive] / scale[sensitive], problem.deviations(values), rcond=1e-6)
    return {i: float(change) for i, change in zip(np.array(free)[sensitive].tolist(), move / scale[sensitive], strict=True)}


def _neighbours(problem: Problem, values: Values, free: Sequence[int]) -> Values:
    """Descend on the grid in steps of one key and of two at once, from coarse steps to the finest."""
    best = values
    for scale in (0.005, 0.0):
        while True:
            size = {i: max(problem.keys[i].step, scale * best[i]) for i in free}
            moves = [{i: s} for i in free for s in (-1, 1)]
            moves += [{i: s, j: t} for i in free for j in free if i < j for s in (-1, 1) for t in (-1, 1)]
            candidates = [_with_changes(problem, best, {i: best[i] + s * size[i] for i, s in move.items()}) for move in moves]
            candidate = min(candidates, key=problem.chi, default=best)
            if problem.chi(candidate) >= problem.chi(best) - 1e-9:
                break
            best = candidate
    return best


def estimate_accuracy(problem: Problem, values: Values) -> tuple[FittedValue, ...]:
    """Estimate the accuracy of each value, with the others of the class free."""
    lowest = problem.chi(values)
    reach = [_unobservable_range(problem, values, i, lowest) for i in range(len(values))]
    sensitive = [i for i, key in enumerate(problem.keys) if not key.choices and _is_observable(problem, values, i)]
    half, single = np.zeros(len(values)), np.zeros(len(values))
    partner: dict[int, str] = {}
    # a misfit beyond the noise widens all intervals
    inflation = max(1.0, np.sqrt(lowest / (problem.freedom + 3 * np.sqrt(2 * problem.freedom))))
    if sensitive:
        jacobian = np.stack([slopes(problem, values, i) for i in sensitive], 1)
        scale = np.linalg.norm(jacobian, axis=0)
        covariance = np.linalg.pinv((jacobian / scale).T @ (jacobian / scale), rcond=1e-10)
        joint = np.sqrt(np.diag(covariance)) / scale
        for row, i in enumerate(sensitive):
            width = values[i] ** 2 if problem.keys[i].inverse else 1.0
            half[i], single[i] = CONFIDENCE * inflation * joint[row] * width, CONFIDENCE * inflation / scale[row] * width
            correlated = [(abs(covariance[row, column]), sensitive[column]) for column in range(len(sensitive)) if column != row]
            if correlated and half[i] > 20 * single[i]:
                partner[i] = problem.keys[max(correlated)[1]].path
    estimates = []
    # the range of a value holds for its neighbours fixed, the interval for all of them free
    for i, (key, value) in enumerate(zip(problem.keys, values, strict=True)):
        low, high = reach[i]
        estimates.append(FittedValue(key, value, float(half[i]), low, high, partner.get(i, "")))
    return tuple(estimates)


def _is_observable(problem: Problem, values: Values, index: int) -> bool:
    """Whether times depend on a value measurably."""
    key, value = problem.keys[index], values[index]
    step = max(key.step, _STEP * value)
    return float(np.linalg.norm(slopes(problem, values, index))) * (step / value**2 if key.inverse else step) > _SEEN


def _unobservable_range(problem: Problem, values: Values, index: int, lowest: float) -> tuple[Number, Number]:
    """Range around a value without an effect on any probe."""
    key, value = problem.keys[index], values[index]
    if key.choices:
        equivalent = [choice for choice in key.choices if problem.chi(_with_changes(problem, values, {index: choice})) <= lowest + DISTINCT]
        return min([*equivalent, value]), max([*equivalent, value])
    return _farthest_equivalent(problem, values, index, lowest, -1), _farthest_equivalent(problem, values, index, lowest, 1)


def _farthest_equivalent(problem: Problem, values: Values, index: int, lowest: float, sign: int) -> Number:
    """End of the range of a value in one direction: by doubling steps, then by halving."""
    key, value = problem.keys[index], values[index]

    def is_equivalent(point: Number) -> bool:
        moved = _with_changes(problem, values, {index: point})
        return problem.chi(moved) <= lowest + DISTINCT or (
            bool(problem.absorbing) and problem.chi(_minimise(problem, moved, problem.absorbing)) <= lowest + DISTINCT
        )

    inner: Number = value
    step = max(key.step, _STEP * value)
    while True:
        candidate = key.rounded(value + sign * step)
        if candidate == inner:
            return inner
        if not is_equivalent(candidate):
            break
        inner = candidate
        step *= 2
    outer = candidate
    while abs(outer - inner) > max(key.step, 0.002 * value) * 1.001:
        middle = key.rounded((outer + inner) / 2)
        if middle in (inner, outer):
            break
        inner, outer = (middle, outer) if is_equivalent(middle) else (inner, middle)
    return inner
