"""Every handler on every kind of view: the shapes and values of onnxruntime, or a refusal.  Interpreted, so that thousands take seconds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import combinations
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from compiler.frontend import lower
from compiler.frontend.handlers.to_graph import Translator, translate
from compiler.frontend.handlers.views import Atom, C, P, View
from compiler.frontend.lower import SUPPORTED, lower_partition
from compiler.frontend.onnx_io.attributes import Attributes
from compiler.frontend.onnx_io.load import prepare
from compiler.frontend.partition.offload_cost import AlwaysOffload
from compiler.ir.interpret import evaluate
from compiler.ir.operators import Conv, QuantisedConv
from compiler.ops.lower_graph import pack_unit
from simulator.exact_onnxruntime import session_options
from simulator.npu.errors import UnsupportedError
from simulator.npu.machine_file import load_machine
from simulator.npu.parts import DataType
from tests.everywhere import MACHINES, hold
from tests.messages import naming
from tests.models import Builder, random_feeds, reference_outputs
from tests.view_graphs import CASES, branched_graph, quantised, view_graph

Array = NDArray[Any]
EDGE = load_machine("edge")
SEEDS = 12  # of each case
QUANTISED_SEEDS = 3
BRANCHED = 200


def all_values(model: ModelProto, seed: int, optimised: bool = False) -> dict[str, Array]:
    """Every tensor's, by onnxruntime node by node, or the outputs alone."""
    import onnxruntime

    copy = ModelProto()
    copy.CopyFrom(model)
    rng = np.random.default_rng(seed)
    feeds = {i.name: rng.standard_normal([d.dim_value for d in i.type.tensor_type.shape.dim]).astype(np.float32) for i in model.graph.input}
    options = session_options()
    if not optimised:
        known = {item.name for item in model.graph.output}
        copy.graph.output.extend(onnx.ValueInfoProto(name=n) for node in model.graph.node for n in node.output if n and n not in known)
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(copy.SerializeToString(), options, providers=["CPUExecutionProvider"])
    names = [item.name for item in session.get_outputs()]
    return feeds | dict(zip(names, session.run(names, feeds), strict=True))


def agree(model: ModelProto, seed: int, integers: bool = False) -> Counter[str]:
    """Hold every piece of a model to the values between them; how many pieces there are, of the whole model or a part."""
    values = all_values(model, seed)
    try:
        graphs, part = lower_partition(
            prepare(model), AlwaysOffload(EDGE, DataType.float16), able=lambda g: pack_unit(g, EDGE, DataType.float16)
        )
    except UnsupportedError:
        return Counter(refused=1)
    for graph in graphs:
        pack_unit(graph, EDGE, DataType.float16)
        for name, got in evaluate(graph, {port.onnx_name: values[port.onnx_name] for port in graph.inputs}).items():
            want = values[name].astype(np.float64)
            assert got.shape == want.shape, name
            largest = np.abs(want[np.isfinite(want)]).max(initial=0)
            # what is between integers is floats, whose ties are rounded either way
            atol = 1e-4 * max(1, largest) if not integers else 8 if got.dtype.kind in "iu" else 0.04 * largest + 1e-4
            np.testing.assert_allclose(got.astype(np.float64), want, rtol=1e-3, atol=atol, err_msg=name)
    return Counter(whole=1) if part.whole else Counter(pieces=len(graphs))


@pytest.mark.parametrize("case", CASES)
def test_between_views(case: str) -> None:
    found = sum((agree(view_graph(case, seed), seed) for seed in range(SEEDS)), Counter[str]())
    assert found["whole"] + found["pieces"] > 0


def test_between_views_on_integers() -> None:
    found = Counter[str]()
    for case in CASES:
        for seed in range(QUANTISED_SEEDS):
            model = view_graph(case, seed)
            found += agree(quantised(model, all_values(model, seed), np.random.default_rng(seed)), seed, integers=True)
    assert found["whole"] + found["pieces"] > len(CASES)


def test_several_operators() -> None:
    found = sum((agree(branched_graph(seed), seed) for seed in range(BRANCHED)), Counter[str]())
    assert found["whole"] > BRANCHED // 5


def test_cases_are_all_that_is_supported() -> None:
    of_integers = {name for name in SUPPORTED if "." in name or name.endswith(("izeLinear", "Integer")) or "QLinear" in name}
    assert SUPPORTED.keys() - of_integers - CASES.keys() == {
        "RMSNormalization",
        "Swish",
        "Upsample",
    }  # opsets and domains that onnxruntime or onnx has not, and an old one


# -- what is held when a graph is lowered ------------------------------------------------------------------------------


