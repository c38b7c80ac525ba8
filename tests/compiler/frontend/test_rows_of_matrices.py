"""Matrices from the host: rows are the pixels of one image where all that is made of them can be, else images."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper

from compiler.build import default_plan
from compiler.frontend import lower
from compiler.frontend.handlers.handlers import HANDLERS
from compiler.frontend.handlers.to_graph import channels_last, translate
from compiler.frontend.lower import SUPPORTED
from compiler.frontend.onnx_io.load import prepare
from compiler.frontend.partition.support_check import check_support
from compiler.ir.interpret import evaluate
from compiler.pipeline import Compiler
from simulator.npu.errors import UnsupportedError
from simulator.npu.machine_file import load_machine
from simulator.npu.parts import DataType
from tests.compiled import check_program, check_times, make_case
from tests.models import Builder, random_feeds, reference_outputs

ROWS, WIDTH = 24, 40


def ints(b: Builder, *values: int) -> str:
    return b.constant(np.array(values, np.int64))


def perceptron(b: Builder) -> str:
    return b.gemm(b.relu(b.gemm("x", 72)), 10)


def gated(b: Builder) -> str:
    """A product per row, and one per column, of computed values."""
    x = b.gemm("x", 32)
    return b.gemm(b.node("Mul", [b.node("Mul", [x, b.node("Sigmoid", [b.gemm(x, 1)])]), b.node("ReduceMean", [x], axes=[0])]), 8)


def attention(b: Builder) -> str:
    """Tokens as rows, without an axis for the batch."""
    q, k, v = (b.node("Reshape", [b.gemm("x", 48), ints(b, ROWS, 3, 16)]) for _ in range(3))
    scores = b.node("MatMul", [b.node("Transpose", [q], perm=[1, 0, 2]), b.node("Transpose", [k], perm=[1, 2, 0])])
    y = b.node("MatMul", [b.softmax(scores, axis=-1), b.node("Transpose", [v], perm=[1, 0, 2])])
    return b.node("Reshape", [b.node("Transpose", [y], perm=[1, 0, 2]), ints(b, ROWS, 48)])


CASES: dict[str, Callable[[Builder], str]] = {
    "perceptron": perceptron,
    "matmul and a bias": lambda b: b.node("Add", [b.node("MatMul", ["x", b.normal((WIDTH, 20), 0.2)]), b.normal((20,))]),
    "normalised": lambda b: b.gemm(b.relu(b.batch_norm(b.gemm("x", 36))), 5),
    "side by side": lambda b: b.gemm(b.concat(b.gemm("x", 16), "x", b.gemm("x", 32)), 7),
    "rows one after the other": lambda b: b.gemm(b.node("Concat", [b.gemm("x", 16), b.gemm("x", 16)], axis=0), 7),
    "over a row": lambda b: b.softmax(b.gemm("x", 20), axis=-1),
    "gated": gated,
    "some rows": lambda b: b.gemm(b.node("Slice", [b.gemm("x", 16), ints(b, 3), ints(b, 9), ints(b, 0)]), 4),
    "attention": attention,
}


def model_of(build: Callable[[Builder], str], shape: tuple[int, ...] = (ROWS, WIDTH)) -> ModelProto:
    b = Builder(np.random.default_rng(3), shape)
    return prepare(b.model(build(b)))


@pytest.mark.parametrize("name", CASES)
def test_rows_are_pixels_and_values_are_onnxruntimes(name: str) -> None:
    model = model_of(CASES[name])
    feeds = random_feeds(model, 1)
    ((out, expected),) = reference_outputs(model, feeds).items()
    for graph in (translate(model, HANDLERS), lower(model)):
        assert graph.shapes["x"] == (1, WIDTH, ROWS, 1)
        actual = evaluate(graph, feeds)[out]
        assert actual.shape == expected.shape
        assert np.abs(actual - expected).max() <= 1e-5 * np.abs(expected).max()


def as_images(b: Builder) -> str:
    """What a generator begins with: every row becomes an image, here of one pixel."""
    x = b.node("Reshape", [b.gemm("x", 64), ints(b, ROWS, 64, 1, 1)])
    return b.conv(x, 8)


def test_rows_are_images_in_front_of_convolutions() -> None:
    model = model_of(as_images)
    feeds = random_feeds(model, 1)
    ((out, expected),) = reference_outputs(model, feeds).items()
    graph = lower(model)
    assert graph.shapes["x"] == (ROWS, WIDTH, 1, 1)
    assert np.abs(evaluate(graph, feeds)[out] - expected).max() <= 1e-5 * np.abs(expected).max()
    assert check_support(model, SUPPORTED, None).refused == {}


def test_what_can_be_neither_says_why_images_cannot() -> None:
    model = model_of(lambda b: b.node("CumSum", [b.gemm("x", 6), ints(b, 1)]))
    with pytest.raises(UnsupportedError, match="CumSum 't5': not supported"):
        lower(model)
    (why,) = check_support(model, SUPPORTED, None).refused.values()
    assert why.startswith("not supported")


def test_a_single_row_is_an_image() -> None:
    assert lower(model_of(perceptron, (1, WIDTH))).shapes["x"] == (1, WIDTH, 1, 1)


def test_program_is_right_in_a_fraction_of_time() -> None:
    """A block of the matrix unit has 16 rows, which images of one pixel leave empty but for one."""
    edge = load_machine("edge")
    model = model_of(perceptron, (64, WIDTH))
    case = make_case(model, edge, DataType.float16)
    program = Compiler(case.target_graph).compile(default_plan(case.target_graph))
    check_program(case, program)
    alone = make_case(model_of(perceptron, (1, WIDTH)), edge, DataType.float16)
    one = Compiler(alone.target_graph).compile(default_plan(alone.target_graph))
    assert check_times(program, edge)["none"] < 4 * check_times(one, edge)["none"]  # of 64 rows, against one of one


def test_a_matrix_beside_a_sequence_of_one_image() -> None:
    """Rows have to be pixels there, as all tensors of a program have the same number of images."""
    b = Builder(np.random.default_rng(3), (ROWS, WIDTH))
    b.shape["s"] = (1, ROWS, 16)
    x = b.node("Reshape", [b.gemm("x", 16), ints(b, 1, ROWS, 16)])
    nodes = [*b.nodes, helper.make_node("Add", [x, "s"], ["y"])]
    kinds = [helper.make_tensor_value_info(name, TensorProto.FLOAT, b.shape[name]) for name in ("x", "s")]
    out = helper.make_tensor_value_info("y", TensorProto.FLOAT, (1, ROWS, 16))
    graph = helper.make_graph(nodes, "both", kinds, [out], b.constants)
    model = prepare(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))
    assert channels_last(model, "s")  # the sum does not say, the product before it does
    found = lower(model)
    assert found.shapes["s"] == (1, 16, ROWS, 1)
    feeds = random_feeds(model, 2)
    expected = reference_outputs(model, feeds)["y"]
    assert np.abs(evaluate(found, feeds)["y"] - expected).max() <= 1e-5 * np.abs(expected).max()
