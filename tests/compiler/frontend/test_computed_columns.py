"""Models of `quantize_dynamic`: products with a zero point of run time, in steps of which the NPU does the product."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import QuantType, quantize_dynamic

from compiler.frontend import load_model
from compiler.frontend.handlers.dynamic_zero_points import column_groups, host_products, split_products
from compiler.frontend.handlers.qdq_fusion import fuse_groups
from compiler.frontend.lower import lower_partition
from compiler.frontend.partition.offload_cost import AlwaysOffload, Offload
from compiler.ops.lower_graph import pack_unit
from simulator.exact_onnxruntime import exact_model, read_tensors
from simulator.npu.machine_file import load_machine
from simulator.npu.parts import DataType
from tests.dynamic import dynamic, mlp, transformer


def run(model, feeds, fused=True):
    return list(read_tensors(exact_model(model, fused), feeds, [item.name for item in model.graph.output]).values())


def product(op_type, x, w, w_zero, y_rank, **attributes):
    """A DynamicQuantizeLinear, and its integers by weights: [x] -> [sums]."""
    zeros = [] if w_zero is None else [numpy_helper.from_array(w_zero, "wz")]
    nodes = [
        helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"]),
        helper.make_node(op_type, ["q", "w", "z", *(["wz"] if zeros else [])], ["y"], name="product", **attributes),
    ]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, x)]
    outputs = [helper.make_tensor_value_info("y", TensorProto.INT32, [None] * y_rank)]
    graph = helper.make_graph(nodes, "product", inputs, outputs, [numpy_helper.from_array(w, "w"), *zeros])
    return load_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))


RNG = np.random.default_rng(0)


def integers(dtype, *shape):
    limits = np.iinfo(dtype)
    return RNG.integers(limits.min, limits.max + 1, shape).astype(dtype)


PRODUCTS = {
    "matrix": (("MatMulInteger", (2, 5, 7), integers(np.int8, 7, 9), None, 3), {}),
    "zeros of columns": (("MatMulInteger", (5, 7), integers(np.int8, 7, 9), integers(np.int8, 9), 2), {}),
    "unsigned": (("MatMulInteger", (5, 7), integers(np.uint8, 7, 9), np.uint8(131), 2), {}),
    "padded": (("ConvInteger", (1, 3, 6, 5), integers(np.int8, 4, 3, 3, 3), np.int8(0), 4), {"pads": [1, 0, 2, 1], "strides": [2, 1]}),
    "same": (("ConvInteger", (1, 3, 6, 5), integers(np.uint8, 4, 3, 3, 2), np.uint8(7), 4), {"auto_pad": "SAME_LOWER"}),
    "groups": (("ConvInteger", (1, 4, 6, 6), integers(np.int8, 6, 2, 3, 3), None, 4), {"group": 2, "pads": [1, 1, 1, 1]}),
    "signal": (("ConvInteger", (1, 3, 9), integers(np.int8, 4, 3, 3), None, 3), {"pads": [2, 1], "dilations": [2]}),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_sums_are_what_they_were(name):
    args, attributes = PRODUCTS[name]
    model = product(*args, **attributes)
    steps = split_products(model)
    assert [node.op_type for node in model.graph.node] == ["DynamicQuantizeLinear", args[0]]
    assert [node.op_type for node in steps.graph.node].count(args[0]) == 1
    assert {i for group in column_groups(steps).values() for i in group.members} == {
        i for i, node in enumerate(steps.graph.node) if node.op_type in (args[0], "Add")
    }
    x = RNG.normal(0.7, 1, args[1]).astype(np.float32)
    for mine, theirs in zip(run(steps, {"x": x}), run(model, {"x": x}), strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_kept_or_known_columns_stay():
    model = product(*PRODUCTS["matrix"][0])
    assert split_products(model, ["y"]) is model
    known = onnx.ModelProto()
    known.CopyFrom(model)
    known.graph.node[1].input[2] = "wz"
    known.graph.initializer.append(numpy_helper.from_array(np.uint8(3), "wz"))
    assert split_products(known) is known
    steps = split_products(model)
    assert host_products(steps, []) == {"y"}
    assert host_products(steps, [steps]) == set()


@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("build", [mlp, transformer])
def test_floats_are_what_they_were(build, per_channel, tmp_path):
    """Also where onnxruntime makes one kernel of the product and what is around it; of a LayerNormalization it has another one then."""
    model = dynamic(build(), tmp_path, per_channel)
    steps = split_products(model)
    made = [node for node in fuse_groups(steps).model.graph.node if node.domain]
    assert len(made) == sum(node.op_type == "MatMulInteger" for node in model.graph.node)
    assert all(len(node.input) == 6 for node in made)  # scales as well
    feeds = {"x": np.random.default_rng(1).normal(size=(1, 16, 32)).astype(np.float32)}
    for fused in (False, True)[: 2 if build is mlp else 1]:
        for mine, theirs in zip(run(steps, feeds, fused), run(model, feeds, fused), strict=True):
            np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize("build", [mlp, transformer])
def test_products_run_on_npu_with_host_reasons(build, tmp_path):
    machine = load_machine("edge")

    def able(graph):
        return pack_unit(graph, machine, DataType.float16)

    model = dynamic(build(), tmp_path)
    graphs, part = lower_partition(model, AlwaysOffload(machine, DataType.float16), able=able)
    wanted = sum(node.op_type == "MatMulInteger" for node in model.graph.node)
    assert sum(len(op.of_columns) == 2 for graph in graphs for op in graph.operators) == wanted
    kinds = {node.op_type: node.why for node in part.host}
    assert kinds.keys() == {"DynamicQuantizeLinear", "Cast", "Mul", "Expand"}
    assert "host has before the NPU" in kinds["DynamicQuantizeLinear"]
    assert "in all of its bits" in kinds["Mul"]
    for graph in graphs:  # neither scales nor what is added is ever rounded
        columns = {name for op in graph.operators for name in op.of_columns}
        assert {graph.type_of(name, DataType.float16) for name in columns} <= {DataType.int32, DataType.float32}


def test_unworthy_product_stays_unchanged(tmp_path):
    machine = load_machine("edge")

    def able(graph):
        return pack_unit(graph, machine, DataType.float16)

    model = dynamic(mlp(), tmp_path)
    _, part = lower_partition(model, Offload(machine, DataType.float16), able=able)
    (host,) = (node for node in part.host if node.op_type == "MatMulInteger")
    assert "not worth a piece of its own" in host.why or host.why.endswith("less work than a launch takes")
    (left,) = (node for node in part.model.graph.node if node.name == host.name)
    assert left.SerializeToString() in {node.SerializeToString() for node in model.graph.node}


def test_unsupported_product_stays_one_host_node(tmp_path):
    """`ethos-u65-512` has no floats, so what becomes floats is the host's as it was."""
    machine = load_machine("ethos-u65-512")

    def able(graph):
        return pack_unit(graph, machine, DataType.float16)

    model = dynamic(mlp(), tmp_path)
    with pytest.raises(Exception, match="nothing of it can run on the NPU"):
        lower_partition(model, AlwaysOffload(machine, DataType.float16), able=able, no_floats="no floats")


def test_a_weight_that_is_computed_is_the_hosts(tmp_path):
    """Both zero points are known at run time then."""
    floats = transformer()
    path = tmp_path / "m.onnx"
    onnx.save(floats, path)
    options = {"MatMulConstBOnly": False}
    quantize_dynamic(path, tmp_path / "q.onnx", weight_type=QuantType.QUInt8, extra_options=options)
    model = load_model(tmp_path / "q.onnx")
    steps = split_products(model)
    left = [node for node in fuse_groups(steps).model.graph.node if node.op_type == "MatMulInteger" and not node.domain]
    assert len(left) == 2  # of attention
