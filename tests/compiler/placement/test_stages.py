"""The DP over stages against brute force, its pruning, and how little the lazy form measures."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compiler.placement.clusters import contract, linear_clusters
from compiler.placement.dag import Dag, members, node_set
from compiler.placement.stages import Pruning, Stage, endings, enumerate_states, partition
from tests.graphs_of_work import cell, dags
from tuner.search.ask_tell import run_to_end

ANY = Pruning(100, 100)


class Shared:
    """Groups side by side on cores that share a port: what they compute overlaps, what they move does not."""

    def __init__(self, dag: Dag, moved: Sequence[int], cores: int = 2) -> None:
        self.dag, self.moved, self.cores = dag, moved, cores
        self.asked: list[Stage] = []

    def measure(self, stages: Sequence[Stage]) -> list[int]:
        self.asked += stages
        return [self.cycles(stage) for stage in stages]

    def cycles(self, stage: Stage) -> int:
        loads = [0] * self.cores
        for time in sorted((sum(self.dag.times[n] for n in group) for group in stage), reverse=True):
            loads[loads.index(min(loads))] += time
        return 2 + max(max(loads), sum(self.moved[n] for group in stage for n in group))

    def bound(self, stage: Stage) -> int:
        times = [sum(self.dag.times[n] for n in group) for group in stage]
        return max(*times, -(-sum(times) // self.cores))


def brute_force(dag: Dag, cost: Shared) -> int:
    """Every way to cut the nodes into stages, one after the other."""

    @cache
    def best(remaining: int) -> int:
        nodes = list(members(remaining))
        if not nodes:
            return 0
        every = [node_set(chosen) for count in range(1, len(nodes) + 1) for chosen in combinations(nodes, count)]
        return min(
            best(remaining & ~ending) + cost.cycles(dag.components(ending))
            for ending in every
            if not any(dag.after[node] & remaining & ~ending for node in members(ending))
        )

    return best((1 << len(dag)) - 1)


def check(dag: Dag, stages: Sequence[Stage]) -> None:
    """Every node once, and not before what it waits for."""
    when = {node: i for i, stage in enumerate(stages) for group in stage for node in group}
    assert sorted(when) == list(range(len(dag)))
    assert sum(len(group) for stage in stages for group in stage) == len(dag)
    assert all(when[a] <= when[b] for a, b in dag.edges)


@settings(max_examples=60, deadline=None)
@given(dags(most=6), st.lists(st.integers(0, 12), min_size=6, max_size=6))
def test_exact_without_pruning(dag: Dag, moved: list[int]) -> None:
    cost, lazy = Shared(dag, moved), Shared(dag, moved)
    states = enumerate_states(dag, ANY)
    assert states is not None
    found = run_to_end(partition(dag, states), cost.measure)
    assert found.cycles == brute_force(dag, cost) == sum(cost.cycles(stage) for stage in found.stages)
    check(dag, found.stages)
    again = run_to_end(partition(dag, states, lazy.bound), lazy.measure)
    assert again.cycles == found.cycles
    check(dag, again.stages)
    assert again.measured == len(lazy.asked) <= found.measured == len(states.endings)
    assert len(set(lazy.asked)) == len(lazy.asked)  # nothing is measured twice


@given(dags(most=7), st.integers(1, 3), st.integers(1, 3))
def test_pruned_endings_are_those_within_the_limits(dag: Dag, r: int, s: int) -> None:
    everything = (1 << len(dag)) - 1
    for remaining in {everything, everything & ~node_set([0]), everything & ~node_set([len(dag) - 1])} - {0}:
        every = [sum(1 << n for n in chosen) for k in range(1, 8) for chosen in combinations(members(remaining), k)]
        expected = set()
        for ending in every:
            rest = remaining & ~ending
            groups = dag.components(ending)
            if any(dag.after[node] & rest for node in members(ending)):
                continue
            if len(groups) <= s and max(map(len, groups)) <= r:
                expected.add(ending)
        found = list(endings(dag, remaining, Pruning(r, s)))
        assert len(found) == len(set(found))
        assert set(found) == expected


def test_a_cell_on_two_cores() -> None:
    dag = cell()
    cost = Shared(dag, [0] * 10)
    states = enumerate_states(dag, Pruning(3, 4))
    assert states is not None
    found = run_to_end(partition(dag, states, cost.bound), cost.measure)
    # 36 cycles of branches on two cores, in two stages, and 10 + 10 alone; every stage costs 2 more
    assert found.cycles == 10 + 18 + 10 + 4 * 2
    assert found.stages[0] == ((0,),)
    assert found.stages[-1] == ((9,),)


def test_clusters_leave_fewer_states() -> None:
    dag = cell()
    small = contract(dag, linear_clusters(dag), dag.span).dag
    with_all, with_clusters = enumerate_states(dag, ANY), enumerate_states(small, ANY)
    assert with_all is not None
    assert with_clusters is not None
    assert len(with_all.sets) == 1 + 1 + 4 * 3 * 2 * 3  # nothing, 0 gone or not, and what is left of every branch, 9 with them
    assert len(with_clusters.sets) < len(with_all.sets) / 2
    assert with_clusters.step_count < with_all.step_count / 4


def test_too_many_states_are_none() -> None:
    dag = Dag.of([1] * 12, [])
    assert enumerate_states(dag, ANY, 4096) is not None
    assert enumerate_states(dag, ANY, 4095) is None


@pytest.mark.parametrize("most", [1, 10, 25])
def test_a_limit_on_measurements_still_gives_a_cut(most: int) -> None:
    dag = cell()
    cost = Shared(dag, [3] * 10)
    states = enumerate_states(dag, Pruning(3, 4))
    assert states is not None
    best = run_to_end(partition(dag, states), Shared(dag, [3] * 10).measure)
    found = run_to_end(partition(dag, states, cost.bound, most), cost.measure)
    check(dag, found.stages)
    assert found.cycles == sum(cost.cycles(stage) for stage in found.stages) >= best.cycles
    assert found.measured < most + len(dag)
    assert all(stage in cost.asked for stage in found.stages)
