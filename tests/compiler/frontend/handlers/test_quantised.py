"""Quantised models as graphs, interpreted, against onnxruntime's own integers; what they become, and what is refused."""

from __future__ import annotations

from itertools import product

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from compiler.dump.graph import graph_lines
from compiler.frontend import load_model
from compiler.frontend.handlers.qdq_fusion import fuse_groups
from compiler.frontend.lower import lower
from compiler.frontend.onnx_io.scales import GROUP_DOMAIN
from compiler.ir.interpret import evaluate
from compiler.ir.operators import Concat, Dequantise, LookUp, Pool, Quantise, QuantisedConv, Reflow, Resample, Shuffle
from compiler.ir.quantised import elementwise, products
from compiler.ir.quantised.parameters import Quantisation
from compiler.ops.lower_graph import pack_unit
from simulator.exact_onnxruntime import exact_model, read_tensors
from simulator.npu.errors import BadInputError, UnsupportedError
from simulator.npu.machine_file import load_machine
from simulator.npu.parts import DataType
from tests.integer_nodes import chain
from tests.models import SMALL_MODELS, Builder, random_model, small_model
from tests.quantised_kernels import Batch, near
from tuner.zoo.load import load_network
from tuner.zoo.quantise import quantise_model, random_samples
from tuner.zoo.quantiser import Quantiser

HOW = [Quantiser(*each) for each in product(("qdq", "qop"), ("uint8", "int8"), (True, False))]
ON_INTEGERS = (Concat, Dequantise, Pool, Quantise, Reflow, Resample, Shuffle, LookUp)


def onnxruntime_of(model, feeds, as_it_is=False):
    return read_tensors(exact_model(model, group=not as_it_is), feeds, [item.name for item in model.graph.output])


def quantised_model(model, how, seed=0):
    """The quantised model as it is loaded, and an input."""
    made = load_model(quantise_model(model, random_samples(model, 2, seed), how))
    return made, {name: array[0] for name, array in random_samples(model, 1, seed + 1).items()}


def is_whole(graph):
    """Whether nothing between the inputs and the outputs is computed in floating point."""
    ends = {port.tensor for port in graph.outputs}
    inner = [op for op in graph.operators if isinstance(op, Dequantise) and op.y not in ends]
    return not inner and all(isinstance(op, ON_INTEGERS) or type(op).__name__.startswith("Quantised") for op in graph.operators)


def check(made, feeds):
    """No value differs; the graph."""
    graph = lower(made)
    mine, theirs = evaluate(graph, feeds), onnxruntime_of(made, feeds)
    if is_whole(graph):
        assert {name: int((mine[name] != theirs[name]).sum()) for name in theirs} == dict.fromkeys(theirs, 0)
    return graph


@pytest.mark.parametrize("how", HOW[::3], ids=str)
@pytest.mark.parametrize("name", sorted(SMALL_MODELS))
def test_small_models_are_exact(name, how):
    model = load_model(small_model(name))
    made, feeds = quantised_model(model, how)
    graph = check(made, feeds)
    assert is_whole(graph) or name in {"dense_block", "lrn_chain", "vector_chain"}


def test_random_models_are_exact():
    whole = 0
    for seed in range(24):
        whole += is_whole(check(*quantised_model(load_model(random_model(seed)), HOW[seed % len(HOW)], seed)))
    assert whole > 16


@pytest.mark.parametrize("seed", [310, 333])
def test_sum_with_permuted_channels_is_exact(seed):
    check(*quantised_model(load_model(random_model(seed)), HOW[seed % len(HOW)], seed))


@pytest.mark.slow
@pytest.mark.parametrize("part", range(10))
def test_many_random_models_are_exact(part):
    for seed in range(100 + 30 * part, 130 + 30 * part):
        check(*quantised_model(load_model(random_model(seed)), HOW[seed % len(HOW)], seed))


