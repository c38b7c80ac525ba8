"""Linear clustering and contraction: paths that cover, quotients without cycles."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from compiler.placement.clusters import contract, linear_clusters
from compiler.placement.dag import Dag
from tests.graphs_of_work import cell, dags


def test_a_cell_in_branches() -> None:
    assert linear_clusters(cell()) == ((0, 1, 2, 3, 9), (4, 5), (7, 8), (6,))


def test_another_path_keeps_an_edge() -> None:
    """0-1-2 is the longest path; with 0-1 contracted, 1-2 may be contracted only if 0-3-2 is no path."""
    triangle = Dag.of([5, 5, 5, 1], [(0, 1), (1, 2), (0, 3)])
    assert contract(triangle, [(0, 1, 2)]).clusters == ((0, 1, 2), (3,))
    diamond = Dag.of([5, 5, 1, 5], [(0, 1), (1, 3), (0, 2), (2, 3)])
    assert contract(diamond, [(0, 1, 3)]).clusters == ((0, 1), (2,), (3,))
    assert contract(Dag.of([1, 1, 1], [(0, 1), (0, 2), (1, 2)]), [(0, 2)]).clusters == ((0,), (1,), (2,))


def test_a_limit_keeps_branches_apart() -> None:
    dag = cell()
    assert contract(dag, linear_clusters(dag)).clusters == ((0, 1, 2, 3), (4, 5), (6,), (7, 8), (9,))
    within = contract(dag, linear_clusters(dag), dag.span)
    assert within.dag.span == dag.span
    assert within.clusters == ((0, 1), (2, 3), (4, 5), (6,), (7, 8), (9,))  # 4-5 would start too late behind 2


@given(dags())
def test_clusters_are_paths_and_hold_every_node_once(dag: Dag) -> None:
    paths = linear_clusters(dag)
    assert sorted(node for path in paths for node in path) == list(range(len(dag)))
    edges = set(dag.edges)
    assert all(pair in edges for path in paths for pair in pairwise(path))
    assert len(paths[0]) == len(dag.critical_path())
    lengths = [sum(dag.times[node] for node in path) for path in paths]
    assert lengths == sorted(lengths, reverse=True)


@given(dags(most=16), st.booleans(), st.randoms(use_true_random=False))
def test_quotients_have_no_cycle_and_keep_every_edge(dag: Dag, limited: bool, random: object) -> None:
    """A Dag has no cycle by its numbers; every edge must be inside a cluster or go from a smaller cluster to a larger."""
    paths: list[tuple[int, ...]] = list(linear_clusters(dag))
    random.shuffle(paths)  # type: ignore[attr-defined]
    paths += dag.edges  # every edge is tried, not those of paths only
    quotient = contract(dag, paths, dag.span if limited else None)
    where = {node: i for i, cluster in enumerate(quotient.clusters) for node in cluster}
    assert sorted(where) == list(range(len(dag)))
    between = {(where[a], where[b]) for a, b in dag.edges if where[a] != where[b]}
    assert between == set(quotient.dag.edges)
    assert quotient.dag.work == dag.work
    if limited:
        assert quotient.dag.span == dag.span


@given(dags(most=10))
def test_what_may_be_contracted_is(dag: Dag) -> None:
    """After every edge was tried, each one that is left has another way round it."""
    quotient = contract(dag, dag.edges + dag.edges)
    for a, b in quotient.dag.edges:
        reached, todo = set(), [s for s in quotient.dag.successors[a] if s != b]
        while todo:
            node = todo.pop()
            reached.add(node)
            todo += quotient.dag.successors[node]
        assert b in reached
