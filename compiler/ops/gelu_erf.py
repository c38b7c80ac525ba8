"""Expansion of GELU and erf into VECTOR steps, to the precision of the data type.

GELU is x Phi(x) = max(x, 0) - |x| Phi(-|x|), and log Phi(-a) is nearly a polynomial: Phi(-a) = exp(q(a)), which needs no division.
The coefficients minimise the largest |a exp(q(a)) - a Phi(-a)| (least squares, weighted by the error of the step before).
The last coefficient is negative, so exp(q(a)) tends to 0 for large a.

| data type | degree | largest error of x Phi(x) |
|-----------|--------|---------------------------|
| float16   | 3      | 5.5e-5                    |
| float32   | 5      | 4.4e-7                    |

Phi is also nearly a sigmoid of an odd polynomial: Phi(x) = 1 / (1 + exp(-z)), z = x * (c0 + c1 x^2 + ...).
erf is computed from this form.  The errors below are those of x Phi(x) with the same coefficients.

| data type | terms | largest error of x Phi(x) | far from 0                                                    |
|-----------|-------|---------------------------|---------------------------------------------------------------|
| float16   | 2     | 2.7e-4                    | exp(-z) becomes 0 or infinity; both give the right limit      |
| float32   | 5     | 3.1e-6                    | z is not monotonic: x is clamped to 5.5, where Phi is 0 or 1  |
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from compiler.ir.graph import Graph
from compiler.ir.operators import Step, Vector
from simulator.npu.parts import DataType

GELU_LOGARITHM: dict[DataType, tuple[float, ...]] = {  # of q: coefficients of a^0, a^1, ...
    DataType.float16: (-0.69566363, -0.78250426, -0.34596137, -0.01719741),
    DataType.float32: (-0.69317386, -0.79766228, -0.31884748, -0.03592064, 4.90971183e-3, -3.27992075e-4),
}
ERF_COEFFICIENTS: dict[DataType, tuple[float, ...]] = {  # of z / x: coefficients of x^0, x^2, ...
    DataType.float16: (1.60031267, 0.06940245),
    DataType.float32: (1.59565627, 7.29375742e-2, -2.49717569e-4, -6.11632260e-5, 2.23823812e-6),
}
CLAMP = 5.5  # limit of |x|: up to here the float32 polynomial rises


def with_curves(graph: Graph, dtype: DataType) -> Graph:
    """The graph with every gelu and erf step expanded."""
    operators = []
    for op in graph.operators:
        if isinstance(op, Vector) and any(step.op in ("gelu", "erf") for step in op.steps):
            unused = 1 + max(step.register for step in op.steps)
            channels = graph.shapes[op.y][1]
            steps = [new_step for step in op.steps for new_step in _expanded(step, dtype, unused, channels)]
            op = replace(op, steps=tuple(steps))
        operators.append(op)
    return replace(graph, operators=tuple(operators))


def _expanded(step: Step, dtype: DataType, unused: int, channels: int) -> tuple[Step, ...]:
    """Steps that replace `step`.  unused: first of the unused registers."""
    if step.op == "gelu":
        return _gelu(dtype, unused, channels)
    if step.op == "erf":  # 2 Phi(sqrt(2) x) - 1
        scaled = (Step("muls", math.sqrt(2)), Step("keep", register=unused))
        phi = (*_exponential(dtype, unused, unused + 1), Step("adds", 1.0), Step("reciprocal"))
        return (*scaled, *phi, Step("muls", 2.0), Step("adds", -1.0))
    return (step,)


def _gelu(dtype: DataType, unused: int, channels: int) -> tuple[Step, ...]:
    """max(x, 0) + v exp(q(-v)) of the current value x, where v = -|x|.  unused: first of three unused registers."""
    x, positive, negative = unused, unused + 1, unused + 2  # x, max(x, 0), v
    *lower, second, highest = ((-1) ** power * c for power, c in enumerate(GELU_LOGARITHM[dtype]))  # coefficients of powers of v
    return (
        # v = x - 2 max(x, 0)
        Step("keep", register=x),
        Step("relu"),
        Step("keep", register=positive),
        Step("multiply_add", -2.0, added=x),
        Step("keep", register=negative),
        # q by Horner's rule in v, from the highest power on
        Step("scale_shift", scale=np.full(channels, highest, np.float32), shift=np.full(channels, second, np.float32)),
        *(Step("multiply_add", c, register=negative) for c in reversed(lower)),
        Step("exp"),
        Step("multiply_add", register=negative, added=positive),
    )


def _exponential(dtype: DataType, x: int, unused: int) -> tuple[Step, ...]:
    """exp(-z) of the current value x.  x: register of the current value.  unused: first of two unused registers."""
    lowest, *higher = (-c for c in ERF_COEFFICIENTS[dtype])  # of -z / x
    if len(higher) == 1:  # x * (c0 + c1 x^2); this order of factors does not underflow
        return (Step("square"), Step("muls", higher[0]), Step("adds", lowest), Step("mul", register=x), Step("exp"))
    clamped, square = unused, unused + 1
    steps = [Step("mins", CLAMP), Step("maxs", -CLAMP), Step("keep", register=clamped), Step("square"), Step("keep", register=square)]
    # Horner's rule in x^2, from the highest power on; the last factor is x, not x^2, because z is odd
    *middle, highest = higher
    steps.append(Step("muls", highest))
    for c in reversed(middle):
        steps += [Step("adds", c), Step("mul", register=square)]
    steps += [Step("adds", lowest), Step("mul", register=clamped)]
    return (*steps, Step("exp"))
