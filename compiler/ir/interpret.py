"""What a Graph means: a numpy evaluator on logical (n, c, h, w) float32 tensors.  Plain, not fast; every rewrite is held to it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from compiler.ir.graph import (
    Concat,
    Conv,
    Floats,
    Graph,
    LayerNorm,
    MatMul,
    Operator,
    Pool,
    Reflow,
    Resample,
    Shuffle,
    Softmax,
    Step,
    Vector,
)

Pair = tuple[int, int]


def evaluate(graph: Graph, feeds: Mapping[str, Floats], keep: bool = False) -> dict[str, Floats]:
    """ONNX input name -> array in, ONNX output name -> array out (both in ONNX's shapes); with `keep`, tensor name -> (n, c, h, w)."""
    values: dict[str, Floats] = {}
    for port in graph.inputs:
        values[port.tensor] = port.from_onnx(np.asarray(feeds[port.onnx_name], np.float32), graph.shapes[port.tensor])
    for name, constant in graph.constants.items():
        values[name] = np.broadcast_to(constant, graph.shapes[name])
    for op in graph.operators:
        values[op.y] = apply(op, [values[name] for name in op.inputs])
    if keep:
        return values
    return {port.onnx_name: port.to_onnx(values[port.tensor]) for port in graph.outputs}


def apply(op: Operator, inputs: list[Floats]) -> Floats:
    """One operator on its inputs."""
    x = inputs[0]
    if isinstance(op, Conv):
        return _conv(op, x, inputs[1] if len(inputs) > 1 else None)
    if isinstance(op, Pool):
        return _pool(op, x)
    if isinstance(op, Vector):
        return _vector(op, inputs)
    if isinstance(op, Softmax):
        grouped = x.reshape(x.shape[0], op.groups, -1, *x.shape[2:])
        e = np.exp(grouped - grouped.max(axis=2, keepdims=True))
        return np.asarray(e / e.sum(axis=2, keepdims=True), np.float32).reshape(x.shape)
    if isinstance(op, LayerNorm):
        centred = x - x.mean(axis=1, keepdims=True)
        factor = 1 / np.sqrt((centred * centred).mean(axis=1, keepdims=True) + np.float32(op.epsilon))
        return np.asarray(centred * factor * op.scale[:, None, None] + op.shift[:, None, None], np.float32)
    if isinstance(op, MatMul):
        return _matmul(op, x, inputs[1])
    if isinstance(op, Reflow):
        return _reflow(op, x)
    if isinstance(op, Resample):
        return _resample(op, x)
    if isinstance(op, Concat):
        return np.concatenate(inputs, axis=1)
    assert isinstance(op, Shuffle)
    return x[:, list(op.order)]


def _windows(x: Floats, kernel: Pair, stride: Pair, dilation: Pair, pads: tuple[int, int, int, int], fill: float) -> Floats:
    """[n, c, h_out, w_out, kh, kw]"""
    top, left, bottom, right = pads
    if min(pads) < 0:  # rows and columns that are left out
        x = x[:, :, max(0, -top) : x.shape[2] - max(0, -bottom), max(0, -left) : x.shape[3] - max(0, -right)]
        top, left, bottom, right = (max(0, pad) for pad in pads)
    if any((top, left, bottom, right)):
        x = np.pad(x, ((0, 0), (0, 0), (top, bottom), (left, right)), constant_values=fill)
    reach = ((kernel[0] - 1) * dilation[0] + 1, (kernel[1] - 1) * dilation[1] + 1)
    windows = sliding_window_view(x, reach, axis=(2, 3))
    return windows[:, :, :: stride[0], :: stride[1], :: dilation[0], :: dilation[1]]


def _conv(op: Conv, x: Floats, residual: Floats | None) -> Floats:
    c_out, c_in, kh, kw = op.weights.shape
    windows = _windows(x, (kh, kw), op.stride, op.dilation, op.pads, 0.0)
    n, _, h, w = windows.shape[:4]
    out = np.empty((n, c_out, h, w), np.float32)
    rows = c_out // op.groups
    for g in range(op.groups):
        part = windows[:, g * c_in : (g + 1) * c_in].transpose(0, 2, 3, 1, 4, 5).reshape(n * h * w, c_in * kh * kw)
        product = part @ op.weights[g * rows : (g + 1) * rows].reshape(rows, -1).T
        out[:, g * rows : (g + 1) * rows] = product.reshape(n, h, w, rows).transpose(0, 3, 1, 2)
    out += op.bias[:, None, None]
    if residual is not None:
        out += residual
    if op.activation != "none":
        out = np.maximum(out, np.float32(0))
    return np.minimum(out, np.float32(op.limit)) if op.activation == "clip" else out


def _matmul(op: MatMul, a: Floats, b: Floats) -> Floats:
    n, _, h, w = a.shape
    left = a.reshape(n, op.heads, -1, h * w)
    right = b.reshape(n, op.heads, -1, b.shape[2] * b.shape[3])
    y = (right.swapaxes(2, 3) if op.transposed else right) @ left  # [n, heads, channels of y, pixels]
    return np.ascontiguousarray(y.reshape(n, -1, h, w))


def _reflow(op: Reflow, x: Floats) -> Floats:
    n, c, h, w = x.shape
    out = np.zeros((n, c, op.size[0] * op.size[1]), np.float32)
    inside = out[:, :, op.before : op.before + h * w]
    inside[...] = x.reshape(n, c, -1)[:, :, : inside.shape[2]]
    return out.reshape(n, c, *op.size)


def erf(x: Floats) -> Floats:
    """Abramowitz and Stegun 7.1.26: off by at most 1.5e-7."""
    t = 1 / (1 + np.float32(0.3275911) * np.abs(x))
    series = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))))
    return np.asarray(np.sign(x) * (1 - series * np.exp(-x * x)), np.float32)


