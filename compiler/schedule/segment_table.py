"""Table of a program's parts for kernels: addresses and lengths of their arrays.

A program has some tens of parts.  Unpacking the arrays of a part at a call takes longer than the work on a small part.  So a kernel gets
one table for all parts, int64 [parts, COLUMNS]: lengths, then addresses, in the order of `Part`, then counts.  The footprints must live as
long as the table.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numba import carray, njit
from numpy.typing import NDArray

from compiler.schedule.local_dependences import LocalDependences
from simulator.pointer import int32_at, int64_at, uint8_at

Ints = NDArray[np.int64]
Ints32 = NDArray[np.int32]
Bytes8 = NDArray[np.uint8]

RECORDS, CELLS, _SPANS, _NEEDS, _OUTERS = range(5)  # columns of the table: lengths, and behind them addresses
_ENGINE, _SPAN, _START, _BOUND, _TOUCHED, _TRANSFER, _CYCLES, _COST, _BEGIN, _NEED, _OUTER, _LAST = range(5, 17)
# transfers from and to DDR; used engines, as bits; engines with such transfers, as bits
TRANSFERS, USED_ENGINES, TRANSFER_ENGINES, COLUMNS = range(17, 21)


class Part(NamedTuple):
    """Arrays of a part, as in `schedule.segment_accesses.Footprint`."""

    engine: Bytes8
    span: Ints32
    start: Ints32
    bound: Ints32
    touched: Bytes8
    transfer: Bytes8
    cycles: Ints
    cost: Ints
    inside: LocalDependences


def part_row(part: Part) -> Ints:
    """Row of the table for a part."""
    assert all(array.flags.c_contiguous for array in (*part[:-1], *part.inside)), "a kernel reads them end to end"
    row: Ints = _row_of(part)
    return row


@njit(cache=True)
def _row_of(part: Part) -> Ints:
    row, of = np.empty(COLUMNS, np.int64), part.inside
    row[RECORDS], row[CELLS], row[_SPANS] = part.engine.shape[0], part.touched.shape[0], part.span.shape[0]
    row[_NEEDS], row[_OUTERS] = of.need.shape[0], of.outer.shape[0]
    row[_ENGINE], row[_SPAN], row[_START] = part.engine.ctypes.data, part.span.ctypes.data, part.start.ctypes.data
    row[_BOUND], row[_TOUCHED], row[_TRANSFER] = part.bound.ctypes.data, part.touched.ctypes.data, part.transfer.ctypes.data
    row[_CYCLES], row[_COST] = part.cycles.ctypes.data, part.cost.ctypes.data
    row[_BEGIN], row[_NEED], row[_OUTER], row[_LAST] = of.start.ctypes.data, of.need.ctypes.data, of.outer.ctypes.data, of.last.ctypes.data
    transfers, used_engines, transfer_engines = 0, np.int64(0), np.int64(0)
    for i in range(part.engine.shape[0]):
        engine = 1 << np.int64(part.engine[i])
        used_engines |= engine
        if part.transfer[i]:
            transfer_engines |= engine
            transfers += 1
    row[TRANSFERS], row[USED_ENGINES], row[TRANSFER_ENGINES] = transfers, used_engines, transfer_engines
    return row


def with_bound(row: Ints, bound: Ints32) -> Ints:
    """Row of a part whose cells have other bounds, int32 [cells + 1]; `bound` must live as long as the row."""
    changed = row.copy()
    changed[_BOUND] = bound.ctypes.data
    return changed


def with_costs(table: Ints, costs: Ints, first: Ints) -> Ints:
    """Table whose parts have other costs: part p has int64 costs[first[p] ..]; `costs` must live as long as the table."""
    changed = table.copy()
    changed[:, _COST] = costs.ctypes.data + costs.itemsize * first
    return changed


def part_table(rows: Sequence[Ints]) -> Ints:
    """Table of a program's parts."""
    return np.concatenate(rows).reshape(-1, COLUMNS) if rows else np.zeros((0, COLUMNS), np.int64)


@njit(cache=True)
def part_of(row: Ints) -> Part:
    """Part of a row of the table."""
    records, cells = row[RECORDS], row[CELLS]
    inside = LocalDependences(
        carray(int32_at(row[_BEGIN]), records + 1), carray(int32_at(row[_NEED]), row[_NEEDS]),
        carray(int32_at(row[_OUTER]), (row[_OUTERS], 3)), carray(int32_at(row[_LAST]), (cells, 8)),
    )  # fmt: skip
    return Part(
        carray(uint8_at(row[_ENGINE]), records), carray(int32_at(row[_SPAN]), (row[_SPANS], 2)),
        carray(int32_at(row[_START]), records + 1), carray(int32_at(row[_BOUND]), cells + 1), carray(uint8_at(row[_TOUCHED]), cells),
        carray(uint8_at(row[_TRANSFER]), records), carray(int64_at(row[_CYCLES]), records), carray(int64_at(row[_COST]), records), inside,
    )  # fmt: skip
