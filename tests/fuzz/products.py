"""How products, windows and images of another size are drawn."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tests.fuzz.builder import SIZES, GraphBuilder, MisfitError, divisors_of


def draw_matmul(b: GraphBuilder, op: str) -> None:
    """By a constant on either side; by a computed tensor, which may be the same: as it lies, or with its last axes the other way."""
    x = b.pick_rank(3) if b.chance(0.6) else b.pick(lambda name: b.values[name].ndim > 1)
    if b.chance(0.6):
        x = b.node(str(b.choose(("Sigmoid", "HardSigmoid", "Softplus", "Exp"))), [x])
    shape = b.shape(x)
    *lead, m, k = shape
    kind = b.integer(0, 9)
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
    heads = int(b.choose([h for h in divisors_of(c) if h <= 8]))

    def apart(name: str, order: Sequence[int]) -> str:
        return b.node("Transpose", [b.node("Reshape", [name], shape=[n, s, heads, c // heads])], perm=list(order))

    other = b.choose((x, b.pick(lambda name: b.shape(name) == (n, s, c))))
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
    groups = c if b.chance(0.2) else int(b.choose([1, 1, 1, *divisors_of(c)]))
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


def draw_space_to_depth(b: GraphBuilder, op: str) -> None:
    x = b.pick(lambda name: b.values[name].ndim == 4 and all(size % 2 == 0 for size in b.shape(name)[2:]))
    b.node(op, [x], blocksize=2)


def draw_einsum(b: GraphBuilder, op: str) -> None:
    """By a constant, or by the tensor itself along its first axes; axes of the result in some order."""
    x = b.pick(lambda name: 2 <= b.values[name].ndim <= 4)
    *_, k = shape = b.shape(x)
    axes = "abcd"[: len(shape)]
    *lead, row, last = axes
    if b.chance(0.4):
        other, of_other = x, "".join(lead) + "z" + last
    else:
        n = int(b.choose(SIZES))
        other, of_other = (
            (b.draw_constant((k, n), k**-0.5), f"{last}z") if b.chance(0.5) else (b.draw_constant((n, k), k**-0.5), f"z{last}")
        )
    result = [*lead, row, "z"]
    if b.chance(0.3):
        result = [result[i] for i in b.rng.permutation(len(result))]
    b.node(op, [x, other], equation=f"{axes},{of_other}->{''.join(result)}")


def draw_depth_to_space(b: GraphBuilder, op: str) -> None:
    x = b.pick(lambda name: b.values[name].ndim == 4 and b.shape(name)[1] % 4 == 0)
    b.node(op, [x], blocksize=2, **(b.draw_some(mode=("DCR", "CRD")) if b.opset >= 11 else {}))
