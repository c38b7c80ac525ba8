"""Every preset runs the light networks layer by layer: right values, no findings, times within their bounds, estimates that match."""

from __future__ import annotations

import pytest

from compiler.cost.features import FEATURES, raw_features
from compiler.kinds.build import make_unit
from compiler.pipeline import Compiler
from compiler.plan.plan import Plan
from compiler.space.starts import layer_by_layer
from compiler.unit.unit import Unit
from simulator.npu.machine import Machine
from simulator.npu.machine_file import load_machine, preset_names
from simulator.npu.parts import DataType, Engine
from simulator.npu.program import Program
from simulator.timing import program_bound, simulate_levels
from tests.compiled import check_program, make_case
from tests.models import LIGHT, light_graph, light_model, without_final_softmax
from tuner.measure.roofline import Roofline

MACHINES = sorted(set(preset_names()) - {"tiny"})  # whose memories are too small for a network
TPU = load_machine("tpu-like")


def compiled(unit: Unit) -> tuple[Plan, Program]:
    plan = layer_by_layer(unit)
    assert isinstance(plan, Plan), plan
    program = Compiler(unit).compile(plan)
    assert isinstance(program, Program), program
    return plan, program


@pytest.mark.parametrize("machine_name", MACHINES)
@pytest.mark.parametrize("name", [name if name == "squeezenet" else pytest.param(name, marks=pytest.mark.slow) for name in LIGHT])
def test_every_network_runs_on_every_machine(name: str, machine_name: str) -> None:
    machine = load_machine(machine_name)
    unit = make_unit(light_graph(name), machine, DataType.float16)
    _, program = compiled(unit)
    program.verify(machine)
    roofline = Roofline(unit)
    found = simulate_levels(program, machine)
    for level, timing in found.items():
        assert timing.cycles >= program_bound(program, machine, machine.contention[level])
        assert timing.cycles >= roofline.cycles(0, len(unit.operators), level)
    # levels are for telling programs apart: each of them is felt on one core
    cycles = [timing.cycles for timing in found.values()]
    assert cycles == sorted(cycles)
    assert len(set(cycles)) == len(cycles)


@pytest.mark.parametrize("machine_name", sorted(set(MACHINES) - {"edge", "ascend310"}))  # those are in test_nine_networks
def test_values_do_not_depend_on_the_machine(machine_name: str) -> None:
    case = make_case(without_final_softmax(light_model("squeezenet")), load_machine(machine_name), DataType.float16)
    check_program(case, compiled(case.unit)[1], 7e-3)


def array(dataflow: str, pipelined: bool, rows: int, columns: int) -> Machine:
    changes = {"dataflow": dataflow, "pipelined": pipelined, "rows": rows, "columns": columns}
    return TPU.model_copy(update={"matrix": TPU.matrix.model_copy(update=changes)})


@pytest.mark.parametrize(
    "machine",
    [TPU] + [array(flow, piped, 32, 48) for flow in ("output-stationary", "weight-stationary") for piped in (False, True)],
    ids=["tpu-like", "os", "os-pipelined", "ws", "ws-pipelined"],
)
def test_features_know_what_the_array_takes(machine: Machine) -> None:
    unit = make_unit(light_graph("squeezenet"), machine, DataType.float16)
    plan, program = compiled(unit)
    estimated, at = 0.0, 0
    for segment in plan.segments:
        estimated += raw_features(unit, segment, at)[FEATURES.index("cube_cycles")]
        at += len(segment.operators)
    assert estimated == simulate_levels(program, machine, ["none"])["none"].busy_cycles[0, Engine.CUBE]
