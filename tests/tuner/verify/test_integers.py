"""Quantised networks operator by operator: the formulas from onnxruntime's own integers give what onnxruntime has."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from simulator.npu.errors import BadInputError
from tests.messages import naming
from tuner.verify.integers import Difference, compare_integers, isolated_integers, summarise_differences
from tuner.zoo.load import load_network
from tuner.zoo.quantise import quantise_model, random_samples
from tuner.zoo.quantiser import Quantiser

FAST = [
    ("mobilenet_v2", Quantiser("qdq", "uint8", per_channel=True)), ("mobilenet_v2", Quantiser("qop", "int8")),
    ("inception_v3", Quantiser("qop", "uint8", per_channel=True)), ("vit_b16", Quantiser("qdq", "uint8")),
    ("vit_b16", Quantiser("qop", "int8", per_channel=True)), ("resnet50", Quantiser("qdq", "int8")),
]  # fmt: skip
EVERY = [Quantiser(*how) for how in product(("qdq", "qop"), ("uint8", "int8"), (False, True))]
NETWORKS = [
    "bert_base",
    "efficientnet_b0",
    "inception_v3",
    "mobilenet_v1",
    "mobilenet_v2",
    "nasnet_mobile",
    "randwire",
    "resnet50",
    "vit_b16",
]


def ran(network, how, seed=0):
    model = load_network(f"made:{network}-small")
    made = onnx.load_model_from_string(quantise_model(model, random_samples(model, 2, seed), how))
    return isolated_integers(made, {name: array[0] for name, array in random_samples(model, 1, seed + 1).items()})


@pytest.mark.parametrize(("network", "how"), FAST)
def test_no_operator_differs_from_onnxruntime(network, how):
    integers = ran(network, how)
    found = compare_integers(integers)
    assert [one for one in found if one.differing] == []
    assert {one.kind for one in found if one.differing is None} == set()
    assert {"QLinearConv", "QGemm"} <= {one.kind for one in found}


@pytest.mark.slow
@pytest.mark.parametrize("how", EVERY, ids=str)
@pytest.mark.parametrize("network", NETWORKS)
def test_no_operator_differs_from_onnxruntime_in_any_form(network, how):
    found = compare_integers(ran(network, how, 7))
    assert [one for one in found if one.differing] == []
    assert {one.kind for one in found if one.differing is None} == set()


def small(weights, scale=0.5):
    """x -> QuantizeLinear -> QLinearConv -> DequantizeLinear -> y"""
    parts = {"sx": np.float32(0.1), "zx": np.uint8(3), "sy": np.float32(9), "zy": np.uint8(100)}
    parts |= {"w": weights, "sw": np.float32(scale), "zw": weights.dtype.type(0)}
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "sx", "zx"], ["xq"]),
        helper.make_node("QLinearConv", ["xq", "sx", "zx", "w", "sw", "zw", "sy", "zy"], ["yq"], name="conv"),
        helper.make_node("DequantizeLinear", ["yq", "sy", "zy"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes, "small", [helper.make_tensor_value_info("x", 1, [1, 2, 4, 4])], [helper.make_tensor_value_info("y", 1, [1, 3, 4, 4])],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in parts.items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


WEIGHTS = np.arange(-120, 120, 40).astype(np.int8).reshape(3, 2, 1, 1)
FEEDS = {"x": np.linspace(-5, 30, 32, dtype=np.float32).reshape(1, 2, 4, 4)}


def test_a_value_that_differs_is_counted():
    integers = isolated_integers(small(WEIGHTS), FEEDS)
    at = next(i for i, computed in enumerate(integers.nodes) if computed.node.op_type == "QLinearConv")
    (y,) = integers.nodes[at].outputs
    changed = y.copy()
    changed.flat[[0, 5]] += 1
    nodes = (*integers.nodes[:at], replace(integers.nodes[at], outputs=(changed,)), *integers.nodes[at + 1 :])
    found = [one for one in compare_integers(replace(integers, nodes=nodes)) if one.kind == "QLinearConv"]
    assert found == [Difference(integers.nodes[at].node.name, "QLinearConv", 2, 48)]
    assert summarise_differences(found) == ["QLinearConv: 1 operators, 48 values, 2 differing"]
    assert summarise_differences([replace(found[0], differing=None)]) == ["QLinearConv: 1 operators, 48 values, no formula"]


def test_weights_beside_uint8_are_uint8():
    integers = isolated_integers(small(WEIGHTS), FEEDS)
    weights = next(computed.inputs[3] for computed in integers.nodes if computed.node.op_type == "QLinearConv")
    assert weights is not None
    np.testing.assert_array_equal(weights.astype(int) - 128, WEIGHTS)
    assert sum(one.differing or 0 for one in compare_integers(integers)) == 0


def test_refusals_of_formulas_or_onnxruntime_are_one_line():
    with pytest.raises(BadInputError, match=r"^conv\S*: scale 0\b"):
        compare_integers(isolated_integers(small(WEIGHTS, scale=0), FEEDS))
    with pytest.raises(BadInputError, match=naming("onnxruntime", "x")):
        isolated_integers(small(WEIGHTS), {"x": FEEDS["x"][:, :1]})
    broken = small(WEIGHTS)
    broken.graph.node[1].op_type = "QLinearNothing"
    with pytest.raises(BadInputError, match=naming("onnxruntime", "QLinearNothing")):
        isolated_integers(broken, FEEDS)
