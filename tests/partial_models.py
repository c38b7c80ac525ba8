"""Small models of which the NPU runs a part, and what stays with the host."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import onnx
from onnx import ModelProto, TensorProto, helper, numpy_helper

from tests.models import Builder

Rng = np.random.Generator


class Partial(NamedTuple):
    """refused: operators that are not supported, in order.  others: those that stay with the host all the same.  macs: of all these."""

    build: Callable[[Rng], ModelProto]
    refused: tuple[str, ...]
    others: tuple[str, ...] = ()
    macs: int = 0


CONV = 9 * 16 * 16 * 8 * 8  # multiply-accumulates of a 3x3 convolution of 16 channels on 8 x 8 pixels


def first(rng: Rng) -> ModelProto:
    b = Builder(rng, (1, 16, 8, 8))
    return b.model(b.relu(b.conv(b.node("Sin", ["x"]), 16)))


def last(rng: Rng) -> ModelProto:
    b = Builder(rng, (1, 16, 8, 8))
    return b.model(b.node("Sin", [b.relu(b.conv("x", 16))]))


def middle(rng: Rng) -> ModelProto:
    """One convolution before, two behind."""
    b = Builder(rng, (1, 16, 8, 8))
    return b.model(b.conv(b.relu(b.conv(b.node("Sin", [b.conv("x", 16)]), 16)), 16))


def ends(rng: Rng) -> ModelProto:
    """The piece between two of them is the heaviest."""
    b = Builder(rng, (1, 16, 8, 8))
    inner = b.conv(b.relu(b.conv(b.node("Sin", [b.conv("x", 16)]), 16)), 16)
    return b.model(b.conv(b.node("Cos", [inner]), 16))


def branches(rng: Rng) -> ModelProto:
    """A branch of its own beside the one that is refused: it may run with what is behind both."""
    b = Builder(rng, (1, 16, 8, 8))
    stem = b.conv("x", 16)
    left, right = b.conv(stem, 16), b.conv(b.node("Sin", [stem]), 16)
    return b.model(b.conv(b.add(left, right), 16))


def bridge(rng: Rng) -> ModelProto:
    """What is before the refused node and what is behind it are joined by a path of their own; one of them is enough for one partition."""
    b = Builder(rng, (1, 16, 8, 8))
    stem = b.conv(b.conv("x", 16), 16)
    return b.model(b.conv(b.concat(b.node("Sin", [stem]), b.relu(stem)), 8))


def by_attribute(rng: Rng) -> ModelProto:
    b = Builder(rng, (1, 16, 8, 8))
    return b.model(b.conv(b.max_pool(b.conv("x", 16), 2, 1, dilations=[2, 2]), 16))


def two_outputs(rng: Rng) -> ModelProto:
    """The host reads a tensor that is an output as well."""
    b = Builder(rng, (1, 16, 8, 8))
    y = b.conv("x", 16)
    return b.model(y, b.node("Sin", [y]))


def computed_shape(rng: Rng) -> ModelProto:
    """The target of a Reshape comes from a Shape and a Slice: known before anything runs."""
    b = Builder(rng, (1, 16, 8, 8))
    y = b.node("Sin", [b.conv("x", 16)])
    ends = [b.constant(np.array([at], np.int64)) for at in (0, 1)]
    batch = b.node("Slice", [b.node("Shape", ["x"]), *ends])
    target = b.node("Concat", [batch, b.constant(np.array([-1], np.int64))], axis=0)
    flat = b.node("Reshape", [b.conv(y, 16), target])
    return b.model(b.gemm(flat, 10))


def dead_end(rng: Rng) -> ModelProto:
    """What is refused leads nowhere."""
    b = Builder(rng, (1, 16, 8, 8))
    y = b.conv("x", 16)
    b.node("Sin", [y])
    return b.model(y)


def tokens(rng: Rng) -> ModelProto:
    """int64 and bool inputs that only the host reads."""
    weights = {
        "table": rng.standard_normal((50, 16)).astype(np.float32),
        "w1": rng.standard_normal((16, 32)).astype(np.float32) / 4,
        "w2": rng.standard_normal((32, 16)).astype(np.float32) / 6,
        "zero": np.zeros((), np.float32),
    }
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["embedded"], axis=0),
        helper.make_node("MatMul", ["embedded", "w1"], ["wide"]),
        helper.make_node("Relu", ["wide"], ["kept"]),
        helper.make_node("MatMul", ["kept", "w2"], ["narrow"]),
        helper.make_node("Where", ["mask", "narrow", "zero"], ["y"]),
    ]
    inputs = [("ids", TensorProto.INT64, [1, 12]), ("mask", TensorProto.BOOL, [1, 12, 1])]
    return _model(nodes, inputs, [1, 12, 16], weights)


def index(rng: Rng) -> ModelProto:
    """An integer output."""
    weights = {"w": rng.standard_normal((10, 16)).astype(np.float32)}
    nodes = [helper.make_node("Gemm", ["x", "w"], ["t"], transB=1), helper.make_node("ArgMax", ["t"], ["y"], axis=1)]
    return _model(nodes, [("x", TensorProto.FLOAT, [1, 16])], [1, 1], weights, kind=TensorProto.INT64)


def unknown_extent(rng: Rng) -> ModelProto:
    """A second output whose extent depends on an input's values."""
    nodes = [helper.make_node("NonZero", ["mask"], ["places"]), helper.make_node("Conv", ["x", "w"], ["y"], pads=[1, 1, 1, 1])]
    inputs = [("x", TensorProto.FLOAT, [1, 16, 8, 8]), ("mask", TensorProto.BOOL, [3, 5])]
    model = _model(nodes, inputs, [1, 16, 8, 8], {"w": rng.standard_normal((16, 16, 3, 3)).astype(np.float32) / 12})
    model.graph.output.append(helper.make_tensor_value_info("places", TensorProto.INT64, [2, None]))
    return model


