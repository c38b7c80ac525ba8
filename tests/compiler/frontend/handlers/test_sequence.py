"""What transformers are made of, in the forms in which exporters write it, against onnxruntime; and what is refused."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from onnx import ModelProto, helper

from compiler.frontend import lower
from compiler.frontend.handlers.handlers import HANDLERS
from compiler.frontend.handlers.pattern_match import recognise_patterns
from compiler.frontend.handlers.to_graph import translate
from compiler.frontend.onnx_io.load import prepare
from compiler.ir.interpret import evaluate
from compiler.ir.operators import Conv, LayerNorm, MatMul, Softmax, Vector
from tests.models import Builder, random_feeds, reference_outputs

SEQUENCE = (2, 7, 24)  # two images of 7 pixels and 24 channels: 3 heads of 8


def ints(b: Builder, *values: int) -> str:
    return b.constant(np.array(values, np.int64))


def number(b: Builder, value: float) -> str:
    return b.constant(np.array(value, np.float32))


def linear(b: Builder, x: str, width: int) -> str:
    return b.node("Add", [b.node("MatMul", [x, b.normal((b.shape[x][-1], width), 0.3)]), b.normal((width,), 0.1)])


def heads(b: Builder, x: str, count: int, *perm: int) -> str:
    n, tokens, width = b.shape[x]
    return b.node("Transpose", [b.node("Reshape", [x, ints(b, n, tokens, count, width // count)])], perm=list(perm))


def joined(b: Builder, x: str) -> str:
    n, count, tokens, size = b.shape[x]
    return b.node("Reshape", [b.node("Transpose", [x], perm=[0, 2, 1, 3]), ints(b, n, tokens, count * size)])


def attention(b: Builder, mask: bool = False, count: int = 3) -> str:
    q, k, v = (linear(b, "x", 24) for _ in range(3))
    scores = b.node("MatMul", [heads(b, q, count, 0, 2, 1, 3), heads(b, k, count, 0, 2, 3, 1)])
    scores = b.node("Div", [scores, number(b, 2.8)])
    if mask:
        scores = b.node("Add", [scores, b.constant(np.triu(np.full((7, 7), -1e4, np.float32), 1))])
    return joined(b, b.node("MatMul", [b.softmax(scores, axis=-1), heads(b, v, count, 0, 2, 1, 3)]))


def packed_attention(b: Builder) -> str:
    """q, k and v in one product, taken apart by Gather: as timm writes it."""
    every = b.node("Reshape", [linear(b, "x", 72), ints(b, 2, 7, 3, 3, 8)])
    every = b.node("Transpose", [every], perm=[2, 0, 3, 1, 4])
    q, k, v = (b.node("Gather", [every, b.constant(np.array(i, np.int64))], axis=0) for i in range(3))
    scores = b.node("MatMul", [b.node("Mul", [q, number(b, 0.35)]), b.node("Transpose", [k], perm=[0, 1, 3, 2])])
    return joined(b, b.node("MatMul", [b.softmax(scores, axis=-1), v]))


def split_attention(b: Builder) -> str:
    """q, k and v in one product, taken apart by Split; heads next to the images, as torch's bmm wants them."""
    q, k, v = (f"part{i}" for i in range(3))
    source = linear(b, "x", 72)
    b.nodes.append(helper.make_node("Split", [source, ints(b, 24, 24, 24)], [q, k, v], axis=-1))
    b.shape |= dict.fromkeys((q, k, v), SEQUENCE)
    scores = b.node("MatMul", [heads(b, q, 1, 0, 2, 1, 3), heads(b, k, 1, 0, 2, 3, 1)])
    return joined(b, b.node("MatMul", [b.softmax(scores, axis=-1), heads(b, v, 1, 0, 2, 1, 3)]))


def written_norm(b: Builder, square: str = "Pow", inverse: bool = False) -> str:
    d = b.node("Sub", ["x", b.node("ReduceMean", ["x"], axes=[-1])])
    squares = b.node("Pow", [d, number(b, 2.0)]) if square == "Pow" else b.node("Mul", [d, d])
    root = b.node("Sqrt", [b.node("Add", [b.node("ReduceMean", [squares], axes=[-1]), number(b, 1e-5)])])
    y = b.node("Mul", [d, b.node("Reciprocal", [root])]) if inverse else b.node("Div", [d, root])
    return b.node("Add", [b.node("Mul", [y, b.normal((24,), 0.2, 1.0)]), b.normal((24,))])


