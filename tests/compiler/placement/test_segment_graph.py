"""Segments as a graph, and cores for a stage's groups."""

from __future__ import annotations

import pytest

from compiler.ops.lower_graph import make_unit
from compiler.placement.segment_graph import assign_cores, segment_edges, segment_wiring
from compiler.plan.plan import Infeasible
from compiler.space.gene import Gene
from compiler.space.initial import single_operators
from simulator.npu.machine_file import load_machine
from simulator.npu.parts import DataType
from tests.models import small_graph


def test_edges_are_producers_and_consumers() -> None:
    target_graph = make_unit(small_graph("inception_block"), load_machine("tiny"), DataType.float16)
    genome = single_operators(target_graph)
    assert not isinstance(genome, Infeasible)
    edges = segment_edges(target_graph, genome)
    assert set(edges) == {(source, k) for k, sources in target_graph.producers.items() for source in sources}
    last = len(target_graph.operators)
    merged = (Gene(0, 2), Gene(2, last - 1), Gene(last - 1, last))
    expected = {(0, 1), (0, 2), (1, 2)}
    assert set(segment_edges(target_graph, merged)) <= expected
    assert (1, 2) in segment_edges(target_graph, merged)
    assert segment_edges(target_graph, (Gene(0, last),)) == []
    for cut in (genome, merged, (Gene(0, last),), genome[2:5]):
        wiring = segment_wiring(target_graph, [gene.start for gene in cut], cut[-1].stop)
        found = [(int(a), i) for i in range(len(cut)) for a in wiring.before[wiring.first[i] : wiring.first[i + 1]]]
        assert sorted(found) == segment_edges(target_graph, cut)


def test_groups_beside_each_other() -> None:
    times = [{1: 9, 2: 5}, {1: 4, 2: 3}, {1: 4}, {1: 3, 2: 3}]
    assert assign_cores([(0,), (1,), (2,), (3,)], times, 2) == [(0,), (1,), (1,), (1,)]
    assert assign_cores([(0,), (1, 3)], times, 3) == [(0, 1), (2,)]
    assert assign_cores([(0,), (1,)], times, 4) == [(0, 1), (2, 3)]
    assert assign_cores([(3,), (2,)], times, 4) == [(0,), (1,)]  # nothing is faster on two
    assert assign_cores([(0,)], times, 2) == [(0, 1)]
    assert assign_cores([(0, 2)], times, 2) == [(0,)]  # 2 has no time for two cores


@pytest.mark.parametrize("cores", [1, 2, 3, 4])
def test_cores_are_those_of_the_machine(cores: int) -> None:
    times = [{1: 8 + i, 2: 5 + i, 4: 3 + i} for i in range(6)]
    for count in range(1, 7):
        chosen = assign_cores([(i,) for i in range(count)], times, cores)
        assert all(set(c) <= set(range(cores)) for c in chosen)
        if count < cores:
            assert len({core for c in chosen for core in c}) == sum(map(len, chosen))
