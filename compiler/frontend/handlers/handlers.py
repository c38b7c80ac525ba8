"""Handlers of ONNX operators, one per operator: each reads a node and emits operators of the graph.  `HANDLERS` lists all of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto, helper

from compiler.frontend.handlers.arrange import along
from compiler.frontend.handlers.einsum import PRODUCTS
from compiler.frontend.handlers.elementwise import ELEMENTWISE
from compiler.frontend.handlers.image_norm import NORMALISING
from compiler.frontend.handlers.pooling import POOLING
from compiler.frontend.handlers.reductions import REDUCING
from compiler.frontend.handlers.resampling import RESAMPLING
from compiler.frontend.handlers.sequence import SEQUENCE, concat_pixels, floats, product
from compiler.frontend.handlers.to_graph import Handler, Translator, graph_shape
from compiler.frontend.handlers.views import Atom, C, N, P, View, merge_atoms, transpose_view, whole_axes
from compiler.frontend.handlers.window import Pads, axis_pair, finish_conv, resolve_padding
from compiler.frontend.onnx_io.attributes import Attributes, label
from compiler.ir.lanes import CHANNEL_BLOCK
from compiler.ir.operators import Concat, Conv, Floats, Softmax, window_size
from compiler.rewrites.lrn import lower_lrn
from simulator.npu.errors import BadInputError
from simulator.onnx_kinds import FLOATS


def conv(state: Translator, node: NodeProto, values: Attributes) -> None:
    weights = floats(state.constant(node, 1, "the weight"))
    if weights.ndim == 3:
        weights = weights[..., None]
    if weights.ndim != 4:
        raise state.refuse(node, f"weights of shape {list(weights.shape)}; convolutions over one or two axes are supported")
    bias = floats(state.constant(node, 2, "the bias")) if state.has(node, 2) else np.zeros(weights.shape[0], np.float32)
    if bias.shape != (weights.shape[0],):
        raise BadInputError(f"{label(node)}: bias of shape {list(bias.shape)} for {weights.shape[0]} output channels")
    view = state.view(node)
    groups = int(values.get("group", 1))
    kernel = (int(weights.shape[2]), int(weights.shape[3]))
    stride, dilation = axis_pair(state, node, values, "strides"), axis_pair(state, node, values, "dilations")
    _, _, height, width = graph_shape(view.shape)
    pads = resolve_padding(values, (height, width), kernel, stride, dilation)
    pixel = height * width == 1 and not any(pads)
    if kernel == (1, 1) and groups == 1 and pixel and graph_shape(view.shape) != state.shapes[view.tensor]:
        product(state, node, 1, weights[:, :, 0, 0], bias)  # an image flattened into channels
        return
    tensor_shape = state.shapes[view.tensor]
    if view.axes == (whole_axes(tensor_shape, N), (), whole_axes(tensor_shape, P, C)) and tensor_shape[1] == stride[0] > dilation[0] == 1:
        _conv_of_phases(state, node, weights, bias, pads)
        return
    digit = Atom(C, weights.shape[1], 1)
    pointwise = (kernel, stride, groups) == ((1, 1), (1, 1), 1) and not any(pads)
    if pointwise and view.axes[1] == (digit,) and tensor_shape[1] > digit.size and digit.size % CHANNEL_BLOCK == 0:
        _conv_of_digit(state, node, weights, bias, digit)
        return
    x = state.image(node)
    c = state.shapes[x][1]
    if c != weights.shape[1] * groups:
        raise BadInputError(f"{label(node)}: {c} input channels, but weights for {groups} groups of {weights.shape[1]}")
    finish_conv(state, node, Conv(state.name(node), x, node.output[0], weights, bias, stride, dilation, pads, groups))


def _conv_of_phases(state: Translator, node: NodeProto, weights: Floats, bias: Floats, pads: Pads) -> None:
    """Emit a convolution of a one-channel signal whose phases are channels (`to_graph.strided_phases`): stride 1 over rows."""
    x = state.view(node).tensor
    _, stride, rows, _ = state.shapes[x]
    c_out, taps = len(weights), weights.shape[2]
    late = -pads[0] % stride  # zeros before the first weight, so that padding is whole rows
    top = (pads[0] + late) // stride
    spread = np.zeros((c_out, -(-(late + taps) // stride) * stride), np.float32)
    spread[:, late : late + taps] = weights[:, 0, :, 0]
    kernel = floats(spread.reshape(c_out, -1, stride).transpose(0, 2, 1)[..., None])
    outputs = window_size(rows * stride, taps, stride, 1, pads[0], pads[2])
    window = (top, 0, outputs - 1 + kernel.shape[2] - rows - top, 0)
    finish_conv(state, node, Conv(state.name(node), x, node.output[0], kernel, bias, pads=window))


def _conv_of_digit(state: Translator, node: NodeProto, weights: Floats, bias: Floats, digit: Atom) -> None:
    """Emit a 1x1 convolution of one digit of the channels: equal groups of channels where they lie."""
    view = state.view(node)
    groups = state.shapes[view.tensor][1] // digit.size
    op = Conv(state.name(node), view.tensor, node.output[0], np.tile(weights, (groups, 1, 1, 1)), np.tile(bias, groups), groups=groups)
    state.finish_as(node, op, view.resized(op.y, {digit: len(weights)}).axes)


def _bias(state: Translator, node: NodeProto, array: NDArray[Any], size: int) -> Floats:
    if array.size not in (1, size) or (array.ndim > 1 and array.shape[-1] != array.size):
        raise state.refuse(node, f"bias of shape {list(array.shape)}; one value or one per output ({size}) is supported")
    return floats(np.broadcast_to(floats(array).reshape(-1), (size,)))


def gemm(state: Translator, node: NodeProto, values: Attributes) -> None:
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
    product(state, node, 1, weights, bias, transposed=bool(values.get("transA", 0)))


def concat(state: Translator, node: NodeProto, values: Attributes) -> None:
    """Concat of any axes; parts without values, as those of a Split, are left out."""
    parts = [name for name in node.input if name not in state.constants or state.constants[name].size]
    if len(parts) < len(node.input):
        output = node.output[0]
        node = helper.make_node("Concat", parts, [output], name=node.name)
        if len(parts) == 1:
            state.views[output] = state.repeated_view(node)
            return
    first = next((i for i, name in enumerate(node.input) if name not in state.constants), 0)
    view = state.view(node, first)
    rank = len(view.shape)
    axis = int(values.get("axis", 1)) % rank
    views = [state.view(node, i) for i, name in enumerate(node.input) if name not in state.constants]
    if view.axes[axis] == whole_axes(state.shapes[view.tensor], P) and view.axes[axis]:
        concat_pixels(state, node, axis)
        return
    if len(views) == len(node.input) and all(_joins_channels(state, part, view, axis) for part in views):
        op = Concat(state.name(node), tuple(state.in_rows_of(part.tensor, view.tensor) for part in views), node.output[0])
        state.finish_as(node, op, view.resized(op.y, {view.axes[axis][0]: sum(part.shape[axis] for part in views)}).axes)
        return
    if len(views) == len(node.input) and _deals_channels(state, views, axis):
        op = Concat(state.name(node), tuple(part.tensor for part in views), node.output[0])
        axes = list(view.axes)
        axes[axis] = (Atom(C, len(views), state.shapes[view.tensor][1]), *axes[axis])
        state.finish_as(node, op, tuple(axes))
        return
    largest = max(views, key=lambda part: part.shape[axis])
    if axis != 1 or rank < 2 or any(len(part.axes[0]) != len(view.axes[0]) for part in views) or not _is_image(state, largest):
        concat_pixels(state, node, axis)
        return
    tensors = tuple(_channels(state, node, i, view) for i in range(len(node.input)))
    shape = view.shape
    channels = sum(state.shapes[name][1] for name in tensors)
    state.finish(node, Concat(state.name(node), tensors, node.output[0]), (shape[0], channels, *shape[2:]))


def _is_image(state: Translator, view: View) -> bool:
    """Whether a view's tensor is (n, c, pixels) as ONNX has it, but for the order of its channels."""
    shape, image_shape = state.shapes[view.tensor], graph_shape(view.shape)
    if (*image_shape[:2], image_shape[2] * image_shape[3]) != (*shape[:2], shape[2] * shape[3]):
        return False
    return state.in_order(view).atoms == whole_axes(shape, N, C, P)


