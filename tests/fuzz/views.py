"""How operators are drawn that move values, or only say of them otherwise."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tests.fuzz.builder import SIZES, GraphBuilder, divisors_of


def draw_reshape(b: GraphBuilder, op: str) -> None:
    """Axes joined, one axis parted, or another factorisation altogether."""
    x = b.pick()
    shape, kind = list(b.shape(x)), b.integer(0, 2)
    if kind == 0 and len(shape) > 1:
        at = b.integer(0, len(shape) - 2)
        shape[at : at + 2] = [shape[at] * shape[at + 1]]
    elif kind == 1 and shape and len(shape) < 5:
        at = b.integer(0, len(shape) - 1)
        first = int(b.choose(divisors_of(shape[at])))
        shape[at : at + 1] = [first, shape[at] // first]
    else:
        left, rank, shape = math.prod(shape), b.integer(1, 5), []
        for _ in range(rank - 1):
            shape.append(int(b.choose(divisors_of(left))))
            left //= shape[-1]
        shape.append(left)
    if b.chance(0.3) and shape:
        shape[b.integer(0, len(shape) - 1)] = -1
    b.node(op, [x], shape=shape)


def draw_transpose(b: GraphBuilder, op: str) -> None:
    x = b.pick(lambda name: b.values[name].ndim > 1)
    rank = b.values[x].ndim
    order = list(range(rank))
    if b.chance(0.5):
        one, other = b.rng.choice(rank, 2, replace=False)
        order[one], order[other] = order[other], order[one]
    else:
        order = b.rng.permutation(rank).tolist()
    b.node(op, [x], **({} if b.chance(0.1) else {"perm": order}))


def draw_squeeze(b: GraphBuilder, op: str) -> None:
    x = b.pick(lambda name: 1 in b.shape(name))
    ones = [axis for axis, size in enumerate(b.shape(x)) if size == 1]
    some = sorted({int(b.choose(ones)) for _ in range(2)})
    b.node(op, [x], axes=[axis - b.values[x].ndim if b.chance(0.3) and b.opset >= 11 else axis for axis in some])


def draw_unsqueeze(b: GraphBuilder, op: str) -> None:
    x = b.pick(lambda name: b.values[name].ndim < 5)
    rank = b.values[x].ndim
    b.node(op, [x], axes=sorted({b.integer(0, rank) for _ in range(b.integer(1, min(2, 5 - rank)))}))


def draw_flatten(b: GraphBuilder, op: str) -> None:
    x = b.pick(lambda name: b.values[name].ndim > 0)
    b.node(op, [x], **({} if b.chance(0.2) else {"axis": b.integer(0, b.values[x].ndim)}))


def draw_expand(b: GraphBuilder, op: str) -> None:
    x = b.pick(lambda name: 1 in b.shape(name))
    shape = [int(b.choose((1, 2, 3, 16, 20))) if size == 1 else size for size in b.shape(x)]
    b.node(op, [x], shape=[*([2] if len(shape) < 5 and b.chance(0.2) else []), *shape])


def draw_tile(b: GraphBuilder, op: str) -> None:
    x = b.pick(lambda name: b.values[name].ndim > 0)
    repeats = [1] * b.values[x].ndim
    for _ in range(b.choose((1, 1, 2))):
        repeats[b.integer(0, len(repeats) - 1)] = b.integer(2, 3)
    b.node(op, [x], repeats=repeats)


def draw_slice(b: GraphBuilder, op: str) -> None:
    x = b.pick(lambda name: max(b.shape(name), default=1) > 1)
    long = [axis for axis, size in enumerate(b.shape(x)) if size > 1]
    axes = sorted({int(b.choose(long)) for _ in range(b.choose((1, 1, 2)))})
    starts, ends, steps = list[int](), list[int](), list[int]()
    for axis in axes:
        size = b.shape(x)[axis]
        start = b.integer(0, size - 1)
        end = b.integer(start + 1, size)
        step = int(b.choose((1, 1, 1, 2, 3, -1)))
        if step < 0:
            start, end = end - 1, start - 1 if start else -size - 1
        elif end == size and b.chance(0.5):
            end = 2**31 - 1
        elif b.chance(0.3):
            start -= size
        starts, ends, steps = [*starts, start], [*ends, end], [*steps, step]
    if b.opset < 10 or (set(steps) == {1} and b.chance(0.5)):
        b.node(op, [x], starts=starts, ends=ends, axes=axes)
    else:
        b.node(op, [x], starts=starts, ends=ends, axes=axes, steps=steps)


def draw_split(b: GraphBuilder, op: str) -> None:
    x = b.pick(lambda name: max(b.shape(name), default=1) > 1)
    axis = int(b.choose([axis for axis, size in enumerate(b.shape(x)) if size > 1]))
    size = b.shape(x)[axis]
    count = int(b.choose([parts for parts in (2, 2, 3) if parts <= size]))
    if size % count == 0 and b.chance(0.5):
        b.split(op, [x], count, axis=axis, **({"num_outputs": count} if b.opset >= 18 else {}))
        return
    cuts = sorted(b.rng.choice(np.arange(1, size), count - 1, replace=False).tolist())
    b.split(op, [x], count, axis=axis, split=np.diff([0, *cuts, size]).tolist())


def draw_gather(b: GraphBuilder, op: str) -> None:
    """One entry, some side by side, or any."""
    x = b.pick(lambda name: b.values[name].ndim > 0)
    axis = b.integer(0, b.values[x].ndim - 1)
    size, kind = b.shape(x)[axis], b.integer(0, 2)
    if kind == 0:
        indices: Any = b.integer(-size, size - 1)
    elif kind == 1:
        start = b.integer(0, size - 1)
        indices = list(range(start, b.integer(start + 1, size)))
    else:
        indices = b.rng.integers(0, size, b.integer(1, 4))
    b.node(op, [x, b.constant(np.asarray(indices, np.int64))], axis=axis)


def draw_concat(b: GraphBuilder, op: str) -> None:
    x = b.pick(lambda name: b.values[name].ndim > 0)
    axis = b.integer(0, b.values[x].ndim - 1) if b.chance(0.5) else min(1, b.values[x].ndim - 1)

    def fits(name: str) -> bool:
        one, other = list(b.shape(x)), list(b.shape(name))
        return len(one) == len(other) and one[:axis] + one[axis + 1 :] == other[:axis] + other[axis + 1 :]

    parts = [x]
    for _ in range(b.integer(1, 2)):
        shape = list(b.shape(x))
        shape[axis] = int(b.choose(SIZES))
        kind = b.integer(0, 5)
        small = math.prod(shape) < 2000
        parts.append(b.draw_constant(shape) if kind == 0 and small else b.input(shape) if kind == 1 and small else b.pick(fits))
    b.node(op, [parts[i] for i in b.rng.permutation(len(parts))], axis=axis if b.chance(0.7) or b.opset < 11 else axis - b.values[x].ndim)


def draw_pad(b: GraphBuilder, op: str) -> None:
    x = b.pick(lambda name: b.values[name].ndim > 1)
    shape = b.shape(x)
    rank, mode = len(shape), str(b.choose(("constant", "constant", "constant", "reflect", "edge")))
    pads = [0] * (2 * rank)
    for _ in range(b.integer(0, 3)):
        at = b.integer(0, 2 * rank - 1) if b.chance(0.3) else b.integer(max(0, rank - 2), rank - 1) + rank * b.integer(0, 1)
        pads[at] = b.integer(0, min(3, shape[at % rank] - 1) if mode == "reflect" else 3)
    value = float(b.choose((0.0, 0.0, 1.5))) if mode == "constant" else 0.0
    b.node(op, [x], mode=mode, pads=pads, **({} if value == 0 else {"value" if b.opset < 11 else "constant_value": value}))


VIEWS = {
    "Concat": draw_concat, "Expand": draw_expand, "Flatten": draw_flatten, "Gather": draw_gather, "Reshape": draw_reshape,
    "Slice": draw_slice, "Split": draw_split, "Squeeze": draw_squeeze, "Tile": draw_tile, "Transpose": draw_transpose,
    "Unsqueeze": draw_unsqueeze,
}  # fmt: skip
