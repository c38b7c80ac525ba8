"""The heaviest convex set, against every subset."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

import pytest

from compiler.frontend.partition.convex import heaviest_convex


def reachable(n: int, edges: Sequence[tuple[int, int]]) -> list[list[bool]]:
    reach = [[(a, b) in edges for b in range(n)] for a in range(n)]
    for k in range(n):
        for a in range(n):
            for b in range(n):
                reach[a][b] |= reach[a][k] and reach[k][b]
    return reach


def is_convex(some: set[int], reach: list[list[bool]]) -> bool:
    outside = set(range(len(reach))) - some
    return not any(reach[a][x] and reach[x][b] for a in some for b in some for x in outside)


@pytest.mark.parametrize("seed", range(150))
def test_partition_of_small_graphs_is_best_of_all(seed: int) -> None:
    rng = random.Random(seed)
    n = rng.randint(1, 9)
    edges = [(a, b) for a in range(n) for b in range(a + 1, n) if rng.random() < 0.3]
    weights = [rng.randint(1, 9) for _ in range(n)]
    avoided = {v for v in range(n) if rng.random() < 0.3}
    reach = reachable(n, edges)
    free = sorted(set(range(n)) - avoided)
    sets = [{v for i, v in enumerate(free) if chosen >> i & 1} for chosen in range(1 << len(free))]
    best = max(sum(weights[v] for v in some) for some in sets if is_convex(some, reach))
    found = heaviest_convex(edges, weights, avoided)
    assert not found & avoided
    assert is_convex(found, reach)
    assert sum(weights[v] for v in found) == best


def test_nothing_to_avoid_is_everything() -> None:
    assert heaviest_convex([(0, 1), (1, 2)], [1, 1, 1], set()) == {0, 1, 2}
    assert heaviest_convex([], [], set()) == set()


def test_weights_of_any_size() -> None:
    heavy = 1 << 80
    assert heaviest_convex([(0, 1), (1, 2)], [heavy, 1, heavy + 1], {1}) == {2}
    assert heaviest_convex([(0, 1), (1, 2)], [heavy + 1, 1, heavy], {1}) == {0}


def test_a_chain_of_thousands_with_many_to_avoid() -> None:
    n = 4000
    rng = random.Random(0)
    avoided = set(rng.sample(range(n), 40))
    found = heaviest_convex([(v, v + 1) for v in range(n - 1)], [1] * n, avoided)
    borders = [-1, *sorted(avoided), n]
    assert len(found) == max(b - a - 1 for a, b in itertools.pairwise(borders))
    assert found == set(range(min(found), max(found) + 1))
