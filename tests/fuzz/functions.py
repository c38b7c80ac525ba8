"""How functions of values and of two tensors are drawn, and what is computed over axes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from onnx import TensorProto

from tests.fuzz.builder import GraphBuilder, divisors_of

Draw = Callable[[GraphBuilder, str], object]
_LARGE = float("inf")


def function(low: float = -_LARGE, high: float = _LARGE, **choices: Sequence[Any]) -> Draw:
    """Of one tensor, whose values lie within limits; with some of the attributes."""

    def draw(b: GraphBuilder, op: str) -> None:
        b.node(op, [b.pick_within(low, high)], **b.draw_some(**choices))

    return draw


def draw_beside(b: GraphBuilder, x: str) -> str:
    """A tensor that broadcasts with x: of the pool, a constant, an input, x reduced; of fewer axes or more."""
    shape = b.shape(x)
    kind = b.integer(0, 5)
    if kind <= 1:

        def broadcasts(name: str) -> bool:
            try:
                return len(np.broadcast_shapes(shape, b.shape(name))) <= 5
            except ValueError:
                return False

        return b.pick(broadcasts)
    if kind == 2 and shape:
        axes = sorted({b.integer(0, len(shape) - 1) for _ in range(2)})
        return b.node(str(b.choose(("ReduceMean", "ReduceMax", "ReduceMin"))), [x], axes=axes, keepdims=1)
    if kind == 3:
        return b.draw_constant((), 1.0, float(b.choose((0, 1, -1))))
    other = tuple(size if b.chance(0.6) else 1 for size in shape)[b.integer(0, len(shape)) if b.chance(0.3) else 0 :]
    return b.draw_constant(other) if kind == 4 or math.prod(other) < 2 else b.input(other)


def draw_two(b: GraphBuilder, op: str) -> None:
    pair = [(x := b.pick()), draw_beside(b, x)]
    b.node(op, pair if b.chance(0.5) else pair[::-1])


def draw_several(b: GraphBuilder, op: str) -> None:
    """One to three."""
    x = b.pick()
    b.node(op, [x, *(draw_beside(b, x) for _ in range(b.choose((0, 1, 1, 1, 2))))])


def draw_quotient(b: GraphBuilder, op: str) -> None:
    """What divides stays away from 0."""
    kind = b.integer(0, 2)
    if kind == 0:
        x = b.pick()
        b.node(op, [x, b.draw_positive([size if b.chance(0.5) else 1 for size in b.shape(x)])])
        return
    below = b.pick_within(0.3, 20.0)
    shape = b.shape(below)
    b.node(op, [b.draw_constant(()) if kind == 1 else b.pick(lambda name: b.shape(name) == shape), below])


def draw_power(b: GraphBuilder, op: str) -> None:
    exponent = float(b.choose((2, 2, 3, 0.5, -1, 1)))
    x = b.pick() if exponent in (1, 2, 3) else b.pick_within(0.1, 20.0)
    b.node(op, [x, b.constant(np.array(exponent, np.float32))])


def draw_clip(b: GraphBuilder, op: str) -> None:
    low = float(b.choose((-1, 0, 0.25, 0.5)))
    b.node(op, [b.pick()], **b.choose(({"min": low}, {"max": low + 1}, {"min": low, "max": low + 1.5})))


def draw_prelu(b: GraphBuilder, op: str) -> None:
    x = b.pick_rank(2, 3, 4)
    rank = len(b.shape(x))
    slope = b.choose(((), (b.shape(x)[1], *[1] * (rank - 2)), (1,), (b.shape(x)[1], *[1] * (rank - 2))))
    b.node(op, [x, b.draw_constant(slope, 0.3)])


def draw_cast(b: GraphBuilder, op: str) -> None:
    """To a wider float and back, or to what it is."""
    x = b.pick()
    if b.chance(0.5):
        (x,) = b.add(op, [x], to=TensorProto.DOUBLE)
    b.add(op, [x], to=TensorProto.FLOAT)


def draw_where(b: GraphBuilder, op: str) -> None:
    """All of one, or parts of two, which the host has."""
    x = b.pick()
    shape = [int(b.choose((1, size))) for size in b.shape(x)]
    condition = np.full(shape, b.chance(0.5)) if b.chance(0.8) else b.rng.random(shape) < 0.5
    sides = [x, b.draw_constant(()) if b.chance(0.5) else b.pick()]
    b.node(op, [b.constant(condition), *(sides if b.chance(0.5) else sides[::-1])])


def reduction(low: float = -_LARGE, high: float = _LARGE) -> Draw:
    """Over any set of axes, or over all."""

    def draw(b: GraphBuilder, op: str) -> None:
        x = b.pick_within(low, high)
        if b.chance(0.3) and 1 < b.values[x].ndim < 5:  # groups of channels, of which some are reduced
            n, c, *rest = b.shape(x)
            groups = int(b.choose(divisors_of(c)))
            x = b.node("Reshape", [x], shape=[n, groups, c // groups, *rest])
        rank = b.values[x].ndim
        axes = sorted({b.integer(0, rank - 1) for _ in range(b.choose((1, 1, 1, 2, 2, 3)))})
        some = {} if b.chance(0.08) else {"axes": [axis - rank if b.opset >= 11 and b.chance(0.3) else axis for axis in axes]}
        b.node(op, [x], **some, **b.draw_some(keepdims=(0, 0, 1)))

    return draw


def draw_softmax(b: GraphBuilder, op: str) -> None:
    x = b.pick(lambda name: b.values[name].ndim > 0)
    rank = b.values[x].ndim
    axis = b.integer(0, rank - 1) if b.chance(0.3) else 1 if b.chance(0.2) and rank > 1 else rank - 1
    b.node(op, [x], axis=axis - rank if b.opset >= 11 and b.chance(0.5) else axis)


def draw_layer_norm(b: GraphBuilder, op: str) -> None:
    x = b.pick(lambda name: b.values[name].ndim > 1)
    rank = b.values[x].ndim
    axis = rank - 1 if b.chance(0.8) else b.integer(1, rank - 1)
    shape = b.shape(x)[axis:]
    b.node(op, [x, b.draw_positive(shape), *([b.draw_constant(shape, 0.3)] if b.chance(0.7) else [])], axis=axis - rank, epsilon=1e-3)


def draw_rms_norm(b: GraphBuilder, op: str) -> None:
    x = b.pick(lambda name: b.values[name].ndim > 1)
    rank = b.values[x].ndim
    axis = rank - 1 if b.chance(0.8) else b.integer(1, rank - 1)
    b.node(op, [x, b.draw_positive(b.shape(x)[axis:])], axis=axis - rank, epsilon=1e-3)


def draw_image_norm(b: GraphBuilder, op: str) -> None:
    x = b.pick_rank(3, 4)
    c, attributes = b.shape(x)[1], {"epsilon": 1e-3}
    if op == "GroupNormalization":
        attributes["num_groups"] = int(b.choose(divisors_of(c)))
        c = c if b.opset >= 21 else int(attributes["num_groups"])
    b.node(op, [x, b.draw_positive((c,)), b.draw_constant((c,), 0.3)], **attributes)


def draw_batch_norm(b: GraphBuilder, op: str) -> None:
    x = b.pick_rank(2, 3, 4)
    c = (b.shape(x)[1],)
    b.node(op, [x, b.draw_positive(c), b.draw_constant(c, 0.3), b.draw_constant(c, 0.3), b.draw_positive(c)])


def draw_lrn(b: GraphBuilder, op: str) -> None:
    b.node(op, [b.pick_rank(4)], size=b.choose((1, 3, 5)), **b.draw_some(alpha=(0.1, 0.5), beta=(0.5, 0.75), bias=(1.0, 2.0)))
