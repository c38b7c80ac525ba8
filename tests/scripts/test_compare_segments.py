"""Segments alone beside their program: what the L2 has of their inputs."""

from __future__ import annotations

import pytest

from compiler.frontend import lower
from compiler.ops.lower_graph import make_unit
from compiler.pipeline import Compiler
from compiler.plan.plan import Infeasible
from compiler.space.decode import decode_all
from compiler.space.initial import single_operators
from scripts.compare_segments import compare_plan, main
from simulator.npu.errors import BadInputError
from simulator.npu.machine_file import load_machine
from simulator.npu.parts import DataType
from tests.models import light_model


def test_warm_segments_are_nearer_to_the_program() -> None:
    target_graph = make_unit(lower(light_model("squeezenet")), load_machine("ascend910b:cores=1"), DataType.float16)
    genome = single_operators(target_graph)
    assert not isinstance(genome, Infeasible)
    plan = decode_all(target_graph, genome)
    assert not isinstance(plan, Infeasible)
    row = compare_plan(Compiler(target_graph), target_graph, plan)
    cold, warm = row["cold"], row["warm"]
    assert cold["gap_bytes"] > 0.1 * row["drawn_bytes"]
    assert warm["gap_bytes"] < 0.1 * cold["gap_bytes"]
    assert abs(warm["draws"] - row["program"]) < 0.1 * (cold["draws"] - row["program"])
    assert abs(warm["sum"] - row["program"]) < abs(cold["sum"] - row["program"])


def test_machine_without_an_l2_is_refused() -> None:
    with pytest.raises(BadInputError, match="--machine: edge: it has no l2; accepted: ascend910b"):
        main(part="edge")
