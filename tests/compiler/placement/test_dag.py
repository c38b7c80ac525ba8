"""The graph of pieces: what it refuses, its ranks, paths and parts."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given

from compiler.placement.dag import Dag, longest_path, members, node_set
from tests.graphs_of_work import cell, dags


def every_path(dag: Dag) -> list[tuple[int, ...]]:
    """All paths of one node or more."""
    paths: list[tuple[int, ...]] = []
    todo: list[tuple[int, ...]] = [(node,) for node in range(len(dag))]
    while todo:
        path = todo.pop()
        paths.append(path)
        todo += [(*path, s) for s in dag.successors[path[-1]]]
    return paths


def length(dag: Dag, path: tuple[int, ...], delay: int) -> int:
    return sum(dag.times[node] for node in path) + delay * (len(path) - 1)


@pytest.mark.parametrize(
    ("times", "successors"),
    [((1, 1), ((0,), ())), ((1, 1), ((1, 1), ())), ((1, 1), ((2,), ())), ((1, 1), ((), (0,))), ((1,), ((), ())), ((-1,), ((),))],
)
def test_what_is_no_graph_is_refused(times: tuple[int, ...], successors: tuple[tuple[int, ...], ...]) -> None:
    with pytest.raises(ValueError):
        Dag(times, successors)


def test_a_cell() -> None:
    dag = cell()
    assert dag.level == (0, 1, 2, 3, 1, 2, 1, 1, 2, 4)
    assert dag.ranks() == (35, 25, 21, 15, 20, 17, 15, 16, 14, 10)
    assert dag.ranks(delay=100)[0] == 435
    assert dag.critical_path() == (0, 1, 2, 3, 9)
    assert (dag.span, dag.work) == (35, 56)
    assert dag.components(node_set([1, 2, 4, 6, 8])) == ((1, 2), (4,), (6,), (8,))
    assert dag.components(node_set([3, 5, 9])) == ((3, 5, 9),)


def test_sets() -> None:
    assert list(members(node_set([70, 3, 0]))) == [0, 3, 70]
    assert list(members(0)) == []


@given(dags(most=7))
def test_the_longest_path_is_the_longest(dag: Dag) -> None:
    for delay in (0, 3):
        best = max(length(dag, path, delay) for path in every_path(dag))
        assert length(dag, dag.critical_path(delay), delay) == best == max(dag.ranks(delay))
    within = node_set(range(0, len(dag), 2))
    inside = [path for path in every_path(dag) if not node_set(path) & ~within]
    assert length(dag, longest_path(dag, within), 0) == max(length(dag, path, 0) for path in inside)


@given(dags(most=9))
def test_components_are_connected_and_apart(dag: Dag) -> None:
    nodes = node_set(range(0, len(dag), 2)) | node_set(range(0, len(dag), 3))
    parts = dag.components(nodes)
    assert sorted(node for part in parts for node in part) == list(members(nodes))
    for a, b in combinations(parts, 2):
        assert not any((x, y) in dag.edges or (y, x) in dag.edges for x in a for y in b)
    for part in parts:
        assert len(part) == 1 or all(dag.neighbours[node] & node_set(part) for node in part)
