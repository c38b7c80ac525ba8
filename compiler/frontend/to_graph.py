"""ONNX nodes -> operators of `compiler.ir.graph`, one by one; nothing is fused here.

An ONNX tensor is a `View`: a tensor of the graph, always (n, c, h, w), and the shape under which ONNX sees the same values in the same
row-major order.  So Reshape, Flatten, Squeeze and Unsqueeze only change the view, Gemm after Flatten is a Conv with a kernel
as large as the image, and the Transpose inside a channel shuffle is recognised on its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, numpy_helper

from compiler.frontend.attributes import attributes, label
from compiler.frontend.load import MAX_VALUES, one_line, opset_of
from compiler.ir.graph import Graph, Operator, Port, Shape, output_shape
from simulator.npu.errors import BadInputError, UnsupportedError

Array = NDArray[Any]


@dataclass(frozen=True)
class View:
    """`tensor` of the graph, seen with ONNX's `shape`."""

    tensor: str
    shape: tuple[int, ...]


def graph_shape(shape: tuple[int, ...]) -> Shape:
    """ONNX shape -> (n, c, h, w): [k] is a vector of channels, [n, c, l] an image of one row; further axes are folded into h."""
    if len(shape) < 2:
        return (1, math.prod(shape), 1, 1)
    if len(shape) == 2:
        return (shape[0], shape[1], 1, 1)
    return (shape[0], shape[1], math.prod(shape[2:-1]), shape[-1])


class Translator:
    """State while one model is translated; handlers in `compiler.frontend.handlers` call its methods."""

    def __init__(self, model: ModelProto) -> None:
        self.model = model
        self.opset = opset_of(model)
        self.shapes: dict[str, Shape] = {}
        self.operators: list[Operator] = []
        self.views: dict[str, View] = {}
        self.constants: dict[str, Array] = {item.name: numpy_helper.to_array(item) for item in model.graph.initializer}
        self.used_names: set[str] = set()

    # -- what handlers ask ------------------------------------------------------------------------------------------

    def refuse(self, node: NodeProto, why: str) -> UnsupportedError:
        return UnsupportedError(f"{label(node)}: {why}")

    def is_constant(self, name: str) -> bool:
        return name in self.constants

    def constant(self, node: NodeProto, index: int, what: str) -> Array:
        """The value of an input that has to be known at compile time."""
        if not self.has(node, index):
            raise self.refuse(node, f"{what} is missing; opset {self.opset} is too old a form of this operator")
        name = node.input[index]
        if name not in self.constants:
            raise self.refuse(node, f"{what} {name!r} is computed at run time; only a constant one is supported")
        return self.constants[name]

    def view(self, node: NodeProto, index: int = 0) -> View:
        if not self.has(node, index):
            raise self.refuse(node, f"input {index} is missing")
        name = node.input[index]
        if name in self.views:
            return self.views[name]
        if name in self.constants:
            raise self.refuse(node, f"input {name!r} is a constant where a computed tensor is expected")
        raise BadInputError(f"{label(node)}: input {name!r} is produced by nothing")

    def image(self, node: NodeProto, index: int = 0) -> str:
        """The input as a graph tensor whose (n, c, h, w) is ONNX's own shape."""
        view = self.view(node, index)
        if graph_shape(view.shape) != self.shapes[view.tensor]:
            raise self.refuse(
                node, f"input {node.input[index]!r} of shape {list(view.shape)} is not (n, c, h, w) or (n, c) but another view of them"
            )
        return view.tensor

    def has(self, node: NodeProto, index: int) -> bool:
        return len(node.input) > index and bool(node.input[index])

    # -- what handlers do -------------------------------------------------------------------------------------------

    def name(self, node: NodeProto, suffix: str = "") -> str:
        """A name for an operator, used once."""
        base = (node.name or node.output[0]) + suffix
        unique, count = base, 1
        while unique in self.used_names:
            count += 1
            unique = f"{base}.{count}"
        self.used_names.add(unique)
        return unique

    def emit(self, op: Operator) -> str:
        """Append an operator; its output's shape follows."""
        shape = output_shape(op, [self.shapes[name] for name in op.inputs])
        if min(shape) < 1:
            raise BadInputError(f"operator {op.name!r}: its window does not fit, the output would be {list(shape)}")
        self.shapes[op.y] = shape
        self.operators.append(op)
        return op.y

    def finish(self, node: NodeProto, op: Operator, shape: tuple[int, ...] | None = None) -> None:
        """Append the operator that produces the node's first output; its ONNX shape is the same as its own unless given."""
        self.emit(op)
        own = self.shapes[op.y]
        self.views[node.output[0]] = View(op.y, own if shape is None else shape)

    # -- the walk ---------------------------------------------------------------------------------------------------

    def inputs(self) -> tuple[Port, ...]:
        ports = []
        for item in self.model.graph.input:
            if item.name in self.constants:
                continue
            shape = tuple(int(d.dim_value) for d in item.type.tensor_type.shape.dim)
            kind = item.type.tensor_type.elem_type
            if kind != onnx.TensorProto.FLOAT:
                raise UnsupportedError(f"input {item.name!r} is {onnx.TensorProto.DataType.Name(kind).lower()}; float is supported")
            self.shapes[item.name] = graph_shape(shape)
            self.views[item.name] = View(item.name, shape)
            ports.append(Port(item.name, item.name, shape))
        return tuple(ports)

    def outputs(self) -> tuple[Port, ...]:
        ports = []
        for item in self.model.graph.output:
            if item.name not in self.views:
                raise UnsupportedError(f"output {item.name!r} does not depend on any input; nothing to run on the NPU")
            view = self.views[item.name]
            ports.append(Port(view.tensor, item.name, view.shape))
        return tuple(ports)


