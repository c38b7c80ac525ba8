"""Lanes that hold no channel: what an element-wise chain makes of them, and how it is kept finite.

Weights are zero for such lanes, but 0 x inf is NaN, so one logarithm or division of a gap's zero would spoil every channel of the next
convolution.  Gaps are followed through the graph as sets of values; only a chain that would leave the finite numbers is changed.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np

from compiler.ir.graph import Concat, Conv, LayerNorm, MatMul, Operator, Pool, Reflow, Resample, Shuffle, Softmax, Step, Vector
from compiler.ir.interpret import chain

Values = frozenset[float]
GUARD = 1.0  # finite under every step: ln, reciprocal, square root and division take it
_MANY = 64  # combinations of operands that are looked at


def output_gaps(op: Operator, inputs: list[Values], kind: type[np.floating]) -> Values:
    """What the gaps of an operator's output may hold, given those of its inputs; a Vector as `guarded` leaves it."""
    if isinstance(op, Concat):
        return frozenset().union(*inputs)
    if isinstance(op, Pool | Shuffle):
        return inputs[0]
    if isinstance(op, Resample):
        filled = {op.fill} if op.rows.has_empty or op.columns.has_empty else set()
        sums = [a * b for a in op.rows.sums or (1.0,) for b in op.columns.sums or (1.0,)]
        return frozenset({float(kind(value * total)) for value in inputs[0] for total in sums} | filled)
    if isinstance(op, Softmax | LayerNorm | MatMul):
        return frozenset({0.0})
    if isinstance(op, Reflow):
        return inputs[0] | {0.0}
    if isinstance(op, Conv):
        residual = inputs[1] if op.residual is not None else frozenset({0.0})
        if op.activation == "none":
            return residual
        return frozenset(min(max(0.0, v), op.limit) if op.activation == "clip" else max(0.0, v) for v in residual)
    steps, guard = guarded(op, inputs, kind)
    return frozenset(_chain(steps, GUARD if guard else values[0], values, kind) for values in _combinations(inputs))


def guarded(op: Vector, inputs: list[Values], kind: type[np.floating]) -> tuple[tuple[Step, ...], bool]:
    """(steps, whether v must start as `GUARD` in gaps) such that gaps stay finite; (op.steps, False) where they do anyway."""
    cases = list(_combinations(inputs))
    if all(np.isfinite(_chain(op.steps, values[0], values, kind)) for values in cases):
        return op.steps, False
    if all(np.isfinite(_chain(op.steps, GUARD, values, kind)) for values in cases):
        return op.steps, True
    # a division by another tensor's gap: what is beyond the largest number becomes that, in channels too
    largest = float(np.finfo(kind).max)
    clamped: list[Step] = []
    for step in op.steps:
        clamped.append(step)
        if step.op in ("div", "rdiv", "reciprocal", "exp"):
            clamped += [Step("mins", largest), Step("maxs", -largest)]
    return tuple(clamped), True


def _combinations(inputs: list[Values]) -> list[tuple[float, ...]]:
    return [values for _, values in zip(range(_MANY), product(*(sorted(values) for values in inputs)), strict=False)]


def _chain(steps: tuple[Step, ...], first: float, values: tuple[float, ...], kind: type[np.floating]) -> float:
    """The chain on a gap of these inputs, v starting as `first`, rounded to `kind` after every step; scale and shift are zero there."""
    zero = np.zeros(1, np.float32)
    there = [replace(step, scale=zero, shift=zero) if step.op == "scale_shift" else step for step in steps]
    start, *tensors = (np.full((1, 1, 1, 1), value, np.float32) for value in (first, *values))
    with np.errstate(all="ignore"):
        v = chain(there, start, tensors, lambda made: made.astype(kind).astype(np.float32))
    return float(v[0, 0, 0, 0])
