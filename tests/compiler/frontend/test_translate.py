"""Each ONNX operator against onnxruntime, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper

from compiler.frontend import lower
from compiler.frontend.handlers.handlers import HANDLERS
from compiler.frontend.handlers.to_graph import translate
from compiler.frontend.lower import lower_partition
from compiler.frontend.onnx_io.load import prepare
from compiler.ir.interpret import evaluate
from compiler.ir.operators import Conv, Pool, Reflow, Resample
from simulator.npu.errors import UnsupportedError
from simulator.npu.machine_file import load_machine
from tests.graphs import conv, target_graph
from tests.messages import naming
from tests.models import SMALL_MODELS, Builder, Floats, random_feeds, random_model, reference_outputs, small_model


def assert_same(actual: dict[str, Floats], expected: dict[str, Floats], tolerance: float = 1e-5) -> None:
    assert actual.keys() == expected.keys()
    for name, reference in expected.items():
        assert actual[name].shape == reference.shape
        assert np.abs(actual[name] - reference).max() <= tolerance * max(float(np.abs(reference).max()), 1e-6)


def check(model: ModelProto) -> None:
    """Translated alone and lowered the whole way, the values are onnxruntime's."""
    model = prepare(model)
    feeds = random_feeds(model, 1)
    expected = reference_outputs(model, feeds)
    assert_same(evaluate(translate(model, HANDLERS), feeds), expected)
    assert_same(evaluate(lower(model), feeds), expected)


def vector(*shape: int) -> Callable[[Builder], str]:
    return lambda b: b.normal(shape)


LARGE = np.array([1, 1, 8, 7], np.float32)  # factors of an image's axes

