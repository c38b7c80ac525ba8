"""Values of one class from what was observed: least squares against the simulator itself, on the values that the format takes.

Times are linear in cycles and in the inverse of rates, but for what hides behind something else and what is rounded up.  So steps of
Gauss and Newton with differences of the simulator's own predictions solve a class that is linear at once, and are near for one that
is not; a search over neighbours on the grid of legal values then ends at the least of what the simulator says, roundings and limits
included.  Deterministic, and of tens of evaluations; a random search (CMA-ES) needed thousands for the same least.

How well a value is known: the curvature at the least, all values of the class free, twice the standard error.  Where a value can be moved
without any probe's noticing, nothing is known but how far.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulator.npu.machine import Machine
from tuner.calibrate.keys import Key, Number, value_of, with_values
from tuner.calibrate.probes import Probe, predicted
from tuner.calibrate.readings import Observed

Values = tuple[Number, ...]

SURE = 2.0  # standard errors that are said
APART = 12.0  # of chi squared, from the least to what is told apart from it: three and a half standard errors
_FAR = 1e3  # of chi squared
_MISFIT = 9.0  # chi squared by degrees of freedom from which other starts are tried
_STEP = 0.05  # of a value, for differences
_SEEN = 0.3  # standard errors by which such a step moves all times together, at least, or nothing is said of the value


@dataclass(frozen=True)
class KnownValue:
    """What is known of a key.

    half: the value is known to +- so much.  low, high: the range in which no probe notices, the others as they are; value lies in it.
    together: the key that it is known only together with, or ''.
    """

    key: Key
    value: Number
    half: float
    low: Number
    high: Number
    together: str = ""

    @property
    def hidden(self) -> bool:
        """Whether it can be moved unnoticed in one direction, by far more than noise explains."""
        least = max(2 * self.key.step if self.key.step >= 1 else 0, 0.04 * self.value, 4 * self.half)
        return max(self.high - self.value, self.value - self.low) > least or (bool(self.key.choices) and self.high > self.low)

    @property
    def enough(self) -> bool:
        """Whether more readings would say nothing that is needed."""
        return self.hidden or bool(self.together) or self.half <= max(self.key.step / 3, 0.0075 * self.value)

    @property
    def good(self) -> bool:
        """To one of its unit, or to 2%."""
        return not self.hidden and self.half <= max(self.key.step, 0.02 * self.value)


class Problem:
    """Keys, probes, and what was observed of them.

    machine: with the values of all other keys.  beside: places of keys that are free, but not asked for: they give way to the others.
    """

    def __init__(self, machine: Machine, keys: Sequence[Key], probes: Sequence[Probe], beside: Sequence[Key] = ()) -> None:
        self.machine, self.keys, self.probes = machine, (*keys, *beside), tuple(probes)
        self.beside = range(len(keys), len(self.keys))
        self.seen, self.error = np.zeros(len(probes)), np.ones(len(probes))
        self._known: dict[Values, NDArray[np.float64]] = {}

    def observe(self, observed: Sequence[Observed]) -> None:
        """What was read by now; predictions stay."""
        self.seen = np.array([each.value for each in observed])
        self.error = np.array([each.error for each in observed])

    def given(self) -> Values:
        """What the machine has."""
        return tuple(value_of(self.machine, key.path) for key in self.keys)

    def times(self, values: Values) -> NDArray[np.float64]:
        """float64 [probes]: what the simulator says."""
        if values not in self._known:
            machine = with_values(self.machine, {key.path: value for key, value in zip(self.keys, values, strict=True)})
            self._known[values] = np.array([probe.of(predicted(probe, machine)) for probe in self.probes])
        return self._known[values]

    def off(self, values: Values) -> NDArray[np.float64]:
        """float64 [probes]: observed less predicted, in standard errors."""
        return (self.seen - self.times(values)) / self.error

    def chi(self, values: Values) -> float:
        return float((self.off(values) ** 2).sum())

    @property
    def freedom(self) -> int:
        return max(1, len(self.probes) - len(self.keys))

    def residuals(self, values: Values) -> NDArray[np.float64]:
        """float64 [probes]: predicted over observed, less 1."""
        # of what may take no time at all, in cycles
        return np.asarray((self.times(values) - self.seen) / np.where(np.abs(self.seen) < 0.5, 1, self.seen))


def solve(problem: Problem, start: Values | None = None) -> Values:
    """The values of the least chi squared; of choices that are equally good the first one.  start: of an earlier look."""
    free = [i for i, key in enumerate(problem.keys) if not key.choices]
    best = _least(problem, start or problem.given(), free)
    others = [(i, choice) for i, key in enumerate(problem.keys) for choice in key.choices if choice != best[i]]
    best = _best(problem, best, [_moved(problem, best, {i: choice}) for i, choice in others], free, _FAR)
    if problem.chi(best) / problem.freedom > _MISFIT:
        best = _best(problem, best, _elsewhere(problem, best, free), free, np.inf)
    return best


def _best(problem: Problem, best: Values, starts: Sequence[Values], free: Sequence[int], far: float) -> Values:
    """Of starts in the order in which they fit, to the first that is worse than the best that was found by so much of chi squared."""
    for start in sorted(starts, key=problem.chi):
        if problem.chi(start) > problem.chi(best) + far:
            break
        found = _least(problem, start, free)
        if problem.chi(found) < problem.chi(best) - 1e-9:
            best = found
    return best


def _elsewhere(problem: Problem, values: Values, free: Sequence[int]) -> list[Values]:
    """Starts from which a limit that hides a value may not bind."""
    return [_moved(problem, values, {i: values[i] * factor if values[i] else 8 * factor}) for i in free for factor in (4.0, 0.25)]


def _moved(problem: Problem, values: Values, to: Mapping[int, float]) -> Values:
    return tuple(problem.keys[i].rounded(to[i]) if i in to else value for i, value in enumerate(values))


def _least(problem: Problem, start: Values, free: Sequence[int]) -> Values:
    best = start
    for _ in range(6):
        step = _newton(problem, best, free)
        tried = [
            _moved(problem, best, {i: _towards(problem.keys[i], best[i], move * part) for i, move in step.items()})
            for part in (1, 0.5, 0.2)
        ]
        found = min(tried, key=problem.chi)
        if problem.chi(found) >= problem.chi(best):
            break
        best = found
    return _neighbours(problem, best, free)


def _towards(key: Key, value: Number, move: float) -> float:
    """A value that was moved in the space in which times are linear, by no more than four times."""
    if not key.inverse:
        return value + move
    inverse = 1 / value + move
    return min(max(1 / inverse if inverse > 0 else 4 * value, value / 4), 4 * value)


def slopes(problem: Problem, values: Values, i: int) -> NDArray[np.float64]:
    """float64 [probes]: of times in standard errors, by what is linear of a key."""
    key, value = problem.keys[i], values[i]
    step = max(key.step, _STEP * value)
    low, high = (_moved(problem, values, {i: value + sign * step}) for sign in (-1, 1))
    run = (1 / high[i] - 1 / low[i]) if key.inverse else high[i] - low[i]
    return (problem.times(high) - problem.times(low)) / problem.error / run if run else np.zeros_like(problem.error)


def _newton(problem: Problem, values: Values, free: Sequence[int]) -> dict[int, float]:
    if not free:
        return {}
    across = np.stack([slopes(problem, values, i) for i in free], 1)
    scale = np.linalg.norm(across, axis=0)
    told = scale > 0
    if not told.any():
        return {}
    move, *_ = np.linalg.lstsq(across[:, told] / scale[told], problem.off(values), rcond=1e-6)
    return {i: float(each) for i, each in zip(np.array(free)[told].tolist(), move / scale[told], strict=True)}


def _neighbours(problem: Problem, values: Values, free: Sequence[int]) -> Values:
    """Steps on the grid, of one key and of two at once, from coarse ones to the finest, while they are better."""
    best = values
    for scale in (0.005, 0.0):
        while True:
            size = {i: max(problem.keys[i].step, scale * best[i]) for i in free}
            moves = [{i: s} for i in free for s in (-1, 1)]
            moves += [{i: s, j: t} for i in free for j in free if i < j for s in (-1, 1) for t in (-1, 1)]
            tried = [_moved(problem, best, {i: best[i] + s * size[i] for i, s in move.items()}) for move in moves]
            found = min(tried, key=problem.chi, default=best)
            if problem.chi(found) >= problem.chi(best) - 1e-9:
                break
            best = found
    return best


def known(problem: Problem, values: Values) -> tuple[KnownValue, ...]:
    """How well each value is known, the others of the class free."""
    least = problem.chi(values)
    reach = [_reach(problem, values, i, least) for i in range(len(values))]
    told = [i for i, key in enumerate(problem.keys) if not key.choices and _told(problem, values, i)]
    half, single = np.zeros(len(values)), np.zeros(len(values))
    partner: dict[int, str] = {}
    # where the model fits worse than noise explains, it says less
    worse = max(1.0, np.sqrt(least / (problem.freedom + 3 * np.sqrt(2 * problem.freedom))))
    if told:
        across = np.stack([slopes(problem, values, i) for i in told], 1)
        scale = np.linalg.norm(across, axis=0)
        covariance = np.linalg.pinv((across / scale).T @ (across / scale), rcond=1e-10)
        joint = np.sqrt(np.diag(covariance)) / scale
        for at, i in enumerate(told):
            width = values[i] ** 2 if problem.keys[i].inverse else 1.0
            half[i], single[i] = SURE * worse * joint[at] * width, SURE * worse / scale[at] * width
            others = [(abs(covariance[at, other]), told[other]) for other in range(len(told)) if other != at]
            if others and half[i] > 20 * single[i]:
                partner[i] = problem.keys[max(others)[1]].path
    found = []
    for i, (key, value) in enumerate(zip(problem.keys, values, strict=True)):
        low, high = reach[i]
        found.append(KnownValue(key, value, float(half[i]), low, high, partner.get(i, "")))
    return tuple(found)


def _told(problem: Problem, values: Values, i: int) -> bool:
    """Whether times say anything of a value."""
    key, value = problem.keys[i], values[i]
    step = max(key.step, _STEP * value)
    return float(np.linalg.norm(slopes(problem, values, i))) * (step / value**2 if key.inverse else step) > _SEEN


def _reach(problem: Problem, values: Values, i: int, least: float) -> tuple[Number, Number]:
    """The range around a value in which no probe notices."""
    key, value = problem.keys[i], values[i]
    if key.choices:
        same = [each for each in key.choices if problem.chi(_moved(problem, values, {i: each})) <= least + APART]
        return min([*same, value]), max([*same, value])
    return _as_far(problem, values, i, least, -1), _as_far(problem, values, i, least, 1)


def _as_far(problem: Problem, values: Values, i: int, least: float, sign: int) -> Number:
    """By doubling steps, then by halving."""
    key, value = problem.keys[i], values[i]

    def same(at: Number) -> bool:
        moved = _moved(problem, values, {i: at})
        return problem.chi(moved) <= least + APART or (
            bool(problem.beside) and problem.chi(_least(problem, moved, problem.beside)) <= least + APART
        )

    inside: Number = value
    step = max(key.step, _STEP * value)
    while True:
        at = key.rounded(value + sign * step)
        if at == inside:
            return inside
        if not same(at):
            break
        inside = at
        step *= 2
    outside = at
    while abs(outside - inside) > max(key.step, 0.002 * value) * 1.001:
        middle = key.rounded((outside + inside) / 2)
        if middle in (inside, outside):
            break
        inside, outside = (middle, outside) if same(middle) else (inside, middle)
    return inside