def neg_as(change: Callable[[View], View]) -> Callable[[Translator, NodeProto, Attributes], None]:
    """A handler that has the view of its result wrong."""

    def handler(state: Translator, node: NodeProto, values: Attributes) -> None:
        SUPPORTED["Neg"](state, node, values)
        state.views[node.output[0]] = change(state.views[node.output[0]])

    return handler


MISTAKES: dict[str, Callable[[View], View]] = {
    "an axis less": lambda view: View(view.tensor, view.axes[:-1]),
    "axes in another order": lambda view: View(view.tensor, (view.axes[0], view.axes[2], view.axes[1], view.axes[3])),
    "half of the channels twice": lambda view: View(view.tensor, (view.axes[0], (Atom(C, 4, 1), Atom(C, 2, 1)), *view.axes[2:])),
    "another's pixels": lambda view: View(view.tensor, (*view.axes[:2], (Atom(P, 3, 1),), (Atom(P, 5, 5),))),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistake_of_a_handler_is_its_own_error(mistake: str) -> None:
    b = Builder(np.random.default_rng(0), (2, 8, 3, 5))
    model = b.model(b.relu(b.node("Neg", ["x"])))
    with pytest.raises(ValueError, match=naming("Neg 't1'", "'t1' of shape")):
        translate(prepare(model), {**SUPPORTED, "Neg": neg_as(MISTAKES[mistake])})


SIZES = {
    "windows": lambda b, x: b.node("MaxPool", [x], kernel_shape=[2, 2], strides=[2, 2], pads=[1, 1, 1, 1], ceil_mode=1),
    "mean of windows": lambda b, x: b.node("AveragePool", [x], kernel_shape=[1, 1], strides=[3, 2], ceil_mode=1),
    "scales": lambda b, x: b.node("Resize", [x, "", b.constant(np.array([1, 1, 1.3, 1.3], np.float32))], mode="nearest"),
}


@pytest.mark.parametrize("host", [False, True])
@pytest.mark.parametrize("name", SIZES)
def test_sizes_that_onnx_has_otherwise_than_onnxruntime(name: str, host: bool) -> None:
    """Windows that start in the padding behind, and products that float32 rounds up: whatever is behind them has the right shape too."""
    b = Builder(np.random.default_rng(0), (1, 6, 9, 10))
    x = SIZES[name](b, b.relu("x"))
    model = prepare(b.model(b.conv(b.node("Sin", [x]) if host else b.relu(x), 4), x))
    values = all_values(model, 0)
    for item in (*model.graph.output, *model.graph.value_info):
        assert tuple(d.dim_value for d in item.type.tensor_type.shape.dim) == values[item.name].shape
    assert agree(model, 0) == (Counter(pieces=2) if host else Counter(whole=1))


# -- digits ------------------------------------------------------------------------------------------------------------

SHAPES = {"groups": (2, 3, 4, 10), "volumes": (2, 5, 2, 3, 4), "one of a kind": (1, 4, 1, 6), "pixels alone": (1, 1, 3, 4, 2)}


def grouped_model(shape: tuple[int, ...], make: Callable[[Builder, str], str]) -> ModelProto:
    """A convolution whose channels are read as some axes: [n, c, ..] as [n, a, b, ..] where there is room for it."""
    n, a, b, *rest = shape if len(shape) < 5 else (shape[0], shape[1], 1, *shape[2:])
    builder = Builder(np.random.default_rng(1), (n, 5, int(np.prod(rest)), 1))
    y = builder.conv("x", a * b, (1, 1), pads=(0, 0, 0, 0))
    y = builder.node("Reshape", [y, builder.constant(np.array(shape, np.int64))])
    return builder.model(make(builder, y))


@pytest.mark.parametrize("keep", [0, 1])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_sum_over_any_axes(shape: str, keep: int) -> None:
    """All but the batch run on the NPU."""
    for size in range(1, len(SHAPES[shape])):
        for axes in combinations(range(1, len(SHAPES[shape])), size):
            for op in ("ReduceSum", "ReduceMean"):

                def make(b: Builder, y: str, op: str = op, axes: tuple[int, ...] = axes) -> str:
                    given = b.constant(np.array(axes, np.int64))
                    return b.node(op, [y, given], keepdims=keep) if op == "ReduceSum" else b.node(op, [y], axes=axes, keepdims=keep)

                model = grouped_model(SHAPES[shape], make)
                feeds = random_feeds(model)
                ((name, expected),) = reference_outputs(model, feeds).items()
                got = evaluate(lower(prepare(model)), feeds)[name]
                assert got.shape == expected.shape
                np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)


def expected_bins(b: Builder, x: str) -> str:
    """The head of a detector: a distribution over 16 bins for each side of a box, and its mean."""
    y = b.softmax(b.node("Reshape", [x, b.constant(np.array([1, 4, 16, 30], np.int64))]), 2)
    y = b.node("Mul", [y, b.constant(np.arange(16, dtype=np.float32).reshape(1, 1, 16, 1))])
    return b.node("ReduceSum", [y, b.constant(np.array([2], np.int64))], keepdims=0)