CASES: dict[str, Callable[[Builder], str]] = {
    "softmax of rows": lambda b: b.softmax("x", axis=3),
    "concat of rows": lambda b: b.node("Concat", ["x", "x"], axis=2),
    "output of channels in parts": lambda b: b.node(
        "Transpose", [b.node("Reshape", ["x", b.constant(np.array([1, 2, 3, 99]))])], perm=[0, 1, 3, 2]
    ),
    "broadcast of columns": lambda b: b.add("x", b.node("MaxPool", ["x"], kernel_shape=[9, 1])),
    "broadcast both ways": lambda b: b.add(b.node("MaxPool", ["x"], kernel_shape=[9, 1]), b.node("MaxPool", ["x"], kernel_shape=[1, 11])),
    "gemm transposed": lambda b: b.node("Gemm", [b.gemm("x", 4), b.normal((1, 4))], transA=1),
    "conv dilated": lambda b: b.conv("x", 5, (3, 2), (2, 1), (2, 0, 1, 3), dilation=(2, 3)),
    "conv grouped": lambda b: b.conv("x", 12, (3, 3), groups=3),
    "conv depthwise": lambda b: b.conv("x", 6, (3, 3), (2, 2), groups=6),
    "conv depth multiplier": lambda b: b.conv("x", 18, (3, 3), groups=6),
    "conv same upper": lambda b: b.node("Conv", ["x", b.normal((4, 6, 4, 3))], auto_pad="SAME_UPPER", strides=[2, 3]),
    "conv same lower": lambda b: b.node("Conv", ["x", b.normal((4, 6, 4, 3))], auto_pad="SAME_LOWER", strides=[2, 1]),
    "conv valid": lambda b: b.node("Conv", ["x", b.normal((4, 6, 4, 3))], auto_pad="VALID"),
    "max pool ceil": lambda b: b.max_pool("x", 3, 2, ceil_mode=1),
    "max pool pads": lambda b: b.max_pool("x", 3, 2, (1, 0, 2, 1)),
    "average pool ceil": lambda b: b.average_pool("x", 3, 2, ceil_mode=1),
    "average pool without pads": lambda b: b.average_pool("x", 3, 1, (1, 1, 1, 1)),
    "average pool with pads": lambda b: b.average_pool("x", 3, 1, (1, 1, 1, 1), count_include_pad=1),
    "average pool same": lambda b: b.node("AveragePool", ["x"], kernel_shape=[2, 3], strides=[2, 2], auto_pad="SAME_LOWER"),
    "global average": lambda b: b.node("GlobalAveragePool", ["x"]),
    "global max": lambda b: b.node("GlobalMaxPool", ["x"]),
    "global average of many pixels": lambda b: b.node("GlobalAveragePool", [b.node("Resize", ["x", "", b.constant(LARGE)])]),
    "global max of many pixels": lambda b: b.node("GlobalMaxPool", [b.node("Resize", ["x", "", b.constant(LARGE)])]),
    "batch norm": lambda b: b.batch_norm("x"),
    "lrn odd": lambda b: b.lrn("x", 3, 0.5),
    "lrn wide": lambda b: b.lrn("x", 31, 2.0),
    "gemm of an image": lambda b: b.gemm("x", 7),
    "gemm alpha beta": lambda b: b.node(
        "Gemm", [b.node("Flatten", ["x"]), b.normal((6 * 9 * 11, 5), 0.1), b.normal((5,))], alpha=0.5, beta=-2.0
    ),
    "matmul": lambda b: b.node("MatMul", [b.node("Flatten", ["x"]), b.normal((6 * 9 * 11, 5), 0.1)]),
    "flatten into channels": lambda b: b.conv(
        b.node("Reshape", ["x", b.constant(np.array([1, -1, 1, 1], np.int64))]), 5, (1, 1), pads=(0, 0, 0, 0)
    ),
    "softmax": lambda b: b.softmax("x"),
    "softmax of a vector": lambda b: b.softmax(b.gemm("x", 9), axis=-1),
    "constant image": lambda b: b.add("x", b.normal((1, 6, 9, 11))),
    "constant row": lambda b: b.add("x", b.normal((11,))),
    "constant column over": lambda b: b.node("Div", [b.normal((9, 1)), b.node("Exp", ["x"])]),
    "shuffle": lambda b: b.shuffle("x", 3),
    "channels last": lambda b: b.node("Transpose", ["x"], perm=[0, 2, 3, 1]),
    "pixels first": lambda b: b.node("Transpose", ["x"], perm=[2, 0, 1, 3]),
    "rows as columns": lambda b: b.relu(b.node("Reshape", ["x", b.constant(np.array([1, 6, 11, 9]))])),
    "channels last and back": lambda b: b.relu(b.node("Transpose", [b.node("Transpose", ["x"], perm=[0, 2, 3, 1])], perm=[0, 3, 1, 2])),
    "matmul of pixels": lambda b: b.node("MatMul", [b.node("Transpose", ["x"], perm=[0, 2, 3, 1]), b.normal((6, 5), 0.4)]),
    "matmul from the left": lambda b: b.node("MatMul", [b.normal((4, 6), 0.4), b.node("Reshape", ["x", b.constant(np.array([6, 99]))])]),
    "matmul of shuffled channels": lambda b: b.node("MatMul", [b.node("Flatten", [b.shuffle("x", 3)]), b.normal((6 * 9 * 11, 5), 0.1)]),
    "channels last constant": lambda b: b.add(b.node("Transpose", ["x"], perm=[0, 2, 3, 1]), b.normal((6,))),
    "softmax of the last axis": lambda b: b.softmax(b.node("Transpose", ["x"], perm=[0, 2, 3, 1]), axis=-1),
    "shuffle twice": lambda b: b.shuffle(b.shuffle("x", 3), 3),
    "concat of itself": lambda b: b.concat("x", "x", "x"),
    "sum of three": lambda b: b.node("Sum", ["x", b.relu("x"), b.batch_norm("x")]),
    "add itself": lambda b: b.add("x", "x"),
    "sub": lambda b: b.node("Sub", ["x", b.relu("x")]),
    "div": lambda b: b.node("Div", ["x", b.node("Exp", ["x"])]),
    "max min": lambda b: b.node("Max", [b.node("Min", ["x", b.batch_norm("x")]), b.node("Neg", ["x"])]),
    "constant minus": lambda b: b.node("Sub", [b.normal((6, 1, 1)), "x"]),
    "minus constant": lambda b: b.node("Sub", ["x", b.normal((1, 6, 1, 1))]),
    "divided by constants": lambda b: b.node("Div", ["x", b.normal((6, 1, 1), 0.1, 2.0)]),
    "constant over": lambda b: b.node("Div", [b.constant(np.array(3.0, np.float32)), b.node("Exp", ["x"])]),
    "scalar times": lambda b: b.node("Mul", [b.constant(np.array([[2.5]], np.float32)), "x"]),
    "relu6": lambda b: b.node("Clip", ["x", b.constant(np.array(0, np.float32)), b.constant(np.array(0.5, np.float32))]),
    "clip below": lambda b: b.node("Clip", ["x", b.constant(np.array(-0.1, np.float32))]),
    "leaky relu": lambda b: b.node("LeakyRelu", ["x"], alpha=0.2),
    "hard swish": lambda b: b.node("HardSwish", ["x"]),
    "hard sigmoid": lambda b: b.node("HardSigmoid", ["x"], alpha=0.3),
    "sigmoid": lambda b: b.node("Sigmoid", ["x"]),
    "sqrt ln": lambda b: b.node("Log", [b.node("Sqrt", [b.node("Exp", ["x"])])]),
    "reciprocal": lambda b: b.node("Reciprocal", [b.node("Exp", ["x"])]),
    "mean over the image": lambda b: b.node("ReduceMean", ["x"], axes=[-1, -2], keepdims=0),
    "squeeze unsqueeze": lambda b: b.node(
        "Unsqueeze",
        [
            b.node("Squeeze", [b.node("GlobalMaxPool", ["x"]), b.constant(np.array([2, 3], np.int64))]),
            b.constant(np.array([2, 3], np.int64)),
        ],
    ),
    "relabelled output": lambda b: b.node("Reshape", [b.relu("x"), b.constant(np.array([0, 2, 3, -1], np.int64))]),
    "relu of a flat image": lambda b: b.gemm(b.relu(b.node("Flatten", ["x"])), 4),
    "cast": lambda b: b.node("Cast", [b.relu(b.node("Cast", ["x"], to=TensorProto.DOUBLE))], to=TensorProto.FLOAT),
    "dropout": lambda b: b.relu(b.node("Dropout", ["x"])),
}


