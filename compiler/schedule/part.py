"""Parts of a program as kernels read them: a table of where their arrays lie.

A program has some tens of parts, and a kernel that is handed the arrays of one of them unwraps each, which takes longer than what it then
does with a small part.  So a kernel gets one table for all parts, int64 [parts, COLUMNS]: lengths, then addresses, in the order of `Part`.
Whoever has the table holds the footprints.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numba import carray, njit
from numpy.typing import NDArray

from compiler.schedule.inside import Inside
from simulator.pointer import int32_at, int64_at, uint8_at

Ints = NDArray[np.int64]
Ints32 = NDArray[np.int32]
Bytes8 = NDArray[np.uint8]

RECORDS, CELLS = 0, 1  # columns of the table; behind them spans, needs, outers
COLUMNS = 5 + 12


class Part(NamedTuple):
    """As `schedule.footprint.Footprint` has them."""

    engine: Bytes8
    span: Ints32
    start: Ints32
    bound: Ints32
    touched: Bytes8
    transfer: Bytes8
    cycles: Ints
    cost: Ints
    inside: Inside


def part_row(part: Part) -> Ints:
    """A row of the table."""
    arrays = (*part[:-1], *part.inside)
    assert all(array.flags.c_contiguous for array in arrays), "a kernel reads them end to end"
    lengths = len(part.engine), len(part.touched), len(part.span), len(part.inside.need), len(part.inside.outer)
    return np.array((*lengths, *(array.__array_interface__["data"][0] for array in arrays)), np.int64)


def part_table(rows: Sequence[Ints]) -> Ints:
    """Of a program's parts."""
    return np.concatenate(rows).reshape(-1, COLUMNS) if rows else np.zeros((0, COLUMNS), np.int64)


@njit(cache=True)
def part_of(row: Ints) -> Part:
    """The part of a row of the table."""
    records, cells, spans, needs, outers = row[0], row[1], row[2], row[3], row[4]
    inside = Inside(
        carray(int32_at(row[13]), records + 1),
        carray(int32_at(row[14]), needs),
        carray(int32_at(row[15]), (outers, 3)),
        carray(int32_at(row[16]), (cells, 8)),
    )
    return Part(
        carray(uint8_at(row[5]), records),
        carray(int32_at(row[6]), (spans, 2)),
        carray(int32_at(row[7]), records + 1),
        carray(int32_at(row[8]), cells + 1),
        carray(uint8_at(row[9]), cells),
        carray(uint8_at(row[10]), records),
        carray(int64_at(row[11]), records),
        carray(int64_at(row[12]), records),
        inside,
    )
