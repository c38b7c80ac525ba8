"""One handler per ONNX operator: reads the node, emits operators of the graph.  `HANDLERS` is the list of what is supported."""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto

from compiler.frontend.attributes import label
from compiler.frontend.elementwise import ELEMENTWISE
from compiler.frontend.reductions import REDUCING
from compiler.frontend.resampling import RESAMPLING
from compiler.frontend.sequence import SEQUENCE, concat_pixels, floats, product
from compiler.frontend.skeleton import FLOATS
from compiler.frontend.to_graph import Handler, Translator, graph_shape
from compiler.frontend.views import Atom, C, P, joined, transposed, whole
from compiler.ir.graph import Concat, Conv, Floats, Pool, Softmax, output_shape
from compiler.rewrites.lrn import lower_lrn
from simulator.npu.errors import BadInputError

Values = dict[str, Any]
Pads = tuple[int, int, int, int]
Mode = Literal["max", "average"]


def _pair(state: Translator, node: NodeProto, values: Values, key: str) -> tuple[int, int]:
    """One number per axis of the image; a signal [n, c, l] is an image of one row."""
    numbers = values.get(key, [1, 1])
    if len(numbers) > 2:
        raise state.refuse(node, f"{key} {numbers}; windows of one or two axes are supported")
    return (int(numbers[0]), int(numbers[1])) if len(numbers) == 2 else (1, int(numbers[0]))


def _finish_image(state: Translator, node: NodeProto, op: Conv | Pool) -> None:
    """The output has as many axes as the input."""
    n, c, h, w = output_shape(op, [state.shapes[op.x]])
    state.finish(node, op, (n, c, w) if len(state.view(node).shape) == 3 else (n, c, h, w))


