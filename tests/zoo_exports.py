"""Sequences of nodes of networks that PyTorch exported (`scripts/export_zoo.py`)."""

from __future__ import annotations

from pathlib import Path

import onnx

from compiler.frontend.onnx_io.load import prepare

_CONSTANTS = "Constant", "ConstantOfShape", "Identity"
FOLDER = Path(__file__).parent / "golden" / "exports"


def node_lines(model: onnx.ModelProto) -> list[str]:
    """Operator and shape of the first result of every node of a model whose constants are folded."""
    graph = prepare(model).graph
    sizes = {
        tensor.name: "x".join(str(d.dim_value) for d in tensor.type.tensor_type.shape.dim) for tensor in (*graph.value_info, *graph.output)
    }
    return [f"{node.op_type} {sizes[node.output[0]]}" for node in graph.node if node.op_type not in _CONSTANTS]