def gelu(b: Builder, order: str) -> str:
    plus = b.node("Add", [b.node("Erf", [b.node("Div", ["x", number(b, 2**0.5)])]), number(b, 1.0)])
    if order == "x first":
        return b.node("Mul", [b.node("Mul", ["x", plus]), number(b, 0.5)])
    if order == "half first":
        return b.node("Mul", [b.node("Mul", [number(b, 0.5), "x"]), plus])
    return b.node("Mul", ["x", b.node("Mul", [plus, number(b, 0.5)])])


def gelu_by_tanh(b: Builder) -> str:
    cube = b.node("Mul", [b.node("Pow", ["x", number(b, 3.0)]), number(b, 0.044715)])
    inner = b.node("Mul", [b.node("Add", ["x", cube]), number(b, 0.7978845608)])
    return b.node("Mul", [b.node("Mul", ["x", number(b, 0.5)]), b.node("Add", [b.node("Tanh", [inner]), number(b, 1.0)])])


def class_token(b: Builder) -> str:
    token = b.node("Concat", [b.normal((2, 1, 24)), "x"], axis=1)
    return linear(b, b.node("Add", [token, b.normal((1, 8, 24))]), 9)


def norm(b: Builder, x: str) -> str:
    return b.node("LayerNormalization", [x, b.normal((24,), 0.2, 1.0), b.normal((24,))], axis=-1, epsilon=1e-6)


CASES: dict[str, Callable[[Builder], str]] = {
    "product over tokens": lambda b: b.node("MatMul", [b.node("Transpose", ["x"], perm=[0, 2, 1]), b.normal((7, 4))]),
    "rows of channels": lambda b: b.node("MatMul", [b.node("Transpose", ["x"], perm=[0, 2, 1]), "x"]),
    "norm over tokens": lambda b: b.node("LayerNormalization", ["x", b.normal((7, 24))], axis=1),
    "images apart": lambda b: b.node("Slice", ["x", ints(b, 0), ints(b, 1), ints(b, 0)]),
    "a constant vector": lambda b: b.node("MatMul", ["x", b.normal((24,))]),
    "linear": lambda b: linear(b, "x", 10),
    "attention": attention,
    "attention with a mask": lambda b: attention(b, mask=True),
    "attention of one head": lambda b: attention(b, count=1),
    "packed attention": packed_attention,
    "split attention": split_attention,
    "layer norm": lambda b: norm(b, "x"),
    "layer norm without shift": lambda b: b.node("LayerNormalization", ["x", b.normal((24,))], axis=2),
    "written layer norm": written_norm,
    "written layer norm, products": lambda b: written_norm(b, "Mul", inverse=True),
    "gelu, x first": lambda b: gelu(b, "x first"),
    "gelu, half first": lambda b: gelu(b, "half first"),
    "gelu, half last": lambda b: gelu(b, "half last"),
    "erf alone": lambda b: b.node("Erf", ["x"]),
    "class token": class_token,
    "two sequences and a constant": lambda b: norm(b, b.node("Concat", ["x", b.normal((2, 3, 24)), b.relu("x")], axis=1)),
    "first token": lambda b: linear(b, b.node("Slice", [norm(b, "x"), ints(b, 0), ints(b, 1), ints(b, 1)]), 5),
    "last token": lambda b: b.node("Gather", ["x", b.constant(np.array(-1, np.int64))], axis=1),
    "some tokens": lambda b: b.node("Slice", [linear(b, "x", 24), ints(b, -5), ints(b, 100), ints(b, 1)]),
    "every other token": lambda b: norm(b, b.node("Slice", ["x", ints(b, 0), ints(b, 7), ints(b, 1), ints(b, 2)])),
    "some channels": lambda b: b.node("Slice", [b.relu("x"), ints(b, 3), ints(b, 17), ints(b, 2)]),
    "mean of tokens": lambda b: linear(b, b.node("ReduceMean", [norm(b, "x")], axes=[1], keepdims=0), 4),
    "constant of every token": lambda b: b.node("Sub", [b.normal((7, 24)), b.node("Mul", ["x", b.normal((2, 7, 24))])]),
    "constant over every token": lambda b: b.node("Div", [b.normal((7, 1)), b.node("Exp", ["x"])]),
    "flattened": lambda b: linear(b, b.node("Reshape", ["x", ints(b, 14, 24)]), 6),
}


