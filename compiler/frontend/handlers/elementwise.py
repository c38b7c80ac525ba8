"""Handlers of element-wise operators: each becomes one Vector chain."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import NodeProto

from compiler.frontend.handlers.activations import ACTIVATIONS, KEEP_X, KEEP_Y, TAKE_X, power
from compiler.frontend.handlers.arrange import as_operand, without_repeats
from compiler.frontend.handlers.to_graph import Handler, Translator
from compiler.frontend.handlers.views import Atoms, C, P, View, constant_as, whole_axes
from compiler.frontend.onnx_io.attributes import Attributes
from compiler.ir.lanes import CHANNEL_BLOCK
from compiler.ir.operators import Conv, Floats, HeadedProduct, Step, Vector


def _chain(state: Translator, node: NodeProto, steps: tuple[Step, ...], view: View, operands: tuple[str, ...] = ()) -> None:
    state.finish_as(node, Vector(state.name(node), (view.tensor, *operands), node.output[0], steps), view.axes)


def batch_norm(state: Translator, node: NodeProto, values: Attributes) -> None:
    if values.get("training_mode", 0) or not values.get("spatial", 1):
        raise state.refuse(node, "training_mode is on, or spatial is off; inference with statistics per channel is supported")
    view = state.view(node)
    of_rows = len(view.shape) == 2 and view.axes[1] == whole_axes(state.shapes[view.tensor], C)
    x = view.tensor if of_rows else state.image(node)
    scale, shift, mean, variance = (state.constant(node, i, "the statistic").astype(np.float64) for i in range(1, 5))
    factor = scale / np.sqrt(variance + float(values.get("epsilon", 1e-5)))
    if not np.isfinite(factor).all():
        raise state.refuse(node, "a variance is below -epsilon, the scale is not finite")
    if factor.shape != (state.shapes[x][1],):
        raise state.refuse(node, f"statistics of shape {list(factor.shape)} for {state.shapes[x][1]} channels")
    step = Step("scale_shift", scale=factor.astype(np.float32), shift=(shift - mean * factor).astype(np.float32))
    op = Vector(state.name(node), (x,), node.output[0], (step,))
    state.finish_as(node, op, view.axes) if of_rows else state.finish(node, op, view.shape)


def activation(state: Translator, node: NodeProto, values: Attributes) -> None:
    _chain(state, node, ACTIVATIONS[node.op_type](values), state.view(node))


def prelu(state: Translator, node: NodeProto, values: Attributes) -> None:
    """max(x, 0) + slope * min(x, 0) with a slope per channel; a leaky ReLU for a single slope."""
    view = state.view(node)
    slope = _per_channel(state, node, view, state.constant(node, 1, "the slope"))
    if isinstance(slope, float):
        _chain(state, node, ACTIVATIONS["LeakyRelu"]({"alpha": slope}), view)
        return
    negative_part = Step("scale_shift", scale=slope, shift=np.zeros_like(slope))
    _chain(
        state, node, (KEEP_X, Step("mins", 0.0), negative_part, KEEP_Y, TAKE_X, Step("relu"), Step("add", register=KEEP_Y.register)), view
    )


def pow_(state: Translator, node: NodeProto, values: Attributes) -> None:
    exponent = state.constant(node, 1, "the exponent")
    if exponent.size != 1:
        raise state.refuse(node, f"exponents of shape {list(exponent.shape)}; one number is supported")
    _chain(state, node, power(float(exponent.reshape(-1)[0])), state.view(node).of_rank(exponent.ndim))


def clip(state: Translator, node: NodeProto, values: Attributes) -> None:
    low = float(values.get("min", -math.inf))
    high = float(values.get("max", math.inf))
    if state.has(node, 1):
        low = float(state.constant(node, 1, "the minimum").reshape(-1)[0])
    if state.has(node, 2):
        high = float(state.constant(node, 2, "the maximum").reshape(-1)[0])
    steps: list[Step] = []
    largest = float(np.finfo(np.float32).max)  # exporters' value for "no bound"
    if low == 0:
        steps.append(Step("relu"))
    elif low > -largest:
        steps.append(Step("maxs", low))
    if high < largest:
        steps.append(Step("mins", high))
    if not steps:
        state.views[node.output[0]] = state.view(node)
        return
    _chain(state, node, tuple(steps), state.view(node))


def _per_channel(state: Translator, node: NodeProto, view: View, array: NDArray[Any]) -> Floats | float:
    """Constant operand as one value, or as one value per channel of the view's tensor."""
    if array.size == 1 and array.ndim <= len(view.shape):
        return float(array.reshape(-1)[0])
    values = constant_as(view, state.shapes[view.tensor], array)
    if values is None or values.size != values.shape[1] or values.size == 1:
        raise state.refuse(node, f"constant of shape {list(array.shape)} on {list(view.shape)}; one value or one per channel is supported")
    return values.reshape(-1)