def _deals_channels(state: Translator, views: Sequence[View], axis: int) -> bool:
    """Whether equal views on tensors of their own are joined along some of their channels."""
    view = views[0]
    alike = all(part.axes == view.axes and state.shapes[part.tensor] == state.shapes[view.tensor] for part in views)
    return alike and bool(view.axes[axis]) and all(atom.axis == C for atom in view.axes[axis])


def _joins_channels(state: Translator, view: View, reference: View, axis: int) -> bool:
    """Whether an axis runs over all channels in both views, and their other axes are equal."""
    alike = view.axes[:axis] + view.axes[axis + 1 :] == reference.axes[:axis] + reference.axes[axis + 1 :]
    return alike and all(
        bool(part.axes[axis]) and part.axes[axis] == whole_axes(state.shapes[part.tensor], C) for part in (view, reference)
    )


def _channels(state: Translator, node: NodeProto, index: int, reference: View) -> str:
    """Input of a Concat of channels as a tensor; a constant gets the type of the `reference`."""
    if node.input[index] not in state.constants:
        return state.image(node, index)
    array = state.constants[node.input[index]]
    shape = graph_shape(array.shape)
    quantisation = state.types.get(reference.tensor)
    name = state.constant_tensor(node, array.reshape(shape), shape)
    state.tensors[name] = state.tensors[name].astype(np.float32 if quantisation is None else quantisation.dtype)
    if quantisation is not None:
        state.types[name] = quantisation
    return name


