"""Operands of one pixel per channel, and of one channel: squeeze-and-excite, spatial attention, and every binary operator both ways."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from onnx import ModelProto

from compiler.frontend import lower
from compiler.ir.interpret import evaluate
from compiler.ir.operators import Vector
from simulator.npu.parts import DataType
from tests.everywhere import MACHINES, hold
from tests.models import Builder, random_feeds, reference_outputs


def squeeze_and_excite(b: Builder) -> str:
    """x * sigmoid(fc(relu(fc(mean(x))))), between two convolutions."""
    x = b.relu(b.conv("x", 37))
    y = b.relu(b.conv(b.node("GlobalAveragePool", [x]), 9, (1, 1), pads=(0, 0, 0, 0)))
    gate = b.node("Sigmoid", [b.conv(y, 37, (1, 1), pads=(0, 0, 0, 0))])
    return b.conv(b.node("Mul", [x, gate]), 5)


def gate_first(b: Builder) -> str:
    """As EfficientNet exporters write it, with the input added afterwards, and the gate at work twice."""
    gate = b.node("HardSigmoid", [b.node("GlobalMaxPool", ["x"])])
    return b.relu(b.add(b.node("Mul", [gate, b.conv("x", 21)]), b.node("Mul", ["x", gate])))


def attention_over_pixels(b: Builder) -> str:
    """x * sigmoid(conv(x)) with one channel."""
    return b.conv(b.node("Mul", ["x", b.node("Sigmoid", [b.conv("x", 1)])]), 4)


def one_number_per_image(b: Builder) -> str:
    return b.node("Mul", [b.conv(b.node("GlobalAveragePool", ["x"]), 1, (1, 1), pads=(0, 0, 0, 0)), "x"])


def both_ways(op: str) -> Callable[[Builder], str]:
    def make(b: Builder) -> str:
        pixel = b.node("Add", [b.node("GlobalMaxPool", ["x"]), b.constant(np.array(2, np.float32))])
        full = b.node("Add", [b.node("Abs", ["x"]), b.constant(np.array(1, np.float32))])
        return b.concat(b.node(op, [full, pixel]), b.node(op, [pixel, full]))

    return make


MODELS: dict[str, Callable[[Builder], str]] = {
    **{f.__name__: f for f in (squeeze_and_excite, gate_first, attention_over_pixels, one_number_per_image)},
    **{f"{op} both ways": both_ways(op) for op in ("Sub", "Div", "Max", "Min", "Sum", "Mean")},
    "three": lambda b: b.node("Sum", [b.node("GlobalMaxPool", ["x"]), b.relu("x"), b.node("GlobalAveragePool", ["x"])]),
}


def model_of(name: str, images: int = 1) -> ModelProto:
    b = Builder(np.random.default_rng(2), (images, 21, 9, 10))
    return b.model(MODELS[name](b))


@pytest.mark.parametrize("name", MODELS)
def test_values(name: str) -> None:
    model = model_of(name, 2)
    feeds = random_feeds(model)
    for key, expected in reference_outputs(model, feeds).items():
        np.testing.assert_allclose(evaluate(lower(model), feeds)[key], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", MODELS)
def test_instructions(name: str) -> None:
    i = list(MODELS).index(name)
    for j, dtype in enumerate(("float16", "float32")):
        assert hold(model_of(name, 1 + i % 2), list(MACHINES.values())[(i + j) % len(MACHINES)], DataType[dtype], seed=i)


def test_a_pixel_is_no_residual_of_a_convolution() -> None:
    """The adder behind the matrix unit takes tensors of the size of its result."""
    b = Builder(np.random.default_rng(2), (1, 21, 9, 10))
    model = b.model(b.add(b.conv(b.node("GlobalAveragePool", ["x"]), 21, (1, 1), pads=(0, 0, 0, 0)), b.conv("x", 21)))
    graph = lower(model)
    assert sum(isinstance(op, Vector) for op in graph.operators) == 1
    feeds = random_feeds(model)
    for key, expected in reference_outputs(model, feeds).items():
        np.testing.assert_allclose(evaluate(graph, feeds)[key], expected, rtol=1e-4, atol=1e-5)