def _pads(values: Values, size: tuple[int, int], kernel: tuple[int, int], stride: tuple[int, int], dilation: tuple[int, int]) -> Pads:
    """(top, left, bottom, right), auto_pad resolved: SAME gives ceil(size / stride) outputs."""
    auto = values.get("auto_pad", "NOTSET")
    if auto == "VALID":
        return (0, 0, 0, 0)
    if auto == "NOTSET":
        given = [int(pad) for pad in values.get("pads", [0, 0, 0, 0])]
        return (given[0], given[1], given[2], given[3]) if len(given) == 4 else (0, given[0], 0, given[1])
    before, after = [], []
    for axis in range(2):
        outputs = -(-size[axis] // stride[axis])
        total = max(0, (outputs - 1) * stride[axis] + (kernel[axis] - 1) * dilation[axis] + 1 - size[axis])
        small, large = total // 2, total - total // 2
        before.append(small if auto == "SAME_UPPER" else large)
        after.append(large if auto == "SAME_UPPER" else small)
    return (before[0], before[1], after[0], after[1])


def conv(state: Translator, node: NodeProto, values: Values) -> None:
    weights = floats(state.constant(node, 1, "the weight"))
    if weights.ndim == 3:
        weights = weights[:, :, None, :]
    if weights.ndim != 4:
        raise state.refuse(node, f"weights of shape {list(weights.shape)}; convolutions over one or two axes are supported")
    bias = floats(state.constant(node, 2, "the bias")) if state.has(node, 2) else np.zeros(weights.shape[0], np.float32)
    if bias.shape != (weights.shape[0],):
        raise BadInputError(f"{label(node)}: bias of shape {list(bias.shape)} for {weights.shape[0]} output channels")
    view = state.view(node)
    groups = int(values.get("group", 1))
    kernel = (int(weights.shape[2]), int(weights.shape[3]))
    if kernel == (1, 1) and groups == 1 and view.shape[2:] == (1, 1) and graph_shape(view.shape) != state.shapes[view.tensor]:
        product(state, node, 1, weights[:, :, 0, 0], bias)  # an image flattened into channels
        return
    x = state.image(node)
    _, c, h, w = state.shapes[x]
    if c != weights.shape[1] * groups:
        raise BadInputError(f"{label(node)}: {c} input channels, but weights for {groups} groups of {weights.shape[1]}")
    stride, dilation = _pair(state, node, values, "strides"), _pair(state, node, values, "dilations")
    pads = _pads(values, (h, w), kernel, stride, dilation)
    _finish_image(state, node, Conv(state.name(node), x, node.output[0], weights, bias, stride, dilation, pads, groups))


def _bias(state: Translator, node: NodeProto, array: NDArray[Any], size: int) -> Floats:
    if array.size not in (1, size) or (array.ndim > 1 and array.shape[-1] != array.size):
        raise state.refuse(node, f"bias of shape {list(array.shape)}; one value or one per output ({size}) is supported")
    return floats(np.broadcast_to(floats(array).reshape(-1), (size,)))


def gemm(state: Translator, node: NodeProto, values: Values) -> None:
    if values.get("transA", 0):
        raise state.refuse(node, "transA = 1 transposes a computed tensor; only transA = 0 is supported")
    right = state.constant(node, 1, "the right side")
    if right.ndim != 2:
        raise state.refuse(node, f"right side of shape {list(right.shape)}; two axes are expected")
    weights = floats(right if values.get("transB", 0) else right.T)
    if (alpha := float(values.get("alpha", 1.0))) != 1:
        weights = weights * np.float32(alpha)
    bias = np.zeros(weights.shape[0], np.float32)
    if state.has(node, 2):
        beta = np.float32(values.get("beta", 1.0))
        bias = _bias(state, node, state.constant(node, 2, "the bias"), weights.shape[0]) * beta
    product(state, node, 1, weights, bias)


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
    _finish_image(state, node, Pool(state.name(node), x, node.output[0], mode, kernel, stride, (top, left, bottom, right), include_pad))


# Pixels of a window from which on its columns are pooled first: VECTOR starts an instruction for every position of a window, so for h + w
# of them instead of h * w.  Below, that saves less than one more operator costs, some 1,500 cycles on `edge`.
WIDE_WINDOW = 256
MOST_POOLED = 2048  # pixels of which the columns are pooled at once: 64 KiB for each block of channels, twice in UB


def global_pool(state: Translator, node: NodeProto, values: Values) -> None:
    x = state.image(node)
    _, _, h, w = state.shapes[x]
    mode: Mode = "max" if node.op_type == "GlobalMaxPool" else "average"
    shape = state.view(node).shape
    while h * w > WIDE_WINDOW and (rows := _rows_at_once(h, w)) > 1:  # the mean of means of equal parts is the mean
        name = state.name(node, ".columns")
        x = state.emit(Pool(name, x, name, mode, (rows, 1), (rows, 1)))
        h //= rows
    state.finish(node, Pool(state.name(node), x, node.output[0], mode, (h, w)), shape[:2] + (1,) * len(shape[2:]))


def _rows_at_once(h: int, w: int) -> int:
    """Of an image, such that a whole number of these parts fill it; 1 where there is no such number."""
    return max(rows for rows in range(1, h + 1) if h % rows == 0 and (rows == 1 or rows * w <= MOST_POOLED))


def concat(state: Translator, node: NodeProto, values: Values) -> None:
    first = next((i for i, name in enumerate(node.input) if not state.is_constant(name)), 0)
    view = state.view(node, first)
    rank = len(view.shape)
    axis = int(values.get("axis", 1)) % rank
    if view.axes[axis] == whole(state.shapes[view.tensor], P) and view.axes[axis]:
        concat_pixels(state, node, axis)
        return
    tensors = tuple(state.image(node, i) for i in range(len(node.input)))
    if rank < 2 or axis != 1:
        raise state.refuse(node, f"axis {values.get('axis')}; concatenation of channels (axis 1) or of all pixels is supported")
    shape = state.view(node).shape
    channels = sum(state.shapes[name][1] for name in tensors)
    state.finish(node, Concat(state.name(node), tensors, node.output[0]), (shape[0], channels, *shape[2:]))


def softmax(state: Translator, node: NodeProto, values: Values) -> None:
    view = state.view(node)
    rank = len(view.shape)
    axis = int(values.get("axis", -1 if state.opset >= 13 else 1)) % rank
    # before opset 13 every axis from `axis` on is one
    over = view.axes[axis] if state.opset >= 13 else joined(atom for atoms in view.axes[axis:] for atom in atoms)
    channels = state.shapes[view.tensor][1]
    size = math.prod(atom.size for atom in over)
    if size == 1 or over != joined([Atom(C, size, 1)]):
        raise state.refuse(node, f"over axis {axis} of {list(view.shape)}; over the channels is supported")
    state.finish_as(node, Softmax(state.name(node), view.tensor, node.output[0], channels // size), view.axes)


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
    found = state.reshape(view, shape_out)
    if found is None:
        raise state.refuse(node, f"{shape} cannot become {shape_out} without moving values: its axes lie in another order")
    state.views[node.output[0]] = found


def transpose(state: Translator, node: NodeProto, values: Values) -> None:
    """Another view; who reads it says whether it can."""
    view = state.view(node)
    state.views[node.output[0]] = transposed(view, [int(a) for a in values.get("perm", list(reversed(range(len(view.axes)))))])


def same(state: Translator, node: NodeProto, values: Values) -> None:
    """Identity, Dropout at inference, and Cast from one kind of float to another: the NPU computes in its own."""
    if node.op_type == "Cast" and values["to"] not in FLOATS:
        raise state.refuse(node, f"to {TensorProto.DataType.Name(values['to']).lower()}; kinds of float are supported")
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
    "MaxPool": pool,
    "AveragePool": pool,
    "GlobalAveragePool": global_pool,
    "GlobalMaxPool": global_pool,
    "Concat": concat,
    "Softmax": softmax,
    "Reshape": relabel,
    "Flatten": relabel,
    "Squeeze": relabel,
    "Unsqueeze": relabel,
    "Transpose": transpose,
    "Cast": same,
    "Dropout": same,
    "Identity": same,
    "LRN": lrn,
    **ELEMENTWISE,
    **SEQUENCE,
    **REDUCING,
    **RESAMPLING,
}
