"""Replays: as the list schedule without contention, never below the bounds, and shares of the port by hand."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compiler.placement.dag import Dag
from compiler.placement.list_schedule import list_schedule
from compiler.placement.port_model import core_masks, wire_segments
from compiler.placement.port_model import replay_cycles as replayed_arrays
from tests.graphs_of_work import cell, dags

PLENTY = 1e9


def replayed(
    times: Sequence[int],
    moved: Sequence[float],
    edges: Sequence[tuple[int, int]],
    placed: Sequence[tuple[int, ...]],
    port: float,
    delay: float = 0.0,
) -> float:
    before, after = (np.array([edge[end] for edge in edges], np.int64) for end in (0, 1))
    wiring = wire_segments(len(times), before, after)
    return replayed_arrays(np.array(times, np.float64), np.array(moved, np.float64), wiring, core_masks(placed), port, delay)


def on(dag: Dag, placed: list[tuple[int, ...]], delay: int = 0) -> float:
    return replayed(dag.times, [1.0] * len(dag), dag.edges, placed, PLENTY, delay)


@settings(deadline=None)
@given(dags(), st.integers(1, 4), st.integers(0, 5))
def test_schedule_by_number_is_replayed_unchanged(dag: Dag, cores: int, delay: int) -> None:
    listed = list_schedule(dag, [{1: time} for time in dag.times], cores, delay, in_order=True)
    assert on(dag, list(listed.cores), delay) == pytest.approx(listed.cycles)


@settings(deadline=None)
@given(dags(least_time=1), st.data())
def test_never_below_the_bounds(dag: Dag, data: st.DataObject) -> None:
    placed = [tuple(sorted(data.draw(st.sets(st.integers(0, 2), min_size=1)))) for _ in dag.times]
    moved = data.draw(st.lists(st.integers(0, 50), min_size=len(dag), max_size=len(dag)))
    found = replayed(dag.times, moved, dag.edges, placed, 2.0)
    load = max(sum(t for t, cores in zip(dag.times, placed, strict=True) if core in cores) for core in range(3))
    assert found >= max(dag.span, load, sum(moved) / 2.0) - 1e-3
    assert found >= on(dag, placed) - 1e-3
    slowest = sum(max(time, m / 2.0) for time, m in zip(dag.times, moved, strict=True))
    assert found <= slowest + 1e-3


def test_replays_by_hand() -> None:
    dag = cell()
    assert on(dag, [(0,)] * 10) == dag.work
    assert on(dag, [(0, 1)] * 10) == dag.work
    assert on(dag, [(0, 1)] * 10, delay=2) == dag.work + 6 * 2  # 1, 2, 3, 5, 8 and 9 read what was just written, by two cores
    assert on(dag, [(0,)] * 4 + [(1,)] * 5 + [(0,)]) == 10 + 21 + 10
    assert on(dag, [(0,)] * 4 + [(1,)] * 5 + [(0,)], delay=3) == 10 + 3 + 21 + 3 + 10


def test_port_is_shared_evenly_and_leftovers_are_used() -> None:
    apart = [(0,), (1,)]
    assert replayed([10, 10], [40, 40], [], apart, 8.0) == 10
    assert replayed([10, 10], [80, 80], [], apart, 8.0) == 20
    # 2 and 8 per cycle: the first is not slowed, the second gets 6 while it runs
    assert replayed([10, 10], [20, 80], [], apart, 8.0) == pytest.approx(10 + (80 - 60) / 8)
    assert replayed([10, 10], [80, 80], [], [(0,), (0,)], 8.0) == 20
    assert replayed([10], [160], [], [(0,)], 8.0) == 20


def test_what_takes_no_time_is_no_obstacle() -> None:
    assert replayed([0, 5, 0], [0, 0, 3], [(0, 1), (1, 2)], [(0,), (1,), (0,)], 1.0) == 5
    assert replayed([], [], [], [], 1.0) == 0
    assert not math.isnan(replayed([0, 0], [1, 1], [], [(0,), (1,)], 1.0))


def test_duplicate_edges_and_cores_that_start_above_0() -> None:
    assert replayed([4, 5], [0, 0], [(0, 1), (0, 1)], [(62,), (63,)], 1.0, 3) == 12
    assert replayed([4, 5], [0, 0], [], [(62, 63), (63,)], 1.0, 3) == 9
