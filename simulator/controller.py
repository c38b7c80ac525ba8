"""The choice of a variant at run time: pure state machines, one decision at the end of each inference.

A rule is a frozen value.  `start()` gives its first state, `step(state, seen)` the next one from what the hardware counters say of the
inference that just ended; `state.variant` is the one to run next.  Nothing else is known to a rule: not the time to come, not the share,
not the cycles that another variant would have taken.

* `StaticRule`: always the same variant.
* `ThresholdRule`: the balance rho of the last inference against two thresholds per border (chosen in `thresholds.py`, or by hand).  It
  computes in integers only, as `simulator/bundle/controller.c` does, the same rule in C.
* `EstimatorRule`: bandwidth from bytes and DMA-busy cycles, then the variant with the least predicted time.
* `Oracle`: not a rule.  The runtime shows it the future; it is what rules are measured against.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

from simulator.npu.controller_table import COUNTER_BITS, RHO_UNIT, check_thresholds
from simulator.npu.errors import BadInputError
from simulator.response import Response


@dataclass(frozen=True)
class Observation:
    """Counters at the end of an inference: it ran `variant` in cycles [start, end)."""

    variant: int
    start: int
    end: int
    compute_cycles: int
    load_store_cycles: int
    ddr_bytes: int


class HasVariant(Protocol):
    """A rule's state: `variant` is to run next."""

    @property
    def variant(self) -> int: ...


S = TypeVar("S", bound=HasVariant)


class SwitchingRule(Protocol[S]):
    """What the runtime asks for a decision."""

    def start(self) -> S:
        """The state before the first inference."""
        ...

    def step(self, state: S, seen: Observation) -> S:
        """The state after an inference that ran `state.variant`."""
        ...


@dataclass(frozen=True)
class Oracle:
    """Picks, for every inference, the variant that will be done first, the cost of switching included; ties stay."""


# static --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class StaticState:
    variant: int


@dataclass(frozen=True)
class StaticRule:
    """One variant for ever."""

    variant: int

    def start(self) -> StaticState:
        return StaticState(self.variant)

    def step(self, state: StaticState, seen: Observation) -> StaticState:
        return state


# threshold -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ThresholdState:
    """position: on the ladder.  leaning: -1, 0 or 1, where every inference end since cycle `since` wanted to go."""

    variant: int
    position: int = 0
    leaning: int = 0
    since: int = 0


@dataclass(frozen=True)
class ThresholdRule:
    """rho < t_min[position] -> one heavier; rho >= t_max[position - 1] -> one lighter; else stay.

    ladder: variants from the one for light load to the one for heavy load.  t_min, t_max: in 1/65536, one per border, t_min[m] read at
    position m, t_max[m] at position m + 1.  The condition must hold at every inference end of a time slice, which begins with the first
    such inference: after `slice_cycles`, and after one inference at least.  A switch begins a new slice.

    Raises `BadInputError` for thresholds that no number of inferences would make sense of.
    """

    ladder: tuple[int, ...]
    t_min: tuple[int, ...]
    t_max: tuple[int, ...]
    slice_cycles: int = 0

    def __post_init__(self) -> None:
        try:
            check_thresholds(self.ladder, self.t_min, self.t_max, self.slice_cycles)
        except ValueError as error:
            raise BadInputError(str(error)) from None

    def start(self) -> ThresholdState:
        return ThresholdState(self.ladder[0])

    def direction(self, position: int, compute_cycles: int, load_store_cycles: int) -> int:
        """1 heavier, -1 lighter, 0 stay: what one inference end wants.

        Compared by cross-multiplication: without a load or a store rho is above every threshold.  Counters beyond that many bits lose those
        below, in both alike, so that C does it in 64 bits.
        """
        shift = max(0, (compute_cycles | load_store_cycles).bit_length() - COUNTER_BITS)
        compute, moving = (compute_cycles >> shift) * RHO_UNIT, load_store_cycles >> shift
        if position < len(self.t_min) and compute < self.t_min[position] * moving:
            return 1
        if position > 0 and compute >= self.t_max[position - 1] * moving:
            return -1
        return 0

    def step(self, state: ThresholdState, seen: Observation) -> ThresholdState:
        wish = self.direction(state.position, seen.compute_cycles, seen.load_store_cycles)
        if wish == 0:
            return replace(state, leaning=0)
        since = state.since if wish == state.leaning else seen.start
        if seen.end - since < self.slice_cycles:
            return replace(state, leaning=wish, since=since)
        position = state.position + wish
        return ThresholdState(self.ladder[position], position)


# estimator -----------------------------------------------------------------------------------------------------------


_TRUST = 10  # inferences of a variant that weigh as much as the belief that predictions are right


