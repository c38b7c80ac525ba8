"""The range of float types: in float16 a value above 65504 becomes infinite, one below 3e-8 becomes 0."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from simulator.npu.parts import DataType


class OutOfRange(NamedTuple):
    """A tensor whose largest magnitude is outside the range of a data type.  largest: that magnitude in float32; infinite on overflow."""

    tensor: str
    largest: float

    @property
    def side(self) -> str:
        """The side of the range: below or beyond."""
        return "below" if self.largest < 1 else "beyond"

    def text(self, dtype: DataType) -> str:
        """A message: the tensor, its magnitude, and the limit of the type."""
        if self.side == "below":
            return f"{self.tensor!r}, largest {self.largest:.6g}: all become 0"
        return f"{self.tensor!r}, up to {self.largest:.6g} in float32; {dtype.name} holds at most {largest_value(dtype):.6g}"


def largest_value(dtype: DataType) -> float:
    """The largest finite number of a data type."""
    return float(np.finfo(dtype.name).max)


def holds(dtype: DataType, magnitude: float) -> bool:
    """Whether a number stays finite, and stays above 0 if it is; numbers just above `largest_value` round down to it.  False for NaN."""
    with np.errstate(all="ignore"):
        stored = np.dtype(dtype.name).type(magnitude)
    return bool(np.isfinite(stored) and (stored > 0 or magnitude == 0))
