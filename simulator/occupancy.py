"""How full the memories on chip are, and how much of the DDR port is used, over a run.

A block of a memory is in use from the start of the instruction that writes it to the end of the last one that reads it before it is
written anew.  An instruction that reads a block and writes it again (an accumulation) goes on with it.  What is written and never read is
in use while it is written.  So a memory is never fuller than it is large, and what lies there to no purpose is not counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from simulator.ddr import shared_rates
from simulator.npu.access import MAX_RANGES, accesses
from simulator.npu.cycles import port_units
from simulator.npu.parts import BLOCK_BYTES, Engine, Memory
from simulator.timeline import Timeline
from simulator.timing_state import Ints

_MEMORIES = len(Memory)


class Steps(NamedTuple):
    """A step function: value[i] from cycle[i] on; cycles ascend strictly."""

    cycle: Ints
    value: NDArray[np.int64] | NDArray[np.float64]


@njit(cache=True)
def _lifetimes(code: NDArray[np.int32], order: Ints, start: Ints, end: Ints, cells: Ints, last: Ints, at_start: Ints, at_end: Ints) -> None:
    """at_start, at_end: int64 [7, n], blocks that come into use (+) or fall out of it (-) at the start and the end of a row.

    order: rows by start.  cells: int64 [7, 2], a memory's first cell and the one behind its last, -1 where it is not looked at.
    last: int64 [cells], -1 at first: the row whose end would end the block's use (-1: not in use).
    """
    ranges = np.empty((MAX_RANGES, 8), np.int64)
    for i in order:
        for j in range(accesses(code, i, ranges)):
            memory, write, first, length, count, stride, count2, stride2 = ranges[j]
            if cells[memory, 0] < 0:
                continue
            for group in range(count2):
                for run in range(count):
                    cell = cells[memory, 0] + first + group * stride2 + run * stride
                    for b in range(cell, cell + length):
                        old = last[b]
                        if write:
                            if old >= 0:
                                if end[old] <= start[i]:
                                    at_end[memory, old] -= 1
                                else:  # in place (`old` is `i`), or a race: in use once at any time all the same
                                    at_start[memory, i] -= 1
                            at_start[memory, i] += 1
                            last[b] = i
                        elif old >= 0 and end[i] >= end[old]:
                            last[b] = i
    for memory in range(cells.shape[0]):
        for b in range(cells[memory, 0], cells[memory, 1]):
            if last[b] >= 0:
                at_end[memory, last[b]] -= 1


def bytes_in_use(t: Timeline, core: int) -> dict[Memory, Steps]:
    """Of every memory that a core has for itself, in bytes."""
    return _in_use(t, slice(int(t.stream_start[core]), int(t.stream_start[core + 1])), list(Memory)[1 : Memory.SHARED])


def shared_in_use(t: Timeline) -> Steps | None:
    """Of the memory that all cores share, in bytes; None where there is none."""
    return None if t.machine.shared is None else _in_use(t, slice(0, len(t.start)), [Memory.SHARED])[Memory.SHARED]


def _in_use(t: Timeline, rows: slice, memories: Sequence[Memory]) -> dict[Memory, Steps]:
    """memories: side by side in the order of `Memory`."""
    stops = np.cumsum([t.machine.buffer_blocks(memory) for memory in memories])
    cells = np.full((_MEMORIES, 2), -1, np.int64)
    cells[memories[0] : memories[-1] + 1, 0] = np.concatenate(([0], stops[:-1]))
    cells[memories[0] : memories[-1] + 1, 1] = stops
    start, end = t.start[rows], t.end[rows]
    order = np.argsort(start, kind="stable")
    order = order[t.work[rows][order]]
    last = np.full(stops[-1], -1, np.int64)
    at_start, at_end = (np.zeros((_MEMORIES, len(start)), np.int64) for _ in range(2))
    _lifetimes(t.code[rows], order, start, end, cells, last, at_start, at_end)
    found = {}
    for memory in memories:
        some = [np.flatnonzero(at_start[memory]), np.flatnonzero(at_end[memory])]
        change = np.concatenate((at_start[memory, some[0]], at_end[memory, some[1]])) * BLOCK_BYTES
        found[memory] = _steps(np.concatenate((start[some[0]], end[some[1]])), change)
    return found


def _steps(cycle: Ints, change: Ints) -> Steps:
    at, inverse = np.unique(cycle, return_inverse=True)
    total = np.zeros(len(at), np.int64)
    np.add.at(total, inverse, change)
    return Steps(at, np.cumsum(total))


class DdrUse(NamedTuple):
    """read, write: useful bytes per cycle.  port: share of the level's bandwidth that is drawn, bursts' overhead included, 0..1."""

    read: Steps
    write: Steps
    port: Steps


def ddr_use(t: Timeline) -> DdrUse:
    """What all cores together draw: exact, the rates are those of the timing model."""
    rows = np.flatnonzero(t.transfer)
    writes = t.engine[rows] == Engine.MTE3
    at, inverse = np.unique(np.concatenate((t.start[rows], t.end[rows])), return_inverse=True)
    active = np.zeros((2, len(at)), np.int64)
    useful = np.zeros((2, len(at)))
    sign = np.repeat((1, -1), len(rows))
    side = np.tile(writes, 2).astype(np.int64)
    np.add.at(active, (side, inverse), sign)
    # useful bytes per unit of the port, summed over those who move data; only differences of sums, so round off what is not there
    np.add.at(useful, (side, inverse), sign * np.tile(np.abs(t.useful[rows]) / t.bus[rows], 2))
    active, useful = np.cumsum(active, axis=1), np.cumsum(useful, axis=1)
    rates = shared_rates(t.machine, t.level.share_units, t.cores)[active[0], active[1]].T
    each = np.where(active > 0, useful * rates, 0.0)
    drawn = (active * rates).sum(axis=0) / port_units(t.machine, t.level.share_units)
    return DdrUse(Steps(at, each[0]), Steps(at, each[1]), Steps(at, drawn))


def thinned(steps: Steps, most: int) -> Steps:
    """At most `most` points: each the highest value of an equal stretch of points, so that peaks stay."""
    n = len(steps.cycle)
    if n <= most:
        return steps
    first = np.unique(np.arange(most) * n // most)
    return Steps(steps.cycle[first], np.maximum.reduceat(steps.value, first))