@pytest.mark.parametrize("name", CASES)
def test_operator(name: str) -> None:
    b = Builder(np.random.default_rng(3), (1, 6, 9, 11))
    check(b.model(CASES[name](b)))


def signal_conv(b: Builder, x: str, c: int, k: int, **attributes: object) -> str:
    return b.node("Conv", [x, b.normal((c, b.shape[x][1] // int(attributes.get("group", 1)), k), 0.3), b.normal((c,))], **attributes)


def signal_and_image(b: Builder) -> str:
    """Two of one result's readers see it in rows of another width."""
    x = b.node("Unsqueeze", [signal_conv(b, "x", 4, 3), b.constant(np.array([2]))])
    y = b.node("Conv", [x, b.normal((5, 4, 1, 3))])
    y = b.node("Squeeze", [b.node("MaxPool", [y], kernel_shape=[1, 2], strides=[1, 2]), b.constant(np.array([2]))])
    return b.concat(signal_conv(b, y, 3, 2), signal_conv(b, y, 2, 2))


SIGNALS: dict[str, Callable[[Builder], str]] = {
    "conv": lambda b: signal_conv(b, "x", 5, 4, strides=[2], pads=[3, 1], dilations=[2]),
    "conv grouped": lambda b: signal_conv(b, "x", 12, 3, group=3),
    "conv same lower": lambda b: signal_conv(b, "x", 4, 4, auto_pad="SAME_LOWER", strides=[3]),
    "transposed conv": lambda b: b.node(
        "ConvTranspose", ["x", b.normal((6, 4, 5)), b.normal((4,))], strides=[3], pads=[1, 2], output_padding=[1]
    ),
    "transposed conv of a shape": lambda b: b.node("ConvTranspose", ["x", b.normal((6, 4, 3))], strides=[2], output_shape=[50]),
    "max pool ceil": lambda b: b.node("MaxPool", ["x"], kernel_shape=[3], strides=[2], ceil_mode=1),
    "average pool": lambda b: b.node("AveragePool", ["x"], kernel_shape=[4], pads=[3, 1]),
    "global pools": lambda b: b.add(b.node("GlobalMaxPool", ["x"]), b.node("GlobalAveragePool", ["x"])),
    "resize": lambda b: b.node("Resize", ["x", "", b.constant(np.array([1, 1, 2.5], np.float32))], mode="linear"),
    "pad": lambda b: b.node("Pad", ["x", b.constant(np.array([0, 1, 2, 0, 0, 3]))], mode="reflect"),
    "slice": lambda b: b.node("Slice", ["x", *(b.constant(np.array([i])) for i in (3, 20, 2, 2))]),
    "batch norm": lambda b: b.batch_norm("x"),
    "as a sequence": lambda b: b.node("MatMul", [b.node("Transpose", [signal_conv(b, "x", 8, 3)], perm=[0, 2, 1]), b.normal((8, 7))]),
    "an image in between": signal_and_image,
    "mean": lambda b: b.node("ReduceMean", ["x"], axes=[2]),
}


@pytest.mark.parametrize("name", SIGNALS)
def test_signal(name: str) -> None:
    b = Builder(np.random.default_rng(3), (2, 6, 24))
    check(b.model(SIGNALS[name](b)))


@pytest.mark.parametrize(("taps", "pads"), [(10, [0, 0]), (4, [3, 5]), (3, [1, 0]), (13, [5, 2]), (2, [0, 1])])
@pytest.mark.parametrize("images", [1, 3])
def test_samples_a_stride_apart_are_channels(taps: int, pads: list[int], images: int) -> None:
    """Of a signal of one channel, for every place of the window and every part of a stride that is padded."""
    b = Builder(np.random.default_rng(3), (images, 1, 24))
    model = b.model(signal_conv(b, "x", 5, taps, strides=[4], pads=pads))
    check(model)
    graph = lower(prepare(model))
    assert graph.shapes["x"] == (images, 4, 6, 1)


@pytest.mark.parametrize(
    "build",
    [
        lambda b: b.concat(signal_conv(b, "x", 3, 4, strides=[4]), signal_conv(b, "x", 2, 9, strides=[3])),  # two strides
        lambda b: b.add(b.node("MaxPool", ["x"], kernel_shape=[4], strides=[4]), signal_conv(b, "x", 1, 4, strides=[4])),
        lambda b: signal_conv(b, "x", 3, 4, strides=[4], dilations=[2]),
        lambda b: signal_conv(b, "x", 3, 4, strides=[4], auto_pad="SAME_UPPER"),
        lambda b: signal_conv(b, "x", 3, 4, strides=[5]),  # 24 samples are no number of fives
    ],
)
def test_samples_stay_pixels(build: Callable[[Builder], str]) -> None:
    b = Builder(np.random.default_rng(3), (1, 1, 24))
    model = b.model(build(b))
    check(model)
    assert lower(prepare(model)).shapes["x"] == (1, 1, 24, 1)


WHOLE_IMAGES: dict[str, tuple[tuple[int, ...], Callable[[Builder], str], int]] = {
    "average": ((1, 2, 18, 16), lambda b: b.node("GlobalAveragePool", ["x"]), 1),
    "average, asked for by its size": ((1, 2, 18, 16), lambda b: b.node("AveragePool", ["x"], kernel_shape=[18, 16]), 1),
    "average of many channels": ((2, 150, 7, 7), lambda b: b.node("GlobalAveragePool", ["x"]), 1),
    "max": ((1, 2, 43, 17), lambda b: b.node("GlobalMaxPool", [b.node("Neg", [b.node("Abs", ["x"])])]), 1),
    "average in strips": ((1, 2, 66, 40), lambda b: b.node("GlobalAveragePool", ["x"]), 2),
    "max in strips": ((1, 40, 66, 40), lambda b: b.node("GlobalMaxPool", ["x"]), 2),
    "average, a prime of rows": ((1, 2, 67, 41), lambda b: b.node("GlobalAveragePool", ["x"]), 2),
    "max, a prime of rows": ((1, 2, 67, 41), lambda b: b.node("GlobalMaxPool", [b.node("Neg", [b.node("Abs", ["x"])])]), 2),
    "sum of samples": ((1, 2, 331), lambda b: b.node("ReduceSum", ["x", b.constant(np.array([2]))]), 1),
    "sum, a prime of samples": ((1, 2, 2801), lambda b: b.node("ReduceSum", ["x", b.constant(np.array([2]))]), 2),
    "max of samples": ((1, 2, 2400), lambda b: b.node("GlobalMaxPool", ["x"]), 2),
}


@pytest.mark.parametrize("name", WHOLE_IMAGES)
def test_whole_images_are_pooled_in_strips_that_fit(name: str) -> None:
    shape, build, stages = WHOLE_IMAGES[name]
    b = Builder(np.random.default_rng(3), shape)
    model = b.model(build(b))
    check(model)
    pools = [op for op in lower(prepare(model)).operators if isinstance(op, Pool)]
    assert len(pools) == stages
    assert all(op.kernel[0] * op.kernel[1] <= 2048 for op in pools)


WIDE_WINDOWS: dict[str, Callable[[Builder], str]] = {
    "average": lambda b: b.node("AveragePool", ["x"], kernel_shape=[20, 14], pads=[9, 3, 2, 11], strides=[7, 5]),
    "average with pads": lambda b: b.node(
        "AveragePool", ["x"], kernel_shape=[20, 14], pads=[9, 3, 2, 11], strides=[7, 5], count_include_pad=1
    ),
    "max, ceil": lambda b: b.node("MaxPool", ["x"], kernel_shape=[20, 14], pads=[9, 3, 2, 11], strides=[7, 5], ceil_mode=1),
}


@pytest.mark.parametrize("name", WIDE_WINDOWS)
def test_wide_windows_are_pooled_in_stages(name: str) -> None:
    b = Builder(np.random.default_rng(3), (1, 2, 37, 41))
    model = b.model(WIDE_WINDOWS[name](b))
    check(model)
    pools = [op for op in lower(prepare(model)).operators if isinstance(op, Pool)]
    assert [op.kernel for op in pools] == [(20, 1), (1, 14)]


@pytest.mark.parametrize("name", ["conv grouped", "gemm of an image", "shuffle", "lrn odd", "softmax", "average pool ceil"])
def test_operator_on_a_batch(name: str) -> None:
    if name == "gemm of an image":
        b = Builder(np.random.default_rng(3), (3, 6, 9, 11))
    else:
        b = Builder(np.random.default_rng(3), (3, 6, 7, 8))
    check(b.model(CASES[name](b)))


@pytest.mark.parametrize("shape", [(5,), (2, 7), (2, 3, 5), (1, 2, 3, 4, 5)])
def test_ranks(shape: tuple[int, ...]) -> None:
    b = Builder(np.random.default_rng(3), shape)
    check(b.model(b.add(b.relu("x"), "x")))


@pytest.mark.parametrize("name", SMALL_MODELS)
def test_small_network(name: str) -> None:
    check(small_model(name))


@pytest.mark.parametrize("seed", range(60))
def test_random_network(seed: int) -> None:
    check(random_model(seed))


def test_old_softmax_flattens() -> None:
    """Before opset 13, [1, c, 1, 1] and axis 1 is over c values; what the converter makes of it is the same."""
    b = Builder(np.random.default_rng(3), (1, 6, 9, 11), opset=9)
    model = b.model(b.softmax(b.node("GlobalAveragePool", ["x"])))
    check(model)
    feeds = random_feeds(model)
    assert_same(evaluate(translate(model, HANDLERS), feeds), reference_outputs(model, feeds))


def test_lrn_of_even_size() -> None:
    """onnxruntime refuses it, and onnx's own evaluator normalises the first channel only: the window as the specification words it."""
    b = Builder(np.random.default_rng(3), (1, 6, 9, 11))
    model = b.model(b.lrn("x", 4, 0.5))
    x = random_feeds(model)["x"]
    expected = np.empty_like(x)
    for c in range(6):
        window = x[:, max(0, c - 1) : min(5, c + 2) + 1]
        expected[:, c] = x[:, c] / (1.0 + 0.5 / 4 * (window**2).sum(axis=1)) ** 0.75
    assert_same(evaluate(lower(model), {"x": x}), {model.graph.output[0].name: expected})


def test_pad_node_goes_into_the_conv() -> None:
    b = Builder(np.random.default_rng(3), (1, 6, 9, 11))
    model = prepare(b.model(b.conv(b.node("Pad", ["x", b.constant(np.array([0, 0, 1, 2, 0, 0, 3, 0]))]), 5)))
    feeds = random_feeds(model)
    assert_same(evaluate(lower(model), feeds), reference_outputs(model, feeds))


def test_several_outputs_and_an_input_that_is_one() -> None:
    b = Builder(np.random.default_rng(3), (1, 6, 9, 11))
    y = b.conv("x", 4)
    z = b.relu(y)
    check(b.model(y, z))
    identity = helper.make_graph(
        [helper.make_node("Identity", ["x"], ["y"])],
        "identity",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 2, 3, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 2, 3, 4])],
    )
    check(helper.make_model(identity, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))


def wide(b: Builder) -> str:
    """Nine rows of 700 columns."""
    return b.node("Pad", ["x", b.constant(np.array([0, 0, 0, 300, 0, 0, 0, 389]))])


FAR: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, object], tuple[type, ...]]] = {
    "above": ((1, 3, 6, 5), (4, 3, 3, 3), {"pads": [300, 1, 511, 1]}, (Conv,)),
    "above, far apart": ((1, 3, 6, 5), (4, 3, 3, 3), {"pads": [300, 1, 511, 1], "strides": [18, 1]}, (Resample, Conv)),
    "in front": ((1, 3, 6, 5), (4, 3, 3, 3), {"pads": [1, 256, 1, 511]}, (Resample, Conv)),
    "behind": ((1, 3, 6, 5), (4, 3, 3, 3), {"pads": [1, 255, 1, 511]}, (Conv,)),
    "both": ((1, 3, 6, 5), (4, 3, 3, 3), {"pads": [511, 256, 1, 1], "strides": [20, 3]}, (Resample, Conv)),
    "a signal": ((2, 3, 700), (6, 1, 511), {"strides": [256], "pads": [300, 260], "group": 3}, (Reflow, Conv)),
    "a signal, far taps": ((1, 3, 900), (4, 3, 2), {"strides": [257], "dilations": [300]}, (Reflow, Conv)),
    "one row": ((1, 3, 1, 900), (4, 3, 1, 7), {"strides": [300, 256], "pads": [0, 3, 0, 0]}, (Reflow, Conv)),
    "one result": ((1, 3, 300, 2), (4, 3, 290, 1), {"strides": [290, 1]}, (Conv,)),
    "one place": ((1, 3, 6, 5), (4, 3, 1, 2), {"dilations": [300, 4]}, (Conv,)),
}


