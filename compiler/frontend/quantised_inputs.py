"""What integers a node reads: a tensor of them, and what two inputs behind it say that they stand for."""

from __future__ import annotations

from typing import Any

from onnx import NodeProto

from compiler.frontend.attributes import label
from compiler.frontend.to_graph import Translator
from compiler.frontend.views import View
from compiler.ir.quantised.parameters import Quantisation


def parameters(
    state: Translator, node: NodeProto, index: int, dtype: Any, shape: tuple[int, ...] = (), axis: int | None = None
) -> Quantisation:
    """Scale and zero point from two inputs of a node, of integers of that type."""
    zero = state.constant(node, index + 1, "the zero point") if state.has(node, index + 1) else None
    return Quantisation.of(state.constant(node, index, "the scale"), zero, dtype, shape, axis, label(node))


def integers_read(state: Translator, node: NodeProto, index: int = 0) -> tuple[View, Quantisation]:
    """A computed input, and what its integers stand for by the two inputs behind it."""
    view = state.view(node, index)
    held = state.types.get(view.tensor)
    if held is None:
        raise state.refuse(node, f"input {node.input[index]!r} is of floats; integers are expected")
    return view, parameters(state, node, index + 1, held.dtype)
