"""What ships, once it is timed out of sample: nothing that is clearly slower at its own level than another."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from tuner.measure.robust import Floats, Serves
from tuner.measure.settling import TOLERANCE, Displaced, settled

# 3 conditions, 4 programs, 3 levels
TIMES = arrays(np.float64, (3, 4, 3), elements=st.integers(90, 110).map(float))


def worst(serves: Serves, times: Floats) -> float:
    shipped = {program for program in serves if program is not None}
    return max(
        (
            times[condition, program, level] / times[condition, other, level] - 1
            for level, program in enumerate(serves) if program is not None for other in shipped for condition in range(len(times))
        ),
        default=0.0,
    )  # fmt: skip


@given(TIMES, st.tuples(*[st.integers(0, 3)] * 3), st.integers(0, 3))
def test_what_ships_is_within_the_tolerance(times: Floats, serves: Serves, robust: int) -> None:
    found = settled(serves, robust, times)
    assert worst(found.serves, times) <= TOLERANCE
    changed = [level for level in range(3) if found.serves[level] != serves[level]]
    assert sorted(each.level for each in found.displaced) == changed
    assert set(found.serves) <= {*serves, robust}
    assert len(set(found.serves)) <= len(set(serves))
    assert all(each.program == serves[each.level] for each in found.displaced)
    if changed:
        loss = times[0] / times[0].min(axis=0)
        assert max(loss[program, level] for level, program in enumerate(found.serves)) <= loss[robust].max(), "one program would do"
    if worst(serves, times) <= TOLERANCE:
        assert found == (serves, ())


def test_without_a_set_that_will_do_nothing_changes() -> None:
    """Neither program fits the level at which it is the faster one."""
    times = np.array([[[100.0, math.nan], [math.nan, 100.0]], [[100.0, 200.0], [150.0, 100.0]]])
    assert settled((0, 1), None, times[:1]) == ((0, 1), ())
    times = np.array([[[100.0, math.nan, 104.0], [math.nan, 100.0, 100.0]]])
    assert settled((0, 1, 0), None, times) == ((0, 1, 1), (Displaced(2, 0, 2, 0, 104 / 100 - 1),))


def table(*rows: Sequence[float]) -> Floats:
    """One condition: a row per program, a column per level."""
    return np.array([rows])


def test_a_variant_that_is_slower_than_another_gives_way() -> None:
    described, other = [[100, 104], [120, 100], [105, 101]], [[100, 100], [120, 104], [105, 101]]
    times = np.array([described, other], float)
    assert settled((0, 1), 2, times) == ((0, 2), (Displaced(1, 1, 1, 1, 104 / 100 - 1),))
    assert settled((0, 1), 2, table([100, 101], [120, 104], [105, 101])) == ((0, 1), ())


def test_what_beats_the_robust_program_where_that_would_run_ships_there() -> None:
    """Program 1 is slower at its own level than the robust one, and that than program 0: which serves both levels."""
    times = table([100, 100], [120, 106], [102, 105])
    assert settled((0, 1), 2, times) == ((0, 0), (Displaced(1, 1, 1, 0, 106 / 100 - 1),))


def test_a_champion_whose_advantage_another_level_cannot_bear_ships_nowhere() -> None:
    """Program 1 holds its own level against the robust one, not against program 0, which loses too much there by the description."""
    described, other = [[100, 130], [130, 100], [105, 105]], [[100, 101], [130, 106], [101, 105]]
    times = np.array([described, other], float)
    assert settled((0, 1), 2, times) == ((2, 1), (Displaced(0, 0, 1, 1, 106 / 101 - 1),))


def test_what_does_not_fit_is_compared_with_nothing() -> None:
    times = table([100, math.nan, 50], [math.nan, 100, 60], [200, 200, 55])
    assert settled((0, 1, None), 2, times) == ((0, 1, None), ())
    assert settled((None, None, None), 2, times) == ((None, None, None), ())
