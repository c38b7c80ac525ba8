"""Footprints of equal shares: cores of a grid run the same records on other rows and channels, so they have one footprint at other places.

A *share* is the part of a segment on one core.  A *granule* is a row of a tensor in DDR, the unit in which accesses are compared; a *cell*
is a run of granules that a footprint treats as one.  Shares are equal if their records differ only in addresses of DDR, those of a tensor
all by the same whole rows.  Then the granules of one are those of the other, shifted.  Constants have no granules: their addresses may
differ in any way.  A share keeps the order of records, the costs and the dependences of the first equal one; only `Footprint.bound` is its
own.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numba import njit

from compiler.schedule.segment_accesses import Bytes8, Footprint, Footprints, Ints, Ints32
from compiler.target.target_graph import TargetGraph
from simulator.npu import isa
from simulator.npu.isa import Op
from simulator.npu.parts import Memory
from simulator.npu.program import Code
from simulator.npu.transfers import Transfers

_OP, _SRC, _DST, _D, _S0, _BLOCK = isa.OP, isa.SRC, isa.DST, isa.D, isa.S0, isa.BLOCK
_COPY, _FIXPIPE, _DDR = int(Op.COPY), int(Op.FIXPIPE), int(Memory.DDR)
_FIRST, _STOP, _ROW, _GRANULE = range(4)  # columns of `_storage_table`
_UNKNOWN = np.iinfo(np.int64).min


class ExampleShare(NamedTuple):
    """A share with its footprint.  code: its records as they are lowered; order: int64 [n], as they are listed.  transfers: of these."""

    code: Code
    order: Ints
    footprint: Footprint
    transfers: Transfers


def _storage_table(target_graph: TargetGraph, row_of: Ints32) -> Ints:
    """int64 [storages, 4], ascending: first block behind the constants, stop, blocks of a row, first granule."""
    constants = target_graph.memory.constant_blocks
    rows = [
        (first, first + storage.n * storage.image_blocks, storage.row_blocks, int(row_of[first]))
        for storage in target_graph.storages
        if (first := storage.address - constants) >= 0
    ]
    return np.array(sorted(rows), np.int64).reshape(-1, 4)


@njit(cache=True)
def _storage_of(storages: Ints, block: int) -> int:
    """Storage of a block behind the constants, or -1."""
    k: Any = np.searchsorted(storages[:, _FIRST], block, side="right") - 1
    return k if k >= 0 and block < storages[k, _STOP] else -1


@njit(cache=True)
def _find_row_shift(code: Code, example: Code, storages: Ints, constants: int, row_shift: Ints) -> bool:
    """Fill `row_shift`, int64 [storages], with the rows by which each tensor's accesses differ; returns whether the shares are equal."""
    row_shift[:] = _UNKNOWN
    for i in range(code.shape[0]):
        op = code[i, _OP]
        # all words are equal, except DDR addresses of loads and stores
        for w in range(_BLOCK):
            if code[i, w] != example[i, w]:
                loads = w == _S0 and op == _COPY and code[i, _SRC] == _DDR
                stores = w == _D and op in (_COPY, _FIXPIPE) and code[i, _DST] == _DDR
                if not loads and not stores:
                    return False
        # DDR addresses are in the same tensor, and differ by the rows that all accesses to it differ by
        for w, memory in ((_S0, _SRC), (_D, _DST)):
            if code[i, memory] != _DDR or not (op == _COPY or (op == _FIXPIPE and w == _D)):
                continue
            block, example_block = np.int64(code[i, w]) - constants, np.int64(example[i, w]) - constants
            if block < 0 and example_block < 0:  # constants
                continue
            k = _storage_of(storages, block)
            if k < 0 or k != _storage_of(storages, example_block) or (block - example_block) % storages[k, _ROW]:
                return False
            rows = (block - example_block) // storages[k, _ROW]
            if row_shift[k] == _UNKNOWN:
                row_shift[k] = rows
            elif row_shift[k] != rows:
                return False
    return True


@njit(cache=True)
def _shift_bound(bound: Ints32, touched: Bytes8, granules: int, storages: Ints, row_shift: Ints, shifted: Ints32) -> bool:
    """Fill `shifted` with the shifted bounds of cells; returns whether the same cells are neighbours there, inside their tensors."""
    shifted[:] = bound
    c, end = 0, -1
    while c < touched.shape[0] and bound[c] < granules:
        if touched[c]:
            k = np.searchsorted(storages[:, _GRANULE], bound[c], side="right") - 1
            if k < 0 or row_shift[k] == _UNKNOWN:
                return False
            begin = bound[c] + row_shift[k]
            rows = (storages[k, _STOP] - storages[k, _FIRST]) // storages[k, _ROW]
            if begin < storages[k, _GRANULE] or bound[c + 1] + row_shift[k] > storages[k, _GRANULE] + rows:
                return False
            adjacent = c > 0 and touched[c - 1]
            if (adjacent and begin != end) or (not adjacent and begin <= end):
                return False
            end = bound[c + 1] + row_shift[k]
            shifted[c], shifted[c + 1] = begin, end
        c += 1
    return True


class EqualShares:
    """Finder of equal shares in one target graph."""

    def __init__(self, target_graph: TargetGraph, footprints: Footprints) -> None:
        self._storages = _storage_table(target_graph, footprints.row_of)
        self._constants, self._granules = footprints.constant_blocks, footprints.ddr_granules
        self._row_shift = np.empty(len(self._storages), np.int64)

    def footprint(self, code: Code, example: ExampleShare) -> Footprint | None:
        """Footprint of records, in the order of an example's; None if the shares are not equal."""
        if len(code) != len(example.code) or not _find_row_shift(code, example.code, self._storages, self._constants, self._row_shift):
            return None
        footprint, bound = example.footprint, np.empty_like(example.footprint.bound)
        if not _shift_bound(footprint.bound, footprint.touched, self._granules, self._storages, self._row_shift, bound):
            return None
        return replace(footprint, bound=bound)
