"""Handlers of sums and products of two tensors of integers: of one shape, one of them a constant, or spread over the other.

A pixel of every channel stays one.  What is one value along rows, columns or channels is spread there, which moves integers.
"""

from __future__ import annotations

import math

import numpy as np
from onnx import NodeProto

from compiler.frontend.attributes import Attributes, label
from compiler.frontend.quantised_inputs import integers_read, parameters
from compiler.frontend.to_graph import Translator, graph_shape
from compiler.frontend.views import View, constant_as
from compiler.ir.operators import LookUp, QuantisedAffine, QuantisedPair, Resample, Shape
from compiler.ir.operators.quantised_products import kept
from compiler.ir.operators.quantised_values import PairMode
from compiler.ir.quantised.affine import fitted
from compiler.ir.quantised.elementwise import repeats
from compiler.ir.quantised.parameters import Quantisation
from compiler.ir.quantised.tables import every_integer
from compiler.ir.taps import Taps


def of_two(mode: PairMode, state: Translator, node: NodeProto, values: Attributes) -> None:
    """Sum or product, whose operands are in the order in which onnxruntime counts them."""
    del values
    constant = [i for i in (0, 3) if node.input[i] in state.constants]
    computed = [i for i in (0, 3) if i not in constant]
    shapes = {i: state.constants[node.input[i]].shape for i in constant} | {i: state.view(node, i).shape for i in computed}
    if mode == "add" and repeats(shapes[0], shapes[3]):
        mode = "radd"
    views = {i: integers_read(state, node, i) for i in computed}
    largest = max(computed, key=lambda i: math.prod(shapes[i]), default=0)
    view, x_q = views[largest] if views else integers_read(state, node)
    y_q = parameters(state, node, 6, x_q.dtype)
    rank = max(map(len, shapes.values()))
    view = view.of_rank(rank)
    if constant and math.prod(shapes[constant[0]]) == 1:
        _with_one_value(mode, state, node, view, constant[0], x_q, y_q)
        return
    same = all(other.of_rank(rank).axes == view.axes for other, _ in views.values())
    tensors = {i: state.in_rows_of(views[i][0].tensor, view.tensor) if same else _aligned(state, node, i, rank) for i in computed}
    types = {i: views[i][1] for i in computed}
    for i in constant:
        found = _per_channel(mode, state, node, view, i, x_q, y_q)
        if found is not None:
            state.finish_as(node, found, view.axes)
            return
        tensors[i], types[i] = _constant(state, node, i, view)
    whole = tensors[largest]
    for i in tensors:
        if i != largest:
            tensors[i] = _spread(state, node, tensors[i], types[i], state.shapes[whole])
    first, second = (0, 3) if state.shapes[tensors[0]] == state.shapes[whole] else (3, 0)
    if first == 3 and mode != "mul":
        mode = "radd" if mode == "add" else "add"
    op = QuantisedPair(state.name(node), tensors[first], tensors[second], node.output[0], mode, types[first], types[second], y_q)
    given = [state.shapes[name] for name in op.inputs]
    if op.unfit(given) or given[0][:2] != given[1][:2] or op.output_shape(given) != state.shapes[whole]:
        raise state.refuse(node, f"{list(shapes[0])} and {list(shapes[3])}; one of the two has to have the shape of the result")
    if same:
        state.finish_as(node, op, view.axes)
    else:  # both as images, whose channels are in order
        state.finish(node, op, view.shape)


def _aligned(state: Translator, node: NodeProto, index: int, rank: int) -> str:
    """An operand as an image.  Raises UnsupportedError where its axes, of which the last ones belong together, are others there."""
    shape, tensor = state.view(node, index).shape, state.image(node, index)
    if state.shapes[tensor] != graph_shape((1,) * (rank - len(shape)) + shape):
        raise state.refuse(node, f"input {node.input[index]!r} of shape {list(shape)} beside {rank} axes; one of as many axes is supported")
    return tensor