def model_of(build: Callable[[Builder], str], shape: tuple[int, ...] = SEQUENCE) -> ModelProto:
    b = Builder(np.random.default_rng(5), shape)
    return prepare(b.model(build(b)))


@pytest.mark.parametrize("name", CASES)
def test_values(name: str) -> None:
    """Translated alone and lowered the whole way, the values are onnxruntime's."""
    model = model_of(CASES[name])
    feeds = random_feeds(model, 1)
    ((out, expected),) = reference_outputs(model, feeds).items()
    for graph in (translate(model, HANDLERS), lower(model)):
        actual = evaluate(graph, feeds)[out]
        assert actual.shape == expected.shape
        assert np.abs(actual - expected).max() <= 1e-5 * np.abs(expected).max()


def kinds(model: ModelProto) -> list[type]:
    return [type(op) for op in lower(model).operators]


@pytest.mark.parametrize("name", ["attention", "packed attention"])
def test_attention_is_two_products_and_a_softmax(name: str) -> None:
    """No copies: three linear layers with the factor in one of them, and nothing for Reshape, Transpose or Gather."""
    graph = lower(model_of(CASES[name]))
    assert [type(op) for op in graph.operators] == [Conv, Conv, Conv, MatMul, Softmax, MatMul]
    products = [op for op in graph.operators if isinstance(op, MatMul)]
    assert [(op.heads, op.transposed) for op in products] == [(3, True), (3, False)]


def test_one_operator_for_what_was_written_out() -> None:
    assert kinds(model_of(CASES["written layer norm"])) == [LayerNorm]
    assert kinds(model_of(CASES["written layer norm, products"])) == [LayerNorm]
    for name in ("gelu, x first", "gelu, half first", "gelu, half last"):
        (op,) = lower(model_of(CASES[name])).operators
        assert isinstance(op, Vector)
        assert [step.op for step in op.steps] == ["gelu"]


def test_gelu_by_tanh_is_the_form_with_tanh() -> None:
    model = model_of(gelu_by_tanh)
    (op,) = lower(model).operators
    assert isinstance(op, Vector)
    assert "exp" in [step.op for step in op.steps]
    feeds = {"x": np.linspace(-6, 6, 2 * 7 * 24, dtype=np.float32).reshape(SEQUENCE)}
    ((out, expected),) = reference_outputs(model, feeds).items()
    assert np.abs(evaluate(lower(model), feeds)[out] - expected).max() < 2e-6


def test_what_only_looks_like_it_is_left_alone() -> None:
    def other_scale(b: Builder) -> str:
        plus = b.node("Add", [b.node("Erf", [b.node("Mul", ["x", number(b, 0.8)])]), number(b, 1.0)])
        return b.node("Mul", [b.node("Mul", ["x", plus]), number(b, 0.5)])

    def other_tensor(b: Builder) -> str:
        d = b.node("Sub", ["x", b.node("ReduceMean", ["x"], axes=[-1])])
        squares = b.node("Pow", [b.relu("x"), number(b, 2.0)])
        return b.node("Div", [d, b.node("Sqrt", [b.node("Add", [b.node("ReduceMean", [squares], axes=[-1]), number(b, 1e-5)])])])

    model = model_of(other_scale)
    assert recognise_patterns(model) is model
    feeds = random_feeds(model, 1)
    ((out, expected),) = reference_outputs(model, feeds).items()
    assert np.abs(evaluate(lower(model), feeds)[out] - expected).max() <= 1e-5 * np.abs(expected).max()
    model = model_of(other_tensor)
    assert sorted(node.name for node in recognise_patterns(model).graph.node) == sorted(node.name for node in model.graph.node)
