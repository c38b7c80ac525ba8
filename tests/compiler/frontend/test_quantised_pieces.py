"""Quantised models of which the NPU runs a part: the pieces, what the host has, and that all of it gives onnxruntime's integers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from compiler.build import build_variants, default_plan
from compiler.frontend import load_model
from compiler.frontend.handlers.qdq_fusion import fuse_groups, separate_groups
from compiler.frontend.lower import lower_partition
from compiler.frontend.partition.offload_cost import AlwaysOffload
from compiler.ir.operators import QuantisedConv
from compiler.ops.lower_graph import pack_unit
from compiler.package.onnx_out import onnx_bytes
from simulator.npu.container_file import encode
from simulator.npu.machine_file import load_machine
from simulator.npu.parts import DataType
from simulator.session import InferenceSession
from tests.compiler.frontend.handlers.test_quantised import onnxruntime_of, quantised_model
from tests.models import Builder
from tuner.zoo.quantiser import Quantiser

ASCEND, QDQ = load_machine("ascend310"), Quantiser()


def of_layers(middle, how=QDQ):
    """Convolution, `middle`, convolution, quantised; and an input."""
    b = Builder(np.random.default_rng(0), (1, 3, 6, 6))
    return quantised_model(load_model(b.model(b.conv(middle(b, b.conv("x", 4)), 5))), how)


def pieces_of(model, machine=ASCEND):
    """Graphs, partition, and a session of all of it, layer by layer."""

    def able(graph):
        return pack_unit(graph, machine, DataType.float16)

    graphs, part = lower_partition(model, AlwaysOffload(machine, DataType.float16), able=able)
    containers = []
    for graph in graphs:
        packed = able(graph)
        containers.append(encode(replace(build_variants(packed, {"none": default_plan(packed.target_graph)}), controller=None)))
    return graphs, part, InferenceSession(onnx_bytes(part, containers))


def check(model, feeds, machine=ASCEND):
    graphs, part, session = pieces_of(model, machine)
    theirs = onnxruntime_of(model, feeds)
    for name, mine in zip(theirs, session.run(None, feeds), strict=True):
        assert mine.dtype == theirs[name].dtype
        np.testing.assert_array_equal(mine, theirs[name])
    return graphs, part


@pytest.mark.parametrize("form", ["qdq", "qop"])
@pytest.mark.parametrize("activations", ["uint8", "int8"])
def test_around_a_node_of_the_host_integers_pass(form, activations):
    """A table, where the machine has none: both convolutions are pieces, and the groups of the host are whole."""
    model, feeds = of_layers(lambda b, x: b.node("Sigmoid", [x]), Quantiser(form, activations))
    graphs, part = check(model, feeds)
    assert [type(op).__name__ for graph in graphs for op in graph.operators].count("QuantisedConv") == 2
    refused = [node for node in part.host if node.refused]
    assert {node.why for node in refused} == {"a table; machine ascend310 has no look-up (vector.lookup_cycles)"}
    group = {"DequantizeLinear", "Sigmoid", "QuantizeLinear"} if form == "qdq" else {"QLinearSigmoid"}
    assert {node.op_type for node in refused} == group
    assert all(port.tensor in graph.types for graph in graphs for port in (*graph.inputs, *graph.outputs))
    ends = [node.op_type for node in part.host if "the host makes" in node.why]
    assert ends == ["QuantizeLinear", "DequantizeLinear"]  # of the model's input and output


def test_branch_on_the_host_has_its_own_reader():
    """One DequantizeLinear is read by an operator of the NPU and by one of the host."""
    model, feeds = of_layers(lambda b, x: b.node("Add", [x, b.node("Sin", [x])]))
    assert any(sum(node.output[0] in other.input for other in model.graph.node) > 1 for node in model.graph.node)
    graphs, part = check(model, feeds)
    assert [type(op).__name__ for graph in graphs for op in graph.operators].count("QuantisedConv") == 2
    assert [node.op_type for node in part.host if node.refused] == ["DequantizeLinear", "Sin", "QuantizeLinear"]
    sizes = [len(members) for members in fuse_groups(separate_groups(model)).members]
    assert sum(sizes) == len(separate_groups(model).graph.node)  # every node stands for itself or in one group


def test_readers_of_their_own_change_nothing():
    model, feeds = of_layers(lambda b, x: b.node("Add", [b.node("Sin", [x]), b.node("Mul", [x, x])]))
    split = separate_groups(model)
    groups = [members for members in fuse_groups(split).members if len(members) > 1]
    for node in [node for node in split.graph.node if node.op_type == "DequantizeLinear"]:
        readers = [i for i, other in enumerate(split.graph.node) if node.output[0] in other.input]
        assert len(readers) == 1 or not any(i in members for i in readers for members in groups)
    assert len(split.graph.node) > len(model.graph.node)
    onnx.checker.check_model(split, full_check=True)
    mine, theirs = (onnxruntime_of(each, feeds, as_it_is=True) for each in (split, model))
    assert {name: mine[name].tobytes() for name in mine} == {name: theirs[name].tobytes() for name in theirs}
    assert separate_groups(split) is split


def of_integers(kind=TensorProto.UINT8, scales=True):
    """uint8 [1, 4, 6, 6] -> MaxPool -> QLinearConv -> uint8."""
    rng = np.random.default_rng(1)
    parts = {"s": np.float32(0.05), "z": np.uint8(9), "w": rng.integers(-99, 99, (8, 4, 3, 3)).astype(np.int8), "ws": np.float32(0.01)}
    parts |= {"wz": np.int8(0), "ys": np.float32(0.2), "yz": np.uint8(120)}
    nodes = [
        helper.make_node("MaxPool", ["x"], ["pooled"], kernel_shape=[2, 2]),
        helper.make_node("QLinearConv", ["pooled", "s", "z", "w", "ws", "wz", "ys", "yz"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes if scales else nodes[:1], "one", [helper.make_tensor_value_info("x", kind, [1, 4, 6, 6])],
        [helper.make_tensor_value_info("y" if scales else "pooled", kind, None)],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in parts.items()] if scales else [],
    )  # fmt: skip
    graph.output[0].type.tensor_type.shape.SetInParent()
    for size in [1, 8, 3, 3] if scales else [1, 4, 5, 5]:
        graph.output[0].type.tensor_type.shape.dim.add().dim_value = size
    return load_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))


def test_integer_inputs_and_outputs_are_those_of_file():
    model = of_integers()
    feeds = {"x": np.random.default_rng(2).integers(0, 256, (1, 4, 6, 6)).astype(np.uint8)}
    (graph,), part = check(model, feeds)
    assert part.whole
    assert str(graph.types["x"]) == "uint8 (q - 9) * 0.0500000007"
    assert isinstance(graph.operators[-1], QuantisedConv)


@pytest.mark.parametrize("form", ["qdq", "qop"])
def test_integers_of_another_order_are_moved(form):
    """Behind a node of the host with heads, a product reads a copy of what Transpose and Reshape make of it, which may be groups."""
    b = Builder(np.random.default_rng(0), (1, 8, 32))

    def linear(x):
        return b.node("Add", [b.node("MatMul", [x, b.normal((32, 32), 0.2)]), b.normal((32,))])

    def shape(*sizes):
        return b.constant(np.array(sizes, np.int64))

    heads = b.node("Transpose", [b.node("Reshape", [linear("x"), shape(1, 8, 2, 16)])], perm=[0, 2, 1, 3])
    back = b.node("Transpose", [b.node("Sin", [heads])], perm=[0, 2, 1, 3])
    linear(b.node("Reshape", [back, shape(1, 8, 32)]))
    graphs, part = check(*quantised_model(load_model(b.model()), Quantiser(form)))
    assert [type(op).__name__ for graph in graphs for op in graph.operators].count("QuantisedConv") == 2
    assert {node.op_type for node in part.host} <= {"Sin", "QuantizeLinear", "DequantizeLinear"}