@pytest.mark.parametrize("name", FAR)
def test_windows_beyond_an_instruction(name: str) -> None:
    shape, kernel, attributes, operators = FAR[name]
    b = Builder(np.random.default_rng(3), shape)
    model = b.model(b.node("Conv", ["x", b.normal(kernel, 0.2), b.normal(kernel[:1])], **attributes))
    check(model)
    assert tuple(type(op) for op in lower(prepare(model)).operators) == operators


def test_far_apart_goes_to_the_host() -> None:
    """The node and the number are named; what is around it stays."""
    b = Builder(np.random.default_rng(3), (1, 6, 9, 700))
    x = b.node("Conv", [b.relu(b.conv("x", 6)), b.normal((4, 6, 3, 1))], strides=[1, 256])
    (_,), part = lower_partition(prepare(b.model(x)))
    (node,) = part.host
    assert (node.op_type, node.refused) == ("Conv", True)
    assert "strides [1, 256]; at most 255 is supported" in node.why


def test_target_graph_has_no_unwritable_window() -> None:
    """A graph by hand, past the frontend: refused before anything is measured."""
    window = replace(conv("y", "x", (4, 4)), stride=(1, 256))
    with pytest.raises(UnsupportedError, match=naming("operator 'y'", "strides [1, 256]", 255)):
        target_graph(load_machine("edge"), (1, 4, 6, 600), window)