Handler = Callable[[Translator, NodeProto, dict[str, Any]], None]


def translate(model: ModelProto, handlers: dict[str, Handler], digest: str = "") -> Graph:
    """The model as a Graph.  Raises UnsupportedError naming the node, its operator and why."""
    state = Translator(model)
    inputs = state.inputs()
    for node in model.graph.node:
        if node.domain not in ("", "ai.onnx"):
            raise state.refuse(node, f"operators of domain {node.domain!r} are not supported")
        values = attributes(node)
        if not _fold(state, node, values):
            handler = handlers.get(node.op_type)
            if handler is None:
                raise state.refuse(node, f"not supported; supported are {', '.join(sorted(handlers))}")
            handler(state, node, values)
    name = model.graph.name or "model"
    graph = Graph(name, inputs, state.outputs(), tuple(state.operators), state.shapes, digest)
    graph.verify()
    return graph


def _fold(state: Translator, node: NodeProto, values: dict[str, Any]) -> bool:
    """What onnxslim left: a node whose inputs are all constants (small ones only, such as shapes), and Shape of a known tensor."""
    if node.op_type == "Constant":
        if "value" in values:
            state.constants[node.output[0]] = numpy_helper.to_array(values["value"])
            return True
        for key, kind in (("value_float", np.float32), ("value_int", np.int64), ("value_floats", np.float32), ("value_ints", np.int64)):
            if key in values:
                state.constants[node.output[0]] = np.asarray(values[key], kind)
                return True
        return False
    if node.op_type == "Shape" and node.input[0] in state.views:
        dims = state.views[node.input[0]].shape
        state.constants[node.output[0]] = np.asarray(dims[values.get("start", 0) : values.get("end", len(dims))], np.int64)
        return True
    if not node.input or any(name and name not in state.constants for name in node.input):
        return False
    folded = _FOLDS.get(node.op_type)
    if folded is None:
        return False
    try:
        value = np.asarray(folded([state.constants[name] for name in node.input if name], values))
    except (IndexError, KeyError, TypeError, ValueError, OverflowError) as error:
        raise BadInputError(f"{label(node)}: its constant inputs do not fit it: {one_line(error)}") from None
    if value.size > MAX_VALUES:
        raise BadInputError(f"{label(node)}: a constant of {value.size} values; at most {MAX_VALUES}")
    state.constants[node.output[0]] = value
    return True


def _axes(inputs: list[Array], values: dict[str, Any]) -> tuple[int, ...]:
    return tuple(int(a) for a in (inputs[1] if len(inputs) > 1 else values.get("axes", ())))


def _filled(inputs: list[Array], values: dict[str, Any]) -> Array:
    fill = numpy_helper.to_array(values["value"]).reshape(-1)[0] if "value" in values else np.float32(0)
    dims = tuple(int(d) for d in inputs[0])
    if math.prod(dims) > MAX_VALUES:
        raise ValueError(f"{list(dims)} has more than {MAX_VALUES} values")
    return np.full(dims, fill)


_FOLDS: dict[str, Callable[[list[Array], dict[str, Any]], Array]] = {
    "ConstantOfShape": _filled,
    "Identity": lambda x, v: x[0],
    "Cast": lambda x, v: x[0].astype(onnx.helper.tensor_dtype_to_np_dtype(v["to"])),
    "Unsqueeze": lambda x, v: np.expand_dims(x[0], _axes(x, v)),
    "Squeeze": lambda x, v: np.squeeze(x[0], _axes(x, v) or None),
    "Reshape": lambda x, v: x[0].reshape([x[0].shape[i] if d == 0 else int(d) for i, d in enumerate(x[1])]),
    "Transpose": lambda x, v: np.transpose(x[0], v.get("perm")),
    "Gather": lambda x, v: np.take(x[0], x[1].astype(np.int64), axis=v.get("axis", 0)),
    "Concat": lambda x, v: np.concatenate(x, axis=v["axis"]),
    "Mul": lambda x, v: x[0] * x[1],
    "Add": lambda x, v: x[0] + x[1],
}
