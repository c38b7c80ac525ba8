"""What of a program's DDR traffic is what adds up to what the simulator counts, and each part is what it is called."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import ModelProto

from compiler.build import default_plan
from compiler.frontend import lower
from compiler.ops.lower_graph import make_unit
from compiler.pipeline import Compiler
from compiler.plan.plan import Infeasible
from compiler.target.target_graph import TargetGraph
from scripts.traffic import Traffic, traffic
from simulator.npu.level import NO_CONTENTION
from simulator.npu.machine_file import load_machine
from simulator.npu.parts import DataType
from simulator.npu.program import Program
from simulator.timing import simulate
from tests.models import Builder, small_model


def layer_by_layer(model: ModelProto, machine: str = "edge") -> tuple[TargetGraph, Program]:
    target_graph = make_unit(lower(model), load_machine(machine), DataType.float16)
    program = Compiler(target_graph).compile(default_plan(target_graph))
    assert not isinstance(program, Infeasible)
    return target_graph, program


@pytest.mark.parametrize("name", ["conv_chain", "dense_block", "inception_block", "shuffle_block", "vector_chain"])
def test_it_adds_up_to_what_the_simulator_counts(name: str) -> None:
    target_graph, program = layer_by_layer(small_model(name))
    timing = simulate(program, target_graph.machine, NO_CONTENTION)
    assert traffic(target_graph, program).total == timing.ddr_read_bytes + timing.ddr_write_bytes


def test_parts_of_a_depthwise_convolution_and_its_successor() -> None:
    """40 channels of 8 x 8 fill 48 lanes: of these the depthwise one has 9 weights each, and 16 masks of 32 bytes, the 1x1 one 48 x 48."""
    b = Builder(np.random.default_rng(0), (1, 40, 8, 8))
    target_graph, program = layer_by_layer(b.model(b.conv(b.conv("x", 40, groups=40), 40, kernel=(1, 1), pads=(0, 0, 0, 0))))
    weights, biases, tensor = 40 * 9 + 40 * 40, 2 * 40, 40 * 64
    packed, masks = 48 * 9 + 48 * 48, 16 * 32
    expected = Traffic(
        once=2 * weights + 4 * biases + 2 * 2 * tensor,
        zeros=2 * (packed - weights) + masks + 4 * 2 * 8,
        lanes=2 * 2 * 8 * 64,
        weights_again=0,
        tensors_again=0,
        spills=2 * 2 * 48 * 64,
    )
    assert traffic(target_graph, program) == expected


def test_weights_that_every_block_loads_are_moved_again() -> None:
    b = Builder(np.random.default_rng(0), (1, 32, 8, 8))
    target_graph = make_unit(lower(b.model(b.conv("x", 32))), load_machine("edge"), DataType.float16)
    (segment,) = default_plan(target_graph).segments
    (tiling,) = segment.tilings
    streamed = tiling.model_copy(update={"weights": "streamed"})
    plan = default_plan(target_graph).model_copy(update={"segments": (segment.model_copy(update={"blocks": 4, "tilings": (streamed,)}),)})
    program = Compiler(target_graph).compile(plan)
    assert not isinstance(program, Infeasible), program
    found = traffic(target_graph, program)
    assert found.weights_again == 3 * 2 * 32 * 32 * 9
    assert found.tensors_again == 3 * 2 * 2 * 8 * 32  # two rows at each of three borders
