"""List scheduling: nothing overlaps on a core or starts early, bounds hold, and small cases by hand."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compiler.placement.bounds import Bounds, bounds
from compiler.placement.dag import Dag
from compiler.placement.list_schedule import ListSchedule, allocate_widths, list_schedule
from tests.graphs_of_work import cell, dags


def on_one(dag: Dag) -> list[dict[int, int]]:
    return [{1: time} for time in dag.times]


def split(dag: Dag, cores: int, overhead: int) -> list[dict[int, int]]:
    """Every node can be split; each further core costs `overhead` more cycles."""
    return [{w: -(-time // w) + overhead * (w - 1) for w in range(1, cores + 1)} for time in dag.times]


def check(dag: Dag, listed: ListSchedule, times: list[dict[int, int]], cores: int, delay: int) -> None:
    for node, chosen in enumerate(listed.cores):
        assert list(chosen) == sorted(set(chosen))
        assert set(chosen) <= set(range(cores))
        assert listed.finish[node] - listed.start[node] == times[node][len(chosen)]
    for a, b in dag.edges:
        apart = delay if listed.cores[a] != listed.cores[b] else 0
        assert listed.start[b] >= listed.finish[a] + apart
    for core in range(cores):
        spans = sorted((listed.start[n], listed.finish[n]) for n, chosen in enumerate(listed.cores) if core in chosen)
        assert all(before[1] <= after[0] for before, after in pairwise(spans))
    place = {node: at for at, node in enumerate(listed.order)}
    assert sorted(place) == list(range(len(dag)))
    assert all(place[a] < place[b] for a, b in dag.edges)


@given(dags(), st.integers(1, 4), st.integers(0, 5), st.integers(0, 3), st.booleans())
def test_schedules_are_possible(dag: Dag, cores: int, delay: int, overhead: int, in_order: bool) -> None:
    times = split(dag, cores, overhead)
    for widths in (None, allocate_widths(dag, times, cores), [1] * len(dag), [cores] * len(dag)):
        listed = list_schedule(dag, times, cores, delay, widths, in_order)
        check(dag, listed, times, cores, delay)
        least = bounds(dag, times, cores, 0, 1)
        assert listed.cycles >= least.cycles
        if widths is not None:
            assert [len(chosen) for chosen in listed.cores] == list(widths)
        if in_order:
            assert listed.order == tuple(range(len(dag)))


@given(dags(), st.integers(1, 4))
def test_within_twice_the_bound_without_delays(dag: Dag, cores: int) -> None:
    """Graham: work / cores + (1 - 1 / cores) x the longest path."""
    cycles = list_schedule(dag, on_one(dag), cores).cycles
    assert cycles * cores <= dag.work + (cores - 1) * dag.span


@given(dags())
def test_one_core_takes_all_the_work(dag: Dag) -> None:
    assert list_schedule(dag, on_one(dag), 1, delay=7).cycles == dag.work


def test_a_cell_on_two_cores() -> None:
    dag = cell()
    listed = list_schedule(dag, on_one(dag), 2)
    assert listed.cycles == 39  # 10, then 36 cycles of branches on two cores, which do not come out even, then 10
    wide = list_schedule(dag, split(dag, 2, 0), 2, widths=[2, 1, 1, 1, 1, 1, 1, 1, 1, 2])
    assert wide.cycles == 29


def test_flags_between_cores_take_their_time() -> None:
    fork = Dag.of([4, 6, 6], [(0, 1), (0, 2)])
    assert list_schedule(fork, on_one(fork), 2, delay=3).cycles == 13
    assert list_schedule(fork, on_one(fork), 2, delay=9).cycles == 16  # one after the other is no worse
    assert list_schedule(fork, on_one(fork), 2, delay=9).cores == ((0,), (0,), (0,))


def test_ties_go_to_fewer_cores_and_smaller_numbers() -> None:
    pair = Dag.of([4, 4], [])
    assert list_schedule(pair, [{1: 4, 2: 4}, {1: 4, 2: 4}], 2).cores == ((0,), (1,))


def test_the_longest_path_goes_first() -> None:
    """By number, 0 takes the core that 1-2 need."""
    dag = Dag.of([6, 1, 9], [(1, 2)])
    assert list_schedule(dag, on_one(dag), 1).order == (1, 2, 0)
    assert list_schedule(dag, on_one(dag), 1, in_order=True).order == (0, 1, 2)


def test_a_node_that_fits_no_core_count() -> None:
    with pytest.raises(ValueError, match="node 0"):
        list_schedule(Dag.of([4], []), [{4: 1}], 2)


def test_what_is_critical_is_widened() -> None:
    """A chain has nothing to run beside it; independent nodes fill the cores alone."""
    chain = Dag.of([8, 8], [(0, 1)])
    assert allocate_widths(chain, split(chain, 2, 1), 2) == (2, 2)
    apart = Dag.of([8, 8], [])
    assert allocate_widths(apart, split(apart, 2, 1), 2) == (1, 1)
    useless = [{1: 8, 2: 8}, {1: 8, 2: 9}]
    assert allocate_widths(chain, useless, 2) == (1, 1)


def test_bounds_by_hand() -> None:
    dag = Dag.of([8, 8, 4], [(0, 1)])
    times = [{1: 8, 2: 5}, {1: 8, 2: 4}, {1: 4}]
    assert bounds(dag, times, 2, moved_units=1001, port_units_per_cycle=100) == Bounds(path=9, work=10, bandwidth=11)
    assert bounds(dag, times, 2, 0, 1).cycles == 10
    assert bounds(dag, times, 2, 0, 1).gap(15) == pytest.approx(0.5)
