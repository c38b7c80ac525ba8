"""Sums and products of two quantised tensors."""

from __future__ import annotations

import numpy as np

from compiler.ir.quantised.parameters import Floats, Integers, Quantisation
from compiler.ir.quantised.rounding import saturate, to_int32
from simulator.npu.fused import fma


def add(a: Integers, a_q: Quantisation, b: Integers, b_q: Quantisation, y_q: Quantisation) -> Integers:
    """QLinearAdd: fma(a, ra, fma(b, rb, zy - fma(ra, za, rb * zb))) with ra = sa / sy and rb = sb / sy, rounded, then saturated.

    s and z: scales and zero points.  onnxruntime exchanges a and b if a has one value along the innermost axis and b has several.
    """
    if repeats(a.shape, b.shape):
        a, a_q, b, b_q = b, b_q, a, a_q
    ra, rb, fixed = add_factors(a_q, b_q, y_q)
    inner = fma(_floats(b), rb, fixed)
    return saturate(to_int32(fma(_floats(a), ra, inner)), y_q)


def add_factors(a_q: Quantisation, b_q: Quantisation, y_q: Quantisation) -> tuple[np.float32, np.float32, np.float32]:
    """Constants of `add`: ra, rb, and the summand."""
    (sa, za), (sb, zb), (sy, zy) = a_q.single("a"), b_q.single("b"), y_q.single("y")
    ra, rb = sa / sy, sb / sy
    return ra, rb, np.float32(zy) - np.float32(fma(np.asarray(ra), np.float32(za), rb * np.float32(zb)))


def mul(a: Integers, a_q: Quantisation, b: Integers, b_q: Quantisation, y_q: Quantisation) -> Integers:
    """QLinearMul: float32((a - za) * (b - zb)) * ((sa * sb) / sy) + zy, a product and a sum, rounded to an integer, then saturated."""
    (sa, za), (sb, zb), (sy, zy) = a_q.single("a"), b_q.single("b"), y_q.single("y")
    product = (a.astype(np.int64) - za) * (b.astype(np.int64) - zb)
    with np.errstate(over="ignore"):
        return saturate(to_int32(product.astype(np.float32) * (sa * sb / sy) + np.float32(zy)), y_q)


def _floats(integers: Integers) -> Floats:
    return integers.astype(np.float32)


def repeats(a_shape: tuple[int, ...], b_shape: tuple[int, ...]) -> bool:
    """Whether a has size 1 along the innermost axis that is longer than 1 in a or b."""
    rank = max(len(a_shape), len(b_shape))
    pairs = zip(*((1,) * (rank - len(shape)) + shape for shape in (a_shape, b_shape)), strict=True)
    unequal_to_one = [pair for pair in pairs if pair != (1, 1)]
    return bool(unequal_to_one) and unequal_to_one[-1][0] == 1
