"""Functions of one value: right over the whole range of float16, interpreted and as instructions, with gaps and several blocks."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from onnx import ModelProto

from compiler.frontend import lower
from compiler.frontend.handlers.activations import ACTIVATIONS
from compiler.ir.interpret import evaluate
from compiler.ir.operators import Conv, Vector
from simulator.npu.parts import DataType
from tests.everywhere import MACHINES, hold
from tests.models import Builder, random_feeds, reference_outputs

Make = Callable[[Builder, str], str]


def scalar(b: Builder, value: float) -> str:
    return b.constant(np.array(value, np.float32))


def plain(op: str, **attributes: object) -> Make:
    return lambda b, x: b.node(op, [x], **attributes)


CASES: dict[str, Make] = {
    **{op: plain(op) for op in ACTIVATIONS if op not in ("Log", "Sqrt", "Reciprocal", "Exp", "Swish")},
    "Elu above 1": plain("Elu", alpha=1.5),
    "Elu below 0": plain("Elu", alpha=-0.5),
    "Celu": plain("Celu", alpha=2.0),
    "LeakyRelu steep": plain("LeakyRelu", alpha=2.0),
    "LeakyRelu falling": plain("LeakyRelu", alpha=-0.5),
    "PRelu": lambda b, x: b.node("PRelu", [x, b.normal((21, 1, 1), 2.0)]),
    "PRelu of one slope": lambda b, x: b.node("PRelu", [x, b.constant(np.array([[[0.3]]], np.float32))]),
    "Exp": lambda b, x: b.node("Exp", [b.node("Mul", [x, scalar(b, 0.3)])]),
    "Log Sqrt Reciprocal": lambda b, x: b.node("Log", [b.node("Sqrt", [b.node("Reciprocal", [positive(b, x)])])]),
    "SiLU": lambda b, x: silu(b, x),
    "SiLU behind a convolution": lambda b, x: silu(b, b.conv(x, 21, (1, 1), pads=(0, 0, 0, 0))),
    "square": lambda b, x: b.node("Pow", [x, scalar(b, 2)]),
    "cube": lambda b, x: b.node("Pow", [x, scalar(b, 3)]),
    "inverse square": lambda b, x: b.node("Pow", [positive(b, x), scalar(b, -2)]),
    "fifth over square root": lambda b, x: b.node("Mul", [b.node("Pow", [x, scalar(b, 0)]), root(b, x, -0.5)]),
    "square root": lambda b, x: root(b, x, 0.5),
    "any power": lambda b, x: root(b, x, 1.3),
    "max with channels": lambda b, x: b.node("Max", [x, b.normal((21, 1, 1), 4.0)]),
    "min with channels": lambda b, x: b.node("Min", [b.normal((1, 21, 1, 1), 4.0), x]),
    "max with a number": lambda b, x: b.node("Max", [x, scalar(b, 0.7)]),
    "mean of three": lambda b, x: b.node("Mean", [x, b.relu(x), b.node("Tanh", [x])]),
    "twice": lambda b, x: b.node("HardSwish", [b.node("Mish", [x])]),
}


def silu(b: Builder, x: str) -> str:
    return b.node("Mul", [x, b.node("Sigmoid", [x])])


def positive(b: Builder, x: str) -> str:
    """Between 1/4 and about 25."""
    return b.node("Add", [b.node("Abs", [x]), scalar(b, 0.25)])


def root(b: Builder, x: str, exponent: float) -> str:
    return b.node("Pow", [positive(b, x), scalar(b, exponent)])


def model_of(name: str) -> ModelProto:
    """21 channels (11 gaps) of values up to about 25, then a Conv that would spread whatever a gap holds."""
    b = Builder(np.random.default_rng(5), (1, 21, 7, 6), opset=18)  # the first with Mish
    y = CASES[name](b, b.node("Mul", ["x", scalar(b, 6.0)]))
    return b.model(y, b.conv(y, 3, (1, 1), pads=(0, 0, 0, 0)))


@pytest.mark.parametrize("name", CASES)
def test_values(name: str) -> None:
    model = model_of(name)
    feeds = random_feeds(model)
    for key, expected in reference_outputs(model, feeds).items():
        got = evaluate(lower(model), feeds)[key]
        assert np.isfinite(got).all()
        assert float(np.abs(got - expected).max()) <= 1e-4 * float(np.abs(expected).max())


@pytest.mark.parametrize("name", CASES)
def test_instructions(name: str) -> None:
    i = list(CASES).index(name)
    model = model_of(name)
    for j, dtype in enumerate(("float16", "float32")):
        assert hold(model, list(MACHINES.values())[(i + j) % len(MACHINES)], DataType[dtype], seed=i)


def test_swish() -> None:
    """Newer than onnxruntime: x * sigmoid(alpha * x) by hand, at both ends of float16."""
    x = np.array([-60000, -12, -1, 0, 0.5, 12, 60000], np.float32).reshape(1, 7, 1, 1)
    with np.errstate(over="ignore"):
        got = Vector("y", ("x",), "y", ACTIVATIONS["Swish"]({"alpha": 1.5})).apply([x])
        np.testing.assert_allclose(got, x / (1 + np.exp(-1.5 * x)), rtol=1e-5, atol=1e-6)


def test_an_activation_joins_the_chain_before_it() -> None:
    """BatchNormalization of a sum, then SiLU, then a sum: one pass over the tensor."""
    b = Builder(np.random.default_rng(5), (1, 21, 7, 6))
    x = b.batch_norm(b.add(b.max_pool("x", 3, 1, (1, 1, 1, 1)), "x"))
    model = b.model(b.add(b.node("HardSwish", [x]), "x"))
    graph = lower(model)
    assert sum(isinstance(op, Vector) for op in graph.operators) == 1
    feeds = random_feeds(model)
    expected = reference_outputs(model, feeds)
    for key, got in evaluate(graph, feeds).items():
        np.testing.assert_allclose(got, expected[key], rtol=1e-4, atol=1e-5)
    assert hold(model, MACHINES["edge"], DataType.float16, seed=0)


def test_relu6_costs_nothing_behind_a_convolution() -> None:
    """The step behind the matrix unit clips; with a residual as well."""
    b = Builder(np.random.default_rng(5), (1, 21, 7, 6))
    zero, limit = scalar(b, 0.0), scalar(b, 0.4)
    x = b.node("Clip", [b.conv("x", 21), zero, limit])
    model = b.model(b.node("Clip", [b.add(b.conv(x, 21), "x"), zero, limit]))
    graph = lower(model)
    assert [(type(op), op.activation, round(op.limit, 6)) for op in graph.operators if isinstance(op, Conv)] == [(Conv, "clip", 0.4)] * 2
    assert len(graph.operators) == 2
    for i, (name, machine) in enumerate(MACHINES.items()):
        assert hold(model, machine, DataType.float32 if name == "ascend310" else DataType.float16, seed=i)
