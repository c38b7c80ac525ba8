"""How a search grows: chains and speed-ups of random searches keep to their limits, and a small search is recorded and played again."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scripts import bench_growth
from scripts.bench_growth import Node, Trace, analyse, critical_path
from scripts.virtual_search import TRAINED
from tests.tuning import FEW, save_small
from tuner.farm.coordinator import Key
from tuner.farm.epoch_schedule import EpochSchedule

NEAR = 1 + 1e-3  # the virtual clock moves on where somebody looks


@st.composite
def graphs(draw: st.DrawFn) -> tuple[dict[Key, float], dict[Key, list[Key]]]:
    keys = [(number, 0) for number in range(draw(st.integers(1, 8)))]
    before = {key: draw(st.lists(st.sampled_from(keys[:number]), unique=True)) if number else [] for number, key in enumerate(keys)}
    return {key: float(draw(st.integers(1, 9))) for key in keys}, before


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    """A search as a driver would run it on one worker: a training follows the epoch that it is due after."""
    epochs, shards, behind = draw(st.integers(1, 7)), draw(st.integers(1, 6)), draw(st.integers(0, 1))
    schedule = EpochSchedule(shards, behind)
    due = sorted(draw(st.sets(st.integers(1, epochs), max_size=3)))
    schedule.trainings = {version: number for number, version in enumerate(due, 1) if schedule.in_use_from(version) < epochs}
    nodes = list[Node]()

    def add(key: Key, version: int, models: int) -> None:
        nodes.append(Node(key, version, models, draw(st.integers(1, 400)) / 100, 0, 0, 1))

    for epoch in range(epochs):
        if (number := schedule.trainings.get(epoch)) is not None:
            add((TRAINED, number), epoch, number - 1)
        for shard in range(shards if epoch else 1):
            add((epoch, shard), schedule.version_of(epoch), schedule.models_of(epoch))
    return Trace([], nodes, shards, behind, 0.0, 0.0, 0.0)


@given(graphs())
def test_no_chain_is_longer_than_the_longest(graph: tuple[dict[Key, float], dict[Key, list[Key]]]) -> None:
    seconds, before = graph

    def longest_s(key: Key) -> float:
        return seconds[key] + max(map(longest_s, before[key]), default=0.0)

    path = critical_path(seconds, before)
    assert sum(seconds[key] for key in path) == max(map(longest_s, seconds))
    assert all(first in before[second] for first, second in pairwise(path))


@settings(max_examples=40, deadline=None)
@given(traces(), st.integers(2, 9))
def test_speed_ups_keep_to_their_limits(trace: Trace, workers: int) -> None:
    result = analyse(trace, 1, [1, workers], 0.0)
    limit, speedups = result["s_inf"]["1"], result["speedup"]["1"]
    assert limit >= 1 - 1e-9
    assert speedups["1"] == pytest.approx(1, rel=1e-3)
    assert 1 / NEAR / 2 <= speedups[str(workers)] <= NEAR * min(workers, limit)


@settings(max_examples=20, deadline=None)
@given(traces(), st.integers(1, 4))
def test_messages_and_cold_caches_cost(trace: Trace, workers: int) -> None:
    trace.cold[workers] = 2.0
    result = analyse(trace, 1, [workers], 0.0)
    assert result["speedup"]["1"][str(workers)] <= NEAR * min(workers, result["s_inf"]["1"]) / 2
    slow = analyse(trace, 1, [workers], 1e6)
    assert slow["speedup"]["1"][str(workers)] <= NEAR * slow["work_s"] / slow["jobs"]


def test_a_small_search(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def run(programs: int = 32, **options: Any) -> str:
        bench_growth.main(model, "edge", programs, list(FEW), [1, 2, 8], message_us=100.0, trace=tmp_path / "trace.json", **options)
        return capsys.readouterr().out

    model = str(save_small("conv_chain", tmp_path))
    result = json.loads(run(as_json=True))
    assert result["s_inf"]["32"] >= 1
    assert len(result["chain"]) >= 3
    trace = Trace.load(tmp_path / "trace.json")
    assert trace.cold.keys() == {2, 8}
    assert all(node.cpu_s > 0 and node.result_bytes > 0 for node in trace.nodes)
    assert result["same_champions"]
    assert min(result["driver_us"].values()) > 0
    assert result["commit_us"] == trace.commit_us > 0
    assert json.loads(run(as_json=True)) == result
    text = run()
    assert all(line in text for line in result["chain"])
    with pytest.raises(SystemExit, match=r"of .* edge 32 .*; give another --trace"):
        run(33)
    trace.cold.clear()
    trace.driver_s = 0.0
    result = analyse(trace, 32, [1, 2, 8], 0.0)
    speedups = list(result["speedup"]["32"].values())
    assert speedups[0] == pytest.approx(1, rel=1e-3)
    assert all(fewer <= more * 1.1 for fewer, more in pairwise(speedups))
    assert all(x <= NEAR * min(count, result["s_inf"]["32"]) for count, x in zip([1, 2, 8], speedups, strict=True))
