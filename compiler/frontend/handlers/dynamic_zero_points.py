"""Products of integers with a zero point computed at run time, as by DynamicQuantizeLinear.

The sum of (x - z) * w is the sum of x * w, minus z times the sum of w.  The latter is one offset per column of weights, which the host
computes, as it computes the scales of the sums.  FIXPIPE adds and multiplies these tensors (`QuantisedConv.of_columns`), exactly as with
constants.  A convolution pads with z, so the host pads.

`split_products` rewrites ONNX to ONNX: a product of x itself, an Add of the column offsets, then as before a Cast and a Mul by scales, one
per column.  `column_groups` recognises these nodes as one operator.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from copy import deepcopy
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from compiler.frontend.handlers.window import resolve_padding
from compiler.frontend.onnx_io.attributes import attributes, known_shapes
from compiler.frontend.onnx_io.scales import GROUP_DOMAIN, ZERO_POINT_POSITIONS, column_tensor_names
from simulator.onnx_names import fresh_name, refill

SUMS_SUFFIX = ".sums"  # suffix of a product's result before the offsets are added
Shapes = Mapping[str, tuple[int, ...]]


class ColumnGroup(NamedTuple):
    """Node that replaces several nodes of a model, with their numbers."""

    node: NodeProto
    members: frozenset[int]


class _Links:
    """Producers and readers of the tensors of a model."""

    def __init__(self, model: ModelProto) -> None:
        self.nodes = list(model.graph.node)
        self.inputs = {item.name for item in model.graph.input}
        self.outputs = {item.name for item in model.graph.output}
        self.constants = {item.name: item for item in model.graph.initializer}
        self.makes = {name: i for i, node in enumerate(self.nodes) for name in node.output if name}
        self.reads: dict[str, list[int]] = {}
        for i, node in enumerate(self.nodes):
            for name in node.input:
                self.reads.setdefault(name, []).append(i)

    def after(self, name: str, op_type: str) -> int | None:
        """Number of the only reader of a tensor, if it is of that kind; else None."""
        readers = self.reads.get(name, [])
        if name in self.outputs or len(readers) != 1 or self.nodes[readers[0]].op_type != op_type:
            return None
        return readers[0] if not _domain(self.nodes[readers[0]]) else None

    def scaled(self, sums: str) -> tuple[int, int, str] | None:
        """(Cast, Mul, scales) of the nodes behind sums, if scales are computed; None otherwise."""
        cast = self.after(sums, "Cast")
        if cast is None or attributes(self.nodes[cast]).get("to") != TensorProto.FLOAT:
            return None
        floats = self.nodes[cast].output[0]
        mul = self.after(floats, "Mul")
        if mul is None:
            return None
        scales = [name for name in self.nodes[mul].input if name != floats]
        return (cast, mul, scales[0]) if len(scales) == 1 and scales[0] not in self.constants else None


def _domain(node: NodeProto) -> str:
    return "" if node.domain == "ai.onnx" else node.domain


def column_groups(model: ModelProto) -> dict[int, ColumnGroup]:
    """Groups of products, by the number of the last node of each group."""
    if all(node.op_type not in ("ConvInteger", "MatMulInteger") for node in model.graph.node):
        return {}
    links, groups = _Links(model), {}
    for i, node in enumerate(links.nodes):
        inputs = [*node.input, "", ""][:4]
        if (_domain(node), node.op_type) not in ZERO_POINT_POSITIONS or inputs[2]:
            continue
        add = links.after(node.output[0], "Add")
        columns = "" if add is None else next((name for name in links.nodes[add].input if name != node.output[0]), "")
        if add is None or not _of_zero(links, columns):
            continue
        result, members, column_inputs = links.nodes[add].output[0], {i, add}, [columns]
        if (scaling := links.scaled(result)) is not None:
            cast, mul, scales = scaling
            result, members, column_inputs = links.nodes[mul].output[0], members | {cast, mul}, [columns, scales]
        group_node = helper.make_node(node.op_type, [*inputs, *column_inputs], [result], name=node.name, domain=GROUP_DOMAIN)
        group_node.attribute.extend(node.attribute)
        groups[max(members)] = ColumnGroup(group_node, frozenset(members))
    return groups


def _of_zero(links: _Links, columns: str) -> bool:
    """Whether a tensor is a product of constants with a single number, or an input of this part of the model."""
    if columns in links.inputs:
        return True
    maker = links.nodes[links.makes[columns]] if columns in links.makes else None
    return maker is not None and maker.op_type == "Mul" and any(name in links.constants for name in maker.input)


def column_producers(model: ModelProto) -> set[int]:
    """Host nodes, used only for column offsets and scales, of a model with a node per group.

    Each produces a single value, or an input of a group.
    """
    shapes, links = known_shapes(model.graph), _Links(model)
    columns = {name for node in links.nodes for name in column_tensor_names(node)}
    for_host: set[int] = set()
    for i in reversed(range(len(links.nodes)) if columns else ()):
        names = [name for name in links.nodes[i].output if name]
        small = all(name in columns or math.prod(shapes.get(name, (2,))) == 1 for name in names)
        if small and names and links.outputs.isdisjoint(names) and all(_only_for(links, name, columns, for_host) for name in names):
            for_host.add(i)
    return for_host


def _only_for(links: _Links, name: str, columns: Collection[str], for_host: Collection[int]) -> bool:
    readers = links.reads.get(name, [])
    return bool(readers) and (name in columns or all(i in for_host for i in readers))


def split_products(model: ModelProto, excluded: Collection[str] = ()) -> ModelProto:
    """Copy of the model with products with a run-time zero point split into steps; the model itself if there are none.

    excluded: results of products that stay whole.  Products of two computed operands, and products with a zero point per row, stay whole
    too.
    """
    shapes, constants = known_shapes(model.graph), {item.name for item in model.graph.initializer}
    products = {i for i, node in enumerate(model.graph.node) if _is_one(node, shapes, constants) and node.output[0] not in excluded}
    return _Steps(model, shapes).of(products) if products else model


def host_products(model: ModelProto, pieces: Collection[ModelProto]) -> set[str]:
    """Results of split products that are in none of the subgraphs."""
    outputs = {name for piece in pieces for node in piece.graph.node for name in node.output}
    names = {name for node in model.graph.node for name in node.output}
    return {
        name.removesuffix(SUMS_SUFFIX) for name in names - outputs if name.endswith(SUMS_SUFFIX) and name.removesuffix(SUMS_SUFFIX) in names
    }


def _is_one(node: NodeProto, shapes: Shapes, constants: Collection[str]) -> bool:
    """Whether a node is a product with constant weights and a single computed zero point."""
    if (_domain(node), node.op_type) not in ZERO_POINT_POSITIONS:
        return False
    x, w, x_zero, w_zero = (*node.input, "", "")[:4]
    if x in constants or w not in constants or x_zero in (*constants, "") or (w_zero and w_zero not in constants):
        return False
    ranks = (2,) if node.op_type == "MatMulInteger" else (3, 4)
    has_shapes = all(name in shapes for name in (x, x_zero, node.output[0]))
    return has_shapes and math.prod(shapes[x_zero]) == 1 and len(shapes[x_zero]) < 2 and len(shapes[w]) in ranks


class _Steps:
    """Copy of a model, node by node, with products in steps."""

    def __init__(self, model: ModelProto, shapes: Shapes) -> None:
        self.model = deepcopy(model)
        self.links, self.shapes = _Links(model), dict(shapes)
        self.types = {item.name: item.type.tensor_type.elem_type for item in (*model.graph.value_info, *model.graph.input)}
        self.taken = {*self.shapes, *(name for node in self.links.nodes for name in (*node.input, *node.output))}
        self.results: dict[tuple[str, ...], str] = {}  # (operator, inputs) -> its result

    def of(self, products: Collection[int]) -> ModelProto:
        graph, shape_of_scale = self.model.graph, dict[int, tuple[str, tuple[int, ...]]]()
        del graph.node[:]
        for i, node in enumerate(self.links.nodes):
            if i in products:
                columns = self._product(node)
                if (scaling := self.links.scaled(node.output[0])) is not None:
                    shape_of_scale[scaling[1]] = scaling[2], self.shapes[columns]
                continue
            copy = deepcopy(node)
            if i in shape_of_scale:
                scale, shape = shape_of_scale[i]
                copy.input[:] = [self._scales_per_column(scale, shape, node.output[0]) if name == scale else name for name in copy.input]
            graph.node.append(copy)
        return self.model

    def _product(self, node: NodeProto) -> str:
        """Append a product as two steps; returns the offsets that the second step adds."""
        y, (x, w, zero, *of_weights) = node.output[0], node.input
        product = deepcopy(node)
        if node.op_type == "ConvInteger":
            x = self._pad_input(product, x, zero)
        columns = self._constant(f"{y}.columns", self._columns(node, w, *of_weights))
        zero_value = self._add_node("Cast", [zero], f"{zero}.int32", TensorProto.INT32, self.shapes[zero], to=TensorProto.INT32)
        if self.shapes[zero]:
            zero_value = self._add_node("Squeeze", [zero_value], f"{zero_value}.one", TensorProto.INT32, ())
        offsets = self._add_node("Mul", [zero_value, columns], f"{y}.added", TensorProto.INT32, self.shapes[columns])
        product.input[:] = [x, w, *(["", *of_weights] if any(of_weights) else [])]
        product.output[:] = [self._new(f"{y}{SUMS_SUFFIX}", TensorProto.INT32, self.shapes[y])]
        self.model.graph.node.append(product)
        self.model.graph.node.append(helper.make_node("Add", [product.output[0], offsets], [y], name=f"{y}.shifted"))
        return offsets

    def _columns(self, node: NodeProto, weight_name: str, zero_name: str = "") -> NDArray[np.int32]:
        """Offsets for a zero point of 1, shaped to broadcast over the result."""
        weights = numpy_helper.to_array(self.links.constants[weight_name]).astype(np.int64)
        shift = numpy_helper.to_array(self.links.constants[zero_name]).astype(np.int64) if zero_name else np.zeros((), np.int64)
        if node.op_type == "MatMulInteger":
            return -(weights - shift).sum(axis=0).astype(np.int32)
        trailing_axes = (1,) * (weights.ndim - 1)
        sums = (weights - shift.reshape(-1, *trailing_axes)).sum(axis=tuple(range(1, weights.ndim)))
        return -sums.reshape(1, -1, *trailing_axes[1:]).astype(np.int32)

    def _scales_per_column(self, scale: str, shape: tuple[int, ...], of: str) -> str:
        """Scales per column; a single scale is expanded."""
        if math.prod(self.shapes.get(scale, (2,))) != 1:
            return scale
        sizes = self._constant(f"{of}.shape", np.array(shape, np.int64))
        return self._add_node("Expand", [scale, sizes], f"{of}.scales", TensorProto.FLOAT, shape)

    def _pad_input(self, node: NodeProto, name: str, zero: str) -> str:
        """Padded input of a convolution, whose own padding is removed in place."""
        values, shape = attributes(node), self.shapes[name]
        axes = len(shape) - 2
        strides, dilations = (_pair(values.get(key, ())) for key in ("strides", "dilations"))
        pads = resolve_padding(values, _pair(shape[2:]), _pair(self.shapes[node.input[1]][2:]), strides, dilations)
        refill(node.attribute, (item for item in node.attribute if item.name not in ("auto_pad", "pads")))
        if not any(pads):
            return name
        before, after = pads[:axes], pads[2 : 2 + axes]
        larger = (*shape[:2], *(sum(sizes) for sizes in zip(before, shape[2:], after, strict=True)))
        fill = self._add_node("Squeeze", [zero], f"{zero}.one", self.types.get(zero, 0), ()) if self.shapes[zero] else zero
        key = ("padded", name, fill, *map(str, pads))
        if key not in self.results:
            ends = self._constant(f"{name}.pads", np.array([0, 0, *before, 0, 0, *after], np.int64))
            self.results[key] = self._add_node("Pad", [name, ends, fill], f"{name}.padded", self.types.get(name, 0), larger)
        return self.results[key]

    def _add_node(self, op_type: str, inputs: list[str], name: str, kind: int, shape: tuple[int, ...], **values: int) -> str:
        """Result of a node, created once."""
        key = (op_type, *inputs)
        if key not in self.results:
            self.results[key] = self._new(name, kind, shape)
            self.model.graph.node.append(helper.make_node(op_type, inputs, [self.results[key]], name=self.results[key], **values))
        return self.results[key]

    def _constant(self, name: str, value: NDArray[np.generic]) -> str:
        name = self._fresh(name)
        self.shapes[name] = value.shape
        self.model.graph.initializer.append(numpy_helper.from_array(value, name))
        return name

    def _new(self, name: str, kind: int, shape: tuple[int, ...]) -> str:
        name = self._fresh(name)
        self.shapes[name] = shape
        self.model.graph.value_info.append(helper.make_tensor_value_info(name, kind, shape))
        return name

    def _fresh(self, name: str) -> str:
        name = fresh_name(name, self.taken)
        self.taken.add(name)
        return name


def _pair(numbers: Sequence[int]) -> tuple[int, int]:
    """Numbers of the two axes of an image; 1 for missing ones."""
    first, second = [*numbers, 1, 1][:2]
    return int(first), int(second)
