"""How each operator is drawn: a table, name -> what adds a node of it to a graph that is there already."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
from onnx import TensorProto

from tests.fuzz.builder import OPSETS, SIZES, GraphBuilder, MisfitError, schema_of

Draw = Callable[[GraphBuilder, str], object]
_LARGE = float("inf")


def _divisors(number: int) -> list[int]:
    return [d for d in range(1, number + 1) if number % d == 0]


# --- element by element --------------------------------------------------------------------------------------------


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


# --- views ---------------------------------------------------------------------------------------------------------


def draw_reshape(b: GraphBuilder, op: str) -> None:
    """Axes joined, one axis parted, or another factorisation altogether."""
    x = b.pick()
    shape, kind = list(b.shape(x)), b.integer(0, 2)
    if kind == 0 and len(shape) > 1:
        at = b.integer(0, len(shape) - 2)
        shape[at : at + 2] = [shape[at] * shape[at + 1]]
    elif kind == 1 and shape and len(shape) < 5:
        at = b.integer(0, len(shape) - 1)
        first = int(b.choose(_divisors(shape[at])))
        shape[at : at + 1] = [first, shape[at] // first]
    else:
        left, rank, shape = math.prod(shape), b.integer(1, 5), []
        for _ in range(rank - 1):
            shape.append(int(b.choose(_divisors(left))))
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


# --- products ------------------------------------------------------------------------------------------------------


def draw_matmul(b: GraphBuilder, op: str) -> None:
    """By a constant on either side; by a computed tensor, which may be the same: as it lies, or with its last axes the other way."""
    x = b.pick_rank(3) if b.chance(0.6) else b.pick(lambda name: b.values[name].ndim > 1)
    if b.chance(0.4):
        x = b.node(str(b.choose(("Sigmoid", "HardSigmoid", "Softplus"))), [x])
    shape = b.shape(x)
    *lead, m, k = shape
    kind = b.integer(0, 7)
    if kind == 0:
        b.node(op, [x, b.draw_constant((k, int(b.choose(SIZES))), k**-0.5)])
    elif kind == 1:
        b.node(op, [b.draw_constant((int(b.choose(SIZES)), m), m**-0.5), x])
    elif kind == 2:
        b.node(op, [x, b.pick(lambda name: b.shape(name)[:-2] == tuple(lead) and b.shape(name)[-2:-1] == (k,))])
    elif kind == 3:
        b.node(op, [x, b.input((*lead, k, int(b.choose(SIZES))))])
    elif kind == 4:
        b.node(op, [x, _turned(b, b.pick(lambda name: b.shape(name)[:-2] == tuple(lead) and b.shape(name)[-1:] == (k,)))])
    elif kind == 5:
        b.node(op, [x, _turned(b, x)])
    else:
        _draw_heads(b, x)


def _turned(b: GraphBuilder, x: str) -> str:
    rank = b.values[x].ndim
    return b.node("Transpose", [x], perm=[*range(rank - 2), rank - 1, rank - 2])


def _draw_heads(b: GraphBuilder, x: str) -> None:
    """What [n, s, c] becomes as heads: their products among themselves, and of these with heads again; or one of the two."""
    if b.values[x].ndim != 3:
        raise MisfitError
    n, s, c = b.shape(x)
    heads = int(b.choose([h for h in _divisors(c) if h <= 8]))

    def apart(name: str, order: Sequence[int]) -> str:
        return b.node("Transpose", [b.node("Reshape", [name], shape=[n, s, heads, c // heads])], perm=list(order))

    other = b.pick(lambda name: b.shape(name) == (n, s, c))
    made = b.node("MatMul", [apart(x, (0, 2, 1, 3)), apart(other, (0, 2, 3, 1))])
    if b.chance(0.3):
        made = b.node("Softmax", [b.node("Mul", [made, b.constant(np.array(0.25, np.float32))])], axis=3)
    if b.chance(0.6):
        made = b.node("MatMul", [made, apart(other, (0, 2, 1, 3))])
        b.node("Reshape", [b.node("Transpose", [made], perm=[0, 2, 1, 3])], shape=[n, s, c])


def draw_gemm(b: GraphBuilder, op: str) -> None:
    x = b.pick_rank(2)
    trans_a, trans_b, n = int(b.chance(0.15)), int(b.chance(0.6)), int(b.choose(SIZES))
    m, k = b.shape(x)[::-1] if trans_a else b.shape(x)
    weights = b.draw_constant((n, k) if trans_b else (k, n), k**-0.5)
    bias = [b.draw_constant(b.choose(((n,), (n,), (1, n), (m, n), ())), 0.3)] if b.chance(0.7) or b.opset < 11 else []
    some = {key: value for key, value in (("transA", trans_a), ("transB", trans_b)) if value}
    b.node(op, [x, weights, *bias], **some, **b.draw_some(alpha=(0.5,), beta=(0.5, 2.0)))


def _window(b: GraphBuilder, spatial: Sequence[int], most: int = 5) -> dict[str, Any]:
    """Kernel, strides and pads."""
    kernel = [b.integer(1, min(most, size)) for size in spatial]
    found: dict[str, Any] = {"kernel_shape": kernel} | b.draw_some(strides=([b.integer(1, 3) for _ in spatial],))
    if b.chance(0.5):
        found["pads"] = [b.integer(0, size - 1) for size in kernel * 2]
    elif b.chance(0.2):
        found["auto_pad"] = str(b.choose(("SAME_UPPER", "SAME_LOWER", "VALID")))
    return found


def draw_conv(b: GraphBuilder, op: str) -> None:
    x = b.pick_rank(3, 4)
    _, c, *spatial = b.shape(x)
    attributes = _window(b, spatial)
    kernel = attributes["kernel_shape"]
    if b.chance(0.2):
        attributes["dilations"] = [b.integer(1, max(1, (size - 1) // max(1, k - 1))) for size, k in zip(spatial, kernel, strict=True)]
    groups = c if b.chance(0.2) else int(b.choose([1, 1, 1, *_divisors(c)]))
    out = groups * int(b.choose([size for size in SIZES if size * groups <= 64] or [1]))
    std = (c // groups * math.prod(kernel)) ** -0.5
    weights = b.draw_constant((out, c // groups, *kernel) if op == "Conv" else (c, out // groups, *kernel), std)
    if op == "ConvTranspose":
        attributes.pop("auto_pad", None)
        if "strides" in attributes and b.chance(0.4):
            attributes["output_padding"] = [b.integer(0, stride - 1) for stride in attributes["strides"]]
    b.node(
        op,
        [x, weights, *([b.draw_constant((out,), 0.3)] if b.chance(0.6) else [])],
        **attributes,
        **({"group": groups} if groups > 1 else {}),
    )


def draw_pool(b: GraphBuilder, op: str) -> None:
    x = b.pick_rank(3, 4)
    attributes = _window(b, b.shape(x)[2:])
    if not any(attributes.get("pads", [])) and b.opset >= 11:  # with pads, onnx and onnxruntime disagree on some sizes
        attributes |= b.draw_some(ceil_mode=(0, 1))
    if op == "AveragePool":
        attributes |= b.draw_some(count_include_pad=(0, 1))
    b.node(op, [x], **attributes)


def draw_global_pool(b: GraphBuilder, op: str) -> None:
    b.node(op, [b.pick_rank(3, 4)])


def draw_resize(b: GraphBuilder, op: str) -> None:
    x = b.pick_rank(3, 4)
    rank, shape = b.values[x].ndim, b.shape(x)
    scales = [1.0, 1.0, *(float(b.choose((1, 2, 2, 3, 0.5, 1.5) if op == "Resize" else (1, 2, 2, 3))) for _ in range(rank - 2))]
    if op == "Upsample" or b.opset < 11:
        b.node(op, [x], mode=str(b.choose(("nearest", "nearest", "linear") if rank == 4 else ("nearest",))), scales=scales)
        return
    mode = str(b.choose(("nearest", "nearest", "linear", "cubic") if rank == 4 else ("nearest", "linear")))
    attributes: dict[str, Any] = {"mode": mode}
    if mode == "nearest":
        attributes |= b.draw_some(nearest_mode=("floor", "ceil", "round_prefer_floor", "round_prefer_ceil"))
    attributes |= b.draw_some(coordinate_transformation_mode=("asymmetric", "half_pixel", "align_corners", "pytorch_half_pixel"))
    sizes = [*shape[:2], *(max(1, int(size * scale)) for size, scale in zip(shape[2:], scales[2:], strict=True))]
    named = {"sizes": sizes} if b.chance(0.4) and b.opset >= 13 else {"scales": scales}
    b.node(op, [x, *([] if b.opset >= 13 else [b.constant(np.zeros(0, np.float32))])], **attributes, **named)


def draw_depth_to_space(b: GraphBuilder, op: str) -> None:
    x = b.pick(lambda name: b.values[name].ndim == 4 and b.shape(name)[1] % 4 == 0)
    b.node(op, [x], blocksize=2, **(b.draw_some(mode=("DCR", "CRD")) if b.opset >= 11 else {}))


# --- over axes -----------------------------------------------------------------------------------------------------


def reduction(low: float = -_LARGE, high: float = _LARGE) -> Draw:
    """Over any set of axes, or over all."""

    def draw(b: GraphBuilder, op: str) -> None:
        x = b.pick_within(low, high)
        if b.chance(0.3) and 1 < b.values[x].ndim < 5:  # groups of channels, of which some are reduced
            n, c, *rest = b.shape(x)
            groups = int(b.choose(_divisors(c)))
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


def draw_image_norm(b: GraphBuilder, op: str) -> None:
    x = b.pick_rank(3, 4)
    c, attributes = b.shape(x)[1], {"epsilon": 1e-3}
    if op == "GroupNormalization":
        attributes["num_groups"] = int(b.choose(_divisors(c)))
        c = c if b.opset >= 21 else int(attributes["num_groups"])
    b.node(op, [x, b.draw_positive((c,)), b.draw_constant((c,), 0.3)], **attributes)


def draw_batch_norm(b: GraphBuilder, op: str) -> None:
    x = b.pick_rank(2, 3, 4)
    c = (b.shape(x)[1],)
    b.node(op, [x, b.draw_positive(c), b.draw_constant(c, 0.3), b.draw_constant(c, 0.3), b.draw_positive(c)])


def draw_lrn(b: GraphBuilder, op: str) -> None:
    b.node(op, [b.pick_rank(4)], size=b.choose((1, 3, 5)), **b.draw_some(alpha=(0.1, 0.5), beta=(0.5, 0.75), bias=(1.0, 2.0)))


VIEWS: dict[str, Draw] = {
    "Concat": draw_concat, "Expand": draw_expand, "Flatten": draw_flatten, "Gather": draw_gather, "Reshape": draw_reshape,
    "Slice": draw_slice, "Split": draw_split, "Squeeze": draw_squeeze, "Transpose": draw_transpose, "Unsqueeze": draw_unsqueeze,
}  # fmt: skip
OPERATORS: dict[str, Draw] = {
    **dict.fromkeys(("Abs", "Dropout", "Erf", "Identity", "HardSwish", "Mish", "Neg", "Relu", "Softplus", "Softsign", "Tanh"), function()),
    **dict.fromkeys(("Celu", "Elu"), function(alpha=(0.5, 2.0))),
    "Exp": function(high=4.0),
    "Gelu": function(approximate=("none", "tanh")),
    "HardSigmoid": function(alpha=(0.2, 0.5), beta=(0.5, 0.3)),
    "LeakyRelu": function(alpha=(0.1, 0.3)),
    "Log": function(0.1),
    "Reciprocal": function(0.2),
    "Selu": function(alpha=(1.5,), gamma=(1.2,)),
    "Sigmoid": function(),
    "Sqrt": function(0.05),
    "Swish": function(alpha=(0.5, 2.0)),
    **dict.fromkeys(("Add", "Sub", "Mul"), draw_two),
    **dict.fromkeys(("Max", "Mean", "Min", "Sum"), draw_several),
    "Div": draw_quotient,
    "Pow": draw_power,
    "Clip": draw_clip,
    "PRelu": draw_prelu,
    "Cast": draw_cast,
    **VIEWS,
    "Pad": draw_pad,
    "MatMul": draw_matmul,
    "Gemm": draw_gemm,
    **dict.fromkeys(("Conv", "ConvTranspose"), draw_conv),
    **dict.fromkeys(("AveragePool", "MaxPool"), draw_pool),
    **dict.fromkeys(("GlobalAveragePool", "GlobalMaxPool"), draw_global_pool),
    **dict.fromkeys(("Resize", "Upsample"), draw_resize),
    "DepthToSpace": draw_depth_to_space,
    **dict.fromkeys(("ReduceL1", "ReduceL2", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceSum", "ReduceSumSquare"), reduction()),
    "ReduceLogSum": reduction(0.1),
    "Softmax": draw_softmax,
    "LayerNormalization": draw_layer_norm,
    **dict.fromkeys(("InstanceNormalization", "GroupNormalization"), draw_image_norm),
    "BatchNormalization": draw_batch_norm,
    "LRN": draw_lrn,
}
# drawn more often than others: products, sums, what is positive at 0
WEIGHTS = {
    "MatMul": 9, "Conv": 4, "Add": 2, "Mul": 2, "Sub": 2, "Sigmoid": 2, "Exp": 2, "Softplus": 2, "Clip": 2, "Softmax": 2, "Gemm": 2,
    "Expand": 0.3,
}  # fmt: skip


@cache
def _rarity(op: str) -> float:
    """So that what few opsets have is drawn as often as others."""
    return len(OPSETS) / sum(schema_of(op, opset) is not None for opset in OPSETS)


def draw_operator(b: GraphBuilder) -> None:
    """One of the table, or one of the views."""
    names = [name for name in (VIEWS if b.chance(b.views) else OPERATORS) if schema_of(name, b.opset) is not None]
    weights = np.array([WEIGHTS.get(name, 1.0) * _rarity(name) for name in names])
    op = names[int(b.rng.choice(len(names), p=weights / weights.sum()))]
    OPERATORS[op](b, op)
