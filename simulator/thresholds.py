"""Thresholds of the balance rule: chosen from the response of the variants, and checked for oscillation.

At a given share, rho of a variant falls with the bandwidth, so it tells where the share lies: variant m is right above the share b*
at which it and its heavier neighbour take equally long, so T_min[m] = rho_m(b*), and the neighbour is left for m at
T_max[m+1] = (1 + h) rho_{m+1}(b*).  Each border has its own pair because the variants' own rho differ at the same share: with one pair for
all, a share exists at which m wants to go heavier and m + 1 lighter, unless T_max / T_min is at least the largest ratio of their rho.

The rule has thresholds in 1/65536, T_min rounded down and T_max rounded up.  A switch by the rounded thresholds is also one by the exact
ones, so rounding causes no oscillation.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from simulator.controller import ThresholdRule
from simulator.npu.controller_table import MAX_THRESHOLD, RHO_UNIT
from simulator.npu.errors import BadInputError
from simulator.npu.level import SHARE_UNIT
from simulator.response import Floats, Response

HYSTERESIS = 0.05  # h of T_max = (1 + h) rho


@dataclass(frozen=True)
class Replacement:
    """A variant outside the ladder, and its substitute."""

    variant: str
    into: str
    why: str


@dataclass(frozen=True)
class Border:
    """Between neighbours of the ladder: the share at which they take equally long, and the thresholds there."""

    lighter: str
    heavier: str
    share: float
    t_min: float
    t_max: float


@dataclass(frozen=True)
class Oscillation:
    """Constant share (in 1/65536) at which the rule would switch back and forth between two variants, and the rho of each there."""

    share_units: int
    lighter: str
    heavier: str
    balance_lighter: float
    balance_heavier: float

    def __str__(self) -> str:
        return (
            f"oscillates at a share of {self.share_units / SHARE_UNIT:.3f}: {self.lighter} (rho {self.balance_lighter:.3f}) goes heavier, "
            f"{self.heavier} (rho {self.balance_heavier:.3f}) lighter"
        )


class ManualThresholds(NamedTuple):
    """Settings by a person.  t_min, t_max: both, for all borders, or neither to derive them from the variants.

    slice_cycles: see `ThresholdRule`.
    """

    t_min: float | None = None
    t_max: float | None = None
    slice_cycles: int = 0

    def thresholds(self, response: Response, costs: Sequence[tuple[float, ...]]) -> Thresholds:
        """Thresholds of these settings; see `repeat_pair`.  Raises `BadInputError`."""
        if self.t_min is None or self.t_max is None:
            return choose_thresholds(response, slice_cycles=self.slice_cycles)
        return repeat_pair(response, costs, self.t_min, self.t_max, self.slice_cycles)


@dataclass(frozen=True)
class Thresholds:
    """A rule and its origin; `oscillations` is empty where it settles at every share of the grid."""

    rule: ThresholdRule
    borders: tuple[Border, ...]
    merged: tuple[Replacement, ...]
    oscillations: tuple[Oscillation, ...]


def choose_thresholds(response: Response, hysteresis: float = HYSTERESIS, slice_cycles: int = 0) -> Thresholds:
    """Ladder and thresholds per border, from rho(b) and cycles(b) on the grid.

    Raises `BadInputError` unless hysteresis > 0.
    """
    if not 0 < hysteresis < float("inf"):
        raise BadInputError(f"hysteresis {hysteresis}; accepted: a number above 0")
    order, merged = _heavier_each(response)
    parts, dominated = _parts(response, order)
    merged += dominated
    ladder = tuple(variant for variant, _, _ in parts)
    borders = []
    for (m, _, stop), (n, _, _) in pairwise(parts):
        x = _crossing(response, m, n, stop)
        names = response.variants[m], response.variants[n]
        borders.append(Border(*names, 1 / x, response.balance_at(m, x), (1 + hysteresis) * response.balance_at(n, x)))
    rule = ThresholdRule(
        ladder,
        tuple(_in_units(math.floor(b.t_min * RHO_UNIT)) for b in borders),
        tuple(_in_units(math.ceil(b.t_max * RHO_UNIT)) for b in borders),
        slice_cycles,
    )
    return Thresholds(rule, tuple(borders), tuple(merged), oscillations(rule, response))


def _in_units(threshold: int) -> int:
    return min(max(1, threshold), MAX_THRESHOLD)


def repeat_pair(response: Response, costs: Sequence[tuple[float, ...]], t_min: float, t_max: float, slice_cycles: int = 0) -> Thresholds:
    """State machine with one pair of thresholds set by hand.  costs[v]: cost of the level for which variant v was made, as in a table.

    Raises `BadInputError` unless 0 < t_min < t_max, and both are in the range of 1/65536.
    """
    low, high = pair_in_units(t_min, t_max)
    ladder = tuple(sorted(range(len(costs)), key=lambda v: costs[v]))
    borders = len(ladder) - 1
    rule = ThresholdRule(ladder, (low,) * borders, (high,) * borders, slice_cycles)
    return Thresholds(rule, (), (), oscillations(rule, response))


def pair_in_units(t_min: float, t_max: float) -> tuple[int, int]:
    """Two thresholds in 1/65536.  Raises `BadInputError` as `repeat_pair`."""
    low, high = (round(t * RHO_UNIT) if math.isfinite(t) else 0 for t in (t_min, t_max))
    if not 0 < low < high <= MAX_THRESHOLD:
        message = f"thresholds {t_min} and {t_max}; accepted: 0 < t_min < t_max"
        raise BadInputError(f"{message}, or a switch is undone at once; in steps of 1/{RHO_UNIT}, below {(MAX_THRESHOLD + 1) // RHO_UNIT}")
    return low, high


def oscillations(rule: ThresholdRule, response: Response) -> tuple[Oscillation, ...]:
    """Shares of the grid at which two neighbours switch to each other.  With steps of one position, all other shares settle."""
    cases = []
    for k, share in enumerate(response.grid):
        for position, (m, n) in enumerate(pairwise(rule.ladder)):
            low, high = float(response.balance[m, k]), float(response.balance[n, k])
            if _direction(rule, position, low) > 0 and _direction(rule, position + 1, high) < 0:
                cases.append(Oscillation(share, response.variants[m], response.variants[n], low, high))
    return tuple(cases)


def _direction(rule: ThresholdRule, position: int, balance: float) -> int:
    """Direction of the rule at a rho; it ignores differences below 1/65536, since thresholds are integers of that unit."""
    return rule.direction(position, math.floor(balance * RHO_UNIT), RHO_UNIT)


def _log_cycles(response: Response) -> Floats:
    return np.log(np.maximum(response.cycles, 1))


def _heavier_each(response: Response) -> tuple[list[int], list[Replacement]]:
    """Variants by rho, each heavier than the previous one at every share; of two without such an order, the one faster on average stays."""
    speed = _log_cycles(response).mean(axis=1)
    ladder: list[int] = []
    merged: list[Replacement] = []
    for v in sorted(range(len(response.variants)), key=lambda v: (float(np.log(response.balance[v] + 1e-9).mean()), v)):
        while ladder and not (response.balance[v] > response.balance[ladder[-1]]).all():
            worse, better = (ladder.pop(), v) if speed[v] < speed[ladder[-1]] else (v, ladder[-1])
            merged.append(
                Replacement(response.variants[worse], response.variants[better], "not heavier at every share, and slower on the whole")
            )
            if better != v:
                break
        else:
            ladder.append(v)
    return ladder, merged


def _parts(response: Response, order: list[int]) -> tuple[list[tuple[int, int, int]], list[Replacement]]:
    """(variant, start, stop): the grid in consecutive parts, lighter variants at lighter load, with the least mean log cycles.

    A variant without a part is nowhere worth a switch: it is merged.  (Shortest path over [variant, point of the grid].)
    """
    cost = _log_cycles(response)[order]
    remaining_cost = np.zeros((len(order) + 1, cost.shape[1] + 1))
    remaining_cost[len(order), :-1] = np.inf
    for v in reversed(range(len(order))):
        for k in reversed(range(cost.shape[1])):
            remaining_cost[v, k] = min(cost[v, k] + remaining_cost[v, k + 1], remaining_cost[v + 1, k])
    parts: list[tuple[int, int, int]] = []
    unused: list[int] = []
    k = 0
    for v, variant in enumerate(order):
        start = k
        while k < cost.shape[1] and cost[v, k] + remaining_cost[v, k + 1] <= remaining_cost[v + 1, k]:
            k += 1
        if k > start:
            parts.append((variant, start, k))
        else:
            unused.append(variant)
    merged = []
    for variant in unused:
        # the neighbour on the ladder: the last one before it, or the first one
        preceding = [part[0] for part in parts if order.index(part[0]) < order.index(variant)]
        into = preceding[-1] if preceding else parts[0][0]
        merged.append(
            Replacement(response.variants[variant], response.variants[into], "at no share of the grid faster than its neighbours")
        )
    return parts, merged


def _crossing(response: Response, lighter: int, heavier: int, stop: int) -> float:
    """Slowness between points stop - 1 and stop at which the lighter and the heavier variant take equally long."""
    x = response.slowness[stop - 1 : stop + 1]
    gap = (
        response.cycles[heavier, stop - 1 : stop + 1] - response.cycles[lighter, stop - 1 : stop + 1]
    )  # >= 0 where m is right, < 0 where n is
    if gap[0] <= gap[1]:
        return float(x[1])
    return float(x[0] + (x[1] - x[0]) * min(1.0, max(0.0, gap[0] / (gap[0] - gap[1]))))
