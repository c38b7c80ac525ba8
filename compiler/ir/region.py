"""Regions: which rows, or columns, of its inputs an operator needs for given ones of its output.

Either axis by itself: blocks are cut along rows, and strips of blocks along columns.
Halo, splits, residual branches and recomputation all follow from `demand`, taken backwards with the hull over consumers.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from compiler.ir.operators import ROWS, Operator
from compiler.ir.reach import demanded


class Rows(NamedTuple):
    """A half-open interval of rows, or of columns; empty where start >= stop."""

    start: int
    stop: int

    @property
    def size(self) -> int:
        return max(0, self.stop - self.start)

    def hull(self, interval: Rows) -> Rows:
        """The smallest interval that holds both; an empty one does not count."""
        if not self.size:
            return interval
        if not interval.size:
            return self
        return Rows(min(self.start, interval.start), max(self.stop, interval.stop))


EMPTY = Rows(0, 0)


def demand(operator: Operator, out: Rows, in_size: int, axis: int = ROWS) -> Rows:
    """Rows (or columns) of the main input that those of the output need, clipped to the tensor.

    A `Reflow` has no such columns: its rows wrap.
    """
    return Rows(*demanded(np.array(operator.reach(in_size, axis=axis), np.int64), operator.bounds(axis), out.start, out.stop))