def _with_one_value(
    mode: PairMode, state: Translator, node: NodeProto, view: View, constant: int, x_q: Quantisation, y_q: Quantisation
) -> None:
    """A constant of one value: a table."""
    value = state.constants[node.input[constant]].reshape(1, 1, 1, 1)
    q, every = parameters(state, node, constant + 1, value.dtype), every_integer(x_q).reshape(1, -1, 1, 1)
    (first, a_q), (second, b_q) = ((value, q), (every, x_q)) if constant == 0 else ((every, x_q), (value, q))
    entries = QuantisedPair("", "", "", "", mode, a_q, b_q, y_q).apply([first, second]).reshape(-1)
    state.finish_as(node, LookUp(state.name(node), view.tensor, node.output[0], entries, x_q, y_q), view.axes)


def _per_channel(
    mode: PairMode, state: Translator, node: NodeProto, view: View, constant: int, x_q: Quantisation, y_q: Quantisation
) -> QuantisedAffine | None:
    """A constant of a value for every channel: a multiply-add, where one is equal to it for every integer in every channel."""
    array = state.constants[node.input[constant]]
    values = constant_as(view, state.shapes[view.tensor], array)
    if values is None or values.shape[0] > 1 or values.shape[2:] != (1, 1):
        return None
    q = parameters(state, node, constant + 1, array.dtype)
    given = np.broadcast_to(values, (1, state.shapes[view.tensor][1], 1, 1)).astype(array.dtype)
    every = np.broadcast_to(every_integer(x_q), (1, given.shape[1], 1, 256))
    (first, a_q), (second, b_q) = ((given, q), (every, x_q)) if constant == 0 else ((every, x_q), (given, q))
    wanted = QuantisedPair("", "", "", "", mode, a_q, b_q, y_q).apply([first, second]).reshape(-1, 256)
    (sx, _), (s, zero), (sy, _) = (each.single(label(node)) for each in (x_q, q, y_q))
    factors = (given.reshape(-1).astype(np.float32) - zero) * s if mode == "mul" else np.ones(len(wanted), np.float32)
    found = fitted(every_integer(x_q), wanted, sx * factors / sy)
    return None if found is None else QuantisedAffine(state.name(node), view.tensor, node.output[0], ((found, y_q),), x_q)


def _spread(state: Translator, node: NodeProto, tensor: str, q: Quantisation, shape: Shape) -> str:
    """A tensor with as many channels as another one and its rows and columns, or one pixel."""
    n, c, h, w = state.shapes[tensor]
    if n != shape[0] or any(mine not in (1, theirs) for mine, theirs in zip((c, h, w), shape[1:], strict=True)):
        return tensor
    if c < shape[1]:
        name = state.name(node, ".channels")
        tensor = state.emit(kept(name, tensor, name, q, [0] * shape[1], 1))
    if (h, w) not in ((1, 1), shape[2:]):
        name = state.name(node, ".pixels")
        rows, columns = (Taps(tuple(((i if size > 1 else 0, 1.0),) for i in range(all_))) for size, all_ in ((h, shape[2]), (w, shape[3])))
        tensor = state.emit(Resample(name, tensor, name, rows, columns))
    return tensor


def _constant(state: Translator, node: NodeProto, index: int, beside: View) -> tuple[str, Quantisation]:
    """A constant of integers as a tensor of another one's channels: its pixels, or one of them."""
    array = state.constants[node.input[index]]
    shape = state.shapes[beside.tensor]
    values = constant_as(beside, shape, array)
    if values is None:
        raise state.refuse(node, f"a constant of shape {list(array.shape)} beside {list(beside.shape)}; one that fits is supported")
    name = state.constant_tensor(node, values, (*shape[:2], *values.shape[2:]))
    state.tensors[name] = state.tensors[name].astype(array.dtype)
    state.types[name] = parameters(state, node, index + 1, array.dtype)
    return name, state.types[name]
