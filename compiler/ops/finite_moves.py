"""Finite values in front of products that only move values: they multiply all other values by 0, and 0 x inf is NaN.

Such products exchange channels and pixels, repeat channels, or bring them into another order.  Infinities of a mask become the largest
finite numbers, which weigh as little in a softmax.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from compiler.ir.graph import Graph
from compiler.ir.operators import Conv, Floats, MatMul, Operator, Step, Vector
from simulator.npu.parts import DataType

_UNBOUNDED = frozenset({"div", "exp", "ln", "rdiv", "reciprocal"})  # steps with infinite results of finite values


def with_finite_moves(graph: Graph, dtype: DataType) -> Graph:
    """Graph in which products that only move values read finite values of `dtype`."""
    producers, operators = graph.producers(), list[Operator]()
    largest = float(np.finfo(np.float16 if dtype is DataType.float16 else np.float32).max)
    shapes, limited = dict(graph.shapes), dict[str, str]()
    for op in graph.operators:
        read = _moved(op, graph)
        if read and read not in limited and _may_be_infinite(read, graph, producers, isinstance(op, MatMul)):
            name = limited[read] = f"{read}.finite"
            shapes[name] = shapes[read]
            operators.append(Vector(name, (read,), name, (Step("maxs", -largest), Step("mins", largest))))
        if read in limited:
            op = op.with_inputs([limited.get(name, name) if name == read else name for name in op.inputs])
        operators.append(op)
    return replace(graph, operators=tuple(operators), shapes=shapes) if limited else graph


def _moved(op: Operator, graph: Graph) -> str:
    """Tensor of floats whose values an operator moves by a product; '' for all others."""
    if isinstance(op, Conv):
        pointwise = op.weights.shape[2:] == (1, 1) and op.groups == 1 and op.x not in graph.constants
        # the first channel shows it for all but selections, whose weights alone are read as a whole
        return op.x if pointwise and _selects(op.weights[:1]) and _selects(op.weights) else ""
    matrix_values = graph.constants.get(op.a) if isinstance(op, MatMul) and op.transposed and op.heads == 1 else None
    if not isinstance(op, MatMul) or matrix_values is None:
        return ""
    matrix = matrix_values.reshape(matrix_values.shape[1], -1)
    return op.b if matrix.shape[0] == matrix.shape[1] and np.array_equal(matrix, np.eye(len(matrix), dtype=matrix.dtype)) else ""


def _selects(weights: Floats) -> bool:
    """Whether every row of weights has one 1, and 0 otherwise."""
    return bool(((weights == 0) | (weights == 1)).all() and (weights.sum(1) == 1).all())


def _may_be_infinite(name: str, graph: Graph, producers: dict[str, Operator], of_functions: bool) -> bool:
    """Whether a tensor has values of the host or infinite constants, moved or added; of_functions: or results of unbounded functions.

    Products of finite values are finite.
    """
    pending, seen = [name], set[str]()
    while pending:
        name = pending.pop()
        if name in seen:
            continue
        seen.add(name)
        op, constant = producers.get(name), graph.constants.get(name)
        if constant is not None:
            if not np.isfinite(constant).all():
                return True
        elif op is None:
            return True
        elif isinstance(op, Vector) and any(step.op in _UNBOUNDED for step in op.steps):
            if of_functions:
                return True
        elif op.moves or isinstance(op, Vector):
            pending += op.inputs
    return False