def sum_of_volumes(axis: int) -> Callable[[Builder, str], str]:
    def make(b: Builder, x: str) -> str:
        y = b.node("Reshape", [x, b.constant(np.array([1, 64, 2, 3, 5], np.int64))])
        y = b.node("ReduceMax", [y], axes=[axis], keepdims=1)
        return b.node("Slice", [y, *(b.constant(np.array([v], np.int64)) for v in (0, 20, 5 - axis, 2))])

    return make


IN_FULL: dict[str, Callable[[Builder, str], str]] = {
    "bins": expected_bins,
    **{f"volumes over {axis}": sum_of_volumes(axis) for axis in (2, 3, 4)},
}


@pytest.mark.parametrize("name", IN_FULL)
def test_instructions(name: str) -> None:
    b = Builder(np.random.default_rng(2), (1, 8, 6, 5))
    model = b.model(IN_FULL[name](b, b.conv("x", 64, (1, 1), pads=(0, 0, 0, 0))))
    for i, dtype in enumerate((DataType.float16, DataType.float32)):
        assert hold(model, list(MACHINES.values())[(len(name) + i) % len(MACHINES)], dtype, seed=i)


# -- one by one --------------------------------------------------------------------------------------------------------


def small(nodes: list[NodeProto], inputs: dict[str, list[int]], outputs: list[str], constants: dict[str, Array]) -> ModelProto:
    graph = helper.make_graph(
        nodes,
        "small",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in inputs.items()],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    return onnx.shape_inference.infer_shapes(model, strict_mode=True)


