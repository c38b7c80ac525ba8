"""QDQ models in every opset that has them: types of activations, scales of weights, `output_dtype`, and integers that the NPU has not."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from compiler.build import build_variants, default_plan, package
from compiler.frontend import load_model
from compiler.frontend.lower import lower
from compiler.ir.interpret import evaluate
from compiler.model import ModelSpec, lower_model
from simulator.npu.machine_file import load_machine
from simulator.session import InferenceSession
from tests.compiler.frontend.handlers.test_quantised import is_whole, onnxruntime_of
from tuner.cli import main

F, U, S = np.float32, np.uint8, np.int8
OPSETS = (13, 15, 17, 19, 21, 23)
SHAPE = (1, 3, 8, 8)


class Net:
    """A network of QuantizeLinear, operators and DequantizeLinear.  by_attribute: types of integers in `output_dtype`, zero points of 0."""

    def __init__(self, opset, kind, per_channel, by_attribute=False):
        self.opset, self.kind, self.per_channel, self.by_attribute = opset, kind, per_channel, by_attribute
        self.nodes, self.constants = [], {}
        self.rng = np.random.default_rng(opset)

    def op(self, op_type, *inputs, **attributes):
        self.nodes.append(helper.make_node(op_type, list(inputs), [f"t{len(self.nodes)}"], **attributes))
        return self.nodes[-1].output[0]

    def constant(self, value):
        name = f"c{len(self.constants)}"
        self.constants[name] = np.asarray(value)
        return name

    def quantised(self, x, scale, zero=3):
        """x as integers and back."""
        ends = np.iinfo(self.kind)
        parts = [self.constant(F(scale))]
        attributes = {"output_dtype": helper.np_dtype_to_tensor_dtype(np.dtype(self.kind))} if self.by_attribute else {}
        if not self.by_attribute:
            parts.append(self.constant(self.kind(np.clip(zero, ends.min, ends.max))))
        return self.op("DequantizeLinear", self.op("QuantizeLinear", x, *parts, **attributes), *parts)

    def weights(self, shape, axis=0):
        scale = self.rng.uniform(0.005, 0.02, shape[axis]).astype(F) if self.per_channel else F(0.01)
        parts = (self.rng.integers(-127, 128, shape).astype(S), scale, np.zeros(np.shape(scale), S))
        return self.op("DequantizeLinear", *map(self.constant, parts), **({"axis": axis} if self.per_channel else {}))

    def model(self, y):
        imports = [helper.make_opsetid("", self.opset)]
        graph = helper.make_graph(
            self.nodes, "net", [helper.make_tensor_value_info("x", TensorProto.FLOAT, SHAPE)],
            [helper.make_tensor_value_info(y, TensorProto.FLOAT, [1, 10])],
            [numpy_helper.from_array(value, name) for name, value in self.constants.items()],
        )  # fmt: skip
        return helper.make_model(graph, opset_imports=imports, ir_version=helper.find_min_ir_version_for(imports))


def network(*how):
    net, least = Net(*how), -1000
    x = net.quantised("x", 0.03)
    a = net.op("Conv", x, net.weights((8, 3, 3, 3)), pads=[1] * 4)
    a = net.quantised(a if net.by_attribute else net.op("Relu", a), 0.05, least)
    b = net.quantised(net.op("Conv", a, net.weights((8, 1, 3, 3)), pads=[1] * 4, group=8), 0.04)
    c = net.quantised(net.op("Add", a, b), 0.06)
    c = net.quantised(net.op("Mul", a, net.quantised(net.op("Sigmoid", c), 1 / 256, least)), 0.05)
    c = net.quantised(net.op("Tanh", c), 0.02)
    c = net.quantised(net.op("MaxPool", c, kernel_shape=[2, 2], strides=[2, 2]), 0.02)
    c = net.quantised(net.op("GlobalAveragePool", c), 0.02)
    c = net.quantised(net.op("Flatten", c), 0.02)
    c = net.quantised(net.op("Gemm", c, net.weights((8, 10), 1)), 0.05)
    return net.model(net.quantised(net.op("Softmax", c, axis=1), 1 / 256, least))


def feeds():
    return {"x": np.random.default_rng(1).normal(size=SHAPE).astype(F)}


HOW = [(opset, kind, per_channel) for opset in OPSETS for kind in (U, S) for per_channel in (False, True)]
HOW += [(opset, kind, True, True) for opset in OPSETS if opset >= 21 for kind in (U, S)]


@pytest.mark.parametrize("how", HOW, ids=lambda how: "-".join(str(getattr(each, "__name__", each)) for each in how))
def test_every_opset_is_taken_whole_and_exact(how):
    made = load_model(network(*how))
    graph, theirs = lower(made), onnxruntime_of(made, feeds())
    assert is_whole(graph)
    for name, mine in evaluate(graph, feeds()).items():
        np.testing.assert_array_equal(mine, theirs[name])
    assert len(np.unique(theirs[name])) > 3


@pytest.mark.parametrize("how", [(13, U, True), (17, S, True), (21, U, False), (23, S, False), (23, S, True, True)], ids=str)
def test_the_npu_computes_it(how, tmp_path):
    made = load_model(network(*how))
    opened = lower_model(ModelSpec(Path("net"), load_machine("edge")), made)
    assert all(node.op_type in ("QuantizeLinear", "DequantizeLinear") for node in opened.part.host)
    containers = [build_variants(packed, {"none": default_plan(packed.target_graph)}) for packed in opened.packed]
    package(opened, containers, tmp_path / "out.onnx")
    (mine,) = InferenceSession(tmp_path / "out.onnx").run(None, feeds())
    (theirs,) = onnxruntime_of(made, feeds()).values()
    np.testing.assert_array_equal(mine, theirs)


def one(activations, weights, by_attribute=False, **more):
    """A Conv in opset 21, with types of onnx's.  more: attributes of the DequantizeLinear of the weights."""
    attributes = {"output_dtype": activations} if by_attribute else {}
    parts = ["s"] if by_attribute else ["s", "z"]
    scales = np.full((4, 2, 3, 3), 0.01, F) if more else F(0.01)
    values = np.random.default_rng(0).integers(0, 8, 144).tolist()
    nodes = [
        helper.make_node("QuantizeLinear", ["x", *parts], ["xq"], name="quantise", **attributes),
        helper.make_node("DequantizeLinear", ["xq", *parts], ["xd"], name="x"),
        helper.make_node("DequantizeLinear", ["w", "ws"], ["wd"], name="w", **more),
        helper.make_node("Conv", ["xd", "wd"], ["y"], name="conv"),
        helper.make_node("QuantizeLinear", ["y", *parts], ["yq"], name="requantise", **attributes),
        helper.make_node("DequantizeLinear", ["yq", *parts], ["out"], name="out"),
    ]
    graph = helper.make_graph(
        nodes, "one", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4, 5, 5])],
        [helper.make_tensor_value_info("out", TensorProto.FLOAT, [1, 4, 3, 3])],
        [helper.make_tensor("w", weights, [4, 4, 3, 3], values), helper.make_tensor("z", activations, [], [0]),
         numpy_helper.from_array(F(0.05), "s"), numpy_helper.from_array(scales, "ws")],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


