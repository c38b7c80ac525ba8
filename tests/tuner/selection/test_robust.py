"""One program for all levels, and the best few of several: against every set, one by one."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from simulator.npu.errors import BadInputError
from tests.messages import naming
from tuner.selection.robust import Floats, best_variants, losses, most_robust, served_loss

NAN = math.nan
SHAPES = array_shapes(min_dims=2, max_dims=2, min_side=1, max_side=5)
FITS = arrays(np.float64, SHAPES, elements=st.integers(1, 30).map(float))
SOME_FIT = arrays(np.float64, SHAPES, elements=st.one_of(st.just(NAN), st.integers(1, 30).map(float)))


def largest(cycles: Floats, program: int) -> tuple[float, float]:
    loss = [cycles[program, level] / min(cycles[:, level]) for level in range(cycles.shape[1])]
    return max(loss), sum(loss)


@given(FITS)
def test_the_robust_program_has_the_least_largest_loss(cycles: Floats) -> None:
    at = most_robust(cycles)
    assert at is not None
    mine = largest(cycles, at)
    for other in range(len(cycles)):
        theirs = largest(cycles, other)
        assert mine[0] <= theirs[0]
        if theirs[0] == mine[0] and not math.isclose(mine[1], theirs[1]):
            assert mine[1] < theirs[1]
        if np.array_equal(cycles[other], cycles[at]):
            assert at <= other, "of equals the earlier one"


@given(SOME_FIT)
def test_unfit_program_has_no_loss_and_no_robustness(cycles: Floats) -> None:
    loss, at = losses(cycles), most_robust(cycles)
    np.testing.assert_array_equal(np.isnan(loss), np.isnan(cycles))
    open_levels = ~np.isnan(cycles).all(axis=0)
    able = ~np.isnan(cycles[:, open_levels]).any(axis=1)
    assert (at is not None) == bool(able.any() and open_levels.any())
    if at is not None:
        assert able[at]
        assert np.nanmax(loss[at]) == min(np.nanmax(loss[other]) for other in np.flatnonzero(able))
    assert (loss[~np.isnan(loss)] >= 1).all()
    for level in np.flatnonzero(open_levels):
        assert np.nanmin(loss[:, level]) == 1


def key(cycles: Floats, members: tuple[int, ...]) -> tuple[int, float]:
    """Levels without a program, and the largest loss of the others."""
    fewest = [np.nanmin(column) if not np.isnan(column).all() else NAN for column in cycles.T]
    least = [
        min((cycles[program, level] / fewest[level] for program in members if not math.isnan(cycles[program, level])), default=math.inf)
        for level in range(cycles.shape[1])
    ]
    return sum(map(math.isinf, least)), max((loss for loss in least if not math.isinf(loss)), default=1.0)


@given(SOME_FIT, st.integers(1, 5))
def test_best_few_are_the_best_of_all_sets(cycles: Floats, count: int) -> None:
    serves = best_variants(cycles, count)
    members = tuple(sorted({program for program in serves if program is not None}))
    assert len(members) <= count
    sets = [chosen for size in range(1, min(count, len(cycles)) + 1) for chosen in combinations(range(len(cycles)), size)]
    best = min(key(cycles, chosen) for chosen in sets)
    assert key(cycles, members or (0,)) == best
    for level, program in enumerate(serves):
        if program is not None:
            assert cycles[program, level] == min(cycles[other, level] for other in members if not math.isnan(cycles[other, level]))
        else:
            assert all(math.isnan(cycles[other, level]) for other in members)


@given(FITS)
def test_variants_never_harm_and_one_is_robust(cycles: Floats) -> None:
    worst = [float(served_loss(cycles, best_variants(cycles, count)).max()) for count in range(1, 6)]
    assert worst == sorted(worst, reverse=True)
    assert set(best_variants(cycles, 1)) == {most_robust(cycles)}
    assert served_loss(cycles, best_variants(cycles, cycles.shape[1])).max() == 1, "as many as levels: each level its own"


def test_by_hand() -> None:
    """The champions lose 50% and 40%, the third at most 10%; a level that nothing fits changes nothing."""
    cycles = np.array([[100, 150], [140, 100], [110, 105]], float)
    assert most_robust(cycles) == 2
    assert most_robust(np.c_[cycles, [NAN] * 3]) == 2
    assert best_variants(cycles, 2) == (0, 1)
    assert best_variants(np.c_[cycles, [NAN] * 3], 1) == (2, 2, None)
    assert most_robust(np.array([[1, NAN], [NAN, 1]])) is None
    assert most_robust(np.array([[NAN, NAN]])) is None
    assert most_robust(np.zeros((0, 2))) is None
    assert most_robust(np.zeros((3, 0))) is None
    np.testing.assert_array_equal(losses(np.array([[4, NAN], [2, NAN]])), [[2, NAN], [1, NAN]])
    assert best_variants(np.array([[1, NAN], [NAN, 1]]), 1) == (0, None)


@pytest.mark.parametrize(("programs", "count"), [(3, 0), (60, 30)])
def test_too_few_and_too_many_variants_are_refused(programs: int, count: int) -> None:
    with pytest.raises(BadInputError, match=naming(f"{count} variants", f"{programs} programs", "1,000,000")):
        best_variants(np.ones((programs, 2)), count)
