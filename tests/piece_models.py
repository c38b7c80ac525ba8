"""Small models that the NPU runs in several pieces, heavy enough to be worth it, with what the host does between them."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import onnx
from onnx import ModelProto, TensorProto, helper

from tests.models import Builder

Rng = np.random.Generator
WIDTH = 64  # channels; on 14 x 14 pixels a 3x3 convolution of them is 7.2 M multiply-accumulates, some 180 us of a host's core


class InPieces(NamedTuple):
    """pieces: kinds of the nodes of each, in order.  host: operators that stay with the host."""

    build: Callable[[Rng], ModelProto]
    pieces: tuple[tuple[str, ...], ...]
    host: tuple[str, ...]


def _image(rng: Rng) -> Builder:
    return Builder(rng, (1, WIDTH, 14, 14))


def chain(rng: Rng) -> ModelProto:
    """An activation that is not supported, twice."""
    b = _image(rng)
    y = b.relu(b.conv("x", WIDTH))
    y = b.conv(b.relu(b.conv(b.node("Sin", [y]), WIDTH)), WIDTH)
    return b.model(b.conv(b.node("Cos", [y]), WIDTH))


def towers(rng: Rng) -> ModelProto:
    """Two towers joined by an operator that is not supported, and a tail behind it."""
    b = _image(rng)
    left = b.relu(b.conv("x", WIDTH))
    right = b.conv(b.relu(b.conv("x", WIDTH)), WIDTH)
    joined = b.node("Einsum", [left, right], equation="...,...->...")
    return b.model(b.conv(b.relu(b.conv(joined, WIDTH)), WIDTH))


def past(rng: Rng) -> ModelProto:
    """A skip past the operator that is not supported: behind it both of its sides are read."""
    b = _image(rng)
    stem = b.conv(b.conv("x", WIDTH), WIDTH)
    return b.model(b.conv(b.conv(b.add(b.node("Sin", [stem]), stem), WIDTH), WIDTH))


def crossed(rng: Rng) -> ModelProto:
    """Two branches with the operator at different places: what each may be with, the other must not be before and behind of."""
    b = _image(rng)
    left = b.node("Sin", [b.conv("x", WIDTH)])
    right = b.conv(b.conv("x", WIDTH), WIDTH)
    left = b.conv(b.conv(left, WIDTH), WIDTH)
    right = b.conv(b.node("Cos", [right]), WIDTH)
    return b.model(b.add(left, right))


def own_operator(rng: Rng) -> ModelProto:
    """A node of a domain of its own, with a function that says what it does."""
    b = _image(rng)
    y = b.node("Identity", [b.conv(b.relu(b.conv("x", WIDTH)), WIDTH)])
    model = b.model(b.conv(b.relu(b.conv(y, WIDTH)), WIDTH))
    (node,) = (node for node in model.graph.node if node.op_type == "Identity")
    node.op_type, node.domain = "Swirl", "own"
    opsets = [helper.make_opsetid("", 17)]
    body = [helper.make_node("Sin", ["a"], ["s"]), helper.make_node("Mul", ["a", "s"], ["b"])]
    model.functions.append(helper.make_function("own", "Swirl", ["a"], ["b"], body, opsets))
    model.opset_import.append(helper.make_opsetid("own", 1))
    onnx.checker.check_model(model)
    return model


def detector(rng: Rng) -> ModelProto:
    """A head whose best boxes are picked by TopK and looked at again: integers and a Gather between the pieces."""
    b = _image(rng)
    features = b.relu(b.conv(b.relu(b.conv("x", WIDTH)), WIDTH))
    rows = b.node("Reshape", [b.node("Transpose", [features], perm=[0, 2, 3, 1]), b.constant(np.array([1, 196, WIDTH], np.int64))])
    scores = b.node("ReduceMax", [rows], axes=[2], keepdims=0)
    b.nodes.append(helper.make_node("TopK", [scores, b.constant(np.array([32], np.int64))], ["best", "where"], axis=1))
    picked = b.node("Gather", [rows, b.node("Reshape", ["where", b.constant(np.array([32], np.int64))])], axis=1)
    wide = b.relu(b.node("MatMul", [picked, b.normal((WIDTH, 2048), 0.1)]))
    return b.model(b.node("MatMul", [wide, b.normal((2048, 256), 0.02)]))


def blocks(rng: Rng) -> ModelProto:
    """Equal blocks around an operator that is not supported, as a transformer's around its attention: they compute the same."""
    b = _image(rng)
    y = "x"
    for _ in range(3):
        y = b.node("Sin", [b.relu(b.conv(b.relu(b.conv(y, WIDTH)), WIDTH))])
    return b.model(y)


def suppressed(rng: Rng) -> ModelProto:
    """Boxes and scores of two heads into NonMaxSuppression: an integer output whose extent depends on values."""
    b = _image(rng)
    trunk = b.relu(b.conv(b.relu(b.conv("x", WIDTH)), WIDTH))
    shapes = [b.constant(np.array(dims, np.int64)) for dims in ([1, 196, 4], [1, 2, 196])]
    boxes = b.node("Reshape", [b.node("Transpose", [b.conv(trunk, 4)], perm=[0, 2, 3, 1]), shapes[0]])
    scores = b.node("Reshape", [b.conv(trunk, 2), shapes[1]])
    b.nodes.append(helper.make_node("NonMaxSuppression", [boxes, scores, b.constant(np.array([8], np.int64))], ["picked"]))
    model = b.model(trunk)
    model.graph.output.append(helper.make_tensor_value_info("picked", TensorProto.INT64, [None, 3]))
    onnx.checker.check_model(model, full_check=True)
    return model


IN_PIECES: dict[str, InPieces] = {
    "chain": InPieces(chain, (("Conv", "Relu"), ("Conv", "Relu", "Conv"), ("Conv",)), ("Sin", "Cos")),
    "towers": InPieces(towers, (("Conv", "Relu", "Conv", "Relu", "Conv"), ("Conv", "Relu", "Conv")), ("Einsum",)),
    "past": InPieces(past, (("Conv", "Conv"), ("Add", "Conv", "Conv")), ("Sin",)),
    "crossed": InPieces(crossed, (("Conv",), ("Conv", "Conv", "Conv", "Conv"), ("Conv", "Add")), ("Sin", "Cos")),
    "own_operator": InPieces(own_operator, (("Conv", "Relu", "Conv"), ("Mul", "Conv", "Relu", "Conv")), ("Sin",)),
    "detector": InPieces(
        detector,
        (("Conv", "Relu", "Conv", "Relu", "Transpose", "Reshape", "ReduceMax"), ("MatMul", "Relu", "MatMul")),
        ("TopK", "Reshape", "Gather"),
    ),
    "blocks": InPieces(blocks, (("Conv", "Relu", "Conv", "Relu"),) * 3, ("Sin", "Sin", "Sin")),
    "suppressed": InPieces(
        suppressed, (("Conv", "Relu", "Conv", "Relu", "Conv", "Transpose", "Reshape", "Conv", "Reshape"),), ("NonMaxSuppression",)
    ),
}


def piece_model(name: str) -> ModelProto:
    """One of IN_PIECES, its weights drawn from its name's place."""
    return IN_PIECES[name].build(np.random.default_rng(list(IN_PIECES).index(name)))