def _with_constant(op: str, value: Floats | float, constant_first: bool) -> tuple[Step, ...]:
    """Steps of v op constant, or of constant op v."""
    one, zero = (np.full_like(value, fill, dtype=np.float32) for fill in (1, 0))
    if op in ("Max", "Min"):
        if isinstance(value, float):
            return (Step("maxs" if op == "Max" else "mins", value),)
        # max(v, c) = relu(v - c) + c; min(v, c) = c - relu(c - v)
        sign = one if op == "Max" else -one
        return (Step("scale_shift", scale=sign, shift=-value * sign), Step("relu"), Step("scale_shift", scale=sign, shift=value))
    lead: tuple[Step, ...] = ()
    if op == "Sub":
        if constant_first:
            lead = (Step("muls", -1.0),)
        else:
            value = -value
    elif op == "Div":
        if constant_first:
            lead = (Step("reciprocal"),)
        else:
            value = np.float32(1) / value if not isinstance(value, float) else 1.0 / value
    adds = op in ("Add", "Mean", "Sub", "Sum")
    if isinstance(value, float):
        return (*lead, Step("adds" if adds else "muls", value))
    return (*lead, Step("scale_shift", scale=one if adds else value, shift=value if adds else zero))


def _emit_with_constant(state: Translator, node: NodeProto, view: View, array: NDArray[Any], constant_first: bool) -> None:
    """Emit an operation of a tensor and a constant: one value, one per channel, or a constant tensor."""
    view, shape = view.of_rank(array.ndim), state.shapes[view.tensor]
    values, halved = constant_as(view, shape, array), (Step("muls", 0.5),) if node.op_type == "Mean" else ()
    if values is None or values.size in (1, values.shape[1]):
        value = _per_channel(state, node, view, array)
        _chain(state, node, (*_with_constant(node.op_type, value, constant_first), *halved), view)
        return
    name, step = node.op_type, BINARY[node.op_type]
    if constant_first and name in ("Sub", "Div"):
        step = "rsub" if name == "Sub" else "rdiv"
    constant = state.constant_tensor(node, values, shape)
    _chain(state, node, (Step(step, operand=1), *halved), view, (constant,))  # type: ignore[arg-type]


BINARY = {"Add": "add", "Sum": "add", "Sub": "sub", "Mul": "mul", "Div": "div", "Max": "max", "Min": "min", "Mean": "add"}


