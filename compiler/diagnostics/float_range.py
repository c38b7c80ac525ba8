"""Weights outside the range of the data type: infinite after packing, or all 0.

The packed weights are tested, after batch normalisations and scales have been folded in.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto

from compiler.frontend.onnx_io.large_constants import LargeConstant
from compiler.frontend.partition.partition import Partition
from compiler.ir.graph import Graph
from compiler.ir.operators import Conv, LayerNorm, Vector
from simulator.npu.float_range import OutOfRange, holds
from simulator.npu.parts import DataType

MAX_LINES = 12  # lines of a report


def find_weights_out_of_range(part: Partition, graphs: Iterable[Graph], dtype: DataType) -> tuple[OutOfRange, ...]:
    """Weights out of range, in the graphs' order, by their names in the model, else by the operator."""
    violations: list[OutOfRange] = []
    weights_of_node: dict[str, list[LargeConstant]] = {}
    for graph in graphs:
        for operator, name, values in _weights(graph):
            largest = _largest(values)
            if holds(dtype, largest):
                continue
            weights_of_node = weights_of_node or _given(part)
            names = [constant.tensor.name for constant in weights_of_node.get(operator, ()) if not holds(dtype, _largest(constant.array()))]
            violations.append(OutOfRange(names[0] if names else name, largest))
    return tuple(violations)


def out_of_range_lines(weights: Sequence[OutOfRange], dtype: DataType) -> list[str]:
    """Lines of a report: one per weight for the first `MAX_LINES`, one for the rest."""
    lines = [f"weights {weight.side} {dtype.name}: {weight.text(dtype)}" for weight in weights[:MAX_LINES]]
    return lines + ([f"weights that {dtype.name} does not hold: {len(weights) - MAX_LINES} more"] if len(weights) > MAX_LINES else [])


def _weights(graph: Graph) -> Iterator[tuple[str, str, NDArray[np.float32]]]:
    """(operator, name, values) of constants packed in the data type; biases are not."""
    for op in graph.operators:
        if isinstance(op, Conv):
            yield op.name, f"{op.name}/weights", op.weights
        elif isinstance(op, LayerNorm):
            yield op.name, f"{op.name}/scale", op.scale
            yield op.name, f"{op.name}/shift", op.shift
        elif isinstance(op, Vector):
            for i, step in enumerate(op.steps):
                if step.scale is not None and step.shift is not None:
                    yield op.name, f"{op.name}/scale{i}", step.scale
                    yield op.name, f"{op.name}/shift{i}", step.shift
    for name, values in graph.constants.items():
        yield name, name, values


def _given(part: Partition) -> dict[str, list[LargeConstant]]:
    """Name of a node, or of its first output -> its float weights."""
    graph = part.model.graph
    tensors = {
        tensor.name: LargeConstant(tensor, part.data.get(tensor.name))
        for tensor in graph.initializer
        if tensor.data_type == TensorProto.FLOAT
    }
    return {node.name or node.output[0]: [tensors[name] for name in node.input if name in tensors] for node in graph.node}


def _largest(values: NDArray[np.float32]) -> float:
    return max(float(values.max(initial=0.0)), -float(values.min(initial=0.0)))
