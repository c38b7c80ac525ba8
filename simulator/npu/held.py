"""What a data type holds, and what is beyond it: stored in float16, a value above 65504 is infinite from there on."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from simulator.npu.parts import DataType


class Beyond(NamedTuple):
    """A tensor with a value that a data type does not hold.  largest: of its magnitudes in float32, infinite where that overflows."""

    tensor: str
    largest: float

    def text(self, dtype: DataType) -> str:
        """For people: what, how much, what would be held."""
        return f"{self.tensor!r}, up to {self.largest:.6g} in float32; {dtype.name} holds at most {most(dtype):.6g}"


def most(dtype: DataType) -> float:
    """The largest number of a data type."""
    return float(np.finfo(dtype.name).max)


def holds(dtype: DataType, magnitude: float) -> bool:
    """Whether a number stays finite: one just above `most` is rounded to it.  NaN does not."""
    with np.errstate(over="ignore"):
        return bool(np.isfinite(np.dtype(dtype.name).type(magnitude)))
