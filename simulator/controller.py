"""Controllers that choose a variant at run time: pure state machines, one decision at the end of each inference.

A rule is a frozen value.  `start()` gives its first state, `step(state, seen)` the next one, from the hardware counters of the inference
that just ended; `state.variant` is the variant to run next.  A rule knows nothing else: not the future, not the share, and not the
cycles that another variant would have taken.

* `StaticRule`: always the same variant.
* `ThresholdRule`: the balance rho of the last inference against two thresholds per border (chosen in `thresholds.py`, or by hand).  It
  computes in integers only, as `simulator/bundle/controller.c` does, the same rule in C.
* `EstimatorRule`: bandwidth from bytes and DMA-busy cycles, then the variant with the least predicted time.
* `Oracle`: not a rule.  The runtime shows it the future; rules are compared with it.
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
    """Interface of a rule for the runtime."""

    def start(self) -> S:
        """The state before the first inference."""
        ...

    def step(self, state: S, observation: Observation) -> S:
        """The state after an inference that ran `state.variant`."""
        ...


@dataclass(frozen=True)
class Oracle:
    """Marker for the optimal choice: the variant that finishes each inference first, switching included; ties keep the present one."""


# static --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class StaticState:
    variant: int


@dataclass(frozen=True)
class StaticRule:
    """A rule that always chooses one variant."""

    variant: int

    def start(self) -> StaticState:
        return StaticState(self.variant)

    def step(self, state: StaticState, observation: Observation) -> StaticState:
        return state


# threshold -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ThresholdState:
    """position: index on the ladder.  leaning: -1, 0 or 1, the direction of every inference end since cycle `since`."""

    variant: int
    position: int = 0
    leaning: int = 0
    since: int = 0


@dataclass(frozen=True)
class ThresholdRule:
    """rho < t_min[position]: one variant heavier; rho >= t_max[position - 1]: one lighter; else no switch.

    ladder: variants from light load to heavy load.  t_min, t_max: in 1/65536, one per border; at position m the rule reads t_min[m], at
    position m + 1 t_max[m].  The condition must hold at every inference end of a time slice.  A slice ends with the first inference
    end after `slice_cycles`, and has at least one inference.  A switch begins a new slice.

    Raises `BadInputError` for inconsistent thresholds.
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
        """The direction after one inference: 1 heavier, -1 lighter, 0 stay.

        Compared by cross-multiplication: without a load or a store rho is above every threshold.  Counters beyond COUNTER_BITS lose their
        low bits, both alike, so that C does it in 64 bits.
        """
        shift = max(0, (compute_cycles | load_store_cycles).bit_length() - COUNTER_BITS)
        compute, moving = (compute_cycles >> shift) * RHO_UNIT, load_store_cycles >> shift
        if position < len(self.t_min) and compute < self.t_min[position] * moving:
            return 1
        if position > 0 and compute >= self.t_max[position - 1] * moving:
            return -1
        return 0

    def step(self, state: ThresholdState, observation: Observation) -> ThresholdState:
        direction = self.direction(state.position, observation.compute_cycles, observation.load_store_cycles)
        if direction == 0:
            return replace(state, leaning=0)
        since = state.since if direction == state.leaning else observation.start
        if observation.end - since < self.slice_cycles:
            return replace(state, leaning=direction, since=since)
        position = state.position + direction
        return ThresholdState(self.ladder[position], position)


# estimator -----------------------------------------------------------------------------------------------------------


_TRUST = 10  # inferences of a variant that weigh as much as the belief that predictions are right


@dataclass(frozen=True)
class EstimatorState:
    """State.  variant: to run next.  The other fields compare two candidates for it: the adaptive choice and the best static variant.

    wanted: adaptive choice.  held: inferences since it last changed.  slowness: estimate of 1 / share; None before the first
    inference that moved data.  refuge: static variant that runs instead of the adaptive choice, or None.
    predicted, ran, taken: per variant: predicted cycles of all inferences, at the bandwidth of each; the part for inferences that it
    really ran; the actual cycles of these variants.  adaptive_cycles: cycles of following the adaptive choice.
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
    """The variant with the least predicted time at the recent bandwidth, unless a static variant was better in total.

    Cycles per byte of the last inference give, by the response of its variant, the slowness 1 / share.  It is averaged with weight `weight`
    for the newest value: an exponentially weighted average of cycles per byte, in a unit common to all variants.  The choice
    changes where another variant is predicted to be faster by more than `margin` (a fraction) and the present one was held for `dwell`
    inferences.

    Loss budget: the adaptive account adds actual cycles, each static account the predicted cycles of its variant at the observed bandwidth,
    times the ratio of actual to predicted cycles whenever that variant ran.  (A share that changes within inferences makes them
    longer than a constant one of that mean, and some variants more than others.)  While the adaptive account exceeds the best static one
    by more than `loss_budget` of it plus `grace` inferences, that static variant runs; the adaptive account goes on, by prediction, and
    takes over again when its loss is half of the budget.  Where static variants are close, the best one so far may change with every
    inference, and following it would lose each time (as follow-the-leader does against an adversary): the refuge is left only when it is
    behind by the whole budget.
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

    def step(self, state: EstimatorState, observation: Observation) -> EstimatorState:
        if not observation.ddr_bytes:  # without DDR traffic nothing is known about the port
            return state
        now = self.response.slowness_of(observation.variant, observation.load_store_cycles / observation.ddr_bytes)
        cycles = self.response.cycles_at(now)
        predicted = tuple(a + b for a, b in zip(state.predicted, cycles, strict=True))
        ran = _added(state.ran, observation.variant, cycles[observation.variant])
        actual_cycles = _added(state.taken, observation.variant, observation.end - observation.start)
        # ratio of actual to predicted cycles of a variant, over the inferences that it ran
        factor = tuple((t + _TRUST * c) / (r + _TRUST * c) if c else 1.0 for t, r, c in zip(actual_cycles, ran, cycles, strict=True))
        static = tuple(p * f for p, f in zip(predicted, factor, strict=True))
        wanted_cycles = (
            observation.end - observation.start if observation.variant == state.wanted else cycles[state.wanted] * factor[state.wanted]
        )
        slowness = now if state.slowness is None else self.weight * now + (1 - self.weight) * state.slowness
        wanted, held = self._choose(state.wanted, state.held + 1, slowness)
        adaptive = state.adaptive_cycles + wanted_cycles + (self.switch_cycles if wanted != state.wanted else 0)
        best = min(range(len(static)), key=lambda v: static[v])
        allowed = self.loss_budget * static[best] + self.grace * cycles[best]
        loss = adaptive - static[best]
        refuge = state.refuge
        if loss <= (allowed if refuge is None else allowed / 2):
            refuge = None
        elif refuge is None or static[refuge] - static[best] > allowed:
            refuge = best
        return EstimatorState(wanted if refuge is None else refuge, wanted, predicted, ran, actual_cycles, adaptive, held, slowness, refuge)

    def _choose(self, current: int, held: int, slowness: float) -> tuple[int, int]:
        """The adaptive choice, and the inferences since it last changed."""
        predicted = self.response.cycles_at(slowness)
        best = min(range(len(predicted)), key=lambda v: predicted[v])
        if held >= self.dwell and predicted[best] < (1 - self.margin) * predicted[current]:
            return best, 0
        return current, held


def _added(values: tuple[float, ...], index: int, value: float) -> tuple[float, ...]:
    return (*values[:index], values[index] + value, *values[index + 1 :])
