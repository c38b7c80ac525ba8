"""Consecutive integer multiply-adds: the first stays on VECTOR, the later ones become products with one weight on CUBE and FIXPIPE.

VECTOR takes eight cycles for eight blocks of bytes: it converts each block to four blocks of floats, multiplies, adds, and converts back.
FIXPIPE converts sums to bytes in four cycles.  VECTOR computes `round(fma(x, scale, shift))`.  FIXPIPE computes
`round(float32(w * (x - zero) + b) * s)` with integers `w` and `b`.  A product replaces a multiply-add if both formulas are equal for all
256 integers in every channel.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compiler.ir.graph import Graph
from compiler.ir.operators import Operator, QuantisedAffine, QuantisedConv
from compiler.ir.quantised import linear
from compiler.ir.quantised.affine import Affine
from compiler.ir.quantised.parameters import Quantisation
from compiler.ir.quantised.tables import all_stored_integers
from simulator.npu.machine import Machine

_MAX_WEIGHT = 127  # largest absolute weight
_CANDIDATES = 16  # weights that are tried per channel
_MAX_BIAS = 1 << 24  # largest absolute bias: float32 holds all integers up to this one
_Values = NDArray[Any]


def with_products(graph: Graph, machine: Machine) -> Graph:
    """Replace multiply-adds by equal products.  Machines that round in fixed point have no equal products."""
    if machine.rounding != "float" or "int8" not in machine.matrix.data_types:
        return graph
    operators, shapes, types = list[Operator](), dict(graph.shapes), dict(graph.types)
    for op in graph.operators:
        if not isinstance(op, QuantisedAffine):
            operators.append(op)
            continue
        parts = _parts(op)
        for part in parts[:-1]:
            shapes[part.y], types[part.y] = graph.shapes[op.y], part.y_q
        operators += parts
    return replace(graph, operators=tuple(operators), shapes=shapes, types=types)


def _parts(op: QuantisedAffine) -> list[Any]:
    """The consecutive operators that replace `op`."""
    last = len(op.steps) - 1
    operators = list[Any]()
    x, x_q = op.x, op.x_q
    for i, (affine, y_q) in enumerate(op.steps):
        name, y = (op.name, op.y) if i == last else (f"{op.name}/{i}", f"{op.y}/{i}")
        operator = as_convolution(name, x, y, affine, x_q, y_q) if i else None
        if operator is None and operators and isinstance(operators[-1], QuantisedAffine):
            previous = operators.pop()
            operator = replace(previous, name=name, y=y, steps=(*previous.steps, (affine, y_q)))
        operators.append(operator or QuantisedAffine(name, x, y, ((affine, y_q),), x_q))
        x, x_q = y, y_q
    return operators


def as_convolution(name: str, x_name: str, y_name: str, affine: Affine, x_q: Quantisation, y_q: Quantisation) -> QuantisedConv | None:
    """The convolution that equals a multiply-add per channel; None if a channel has no equal product."""
    every = all_stored_integers(x_q)
    (sx, zero), (sy, zero_y) = x_q.single(name), y_q.single(name)
    steps = every.astype(np.int64) - zero
    wanted = affine.apply(np.broadcast_to(every, (len(affine.scale), len(every))), y_q.dtype)
    weights, biases, scales = np.zeros(len(wanted), np.int8), np.zeros(len(wanted), np.int32), np.zeros(len(wanted), np.float32)
    unmatched = np.arange(len(wanted))
    for w, b in _candidates(affine, zero, zero_y):
        if not len(unmatched):
            break
        sums = w[unmatched, None] * steps + b[unmatched, None]
        scale = _scale(sums, wanted[unmatched].astype(np.float64) - zero_y, y_q)
        with np.errstate(over="ignore", invalid="ignore"):  # an overflow: this candidate does not fit
            sw = (np.float64(sy) * scale / np.float64(sx)).astype(np.float32)
            fit = np.isfinite(sw) & (sw > 0) & (np.abs(b[unmatched]) <= _MAX_BIAS)
            sw = np.where(fit, sw, np.float32(1))
            w_q = Quantisation(sw, np.zeros(len(sw), np.int8), 0)
            outputs = linear.requantize(sums.astype(np.int32), linear.output_scale(x_q, w_q, y_q)[:, None], y_q)
        fit &= (outputs == wanted[unmatched]).all(axis=1)
        matched = unmatched[fit]
        weights[matched], biases[matched], scales[matched] = w[matched], b[matched], sw[fit]
        unmatched = unmatched[~fit]
    if len(unmatched):
        return None
    w_q = Quantisation(scales, np.zeros(len(scales), np.int8), 0)
    return QuantisedConv(name, x_name, y_name, weights.reshape(-1, 1, 1, 1), biases, x_q, w_q, y_q, groups=len(weights))


def _candidates(affine: Affine, zero: int, zero_y: int) -> list[tuple[_Values, _Values]]:
    """Candidates (weights, biases), each int64 [channels], ordered by the distance of the exact bias from an integer, smallest first.  The
    last candidate is a constant: weight 0."""
    slope = affine.scale.astype(np.float64)
    rising = np.where(slope == 0, 1, slope)
    every = np.arange(1, _MAX_WEIGHT + 1) * np.sign(rising)[:, None]
    exact = every * (zero + (affine.shift.astype(np.float64) - zero_y) / rising)[:, None]
    exact = np.clip(exact, -2 * _MAX_BIAS, 2 * _MAX_BIAS)
    off = np.abs(exact - np.rint(exact)) / np.abs(every)
    order = np.argsort(off, axis=1, kind="stable")[:, :_CANDIDATES]
    w, b = (np.take_along_axis(of, order, axis=1).astype(np.int64) for of in (every, np.rint(exact)))
    constant = np.zeros(len(w), np.int64), np.sign(np.rint(affine.shift.astype(np.float64)) - zero_y).astype(np.int64)
    return [*((w[:, i], b[:, i]) for i in range(_CANDIDATES)), constant]


def _scale(sums: _Values, wanted: _Values, y_q: Quantisation) -> _Values:
    """float64 [channels]: middle of the range of scales that map all `sums` to `wanted`; NaN for an empty range.  sums: [channels, n].
    wanted: [channels, n], integers of the result minus its zero point."""
    low, high = (limit - y_q.single("y")[1] for limit in y_q.limits)
    lower, upper = np.where(wanted > low, wanted - 0.5, -np.inf), np.where(wanted < high, wanted + 0.5, np.inf)
    with np.errstate(divide="ignore", invalid="ignore"):
        first = np.where(sums > 0, lower / sums, np.where(sums < 0, upper / sums, -np.inf)).max(axis=1)
        last = np.where(sums > 0, upper / sums, np.where(sums < 0, lower / sums, np.inf)).min(axis=1)
    first = np.maximum(first, 0)
    return np.asarray(np.where(first < last, (first + np.minimum(last, 2 * first + 1)) / 2, np.nan))
