"""QDQ propagation: conversions move next to computing operators, across views, so that groups can form.

Exporters put Unsqueeze, Reshape and Transpose between a DequantizeLinear and an operator, or between an operator and its QuantizeLinear.
A view of dequantised integers equals the dequantised view, and onnxruntime moves views of computed tensors likewise.  Weights with scales
that integer products do not support become floats: onnxruntime would apply such scales to output channels.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from copy import deepcopy

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from compiler.frontend.handlers.qdq_fusion import NO_CONSTANTS, PRODUCTS, GroupFinder
from compiler.frontend.onnx_io.attributes import attributes, known_shapes
from compiler.frontend.onnx_io.fold import VIEWS
from compiler.frontend.onnx_io.large_constants import LargeConstant
from compiler.ir.quantised.linear import dequantize
from compiler.ir.quantised.parameters import Quantisation
from simulator.onnx_names import fresh_name, names_read, refill

_MOVED = (TensorProto.INT8, TensorProto.UINT8, TensorProto.INT32)  # types for which onnxruntime has kernels of all views


def propagate_conversions(model: ModelProto, beside: Mapping[str, LargeConstant] = NO_CONSTANTS) -> ModelProto:
    """Copy of the model with conversions moved; the model itself without a change.  beside: external constants.

    Raises BadInputError for scales of a convolution's weights along another axis than the output channels.
    """
    copy = deepcopy(model)
    border, graph = _Border(copy, beside), copy.graph
    border.quantise_first()
    border.dequantise_last()
    border.dequantise_weights()
    if not border.changed:
        return model
    read = names_read(border.nodes) | border.outputs
    nodes = [node for node in border.nodes if node.op_type != "DequantizeLinear" or node.output[0] in read]
    read = names_read(nodes) | border.outputs
    refill(graph.initializer, (tensor for tensor in graph.initializer if tensor.name in read))
    refill(graph.node, nodes)
    return copy


class _Border(GroupFinder):
    def __init__(self, model: ModelProto, beside: Mapping[str, LargeConstant]) -> None:
        super().__init__(model, beside)
        self.graph, self.shapes, self.changed = model.graph, known_shapes(model.graph), False
        self.tensors = {item.name: item for item in model.graph.initializer if item.name not in beside}

    def quantise_first(self) -> None:
        """Move QuantizeLinear before views without other readers."""
        place = {id(node): i for i, node in enumerate(self.nodes)}
        for last in list(self.nodes):
            if last.op_type != "QuantizeLinear" or not self.plain(last) or self.several(last) or self.type_of(last) not in _MOVED:
                continue
            while self._is_view(view := self.producer.get(last.input[0], last)) and self.quantised(view) is not None:
                if self.dequantised(view.input[0]) is not None:  # the view already moves integers
                    break
                view.output[0], last.output[0] = last.output[0], self._integers(view.input[0], self.type_of(last))
                last.input[0], view.input[0] = view.input[0], last.output[0]
                i, j = place[id(view)], place[id(last)]
                self.nodes[i], self.nodes[j], place[id(last)], place[id(view)] = last, view, i, j
                self.link()

    def dequantise_last(self) -> None:
        """Move DequantizeLinear after views with other readers than QuantizeLinear."""
        nodes, self.nodes = self.nodes, []
        for node in nodes:
            computes = any(reader.op_type != "QuantizeLinear" for reader in self.readers.get(node.output[0], ()))
            source = self.dequantised(node.input[0]) if computes and self._is_view(node) else None
            self.nodes += [node] if source is None else self._behind(node, source)
            self.producer[self.nodes[-1].output[0]] = self.nodes[-1]

    def _behind(self, view: NodeProto, source: NodeProto) -> list[NodeProto]:
        """Nodes of a view with the DequantizeLinear after it; for constants only the latter.  Only the view where that is impossible."""
        before, after, values = self.shapes[view.input[0]], self.shapes[view.output[0]], attributes(source)
        perm = list(attributes(view).get("perm", range(len(before))[::-1])) if view.op_type == "Transpose" else None
        kind = self.type_of(source)
        if self.several(source):
            axis = int(values.get("axis", 1)) % len(before)
            lead = before[: axis + 1]
            alike = [i for i, size in enumerate(after) if size == lead[-1] and math.prod(after[:i]) == math.prod(lead[:-1])]
            values["axis"] = perm.index(axis) if perm is not None else alike[0] if alike else None
        if kind not in _MOVED or values.get("axis", 0) is None:
            return [view]
        name = self._integers(view.output[0], kind)
        last = helper.make_node("DequantizeLinear", [name, *source.input[1:]], view.output, **values)
        if source.input[0] not in self.tensors:
            view.input[0], view.output[0] = source.input[0], name
            return [view, last]
        array = numpy_helper.to_array(self.tensors[source.input[0]])
        array = array.reshape(after) if perm is None else np.ascontiguousarray(array.transpose(perm))
        self._add(numpy_helper.from_array(array, name))
        return [last]

    def dequantise_weights(self) -> None:
        """Replace weights with unsupported scales by floats."""
        self.link()
        for node in [node for node in self.nodes if node.op_type in PRODUCTS and self.dequantised(node.input[0]) is not None]:
            source = None if node.op_type == "Conv" and self.quantised(node) is None else self.dequantised(node.input[1])
            if source is None or source.input[0] not in self.tensors or self.has_channels(node, source):
                continue
            weights, scale = numpy_helper.to_array(self.tensors[source.input[0]]), self.scale(source)
            zero = self.constants[source.input[2]] if any(source.input[2:]) else np.zeros(1, weights.dtype)
            axis = int(attributes(source).get("axis", 1)) if scale.size > 1 else None
            q = Quantisation(scale.reshape(-1).astype(np.float32), zero.reshape(-1), axis)
            self._add(numpy_helper.from_array(dequantize(weights, q).astype(scale.dtype), source.output[0]))
            self.nodes.remove(source)
            del self.producer[source.output[0]]

    def _is_view(self, node: NodeProto) -> bool:
        """Whether a node is a view with known input and output shapes."""
        return node.op_type in VIEWS and not node.domain and {node.input[0], node.output[0]} <= self.shapes.keys()

    def _integers(self, floats: str, kind: int) -> str:
        """New tensor of that type, with the shape of a float tensor."""
        name = fresh_name(f"{floats}.integers", self.shapes, self.producer)
        self.changed, self.shapes[name], self.computed[name] = True, self.shapes[floats], kind
        self.graph.value_info.append(helper.make_tensor_value_info(name, kind, self.shapes[floats]))
        return name

    def _add(self, tensor: TensorProto) -> None:
        self.changed, self.tensors[tensor.name], self.ranks[tensor.name] = True, tensor, len(tensor.dims)
        self.graph.initializer.append(tensor)
