"""Gates go into the weights of the convolution behind them: values stay, and they go only where that is less to multiply."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from onnx import ModelProto

from compiler.ir.graph import Graph, Port
from compiler.ir.interpret import evaluate
from compiler.ir.operators import Conv, MatMul, Operator, Step, Vector
from compiler.ops.gate_into_weights import with_gated_weights
from compiler.ops.lower_graph import pack_unit
from compiler.pipeline import Compiler
from compiler.plan.plan import Infeasible
from compiler.space.initial import layer_by_layer
from simulator.npu.machine import Machine
from simulator.npu.machine_file import load_machine
from simulator.npu.parts import DataType
from tests.compiled import Case, run_program

EDGE, WITHOUT_L0B = load_machine("edge"), load_machine("ethos-u85-1024")
GATE = Vector("gate", ("x", "g"), "gated", (Step("mul", operand=1),))
RNG = np.random.default_rng(0)


def conv(channels: int, out: int, **more: object) -> Conv:
    weights = (RNG.standard_normal((out, channels, 1, 1)) / channels**0.5).astype(np.float32)
    return Conv("c", "gated", "y", weights, RNG.standard_normal(out).astype(np.float32), **more)  # type: ignore[arg-type]


def graph_of(
    *operators: Operator, channels: int = 40, size: tuple[int, int] = (9, 8), images: int = 1, outputs: tuple[str, ...] = ("y",)
) -> Graph:
    shapes = {"x": (images, channels, *size), "g": (images, channels, 1, 1)}
    residuals = [op.residual for op in operators if isinstance(op, Conv) and op.residual]
    for op in operators:
        if residuals and op.y == "y":
            shapes[residuals[0]] = op.output_shape([shapes["gated"]])
        shapes[op.y] = op.output_shape([shapes[name] for name in op.inputs])
    inputs = tuple(Port(name, name, shapes[name]) for name in ("x", "g", *residuals))
    graph = Graph("gated", inputs, tuple(Port(name, name, shapes[name]) for name in outputs), operators, shapes)
    graph.verify()
    return graph


def kinds(graph: Graph, machine: Machine = EDGE) -> list[type]:
    found = with_gated_weights(graph, machine)
    found.verify()
    return [type(op) for op in found.operators]


def test_a_gate_goes_into_weights() -> None:
    assert kinds(graph_of(GATE, conv(40, 24))) == [Vector, MatMul]
    assert kinds(graph_of(GATE, conv(40, 24, residual="r"))) == [Vector, MatMul, Vector]


def test_gates_that_stay() -> None:
    stay = [Vector, Conv]
    assert kinds(graph_of(GATE, conv(40, 37))) == stay, "weights are more than half of the image"
    assert kinds(graph_of(GATE, conv(40, 24)), WITHOUT_L0B) == stay, "a computed right operand cannot be brought into order"
    assert kinds(graph_of(GATE, conv(40, 24), images=2)) == stay, "every image has a gate of its own"
    assert kinds(graph_of(GATE, conv(40, 24), outputs=("y", "gated"))) == stay, "somebody else reads the image"
    assert kinds(graph_of(GATE, conv(40, 24, activation="relu"))) == stay
    assert kinds(graph_of(GATE, conv(40, 24, pads=(1, 0, 0, 0)))) == stay
    assert kinds(graph_of(GATE, conv(40, 8, stride=(2, 2)))) == stay
    assert kinds(graph_of(replace(GATE, steps=(Step("add", operand=1),)), conv(40, 24))) == stay
    assert kinds(graph_of(replace(GATE, steps=(*GATE.steps, Step("relu"))), conv(40, 24))) == stay
    assert kinds(graph_of(GATE, conv(40, 24), Vector("too", ("gated",), "z", (Step("relu"),)), outputs=("y", "z"))) == [
        Vector,
        Conv,
        Vector,
    ]


@pytest.mark.parametrize("dtype", [DataType.float16, DataType.float32], ids=lambda d: d.name)
@pytest.mark.parametrize("machine", ["edge", "tiny", "ascend310"])
def test_values_of_random_gates(machine: str, dtype: DataType) -> None:
    """Channels and results of any number, lanes without a channel among them, with and without a shortcut."""
    rng = np.random.default_rng(1)
    for residual in (None, "r", None):
        channels, out, size = int(rng.integers(2, 90)), int(rng.integers(1, 40)), (int(rng.integers(9, 14)), 9)
        graph = graph_of(GATE, conv(channels, out, residual=residual), channels=channels, size=size)
        assert MatMul in kinds(graph)
        feeds = {port.onnx_name: rng.standard_normal(port.onnx_shape).astype(np.float16).astype(np.float32) for port in graph.inputs}
        expected = evaluate(graph, feeds)
        np.testing.assert_allclose(evaluate(with_gated_weights(graph, EDGE), feeds)["y"], expected["y"], rtol=1e-4, atol=1e-5)
        target_graph, constants = pack_unit(graph, load_machine(machine), dtype)
        plan = layer_by_layer(target_graph)
        assert not isinstance(plan, Infeasible)
        program = Compiler(target_graph).compile(plan)
        assert not isinstance(program, Infeasible)
        outputs, _ = run_program(Case(ModelProto(), target_graph, constants, feeds, expected), program)
        limit = 4e-3 if dtype == DataType.float16 else 1e-5
        assert np.abs(outputs["y"] - expected["y"]).max() <= limit * np.abs(expected["y"]).max()