@pytest.mark.parametrize("how", HOW[:1] + HOW[6:7], ids=str)
def test_a_network_is_exact(how):
    assert is_whole(check(*quantised_model(load_network("made:mobilenet_v2-small"), how)))


@pytest.mark.slow
@pytest.mark.parametrize("how", HOW, ids=str)
@pytest.mark.parametrize("network", ["efficientnet_b0", "inception_v3", "mobilenet_v1", "randwire", "resnet50"])
def test_networks_are_exact(network, how):
    graph = check(*quantised_model(load_network(f"made:{network}-small"), how, 3))
    assert is_whole(graph) or network == "randwire"


def gathered(model):
    """Tables as operators that onnxruntime has."""
    out = onnx.ModelProto()
    out.CopyFrom(model)
    del out.graph.node[:]
    out.graph.initializer.append(numpy_helper.from_array(np.int32(128), "least"))
    tables = {item.name: numpy_helper.to_array(item) for item in model.graph.initializer if item.name.endswith(".table")}
    for node in model.graph.node:
        if node.domain != GROUP_DOMAIN:
            out.graph.node.append(node)
            continue
        x, y, entries = node.input[0], node.output[0], tables[node.input[5]]
        wide = [helper.make_node("Cast", [x], [f"{y}.wide"], to=6)]
        if entries.dtype == np.int8:  # as what is read
            wide.append(helper.make_node("Add", [f"{y}.wide", "least"], [f"{y}.index"]))
        out.graph.node.extend([*wide, helper.make_node("Gather", [node.input[5], wide[-1].output[0]], [y])])
    return out


@pytest.mark.parametrize("network", ["mobilenet_v2", "vit_b16"])
@pytest.mark.parametrize("activations", ["uint8", "int8"])
def test_groups_are_those_of_onnxruntime(network, activations):
    """Grouped here and left alone there, a model gives what onnxruntime makes of it with its own groups, floats in between too."""
    made, feeds = quantised_model(load_network(f"made:{network}-small"), Quantiser("qdq", activations))
    found = gathered(fuse_groups(made).model)
    assert sum(node.op_type == "QuantizeLinear" for node in found.graph.node) <= 6
    mine, theirs = onnxruntime_of(found, feeds, as_it_is=True), onnxruntime_of(made, feeds)
    assert {name: mine[name].tobytes() for name in mine} == {name: theirs[name].tobytes() for name in theirs}


@pytest.mark.parametrize("opset", [13, 18, 19, 21, 23])
def test_groups_are_found_in_every_opset(opset):
    """From 19 on onnx computes DequantizeLinear of a constant, which would leave a bias without its integers."""
    model = load_model(small_model("conv_chain"))
    made = onnx.load_model_from_string(quantise_model(model, random_samples(model, 2, 0), Quantiser("qdq", "uint8", per_channel=True)))
    next(item for item in made.opset_import if item.domain in ("", "ai.onnx")).version = opset
    made.ir_version = {21: 10, 23: 11}.get(opset, made.ir_version)
    feeds = {name: array[0] for name, array in random_samples(model, 1, 1).items()}
    assert is_whole(check(load_model(made), feeds))


def test_a_tensor_says_what_its_integers_stand_for():
    made, _ = quantised_model(load_model(small_model("conv_chain")), Quantiser("qop", "uint8", per_channel=True))
    graph = lower(made)
    graph.verify()
    conv = next(op for op in graph.operators if isinstance(op, QuantisedConv))
    assert graph.types[conv.y].same_as(conv.y_q)
    assert graph.outputs[0].tensor not in graph.types
    line = next(line for line in graph_lines(graph) if "= quantisedconv(" in line)
    assert f" {conv.y_q} = quantisedconv({conv.x}) weights=" in line
    del graph.types[conv.x]
    with pytest.raises(ValueError, match=r"reads uint8 .*, and is given floats|reads floats"):
        graph.verify()


