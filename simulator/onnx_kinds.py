"""Float types of tensors: those that pass between host and NPU, and conversion of the others to float32.

The NPU computes in its own data type, whatever types the model's tensors have.  So float16, float32 and double stay in the file, and values
are converted at the border.  onnxruntime has almost no kernels for bfloat16, and numpy has no such type, so such a model is widened to
float32, without loss.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

import numpy as np
import onnx
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, numpy_helper

FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE, TensorProto.BFLOAT16)
ON_NPU = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE)  # types of tensors that pass between host and NPU
INTEGERS_ON_NPU = (TensorProto.INT8, TensorProto.UINT8)  # the same for integers, if a scale gives their meaning
CONVERTED = "tilefarm.converted"  # property of a model whose tensors had another type
_TYPED = frozenset({"to", "dtype", "output_dtype", "output_datatype"})  # attributes that name a type


def kind_name(elem_type: int) -> str:
    """Name of an element type in messages; its number if onnx has no such type."""
    try:
        return str(TensorProto.DataType.Name(elem_type)).lower()
    except ValueError:
        return f"of data type {elem_type}"


def widen_model(model: ModelProto, kinds: Collection[int]) -> bool:
    """Convert tensors of these kinds to float32, in place; returns whether there were any."""
    was_changed = _widen_graph(model.graph, kinds)
    for function in model.functions:
        was_changed |= _widen_nodes(function.node, kinds)
    return was_changed


def widen_tensor(tensor: TensorProto, kinds: Collection[int]) -> TensorProto:
    """A tensor as float32 where it is of one of the kinds; else the tensor itself."""
    if tensor.data_type not in kinds:
        return tensor
    return numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float32), tensor.name)


def _widen_graph(graph: GraphProto, kinds: Collection[int]) -> bool:
    was_changed = _widen_nodes(graph.node, kinds)
    for item in (*graph.input, *graph.output, *graph.value_info):
        if item.type.tensor_type.elem_type in kinds:
            item.type.tensor_type.elem_type = TensorProto.FLOAT
            was_changed = True
    for tensor in graph.initializer:
        if tensor.data_type in kinds:
            tensor.CopyFrom(widen_tensor(tensor, kinds))
            was_changed = True
    return was_changed


def _widen_nodes(nodes: Iterable[NodeProto], kinds: Collection[int]) -> bool:
    was_changed = False
    for node in nodes:
        for item in node.attribute:
            if item.name in _TYPED and item.type == onnx.AttributeProto.INT and item.i in kinds:
                item.i = TensorProto.FLOAT
                was_changed = True
            if item.HasField("t") and item.t.data_type in kinds:
                item.t.CopyFrom(widen_tensor(item.t, kinds))
                was_changed = True
            if item.HasField("g"):
                was_changed |= _widen_graph(item.g, kinds)
            for graph in item.graphs:
                was_changed |= _widen_graph(graph, kinds)
    return was_changed
