"""Integer inputs of nodes: a tensor, followed by its scale and zero point, or with a zero point only."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import NodeProto

from compiler.frontend.handlers.to_graph import Translator
from compiler.frontend.handlers.views import View
from compiler.frontend.onnx_io.attributes import label
from compiler.frontend.onnx_io.scales import column_tensor_names, zero_point_position
from compiler.ir.quantised.parameters import Quantisation


def quantisation_at(
    state: Translator, node: NodeProto, index: int, dtype: Any, shape: tuple[int, ...] = (), axis: int | None = None
) -> Quantisation:
    """Quantisation from two inputs of a node (scale, zero point), for integers of that type."""
    zero = state.constant(node, index + 1, "the zero point") if state.has(node, index + 1) else None
    return Quantisation.of(state.constant(node, index, "the scale"), zero, dtype, shape, axis, label(node))


def read_column_tensors(state: Translator, node: NodeProto, count: int) -> tuple[str, ...]:
    """Tensors with the offset and scale of the sums of each of `count` columns; () for constant quantisation."""
    tensors = []
    for name in column_tensor_names(node):
        view = state.views[name]
        if any(op.y == view.tensor for op in state.operators):
            raise state.refuse(node, f"{name!r} is made by the NPU, which rounds; what the host makes of columns is supported")
        if state.shapes[view.tensor] != (1, count, 1, 1):
            raise state.refuse(node, f"{name!r} of shape {list(view.shape)}; one value for each of {count} columns is supported")
        tensors.append(view.tensor)
    return tuple(tensors)


def integers_read(state: Translator, node: NodeProto, index: int = 0) -> tuple[View, Quantisation]:
    """Computed input, and its quantisation from the two inputs after it."""
    view = state.view(node, index)
    tensor_q = state.types.get(view.tensor)
    if tensor_q is None:
        raise state.refuse(node, f"input {node.input[index]!r} is of floats; integers are expected")
    return view, quantisation_at(state, node, index + 1, tensor_q.dtype)


def shift_of(state: Translator, node: NodeProto, index: int, values: NDArray[Any], axis: int | None) -> Quantisation:
    """Quantisation of a constant input with scale 1 and the zero points of `scales.SHIFTED`, one or one per entry of an axis."""
    zero_index = zero_point_position(node, index)
    zero = state.constant(node, zero_index, "the zero point") if state.has(node, zero_index) else None
    return Quantisation.of(np.float32(1), zero, values.dtype, values.shape, axis, label(node))


def shifted_input(state: Translator, node: NodeProto, index: int) -> tuple[View, Quantisation]:
    """Computed input with a single zero point, and its quantisation; sums ignore its scale."""
    view, zero_index = state.view(node, index), zero_point_position(node, index)
    tensor_q = state.types.get(view.tensor)
    if tensor_q is None:
        raise state.refuse(node, f"input {node.input[index]!r} is of floats; integers are expected")
    zero = state.constant(node, zero_index, "the zero point") if state.has(node, zero_index) else None
    if zero is not None and zero.size > 1:
        raise state.refuse(node, f"{zero.size} zero points along an axis of a computed tensor; one for all of it is supported")
    node_q = Quantisation.of(np.float32(1), None if zero is None else zero.reshape(()), tensor_q.dtype, where=label(node))
    if node_q.single("")[1] != tensor_q.single(label(node))[1]:
        raise state.refuse(
            node, f"its zero point is {node_q.zero_point[0]}, that of who made its input {tensor_q.zero_point[0]}; equal ones are supported"
        )
    return view, tensor_q
