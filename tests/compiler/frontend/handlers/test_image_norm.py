"""Normalisation over pixels, in the forms in which exporters write it, against onnxruntime, interpreted and as instructions."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from onnx import ModelProto

from compiler.frontend import lower
from compiler.frontend.onnx_io.load import prepare
from compiler.frontend.onnx_io.random_weights import seed_weights
from compiler.ir.interpret import evaluate
from compiler.ir.operators import Conv, Vector
from simulator.npu.errors import UnsupportedError
from simulator.npu.parts import DataType
from tests.everywhere import MACHINES, hold
from tests.models import Builder, random_feeds, reference_outputs

IMAGE = (2, 12, 7, 6)


def ints(b: Builder, *values: int) -> str:
    return b.constant(np.array(values, np.int64))


def instance(b: Builder, x: str, epsilon: float = 1e-5) -> str:
    c = b.shape[x][1]
    return b.node("InstanceNormalization", [x, b.normal((c,), 0.3, 1.0), b.normal((c,), 0.5)], epsilon=epsilon)


def group(b: Builder, x: str, groups: int) -> str:
    c = b.shape[x][1]
    return b.node("GroupNormalization", [x, b.normal((c,), 0.3, 1.0), b.normal((c,), 0.5)], num_groups=groups)


def written(b: Builder, x: str, groups: int) -> str:
    """As torch writes a GroupNorm before opset 21."""
    n, c, h, w = b.shape[x]
    ones, zeros = b.constant(np.ones(groups, np.float32)), b.constant(np.zeros(groups, np.float32))
    y = b.node("InstanceNormalization", [b.node("Reshape", [x, ints(b, n, groups, -1)]), ones, zeros])
    y = b.node("Mul", [b.node("Reshape", [y, ints(b, n, c, h, w)]), b.normal((c, 1, 1), 0.3, 1.0)])
    return b.node("Add", [y, b.normal((c, 1, 1), 0.5)])


def resnet_block(b: Builder) -> str:
    """Of a diffusion model: norm, SiLU, convolution, twice, and a residual."""
    x = b.conv("x", 24)
    y = x
    for _ in range(2):
        y = written(b, y, 4)
        y = b.conv(b.node("Mul", [y, b.node("Sigmoid", [y])]), 24)
    return b.add(x, y)


def style_block(b: Builder) -> str:
    """Of a style transfer network: convolution, norm, ReLU."""
    return b.conv(b.relu(instance(b, b.conv("x", 20, stride=(2, 2)))), 3)


def shuffled(b: Builder) -> str:
    return group(b, b.shuffle(b.conv("x", 12), 3), 4)


# shape of the input, opset, what is built
CASES: dict[str, tuple[tuple[int, ...], int, Callable[[Builder], str]]] = {
    "instance": (IMAGE, 17, lambda b: instance(b, "x")),
    "instance, large epsilon": (IMAGE, 17, lambda b: instance(b, "x", 0.1)),
    "instance of a signal": ((2, 5, 40), 17, lambda b: instance(b, "x")),
    "instance of a volume": ((1, 5, 3, 4, 6), 17, lambda b: instance(b, "x")),
    "instance of a large image": ((1, 3, 60, 50), 17, lambda b: instance(b, "x")),
    "instance of one pixel": ((1, 5, 1, 1), 17, lambda b: instance(b, "x")),
    "group": (IMAGE, 21, lambda b: group(b, "x", 4)),
    "group of 40 channels": ((1, 40, 5, 9), 21, lambda b: group(b, "x", 2)),
    "all channels one group": ((1, 20, 5, 6), 21, lambda b: group(b, "x", 1)),
    "every channel a group": (IMAGE, 21, lambda b: group(b, "x", 12)),
    "group of a signal": ((1, 12, 30), 21, lambda b: group(b, "x", 4)),
    "group, channels shuffled": (IMAGE, 21, shuffled),
    "group as torch writes it": (IMAGE, 17, lambda b: written(b, "x", 4)),
    "diffusion": ((1, 5, 8, 7), 17, resnet_block),
    "style": ((2, 3, 15, 14), 17, style_block),
}


def model_of(name: str) -> ModelProto:
    shape, opset, build = CASES[name]
    b = Builder(np.random.default_rng(5), shape, opset)
    return b.model(build(b))


@pytest.mark.parametrize("name", CASES)
def test_values(name: str) -> None:
    model = model_of(name)
    feeds = {key: values * 2 + 1.5 for key, values in random_feeds(model).items()}
    for key, expected in reference_outputs(model, feeds).items():
        got = evaluate(lower(prepare(model)), feeds)[key]
        assert got.shape == expected.shape
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", CASES)
def test_instructions(name: str) -> None:
    i = list(CASES).index(name)
    assert hold(model_of(name), list(MACHINES.values())[i % len(MACHINES)], DataType.float16 if i % 2 else DataType.float32, seed=i)


def test_the_torch_form_is_one_normalisation() -> None:
    """Its Reshapes are free, and its Mul and Add a step of the last chain: as many operators as the node has, with real groups."""
    graphs = [lower(prepare(model_of(name))) for name in ("group", "group as torch writes it")]
    operators = [[type(op) for op in g.operators] for g in graphs]
    assert operators[0] == operators[1]
    for g in graphs:
        assert [op.groups for op in g.operators if isinstance(op, Conv)] == [4, 4]
        last = g.operators[-1]
        assert isinstance(last, Vector)
        assert [step.op for step in last.steps] == ["sub", "mul", "scale_shift"]


@pytest.mark.parametrize("name", ["group", "instance"])
def test_random_weights_have_unit_scale_and_zero_shift(name: str) -> None:
    steps = [step for op in lower(seed_weights(prepare(model_of(name)), 3)).operators if isinstance(op, Vector) for step in op.steps]
    (last,) = [step for step in steps if step.op == "scale_shift"]
    assert last.scale is not None
    assert last.shift is not None
    assert abs(last.scale.mean() - 1) < 0.2
    assert abs(last.shift.mean()) < 0.2


REFUSED: dict[str, tuple[tuple[int, ...], Callable[[Builder], str], str]] = {
    "scale computed": ((1, 12, 7, 6), lambda b: b.node("InstanceNormalization", ["x", pooled(b), b.normal((12,))]), "computed at run time"),
    "groups in another order": (IMAGE, lambda b: across(b), "axis 1 of"),
    "two axes": ((2, 12), lambda b: group(b, "x", 3), "behind the channels"),
    "scale of another size": (IMAGE, lambda b: b.node("InstanceNormalization", ["x", b.normal((6,)), b.normal((6,))]), "[12] is expected"),
    "no divisor": (IMAGE, lambda b: group(b, "x", 5), "a divisor of its 12 channels"),
}  # fmt: skip


def pooled(b: Builder) -> str:
    return b.node("Reshape", [b.node("GlobalAveragePool", ["x"]), ints(b, 12)])


def across(b: Builder) -> str:
    """Rows as the channels."""
    y = b.node("Transpose", ["x"], perm=[0, 2, 1, 3])
    return b.node("InstanceNormalization", [y, b.normal((7,)), b.normal((7,))])


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    shape, build, said = REFUSED[name]
    b = Builder(np.random.default_rng(3), shape, 21)
    with pytest.raises(UnsupportedError) as caught:
        lower(prepare(b._model([build(b)])))
    assert said in str(caught.value)
