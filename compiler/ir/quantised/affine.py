"""Functions of integers as a float32 multiply-add and a rounding, where these are exact for every input."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from compiler.ir.quantised.parameters import Floats, Integers
from compiler.ir.quantised.rounding import to_int32
from simulator.npu.fused import fma

_NEAR = (0, 1, -1, 2, -2, 3, -3)  # slopes that are tried, in units of the last place


class Affine(NamedTuple):
    """Function x -> saturated(round(fma(x, scale, shift))).  scale, shift: float32 [] or [channels]."""

    scale: Floats
    shift: Floats

    def apply(self, x: NDArray[Any], dtype: np.dtype[Any]) -> Integers:
        """Apply the function to x [.., channels, n]."""
        values = fma(x.astype(np.float32), self.scale[..., None], self.shift[..., None])
        limits = np.iinfo(dtype)
        return np.clip(to_int32(values), limits.min, limits.max).astype(dtype)


def fit_gated_affine(x: Integers, gates: NDArray[Any], zero: int, targets: Integers, slope: NDArray[Any]) -> Affine | None:
    """Scale and shift with which fma(x, g, fma(g, -zero, shift)), g = float32(gate * scale), rounds to `targets` [gates, n] of x [n].

    As `fit_affine`, for a product of x - zero and a gate: one multiply-add with constants per gate.  None without a solution.
    """
    limits = np.iinfo(targets.dtype)
    centres = targets.astype(np.float64)
    low, high = np.where(targets > limits.min, centres - 0.5, -np.inf), np.where(targets < limits.max, centres + 0.5, np.inf)
    for steps in _NEAR:
        scale = np.float32(slope * np.float32(1 + steps * np.finfo(np.float32).eps))
        g = gates.astype(np.float32) * scale
        line = g.astype(np.float64)[:, None] * (x.astype(np.int64) - zero)
        first, last = (low - line).max(), (high - line).min()
        shift = np.float32((first + last) / 2 if np.isfinite(first + last) else np.nan_to_num(max(first, last - 1)))
        if np.array_equal(Affine(g, fma(g, np.float32(-zero), shift)).apply(x, targets.dtype), targets):
            return Affine(np.asarray(scale), np.asarray(shift))
    return None


def fit_affine(x: NDArray[Any], targets: Integers, slope: NDArray[Any]) -> Affine | None:
    """Multiply-add that gives `targets` [channels, n], or [n], of x [n]; None if there is none near that slope.

    Every target inside the range of the type limits the shift to an interval of length 1; the middle of the intersection is furthest
    from ties.
    """
    limits = np.iinfo(targets.dtype)
    exact, centres = x.astype(np.float64), targets.astype(np.float64)
    low = np.where(targets > limits.min, centres - 0.5, -np.inf)
    high = np.where(targets < limits.max, centres + 0.5, np.inf)
    scale = np.asarray(slope, np.float32)
    shift = np.full(scale.shape, np.nan, np.float32)
    has_solution = np.zeros(scale.shape, bool)
    for steps in _NEAR:
        candidate = np.asarray(np.asarray(slope, np.float32) * np.float32(1 + steps * np.finfo(np.float32).eps), np.float32)
        line = candidate[..., None].astype(np.float64) * exact
        first, last = (low - line).max(axis=-1), (high - line).min(axis=-1)
        first, last = np.where(np.isinf(first), last - 1, first), np.where(np.isinf(last), first + 1, last)
        middle = ((first + last) / 2).astype(np.float32)
        matches = (Affine(candidate, middle).apply(x, targets.dtype) == targets).all(axis=-1) & ~has_solution
        scale, shift, has_solution = np.where(matches, candidate, scale), np.where(matches, middle, shift), has_solution | matches
        if has_solution.all():
            return Affine(np.asarray(scale, np.float32), np.asarray(shift, np.float32))
    return None
