"""The shortest path over runs of operators is the cheapest of all ways to cut them."""

from __future__ import annotations

from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compiler.planner.shortest_path import cover_costs, shortest_cover


@given(operators=st.integers(1, 7), lengths=st.integers(1, 5), seed=st.integers(0, 1 << 16), gaps=st.booleans())
def test_it_is_the_cheapest_of_all_cuts(operators: int, lengths: int, seed: int, gaps: bool) -> None:
    rng = np.random.default_rng(seed)
    cost = rng.integers(1, 9, (operators, lengths)).astype(np.float64)
    cost[rng.random(cost.shape) < 0.3 * gaps] = np.inf
    totals = []
    for count in range(operators):
        for inner in combinations(range(1, operators), count):
            cuts = (0, *inner, operators)
            runs = list(pairwise(cuts))
            totals.append(sum(cost[j - 1, j - i - 1] if j - i <= lengths else np.inf for i, j in runs))
    found = shortest_cover(cost)
    if found is None:
        reachable = [cover(cost, j) for j in range(operators + 1)]
        assert not np.isfinite(reachable).all()
        return
    runs, total = found
    assert [i for i, _ in runs] == [0, *(j for _, j in runs)][:-1]
    assert runs[-1][1] == operators
    assert total[-1] == min(totals) == sum(cost[j - 1, j - i - 1] for i, j in runs)


def cover(cost: np.ndarray, stop: int) -> float:
    """What covering the first `stop` operators costs, by its definition."""
    if not stop:
        return 0.0
    return min(cover(cost, i) + cost[stop - 1, stop - i - 1] for i in range(max(0, stop - cost.shape[1]), stop))


def test_of_equal_paths_the_last_run_is_longer() -> None:
    found = shortest_cover(np.array([[1.0, np.inf], [1.0, 2.0]]))
    assert found is not None
    assert found[0] == [(0, 2)]


@pytest.mark.parametrize("operators", [0, 3])
def test_nothing_covers_what_has_no_run(operators: int) -> None:
    found = shortest_cover(np.full((operators, 2), np.inf))
    assert (found is None) == (operators > 0)


@given(st.integers(1, 7), st.integers(1, 4), st.integers(0, 2**32 - 1))
def test_cover_around_a_run_is_the_cheapest(operators: int, lengths: int, seed: int) -> None:
    """Held against the cheapest cover of what comes before it and of what comes behind, by their definition."""
    rng = np.random.default_rng(seed)
    cost = rng.uniform(1, 9, (operators, lengths))
    cost[rng.random(cost.shape) < 0.3] = np.inf
    found = cover_costs(cost)
    for stop in range(1, operators + 1):
        for start in range(max(0, stop - lengths), stop):
            assert found[stop - 1, stop - start - 1] == pytest.approx(cover(cost, start) + behind(cost, stop))


def behind(cost: np.ndarray, start: int) -> float:
    """What covering the operators from `start` on costs, by its definition."""
    operators, lengths = cost.shape
    if start == operators:
        return 0.0
    stops = range(start + 1, min(operators, start + lengths) + 1)
    return min(cost[stop - 1, stop - start - 1] + behind(cost, stop) for stop in stops)


def test_prefix_without_runs_is_covered_by_longer_run() -> None:
    found = shortest_cover(np.array([[np.inf, np.inf], [np.inf, 2.0]]))
    assert found is not None
    assert found[0] == [(0, 2)]