def branching(rng: Rng) -> ModelProto:
    """An If whose branches read a tensor of the NPU from outside."""
    value = [helper.make_tensor_value_info("inner", TensorProto.FLOAT, [1, 16, 8, 8])]
    bodies = {
        key: helper.make_graph([helper.make_node(op, ["t"], ["inner"])], key, [], value)
        for key, op in (("then_branch", "Neg"), ("else_branch", "Abs"))
    }
    nodes = [helper.make_node("Conv", ["x", "w"], ["t"], pads=[1, 1, 1, 1]), helper.make_node("If", ["flag"], ["y"], **bodies)]
    inputs = [("x", TensorProto.FLOAT, [1, 16, 8, 8]), ("flag", TensorProto.BOOL, [])]
    return _model(nodes, inputs, [1, 16, 8, 8], {"w": rng.standard_normal((16, 16, 3, 3)).astype(np.float32) / 12})


def own_function(rng: Rng) -> ModelProto:
    """A node of a function that the model brings along."""
    nodes = [helper.make_node("Conv", ["x", "w"], ["t"], pads=[1, 1, 1, 1]), helper.make_node("Wave", ["t"], ["y"], domain="own")]
    weights = {"w": rng.standard_normal((16, 16, 3, 3)).astype(np.float32) / 12}
    model = _model(nodes, [("x", TensorProto.FLOAT, [1, 16, 8, 8])], [1, 16, 8, 8], weights, check=False)
    opsets = [helper.make_opsetid("", 17)]
    model.functions.append(helper.make_function("own", "Wave", ["a"], ["b"], [helper.make_node("Sin", ["a"], ["b"])], opsets))
    model.opset_import.append(helper.make_opsetid("own", 1))
    onnx.checker.check_model(model)
    return model


def _model(
    nodes: list[onnx.NodeProto],
    inputs: list[tuple[str, int, list[int]]],
    shape: list[int],
    weights: dict[str, np.ndarray],
    check: bool = True,
    kind: int = TensorProto.FLOAT,
) -> ModelProto:
    graph = helper.make_graph(
        nodes,
        "partial",
        [helper.make_tensor_value_info(*port) for port in inputs],
        [helper.make_tensor_value_info("y", kind, shape)],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    if check:
        onnx.checker.check_model(model, full_check=True)
    return model


PARTIAL: dict[str, Partial] = {
    "first": Partial(first, ("Sin",)),
    "last": Partial(last, ("Sin",)),
    "middle": Partial(middle, ("Sin",), ("Conv",), CONV),
    "ends": Partial(ends, ("Sin", "Cos"), ("Conv", "Conv"), 2 * CONV),
    "branches": Partial(branches, ("Sin",), ("Conv",), CONV),
    "bridge": Partial(bridge, ("Sin",), ("Concat", "Conv"), CONV),
    "by_attribute": Partial(by_attribute, ("MaxPool",), ("Conv",), 9 * 16 * 16 * 6 * 6),
    "two_outputs": Partial(two_outputs, ("Sin",)),
    "computed_shape": Partial(computed_shape, ("Sin",), ("Conv",), CONV),
    "dead_end": Partial(dead_end, ()),
    "tokens": Partial(tokens, ("Gather", "Where")),
    "index": Partial(index, ("ArgMax",)),
    "unknown_extent": Partial(unknown_extent, ("NonZero",)),
    "branching": Partial(branching, ("If",)),
    "own_function": Partial(own_function, ("Sin",)),
}


def partial_model(name: str) -> ModelProto:
    """One of PARTIAL, its weights drawn from its name's place."""
    return PARTIAL[name].build(np.random.default_rng(list(PARTIAL).index(name)))
