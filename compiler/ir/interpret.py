"""Reference evaluator of a Graph in numpy, on logical (n, c, h, w) tensors of float32 or integers.

Plain, not fast; tests compare every rewrite with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compiler.ir.graph import Graph


def evaluate(graph: Graph, feeds: Mapping[str, NDArray[Any]], keep: bool = False) -> dict[str, NDArray[Any]]:
    """Outputs by ONNX name, in ONNX's shapes.  feeds: inputs by ONNX name, in ONNX's shapes.  keep: return all tensors, name -> (n, c, h,
    w)."""
    values: dict[str, NDArray[Any]] = {}
    for port in graph.inputs:
        dtype = graph.types[port.tensor].dtype if port.tensor in graph.types else np.float32
        values[port.tensor] = port.from_onnx(np.asarray(feeds[port.onnx_name], dtype), graph.shapes[port.tensor])
    for name, constant in graph.constants.items():
        values[name] = np.broadcast_to(constant, graph.shapes[name])
    for op in graph.operators:
        values[op.y] = op.apply([values[name] for name in op.inputs])
    if keep:
        return values
    return {port.onnx_name: port.to_onnx(values[port.tensor]) for port in graph.outputs}
