"""A graph as it is lowered and rewritten: an operator a line.  Weights show as a shape and a fingerprint."""

from __future__ import annotations

import hashlib
from typing import Any

from numpy.typing import NDArray

from compiler.ir.graph import Graph, Port
from compiler.ir.operators.base import Shape, shape_text


def graph_lines(graph: Graph, fingerprints: bool = True) -> list[str]:
    """`operator result: shape [type] = kind(operands) attributes`; the operator's name is left out if it equals its result's.

    Shapes are n x c x h x w; only integers have a type.  fingerprints: add six hex digits over the values of each constant; off if the
    values differ between versions of libraries.
    """

    def spell(values: NDArray[Any]) -> str:
        return _values(values, fingerprints)

    lines = [f"graph {graph.name}"]
    lines += [f"  input {_port(port, graph.shapes[port.tensor])}" for port in graph.inputs]
    lines += [f"  constant {name}: {_values(values, fingerprints)}" for name, values in graph.constants.items()]
    for op in graph.operators:
        name = op.y if op.name == op.y else f"{op.name} {op.y}"
        head = f"{type(op).__name__.lower()}({', '.join(op.inputs)})"
        kind = f" {graph.types[op.y]}" if op.y in graph.types else ""
        lines.append(f"  {name}: {shape_text(graph.shapes[op.y])}{kind} = {head} {' '.join(op.attributes(spell))}".rstrip())
    return lines + [f"  output {_port(port, graph.shapes[port.tensor])}" for port in graph.outputs]


def _port(port: Port, shape: Shape) -> str:
    same = tuple(port.onnx_shape) == shape and port.onnx_name == port.tensor
    named = "" if same else f" as {port.onnx_name} [{', '.join(map(str, port.onnx_shape))}]"
    return f"{port.tensor}: {shape_text(shape)}{named}"


def _values(array: NDArray[Any], fingerprints: bool) -> str:
    if not fingerprints:
        return shape_text(array.shape)
    return f"{shape_text(array.shape)}#{hashlib.sha256(array.tobytes()).hexdigest()[:6]}"