@dataclass(frozen=True)
class EstimatorState:
    """variant: to run next.  The rest is the account of two candidates for that: the adaptive choice and the best static variant.

    wanted: the adaptive choice.  held: inferences since it last changed.  slowness: estimate of 1 / share, None before the first
    inference that moved data.  refuge: the static variant that runs instead of the adaptive choice, or None.
    predicted, ran, taken: per variant, the cycles that all inferences would have taken with it, as predicted from the bandwidth that each
    of them saw; the part of them that did run with it; and what that part really took.  adaptive_cycles: what following the adaptive choice
    would have taken.
    """

    variant: int
    wanted: int
    predicted: tuple[float, ...]
    ran: tuple[float, ...]
    taken: tuple[float, ...]
    adaptive_cycles: float = 0.0
    held: int = 0
    slowness: float | None = None
    refuge: int | None = None


@dataclass(frozen=True)
class EstimatorRule:
    """The variant with the least predicted time at the bandwidth of late, unless static did better on the whole.

    Cycles per byte of the last inference give, by the response of the variant that ran, the slowness 1 / share, which is averaged with
    weight `weight` for the newest: an exponentially weighted average of cycles per byte, in a unit in which all variants agree.  The choice
    changes where another variant is predicted to be faster by more than `margin` (a fraction) and the present one was held for `dwell`
    inferences.

    Loss budget: the adaptive choice is charged what it took, every static variant what it would have taken: predicted from the bandwidth
    that was seen, times what the variant took over what was predicted whenever it ran.  (A share that changes within inferences makes them
    longer than a constant one of that mean, and some variants more than others.)  While the adaptive account exceeds the best static one
    by more than `loss_budget` of it plus `grace` inferences, that static variant runs; the adaptive account goes on, by prediction, and
    takes over again when its loss is half of what is allowed.  Where static variants are close, the best one so far may change with every
    inference, and to follow it would be to lose each time (as follow-the-leader does against an adversary): it is left only when it is
    behind by as much as is allowed.
    """

    response: Response
    switch_cycles: int = 0
    weight: float = 1.0
    margin: float = 0.005
    dwell: int = 1
    loss_budget: float = 0.005
    grace: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.weight <= 1:
            raise BadInputError(f"estimator weight {self.weight}; accepted: above 0, up to 1")
        for name in ("switch_cycles", "margin", "dwell", "loss_budget", "grace"):
            if not getattr(self, name) >= 0:
                raise BadInputError(f"estimator {name} {getattr(self, name)}; accepted: 0 or more")

    def start(self) -> EstimatorState:
        first, nothing = self.response.steadiest, (0.0,) * len(self.response.variants)
        return EstimatorState(first, first, nothing, nothing, nothing)

    def step(self, state: EstimatorState, seen: Observation) -> EstimatorState:
        if not seen.ddr_bytes:  # it says nothing about the port
            return state
        now = self.response.slowness_of(seen.variant, seen.load_store_cycles / seen.ddr_bytes)
        cycles = self.response.cycles_at(now)
        predicted = tuple(a + b for a, b in zip(state.predicted, cycles, strict=True))
        ran = _added(state.ran, seen.variant, cycles[seen.variant])
        taken = _added(state.taken, seen.variant, seen.end - seen.start)
        # what a variant took over what was predicted, whenever it ran
        factor = tuple((t + _TRUST * c) / (r + _TRUST * c) if c else 1.0 for t, r, c in zip(taken, ran, cycles, strict=True))
        static = tuple(p * f for p, f in zip(predicted, factor, strict=True))
        mine = seen.end - seen.start if seen.variant == state.wanted else cycles[state.wanted] * factor[state.wanted]
        slowness = now if state.slowness is None else self.weight * now + (1 - self.weight) * state.slowness
        wanted, held = self._choose(state.wanted, state.held + 1, slowness)
        adaptive = state.adaptive_cycles + mine + (self.switch_cycles if wanted != state.wanted else 0)
        best = min(range(len(static)), key=lambda v: static[v])
        allowed = self.loss_budget * static[best] + self.grace * cycles[best]
        loss = adaptive - static[best]
        refuge = state.refuge
        if loss <= (allowed if refuge is None else allowed / 2):
            refuge = None
        elif refuge is None or static[refuge] - static[best] > allowed:
            refuge = best
        return EstimatorState(wanted if refuge is None else refuge, wanted, predicted, ran, taken, adaptive, held, slowness, refuge)

    def _choose(self, current: int, held: int, slowness: float) -> tuple[int, int]:
        """The adaptive choice, and since how many inferences."""
        predicted = self.response.cycles_at(slowness)
        best = min(range(len(predicted)), key=lambda v: predicted[v])
        if held >= self.dwell and predicted[best] < (1 - self.margin) * predicted[current]:
            return best, 0
        return current, held


def _added(values: tuple[float, ...], at: int, value: float) -> tuple[float, ...]:
    return (*values[:at], values[at] + value, *values[at + 1 :])