def softmax_view(state: Translator, node: NodeProto, values: Attributes, opset: int) -> tuple[View, int]:
    """Input of a Softmax with the axis as channels, and the number of equal runs of channels that it covers separately."""
    view = state.view(node)
    rank = len(view.shape)
    axis = int(values.get("axis", -1 if opset >= 13 else 1)) % rank
    axes = range(axis, axis + 1 if opset >= 13 else rank)  # before opset 13 every axis from `axis` on is one
    for candidate in (view, along(state, view, axes)):
        if candidate is None:
            continue
        atoms = merge_atoms(atom for i in axes for atom in candidate.axes[i])
        size = math.prod(atom.size for atom in atoms)
        if atoms == merge_atoms([Atom(C, size, 1)]) and size > 1:
            return candidate, state.shapes[candidate.tensor][1] // size
    raise state.refuse(node, f"over axis {axis} of {list(view.shape)}; an axis of several values that has no images is supported")


def softmax(state: Translator, node: NodeProto, values: Attributes) -> None:
    view, groups = softmax_view(state, node, values, state.opset)
    state.finish_as(node, Softmax(state.name(node), view.tensor, node.output[0], groups), view.axes)


def relabel(state: Translator, node: NodeProto, values: Attributes) -> None:
    """Reshape, Flatten, Squeeze, Unsqueeze: the same values in the same order."""
    view = state.repeated_view(node)
    shape = list(view.shape)
    # the output shape, by the rules of each operator
    if node.op_type == "Reshape":
        target = [int(d) for d in state.constant(node, 1, "the target shape").reshape(-1)]
        if 0 in target and not values.get("allowzero", 0):
            target = [shape[i] if d == 0 else d for i, d in enumerate(target)]
        if -1 in target:
            known_size = -math.prod(target)
            target = [math.prod(shape) // max(known_size, 1) if d == -1 else d for d in target]
        shape_out = target
    elif node.op_type == "Flatten":
        axis = int(values.get("axis", 1))
        axis += len(shape) if axis < 0 else 0
        shape_out = [math.prod(shape[:axis]), math.prod(shape[axis:])]
    else:
        axes = state.constant(node, 1, "the axes").reshape(-1).tolist() if state.has(node, 1) else values.get("axes")
        if node.op_type == "Squeeze":
            dropped_axes = {int(a) % len(shape) for a in axes} if axes is not None else {i for i, d in enumerate(shape) if d == 1}
            shape_out = [d for i, d in enumerate(shape) if i not in dropped_axes]
        else:
            rank = len(shape) + len(axes or ())
            inserted_axes = {int(a) % rank for a in axes or ()}
            remaining_dims = iter(shape)
            shape_out = [1 if i in inserted_axes else next(remaining_dims) for i in range(rank)]
    if math.prod(shape_out) != math.prod(shape):
        raise state.refuse(node, f"{shape} cannot become {shape_out}")
    reshaped = state.reshape(view, shape_out)
    if reshaped is None:
        raise state.refuse(node, f"{shape} cannot become {shape_out} without moving values: its axes lie in another order")
    state.views[node.output[0]] = reshaped


def transpose(state: Translator, node: NodeProto, values: Attributes) -> None:
    """Transpose: another view; its readers decide whether they support it."""
    view = state.repeated_view(node)
    state.views[node.output[0]] = transpose_view(view, [int(a) for a in values.get("perm", list(reversed(range(len(view.axes)))))])


def identity(state: Translator, node: NodeProto, values: Attributes) -> None:
    """Identity, Dropout at inference, and Cast between kinds of float: the NPU computes in its own type."""
    if node.op_type == "Cast" and values["to"] not in FLOATS:
        raise state.refuse(node, f"to {TensorProto.DataType.Name(values['to']).lower()}; kinds of float are supported")
    if node.op_type == "Dropout" and state.has(node, 2) and bool(state.constant(node, 2, "training_mode").reshape(-1)[0]):
        raise state.refuse(node, "training_mode is on; inference is supported")
    state.views[node.output[0]] = state.repeated_view(node)


def lrn(state: Translator, node: NodeProto, values: Attributes) -> None:
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
    "Concat": concat,
    "Softmax": softmax,
    "Reshape": relabel,
    "Flatten": relabel,
    "Squeeze": relabel,
    "Unsqueeze": relabel,
    "Transpose": transpose,
    "Cast": identity,
    "Dropout": identity,
    "Identity": identity,
    "LRN": lrn,
    **ELEMENTWISE,
    **PRODUCTS,
    **SEQUENCE,
    **NORMALISING,
    **POOLING,
    **REDUCING,
    **RESAMPLING,
}