def test_convolution_is_integer_sum_with_scale_and_offset():
    """What an NPU has: x as it is stored, padding of the zero point, weights less theirs, and two vectors for the channels of y."""
    rng = np.random.default_rng(3)
    for _ in range(30):
        channels = int(rng.integers(1, 9))
        w = rng.integers(-128, 128, (channels, 3, 3, 2)).astype(np.int8)
        x_q = Quantisation.of(np.float32(0.1), np.uint8(rng.integers(256)), np.uint8)
        w_q = Quantisation.of(rng.uniform(0.01, 0.1, channels).astype(np.float32), np.int8(rng.integers(-5, 6)), np.int8, w.shape, 0)
        y_q = Quantisation.of(np.float32(3.1), np.uint8(77), np.uint8)
        bias = rng.integers(-9999, 9999, channels).astype(np.int32)
        op = QuantisedConv("op", "x", "y", w, bias, x_q, w_q, y_q, (2, 1), (1, 2), (1, 0, 2, 1))
        x = rng.integers(0, 256, (2, 3, 7, 6)).astype(np.uint8)
        stored = np.pad(x, ((0, 0), (0, 0), (1, 2), (0, 1)), constant_values=x_q.zero_point[0])
        plain = Quantisation.of(np.float32(1), np.uint8(0), np.uint8)
        window = products.SlidingWindow((3, 2), (2, 1), (0, 0, 0, 0), (1, 2))
        sums = products.conv_sums(stored, plain, w, w_q, window, op.offset)
        real = sums.astype(np.float32) * op.scale[:, None, None]
        low, high = np.float32(0 - 77), np.float32(255 - 77)
        assert (np.rint(np.clip(real, low, high)).astype(np.int64) + 77 == op.apply([x])).all()


def qlinear(kind, inputs, shape, domain="", **attributes):
    """x -> QuantizeLinear -> one node -> DequantizeLinear -> y.  inputs: those behind x and its scale and zero point; arrays."""
    parts = {"s": np.float32(0.1), "z": np.uint8(3), **{f"i{i}": array for i, array in enumerate(inputs) if array is not None}}
    names = [f"i{i}" if array is not None else "" for i, array in enumerate(inputs)]
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["xq"]),
        helper.make_node(kind, ["xq", "s", "z", *names], ["yq"], name="node", domain=domain, **attributes),
        helper.make_node("DequantizeLinear", ["yq", "s", "z"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes, "one", [helper.make_tensor_value_info("x", 1, shape)], [helper.make_tensor_value_info("y", 1, None)],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in parts.items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)], ir_version=8)


F, U, S = np.float32, np.uint8, np.int8
W = np.ones((4, 2, 1, 1), S)
WIDE = np.ones((4, 3, 1, 1), S)  # three channels of the image's two
END = (F(0.1), U(3))
IMAGE = [1, 2, 5, 5]
MS = "com.microsoft"

# model, error, what it says
REFUSED = [
    (qlinear("QLinearConv", [W, F(0), S(0), *END], IMAGE), BadInputError, "scale 0; expected a finite number above 0"),
    (qlinear("QLinearConv", [W, np.ones(3, F), np.zeros(3, S), *END], IMAGE), BadInputError, "3 scales for 4 channels on axis 0"),
    (qlinear("QLinearConv", [W, F(1), U(0), *END], IMAGE), BadInputError, "zero point of type uint8; expected that of the tensor, int8"),
    (qlinear("QLinearConv", [W, F(1), S(0), F(0.1), S(3)], IMAGE), BadInputError, "int8; expected that of the tensor, uint8"),
    (qlinear("QLinearConv", [WIDE, F(1), S(0), *END], IMAGE), BadInputError, "2 input channels, but weights for 1 groups of 3"),
    (
        qlinear("QLinearConv", [W, F(1), S(0), *END, np.full(4, 2**31 - 1, np.int32)], IMAGE),
        UnsupportedError,
        "sums of up to 2,147,484,151; expected at most 2,147,483,647, what int32 holds",
    ),
    (qlinear("QGemm", [W[:, :, 0, 0].T, F(1), S(0), None, *END], [1, 2], MS, transA=1), UnsupportedError, "only transA = 0"),
]  # fmt: skip


