"""The rules as state machines: every transition, by counters made up on paper."""

from __future__ import annotations

import numpy as np
import pytest

from simulator.controller import EstimatorRule, EstimatorState, Observation, StaticRule, ThresholdRule, ThresholdState
from simulator.npu.controller_table import MAX_THRESHOLD, RHO_UNIT
from simulator.npu.errors import BadInputError
from simulator.npu.level import SHARE_UNIT
from simulator.response import Response


def seen(balance: float, start: int = 0, cycles: int = 100, variant: int = 0) -> Observation:
    """An inference with this rho."""
    return Observation(variant, start, start + cycles, round(balance * 1000), 1000, 32)


def target_graphs(*rho: float) -> tuple[int, ...]:
    """Thresholds as a rule has them; each of these is a whole number of 1/65536."""
    found = tuple(round(t * RHO_UNIT) for t in rho)
    assert [t / RHO_UNIT for t in found] == list(rho)
    return found


# threshold: three variants, both borders with their own pair ----------------------------------------------------------

THREE = ThresholdRule((0, 1, 2), target_graphs(1.0, 0.5), target_graphs(2.0, 0.75))


@pytest.mark.parametrize(
    ("position", "balance", "then"),
    [
        (0, 0.99, 1),  # lightest: heavier below T_min
        (0, 1.0, 0),  # at T_min it stays
        (0, 99.0, 0),  # nothing lighter
        (1, 0.49, 2),
        (1, 0.5, 1),
        (1, 1.99, 1),
        (1, 2.0, 0),  # lighter from T_max on
        (2, 0.01, 2),  # nothing heavier
        (2, 0.749, 2),
        (2, 0.75, 1),
    ],
)
def test_every_transition_of_the_three_states(position: int, balance: float, then: int) -> None:
    after = THREE.step(ThresholdState(position, position), seen(balance))
    assert (after.variant, after.position, after.leaning) == (then, then, 0)


def test_no_load_at_all_is_the_lightest_load() -> None:
    for compute in (50, 0):
        idle = Observation(1, 0, 100, compute, 0, 0)
        assert THREE.step(ThresholdState(1, 1), idle).variant == 0
        assert THREE.step(ThresholdState(0, 0), idle).variant == 0


@pytest.mark.parametrize("bits", [0, 20, 21, 22, 23, 40])
def test_counters_of_any_length_decide_as_short_ones(bits: int) -> None:
    """Beyond 32 bits the ones below are lost in both counters: to 32 bits nothing is, and from there on three in 2^30 are told apart."""
    rule = ThresholdRule((0, 1), target_graphs(1.5), target_graphs(1.5))
    for compute, then in ((1535, 1), (1536, 0), (1537, 0)):
        assert rule.direction(0, compute << bits, 1024 << bits) == then
        assert rule.direction(1, compute << bits, 1024 << bits) == then - 1
    near = 3 << 29
    assert rule.direction(0, (near - 1) << bits, 1 << 30 << bits) == 1
    assert rule.direction(0, near << bits, 1 << 30 << bits) == 0


def test_the_largest_values_fit_64_bits() -> None:
    rule = ThresholdRule((0, 1), (MAX_THRESHOLD,), (MAX_THRESHOLD,))
    most = (1 << 32) - 1
    assert MAX_THRESHOLD * most < 1 << 64
    assert rule.direction(0, most, 1 << 40) == 1
    assert rule.direction(1, 65536, 1) == -1  # 65536 - 1/65536 is the largest threshold
    assert rule.direction(1, 65535, 1) == 0
    assert rule.direction(1, most, 65536) == -1  # rho is the threshold itself
    assert rule.direction(1, most - 1, 65536) == 0


def test_the_ladder_need_not_be_in_order() -> None:
    rule = ThresholdRule((2, 0), target_graphs(1.0), target_graphs(2.0))
    assert rule.start() == ThresholdState(2)
    assert rule.step(rule.start(), seen(0.5)) == ThresholdState(0, 1)
    assert rule.step(ThresholdState(0, 1), seen(2.5)) == ThresholdState(2, 0)


SLICED = ThresholdRule((0, 1, 2), target_graphs(1.0, 0.5), target_graphs(2.0, 0.75), slice_cycles=250)


