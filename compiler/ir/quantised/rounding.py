"""Conversion of float32 to integers, step by step as on x86."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from compiler.ir.quantised.parameters import Floats, Integers, Quantisation

_BEYOND = np.float32(2.0**31)
INDEFINITE = -(2**31)  # result of the conversion for NaN and values beyond int32


def to_int32(x: Floats) -> NDArray[np.int64]:
    """Round to the nearest integer, ties to even (CVTPS2DQ)."""
    nearest = np.rint(x)
    in_range = (nearest >= -_BEYOND) & (nearest < _BEYOND)  # NaN is not
    return np.where(in_range, np.where(in_range, nearest, np.float32(0)).astype(np.int64), INDEFINITE)


def saturate(values: NDArray[Any], quantisation: Quantisation) -> Integers:
    """Integers in the type of the quantisation, clipped to its range."""
    least, greatest = quantisation.limits
    return np.clip(values, least, greatest).astype(quantisation.dtype)


def round_to_integers(x: Floats, quantisation: Quantisation) -> Integers:
    """Integers of x, which is in units of the scale: clipped to the range around the zero point, rounded, plus the zero point.

    NaN becomes the least integer, because MAXPS returns its second operand.
    """
    _, zero = quantisation.along(x.ndim)
    least, greatest = (np.float32(limit) - zero.astype(np.float32) for limit in quantisation.limits)
    lower_clamped = np.where(x > least, x, least)
    return np.asarray(to_int32(np.minimum(lower_clamped, greatest)) + zero).astype(quantisation.dtype)
