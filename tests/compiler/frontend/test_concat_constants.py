"""Channels of constants beside computed ones: grids of coordinates, class tokens of a sequence by itself."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import ModelProto, helper, numpy_helper

from compiler.build import default_plan
from compiler.frontend import load_model, lower
from compiler.ir.interpret import evaluate
from compiler.ops.lower_graph import pack_unit
from compiler.pipeline import Compiler
from compiler.plan.plan import Infeasible
from simulator.npu.machine_file import load_machine
from simulator.npu.parts import DataType
from tests.compiled import Case, check_program, run_program
from tests.compiler.frontend.handlers.test_quantised import onnxruntime_of
from tests.integers import with_integers

TINY = with_integers(load_machine("tiny"))


def model_of(nodes: list[object], x: np.ndarray, channels: int, constants: dict[str, object]) -> tuple[ModelProto, dict[str, np.ndarray]]:
    kind = helper.np_dtype_to_tensor_dtype(x.dtype)
    ports = [helper.make_tensor_value_info("x", kind, x.shape)], [helper.make_tensor_value_info("y", kind, (1, channels, *x.shape[2:]))]
    stored = [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()]
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return load_model(helper.make_model(helper.make_graph(nodes, "concat", *ports, stored), opset_imports=imports, ir_version=9)), {"x": x}


def coordinates() -> tuple[ModelProto, dict[str, np.ndarray]]:
    """A convolution that knows where it is."""
    rng = np.random.default_rng(0)
    grid = np.stack(np.meshgrid(np.linspace(-1, 1, 6), np.linspace(-1, 1, 5), indexing="ij"))[None].astype(np.float32)
    constants = {"grid": grid, "w": rng.normal(size=(7, 20, 3, 3)).astype(np.float32)}
    nodes = [helper.make_node("Concat", ["x", "grid", "x"], ["c"], axis=1), helper.make_node("Conv", ["c", "w"], ["y"], pads=[1] * 4)]
    return model_of(nodes, rng.normal(size=(1, 9, 6, 5)).astype(np.float32), 7, constants)


def token(own_scale: float) -> tuple[ModelProto, dict[str, np.ndarray]]:
    """Of integers, in a scale that is the result's or another."""
    rng, wide = np.random.default_rng(1), "com.microsoft"
    constants = {
        "ys": np.float32(0.05),
        "yz": np.int8(3),
        "xs": np.float32(0.04),
        "xz": np.int8(1),
        "cs": np.float32(own_scale),
        "cz": np.int8(3),
    }
    constants["c"] = rng.integers(-128, 128, (1, 2, 16)).astype(np.int8)
    nodes = [helper.make_node("QLinearConcat", ["ys", "yz", "c", "cs", "cz", "x", "xs", "xz"], ["y"], name="cat", domain=wide, axis=1)]
    return model_of(nodes, rng.integers(-128, 128, (1, 40, 16)).astype(np.int8), 42, constants)


@pytest.mark.parametrize("made", [coordinates(), token(0.05), token(0.02)], ids=["coordinates", "in the result's scale", "in its own"])
def test_a_constant_may_be_some_of_the_channels(made: tuple[ModelProto, dict[str, np.ndarray]]) -> None:
    model, feeds = made
    graph, expected = lower(model), onnxruntime_of(model, feeds)["y"]
    near = 1e-5 if expected.dtype == np.float32 else 0  # floats are added up in another order
    np.testing.assert_allclose(evaluate(graph, feeds)["y"], expected, rtol=near, atol=near)
    target_graph, constants = pack_unit(graph, TINY, DataType.float32)
    program = Compiler(target_graph).compile(default_plan(target_graph))
    assert not isinstance(program, Infeasible)
    case = Case(model, target_graph, constants, feeds, {"y": expected})
    check_program(case, program)
    np.testing.assert_allclose(run_program(case, program)[0]["y"].reshape(expected.shape), expected, rtol=near, atol=near)