def binary(state: Translator, node: NodeProto, values: Attributes) -> None:
    """Tensors, left to right, where one has the shape of the result; or a tensor and a constant."""
    if values.get("broadcast", 0):
        raise state.refuse(node, "the broadcast attribute of opsets before 7; convert the model to a newer opset")
    # a constant operand becomes steps with values
    constants = [i for i in range(len(node.input)) if node.input[i] in state.constants]
    tensors = [i for i in range(len(node.input)) if i not in constants]
    if not tensors:
        raise state.refuse(node, "all inputs are constants; nothing for the NPU to do")
    if constants and len(node.input) > 2:
        raise state.refuse(node, "a constant among several inputs; tensor with constant, or tensors only, is supported")
    if constants:
        view = state.view(node, tensors[0])
        array = state.constants[node.input[constants[0]]]
        if node.op_type == "Div" and constants[0] == 1 and not np.all(array):
            raise state.refuse(node, "division by a constant zero")
        if _changes_nothing(node.op_type, array, constants[0] == 0) and np.broadcast_shapes(array.shape, view.shape) == view.shape:
            state.views[node.output[0]] = view
            return
        _emit_with_constant(state, node, view, array, constants[0] == 0)
        return
    views = [state.view(node, i) for i in tensors]
    if len({tensor_view.axes for tensor_view in views}) > 1 and not all(_in_runs(state, tensor_view) for tensor_view in views):
        views = [state.in_order(tensor_view) for tensor_view in views]
    if len(views) == 1:
        state.views[node.output[0]] = views[0]
        return
    if node.op_type == "Mul" and len(views) == 2 and views[0] == views[1]:
        _chain(state, node, power(2.0), views[0])
        return
    # the chain runs over the operand of the full shape; the others are broadcast to it
    shape = np.broadcast_shapes(*(tensor_view.shape for tensor_view in views))
    full_index = next((i for i, tensor_view in enumerate(views) if tensor_view.shape == shape), None)
    if full_index is None:
        full_index, expanded = 0, without_repeats(state, views[0].expanded(shape))
        views[0] = views[0] if expanded is None else expanded
    if views[full_index].shape != shape:
        raise state.refuse(node, f"shapes {' and '.join(str(list(v.shape)) for v in views)}; one of them has to be that of the result")
    view = views[full_index]
    op_type, operand_views = node.op_type, [tensor_view for i, tensor_view in enumerate(views) if i != full_index]
    narrow = state.shapes[operand_views[0].tensor][1] < state.shapes[view.tensor][1]
    if op_type == "Div" and full_index == 0 and narrow and _is_root(state, operand_views[0].tensor):
        # one reciprocal for all channels; a root's reciprocal overflows in no type, and is no subnormal number
        name = state.name(node, ".reciprocal")
        root = Vector(name, (operand_views[0].tensor,), name, (Step("reciprocal"),))
        op_type, operand_views = "Mul", [View(state.emit(root), operand_views[0].axes)]
    operands = tuple(_broadcast(state, node, view, tensor_view) for tensor_view in operand_views)
    _chain(state, node, _with_tensors(op_type, len(operands), full_index > 0), view, operands)


def _has_heads(state: Translator, tensor: str) -> bool:
    """Whether a tensor is the result of a product by heads, or of a function of one."""
    maker = next((op for op in state.operators if op.y == tensor), None)
    return isinstance(maker, HeadedProduct) or (isinstance(maker, Vector) and _has_heads(state, maker.inputs[0]))


def _in_runs(state: Translator, view: View) -> bool:
    """Whether a view has its channels in order, or in another order of runs that fill blocks."""
    if state.in_order_already(view):
        return True
    runs = view.digits(C)[0]
    return runs.stride == 1 and runs.size % CHANNEL_BLOCK == 0


def _is_root(state: Translator, tensor: str) -> bool:
    maker = next((op for op in state.operators if op.y == tensor), None)
    return isinstance(maker, Vector) and maker.steps[-1].op == "sqrt"


def _changes_nothing(op: str, array: NDArray[Any], constant_first: bool) -> bool:
    """Whether `v op constant` (or `constant op v`) equals v: exporters and inlined functions have masks of zeros and scales of one."""
    neutral = {"Add": 0, "Sum": 0, "Sub": 0, "Mul": 1, "Div": 1}.get(op)
    return neutral is not None and not (constant_first and op in ("Sub", "Div")) and bool(np.all(array == neutral))


def select_input(state: Translator, node: NodeProto, values: Attributes) -> None:
    """View of the selected input, broadcast: of Where with a uniform constant condition, and of Expand."""
    index = 0
    if node.op_type == "Where":
        condition = state.constant(node, 0, "the condition")
        if condition.size == 0 or (condition != condition.flat[0]).any():
            raise state.refuse(node, "its condition is true in parts; one that is the same everywhere is supported")
        index = 1 if condition.flat[0] else 2
    view = state.repeated_view(node, index)
    shape = state.known_shapes.get(node.output[0], ())
    if node.op_type == "Expand":
        shape = np.broadcast_shapes(view.shape, [int(d) for d in state.constant(node, 1, "the shape").reshape(-1)])
    if np.broadcast_shapes(view.shape, shape) == shape:
        view = view.expanded(shape)
    if view.shape != shape:
        raise state.refuse(node, f"{list(view.shape)} to {list(shape)}; the same shape is supported")
    state.views[node.output[0]] = view


