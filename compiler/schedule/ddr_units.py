"""Units of DDR: runs of granules that no access of a program divides.

The history of DDR has a row per granule and core (`access_history`), and granules are rows of tensors.  A product of 7680 x 7680 has
7 million of them: 24 cores took 6 GB of history.  All accesses of a program cover a unit as a whole or not at all: one row says the same.

A part names granules by `Footprint.bound`, and units by another array in its place.  Units stay from program to program while all
accesses fit; a program with other ends of accesses gets new units, and the history begins anew.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numba import njit

from compiler.schedule.segment_accesses import Bytes8, Footprint, Ints, Ints32
from compiler.schedule.segment_table import with_bound

_SPARE = 4  # units are made for one program alone where those of all programs are so many times the cells of its parts


@njit(cache=True)
def _mark_ends(bound: Ints32, granules: int, ends: Bytes8) -> tuple[int, int]:
    """Mark the ends of a part's cells in DDR; returns how many are new, and how many there are."""
    new = count = 0
    while count < bound.shape[0] and bound[count] < granules:
        new += 1 - ends[bound[count]]
        ends[bound[count]] = 1
        count += 1
    return new, count


@njit(cache=True)
def _number_units(ends: Bytes8, unit: Ints32) -> int:
    """Fill `unit` at all ends; returns the number of ends.  ends: its length is a multiple of 8."""
    count, eight = 0, ends.view(np.uint64)
    for w in range(eight.shape[0]):
        if eight[w]:
            for g in range(8 * w, 8 * w + 8):
                if ends[g]:
                    unit[g] = count
                    count += 1
    return count


@njit(cache=True)
def _bound_of_units(bound: Ints32, granules: int, unit: Ints32) -> Ints32:
    """`Footprint.bound` in units of DDR; granules on chip keep their numbers."""
    out = bound.copy()
    for k in range(bound.shape[0]):
        if bound[k] >= granules:
            break
        out[k] = unit[bound[k]]
    return out


class DdrUnits:
    """Units of the programs of one scheduler.  count: number of units.

    granules: granules of DDR.
    """

    def __init__(self, granules: int) -> None:
        self.count = 0
        self._granules = granules
        self._ends, self._unit = np.zeros(-(-granules // 8) * 8, np.uint8), np.zeros(granules, np.int32)
        # rows of parts and the arrays to which they point, of the last program and of the one before, which the scheduler still reads
        self._rows, self._rows_before = dict[Footprint, tuple[Ints, Ints32]](), dict[Footprint, tuple[Ints, Ints32]]()

    def rows_of(self, parts: Sequence[Footprint]) -> list[Ints]:
        """Rows of a program's parts (`segment_table`), all new where units have changed.  They live until the call after the next."""
        marks = [_mark_ends(part.bound, self._granules, self._ends) for part in parts if part not in self._rows]
        self._rows_before = self._rows
        if any(new for new, _ in marks):
            self._rows = {}
            needed = sum(_mark_ends(part.bound, self._granules, self._ends)[1] for part in parts)
            self.count = _number_units(self._ends, self._unit)
            if self.count > _SPARE * needed:
                self._ends[:] = 0
                for part in parts:
                    _mark_ends(part.bound, self._granules, self._ends)
                self.count = _number_units(self._ends, self._unit)
        self._rows = {part: self._rows.get(part) or self._row(part) for part in parts}
        return [self._rows[part][0] for part in parts]

    def _row(self, part: Footprint) -> tuple[Ints, Ints32]:
        bound = _bound_of_units(part.bound, self._granules, self._unit)
        return with_bound(part.row, bound), bound
