"""What a data type holds, and what it does not: stored in float16, a value above 65504 is infinite from there on, one below 3e-8 is 0."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from simulator.npu.parts import DataType


class Beyond(NamedTuple):
    """A tensor whose largest magnitude a data type does not hold: in float32, infinite where that overflows."""

    tensor: str
    largest: float

    @property
    def side(self) -> str:
        """Of what the data type holds."""
        return "below" if self.largest < 1 else "beyond"

    def text(self, dtype: DataType) -> str:
        """For people: what, how much, what would be held."""
        if self.side == "below":
            return f"{self.tensor!r}, largest {self.largest:.6g}: all become 0"
        return f"{self.tensor!r}, up to {self.largest:.6g} in float32; {dtype.name} holds at most {most(dtype):.6g}"


def most(dtype: DataType) -> float:
    """The largest number of a data type."""
    return float(np.finfo(dtype.name).max)


def holds(dtype: DataType, magnitude: float) -> bool:
    """Whether a number stays finite, and above 0 where it is: one just above `most` is rounded to it.  NaN does not."""
    with np.errstate(all="ignore"):
        stored = np.dtype(dtype.name).type(magnitude)
    return bool(np.isfinite(stored) and (stored > 0 or magnitude == 0))
