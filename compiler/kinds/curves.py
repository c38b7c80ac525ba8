"""GELU and erf as steps that VECTOR has, as exact as the data type deserves.

The normal distribution function is nearly a sigmoid of an odd polynomial: Phi(x) = 1 / (1 + exp(-z)), z = x * (c0 + c1 x^2 + ...).
The coefficients minimise the largest |x / (1 + exp(-z)) - x Phi(x)| (least squares, weighted by the error of the step before).

| data type | terms | largest error of x Phi(x) | far from 0                                                    |
|-----------|-------|---------------------------|---------------------------------------------------------------|
| float16   | 2     | 2.7e-4                    | exp(-z) becomes 0 or infinity, and either is right            |
| float32   | 5     | 3.1e-6                    | the polynomial turns around: x is cut at 5.5, Phi is 0 or 1   |
"""

from __future__ import annotations

import math
from dataclasses import replace

from compiler.ir.graph import Graph
from compiler.ir.operators import Step, Vector
from simulator.npu.parts import DataType

COEFFICIENTS: dict[DataType, tuple[float, ...]] = {
    DataType.float16: (1.60031267, 0.06940245),
    DataType.float32: (1.59565627, 7.29375742e-2, -2.49717569e-4, -6.11632260e-5, 2.23823812e-6),
}
REACH = 5.5  # where the long polynomial still rises


def with_curves(graph: Graph, dtype: DataType) -> Graph:
    """The graph with every gelu and erf step written out."""
    operators = []
    for op in graph.operators:
        if isinstance(op, Vector) and any(step.op in ("gelu", "erf") for step in op.steps):
            free = 1 + max(step.kept for step in op.steps)
            steps = [new for step in op.steps for new in _written_out(step, dtype, free)]
            op = replace(op, steps=tuple(steps))
        operators.append(op)
    return replace(graph, operators=tuple(operators))


def _written_out(step: Step, dtype: DataType, free: int) -> tuple[Step, ...]:
    """free: numbers from here on are not in use to put values aside."""
    if step.op == "gelu":
        keep = Step("keep", kept=free)
        return (keep, *_exponential(dtype, free, free + 1), Step("adds", 1.0), Step("rdiv", kept=free))
    if step.op == "erf":  # 2 Phi(sqrt(2) x) - 1
        start = (Step("muls", math.sqrt(2)), Step("keep", kept=free))
        return (*start, *_exponential(dtype, free, free + 1), Step("adds", 1.0), Step("reciprocal"), Step("muls", 2.0), Step("adds", -1.0))
    return (step,)


def _exponential(dtype: DataType, x: int, cut: int) -> tuple[Step, ...]:
    """exp(-z) of v, which is also kept under x; `cut`: a free number."""
    first, *rest = (-c for c in COEFFICIENTS[dtype])
    if len(rest) == 1:  # x * (c0 + c1 x^2), the factors put in such an order that nothing small is lost
        return (Step("square"), Step("muls", rest[0]), Step("adds", first), Step("mul", kept=x), Step("exp"))
    steps = [Step("mins", REACH), Step("maxs", -REACH), Step("keep", kept=cut), Step("square"), Step("keep", kept=cut + 1)]
    steps.append(Step("muls", rest[-1]))
    for c in reversed((first, *rest[:-1])):
        steps += [Step("adds", c), Step("mul", kept=cut + 1)]
    steps[-1] = Step("mul", kept=cut)
    return (*steps, Step("exp"))
