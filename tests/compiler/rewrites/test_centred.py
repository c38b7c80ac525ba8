"""Sums that normalisations alone read are centred: values stay, and what somebody else reads stays as it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from compiler.frontend.lower import lower
from compiler.frontend.onnx_io.load import prepare
from compiler.ir.graph import Graph, Port
from compiler.ir.interpret import evaluate
from compiler.ir.operators import Conv, LayerNorm, Operator, Pool, Reflow, Step, Vector
from compiler.rewrites.centred import with_centred_sums
from tests.models import Builder

RNG = np.random.default_rng(0)


def floats(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def conv(x: str, y: str, residual: str | None = None, activation: str = "none") -> Conv:
    return Conv(y, x, y, floats(6, 6, 1, 1), floats(6), residual=residual, activation=activation)  # type: ignore[arg-type]


def norm(x: str, y: str) -> LayerNorm:
    return LayerNorm(y, x, y, 1 + floats(6) / 4, floats(6), 1e-3)


def graph_of(*operators: Operator, outputs: tuple[str, ...] = ("out",)) -> Graph:
    shapes = {"x": (1, 6, 4, 3), "c": (1, 6, 13, 1), "d": (1, 6, 4, 3)}
    constants = {"c": floats(*shapes["c"]), "d": floats(*shapes["d"])}
    for op in operators:
        shapes[op.y] = op.output_shape([shapes[name] for name in op.inputs])
    ports = tuple(Port(name, name, shapes[name]) for name in outputs)
    graph = Graph("g", (Port("x", "x", shapes["x"]),), ports, operators, shapes, constants=constants)
    graph.verify()
    return graph


def centred(graph: Graph) -> list[bool]:
    """Which normalisations know that their mean is 0; the values stay, and a tensor that they read has that mean."""
    after = with_centred_sums(graph)
    after.verify()
    x = {"x": 3 + floats(1, 6, 4, 3)}
    for name, values in evaluate(graph, x).items():
        np.testing.assert_allclose(evaluate(after, x)[name], values, rtol=1e-4, atol=1e-4)
    norms = [op for op in after.operators if isinstance(op, LayerNorm)]
    for op in norms:
        read = replace(after, outputs=(Port(op.x, op.x, after.shapes[op.x]),))
        assert bool(np.abs(evaluate(read, x)[op.x].mean(1)).max() < 1e-5) == op.centred
    return [op.centred for op in norms]


ADD = (Step("add", operand=1),)
BODY = (norm("s", "n"), conv("n", "t", residual="s"), norm("t", "m"), conv("m", "out"))
FIRST = conv("x", "s")


def test_a_sum_that_norms_alone_read_is_centred() -> None:
    """With tokens in front, constants and rows that are picked on the way."""
    assert centred(graph_of(FIRST, *BODY)) == [True, True]
    tokens = Reflow("r", "p", "r", (4, 3), (13, 1), 1), Vector("s", ("r", "c"), "s", ADD)
    assert centred(graph_of(conv("x", "p"), *tokens, *BODY)) == [True, True]
    last = Pool("q", "t", "q", "max", (1, 1), pads=(-1, 0, -2, 0)), norm("q", "m"), conv("m", "out")
    assert centred(graph_of(FIRST, norm("s", "n"), conv("n", "t", residual="s"), *last)) == [True, True]


OTHERS: dict[str, Callable[[], Graph]] = {
    "an input": lambda: graph_of(norm("x", "n"), conv("n", "out")),
    "an output": lambda: graph_of(FIRST, *BODY, outputs=("out", "t")),
    "read by a product": lambda: graph_of(FIRST, *BODY[:-1], conv("m", "u"), conv("t", "out", residual="u")),
    "read as itself and as what is added": lambda: graph_of(FIRST, norm("s", "n"), conv("s", "t", residual="s"), norm("t", "out")),
    "an activation": lambda: graph_of(conv("x", "s", activation="relu"), *BODY),
    "another function": lambda: graph_of(conv("x", "p"), Vector("s", ("p",), "s", (Step("exp"),)), *BODY),
    "a factor": lambda: graph_of(conv("x", "p"), Vector("s", ("p", "d"), "s", (Step("mul", operand=1),)), *BODY),
    "a fill": lambda: graph_of(conv("x", "s"), Reflow("r", "s", "r", (4, 3), (13, 1), 1, 2.0), norm("r", "out")),
    "a norm's result": lambda: graph_of(FIRST, norm("s", "n"), conv("n", "t", residual="n"), norm("t", "out")),
    "an average": lambda: graph_of(FIRST, Pool("q", "s", "q", "max", (2, 1)), norm("q", "out")),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_sums_stay(name: str) -> None:
    found = centred(OTHERS[name]())
    assert found[-1] is False
    assert found[0] is (name == "a norm's result" and True)


def test_a_transformer_that_normalises_first() -> None:
    """From the file on: its patches, its class token, its positions and both halves of its layers go into one sum."""
    b = Builder(np.random.default_rng(0), (1, 7, 16))
    y = b.node("Add", [b.node("MatMul", ["x", b.normal((16, 16))]), b.normal((7, 16))])
    for _ in range(2):
        n = b.node("LayerNormalization", [y, b.normal((16,), 0.2, 1.0), b.normal((16,))], axis=-1)
        y = b.node("Add", [y, b.node("Add", [b.node("MatMul", [n, b.normal((16, 16))]), b.normal((16,))])])
    y = b.node("LayerNormalization", [y, b.normal((16,), 0.2, 1.0), b.normal((16,))], axis=-1)
    graph = lower(prepare(b.model(b.node("MatMul", [y, b.normal((16, 4))]))))
    assert [op.centred for op in graph.operators if isinstance(op, LayerNorm)] == [True] * 3