def test_the_condition_must_hold_for_a_whole_slice() -> None:
    state = SLICED.start()
    state = SLICED.step(state, seen(0.9, start=1000))  # 100 of 250 cycles
    assert state == ThresholdState(0, 0, leaning=1, since=1000)
    state = SLICED.step(state, seen(0.3, start=1100))
    assert state == ThresholdState(0, 0, leaning=1, since=1000)
    state = SLICED.step(state, seen(0.9, start=1200))  # 300
    assert state == ThresholdState(1, 1)  # one level only, however low rho was


def test_one_failing_inference_end_begins_a_new_slice() -> None:
    state = SLICED.step(SLICED.start(), seen(0.9, start=0, cycles=200))
    state = SLICED.step(state, seen(1.5, start=200))
    assert state.leaning == 0
    state = SLICED.step(state, seen(0.9, start=300, cycles=249))
    assert state == ThresholdState(0, 0, leaning=1, since=300)
    assert SLICED.step(state, seen(0.9, start=549, cycles=1)) == ThresholdState(1, 1)


def test_the_other_direction_begins_a_new_slice() -> None:
    state = SLICED.step(ThresholdState(1, 1), seen(0.4, start=0, cycles=200))
    assert state == ThresholdState(1, 1, leaning=1, since=0)
    state = SLICED.step(state, seen(3.0, start=200))
    assert state == ThresholdState(1, 1, leaning=-1, since=200)
    assert SLICED.step(state, seen(3.0, start=300, cycles=150)) == ThresholdState(0, 0)


def test_a_switch_begins_a_new_slice() -> None:
    state = SLICED.step(SLICED.start(), seen(0.1, start=0, cycles=300))
    assert state == ThresholdState(1, 1)
    state = SLICED.step(state, seen(0.1, start=300))
    assert state == ThresholdState(1, 1, leaning=1, since=300)


def test_one_inference_longer_than_the_slice_is_enough() -> None:
    assert SLICED.step(SLICED.start(), seen(0.9, cycles=250)).variant == 1
    assert SLICED.step(SLICED.start(), seen(0.9, cycles=249)).variant == 0


@pytest.mark.parametrize(
    ("ladder", "t_min", "t_max", "slice_cycles", "found"),
    [
        ((), (), (), 0, "ladder"),
        ((0, 0), (1,), (2,), 0, "each once"),
        ((0, 1), (), (), 0, "one of each per border"),
        ((0, 1), (1,), (2, 3), 0, "one of each per border"),
        ((0, 1), (0,), (2,), 0, "threshold 0; accepted: 1 to 4294967295, in 1/65536"),
        ((0, 1), (1,), (1 << 32,), 0, "threshold 4294967296"),
        ((0, 1), (1,), (2,), -1, "time slice of -1"),
        ((0, 1), (1,), (2,), 1 << 63, "time slice of 9223372036854775808"),
    ],
)
def test_thresholds_that_make_no_sense(
    ladder: tuple[int, ...], t_min: tuple[int, ...], t_max: tuple[int, ...], slice_cycles: int, found: str
) -> None:
    with pytest.raises(BadInputError, match=found):
        ThresholdRule(ladder, t_min, t_max, slice_cycles)


def test_static_never_moves() -> None:
    rule = StaticRule(2)
    assert rule.step(rule.start(), seen(0.0)).variant == 2


# estimator: variant 0 takes 10 cycles per unit of slowness, variant 1 always 20; each unit is 2 DMA cycles per byte ------

