"""The nine networks, layer by layer and fused at random: legal, without findings, within the times' bounds, and right.

Values are compared before a final softmax, which saturates and would hide errors.
"""

from __future__ import annotations

import numpy as np
import pytest

from compiler.pipeline import Compiler
from compiler.plan.plan import Infeasible, Plan
from compiler.space.decode import decode, decode_all
from compiler.space.initial import layer_by_layer, single_operators, spread
from compiler.space.mutators import random_genome, repaired
from compiler.target.target_graph import TargetGraph
from simulator.npu.machine import Machine
from simulator.npu.machine_file import load_machine
from simulator.npu.parts import DataType
from simulator.npu.program import Program
from tests.compiled import check_program, make_case
from tests.models import LIGHT, light_model, without_final_softmax
from tests.plans import resized

FAST = ("squeezenet", "shufflenet")
# float16: weights, inputs and every intermediate rounded to 11 bits; measured at most 2.4e-3.  float32 another order of sums: 1e-6
LIMITS = {DataType.float16: 7e-3, DataType.float32: 1e-5}


def fused(target_graph: TargetGraph, seed: int) -> Plan:
    """Long segments at random, cut where they do not fit."""
    genome = repaired(
        target_graph, random_genome(target_graph, np.random.default_rng(seed), 6.0), lambda gene: decode(target_graph, gene) is not None
    )
    assert genome is not None
    plan = decode_all(target_graph, genome)
    assert isinstance(plan, Plan)
    return plan


@pytest.mark.parametrize(
    ("machine_name", "dtype"),
    [
        ("edge", DataType.float16),
        ("ascend310", DataType.float16),
        # `test_random_models` and `test_corners` have float32 as well, on one core and two
        pytest.param("edge", DataType.float32, marks=pytest.mark.slow),
        pytest.param("ascend310", DataType.float32, marks=pytest.mark.slow),
    ],
    ids=lambda value: value if isinstance(value, str) else value.name,
)
@pytest.mark.parametrize("name", [name if name in FAST else pytest.param(name, marks=pytest.mark.slow) for name in LIGHT])
def test_network(name: str, machine_name: str, dtype: DataType) -> None:
    case = make_case(without_final_softmax(light_model(name)), load_machine(machine_name), dtype)
    compiler = Compiler(case.target_graph)
    baseline = layer_by_layer(case.target_graph)
    assert isinstance(baseline, Plan), baseline
    for plan in (baseline, fused(case.target_graph, seed=1)):
        program = compiler.compile(plan)
        assert isinstance(program, Program), program
        check_program(case, program, LIMITS[dtype])


@pytest.mark.parametrize(
    ("name", "machine"),
    [
        ("squeezenet", resized(load_machine("edge"), L1=65536)),
        pytest.param("squeezenet", load_machine("tiny"), marks=pytest.mark.slow),
        pytest.param("bvlc_alexnet", resized(load_machine("edge"), L1=65536), marks=pytest.mark.slow),
    ],
)
def test_little_memory(name: str, machine: Machine) -> None:
    """64 KiB of L1: many small blocks, weights in small chunks with partial sums."""
    case = make_case(without_final_softmax(light_model(name)), machine, DataType.float16)
    plan = layer_by_layer(case.target_graph)
    assert isinstance(plan, Plan), plan
    program = Compiler(case.target_graph).compile(plan)
    assert isinstance(program, Program), program
    check_program(case, program, LIMITS[DataType.float16])


@pytest.mark.parametrize("cores", [pytest.param(4, marks=pytest.mark.slow), 8])
@pytest.mark.parametrize("name", ["squeezenet", *(pytest.param(name, marks=pytest.mark.slow) for name in ("shufflenet", "resnet50"))])
def test_many_cores(name: str, cores: int) -> None:
    """Segments on any cores, side by side where data allow, and every operator over all cores; two cores are `ascend310` above."""
    case = make_case(without_final_softmax(light_model(name)), load_machine(f"edge:cores={cores}"), DataType.float16)
    compiler, singles = Compiler(case.target_graph), single_operators(case.target_graph)
    assert not isinstance(singles, Infeasible)
    wide = decode_all(case.target_graph, spread(case.target_graph, singles))
    assert isinstance(wide, Plan)
    for plan in (wide, fused(case.target_graph, seed=cores)):
        program = compiler.compile(plan)
        assert isinstance(program, Program), program
        assert sum(len(stream) > 0 for stream in program.streams) >= cores // 2
        check_program(case, program, LIMITS[DataType.float16])
