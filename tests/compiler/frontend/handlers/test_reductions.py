"""Reduce* over rows, columns, channels and all of them, against onnxruntime, interpreted and as instructions."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import ModelProto

from compiler.frontend import lower
from compiler.frontend.handlers.reductions import REDUCTIONS
from compiler.frontend.onnx_io.load import prepare
from compiler.ir.interpret import evaluate
from simulator.npu.parts import DataType
from tests.everywhere import MACHINES, hold
from tests.models import Builder, random_feeds, reference_outputs

AXES = ([2, 3], [1], [-1], [2], [1, 2, 3], None)
NO_CHANNELS = ("ReduceMax", "ReduceMin")
CASES = [(op, axes, keep) for op in REDUCTIONS for i, axes in enumerate(AXES) for keep in (i % 2,)]
CASES = [(op, axes, keep) for op, axes, keep in CASES if op not in NO_CHANNELS or (axes is not None and 1 not in axes)]


def model_of(op: str, axes: list[int] | None, keep: int) -> ModelProto:
    b = Builder(np.random.default_rng(6), (1, 21, 7, 6))
    x = b.relu(b.conv("x", 21)) if axes != [1] else "x"
    if op == "ReduceLogSum":  # of positive sums, that are not near 1
        x = b.node("Add", [b.node("Abs", [x]), b.constant(np.array(2, np.float32))])
    if op == "ReduceSum":  # the one whose axes were an input already at this opset
        return b.model(b.node(op, [x] if axes is None else [x, b.constant(np.array(axes, np.int64))], keepdims=keep))
    return b.model(b.node(op, [x], keepdims=keep, **({} if axes is None else {"axes": axes})))


@pytest.mark.parametrize(("op", "axes", "keep"), CASES)
def test_values(op: str, axes: list[int] | None, keep: int) -> None:
    model = model_of(op, axes, keep)
    feeds = random_feeds(model)
    for key, expected in reference_outputs(model, feeds).items():
        got = evaluate(lower(prepare(model)), feeds)[key]
        assert got.shape == expected.shape
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("op", REDUCTIONS)
def test_instructions(op: str) -> None:
    for i, (_, axes, keep) in enumerate(case for case in CASES if case[0] == op):
        machine = list(MACHINES.values())[i % len(MACHINES)]
        assert hold(model_of(op, axes, keep), machine, DataType.float16 if i % 2 else DataType.float32, seed=i)


def test_the_largest_channel() -> None:
    model = model_of("ReduceMax", [1], 1)
    feeds = random_feeds(model)
    for key, expected in reference_outputs(model, feeds).items():
        np.testing.assert_array_equal(evaluate(lower(prepare(model)), feeds)[key], expected)
