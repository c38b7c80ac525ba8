"""One handler per ONNX operator: reads the node, emits operators of the graph.  `HANDLERS` is the list of what is supported."""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from onnx import NodeProto

from compiler.frontend.attributes import label
from compiler.frontend.elementwise import ELEMENTWISE
from compiler.frontend.to_graph import Handler, Translator, View, graph_shape
from compiler.ir.graph import Concat, Conv, Floats, Pool, Shuffle, Softmax
from compiler.rewrites.lrn import lower_lrn
from simulator.npu.errors import BadInputError

Values = dict[str, Any]
Pads = tuple[int, int, int, int]
Mode = Literal["max", "average"]


def _pair(state: Translator, node: NodeProto, values: Values, key: str) -> tuple[int, int]:
    numbers = values.get(key, [1, 1])
    if len(numbers) != 2:
        raise state.refuse(node, f"{key} {numbers}; windows of two axes are supported")
    return int(numbers[0]), int(numbers[1])


def _pads(values: Values, size: tuple[int, int], kernel: tuple[int, int], stride: tuple[int, int], dilation: tuple[int, int]) -> Pads:
    """(top, left, bottom, right), auto_pad resolved: SAME gives ceil(size / stride) outputs."""
    auto = values.get("auto_pad", "NOTSET")
    if auto == "VALID":
        return (0, 0, 0, 0)
    if auto == "NOTSET":
        top, left, bottom, right = values.get("pads", [0, 0, 0, 0])
        return (int(top), int(left), int(bottom), int(right))
    before, after = [], []
    for axis in range(2):
        outputs = -(-size[axis] // stride[axis])
        total = max(0, (outputs - 1) * stride[axis] + (kernel[axis] - 1) * dilation[axis] + 1 - size[axis])
        small, large = total // 2, total - total // 2
        before.append(small if auto == "SAME_UPPER" else large)
        after.append(large if auto == "SAME_UPPER" else small)
    return (before[0], before[1], after[0], after[1])


def _floats(array: NDArray[Any]) -> Floats:
    return np.ascontiguousarray(array, dtype=np.float32)


def conv(state: Translator, node: NodeProto, values: Values) -> None:
    weights = _floats(state.constant(node, 1, "the weight"))
    if weights.ndim != 4:
        raise state.refuse(node, f"weights of shape {list(weights.shape)}; convolutions over two axes are supported")
    bias = _floats(state.constant(node, 2, "the bias")) if state.has(node, 2) else np.zeros(weights.shape[0], np.float32)
    if bias.shape != (weights.shape[0],):
        raise BadInputError(f"{label(node)}: bias of shape {list(bias.shape)} for {weights.shape[0]} output channels")
    view = state.view(node)
    groups = int(values.get("group", 1))
    kernel = (int(weights.shape[2]), int(weights.shape[3]))
    if kernel == (1, 1) and groups == 1 and view.shape[2:] == (1, 1) and graph_shape(view.shape) != state.shapes[view.tensor]:
        _product(state, node, weights[:, :, 0, 0], bias)  # an image flattened into channels
        return
    x = state.image(node)
    _, c, h, w = state.shapes[x]
    if c != weights.shape[1] * groups:
        raise BadInputError(f"{label(node)}: {c} input channels, but weights for {groups} groups of {weights.shape[1]}")
    stride, dilation = _pair(state, node, values, "strides"), _pair(state, node, values, "dilations")
    pads = _pads(values, (h, w), kernel, stride, dilation)
    state.finish(node, Conv(state.name(node), x, node.output[0], weights, bias, stride, dilation, pads, groups))


def _product(state: Translator, node: NodeProto, weights: Floats, bias: Floats) -> None:
    """x [n, k] times weights [m, k] transposed, as a convolution whose kernel covers the image that x flattens."""
    view = state.view(node)
    n, c, h, w = state.shapes[view.tensor]
    if view.shape[0] != n or math.prod(view.shape[1:]) != view.shape[1] or weights.shape[1] != c * h * w:
        raise state.refuse(node, f"input of shape {list(view.shape)} is not [{n}, {weights.shape[1]}], the flattened ({n}, {c}, {h}, {w})")
    kernel = _floats(weights).reshape(weights.shape[0], c, h, w)
    shape = (n, weights.shape[0]) + (1,) * (len(view.shape) - 2)
    state.finish(node, Conv(state.name(node), view.tensor, node.output[0], kernel, bias), shape)


def _bias(state: Translator, node: NodeProto, array: NDArray[Any], size: int) -> Floats:
    if array.size not in (1, size) or (array.ndim > 1 and array.shape[-1] != array.size):
        raise state.refuse(node, f"bias of shape {list(array.shape)}; one value or one per output ({size}) is supported")
    return _floats(np.broadcast_to(_floats(array).reshape(-1), (size,)))


def gemm(state: Translator, node: NodeProto, values: Values) -> None:
    if values.get("transA", 0):
        raise state.refuse(node, "transA = 1 transposes a computed tensor; only transA = 0 is supported")
    right = state.constant(node, 1, "the right side")
    if right.ndim != 2:
        raise state.refuse(node, f"right side of shape {list(right.shape)}; two axes are expected")
    weights = _floats(right if values.get("transB", 0) else right.T)
    if (alpha := float(values.get("alpha", 1.0))) != 1:
        weights = weights * np.float32(alpha)
    bias = np.zeros(weights.shape[0], np.float32)
    if state.has(node, 2):
        beta = np.float32(values.get("beta", 1.0))
        bias = _bias(state, node, state.constant(node, 2, "the bias"), weights.shape[0]) * beta
    _product(state, node, weights, bias)


def matmul(state: Translator, node: NodeProto, values: Values) -> None:
    right = state.constant(node, 1, "the right side")
    if right.ndim != 2 or len(state.view(node).shape) != 2:
        raise state.refuse(node, f"[.., k] x {list(right.shape)}; [n, k] x [k, m] with a constant right side is supported")
    _product(state, node, _floats(right.T), np.zeros(right.shape[1], np.float32))


def pool(state: Translator, node: NodeProto, values: Values) -> None:
    x = state.image(node)
    _, _, h, w = state.shapes[x]
    mode: Mode = "max" if node.op_type == "MaxPool" else "average"
    kernel, stride = _pair(state, node, values, "kernel_shape"), _pair(state, node, values, "strides")
    if _pair(state, node, values, "dilations") != (1, 1):
        raise state.refuse(node, f"dilations {values['dilations']}; only windows without holes are supported")
    if len(node.output) > 1 and node.output[1]:
        raise state.refuse(node, "the indices of the maxima are asked for; only the values are supported")
    pads = list(_pads(values, (h, w), kernel, stride, (1, 1)))
    include_pad = bool(values.get("count_include_pad", 0))
    if values.get("ceil_mode", 0):
        for axis, size in enumerate((h, w)):
            before, after = pads[axis], pads[axis + 2]
            outputs = -(-(size + before + after - kernel[axis]) // stride[axis]) + 1
            if (outputs - 1) * stride[axis] >= size + before:  # a window that starts in the padding behind is dropped
                outputs -= 1
            needed = (outputs - 1) * stride[axis] + kernel[axis] - size - before
            if needed > after and include_pad:
                raise state.refuse(node, "ceil_mode with count_include_pad, where a window reaches beyond the padding")
            if (size + before + after - kernel[axis]) // stride[axis] + 1 != outputs:
                pads[axis + 2] = max(needed, 0)
    top, left, bottom, right = pads
    if max(top, bottom) >= kernel[0] or max(left, right) >= kernel[1]:
        raise state.refuse(node, f"pads {pads} not smaller than the kernel {list(kernel)}: a window would see padding only")
    state.finish(node, Pool(state.name(node), x, node.output[0], mode, kernel, stride, (top, left, bottom, right), include_pad))


def global_pool(state: Translator, node: NodeProto, values: Values) -> None:
    x = state.image(node)
    _, _, h, w = state.shapes[x]
    mode: Mode = "max" if node.op_type == "GlobalMaxPool" else "average"
    shape = state.view(node).shape
    state.finish(node, Pool(state.name(node), x, node.output[0], mode, (h, w)), shape[:2] + (1,) * len(shape[2:]))


def reduce_mean(state: Translator, node: NodeProto, values: Values) -> None:
    axes = values.get("axes") if not state.has(node, 1) else state.constant(node, 1, "the axes").tolist()
    x = state.image(node)
    n, c, h, w = state.shapes[x]
    if len(state.view(node).shape) != 4 or axes is None or sorted(int(a) % 4 for a in axes) != [2, 3]:
        raise state.refuse(node, f"axes {axes}; the mean over both image axes is supported")
    shape = (n, c, 1, 1) if values.get("keepdims", 1) else (n, c)
    state.finish(node, Pool(state.name(node), x, node.output[0], "average", (h, w)), shape)


def concat(state: Translator, node: NodeProto, values: Values) -> None:
    tensors = tuple(state.image(node, i) for i in range(len(node.input)))
    rank = len(state.view(node).shape)
    if rank < 2 or int(values.get("axis", 1)) % rank != 1:
        raise state.refuse(node, f"axis {values.get('axis')}; concatenation of channels (axis 1) is supported")
    shape = state.view(node).shape
    channels = sum(state.shapes[name][1] for name in tensors)
    state.finish(node, Concat(state.name(node), tensors, node.output[0]), (shape[0], channels, *shape[2:]))


def softmax(state: Translator, node: NodeProto, values: Values) -> None:
    view = state.view(node)
    rank = len(view.shape)
    axis = int(values.get("axis", -1 if state.opset >= 13 else 1)) % rank
    tensor_shape = state.shapes[view.tensor]
    # before opset 13 every axis from `axis` on is one
    over = view.shape[axis:] if state.opset < 13 else (view.shape[axis],)
    outer = view.shape[:axis] if state.opset < 13 else view.shape[:axis] + view.shape[axis + 1 :]
    vector = tensor_shape[2:] == (1, 1) and math.prod(over) == tensor_shape[1] and math.prod(outer) == tensor_shape[0]
    channels = state.opset >= 13 and axis == 1 and graph_shape(view.shape) == tensor_shape
    if not vector and not channels:
        raise state.refuse(node, f"over axis {axis} of {list(view.shape)}; over the channels is supported")
    state.finish(node, Softmax(state.name(node), view.tensor, node.output[0]), view.shape)


def relabel(state: Translator, node: NodeProto, values: Values) -> None:
    """Reshape, Flatten, Squeeze, Unsqueeze: the same values in the same order."""
    view = state.view(node)
    shape = list(view.shape)
    if node.op_type == "Reshape":
        target = [int(d) for d in state.constant(node, 1, "the target shape").reshape(-1)]
        if 0 in target and not values.get("allowzero", 0):
            target = [shape[i] if d == 0 else d for i, d in enumerate(target)]
        if -1 in target:
            known = -math.prod(target)
            target = [math.prod(shape) // max(known, 1) if d == -1 else d for d in target]
        shape_out = target
    elif node.op_type == "Flatten":
        axis = int(values.get("axis", 1))
        axis += len(shape) if axis < 0 else 0
        shape_out = [math.prod(shape[:axis]), math.prod(shape[axis:])]
    else:
        axes = state.constant(node, 1, "the axes").reshape(-1).tolist() if state.has(node, 1) else values.get("axes")
        if node.op_type == "Squeeze":
            gone = {int(a) % len(shape) for a in axes} if axes is not None else {i for i, d in enumerate(shape) if d == 1}
            shape_out = [d for i, d in enumerate(shape) if i not in gone]
        else:
            rank = len(shape) + len(axes or ())
            new = {int(a) % rank for a in axes or ()}
            rest = iter(shape)
            shape_out = [1 if i in new else next(rest) for i in range(rank)]
    if math.prod(shape_out) != math.prod(shape):
        raise state.refuse(node, f"{shape} cannot become {shape_out}")
    state.views[node.output[0]] = View(view.tensor, tuple(shape_out))


def transpose(state: Translator, node: NodeProto, values: Values) -> None:
    """[n, g, m, ..] -> [n, m, g, ..] of an image whose channels are g * m: the middle of a channel shuffle."""
    view = state.view(node)
    rank = len(view.shape)
    perm = [int(a) for a in values.get("perm", list(reversed(range(rank))))]
    n, c, h, w = state.shapes[view.tensor]
    moved = [a for a in perm if view.shape[a] != 1]
    if moved == sorted(moved):  # only axes of one element move
        state.views[node.output[0]] = View(view.tensor, tuple(view.shape[a] for a in perm))
        return
    splits_channels = rank >= 3 and view.shape[0] == n and view.shape[1] * view.shape[2] == c and math.prod(view.shape[3:]) == h * w
    if not splits_channels or perm != [0, 2, 1, *range(3, rank)]:
        raise state.refuse(node, f"perm {perm} of {list(view.shape)}; supported is [n, g, c/g, h, w] -> [n, c/g, g, h, w]")
    groups, size = view.shape[1], view.shape[2]
    order = tuple(g * size + m for m in range(size) for g in range(groups))
    shape = (n, size, groups, *view.shape[3:])
    state.finish(node, Shuffle(state.name(node), view.tensor, node.output[0], order), shape)


def same(state: Translator, node: NodeProto, values: Values) -> None:
    """Identity, and Dropout at inference."""
    if node.op_type == "Dropout" and state.has(node, 2) and bool(state.constant(node, 2, "training_mode").reshape(-1)[0]):
        raise state.refuse(node, "training_mode is on; inference is supported")
    state.views[node.output[0]] = state.view(node)


def lrn(state: Translator, node: NodeProto, values: Values) -> None:
    x = state.image(node)
    operators = lower_lrn(
        state.name(node), x, node.output[0], state.shapes[x][1], int(values["size"]),
        float(values.get("alpha", 1e-4)), float(values.get("beta", 0.75)), float(values.get("bias", 1.0)),
    )  # fmt: skip
    for op in operators[:-1]:
        state.emit(op)
    state.finish(node, operators[-1], state.view(node).shape)


HANDLERS: dict[str, Handler] = {
    "Conv": conv,
    "Gemm": gemm,
    "MatMul": matmul,
    "MaxPool": pool,
    "AveragePool": pool,
    "GlobalAveragePool": global_pool,
    "GlobalMaxPool": global_pool,
    "ReduceMean": reduce_mean,
    "Concat": concat,
    "Softmax": softmax,
    "Reshape": relabel,
    "Flatten": relabel,
    "Squeeze": relabel,
    "Unsqueeze": relabel,
    "Transpose": transpose,
    "Dropout": same,
    "Identity": same,
    "LRN": lrn,
    **ELEMENTWISE,
}