def tile(state: Translator, node: NodeProto, values: Attributes) -> None:
    view = state.repeated_view(node)
    repeats = [int(count) for count in state.constant(node, 1, "the repeats").reshape(-1)]
    if len(repeats) != len(view.shape) or min(repeats) < 1:
        raise state.refuse(node, f"{list(view.shape)} times {repeats}; every axis once or more often is supported")
    state.views[node.output[0]] = view.repeated({axis: count for axis, count in enumerate(repeats) if count != 1})


def _with_tensors(op: str, operand_count: int, swapped: bool) -> tuple[Step, ...]:
    """Steps of v op operand, for each operand; `swapped`: operand op v.  An operand may be one pixel, so v is always the left side."""
    step: Any = BINARY[op]
    if swapped and op == "Sub":
        return (Step("sub", operand=1), Step("muls", -1.0))
    if swapped and op == "Div":
        return (Step("reciprocal"), Step("mul", operand=1))
    steps = tuple(Step(step, operand=i) for i in range(1, operand_count + 1))
    return (*steps, Step("muls", 1 / (operand_count + 1))) if op == "Mean" else steps


def _broadcast(state: Translator, node: NodeProto, view: View, operand: View) -> str:
    """Operand of a chain on the tensor of `view`, broadcast to its shape or to one pixel (n, c, 1, 1)."""
    axes = operand.of_rank(len(view.axes)).axes
    n, c, _, _ = state.shapes[view.tensor]
    tensor = state.in_rows_of(operand.tensor, view.tensor)
    m, k, h, w = state.shapes[tensor]
    broadcast = {atom.axis for atoms, operand_atoms in zip(view.axes, axes, strict=True) if atoms != operand_atoms for atom in atoms}
    alike = all(operand_atoms in (atoms, ()) for atoms, operand_atoms in zip(view.axes, axes, strict=True))
    by_runs = k not in (1, c) and (k % CHANNEL_BLOCK == 0 or _has_heads(state, view.tensor))  # the same runs of channels again
    if not alike or by_runs or (P in broadcast and (h, w) != (1, 1)):
        placed = as_operand(state, view, operand)
        if placed is not None:
            return placed
    if not alike or m != n:
        raise state.refuse(node, f"its inputs of shape {list(view.shape)} and {list(operand.shape)} lie in different orders")
    if k != c:
        tensor = _spread_channels(state, tensor, tuple(atom for operand_atoms in axes for atom in operand_atoms if atom.axis == C), k, c)
    if P in broadcast and (h, w) != (1, 1):
        raise state.refuse(node, f"shapes {list(view.shape)} and {list(operand.shape)}; one value per channel can be spread over an image")
    return tensor


def _spread_channels(state: Translator, tensor: str, atoms: Atoms, source_channels: int, channels: int) -> str:
    """Tensor broadcast to `channels` channels: one channel repeated, or with `atoms` the same channel of every head.

    The broadcast is a product with zeros and ones; one product serves all readers.
    """
    key = (tensor, atoms, channels)
    if key not in state.spread:
        index = np.zeros(channels, np.int64)
        for atom in atoms:
            index += np.arange(channels) // atom.stride % atom.size * atom.stride
        selection = (index[:, None] == np.arange(source_channels)).astype(np.float32)
        name = state.fresh(f"{tensor}.channels")
        state.spread[key] = state.emit(Conv(name, tensor, name, selection[:, :, None, None], np.zeros(channels, np.float32)))
    return state.spread[key]


ELEMENTWISE: dict[str, Handler] = {
    "Expand": select_input,
    "Tile": tile,
    "Where": select_input,
    "BatchNormalization": batch_norm,
    "Clip": clip,
    "PRelu": prelu,
    "Pow": pow_,
    **dict.fromkeys(ACTIVATIONS, activation),
    **dict.fromkeys(BINARY, binary),
}