def held(model: ModelProto) -> None:
    feeds = random_feeds(model)
    got = evaluate(lower(prepare(model)), feeds)
    for name, expected in reference_outputs(model, feeds).items():
        assert got[name].shape == expected.shape
        np.testing.assert_allclose(got[name], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("shape", [[], [1], [1, 1, 1, 1, 1], [4, 1], [2, 4, 5], [5]])
def test_the_mean_with_a_constant(shape: list[int]) -> None:
    k = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    held(small([helper.make_node("Mean", ["x", "k"], ["y"])], {"x": [2, 4, 5]}, ["y"], {"k": k}))


@pytest.mark.parametrize("op", ["Add", "Div", "Max", "MatMul", "Pow"])
def test_constants_of_more_axes_than_the_tensor(op: str) -> None:
    k = np.full((1, 1, 4, 4) if op == "MatMul" else (1, 1, 1, 1), 2.0, np.float32)
    held(small([helper.make_node(op, ["x", "k"], ["y"])], {"x": [3, 4]}, ["y"], {"k": k}))


def test_convolution_1x1_of_one_pixel_keeps_its_pads() -> None:
    """Its input is no image, but [1, c, 1] of a column."""
    nodes = [helper.make_node("Squeeze", ["x", "a"], ["q"]), helper.make_node("Conv", ["q", "w"], ["y"], pads=[3, 3])]
    w = np.random.default_rng(0).standard_normal((1, 50, 1)).astype(np.float32)
    for batch in ([1, 1, 50, 1], [1, 50, 1, 1]):
        axis = 0 if batch[1] == 1 else 3
        held(small(nodes, {"x": batch}, ["y"], {"a": np.array([axis], np.int64), "w": w}))


@pytest.mark.parametrize(("shape", "taps", "dilation"), [([3, 1, 2], 1, 1), ([1, 1, 2], 2, 2)])
def test_a_strided_convolution_of_what_was_channels(shape: list[int], taps: int, dilation: int) -> None:
    """They are samples a stride apart in one signal, which are moved; those of several signals would become images: refused, not wrong."""
    w = np.random.default_rng(0).standard_normal((3, 1, taps)).astype(np.float32)
    values = {"strides": [2], "dilations": [dilation], "pads": [dilation - 1] * 2}
    nodes = [helper.make_node("Reshape", ["x", "s"], ["r"]), helper.make_node("Conv", ["r", "w"], ["y"], **values)]
    model = small(nodes, {"x": [1, shape[0] * shape[2]]}, ["y"], {"s": np.array(shape, np.int64), "w": w})
    if shape[0] == 1:
        held(model)
        return
    with pytest.raises(UnsupportedError):
        lower(prepare(model))


@pytest.mark.parametrize("outputs", [1, 3])
def test_convolution_of_a_digit_of_channels(outputs: int) -> None:
    """It takes the channels where they lie, in groups; what it makes is joined to an image as channels."""
    rng = np.random.default_rng(0)
    w, bias = rng.standard_normal((outputs, 16, 1, 1)).astype(np.float32), rng.standard_normal(outputs).astype(np.float32)
    nodes = [helper.make_node("Reshape", ["x", "s"], ["r"]), helper.make_node("Transpose", ["r"], ["t"], perm=[0, 2, 1, 3])]
    nodes += [helper.make_node("Conv", ["t", "w", "k"], ["c"]), helper.make_node("Reshape", ["c", "q"], ["y"])]
    model = small(nodes, {"x": [1, 64, 5]}, ["y"], {"s": np.array([1, 4, 16, 5]), "w": w, "k": bias, "q": np.array([1, outputs * 4, 5])})
    held(model)
    assert [type(op) for op in lower(prepare(model)).operators][:1] == [Conv]


@pytest.mark.parametrize("sizes", [[4, 0], [0, 3, 1], [0, 4, 0]])
def test_parts_without_values(sizes: list[int]) -> None:
    """They are left out where they are joined again, as in a rotary embedding of all channels."""
    names = [f"p{i}" for i in range(len(sizes))]
    nodes = [helper.make_node("Split", ["x", "s"], names, axis=-1), helper.make_node("Neg", [names[sizes.index(max(sizes))]], ["n"])]
    nodes.append(helper.make_node("Concat", ["n", *(name for name, size in zip(names, sizes, strict=True) if size < 3)], ["y"], axis=-1))
    held(small(nodes, {"x": [1, 6, 4]}, ["y"], {"s": np.array(sizes)}))


def test_pixels_joined_to_channels() -> None:
    nodes = [helper.make_node("Reshape", ["x", "s"], ["r"]), helper.make_node("Concat", ["r", "b"], ["y"], axis=1)]
    held(small(nodes, {"x": [1, 1, 4, 5], "b": [1, 9, 5]}, ["y"], {"s": np.array([1, 4, 5])}))


@pytest.mark.parametrize("op", ["Add", "Sub", "Mul", "Concat"])
def test_the_same_pixels_in_rows_of_another_width(op: str) -> None:
    """A Concat along the last axis makes a column, an input of the same shape is a row."""
    values = {"axis": 1} if op == "Concat" else {}
    nodes = [helper.make_node("Concat", ["a", "b"], ["c"], axis=3)]
    nodes += [helper.make_node(op, pair, [name], **values) for name, pair in (("y", ["c", "d"]), ("z", ["d", "c"]))]
    held(small(nodes, {"a": [2, 3, 1, 5], "b": [2, 3, 1, 2], "d": [2, 3, 1, 7]}, ["y", "z"], {}))


def test_a_pad_of_nothing_is_its_input() -> None:
    nodes = [helper.make_node("Neg", ["x"], ["n"]), helper.make_node("Pad", ["n", "p"], ["y"])]
    model = small(nodes, {"x": [13, 1, 1, 6, 2]}, ["y"], {"p": np.zeros(10, np.int64)})
    held(model)
    assert len(lower(prepare(model)).operators) == 1


@pytest.mark.parametrize("op", ["Relu", "Identity"])
def test_outputs_of_other_batches(op: str) -> None:
    """A program goes through the images of all its tensors side by side: where their numbers differ, they are pixels."""
    nodes = [helper.make_node(op, ["a"], ["y"]), helper.make_node("Squeeze", ["b"], ["z"])]
    held(small(nodes, {"a": [2, 3, 4, 4], "b": [1, 3, 4, 4]}, ["y", "z"], {}))


def test_vectors_whose_values_are_no_shapes() -> None:
    """onnx follows them as if they were, and finds that they do not fit."""
    nodes = [
        helper.make_node("Concat", ["x", "x"], ["t"], axis=0),
        helper.make_node("Unsqueeze", ["x", "k"], ["u"]),
        helper.make_node("Add", ["u", "t"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "vectors",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [6])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [6, 12])],
        [numpy_helper.from_array(np.array([1], np.int64), "k")],
    )
    prepare(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9))


@pytest.mark.parametrize("step", [2, -1])
def test_channels_of_integers_taken_apart(step: int) -> None:
    """Some of them, which are no run: a product of integers, as it is one of floats elsewhere."""
    b = Builder(np.random.default_rng(0), (1, 12, 3, 3), 18)
    y = b.node(
        "Slice",
        [
            "x",
            *(b.constant(np.array([v], np.int64)) for v in ((1, 9) if step > 0 else (9, 1))),
            b.constant(np.array([1])),
            b.constant(np.array([step])),
        ],
    )
    model = b.model(y)
    kinds: list[type] = [Conv]
    for made in (model, quantised(model, all_values(model, 0), np.random.default_rng(0))):
        graphs, _ = lower_partition(prepare(made))
        assert [type(op) for graph in graphs for op in graph.operators] == kinds
        agree(made, 0, integers=kinds == [QuantisedConv])
        kinds = [QuantisedConv]
