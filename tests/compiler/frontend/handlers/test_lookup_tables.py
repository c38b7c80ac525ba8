"""Chains of floats between integers as tables: every one of the 256 values is onnxruntime's, and what is no such chain is left alone."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from compiler.frontend import load_model
from compiler.frontend.handlers.lookup_tables import evaluate_table
from compiler.frontend.lower import lower
from compiler.ir.interpret import evaluate
from compiler.ir.operators import LookUp
from tests.compiler.frontend.handlers.test_quantised import onnxruntime_of

U, S, F = np.uint8, np.int8, np.float32


def chain(middle, kind=U, more=()):
    """uint8 or int8 [1, 256, 1, 1] -> DequantizeLinear -> nodes from "xd" to "m" -> QuantizeLinear."""
    parts = {"xs": F(0.05), "xz": kind(3), "ys": F(0.02), "yz": kind(40), "half": F(0.5), "two": np.full(1, 2, F), "root": F(1.4142135)}
    parts |= {"several": np.arange(256, dtype=F).reshape(256, 1, 1)}
    first, last = node("DequantizeLinear", "x", "xs", "xz", out="xd"), node("QuantizeLinear", "m", "ys", "yz", out="y")
    elem, shape = helper.np_dtype_to_tensor_dtype(np.dtype(kind)), [1, 256, 1, 1]
    outputs = [helper.make_tensor_value_info("y", elem, shape)]
    outputs += [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in more]
    graph = helper.make_graph(
        [first, *middle, last], "chain", [helper.make_tensor_value_info("x", elem, shape)], outputs,
        [numpy_helper.from_array(np.asarray(value), name) for name, value in parts.items()],
    )  # fmt: skip
    return load_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9))


def node(kind, *inputs, out="m", **values):
    return helper.make_node(kind, list(inputs), [out], **values)


CHAINS = {
    "tanh": [node("Tanh", "xd")],
    "hard swish": [node("HardSwish", "xd")],
    "gelu": [node("Gelu", "xd")],
    "elu": [node("Elu", "xd", alpha=0.7)],
    "a logarithm, also of what has none": [node("Log", "xd")],
    "a number before": [node("Sub", "half", "xd")],
    "a power": [node("Pow", "xd", "two")],
    "limits": [node("Clip", "xd", "", "half")],
    "one behind the other": [node("Div", "xd", "root", out="d"), node("Erf", "d")],
}


@pytest.mark.parametrize("kind", [U, S])
@pytest.mark.parametrize("name", CHAINS)
def test_all_values_are_those_of_onnxruntime(name, kind):
    model = chain(CHAINS[name], kind)
    limits = np.iinfo(kind)
    feeds = {"x": np.arange(limits.min, limits.max + 1).astype(kind).reshape(1, 256, 1, 1)}
    graph = lower(model)
    assert [type(op) for op in graph.operators] == [LookUp]
    np.testing.assert_array_equal(evaluate(graph, feeds)["y"], onnxruntime_of(model, feeds)["y"])


@pytest.mark.parametrize(
    ("middle", "more"),
    [
        ([node("Softplus", "xd", out="a"), node("Mul", "a", "xd")], ()),  # it is read twice
        ([node("Mul", "xd", "several")], ()),
        ([node("Tanh", "xd")], ("m",)),  # so somebody else reads it
        ([node("Softmax", "xd", axis=1)], ()),
    ],
    ids=["two readers", "several values", "an output", "no value alone"],
)
def test_functions_of_several_values_are_no_table(middle, more):
    assert LookUp not in {type(op) for op in lower(chain(middle, U, more)).operators}


def in_opset(version):
    """Results of a Tanh."""
    nodes = [node("DequantizeLinear", "x", "s", out="xd"), node("Tanh", "xd"), node("QuantizeLinear", "m", "s", out="y")]
    return evaluate_table(nodes, {"s": F(0.03125)}, (TensorProto.UINT8, TensorProto.UINT8), [helper.make_opsetid("", version)], 9)


def test_onnxruntime_refusals_have_no_table_and_bugs_raise(monkeypatch):
    assert in_opset(13)[32] == round(np.tanh(1.0) * 32)
    assert in_opset(9) is None  # has no QuantizeLinear yet

    def broken(*_, **__):
        raise TypeError("not a refusal")

    monkeypatch.setattr(onnxruntime, "InferenceSession", broken)
    with pytest.raises(TypeError, match="not a refusal"):
        in_opset(14)
