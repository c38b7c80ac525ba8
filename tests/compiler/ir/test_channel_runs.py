"""Runs of channels taken out of a tensor are addresses: no copy where lanes allow it, one where they do not."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from onnx import ModelProto, helper

from compiler.frontend import lower
from compiler.ir.channel_runs import find_runs, split_channels
from compiler.ir.layout import assign
from compiler.ir.operators import Shuffle
from simulator.npu.parts import DataType
from tests.everywhere import MACHINES, hold
from tests.models import Builder


def split(b: Builder, x: str, *sizes: int) -> list[str]:
    n, _, h, w = b.shape[x]
    names = [f"{x}.part{i}" for i in range(len(sizes))]
    b.nodes.append(helper.make_node("Split", [x, b.constant(np.array(sizes, np.int64))], names, axis=1))
    b.shape.update({name: (n, size, h, w) for name, size in zip(names, sizes, strict=True)})
    return names


def silu(b: Builder, x: str) -> str:
    return b.node("Mul", [x, b.node("Sigmoid", [x])])


def c2f(b: Builder) -> ModelProto:
    """A convolution with SiLU, cut in two, one half processed further, all joined: the block of YOLOv8."""
    one, two = split(b, silu(b, b.conv("x", 34)), 13, 21)
    return b.model(b.conv(b.concat(b.relu(one), b.conv(silu(b, two), 21)), 9))


def gated(b: Builder) -> ModelProto:
    """Half of the channels times the sigmoid of the other half."""
    x = b.max_pool(b.relu(b.conv("x", 42)), 3, 1, (1, 1, 1, 1))
    one, two = split(b, x, 21, 21)
    return b.model(b.conv(b.node("Mul", [one, b.node("Sigmoid", [two])]), 5))


def whole_and_part(b: Builder) -> ModelProto:
    """The tensor is read whole as well, and some of its channels by nobody else."""
    x = silu(b, b.conv("x", 40))
    _, two, _ = split(b, x, 7, 18, 15)
    return b.model(b.conv(x, 5), b.conv(two, 6))


def two_outputs(b: Builder) -> ModelProto:
    """Both parts are the host's."""
    return b.model(*split(b, silu(b, b.conv("x", 30)), 14, 16))


def parts_of_the_input(b: Builder) -> ModelProto:
    one, two = split(b, "x", 5, 16)
    return b.model(b.add(b.conv(one, 8), b.conv(two, 8)))


def joined_again(b: Builder) -> ModelProto:
    """Parts in another order: they lie in the first tensor, so the second gets copies."""
    one, two = split(b, silu(b, b.conv("x", 36)), 16, 20)
    return b.model(b.conv(b.concat(two, one), 7))


def of_a_concat(b: Builder) -> ModelProto:
    """Runs across the borders of a Concat: its lanes cannot follow them."""
    x = b.concat(b.relu("x"), b.conv("x", 21))
    one, two = split(b, x, 30, 12)
    return b.model(b.conv(one, 4), b.conv(two, 4))


def added_halves(b: Builder) -> ModelProto:
    """Both halves in one element-wise operator, and again each of them cut."""
    one, two = split(b, silu(b, b.conv("x", 48)), 24, 24)
    left, right = split(b, silu(b, one), 8, 16)
    return b.model(b.add(one, two), b.conv(left, 3), b.conv(right, 3))


# model -> copies that the layout inserts
MODELS: dict[Callable[[Builder], ModelProto], int] = {
    c2f: 0,
    gated: 0,
    whole_and_part: 0,
    two_outputs: 1,
    parts_of_the_input: 0,
    joined_again: 2,
    of_a_concat: 2,
    added_halves: 0,
}


@pytest.mark.parametrize("make", MODELS, ids=lambda make: make.__name__)
def test_copies(make: Callable[[Builder], ModelProto]) -> None:
    graph = lower(make(Builder(np.random.default_rng(1), (1, 21, 8, 9))))
    assert any(isinstance(op, Shuffle) for op in graph.operators)
    layout = assign(graph, DataType.float16)
    assert len(layout.copies) == MODELS[make], layout.copies


@pytest.mark.parametrize("make", MODELS, ids=lambda make: make.__name__)
def test_instructions(make: Callable[[Builder], ModelProto]) -> None:
    i = list(MODELS).index(make)
    for j, dtype in enumerate(("float16", "float32")):
        model = make(Builder(np.random.default_rng(1), (1 + j, 21, 8, 9)))
        assert hold(model, list(MACHINES.values())[(i + j) % len(MACHINES)], DataType[dtype], seed=i)


def test_runs() -> None:
    def taken(y: str, *order: int) -> Shuffle:
        return Shuffle(y, "x", y, order)

    found = find_runs([taken("a", 4, 5), taken("b", 0, 2), taken("c", 5, 6), taken("d", 1), taken("e", *range(8)), taken("f", 3, 2)], 8)
    assert found == {"a": (4, 6), "d": (1, 2)}
    assert split_channels(found, 8) == [(None, (0, 1)), ("d", (1, 2)), (None, (2, 4)), ("a", (4, 6)), (None, (6, 8))]
    assert split_channels({"a": (0, 8)}, 8) == [("a", (0, 8))]
