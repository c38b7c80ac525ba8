"""Handlers of operators that work value by value: each becomes one Vector chain."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import NodeProto

from compiler.frontend.to_graph import Handler, Translator
from compiler.frontend.views import View, constant_as
from compiler.ir.graph import Floats, Step, Vector

Values = dict[str, Any]


def _chain(state: Translator, node: NodeProto, steps: tuple[Step, ...], view: View, others: tuple[str, ...] = ()) -> None:
    state.finish_as(node, Vector(state.name(node), (view.tensor, *others), node.output[0], steps), view.axes)


def batch_norm(state: Translator, node: NodeProto, values: Values) -> None:
    if values.get("training_mode", 0) or not values.get("spatial", 1):
        raise state.refuse(node, "training_mode is on, or spatial is off; inference with statistics per channel is supported")
    x = state.image(node)
    scale, shift, mean, variance = (state.constant(node, i, "the statistic").astype(np.float64) for i in range(1, 5))
    factor = scale / np.sqrt(variance + float(values.get("epsilon", 1e-5)))
    if not np.isfinite(factor).all():
        raise state.refuse(node, "a variance is below -epsilon, the scale is not finite")
    if factor.shape != (state.shapes[x][1],):
        raise state.refuse(node, f"statistics of shape {list(factor.shape)} for {state.shapes[x][1]} channels")
    step = Step("scale_shift", scale=factor.astype(np.float32), shift=(shift - mean * factor).astype(np.float32))
    state.finish(node, Vector(state.name(node), (x,), node.output[0], (step,)), state.view(node).shape)


UNARY: dict[str, tuple[Step, ...]] = {
    "Relu": (Step("relu"),),
    "Exp": (Step("exp"),),
    "Log": (Step("ln"),),
    "Sqrt": (Step("sqrt"),),
    "Reciprocal": (Step("reciprocal"),),
    "Neg": (Step("muls", -1.0),),
    "Sigmoid": (Step("muls", -1.0), Step("exp"), Step("adds", 1.0), Step("reciprocal")),
}


def unary(state: Translator, node: NodeProto, values: Values) -> None:
    _chain(state, node, UNARY[node.op_type], state.view(node))


def hard_sigmoid(state: Translator, node: NodeProto, values: Values) -> None:
    """min(max(alpha * x + beta, 0), 1), and x times that (HardSwish)."""
    swish = node.op_type == "HardSwish"
    alpha, beta = (1 / 6, 0.5) if swish else (float(values.get("alpha", 0.2)), float(values.get("beta", 0.5)))
    steps = (Step("muls", alpha), Step("adds", beta), Step("relu"), Step("mins", 1.0))
    view = state.view(node)
    if swish:
        _chain(state, node, (*steps, Step("mul", operand=1)), view, (view.tensor,))
    else:
        _chain(state, node, steps, view)


def leaky_relu(state: Translator, node: NodeProto, values: Values) -> None:
    """max(x, alpha * x), for alpha <= 1."""
    alpha = float(values.get("alpha", 0.01))
    if alpha > 1:
        raise state.refuse(node, f"alpha {alpha}; at most 1 is supported")
    view = state.view(node)
    _chain(state, node, (Step("muls", alpha), Step("max", operand=1)), view, (view.tensor,))


def clip(state: Translator, node: NodeProto, values: Values) -> None:
    low = float(values.get("min", -math.inf))
    high = float(values.get("max", math.inf))
    if state.has(node, 1):
        low = float(state.constant(node, 1, "the minimum").reshape(-1)[0])
    if state.has(node, 2):
        high = float(state.constant(node, 2, "the maximum").reshape(-1)[0])
    steps: list[Step] = []
    largest = float(np.finfo(np.float32).max)  # what exporters write for "no bound"
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
    """A constant operand as one value, or as one per channel of the view's tensor."""
    if array.size == 1 and array.ndim <= len(view.shape):
        return float(array.reshape(-1)[0])
    values = constant_as(view, state.shapes[view.tensor], array)
    if values is None or values.size != values.shape[1] or values.size == 1:
        raise state.refuse(node, f"constant of shape {list(array.shape)} on {list(view.shape)}; one value or one per channel is supported")
    return values.reshape(-1)


def _with_constant(op: str, value: Floats | float, constant_first: bool) -> tuple[Step, ...]:
    """Steps of v op constant, or of constant op v."""
    lead: tuple[Step, ...] = ()
    if op == "Sub":
        if constant_first:
            lead = (Step("muls", -1.0),)
        else:
            value = -value
        op = "Add"
    if op == "Div":
        if constant_first:
            lead = (Step("reciprocal"),)
        else:
            value = np.float32(1) / value if not isinstance(value, float) else 1.0 / value
        op = "Mul"
    if isinstance(value, float):
        return (*lead, Step("adds" if op == "Add" else "muls", value))
    if op == "Add":
        return (*lead, Step("scale_shift", scale=np.ones_like(value), shift=value))
    return (*lead, Step("scale_shift", scale=value, shift=np.zeros_like(value)))


BINARY = {"Add": "add", "Sum": "add", "Sub": "sub", "Mul": "mul", "Div": "div", "Max": "max", "Min": "min"}


def binary(state: Translator, node: NodeProto, values: Values) -> None:
    """Tensors of one shape, left to right, and constants."""
    if values.get("broadcast", 0):
        raise state.refuse(node, "the broadcast attribute of opsets before 7; convert the model to a newer opset")
    constants = [i for i in range(len(node.input)) if state.is_constant(node.input[i])]
    tensors = [i for i in range(len(node.input)) if i not in constants]
    if not tensors:
        raise state.refuse(node, "all inputs are constants; nothing for the NPU to do")
    if constants and (len(node.input) > 2 or node.op_type in ("Max", "Min")):
        raise state.refuse(node, "a constant among several inputs; tensor with constant, or tensors only, is supported")
    view = state.view(node, tensors[0])
    if constants:
        array = state.constants[node.input[constants[0]]]
        if node.op_type == "Div" and constants[0] == 1 and not np.all(array):
            raise state.refuse(node, "division by a constant zero")
        value = _per_channel(state, node, view, array)
        _chain(state, node, _with_constant(node.op_type, value, constants[0] == 0), view)
        return
    views = [state.view(node, i) for i in tensors]
    if any(other.axes != view.axes for other in views):
        views = [state.in_order(other) for other in views]
        view = views[0]
    for other in views[1:]:
        if other.shape != view.shape:
            raise state.refuse(node, f"shapes {list(view.shape)} and {list(other.shape)}; tensors of one shape are supported")
        if other.axes != view.axes or state.shapes[other.tensor] != state.shapes[view.tensor]:
            raise state.refuse(node, f"its inputs of shape {list(view.shape)} lie in different orders; one would have to be transposed")
    if len(views) == 1:
        state.views[node.output[0]] = view
        return
    step = BINARY[node.op_type]
    steps = tuple(Step(step, operand=i) for i in range(1, len(views)))  # type: ignore[arg-type]
    _chain(state, node, steps, view, tuple(v.tensor for v in views[1:]))


ELEMENTWISE: dict[str, Handler] = {
    "BatchNormalization": batch_norm,
    "LeakyRelu": leaky_relu,
    "HardSigmoid": hard_sigmoid,
    "HardSwish": hard_sigmoid,
    "Clip": clip,
    **dict.fromkeys(UNARY, unary),
    **dict.fromkeys(BINARY, binary),
}
