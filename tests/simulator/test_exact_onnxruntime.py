"""Integers that onnxruntime gives on every CPU: by its own kernels, and by formulas as an x86 without VNNI has them.

There two neighbouring products of uint8 by int8 are added in int16, with saturation; other types are exact.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from itertools import product
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from compiler.ir.quantised import products
from simulator import exact_onnxruntime
from simulator.exact_onnxruntime import exact_model, exact_session, read_tensors, session_options
from simulator.host_nodes import HostNodes
from tests.quantised_kernels import CASES, Batch
from tuner.verify import reference_body
from tuner.verify.integer_formulas import node_formula

MS = "com.microsoft"
PAIRS = [(np.uint8, np.int8), (np.int8, np.int8), (np.uint8, np.uint8)]
# operator -> its factors
FACTORS = {"QLinearConv": (0, 3), "QLinearMatMul": (0, 3), "QGemm": (0, 3), "ConvInteger": (0, 1), "MatMulInteger": (0, 1)}
FACTORS |= {"MatMulIntegerToFloat": (0, 1), "DynamicQuantizeMatMul": (0, 1), "QAttention": (0, 1), "DynamicQuantizeLSTM": (0, 1)}


def saturating_matmul(a, a_q, b, b_q):
    if (a.dtype, b.dtype) != (np.uint8, np.int8):
        return EXACT_MATMUL(a, a_q, b, b_q)
    a, b = a.astype(np.int64), b.astype(np.int64)
    each = np.pad(a[:, :, None] * b[None], [(0, 0), (0, a.shape[1] % 2), (0, 0)])
    sums = (each[:, ::2] + each[:, 1::2]).clip(-(2**15), 2**15 - 1).sum(1)
    a_zero, b_zero = a_q.along(2)[1], b_q.along(2)[1]
    return (sums - a_zero * b.sum(0) - b_zero * (a - a_zero).sum(1, keepdims=True)).astype(np.int32)


def saturating_conv(x, x_q, w, w_q, window, bias=None):
    """Of one group, one image and one scale, without a bias."""
    rank, columns = len(window.kernel), w[0].size
    windows = window.windows_of(x, int(x_q.zero_point[0])).transpose(0, *range(2, 2 + rank), 1, *range(2 + rank, 2 + 2 * rank))
    sums = saturating_matmul(windows.reshape(-1, columns), x_q, w.reshape(-1, columns).T, w_q)
    return sums.T.reshape(1, -1, *windows.shape[1 : 1 + rank])


EXACT_MATMUL = products.matmul_sums


def by_formulas(made, feeds):
    """Outputs of a model."""
    values = {item.name: numpy_helper.to_array(item) for item in made.graph.initializer} | feeds
    for node in made.graph.node:
        found = node_formula(node)([values[name] if name else None for name in node.input])
        values |= dict(zip(node.output, found, strict=True))
    return {item.name: values[item.name] for item in made.graph.output}


def factor_types(model):
    """(operator, type of the first factor, of the second) of the products in a model."""
    made = type(model)()
    made.CopyFrom(model)
    found = [(node.op_type, *(node.input[at] for at in FACTORS[node.op_type])) for node in made.graph.node if node.op_type in FACTORS]
    there = {item.name for item in made.graph.output}
    names = {name for _, *both in found for name in both} - there
    made.graph.output.extend(helper.make_empty_tensor_value_info(name) for name in sorted(names))
    types = {item.name: item.type for item in exact_onnxruntime._session(made, session_options(group=False)).get_outputs()}
    return {(op, types[a][7:-1], types[b][7:-1]) for op, a, b in found}  # of "tensor(uint8)"


def constants_of(**values):
    return [numpy_helper.from_array(np.asarray(value), name) for name, value in values.items()]


def model_of(nodes, feeds, outputs, constants):
    inputs = [helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape) for name, x in feeds.items()]
    ports = [helper.make_tensor_value_info(name, kind, [None] * rank) for name, (kind, rank) in outputs.items()]
    graph = helper.make_graph(nodes, "g", inputs, ports, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid(MS, 1)], ir_version=8)


def every(rng, dtype, shape):
    """Many values at the ends of the type."""
    limits = np.iinfo(dtype)
    values = rng.integers(limits.min, limits.max + 1, shape)
    return np.where(rng.random(shape) < 0.5, np.where(rng.random(shape) < 0.5, limits.min, limits.max), values).astype(dtype)


def layers(op, a_type, b_type, readers):
    """QDQ: some layers, all by one weight."""
    rng = np.random.default_rng(5)
    a_shape, b_shape = ((1, 4, 6, 6), (5, 4, 3, 3)) if op == "Conv" else ((7, 21), (21, 5))
    a_zero, y_zero = (131, 120) if a_type == np.uint8 else (3, -8)
    constants = constants_of(
        sa=np.float32(0.02), za=a_type(a_zero), sw=np.float32(0.01), zw=b_type(b_type == np.uint8 and 128),
        sy=np.float32(0.6), zy=a_type(y_zero), w=every(rng, b_type, b_shape),
    )  # fmt: skip
    feeds, nodes = {}, [helper.make_node("DequantizeLinear", ["w", "sw", "zw"], ["fw"])]
    for i in range(readers):
        feeds[f"x{i}"] = ((every(rng, a_type, a_shape).astype(np.float32) - a_zero) * np.float32(0.02)).astype(np.float32)
        nodes += [
            helper.make_node("QuantizeLinear", [f"x{i}", "sa", "za"], [f"q{i}"]),
            helper.make_node("DequantizeLinear", [f"q{i}", "sa", "za"], [f"f{i}"]),
            helper.make_node(op, [f"f{i}", "fw"], [f"p{i}"]),
            helper.make_node("QuantizeLinear", [f"p{i}", "sy", "zy"], [f"r{i}"]),
            helper.make_node("DequantizeLinear", [f"r{i}", "sy", "zy"], [f"y{i}"]),
        ]
    outputs = {f"y{i}": (TensorProto.FLOAT, len(a_shape)) for i in range(readers)}
    return model_of(nodes, feeds, outputs, constants), feeds


@pytest.mark.parametrize("readers", [1, 2])
@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize(("op", "kernel"), [("Conv", "QLinearConv"), ("MatMul", "QLinearMatMul"), ("Gemm", "QGemm")])
def test_layers_are_the_same_without_vnni(monkeypatch, op, kernel, pair, readers):
    model, feeds = layers(op, *pair, readers)
    made = exact_model(model)
    assert [node.op_type for node in made.graph.node].count(kernel) == readers
    expected = by_formulas(made, feeds)
    monkeypatch.setattr(exact_onnxruntime, "_make_unsigned", lambda *_: None)
    plain = exact_model(model)
    monkeypatch.undo()
    monkeypatch.setattr(products, "matmul_sums", saturating_matmul)
    monkeypatch.setattr(products, "conv_sums", saturating_conv)
    there, without = by_formulas(made, feeds), by_formulas(plain, feeds)
    here = read_tensors(made, feeds, expected)
    session = dict(zip(expected, exact_session(model).run(list(expected), feeds), strict=True))
    assert list(expected) == [f"y{i}" for i in range(readers)]
    for name, value in expected.items():
        assert here[name].tobytes() == session[name].tobytes() == there[name].tobytes() == value.tobytes()
        assert (without[name].tobytes() == value.tobytes()) == (pair != (np.uint8, np.int8))  # where it would matter


@pytest.mark.parametrize("group", ["conv", "product", "dynamic"])
def test_no_kernel_is_given_uint8_by_int8(group):
    """Second factors that are constants, and others; their values are what `test_quantised_kernels` compares."""
    rng, batch = np.random.default_rng(1), Batch()
    for _ in range(40):
        CASES[group][0](batch, rng)
    model = batch.model()
    before, after = factor_types(model), factor_types(exact_model(model, group=False))
    bad = {("float" if op.startswith("Dynamic") else "uint8", "int8") for op, *_ in before}
    assert {op for op, *pair in before if tuple(pair) in bad} == {op for op, *_ in before}
    assert not {found for found in after if found[1:] in bad}
    assert {found for found in before if found[1:] not in bad} <= after


@pytest.mark.parametrize("constant", [True, False])
@pytest.mark.parametrize(("op", "pair"), [*product(["MatMulInteger"], PAIRS), *product(["ConvInteger"], PAIRS[::2])])
def test_zero_points_that_are_not_there_are_zero(op, pair, constant):
    rng = np.random.default_rng(2)
    shapes = ((1, 8, 3), (6, 8, 1)) if op == "ConvInteger" else ((3, 8), (8, 6))
    a, b = (every(rng, dtype, shape) for dtype, shape in zip(pair, shapes, strict=True))
    feeds = {"a": a} if constant else {"a": a, "b": b}
    model = model_of(
        [helper.make_node(op, ["a", "b"], ["y"])], feeds, {"y": (TensorProto.INT32, a.ndim)}, constants_of(b=b) if constant else []
    )
    made = exact_model(model)
    wide = a.astype(np.int32), b.astype(np.int32)
    expected = wide[0] @ wide[1] if op == "MatMulInteger" else (wide[1][..., 0] @ wide[0][0])[None]
    np.testing.assert_array_equal(read_tensors(made, feeds, ["y"])["y"], expected)
    assert factor_types(made) <= {(op, "uint8", "uint8"), (op, "int8", "int8")}


def attention(rng, w):
    constants = constants_of(
        w=w, b=rng.normal(0, 1, 24).astype(np.float32), sx=np.float32(0.02), sw=np.float32(0.01), zx=np.uint8(120), zw=np.int8(0)
    )
    feeds = {"x": rng.integers(0, 256, (1, 4, 8)).astype(np.uint8)}
    return helper.make_node("QAttention", ["x", "w", "b", "sx", "sw", "", "zx", "zw"], ["y"], domain=MS, num_heads=2), feeds, constants


def recurrent(rng, w):
    constants = constants_of(w=w[None], r=w[None, :4, :16], s=np.array([0.01], np.float32), z=np.array([0], np.int8))
    inputs = ["x", "w", "r", "", "", "", "", "", "s", "z", "s", "z"]
    node = helper.make_node("DynamicQuantizeLSTM", inputs, ["", "y"], domain=MS, hidden_size=4)
    return node, {"x": rng.normal(0, 1, (3, 1, 8)).astype(np.float32)}, constants


@pytest.mark.parametrize("build", [attention, recurrent])
def test_products_inside_an_operator(build):
    """By weights that no sum of two saturates with, so that there is something to compare with."""
    rng = np.random.default_rng(3)
    node, feeds, constants = build(rng, rng.integers(-63, 64, (8, 24 if build is attention else 16)).astype(np.int8))
    model = model_of([node], feeds, {"y": (TensorProto.FLOAT, 3)}, constants)
    made = exact_model(model)
    (plain,) = exact_onnxruntime._session(model, session_options()).run(None, feeds)
    np.testing.assert_array_equal(read_tensors(made, feeds, ["y"])["y"], plain)
    assert {second for _, _, second in factor_types(made)} == {"uint8"}


def test_products_in_branches():
    """One by a weight of its own, one by that of the graph around it, which has a product by it as well."""
    rng = np.random.default_rng(4)
    x, w, v = every(rng, np.uint8, (3, 8)), every(rng, np.int8, (8, 6)), every(rng, np.int8, (8, 6))
    ports = [helper.make_tensor_value_info("y", TensorProto.INT32, [3, 6])]
    branches = [
        helper.make_graph([helper.make_node("MatMulInteger", ["x", name, "zx", "zw"], ["y"])], name, [], ports, constants)
        for name, constants in (("v", constants_of(v=v)), ("w", []))
    ]
    nodes = [
        helper.make_node("MatMulInteger", ["x", "w", "zx", "zw"], ["outside"]),
        helper.make_node("If", ["own"], ["inside"], then_branch=branches[0], else_branch=branches[1]),
    ]
    feeds = {"x": x, "own": np.array(True)}
    constants = constants_of(w=w, zx=np.uint8(7), zw=np.int8(-3))
    made = exact_model(model_of(nodes, feeds, {"outside": (TensorProto.INT32, 2), "inside": (TensorProto.INT32, 2)}, constants))
    for own in (True, False):
        found = read_tensors(made, {**feeds, "own": np.array(own)}, ["outside", "inside"])
        for name, by in (("outside", w), ("inside", v if own else w)):
            np.testing.assert_array_equal(found[name], (x.astype(np.int32) - 7) @ (by.astype(np.int32) + 3))
    (branching,) = (node for node in made.graph.node if node.op_type == "If")
    assert all(node.op_type != "MatMulInteger" or node.input[1] not in "vw" for item in branching.attribute for node in item.g.node)


def test_nothing_is_made_of_nothing():
    model = model_of([], {}, {}, [])
    assert read_tensors(exact_model(model, group=False), {}, []) == {}


class WithoutVnni(onnxruntime.InferenceSession):
    """Runs what has the same values on such a CPU: no model with floats between QuantizeLinear and DequantizeLinear that may be grouped."""

    def __init__(self, data, options, **how):
        super().__init__(data, options, **how)
        self.given, self.level = onnx.load_model_from_string(data), options.graph_optimization_level

    def run(self, names, feeds, options=None):
        assert self.level == onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        assert not [pair for _, *pair in factor_types(self.given) if pair == ["uint8", "int8"]]
        return super().run(names, feeds, options)


@pytest.mark.parametrize("pair", PAIRS)
def test_host_nodes_and_bodies_run_exactly(monkeypatch, pair):
    model, feeds = layers("MatMul", *pair, 2)
    expected = by_formulas(exact_model(model), feeds)
    monkeypatch.setattr(onnxruntime, "InferenceSession", WithoutVnni)
    on_host = HostNodes(model.SerializeToString(), "host", 0).run(0, feeds)
    (of_body,) = reference_body.run_model(model, list(expected), [feeds])
    assert all(on_host[name].tobytes() == of_body[name].tobytes() == value.tobytes() for name, value in expected.items())


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("qemu-x86_64") is None, reason="qemu-user is not installed")
def test_whole_check_on_emulated_cpu_without_vnni():
    on = ["qemu-x86_64", "-cpu", "max", sys.executable]
    tests = [__file__, Path(__file__).parents[1] / "compiler/ir/test_quantised_kernels.py"]
    done = subprocess.run([*on, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not slow", *tests], check=False, capture_output=True)
    assert done.returncode == 0, done.stdout.decode()