def _pool(op: Pool, x: Floats) -> Floats:
    if op.mode == "max":
        return _windows(x, op.kernel, op.stride, (1, 1), op.pads, -np.inf).max(axis=(4, 5))
    total = _windows(x, op.kernel, op.stride, (1, 1), op.pads, 0.0).sum(axis=(4, 5), dtype=np.float32)
    ones = np.ones((1, 1, *x.shape[2:]), np.float32)
    count = _windows(ones, op.kernel, op.stride, (1, 1), op.pads, 1.0 if op.count_include_pad else 0.0).sum(axis=(4, 5))
    return np.asarray(total / count, np.float32)


def _resample(op: Resample, x: Floats) -> Floats:
    rows, columns = op.rows.matrix(x.shape[2]), op.columns.matrix(x.shape[3])
    out = np.einsum("ih,nchw,jw->ncij", rows, x, columns, optimize=True)
    out[:, :, [not taps for taps in op.rows.taps]] = op.fill
    out[:, :, :, [not taps for taps in op.columns.taps]] = op.fill
    return np.asarray(out, np.float32)


def _vector(op: Vector, inputs: list[Floats]) -> Floats:
    return chain(op.steps, inputs[0], inputs)


def chain(steps: Sequence[Step], v: Floats, inputs: Sequence[Floats], rounded: Callable[[Floats], Floats] = np.asarray) -> Floats:
    """An element-wise chain that starts as v; `rounded` is applied to what every step makes."""
    kept: dict[int, Floats] = {}
    for step in steps:
        if step.op == "keep":
            kept[step.kept] = v
        elif step.op == "scale_shift":
            assert step.scale is not None
            assert step.shift is not None
            v = rounded(v * step.scale[:, None, None] + step.shift[:, None, None])
        else:
            other = inputs[step.operand] if step.operand >= 0 else kept.get(step.kept, v)
            v = rounded(_STEPS[step.op](v, np.float32(step.value), other))
    return v


_STEPS: dict[str, Callable[[Floats, np.float32, Floats], Floats]] = {
    "relu": lambda a, s, b: np.maximum(a, np.float32(0)), "exp": lambda a, s, b: np.exp(a), "ln": lambda a, s, b: np.log(a),
    "sqrt": lambda a, s, b: np.sqrt(a), "reciprocal": lambda a, s, b: np.float32(1) / a, "square": lambda a, s, b: a * a,
    "adds": lambda a, s, b: a + s, "muls": lambda a, s, b: a * s, "maxs": lambda a, s, b: np.maximum(a, s),
    "mins": lambda a, s, b: np.minimum(a, s), "add": lambda a, s, b: a + b, "sub": lambda a, s, b: a - b,
    "mul": lambda a, s, b: a * b, "div": lambda a, s, b: a / b, "max": lambda a, s, b: np.maximum(a, b),
    "min": lambda a, s, b: np.minimum(a, b), "rsub": lambda a, s, b: b - a, "rdiv": lambda a, s, b: b / a, "take": lambda a, s, b: b,
    "erf": lambda a, s, b: erf(a), "gelu": lambda a, s, b: a * np.float32(0.5) * (1 + erf(a * np.float32(math.sqrt(0.5)))),
}  # fmt: skip
