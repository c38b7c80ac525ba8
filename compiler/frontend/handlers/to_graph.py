"""Translation of ONNX nodes to operators of `compiler.ir.graph`, one by one, without fusion.

An ONNX tensor is a `View` (`compiler.frontend.handlers.views`): a tensor of the graph, always (n, c, h, w), and the mapping of ONNX's axes
to it.  So Reshape, Transpose, Flatten, Squeeze and Unsqueeze only change the view, Gemm after Flatten is a Conv with a kernel as large as
the image, and a channel shuffle is emitted only where an operator reads an image with channels in another order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

from compiler.frontend.handlers.arrange import arrange, for_host, in_line, without_repeats
from compiler.frontend.handlers.tensor_moves import Arrangement, Move
from compiler.frontend.handlers.views import (
    Atom,
    Atoms,
    C,
    N,
    P,
    View,
    host_order,
    merge_atoms,
    reshape_view,
    row_major,
    transpose_view,
    whole_axes,
)
from compiler.frontend.onnx_io.attributes import Attributes, attributes, known_shapes, label, opset_of
from compiler.frontend.onnx_io.fold import NO_ROOM, evaluate_node, fold_node
from compiler.frontend.onnx_io.memory_budget import ByteBudget
from compiler.frontend.onnx_io.scales import column_tensor_names, quantisation_of
from compiler.ir.graph import Graph, Port
from compiler.ir.operators import Floats, Operator, Reflow, Shape, Shuffle
from compiler.ir.quantised.parameters import RAW_SUMS, SUMS, Quantisation
from simulator.npu.errors import BadInputError, UnsupportedError
from simulator.onnx_kinds import INTEGERS_ON_NPU, ON_NPU, kind_name

Array = NDArray[Any]
_FOR_HOST = {"DynamicQuantizeLinear": "its scale is that of all values, which the host has before the NPU has any"}
HOST_TYPES = "float, int8 or uint8 of a known shape"  # supported tensors from and to the host


def graph_shape(shape: tuple[int, ...]) -> Shape:
    """Graph shape (n, c, h, w) of an ONNX shape: [k] is a vector of channels; more than four axes are folded into h.

    A signal [n, c, l] is an image of one column, as a sequence is: blocks are cut along rows, and a row of all samples need not fit L1.
    """
    if len(shape) < 2:
        return (1, math.prod(shape), 1, 1)
    if len(shape) < 4:
        return (shape[0], shape[1], math.prod(shape[2:]), 1)
    return (shape[0], shape[1], math.prod(shape[2:-1]), shape[-1])


class Translator:
    """State of the translation of one model; handlers in `compiler.frontend.handlers.handlers` call its methods.

    rows: whether a matrix input [m, k] of products is one image of m pixels, which fill the rows of the matrix unit; else m images of one
    pixel.  matrices: whether the model has such a matrix.  images: whether the first axis of other inputs is that of images; else it is
    pixels, which can move.
    """

    def __init__(
        self,
        model: ModelProto,
        budget: ByteBudget | None = None,
        beside: Mapping[str, Array] | None = None,
        rows: bool = True,
        images: bool = True,
    ) -> None:
        self.model = model
        self.rows, self.matrices, self.images = rows, False, images
        self.budget = ByteBudget.of(model) if budget is None else budget
        self.opset = opset_of(model)
        self.shapes: dict[str, Shape] = {}
        self.operators: list[Operator] = []
        self.views: dict[str, View] = {}
        self.shuffled: dict[View, str] = {}  # view -> tensor with its channels in order
        self.moved: dict[Move, str] = {}  # arrangement -> its tensor
        self.arranged: dict[str, Arrangement] = {}  # tensors that were only arranged
        self.copies: set[str] = set()  # tensors that arrangements made
        self.reflowed: dict[tuple[str, Shape], str] = {}  # (tensor, shape) -> the same pixels in rows of another width
        self.constants: dict[str, Array] = {weight.name: numpy_helper.to_array(weight) for weight in model.graph.initializer} | dict(
            beside or {}
        )
        self.known_shapes = known_shapes(model.graph)  # shapes of ONNX tensors
        self.used_names: set[str] = set()
        self.node = ""  # name of the node that is translated: copies for it are named after it
        self.spread: dict[tuple[str, Atoms, int], str] = {}  # (tensor, its channels, number of channels) -> broadcast tensor
        self.tensors: dict[str, Floats] = {}  # constants that stay tensors
        self.types: dict[str, Quantisation] = {}  # quantisation of integer tensors
        self.columns = {name for node in model.graph.node for name in column_tensor_names(node)}  # column offsets and scales from the host

    # -- queries of handlers ------------------------------------------------------------------------------------------

    def refuse(self, node: NodeProto, why: str) -> UnsupportedError:
        return UnsupportedError(f"{label(node)}: {why}")

    def constant(self, node: NodeProto, index: int, description: str) -> Array:
        """Value of an input that has to be constant.  description: name of the input in errors."""
        if not self.has(node, index):
            raise self.refuse(node, f"{description} is missing; opset {self.opset} is too old a form of this operator")
        name = node.input[index]
        if name not in self.constants:
            raise self.refuse(node, f"{description} {name!r} is computed at run time; only a constant one is supported")
        return self.constants[name]

    def view(self, node: NodeProto, index: int = 0) -> View:
        """View of an input; what Expand and Tile repeat is copied."""
        view = self.repeated_view(node, index)
        copied = without_repeats(self, view)
        if copied is None:
            raise self.refuse(
                node, f"input {node.input[index]!r} of shape {list(view.shape)} repeats images; all other axes can be repeated"
            )
        return copied

    def repeated_view(self, node: NodeProto, index: int = 0) -> View:
        """View of an input, which may repeat values."""
        if not self.has(node, index):
            raise self.refuse(node, f"input {index} is missing")
        name = node.input[index]
        if name in self.views:
            return self.views[name]
        if name in self.constants:
            raise self.refuse(node, f"input {name!r} is a constant where a computed tensor is expected")
        raise BadInputError(f"{label(node)}: input {name!r} is produced by nothing")

    def image(self, node: NodeProto, index: int = 0) -> str:
        """Input as a graph tensor whose (n, c, h, w) is the shape in ONNX."""
        view = self.view(node, index)
        shape, image_shape = self.shapes[view.tensor], graph_shape(view.shape)
        if (*image_shape[:2], image_shape[2] * image_shape[3]) == (*shape[:2], shape[2] * shape[3]):
            ordered = self.in_order(view)
            if ordered.atoms == whole_axes(shape, N, C, P):
                return self.in_rows(ordered.tensor, image_shape)
        axes = range(len(view.shape))
        arranged = arrange(self, view, axes[1:2] or axes[:1], axes[2:], image_shape[3])
        if arranged is not None:
            return arranged.tensor
        raise self.refuse(
            node, f"input {node.input[index]!r} of shape {list(view.shape)} is not (n, c, h, w) or (n, c) but another view of them"
        )

    def in_rows(self, tensor: str, shape: Shape) -> str:
        """Tensor with its pixels in rows of another width: an image as a signal, or a signal as an image."""
        if self.shapes[tensor] == shape:
            return tensor
        if (tensor, shape) not in self.reflowed:
            name = self.fresh(f"{tensor}.rows")
            self.reflowed[tensor, shape] = self.emit(Reflow(name, tensor, name, self.shapes[tensor][2:], shape[2:]))
        return self.reflowed[tensor, shape]

    def in_rows_of(self, tensor: str, reference: str) -> str:
        """Tensor whose pixels are in rows as long as those of the reference, if both have the same number of pixels."""
        n, c, h, w = self.shapes[tensor]
        rows = self.shapes[reference][2:]
        return self.in_rows(tensor, (n, c, *rows)) if math.prod(rows) == h * w else tensor

    def reshape(self, view: View, onnx_shape: Sequence[int]) -> View | None:
        """View in another shape, as `views.reshaped`; channels are shuffled into order, and values are moved, where necessary."""
        return reshape_view(view, onnx_shape) or reshape_view(self.in_order(view), onnx_shape) or in_line(self, view, onnx_shape)

    def in_order(self, view: View) -> View:
        """View of the same values on a tensor whose channels have the order of the view."""
        atoms = [atom for axes in view.axes for atom in axes if atom.axis == C]
        if self.in_order_already(view):
            return view
        order = np.zeros((1,), np.int64)
        for atom in atoms:
            order = (order[:, None] + np.arange(atom.size) * atom.stride).reshape(-1)
        if view not in self.shuffled:
            name = self.fresh(f"{view.tensor}.shuffle")
            self.shuffled[view] = self.emit(Shuffle(name, view.tensor, name, tuple(order.tolist())))
        stride = 1
        renamed = {}
        for atom in reversed(atoms):
            renamed[atom] = Atom(C, atom.size, stride)
            stride *= atom.size
        return View(self.shuffled[view], tuple(merge_atoms(renamed.get(atom, atom) for atom in axes) for axes in view.axes))

    def in_order_already(self, view: View) -> bool:
        """Whether the channels of a view's tensor have the order of the view."""
        return merge_atoms(atom for atom in view.atoms if atom.axis == C) == whole_axes(self.shapes[view.tensor], C)

    def has(self, node: NodeProto, index: int) -> bool:
        return len(node.input) > index and bool(node.input[index])

    # -- actions of handlers -------------------------------------------------------------------------------------------

    def name(self, node: NodeProto, suffix: str = "") -> str:
        """Unique name of an operator."""
        return self.fresh((node.name or node.output[0]) + suffix)

    def fresh(self, base: str) -> str:
        """Unused name, `base` or with `base` as prefix."""
        unique, count = base, 1
        while unique in self.used_names:
            count += 1
            unique = f"{base}.{count}"
        self.used_names.add(unique)
        return unique

    def emit(self, op: Operator) -> str:
        """Append an operator, with shape and type of its output.  Raises UnsupportedError for a different batch than the others."""
        shape = op.output_shape([self.shapes[name] for name in op.inputs])
        if min(shape) < 1:
            raise BadInputError(f"operator {op.name!r}: its window does not fit, the output would be {list(shape)}")
        batch = self.shapes[self.operators[0].y][0] if self.operators else shape[0]
        if shape[0] != batch:  # a program iterates over the images of all tensors together
            raise UnsupportedError(f"operator {op.name!r}: {shape[0]} images beside operators on {batch}; one number for all is supported")
        types = [self.types.get(name) for name in op.inputs]
        if any(q is not None and q.dtype == SUMS for name, q in zip(op.inputs, types, strict=True) if name not in op.of_columns):
            raise UnsupportedError(f"operator {op.name!r}: reads int32 sums, which are for the host; integers of 8 bits are supported")
        try:
            output_type = op.output_type(types)
        except ValueError as error:
            raise UnsupportedError(f"operator {op.name!r}: {error}") from None
        if output_type is not None:
            self.types[op.y] = output_type
        self.shapes[op.y] = shape
        self.operators.append(op)
        return op.y

    def constant_tensor(self, node: NodeProto, values: Floats, shape: Shape) -> str:
        """Constant tensor of a shape, with values [1 | n, 1 | c, 1 | h, 1 | w]."""
        self.budget.spend(len(values) * math.prod(shape[1:]) * values.itemsize, node)
        name = self.name(node, ".constant")
        self.shapes[name] = shape
        self.tensors[name] = np.ascontiguousarray(np.broadcast_to(values, (len(values), *shape[1:])))
        return name

    def finish(self, node: NodeProto, op: Operator, shape: tuple[int, ...] | None = None) -> None:
        """Append the operator of the node's first output, in the order (n, c, h, w).  shape: ONNX's shape, by default the operator's."""
        self.emit(op)
        tensor_shape = self.shapes[op.y]
        self.views[node.output[0]] = row_major(op.y, tensor_shape, tensor_shape if shape is None else shape)

    def finish_as(self, node: NodeProto, op: Operator, axes: tuple[tuple[Atom, ...], ...]) -> None:
        """Append the operator of the node's first output.  axes: axes of the output's view."""
        self.emit(op)
        self.views[node.output[0]] = View(op.y, tuple(merge_atoms(atoms) for atoms in axes))

    def check_views(self, node: NodeProto) -> None:
        """Raise ValueError for a bug of a handler: a shape that differs from ONNX's, or a view that does not cover its tensor."""
        for name in node.output:
            if name not in self.views:
                continue
            view = self.views[name]
            onnx_shape = self.known_shapes.get(name, view.shape)
            if view.shape != onnx_shape or not view.covers(self.shapes[view.tensor]):
                lowered = f"{list(view.shape)}, {view} of {self.shapes[view.tensor]}"
                raise ValueError(f"{label(node)}: {name!r} of shape {list(onnx_shape)} was lowered to {lowered}")

    # -- the walk ---------------------------------------------------------------------------------------------------

    def inputs(self) -> tuple[Port, ...]:
        ports = []
        for tensor in self.model.graph.input:
            if tensor.name in self.constants:
                continue
            if reason := self.strange(tensor):
                raise UnsupportedError(f"input {tensor.name!r} is {reason}; {HOST_TYPES} is supported")
            ports.append(self.receive(tensor))
        return tuple(ports)

    def strange(self, tensor: ValueInfoProto) -> str:
        """Reason why a tensor cannot come from the host, or ''."""
        kind = tensor.type.tensor_type.elem_type
        if kind not in (0, *ON_NPU, *INTEGERS_ON_NPU) and (kind != TensorProto.INT32 or tensor.name not in self.columns):
            return kind_name(kind)
        return "" if has_shape(tensor) else "of unknown shape"

    def stands_for(self, tensor: ValueInfoProto) -> Quantisation | None:
        """Quantisation of an input tensor, with scale 1 where no operator states it, so that it is only moved; None for floats."""
        kind = tensor.type.tensor_type.elem_type
        if kind == TensorProto.INT32:
            return RAW_SUMS
        if kind not in INTEGERS_ON_NPU:
            return None
        dtype = helper.tensor_dtype_to_np_dtype(kind)
        return quantisation_of(tensor.name, dtype, self.model.graph, self.constants) or Quantisation.of(np.float32(1), None, dtype)

    def receive(self, tensor: ValueInfoProto) -> Port:
        """Register a tensor from the host."""
        name, shape = tensor.name, tuple(int(d.dim_value) for d in tensor.type.tensor_type.shape.dim)
        quantisation = self.stands_for(tensor)
        if quantisation is not None:
            self.types[name] = quantisation
        if not self.images and len(shape) > 1 and shape[0] > 1:
            last = len(shape) - 1 if channels_last(self.model, name) else 1
            pixels = [*shape[:last], *shape[last + 1 :]]
            width = pixels[-1] if last > 1 else math.prod(pixels[1:])
            self.shapes[name] = (1, shape[last], math.prod(pixels) // width, width)
            order = [*range(1, last + 1), 0, *range(last + 1, len(shape))]  # the channels behind the axes in front of them
            self.views[name] = transpose_view(row_major(name, self.shapes[name], (shape[last], *pixels)), order)
        elif len(shape) == 3 and channels_last(self.model, name):
            b, length, channels = shape
            self.shapes[name] = (b, channels, length, 1)
            self.views[name] = View(name, tuple(whole_axes(self.shapes[name], axis) for axis in (N, P, C)))
        elif self.rows and len(shape) == 2 and shape[0] > 1 and channels_last(self.model, name):
            self.shapes[name], self.matrices = (1, shape[1], shape[0], 1), True
            self.views[name] = View(name, tuple(whole_axes(self.shapes[name], axis) for axis in (P, C)))
        elif len(shape) > 3 and channels_last(self.model, name) and not _is_reshaped(self.model, name):
            self.shapes[name] = (shape[0], shape[-1], math.prod(shape[1:-2]), shape[-2])
            self.views[name] = transpose_view(row_major(name, self.shapes[name], (shape[0], shape[-1], *shape[1:-1])), _last_axis(shape))
        elif (phases := strided_phases(self.model, name, shape)) > 1:
            self.shapes[name] = (shape[0], phases, shape[2] // phases, 1)
            self.views[name] = View(name, (whole_axes(self.shapes[name], N), (), whole_axes(self.shapes[name], P, C)))
        else:
            self.shapes[name] = graph_shape(shape)
            self.views[name] = row_major(name, self.shapes[name], shape)
        return Port(name, name, shape, self._order(name))

    def outputs(self) -> tuple[Port, ...]:
        names = {tensor.name for tensor in self.model.graph.input}
        for tensor in self.model.graph.output:
            if tensor.name in names:
                raise UnsupportedError(f"output {tensor.name!r} is an input of the model, or listed twice; nothing to run on the NPU")
            names.add(tensor.name)
        ports = tuple(self.hand_over(tensor) for tensor in self.model.graph.output)
        batches = {self.shapes[name][0] for name in (*(op.y for op in self.operators), *(port.tensor for port in ports))}
        if len(batches) > 1:  # an output that is an input is copied in the same program
            raise UnsupportedError(f"outputs of {' and '.join(map(str, sorted(batches)))} images; one number for all is supported")
        return ports

    def hand_over(self, tensor: ValueInfoProto) -> Port:
        """Port of a tensor for the host."""
        name = tensor.name
        if name not in self.views:
            raise UnsupportedError(f"output {name!r} does not depend on any input; nothing to run on the NPU")
        view = self.views[name]
        kind = tensor.type.tensor_type.elem_type
        quantisation = self.types.get(view.tensor)
        if kind not in (ON_NPU if quantisation is None else (helper.np_dtype_to_tensor_dtype(quantisation.dtype),)):
            raise UnsupportedError(f"output {name!r} is {kind_name(kind)}; {HOST_TYPES} is supported")
        if host_order(view, self.shapes[view.tensor]) is None:
            view = self.views[name] = self.in_order(view)
        if host_order(view, self.shapes[view.tensor]) is None:
            view = self.views[name] = for_host(self, view) or view
        return Port(view.tensor, name, view.shape, self._order(name))

    def _order(self, name: str) -> tuple[int, int, int, int]:
        view = self.views[name]
        order = host_order(view, self.shapes[view.tensor])
        if order is None:
            raise UnsupportedError(f"{name!r} of shape {list(view.shape)}: it has its channels in parts, the host takes whole axes")
        return order


def has_shape(tensor: ValueInfoProto) -> bool:
    """Whether a value is a tensor with known dimensions."""
    kind = tensor.type.tensor_type
    return tensor.type.HasField("tensor_type") and kind.HasField("shape") and all(d.dim_value > 0 for d in kind.shape.dim)


# operators that contract or normalise the last axis
_SEQUENCE = ("MatMul", "MatMulInteger", "Gemm", "LayerNormalization", "QLinearMatMul", "QGemm")
_IMAGE = (  # operators with channels on axis 1
    "Affine", "AveragePool", "BatchNormalization", "Conv", "ConvInteger", "Flatten", "GlobalAveragePool", "GlobalMaxPool",
    "GroupNormalization", "InstanceNormalization", "LRN", "MaxPool", "QLinearAveragePool", "QLinearConv", "QLinearGlobalAveragePool",
)  # fmt: skip


def channels_last(model: ModelProto, name: str) -> bool:
    """Whether the nearest operator with a fixed channel axis uses the last one: a sequence [b, s, d].

    Operators after the tensor count first; without one, as in a subgraph that ends in a sum, all connected operators.
    """
    constants = {tensor.name for tensor in model.graph.initializer}  # constants do not connect nodes
    for around in (False, True):
        pending, seen = [name], {name, "", *constants}
        while pending:
            current = pending.pop(0)
            for node in model.graph.node:
                if current not in node.input and not (around and current in node.output):
                    continue
                if node.op_type in _SEQUENCE or node.op_type in _IMAGE:
                    return node.op_type in _SEQUENCE
                neighbours = [neighbour for neighbour in (*(node.input if around else ()), *node.output) if neighbour not in seen]
                pending += neighbours
                seen.update(neighbours)
    return False


def _last_axis(shape: Sequence[int]) -> list[int]:
    """Permutation that brings axis 1 behind all others."""
    return [0, *range(2, len(shape)), 1]


def _is_reshaped(model: ModelProto, name: str) -> bool:
    """Whether a reader of a tensor takes its values in other axes, so that the last one is no axis of its product."""
    return any(name in node.input and node.op_type in ("Flatten", "Reshape") for node in model.graph.node)


def strided_phases(model: ModelProto, name: str, shape: tuple[int, ...]) -> int:
    """Common stride of the convolutions that read a signal of one channel, where it divides the samples; else 1.

    Samples a stride apart then form one channel, so that a first layer fills the lanes of a block instead of one lane of each
    (`handlers.conv` has matching weights).  The host permutes the samples, which is possible for one channel only.
    """
    if len(shape) != 3 or shape[1] != 1 or any(entry.name == name for entry in model.graph.output):
        return 1
    strides = set()
    for node in model.graph.node:
        for i, entry in enumerate(node.input):
            if entry == name:
                values = attributes(node) if node.op_type == "Conv" and i == 0 else {}
                plain = set(values.get("dilations", [1])) == {1} and values.get("auto_pad", "NOTSET") == "NOTSET"
                strides.add(int(values.get("strides", [1])[0]) if plain else 1)
    stride = strides.pop() if len(strides) == 1 else 1
    return stride if shape[2] % stride == 0 else 1


Handler = Callable[[Translator, NodeProto, Attributes], None]


def translate(
    model: ModelProto,
    handlers: Mapping[str, Handler],
    digest: str = "",
    budget: ByteBudget | None = None,
    beside: Mapping[str, Array] | None = None,
) -> Graph:
    """Graph of a model.  beside: external constants.  Raises UnsupportedError with the node, its operator and the reason.

    Rows of matrices are pixels where the whole model supports that, as in a multi-layer perceptron; else they are images, as before
    convolutions.  Where that is not supported either, no axis is that of images.
    """
    budget = ByteBudget.of(model) if budget is None else budget
    state = Translator(model, copy(budget), beside)
    try:
        return _translated(state, handlers, digest)
    except UnsupportedError as error:
        refused = error
    for reading in other_readings(state):
        try:
            return _translated(Translator(model, copy(budget), beside, *reading), handlers, digest)
        except UnsupportedError as error:
            refused = error if reading.images else refused
    raise refused


class FirstAxis(NamedTuple):
    """Meaning of the first axis of inputs; see `Translator`."""

    rows: bool = True
    images: bool = True


def other_readings(state: Translator) -> list[FirstAxis]:
    """Other readings of a model that was refused: with matrices as images, and without images."""
    several = any(state.shapes[port.name][0] > 1 for port in state.model.graph.input if port.name in state.shapes)
    return [FirstAxis(rows=False)] * state.matrices + [FirstAxis(images=False)] * several


def _translated(state: Translator, handlers: Mapping[str, Handler], digest: str) -> Graph:
    model, inputs = state.model, state.inputs()
    for node in model.graph.node:
        translate_node(state, node, handlers)
    name = model.graph.name or "model"
    outputs = state.outputs()
    read = read_tensors(state, outputs)
    operators = tuple(op for op in state.operators if op.y in read)
    shapes = {name: shape for name, shape in state.shapes.items() if name in read}
    tensors = {name: values for name, values in state.tensors.items() if name in read}
    types = {name: quantisation for name, quantisation in state.types.items() if name in read}
    graph = Graph(name, inputs, outputs, operators, shapes, digest, tensors, types)
    graph.verify()
    return graph


def read_tensors(state: Translator, outputs: Sequence[Port]) -> set[str]:
    """Tensors without arrangements that nothing reads: their readers read what was arranged."""
    unread = set(state.copies - {port.tensor for port in outputs})
    for op in reversed(state.operators):
        if op.y not in unread:
            unread.difference_update(op.inputs)
    return state.shapes.keys() - unread


def translate_node(state: Translator, node: NodeProto, handlers: Mapping[str, Handler]) -> None:
    """Translate a node: fold it where its inputs are constants, else call its handler.  Raises UnsupportedError.

    handlers: by operator, with `domain.` as prefix for other domains than ONNX's.
    """
    state.node = node.name or node.output[0]
    is_onnx = node.domain in ("", "ai.onnx")
    handler = handlers.get(node.op_type if is_onnx else f"{node.domain}.{node.op_type}")
    if not is_onnx and handler is None:
        raise state.refuse(node, f"operators of domain {node.domain!r} are not supported")
    values = attributes(node)
    if not is_onnx or not fold(state, node, values):
        if handler is None:
            raise state.refuse(node, _FOR_HOST.get(node.op_type, f"not supported; supported are {', '.join(sorted(handlers))}"))
        try:
            handler(state, node, values)
        except MemoryError:
            raise BadInputError(f"{label(node)}: {NO_ROOM}") from None
        state.check_views(node)


def fold(state: Translator, node: NodeProto, values: Attributes) -> bool:
    """Fold a node of constants; returns whether all its outputs are known now.  Small constants were folded at loading."""
    names = [name for name in node.output if name]
    if any(name not in state.constants for name in names):
        value = fold_node(node, values, state.constants, state.budget)
        if value is not None:
            state.constants[node.output[0]] = value
        else:
            state.constants |= evaluate_node(node, state.constants, state.known_shapes, state.model.opset_import, state.budget)
    return bool(names) and all(name in state.constants for name in names)
