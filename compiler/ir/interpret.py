"""What a Graph means: a numpy evaluator on logical (n, c, h, w) float32 tensors.  Plain, not fast; every rewrite is held to it."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from compiler.ir.graph import Graph
from compiler.ir.operators import Floats


def evaluate(graph: Graph, feeds: Mapping[str, Floats], keep: bool = False) -> dict[str, Floats]:
    """ONNX input name -> array in, ONNX output name -> array out (both in ONNX's shapes); with `keep`, tensor name -> (n, c, h, w)."""
    values: dict[str, Floats] = {}
    for port in graph.inputs:
        values[port.tensor] = port.from_onnx(np.asarray(feeds[port.onnx_name], np.float32), graph.shapes[port.tensor])
    for name, constant in graph.constants.items():
        values[name] = np.broadcast_to(constant, graph.shapes[name])
    for op in graph.operators:
        values[op.y] = op.apply([values[name] for name in op.inputs])
    if keep:
        return values
    return {port.onnx_name: port.to_onnx(values[port.tensor]) for port in graph.outputs}
