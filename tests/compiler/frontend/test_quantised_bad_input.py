"""Quantised models that cannot be right are one line; what is right and not supported is the host's, with the reason."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from compiler.frontend.onnx_io.load import load_model
from compiler.model import ModelSpec, lower_model
from simulator.npu.errors import BadInputError, UnsupportedError
from simulator.npu.machine_file import load_machine
from tests.messages import naming
from tests.models import Builder
from tuner.cli import main

EDGE = load_machine("edge")
F, U, S = np.float32, np.uint8, np.int8
SCALES = np.full(4, 0.01, F)


def qdq(drop=(), axis=0, weights=(4, 4, 3, 3), **changes):
    """Conv between QuantizeLinear and DequantizeLinear, in opset 21.  changes: of its constants.  drop: names of nodes that are missing."""
    rng = np.random.default_rng(0)
    parts = {
        "xs": F(0.05), "xz": U(128), "w": rng.integers(-99, 99, weights).astype(S), "ws": F(0.01), "wz": S(0), "b": np.zeros(4, np.int32),
        "bs": F(0.0005), "ys": F(0.3), "yz": U(100),
    } | changes  # fmt: skip
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "xs", "xz"], ["xq"], name="quantise"),
        helper.make_node("DequantizeLinear", ["xq", "xs", "xz"], ["xd"], name="x"),
        helper.make_node("DequantizeLinear", ["w", "ws", "wz"], ["wd"], name="w", axis=axis),
        helper.make_node("DequantizeLinear", ["b", "bs"], ["bd"], name="b"),
        helper.make_node("Conv", ["xd", "wd", "bd"], ["y"], name="conv"),
        helper.make_node("QuantizeLinear", ["y", "ys", "yz"], ["yq"], name="requantise"),
        helper.make_node("DequantizeLinear", ["yq", "ys", "yz"], ["out"], name="out"),
    ]
    nodes = [node for node in nodes if node.name not in drop]
    made = {name for node in nodes for name in node.output}
    last = "out" if "out" in made else "y"
    graph = helper.make_graph(
        nodes, "one", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, weights[1], 5, 5])],
        [helper.make_tensor_value_info(last, TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in parts.items()],
    )  # fmt: skip
    graph.output[0].type.tensor_type.shape.SetInParent()
    for size in ("n", "c", "h", "w"):
        graph.output[0].type.tensor_type.shape.dim.add().dim_param = size
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def opened(tmp_path, model):
    onnx.save(model, tmp_path / "q.onnx")
    return lower_model(ModelSpec(tmp_path / "q.onnx", EDGE))


WRONG = {
    "a scale of 0": (qdq(xs=F(0)), "scale 0; expected a finite number above 0"),
    "a negative scale": (qdq(ys=F(-0.5)), "scale -0.5; expected a finite number above 0"),
    "a scale that is no number": (qdq(ws=F("nan")), "scale nan; expected a finite number above 0"),
    "an infinite scale": (qdq(xs=F("inf")), "scale inf; expected a finite number above 0"),
    "too few scales": (qdq(ws=SCALES[:3], wz=np.zeros(3, S)), "3 scales for 4 channels on axis 0; expected 1 or 4"),
    "too few zero points": (qdq(ws=SCALES, wz=np.zeros(3, S)), "3 zero points for 4 channels on axis 0; expected 1 or 4"),
    "a zero point of another type": (qdq(wz=U(0)), "x_zero_point has inconsistent type tensor(uint8)"),
    "scales of input channels": (
        qdq(ws=SCALES, wz=np.zeros(4, S), axis=1),
        "Conv 'conv': scales of its weights along axis 1; expected its output channels, axis 0",
    ),
    "scales of channels of an activation": (
        qdq(xs=SCALES, xz=np.zeros(4, U)),
        "several scales or zero points; expected one of each for the whole tensor",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_impossible_model_is_one_line_naming_the_node(tmp_path, capsys, case):
    model, said = WRONG[case]
    onnx.save(model, tmp_path / "q.onnx")
    assert main(["compile", str(tmp_path / "q.onnx"), "--machine", "edge", "--out", str(tmp_path / "out.onnx")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line
    assert not (tmp_path / "out.onnx").exists()


def reasons(found):
    return {node.name: node.why for node in found.part.host if node.refused}


def test_sums_beyond_int32_are_the_hosts_by_name(tmp_path):
    wide = qdq(weights=(4, 8000, 3, 3), w=np.full((4, 8000, 3, 3), 127, S), b=np.full(4, 2**30, np.int32))
    said = r"^nothing of it can run on the NPU: Conv 'conv': sums of up to 2,244,173,824; expected at most 2,147,483,647, what int32 holds$"
    with pytest.raises(UnsupportedError, match=said):
        opened(tmp_path, wide)


def test_operator_without_quantizelinear_behind_it_is_in_floats(tmp_path):
    found = opened(tmp_path, qdq(drop=("requantise", "out")))
    kinds = [type(op).__name__ for target_graph in found.target_graphs for op in target_graph.graph.operators]
    assert kinds == ["Dequantise", "Conv"]
    assert reasons(found) == {}


@pytest.mark.parametrize(("scale", "integers"), [(0.0005, True), (0.000505, True), (0.000495, True), (0.00051, False), (0.1, False)])
def test_bias_of_another_scale_leaves_convolution_in_floats(tmp_path, scale, integers):
    """As in onnxruntime: 1% beside it is near enough."""
    model = qdq(bs=F(scale), b=np.array([100, -100, 2000, -9000], np.int32))
    found = opened(tmp_path, model)
    kinds = [type(op).__name__ for target_graph in found.target_graphs for op in target_graph.graph.operators]
    assert ("QuantisedConv" in kinds) is integers
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimised.onnx")
    onnxruntime.InferenceSession(model.SerializeToString(), options)
    theirs = [node.op_type for node in onnx.load(tmp_path / "optimised.onnx").graph.node]
    assert ("QLinearConv" in theirs) is integers


def test_int16_and_activation_scales_by_axis_are_hosts(tmp_path):
    sixteen = qdq(xz=np.int16(0), yz=np.int16(0), drop=())
    found = opened(tmp_path, sixteen)
    assert reasons(found) == {
        "quantise": "to int16; int8 and uint8 are supported",  # and not that the host makes its integers, as it does of bytes
        "x": "input 'xq' is int16; float, int8 or uint8 of a known shape is supported",
        "requantise": "to int16; int8 and uint8 are supported",
    }
    model = load_model(qdq())
    model.graph.node[0].input[1] = model.graph.node[1].input[1] = "more"
    model.graph.node[0].input[2] = model.graph.node[1].input[2] = "zeros"
    model.graph.initializer.extend([numpy_helper.from_array(SCALES, "more"), numpy_helper.from_array(np.zeros(4, U), "zeros")])
    del model.graph.node[5:]  # in floats
    model.graph.output[0].name = "y"
    assert any("4 scales along an axis of a computed tensor" in why for why in reasons(opened(tmp_path, model)).values())


B, I8, I32 = TensorProto.UINT8, TensorProto.INT8, TensorProto.INT32


def of_nodes(nodes, constants, x=(B, (4, 6)), y=(I32, (4, 5))):
    """Nodes on integers between an input and an output."""
    ends = [helper.make_tensor_value_info(name, *of) for name, of in (("x", x), ("y", y))]
    tensors = [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, "nodes", ends[:1], ends[1:], tensors)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


BIAS = np.zeros(5, np.int32)


def gemm(x=(B, (4, 6)), y=(B, (4, 5)), bias=BIAS, **attributes):
    inputs = ["x", "s", "z", "w", "s", "wz", "b", "s", "z"]
    node = helper.make_node("QGemm", inputs, ["y"], name="gemm", domain="com.microsoft", **attributes)
    return of_nodes([node], {"s": F(0.1), "z": U(3), "wz": S(0), "w": np.ones((6, 5), S), "b": bias}, x, y)


SUMS = helper.make_node("MatMulInteger", ["x", "w", "xz"], ["y"], name="sums")
OF_SUMS = {"w": np.ones((6, 5), S), "xz": np.arange(4, dtype=U)}
OF_NODES = {
    "a bias for every value": (
        gemm(bias=np.zeros((4, 5), np.int32)),
        "QGemm 'gemm': bias of shape [4, 5]; one value or one per output (5) is supported",
    ),
    "a computed tensor that is transposed": (
        gemm(x=(B, (6, 4)), transA=1),
        "QGemm 'gemm': transA = 1 transposes a computed tensor; only transA = 0 is supported",
    ),
    "a zero point for every row": (
        of_nodes([SUMS], OF_SUMS),
        "MatMulInteger 'sums': 4 zero points along an axis of a computed tensor; one for all of it is supported",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", OF_NODES)
def test_unsupported_node_is_the_hosts_by_name(tmp_path, case):
    model, said = OF_NODES[case]
    with pytest.raises(UnsupportedError) as error:
        opened(tmp_path, model)
    assert str(error.value) == f"nothing of it can run on the NPU: {said}"


def test_bias_other_than_int32_is_one_line(tmp_path):
    with pytest.raises(BadInputError, match=naming("QGemm 'gemm'", "bias", "float32", "int32")):
        opened(tmp_path, gemm(bias=np.zeros(5, F)))


def test_weights_of_one_dimension_are_one_line(tmp_path):
    model = gemm()
    (weights,) = (item for item in model.graph.initializer if item.name == "w")
    weights.CopyFrom(numpy_helper.from_array(np.ones(30, S), "w"))
    with pytest.raises(BadInputError, match=naming("QGemm 'gemm'", "[30]", "two dimensions")):
        opened(tmp_path, model)


def test_result_scale_without_zero_point_is_one_line(tmp_path):
    """onnxruntime takes the result for floats then, and refuses the model where it says bytes."""
    model = gemm()
    del model.graph.node[0].input[8]
    with pytest.raises(BadInputError, match=naming("QGemm 'gemm'", "y_scale", "y_zero_point")):
        opened(tmp_path, model)


def test_zero_point_of_another_integer_type(tmp_path):
    """What a QuantizeLinear made with one, a MatMulInteger reads with another."""
    nodes = [
        helper.make_node("QLinearMatMul", ["x", "s", "z", "w", "s", "wz", "s", "z"], ["h"], name="first"),
        helper.make_node("MatMulInteger", ["h", "v", "other"], ["y"], name="sums"),
    ]
    constants = {"s": F(0.1), "z": U(3), "wz": S(0), "w": np.ones((6, 6), S), "v": np.ones((6, 5), S), "other": U(7)}
    found = opened(tmp_path, of_nodes(nodes, constants))
    assert reasons(found) == {"sums": "its zero point is 7, that of who made its input 3; equal ones are supported"}


def test_sums_are_read_by_the_host_alone(tmp_path):
    nodes = [
        helper.make_node("MatMulInteger", ["x", "w"], ["h"], name="sums"),
        helper.make_node("Relu", ["h"], ["y"], name="after"),
    ]
    found = opened(tmp_path, of_nodes(nodes, {"w": np.ones((6, 5), S)}))
    assert reasons(found) == {"after": "operator 'after': reads int32 sums, which are for the host; integers of 8 bits are supported"}


def test_a_scale_that_is_computed_is_the_hosts(tmp_path):
    model = qdq()
    model.graph.input.append(helper.make_tensor_value_info("scale", TensorProto.FLOAT, []))
    model.graph.node[5].input[1] = model.graph.node[6].input[1] = "scale"
    found = opened(tmp_path, model)
    assert any("'scale' is computed at run time; only a constant one is supported" in why for why in reasons(found).values())


def test_float_model_on_integer_machine_has_a_hint():
    b = Builder(np.random.default_rng(0), (1, 4, 5, 5))
    said = "its matrix unit has no float16; it has int8; `tilefarm quantize` makes an int8 model of a float one$"
    with pytest.raises(UnsupportedError, match=said):
        lower_model(ModelSpec(Path("m.onnx"), load_machine("ethos-u65-512")), b.model(b.conv("x", 4)))


def test_errors_are_typed():
    with pytest.raises(BadInputError, match="expected its output channels"):
        lower_model(ModelSpec(None, EDGE), WRONG["scales of input channels"][0])