TWO = Response(
    ("light", "heavy"),
    tuple(SHARE_UNIT // n for n in (1, 2, 4, 8)),
    np.array([[10.0, 20.0, 40.0, 80.0], [20.0, 20.0, 20.0, 20.0]]),
    np.ones((2, 4)),
    np.array([[2.0, 4.0, 8.0, 16.0], [2.0, 4.0, 8.0, 16.0]]),
)


def at(slowness: float, variant: int = 0, late: int = 0) -> Observation:
    """An inference at this slowness that took `late` cycles more than is predicted."""
    return Observation(variant, 100, 100 + late + (20 if variant else round(10 * slowness)), 10, round(2000 * slowness), 1000)


def begun(variant: int) -> EstimatorState:
    return EstimatorState(variant, variant, (0.0, 0.0), (0.0, 0.0), (0.0, 0.0))


def estimator(margin: float = 0.0, dwell: int = 0, weight: float = 1.0, loss_budget: float = 10.0, switch_cycles: int = 0) -> EstimatorRule:
    return EstimatorRule(TWO, switch_cycles, weight, margin, dwell, loss_budget, grace=0.0)


def test_the_response_is_read_by_interpolation() -> None:
    assert TWO.cycles_at(3.0) == (30.0, 20.0)
    assert TWO.cycles_at(100.0) == (80.0, 20.0)  # as it is at the end of the grid
    assert TWO.slowness_of(0, 12.0) == 6.0
    assert TWO.slowness_of(0, 1.0) == 1.0
    assert TWO.balance_at(0, 3.0) == 1.0


def test_it_starts_with_the_steadiest_variant() -> None:
    # geometric means: sqrt(20 * 40) and 20
    assert TWO.steadiest == 1
    assert estimator().start() == begun(1)


def test_it_picks_the_least_predicted_time() -> None:
    rule = estimator()
    state = rule.step(rule.start(), at(1, variant=1))
    assert state == EstimatorState(0, 0, (10.0, 20.0), (0.0, 20.0), (0.0, 20.0), 20.0, 0, 1.0)
    state = rule.step(state, at(3))
    assert state == EstimatorState(1, 1, (40.0, 40.0), (30.0, 20.0), (30.0, 20.0), 50.0, 0, 3.0)
    state = rule.step(state, at(3, variant=1))
    assert state == EstimatorState(1, 1, (70.0, 60.0), (30.0, 40.0), (30.0, 40.0), 70.0, 1, 3.0)


def test_an_inference_without_ddr_bytes_says_nothing() -> None:
    rule = estimator()
    assert rule.step(rule.start(), Observation(1, 0, 100, 10, 0, 0)) == rule.start()


@pytest.mark.parametrize(("slowness", "then"), [(2.5, 0), (2.51, 1)])
def test_the_margin(slowness: float, then: int) -> None:
    rule = estimator(margin=0.2)  # 20 < 0.8 * 10 x from x = 2.5 on
    assert rule.step(begun(0), at(slowness)).variant == then


def test_the_dwell() -> None:
    rule = estimator(dwell=3)
    state = begun(0)
    variants = []
    for slowness in (4, 4, 4, 1, 1, 1, 1):
        state = rule.step(state, at(slowness, state.variant))
        variants.append(state.variant)
    assert variants == [0, 0, 1, 1, 1, 0, 0]


def test_the_average_is_of_cycles_per_byte() -> None:
    rule = estimator(weight=0.25)
    state = rule.step(rule.start(), at(1, variant=1))
    assert state.slowness == 1.0  # the first value stands for all before it
    state = rule.step(state, at(5))
    assert state.slowness == 2.0
    assert state.variant == 0  # 20 cycles either way: it stays
    assert rule.step(state, at(3)).slowness == 2.25


def test_a_switch_is_charged() -> None:
    rule = estimator(switch_cycles=7)
    state = rule.step(rule.start(), at(1, variant=1))
    assert state.adaptive_cycles == 27.0
    assert rule.step(state, at(1)).adaptive_cycles == 37.0


def test_fallback_to_best_static_variant_and_return() -> None:
    rule = estimator(loss_budget=0.5)
    state = begun(1)
    history = []
    for slowness in (1, 4, 1, 4, 4, 4, 4, 4, 4):
        state = rule.step(state, at(slowness, state.variant))
        history.append((state.variant, state.wanted, state.adaptive_cycles, state.predicted, state.refuge))
    # one inference late each time: a loss of 10 is above half of 10, then 20, 20, 40 are above a quarter of 40, 60, 80; from then on the
    # loss stays at 40, which is a quarter of 160 in the eighth inference.  The refuge is left when it is behind by more than half: 140 to
    # 100 and 180 to 120 are not, 220 to 140 is.
    assert history == [
        (0, 0, 20.0, (10.0, 20.0), 0),
        (0, 1, 60.0, (50.0, 40.0), 0),
        (0, 0, 80.0, (60.0, 60.0), 0),
        (0, 1, 120.0, (100.0, 80.0), 0),
        (0, 1, 140.0, (140.0, 100.0), 0),
        (0, 1, 160.0, (180.0, 120.0), 0),
        (1, 1, 180.0, (220.0, 140.0), 1),
        (1, 1, 200.0, (260.0, 160.0), None),
        (1, 1, 220.0, (300.0, 180.0), None),
    ]


def test_fallback_lasts_until_half_loss_is_regained() -> None:
    rule = estimator(loss_budget=0.1)
    state = EstimatorState(1, 1, (200.0, 100.0), (0.0, 0.0), (0.0, 0.0), 130.0, 5, 4.0, refuge=1)
    state = rule.step(state, at(1, variant=1))
    # the adaptive choice goes on in the background; 150 - 120 > 0.05 * 120
    assert (state.variant, state.wanted, state.refuge) == (1, 0, 1)
    for count in range(1, 5):
        state = rule.step(state, at(1, variant=1))
        loss = (150 + 10 * count) - (120 + 20 * count)
        assert (state.refuge is not None) == (loss > 0.05 * (120 + 20 * count))
    assert (state.variant, state.refuge) == (0, None)


def test_close_static_variants_have_no_leader_to_follow() -> None:
    """Slownesses at which both take as long on the whole: the leader changes with every inference."""
    rule = EstimatorRule(TWO, loss_budget=0.01)
    state = rule.start()
    variants, leaders = [], []
    for i in range(1000):
        state = rule.step(state, at((3, 1)[i % 2], state.variant))
        variants.append(state.variant)
        leaders.append(int(np.argmin(state.predicted)))
    assert np.count_nonzero(np.diff(leaders)) > 100
    assert np.count_nonzero(np.diff(variants)) < 10


def test_an_adversary_gets_no_more_than_the_budget() -> None:
    rule = EstimatorRule(TWO, loss_budget=0.01)
    state = rule.start()
    spent, static = 0.0, np.zeros(2)
    switches = 0
    for i in range(2000):
        slowness = (1, 8)[i % 2]
        taken = TWO.cycles_at(slowness)
        spent += taken[state.variant]
        static += taken
        after = rule.step(state, at(slowness, state.variant))
        switches += after.variant != state.variant
        state = after
    assert spent <= 1.01 * static.min() + 2 * 80
    assert switches < 10
    # without the budget it would have been wrong every time
    assert state.adaptive_cycles > 2 * static.min()


def test_predictions_are_corrected_by_what_was_taken() -> None:
    rule = estimator()
    # 10 inferences of 20 that took 40, and ten times the belief in 20: a factor of 1.5
    state = begun(1)
    for _ in range(10):
        state = rule.step(state, at(4, variant=1, late=20))
    assert (state.ran, state.taken, state.adaptive_cycles) == ((0.0, 200.0), (0.0, 400.0), 400.0)
    away = EstimatorState(0, 1, state.predicted, state.ran, state.taken, 400.0, 10, 4.0, refuge=0)
    # the adaptive choice, which does not run, is charged 20 * 1.5
    assert rule.step(away, at(4)).adaptive_cycles == 430.0


def test_wrong_model_costs_no_more_than_the_budget() -> None:
    """The heavy variant takes three times what is predicted: by prediction it is the better one at this share, in truth never."""
    rule = EstimatorRule(TWO, loss_budget=0.01)
    state = rule.start()
    ran = []
    for _ in range(300):
        ran.append(state.variant)
        state = rule.step(state, at(4, state.variant, late=40 * state.variant))
    assert state.wanted == 1
    assert sum(ran) < 25
    assert ran[-200:] == [0] * 200


@pytest.mark.parametrize(
    "values", [{"weight": 0.0}, {"weight": 1.5}, {"margin": -0.1}, {"dwell": -1}, {"loss_budget": float("nan")}, {"switch_cycles": -1}]
)
def test_an_estimator_that_makes_no_sense(values: dict[str, float]) -> None:
    with pytest.raises(BadInputError, match=f"estimator {next(iter(values))}"):
        EstimatorRule(TWO, **values)
