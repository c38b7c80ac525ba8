"""Positions of scales and zero points among the inputs of operators, and the quantisation of tensors from the host."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from onnx import GraphProto, NodeProto

from compiler.frontend.onnx_io.attributes import label
from compiler.ir.quantised.parameters import Quantisation

MS = "com.microsoft"
UNARY = ("AveragePool", "GlobalAveragePool", "LeakyRelu", "Sigmoid", "Softmax")  # operators with one tensor; MS has QLinear of each
GROUP_DOMAIN = "tilefarm.integers"  # domain of group operators that onnxruntime lacks
# operators that only move values, and so keep the quantisation
MOVES = frozenset({"Flatten", "Gather", "Identity", "MaxPool", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze"})


class ScalePositions(NamedTuple):
    """Input positions.  read: integers, each followed by its scale and zero point.  result: scale of the result; None: the operator has
    none."""

    read: slice
    result: int | None


_OF_ONE, _TWO = ScalePositions(slice(0, 1), 3), ScalePositions(slice(0, 4, 3), 6)
SCALE_POSITIONS: Mapping[tuple[str, str], ScalePositions] = {
    ("", "DequantizeLinear"): ScalePositions(slice(0, 1), None),
    ("", "QuantizeLinear"): ScalePositions(slice(0), 1),
    ("", "QLinearConv"): _TWO,
    ("", "QLinearMatMul"): _TWO,
    (MS, "QGemm"): ScalePositions(slice(0, 4, 3), 7),
    (MS, "QLinearAdd"): _TWO,
    (MS, "QLinearMul"): _TWO,
    (MS, "QLinearConcat"): ScalePositions(slice(2, None, 3), 0),
    (GROUP_DOMAIN, "Affine"): _OF_ONE,
    (GROUP_DOMAIN, "Table"): _OF_ONE,
    **{(MS, f"QLinear{name}"): _OF_ONE for name in UNARY},
}

ZERO_POINT_POSITIONS: Mapping[tuple[str, str], Mapping[int, int]] = {
    ("", "ConvInteger"): {0: 2, 1: 3},
    ("", "MatMulInteger"): {0: 2, 1: 3},
}
"""Operators on integers minus a zero point: input position of integers -> input position of their zero point."""

_COLUMNS = 4  # first input with values per column of a product


def column_tensor_names(node: NodeProto) -> list[str]:
    """Inputs of a product of `compiler.frontend.handlers.dynamic_zero_points` with its offsets and scales per column; [] for others."""
    return list(node.input[_COLUMNS:]) if node.domain == GROUP_DOMAIN and ("", node.op_type) in ZERO_POINT_POSITIONS else []


def zero_point_position(node: NodeProto, index: int) -> int:
    """Position of the zero point of an input."""
    return ZERO_POINT_POSITIONS["", node.op_type][index]


def quantisation_of(name: str, dtype: Any, graph: GraphProto, constants: Mapping[str, NDArray[Any]]) -> Quantisation | None:
    """Quantisation of a tensor, from the constants of a producer or reader; None without any.

    A zero point without a scale is used only where no scale is found.
    Raises BadInputError for an invalid scale or zero point.
    """
    pending, seen, shift_only = [name], {name}, None
    while pending:
        current = pending.pop(0)
        for node in graph.node:
            domain = "" if node.domain == "ai.onnx" else node.domain
            scaled = SCALE_POSITIONS.get((domain, node.op_type))
            if scaled is not None:
                for scale_index in _places(node, scaled, current):
                    quantisation = _said(node, scale_index, dtype, constants)
                    if quantisation is not None:
                        return quantisation
            elif (domain, node.op_type) in ZERO_POINT_POSITIONS:
                for index, scale_index in ZERO_POINT_POSITIONS[domain, node.op_type].items():
                    zero = [*node.input, "", ""][scale_index]
                    if shift_only is None and node.input[index] == current and zero in constants and constants[zero].size == 1:
                        shift_only = Quantisation.of(np.float32(1), constants[zero].reshape(()), dtype, where=label(node))
            elif not domain and node.op_type in MOVES and node.output and current in (node.input[0], node.output[0]):
                pending += [neighbour for neighbour in (node.input[0], node.output[0]) if neighbour not in seen]
                seen |= {node.input[0], node.output[0]}
    return shift_only


def _places(node: NodeProto, scaled: ScalePositions, name: str) -> list[int]:
    """Input positions of the tensor's scale at a node."""
    indices = [i + 1 for i in range(len(node.input))[scaled.read] if node.input[i] == name]
    return indices + ([scaled.result] if scaled.result is not None and name in node.output else [])


def _said(node: NodeProto, scale_index: int, dtype: Any, constants: Mapping[str, NDArray[Any]]) -> Quantisation | None:
    scale, zero = ([*node.input, "", ""][i] for i in (scale_index, scale_index + 1))
    if scale not in constants or (zero and zero not in constants):
        return None
    zero_point = constants[zero] if zero else np.zeros((), dtype)
    return Quantisation.of(constants[scale], zero_point, dtype, where=label(node)) if constants[scale].size == 1 else None