@pytest.mark.parametrize(("model", "kind", "said"), REFUSED, ids=[f"{i}" for i in range(len(REFUSED))])
def test_what_is_refused_names_the_node(model, kind, said):
    with pytest.raises(kind) as caught:
        lower(model)
    assert said in str(caught.value)
    assert "node" in str(caught.value)


@pytest.mark.parametrize("pads", [(1, 300, 0, 2), (300, 0, 1, 1)], ids=str)
def test_padding_without_a_field_is_of_zero_points(pads):
    b = Builder(np.random.default_rng(0), (1, 3, 6, 40))
    floats = load_model(b.model(b.node("Conv", ["x", b.normal((4, 3, 3, 3))], pads=pads, strides=(20, 3))))
    made, feeds = quantised_model(floats, Quantiser("qop", "uint8"))
    graph = check(made, feeds)
    assert is_whole(graph)
    pack_unit(graph, load_machine("edge"), DataType.float16)


@pytest.mark.parametrize("form", ["qop", "qdq"])
def test_signal_strides_may_be_of_any_size(form):
    """Rows as long as a stride: what is left of them is zero points, of weights of any zero point as well."""
    b = Builder(np.random.default_rng(0), (1, 2, 3000))
    floats = load_model(b.model(b.node("Conv", ["x", b.normal((4, 2, 700))], pads=(350, 350), strides=(300,))))
    made, feeds = quantised_model(floats, Quantiser(form, "uint8", per_channel=True))
    for weights in (
        item for item in made.graph.initializer if item.data_type == onnx.TensorProto.INT8 and item.name.endswith("zero_point")
    ):
        weights.CopyFrom(numpy_helper.from_array(np.full(weights.dims, 3, np.int8), weights.name))
    graph = check(made, feeds)
    assert is_whole(graph)
    pack_unit(graph, load_machine("edge"), DataType.float16)


@pytest.mark.parametrize("kind", ["QLinearAdd", "QLinearMul"])
@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("shape", [(), (5,), (2, 1, 1), (1, 2, 5, 5), (1, 1, 5, 1)], ids=str)
def test_constants_beside_a_tensor_are_exact(kind, first, shape):
    """Scales near halves, as in `tests.quantised_kernels`; in a sum it matters which is first, and which repeats."""
    rng = np.random.default_rng(len(shape))
    feeds = {"x": np.asarray(rng.integers(-50, 250, IMAGE) * 0.1, F)}
    for _ in range(20):
        constant = [np.asarray(rng.integers(0, 256, shape), U), near(rng, 0.1), U(rng.integers(256))]
        model = qlinear(kind, [*constant, near(rng, 0.1), U(rng.integers(256))], IMAGE, MS)
        model.graph.node[2].input[1:] = ["i3", "i4"]
        if first:
            node = model.graph.node[1]
            node.input[:] = [*node.input[3:6], *node.input[:3], *node.input[6:]]
        mine, theirs = evaluate(lower(model), feeds)["y"], onnxruntime_of(model, feeds, as_it_is=True)["y"]
        assert int((mine != theirs).sum()) == 0


def test_tensor_read_as_another_type_is_refused():
    model = qlinear("QLinearSigmoid", list(END), IMAGE, MS)
    model.graph.initializer.append(numpy_helper.from_array(F(0.25), "other"))
    model.graph.node[1].input[1] = "other"
    with pytest.raises(UnsupportedError, match=r"uint8 \(q - 3\) \* 0\.25.* uint8 \(q - 3\) \* 0\.1"):
        lower(model)


