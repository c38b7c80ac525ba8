"""Regions: rows (or columns) of the inputs that an operator needs for given rows of its output.

Each axis is separate: blocks are cut along rows, strips of blocks along columns.
Halo, splits, residual branches and recomputation follow from `demand`, applied backwards with the hull over consumers.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from compiler.ir.operators import ROWS, Operator
from compiler.ir.reach import demanded


class Rows(NamedTuple):
    """Half-open interval of rows or columns; empty where start >= stop."""

    start: int
    stop: int

    @property
    def size(self) -> int:
        return max(0, self.stop - self.start)

    def hull(self, interval: Rows) -> Rows:
        """Smallest interval that contains both; empty intervals do not count."""
        if not self.size:
            return interval
        if not interval.size:
            return self
        return Rows(min(self.start, interval.start), max(self.stop, interval.stop))


EMPTY = Rows(0, 0)


def demand(operator: Operator, out: Rows, in_size: int, axis: int = ROWS) -> Rows:
    """Rows (or columns) of the main input that rows `out` of the output need, clipped to the tensor.

    Not for columns of a `Reflow`, whose rows wrap.
    """
    return Rows(*demanded(np.array(operator.reach(in_size, axis=axis), np.int64), operator.bounds(axis), out.start, out.stop))