@pytest.mark.parametrize("kind", ["INT16", "UINT16", "INT4", "UINT4"])
@pytest.mark.parametrize("by_attribute", [False, True])
def test_activations_of_other_widths_are_the_hosts(tmp_path, capsys, kind, by_attribute):
    onnx.save(one(TensorProto.DataType.Value(kind), TensorProto.INT8, by_attribute), tmp_path / "q.onnx")
    words = ["compile", str(tmp_path / "q.onnx"), "--layerwise", "--out", str(tmp_path / "out.onnx"), "--machine"]
    assert main([*words, "edge"]) == 0
    said = capsys.readouterr().out
    assert f"DequantizeLinear 'x': input 'xq' is {kind.lower()}; float, int8 or uint8 of a known shape is supported" in said
    assert f"2 nodes (QuantizeLinear), first QuantizeLinear 'quantise': to {kind.lower()}; int8 and uint8 are supported" in said
    if kind in ("INT16", "UINT16"):  # of 4 bits onnxruntime groups the convolution, and has no kernel for that
        assert main(["run", str(tmp_path / "out.onnx"), "--input", "random", "--check"]) == 0
        capsys.readouterr()
    assert main([*words, "ethos-u65-512"]) == 0
    assert capsys.readouterr().out.startswith("nothing of it can run on the NPU: ")


@pytest.mark.parametrize("weights", ["INT4", "UINT4", "INT16"])
@pytest.mark.parametrize("blocks", [False, True])
def test_weights_of_other_widths_are_floats_between_integers(tmp_path, capsys, weights, blocks):
    more = {"axis": 1, "block_size": 2} if blocks else {}
    onnx.save(one(TensorProto.UINT8, TensorProto.DataType.Value(weights), **more), tmp_path / "q.onnx")
    opened = lower_model(ModelSpec(tmp_path / "q.onnx", load_machine("edge")))
    assert [type(op).__name__ for target_graph in opened.target_graphs for op in target_graph.graph.operators] == [
        "Dequantise",
        "Conv",
        "Quantise",
    ]
    words = ["compile", str(tmp_path / "q.onnx"), "--layerwise", "--machine", "edge", "--out", str(tmp_path / "out.onnx")]
    assert main(words) == 0
    assert main(["run", str(tmp_path / "out.onnx"), "--input", "random", "--check"]) == 0
    assert any(re.search(r"\b2\b.* x, requantise$", line) for line in capsys.readouterr().out.splitlines())