def qdq(limit):
    """Conv, then an operator of one input, between QuantizeLinear and DequantizeLinear."""
    b = Builder(np.random.default_rng(0), (1, 3, 6, 6))
    y = limit(b, b.conv("x", 4))
    return quantised_model(load_model(b.model(y)), Quantiser())[0]


def kinds(model):
    return {node.op_type for node in fuse_groups(model).model.graph.node}


def test_limits_before_an_equal_quantiser_go_others_stay():
    relu = qdq(lambda b, x: b.relu(x))
    assert kinds(relu) == {"QuantizeLinear", "QLinearConv", "DequantizeLinear"}
    with_relu = qdq(lambda b, x: b.node("LeakyRelu", [x], alpha=0.1))
    leaky = next(node for node in with_relu.graph.node if node.op_type == "LeakyRelu")
    leaky.op_type = "Relu"  # whose zero point is not the least integer
    del leaky.attribute[:]
    assert "Table" in kinds(with_relu)


def test_result_with_another_reader_is_no_group():
    made = qdq(lambda b, x: b.node("Sigmoid", [x]))
    conv = next(node for node in made.graph.node if node.op_type == "Conv")
    assert "Conv" not in kinds(made)
    made.graph.output.append(helper.make_tensor_value_info(conv.output[0], 1, [1, 4, 6, 6]))
    assert "Conv" in kinds(made)


@pytest.mark.parametrize("shapes", [((1, 3), (1, 3, 1, 3)), ((5, 6, 5, 6), (5, 1))], ids=str)
def test_operand_of_fewer_axes_is_not_aligned_first(shapes):
    """ONNX aligns the last axes: three values in a row are not three channels."""
    batch, rng = Batch(), np.random.default_rng(0)
    q = Quantisation.of(np.float32(0.1), np.uint8(7), np.uint8)
    a, b = (rng.integers(0, 256, shape).astype(np.uint8) for shape in shapes)
    parts = [name for each in (a, b) for name in (batch.fed(each), *batch.parameters(q))]
    batch.node("QLinearAdd", [*parts, *batch.parameters(q)], elementwise.add(a, q, b, q, q), "com.microsoft")
    with pytest.raises(UnsupportedError, match=r"beside \d axes"):
        lower(load_model(chain(batch).model))


@pytest.mark.parametrize(("alpha", "beta"), [(1.0, 1.0), (0.5, 1.0), (1.0, 2.0), (0.5, 2.0)])
def test_factor_of_a_product_is_no_bias(alpha, beta):
    """Beside another factor than 1 a bias has no place among integer sums."""
    rng = np.random.default_rng(0)
    constants = {
        "w": rng.integers(-127, 128, (6, 5)).astype(np.int8), "c": rng.integers(-3000, 3000, 5).astype(np.int32),
        "x_scale": np.float32(0.02), "w_scale": np.float32(0.01), "c_scale": np.float32(0.0002), "y_scale": np.float32(0.05),
    }  # fmt: skip
    nodes = [helper.make_node("DequantizeLinear", [name, f"{name}_scale"], [f"{name}.real"]) for name in "xwc"]
    nodes.append(helper.make_node("Gemm", ["x.real", "w.real", "c.real"], ["y.real"], alpha=alpha, beta=beta))
    nodes.append(helper.make_node("QuantizeLinear", ["y.real", "y_scale", "zero"], ["y"]))
    constants["zero"] = np.zeros((), np.int8)
    graph = helper.make_graph(
        nodes, "gemm", [helper.make_tensor_value_info("x", onnx.TensorProto.INT8, [3, 6])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.INT8, [3, 5])],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )  # fmt: skip
    model = load_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))
    feeds = {"x": rng.integers(-128, 128, (3, 6)).astype(np.int8)}
    expected = onnxruntime_of(model, feeds, as_it_is=True)["y"].astype(int)
    assert np.abs(evaluate(lower(model), feeds)["y"].astype(int) - expected).max() <= 1
    assert any(isinstance(op, QuantisedConv) for op in lower(model).operators) == (alpha == beta == 1)