REFUSED: dict[str, tuple[Callable[[Builder], str], str]] = {
    "unknown": (lambda b: b.node("Atan", ["x"]), "Atan 't1': not supported; supported are Abs, Add,"),
    "computed weights": (
        lambda b: b.node("Conv", ["x", b.node("Reshape", ["x", b.constant(np.array([1, 6, 9, 11]))])]),
        "computed at run time",
    ),
    "dilated pool": (lambda b: b.max_pool("x", 2, 1, dilations=[2, 2]), "dilations [2, 2]"),
    "division by zero": (lambda b: b.node("Div", ["x", b.constant(np.array(0, np.float32))]), "zero"),
    "cast to integers": (
        lambda b: b.node("Cast", [b.node("Cast", ["x"], to=TensorProto.INT64)], to=TensorProto.FLOAT),
        "to int64; kinds of float",
    ),
    "strides": (lambda b: b.node("Conv", [wide(b), b.normal((4, 6, 3, 1))], strides=[1, 256]), "strides [1, 256]; at most 255"),
    "exponents": (lambda b: b.node("Pow", ["x", b.normal((6, 1, 1))]), "exponents of shape [6, 1, 1]; one number"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    build, said = REFUSED[name]
    b = Builder(np.random.default_rng(3), (1, 6, 9, 11))
    with pytest.raises(UnsupportedError) as caught:
        lower(prepare(b.model(build(b))))
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
