"""Multiply-accumulates of operators, by hand; what cannot be counted is not none."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from compiler.frontend.handlers.handlers import HANDLERS
from compiler.frontend.onnx_io.load import prepare
from compiler.frontend.partition.macs import RULES, model_macs, node_macs
from tests.models import Builder
from tests.partial_models import partial_model

make = helper.make_node
SHAPES = {
    "q": (2, 5, 8), "k": (2, 7, 8), "v": (2, 7, 12), "past": (2, 4, 3, 2), "heads": (2, 5, 12), "steps": (6, 3, 4), "x": (2, 4, 8, 8),
    "image": (2, 6, 8, 8), "large": (2, 6, 16, 16), "w": (6, 4, 3, 3), "grouped": (6, 2, 3, 3), "up": (4, 3, 2, 2), "a": (5, 4),
    "b": (4, 3), "ab": (5, 3), "turned": (4, 5), "gates": (2, 16, 4), "memory": (2, 16, 4), "i": (3, 5, 4), "j": (3, 4, 6), "ij": (3, 5, 6),
}  # fmt: skip
QUANTISED = ["x", "s", "z", "w", "s", "z", "s", "z"]


@pytest.mark.parametrize(
    ("node", "macs"),
    [
        (make("Conv", ["x", "w"], ["image"]), 2 * 6 * 64 * 4 * 9),
        (make("Conv", ["x", "grouped"], ["image"], group=2), 2 * 6 * 64 * 2 * 9),
        (make("ConvInteger", ["x", "w", "z"], ["image"]), 2 * 6 * 64 * 4 * 9),
        (make("QLinearConv", QUANTISED, ["image"]), 2 * 6 * 64 * 4 * 9),
        (make("DeformConv", ["x", "w", "offset"], ["image"]), 2 * 6 * 64 * 4 * 9),
        (make("FusedConv", ["x", "w"], ["image"], domain="com.microsoft"), 2 * 6 * 64 * 4 * 9),
        (make("ConvTranspose", ["x", "up"], ["large"], group=2), 2 * 4 * 64 * 3 * 4),
        (make("Gemm", ["a", "b"], ["ab"]), 5 * 4 * 3),
        (make("Gemm", ["turned", "b"], ["ab"], transA=1), 5 * 4 * 3),
        (make("MatMul", ["i", "j"], ["ij"]), 3 * 5 * 4 * 6),
        (make("MatMulInteger", ["a", "b"], ["ab"]), 5 * 4 * 3),
        (make("QLinearMatMul", ["a", "s", "z", "b", "s", "z", "s", "z"], ["ab"]), 5 * 4 * 3),
        (make("FusedMatMul", ["turned", "b"], ["ab"], transA=1, domain="com.microsoft"), 5 * 4 * 3),
        (make("LSTM", ["steps", "gates", "memory"], ["y"]), 6 * 3 * 2 * (16 * 4 + 16 * 4)),
        (make("GRU", ["steps", "gates", "memory"], ["y"]), 6 * 3 * 2 * (16 * 4 + 16 * 4)),
        (make("RNN", ["steps", "gates", "memory"], ["y"]), 6 * 3 * 2 * (16 * 4 + 16 * 4)),
        (make("Einsum", ["i", "j"], ["ij"], equation="bnk, bkm -> bnm"), 3 * 5 * 4 * 6),
        (make("Einsum", ["i", "b"], ["y"], equation="...k,km"), 3 * 5 * 4 * 3),
        (make("Einsum", ["i"], ["y"], equation="bij->bji"), 0),
        (make("Attention", ["q", "k", "v"], ["heads"], q_num_heads=4, kv_num_heads=4), 7 * (2 * 5 * 8 + 2 * 5 * 12)),
        (make("Attention", ["q", "k", "v", "", "past", "past"], ["heads"], q_num_heads=4), 10 * (2 * 5 * 8 + 2 * 5 * 12)),
        (make("QLinearSigmoid", ["x", "s", "z", "s", "z"], ["x"], domain="com.microsoft"), 0),
        (make("MaxPool", ["x"], ["nowhere"]), 0),
        (make("MatMul", ["a", "nowhere"], ["unknown"]), None),
        (make("Conv", ["x", "nowhere"], ["image"]), None),
        (make("Einsum", ["i", "j"], ["ij"], equation="abcd,abcd->a"), None),
        (make("MatMul", ["a", "b"], ["ab"], domain="elsewhere"), None),
        (make("DFT", ["x"], ["x"]), None),
    ],
)  # fmt: skip
def test_of_a_node(node: NodeProto, macs: int | None) -> None:
    assert node_macs(node, SHAPES) == macs


def test_whatever_the_translation_supports_has_a_rule() -> None:
    assert {tuple(["", *name.rsplit(".", 1)][-2:]) for name in HANDLERS} <= RULES.keys()
    known = {schema.name for schema in onnx.defs.get_all_schemas() if schema.domain == ""} | {"Upsample", "Scatter"}
    assert {name for domain, name in RULES if domain == ""} <= known


def looped(op: str, product: str) -> ModelProto:
    """A Scan or a Loop over five steps, whose body has one operator on [2, 8] and weights of [8, 8] from outside."""
    types = {"i": (TensorProto.INT64, []), "go": (TensorProto.BOOL, []), "on": (TensorProto.BOOL, [])}
    scan = op == "Scan"

    def port(name: str) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, *types.get(name, (TensorProto.FLOAT, [2, 8])))

    inputs, outputs = (["s", "xi"], ["p", "each"]) if scan else (["i", "go", "s"], ["on", "p"])
    nodes = [make(product, ["s", "w"] if product == "MatMul" else ["s"], ["p"])]
    nodes.append(make("Identity", ["xi"], ["each"]) if scan else make("Not", ["go"], ["on"]))
    body = helper.make_graph(nodes, "body", [port(name) for name in inputs], [port(name) for name in outputs])
    if scan:
        node = make("Scan", ["x", "many"], ["y", "all"], body=body, num_scan_inputs=1)
    else:
        node = make("Loop", ["five", "", "x"], ["y"], body=body)
    weights = [numpy_helper.from_array(np.zeros((8, 8), np.float32), "w"), numpy_helper.from_array(np.array(5), "five")]
    many = helper.make_tensor_value_info("many", TensorProto.FLOAT, [5, 2, 8])
    graph = helper.make_graph([node], "looped", [port("x"), many], [port("y")], weights)
    return prepare(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))


@pytest.mark.parametrize(
    ("op", "product", "macs"), [("Scan", "MatMul", 5 * 2 * 8 * 8), ("Scan", "Relu", 0), ("Loop", "MatMul", None), ("Loop", "Relu", 0)]
)
def test_bodies(op: str, product: str, macs: int | None) -> None:
    """A Scan has as many steps as its input; a Loop ends when it likes."""
    assert model_macs(looped(op, product)) == macs


def test_a_branch_counts_where_all_are_alike() -> None:
    model = prepare(partial_model("branching"))
    assert model_macs(model) == 9 * 16 * 16 * 64
    (node,) = (node for node in model.graph.node if node.op_type == "If")
    branches = [item.g for item in node.attribute]
    inner = branches[0].node[0]
    inner.op_type, inner.input[:] = "Conv", ["t", "w"]
    assert model_macs(model) is None


def test_functions_of_a_model() -> None:
    given = partial_model("own_function")
    assert model_macs(prepare(given)) == 9 * 16 * 16 * 64
    given.functions[0].node[0].op_type = "MatMul"
    given.functions[0].node[0].input.append("a")
    assert model_macs(prepare(given)) == 9 * 16 * 16 * 64 + 16 * 8 * 8 * 8


def test_quantised_operators_of_onnxruntime_have_shapes() -> None:
    """A convolution behind a QLinearConcat, of which onnx knows nothing."""
    b = Builder(np.random.default_rng(0), (1, 4, 8, 8))
    scale, zero = b.constant(np.array(0.1, np.float32)), b.constant(np.array(3, np.uint8))
    weights = b.constant(np.ones((5, 8, 3, 3), np.uint8))
    graph = b.model(b.relu("x")).graph
    del graph.node[:]
    both = [scale, zero, "q", scale, zero, "q", scale, zero]
    graph.node.extend([
        make("QuantizeLinear", ["x", scale, zero], ["q"]),
        make("QLinearConcat", both, ["wide"], domain="com.microsoft", axis=1),
        make("QLinearSigmoid", ["wide", scale, zero, scale, zero], ["curved"], domain="com.microsoft"),
        make("QLinearConv", ["curved", scale, zero, weights, scale, zero, scale, zero], ["c"]),
        make("DequantizeLinear", ["c", scale, zero], ["y"]),
    ])  # fmt: skip
    del graph.output[:]
    graph.output.append(helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", "c", "h", "w"]))
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)], ir_version=8)
    assert model_macs(prepare(model)) == 5 * 36 * 8 * 9
