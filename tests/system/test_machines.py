"""Every preset runs the light networks layer by layer: right values, no findings, times within their bounds, estimates that match."""

from __future__ import annotations

from pathlib import Path

import pytest

import tuner
from compiler.cost.features import FEATURES, raw_features
from compiler.ops.lower_graph import make_unit
from compiler.pipeline import Compiler
from compiler.plan.plan import Plan
from compiler.space.initial import layer_by_layer
from compiler.target.target_graph import TargetGraph
from simulator.npu.machine import Machine
from simulator.npu.machine_file import load_machine, preset_names
from simulator.npu.parts import DataType, Engine
from simulator.npu.program import Program
from simulator.timing import program_bound, simulate_levels
from tests.compiled import check_program, make_case
from tests.models import LIGHT, light_graph, light_model, without_final_softmax
from tests.plans import multiplying
from tests.tuning import QUICK
from tuner.cli import main
from tuner.measure.roofline import Roofline
from tuner.zoo.builders import build_network

INTEGERS = [name for name in preset_names() if "float16" not in load_machine(name).matrix.data_types]
MACHINES = sorted(set(preset_names()) - {"tiny", *INTEGERS})  # the memories of `tiny` are too small for a network
TPU = load_machine("tpu-like")
SHAPED = {
    "one-pixel": multiplying(load_machine("edge"), float16=(1, 64, 32, 1), float32=(1, 32, 32, 4)),
    "32x8x32": multiplying(load_machine("edge"), float16=(32, 8, 32, 2), float32=(32, 8, 32, 8)),
}


def compiled(target_graph: TargetGraph) -> tuple[Plan, Program]:
    plan = layer_by_layer(target_graph)
    assert isinstance(plan, Plan), plan
    program = Compiler(target_graph).compile(plan)
    assert isinstance(program, Program), program
    return plan, program


def check_clock(target_graph: TargetGraph, program: Program) -> None:
    """Times are within their bounds, and levels are for telling programs apart: each of them is felt on one core."""
    roofline, found = Roofline(target_graph), simulate_levels(program, target_graph.machine)
    for level, timing in found.items():
        assert timing.cycles >= program_bound(program, target_graph.machine, target_graph.machine.contention[level])
        assert timing.cycles >= roofline.cycles(0, len(target_graph.operators), level)
    cycles = [timing.cycles for timing in found.values()]
    assert cycles == sorted(set(cycles))


@pytest.mark.slow  # squeezenet below
@pytest.mark.parametrize("machine_name", MACHINES)
@pytest.mark.parametrize("name", LIGHT)
def test_every_network_runs_on_every_machine(name: str, machine_name: str) -> None:
    target_graph = make_unit(light_graph(name), load_machine(machine_name), DataType.float16)
    _, program = compiled(target_graph)
    program.verify(target_graph.machine)
    check_clock(target_graph, program)


@pytest.mark.parametrize("machine_name", sorted(set(MACHINES) - {"edge", "ascend310"}))  # those are in test_nine_networks
def test_values_do_not_depend_on_the_machine(machine_name: str) -> None:
    case = make_case(without_final_softmax(light_model("squeezenet")), load_machine(machine_name), DataType.float16)
    _, program = compiled(case.target_graph)
    check_program(case, program, 7e-3)
    check_clock(case.target_graph, program)


@pytest.mark.parametrize("dtype", [DataType.float16, DataType.float32])
@pytest.mark.parametrize("machine", SHAPED.values(), ids=SHAPED)
def test_values_do_not_depend_on_product_shape(machine: Machine, dtype: DataType) -> None:
    case = make_case(build_network("mobilenet_v2-small"), machine, dtype)
    _, program = compiled(case.target_graph)
    check_program(case, program, {DataType.float16: 7e-3, DataType.float32: 1e-4}[dtype])
    roofline = Roofline(case.target_graph)
    for level, timing in simulate_levels(program, machine).items():
        assert timing.cycles >= roofline.cycles(0, len(case.target_graph.operators), level)


@pytest.mark.parametrize("name", SHAPED)
def test_search_gains_on_other_products(name: str, tmp_path: Path) -> None:
    """Every champion is faster than the network untuned, and its file is right."""
    path, out = tmp_path / "machine.yaml", tmp_path / "RUN"
    path.write_text(SHAPED[name].model_dump_json())  # JSON is YAML
    summary = tuner.tune("made:mobilenet_v1-small", machine=str(path), out=str(out), candidates=4, backend="serial", overrides=QUICK)
    for level in summary.levels.values():
        assert level.cycles < level.baseline_layerwise_cycles
    assert main(["run", str(out / "best.onnx"), "--input", "random", "--check"]) == 0


def array(dataflow: str, pipelined: bool, rows: int, columns: int) -> Machine:
    changes = {"dataflow": dataflow, "pipelined": pipelined, "rows": rows, "columns": columns}
    return TPU.model_copy(update={"matrix": TPU.matrix.model_copy(update=changes)})


@pytest.mark.parametrize(
    "machine",
    [TPU, *SHAPED.values()]
    + [array(flow, piped, 32, 48) for flow in ("output-stationary", "weight-stationary") for piped in (False, True)],
    ids=["tpu-like", *SHAPED, "os", "os-pipelined", "ws", "ws-pipelined"],
)
def test_features_know_what_the_matrix_unit_takes(machine: Machine) -> None:
    target_graph = make_unit(light_graph("squeezenet"), machine, DataType.float16)
    plan, program = compiled(target_graph)
    estimated, at = 0.0, 0
    for segment in plan.segments:
        estimated += raw_features(target_graph, segment, at)[FEATURES.index("cube_cycles")]
        at += len(segment.operators)
    assert estimated == simulate_levels(program, machine, ["none"])["none"].busy_cycles[0, Engine.CUBE]
