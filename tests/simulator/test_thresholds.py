"""Thresholds chosen from the response: hand-computed borders, merging, and no oscillation whatever the variants are."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.controller import Observation, ThresholdRule
from simulator.npu.controller_table import RHO_UNIT
from simulator.npu.errors import BadInputError
from simulator.npu.level import SHARE_UNIT
from simulator.response import Response
from simulator.thresholds import choose_thresholds, oscillations, repeat_pair

GRID = tuple(np.geomspace(SHARE_UNIT, SHARE_UNIT // 8, 13).round().astype(int).tolist())


def respond(*variants: tuple[float, float], names: str = "abcdefgh", grid: tuple[int, ...] = GRID) -> Response:
    """Variants that compute (first) and move (second) for so many cycles at full bandwidth, one behind the other."""
    x = SHARE_UNIT / np.array(grid)
    compute, moved = (np.array(column)[:, None] for column in zip(*variants, strict=True))
    return Response(tuple(names[: len(variants)]), grid, compute + moved * x, compute / (moved * x), moved * x / (32.0 * moved))


def test_a_border_on_paper() -> None:
    # 10 + 10 x and 20 + 5 x cross at x = 2, share 0.5; rho there: 10 / 20 and 20 / 10
    chosen = choose_thresholds(respond((10, 10), (20, 5)), hysteresis=0.1)
    (border,) = chosen.borders
    assert (border.lighter, border.heavier) == ("a", "b")
    assert border.share == pytest.approx(0.5, rel=1e-4)
    assert border.t_min == pytest.approx(0.5, rel=1e-2)  # rho between points of the grid is interpolated
    assert border.t_max == pytest.approx(2.2, rel=1e-2)
    assert chosen.rule == ThresholdRule((0, 1), (math.floor(border.t_min * 65536),), (math.ceil(border.t_max * 65536),))
    assert chosen.merged == chosen.oscillations == ()


def test_the_ladder_is_by_rho_not_by_order() -> None:
    chosen = choose_thresholds(respond((30, 2), (10, 10), (18, 5)))
    assert chosen.rule.ladder == (1, 2, 0)
    # 10 + 10 x = 18 + 5 x at 1.6, 18 + 5 x = 30 + 2 x at 4
    assert [border.share for border in chosen.borders] == pytest.approx([1 / 1.6, 1 / 4], rel=1e-3)


def test_a_dominated_variant_is_merged() -> None:
    # b is heavier than a and lighter than c, but never the fastest
    chosen = choose_thresholds(respond((10, 10), (40, 9), (20, 2)))
    assert chosen.rule.ladder == (0, 2)
    (merged,) = chosen.merged
    assert (merged.variant, merged.into) == ("b", "a")
    assert "at no share" in merged.why


def test_never_fastest_light_variant_merges_into_the_next() -> None:
    chosen = choose_thresholds(respond((12, 10), (13, 5)))
    assert chosen.rule.ladder == (1,)
    assert [(m.variant, m.into) for m in chosen.merged] == [("a", "b")]
    assert chosen.borders == ()


def test_faster_one_of_equally_heavy_variants_stays() -> None:
    same = choose_thresholds(respond((10, 10), (11, 11), (30, 2)))
    assert same.rule.ladder == (0, 2)
    assert [(m.variant, m.into) for m in same.merged] == [("b", "a")]
    turned = choose_thresholds(respond((11, 11), (10, 10), (30, 2)))
    assert turned.rule.ladder == (1, 2)
    assert [(m.variant, m.into) for m in turned.merged] == [("a", "b")]


def test_rho_that_crosses_is_not_heavier() -> None:
    a = respond((10, 10), (20, 5))
    balance = a.balance.copy()
    balance[1, -1] = balance[0, -1]  # at the heaviest load they cannot be told apart
    chosen = choose_thresholds(Response(a.variants, a.grid, a.cycles, balance, a.pace))
    assert len(chosen.rule.ladder) == 1
    assert "not heavier" in chosen.merged[0].why


def test_one_variant_needs_no_thresholds() -> None:
    assert choose_thresholds(respond((10, 10))).rule == ThresholdRule((0,), (), ())


def settle(rule: ThresholdRule, response: Response, k: int, position: int) -> tuple[int, int]:
    """Where the rule is after many inferences at point k of the grid, and how often it moved."""
    state, moves = rule.start(), 0
    state = type(state)(rule.ladder[position], position)
    for i in range(20):
        balance = response.balance[state.variant, k]
        after = rule.step(state, Observation(state.variant, i, i + 1, round(balance * 1e9), 10**9, 32))
        moves += after.variant != state.variant
        state = after
    return state.position, moves


costs = st.tuples(st.integers(1, 1000), st.integers(1, 1000))


@given(st.lists(costs, min_size=1, max_size=5), st.floats(0.001, 1.0))
def test_chosen_thresholds_settle_at_every_share(variants: list[tuple[int, int]], hysteresis: float) -> None:
    response = respond(*variants)
    chosen = choose_thresholds(response, hysteresis)
    rule = chosen.rule
    assert chosen.oscillations == ()
    assert {m.variant for m in chosen.merged} | {response.variants[v] for v in rule.ladder} == set(response.variants)
    best = response.cycles[list(rule.ladder)]
    for k in range(len(response.grid)):
        for position in range(len(rule.ladder)):
            _, moves = settle(rule, response, k, position)
            assert moves < len(rule.ladder)
        # from the lightest variant on there is no hysteresis: it arrives at the fastest one
        position, _ = settle(rule, response, k, 0)
        assert best[position, k] <= best[:, k].min() * (1 + 1e-2)


def test_one_pair_for_all_borders_names_its_oscillation() -> None:
    # rho of b is four times that of a
    response = respond((10, 10), (20, 5))
    found = repeat_pair(response, ((1,), (2,)), 0.6, 1.5).oscillations
    x = response.slowness
    expected = [share for share, slow in zip(GRID, x, strict=True) if 1 / slow < 0.6 and 4 / slow >= 1.5]
    assert [o.share_units for o in found] == expected
    assert len(expected) >= 3
    assert str(found[0]).startswith(f"oscillates at a share of {expected[0] / SHARE_UNIT:.3f}: a (rho")
    # the state machine agrees, at every share
    rule = repeat_pair(response, ((1,), (2,)), 0.6, 1.5).rule
    for k, share in enumerate(GRID):
        assert (settle(rule, response, k, 0)[1] > 1) == (share in expected)


def test_pair_with_ratio_of_rho_does_not_oscillate() -> None:
    response = respond((10, 10), (20, 5))
    assert repeat_pair(response, ((1,), (2,)), 0.6, 2.4).oscillations == ()
    assert len(repeat_pair(response, ((1,), (2,)), 0.6, 2.3).oscillations) > 0


def test_ladder_of_one_pair_follows_level_costs() -> None:
    rule = repeat_pair(respond((1, 9), (2, 8), (3, 7)), ((90,), (10, 20), (10, 30)), 0.5, 9.0, slice_cycles=77).rule
    assert rule == ThresholdRule((1, 2, 0), (32768, 32768), (9 * 65536, 9 * 65536), 77)


def test_oscillation_needs_both() -> None:
    response = respond((10, 10), (20, 5))
    assert oscillations(ThresholdRule((0, 1), (65,), (65,)), response) == ()
    assert len(oscillations(ThresholdRule((0, 1), (100 * RHO_UNIT,), (65,)), response)) == len(GRID)


@pytest.mark.parametrize("hysteresis", [0.0, -0.1, float("nan"), float("inf")])
def test_hysteresis_is_above_zero(hysteresis: float) -> None:
    with pytest.raises(BadInputError, match="hysteresis"):
        choose_thresholds(respond((10, 10)), hysteresis)


@pytest.mark.parametrize(
    ("t_min", "t_max"),
    [(1.0, 1.0), (2.0, 1.0), (0.0, 1.0), (1e-6, 1.0), (1.0, 1 + 1e-6), (1.0, 65536.0), (float("nan"), 1.0), (1.0, float("inf"))],
)
def test_a_pair_in_the_wrong_order(t_min: float, t_max: float) -> None:
    with pytest.raises(BadInputError, match="accepted: 0 < t_min < t_max"):
        repeat_pair(respond((10, 10)), ((1,),), t_min, t_max)
