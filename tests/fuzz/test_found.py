"""Faults that random graphs have found, each cut down to its smallest graph."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper

from tests.fuzz.as_test import assert_right, regular

# a host so slow that the NPU gets what it can
NPU = "edge:host.launch_us=0,host.macs_per_s=1,host.bytes_per_s=1000"


def _float(value: float) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    return np.array(value, np.float32)


@pytest.mark.parametrize("constant", [_float(1.5), regular([1, 4, 1, 1]), regular([4, 3, 5])])
def test_a_mean_with_a_constant(constant: np.ndarray[tuple[int, ...], np.dtype[np.float32]]) -> None:
    nodes = [helper.make_node("Mean", ["x", "c"], ["y"])]
    assert_right(nodes, {"x": regular([1, 4, 3, 5])}, {"y": ("float32", [1, 4, 3, 5])}, {"c": constant}, 17, "edge", "float16")


@pytest.mark.parametrize("factors", [{"alpha": 0.5}, {"beta": 0.5}, {"alpha": 0.5, "beta": 2.0}, {}])
def test_a_quantised_gemm_of_two_factors(factors: dict[str, float]) -> None:
    nodes = [
        helper.make_node("DequantizeLinear", ["q", "a"], ["x"]),
        helper.make_node("DequantizeLinear", ["w", "b"], ["v"]),
        helper.make_node("DequantizeLinear", ["c", "ab"], ["u"]),
        helper.make_node("Gemm", ["x", "v", "u"], ["z"], **factors),
        helper.make_node("QuantizeLinear", ["z", "s", "zero"], ["y"]),
    ]
    constants = {"a": _float(0.0179290771484375), "b": _float(0.004161834716796875), "w": np.array([[24, -66]], np.int8)}
    constants |= {
        "c": np.array([-153, 3097], np.int32),
        "ab": constants["a"] * constants["b"],
        "s": _float(0.0125),
        "zero": np.array(0, np.int8),
    }
    assert_right(nodes, {"q": np.array([[33], [-36]], np.int8)}, {"y": ("int8", [2, 2])}, constants, 17, "edge", "float16")


def test_integers_taken_backwards() -> None:
    nodes = [
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["t"]),
        helper.make_node("Slice", ["t", "starts", "ends", "axes", "steps"], ["u"]),
        helper.make_node("QuantizeLinear", ["u", "s", "z"], ["y"]),
    ]
    places = {"starts": np.array([22]), "ends": np.array([19]), "axes": np.array([1]), "steps": np.array([-1])}
    constants = {"s": _float(0.0483), "z": np.array(130, np.uint8), **places}
    assert_right(nodes, {"q": regular([1, 22, 22], "uint8")}, {"y": ("uint8", [1, 2, 22])}, constants, 17, "edge", "float16")


def test_copy_of_a_tensor_already_in_place() -> None:
    nodes = [
        helper.make_node("DequantizeLinear", ["q", "s"], ["a"]),
        helper.make_node("Tanh", ["a"], ["b"]),
        helper.make_node("QuantizeLinear", ["b", "t"], ["c"]),
        helper.make_node("DequantizeLinear", ["c", "t", "z"], ["d"]),
        helper.make_node("Transpose", ["d"], ["e"]),
        helper.make_node("QuantizeLinear", ["e", "t", "z"], ["f"]),
    ]
    constants = {"s": _float(0.0217), "t": _float(0.00778), "z": np.array(127, np.uint8)}
    outputs = {"c": ("uint8", [1, 1, 1]), "f": ("uint8", [1, 1, 1])}
    feeds = {"q": np.array([[[188]]], np.uint8)}
    assert_right(nodes, feeds, outputs, constants, 17, "ethos-u65-512", "float16", plans=("predicted",))


def test_outputs_of_two_numbers_of_images() -> None:
    nodes = [helper.make_node("Reshape", ["x1", "shape"], ["a"]), helper.make_node("Slice", ["x2", "s", "e"], ["b"])]
    constants = {"shape": np.array([4, -1]), "s": np.array([0]), "e": np.array([2])}
    feeds = {"x1": regular([1, 2, 2, 2]), "x2": regular([2, 2, 2, 1])}
    assert_right(nodes, feeds, {"b": ("float32", [2, 2, 2, 1]), "a": ("float32", [4, 2])}, constants, 21, "edge", "float16")


def test_copies_alone_planned_by_prediction() -> None:
    nodes = [
        helper.make_node("Unsqueeze", ["x1", "c3"], ["t4"]),
        helper.make_node("Exp", ["x2"], ["t6"]),
        helper.make_node("Squeeze", ["t6"], ["t10"]),
    ]
    feeds = {"x1": regular([1, 2, 1]), "x2": regular([1, 1, 1, 2, 1])}
    outputs = {"t10": ("float32", [2]), "t6": ("float32", [1, 1, 1, 2, 1]), "t4": ("float32", [1, 2, 1, 1])}
    assert_right(nodes, feeds, outputs, {"c3": np.array([0])}, 24, "edge", "float16", plans=("predicted",))


@pytest.mark.parametrize(("op", "axes"), [("ReduceL2", [1]), ("ReduceMean", [0, 4]), ("ReduceSum", [2, 3])])
def test_reductions_of_five_axes(op: str, axes: list[int]) -> None:
    nodes = [helper.make_node(op, ["x", "axes"], ["y"])]
    shape = [2, 1, 2, 2, 1]
    outputs = {"y": ("float32", [1 if axis in axes else size for axis, size in enumerate(shape)])}
    assert_right(nodes, {"x": regular(shape)}, outputs, {"axes": np.array(axes)}, 18, NPU, "float16")


def test_tensor_in_chunks_and_rows_of_sliding_segment() -> None:
    """What streams a right side in chunks of its own does not bring the rows of the same tensor for another operator."""
    nodes = [
        helper.make_node("DequantizeLinear", ["t3", "c1", "c2"], ["t4"]),
        helper.make_node("DequantizeLinear", ["t7", "c1"], ["t8"]),
        helper.make_node("DequantizeLinear", ["t10", "c1"], ["t11"]),
        helper.make_node("MatMul", ["t8", "t11"], ["t12"]),
        helper.make_node("DequantizeLinear", ["c16", "c14"], ["t17"]),
        helper.make_node("MatMul", ["t11", "t17"], ["t18"]),
        helper.make_node("Reshape", ["t4", "c19"], ["t20"]),
        helper.make_node("QuantizeLinear", ["t20", "c1", "c2"], ["t21"]),
        helper.make_node("ConvInteger", ["t21", "c22"], ["t23"]),
        helper.make_node("QuantizeLinear", ["t12", "c28", "c29"], ["t30"]),
        helper.make_node("QuantizeLinear", ["t18", "c32", "c33"], ["t34"]),
    ]
    feeds = {"t10": regular([1, 6, 28], "int8"), "t7": regular([1, 28, 6], "int8"), "t3": regular([1, 28, 1, 2, 14], "int8")}
    constants = {
        "c1": _float(0.0248), "c2": np.array(8, np.int8), "c14": _float(0.00373), "c16": regular([28, 14], "int8"),
        "c19": np.array([1, 28, 28]), "c22": regular([14, 28, 1], "int8"), "c28": _float(0.3845), "c29": np.array(-57, np.int8),
        "c32": _float(0.0253), "c33": np.array(4, np.int8),
    }  # fmt: skip
    outputs = {"t34": ("int8", [1, 6, 14]), "t23": ("int32", [1, 14, 28]), "t30": ("int8", [1, 28, 28])}
    assert_right(nodes, feeds, outputs, constants, 22, "edge", "float16", plans=("genome 2",), seed=8)


@pytest.mark.parametrize("view", ["Squeeze", "Identity", "Transpose", "Flatten"])
def test_a_float_of_integers_behind_a_view(view: str) -> None:
    nodes = [helper.make_node("DequantizeLinear", ["q", "s"], ["a"]), helper.make_node(view, ["a"], ["y"])]
    shape = [] if view == "Squeeze" else [1, 1]
    assert_right(nodes, {"q": np.array([[-42]], np.int8)}, {"y": ("float32", shape)}, {"s": _float(0.0087)}, 18, NPU, "float16")


def test_channels_of_a_normalisation_picked_twice() -> None:
    """The scale goes into the product that picks channels, before that is cut to some of them."""
    nodes = [
        helper.make_node("LayerNormalization", ["x", "scale"], ["a"]),
        helper.make_node("Gather", ["a", "places"], ["b"], axis=1),
        helper.make_node("Slice", ["b", "starts", "ends", "axes", "steps"], ["y"]),
    ]
    constants = {"scale": regular([12]), "places": np.array([10, 11, 11, 7])}
    constants |= {"starts": np.array([2]), "ends": np.array([-5]), "axes": np.array([1]), "steps": np.array([-1])}
    assert_right(nodes, {"x": regular([1, 12])}, {"y": ("float32", [1, 3])}, constants, 21, "edge", "float16")


def test_right_side_with_rows_taken_by_block() -> None:
    """Its rows lie one behind the other for each image, though the ring of L1 goes round."""
    nodes = [helper.make_node("MatMul", ["t5", "t10"], ["t11"]), helper.make_node("Elu", ["t10"], ["t16"])]
    feeds = {"t10": regular([2, 3, 1]), "t5": regular([2, 1, 3])}
    outputs = {"t16": ("float32", [2, 3, 1]), "t11": ("float32", [2, 1, 1])}
    assert_right(nodes, feeds, outputs, {}, 18, "edge", "float16", plans=("genome 0",), seed=10426)


def test_a_quotient_of_channels_that_are_not_there() -> None:
    nodes = [helper.make_node("LRN", ["x"], ["a"], alpha=0.5, size=3), helper.make_node("Div", ["a", "c"], ["y"])]
    constants = {"c": 2 + np.abs(regular([18, 1]))}
    assert_right(nodes, {"x": regular([3, 5, 18, 5])}, {"y": ("float32", [3, 5, 18, 5])}, constants, 21, "edge", "float16")


@pytest.mark.parametrize("shapes", [([2], [1, 2]), ([1, 2], [2]), ([1], [1, 1, 1]), ([3, 2], [1, 2, 1, 2])])
@pytest.mark.parametrize("op", ["Mul", "Add"])
def test_a_quantised_pair_of_other_numbers_of_axes(op: str, shapes: tuple[list[int], list[int]]) -> None:
    """The result has the axes of the longer shape, whichever operand has more values."""
    nodes = [
        helper.make_node("DequantizeLinear", ["p", "s"], ["a"]),
        helper.make_node("DequantizeLinear", ["q", "s"], ["b"]),
        helper.make_node(op, ["a", "b"], ["c"]),
        helper.make_node("QuantizeLinear", ["c", "t"], ["y"]),
    ]
    feeds = {name: regular(shape, "uint8") for name, shape in zip("pq", shapes, strict=True)}
    outputs = {"y": ("uint8", np.broadcast_shapes(*shapes))}
    assert_right(nodes, feeds, outputs, {"s": _float(0.0193), "t": _float(0.0309)}, 13, "ethos-u65-512", "float16")


@pytest.mark.parametrize("auto_pad", ["SAME_LOWER", "SAME_UPPER"])
def test_a_mean_of_auto_pad_and_ceil_mode(auto_pad: str) -> None:
    nodes = [helper.make_node("AveragePool", ["x"], ["y"], auto_pad=auto_pad, ceil_mode=1, kernel_shape=[1], strides=[2])]
    assert_right(nodes, {"x": regular([1, 2, 10])}, {"y": ("float32", [1, 2, 5])}, {}, 21, "edge", "float16")
