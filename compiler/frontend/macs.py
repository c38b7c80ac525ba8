"""Multiply-accumulates of ONNX nodes: of every Conv, Gemm and MatMul, without padding or bias; nothing else counts."""

from __future__ import annotations

import math
from collections.abc import Mapping

from onnx import ModelProto, NodeProto

from compiler.frontend.settle import known_shapes

Shapes = Mapping[str, tuple[int, ...]]


def node_macs(node: NodeProto, shapes: Shapes) -> int:
    """0 for a node that is no product, or one whose shapes are not known."""
    if node.op_type not in ("Conv", "Gemm", "MatMul") or any(name not in shapes for name in (node.output[0], *node.input[:2])):
        return 0
    outputs, a, b = math.prod(shapes[node.output[0]]), shapes[node.input[0]], shapes[node.input[1]]
    if node.op_type == "Conv":
        return outputs * math.prod(b[1:])
    transposed = node.op_type == "Gemm" and any(item.name == "transA" and item.i for item in node.attribute)
    return outputs * a[0 if transposed else -1]


def model_macs(model: ModelProto) -> int:
    """Of a model whose shapes are inferred."""
    shapes = known_shapes(model)
    return sum(node_macs(node, shapes) for node in model.graph.node)
