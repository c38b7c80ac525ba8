"""How many segments a job measures beside its programs."""

from __future__ import annotations

import pytest

from simulator.npu.parts import DataType
from tests.compiled import make_case
from tests.compiler.segment.test_grids import machine_of, product
from tests.tuner.search.searching import Local, LocalSearch
from tuner.measure.budgeted import MeasureBudget
from tuner.search.ask_tell import run_to_end
from tuner.search.epoch import EVOLVING
from tuner.search.segment_proposals import explore_segments


@pytest.mark.parametrize(("cores", "most"), [(1, 12), (4, 4)])
def test_segments_of_one_operator(cores: int, most: int) -> None:
    """On several cores a third of those on one: they take as long as programs, and none is placed on fewer cores."""
    target_graph = make_case(product(192, 96, 160), machine_of(cores, True), DataType.float16).target_graph
    measure = Local(target_graph)
    search = LocalSearch(target_graph, "search.lag=0", "segments.measured=12", "segments.candidates=48").steps(measure, 2)
    measure.asked.clear()
    run_to_end(explore_segments(search.context(epoch=EVOLVING)), MeasureBudget(measure, (search.known,)))
    measured = [request for request in measure.measured() if request.kind == "segment"]
    assert most / 2 <= len(measured) <= most
    assert all(len(gene.cores) == cores for request in measured for gene in request.genome)
