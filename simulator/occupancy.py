"""Occupancy of the on-chip memories and use of the DDR port over a run.

A block of a memory is in use from the start of the instruction that writes it to the end of the last one that reads it before it is
overwritten.  An instruction that reads and rewrites a block (an accumulation) continues its use.  A block that is never read is in use
while it is written.  So occupancy never exceeds the size of a memory, and unused data do not count."""

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
    """Fill at_start, at_end: int64 [7, n], blocks that become used (+) or unused (-) at the start and at the end of a row.

    order: rows by start.  cells: int64 [7, 2], first cell of a memory and end, -1 for memories that are not examined.
    last: int64 [cells], initially -1: row whose end would end the use of the block (-1: not in use).
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
                                else:  # in place (`old` is `i`), or a race: the block counts once at any time
                                    at_start[memory, i] -= 1
                            at_start[memory, i] += 1
                            last[b] = i
                        elif old >= 0 and end[i] >= end[old]:
                            last[b] = i
    for memory in range(cells.shape[0]):
        for b in range(cells[memory, 0], cells[memory, 1]):
            if last[b] >= 0:
                at_end[memory, last[b]] -= 1


def bytes_in_use(run: Timeline, core: int) -> dict[Memory, Steps]:
    """Bytes in use of every memory of a core's own."""
    return _in_use(run, slice(int(run.stream_start[core]), int(run.stream_start[core + 1])), list(Memory)[1 : Memory.SHARED])


def shared_in_use(run: Timeline) -> Steps | None:
    """Bytes in use of the memory that all cores share; None where the machine has none."""
    return None if run.machine.shared is None else _in_use(run, slice(0, len(run.start)), [Memory.SHARED])[Memory.SHARED]


def _in_use(run: Timeline, rows: slice, memories: Sequence[Memory]) -> dict[Memory, Steps]:
    """memories: side by side in the order of `Memory`."""
    stops = np.cumsum([run.machine.buffer_blocks(memory) for memory in memories])
    cells = np.full((_MEMORIES, 2), -1, np.int64)
    cells[memories[0] : memories[-1] + 1, 0] = np.concatenate(([0], stops[:-1]))
    cells[memories[0] : memories[-1] + 1, 1] = stops
    start, end = run.start[rows], run.end[rows]
    order = np.argsort(start, kind="stable")
    order = order[run.work[rows][order]]
    last = np.full(stops[-1], -1, np.int64)
    at_start, at_end = (np.zeros((_MEMORIES, len(start)), np.int64) for _ in range(2))
    _lifetimes(run.code[rows], order, start, end, cells, last, at_start, at_end)
    use = {}
    for memory in memories:
        some = [np.flatnonzero(at_start[memory]), np.flatnonzero(at_end[memory])]
        change = np.concatenate((at_start[memory, some[0]], at_end[memory, some[1]])) * BLOCK_BYTES
        use[memory] = _steps(np.concatenate((start[some[0]], end[some[1]])), change)
    return use


def _steps(cycle: Ints, change: Ints) -> Steps:
    cycles, inverse = np.unique(cycle, return_inverse=True)
    total = np.zeros(len(cycles), np.int64)
    np.add.at(total, inverse, change)
    return Steps(cycles, np.cumsum(total))


class DdrUse(NamedTuple):
    """read, write: useful bytes per cycle.  port: drawn fraction of the level's bandwidth, bursts' overhead included, 0..1."""

    read: Steps
    write: Steps
    port: Steps


def ddr_use(run: Timeline) -> DdrUse:
    """Use of the DDR port by all cores together: exact, from the timing model's rates."""
    rows = np.flatnonzero(run.transfer)
    writes = run.engine[rows] == Engine.MTE3
    cycles, inverse = np.unique(np.concatenate((run.start[rows], run.end[rows])), return_inverse=True)
    active = np.zeros((2, len(cycles)), np.int64)
    useful = np.zeros((2, len(cycles)))
    sign = np.repeat((1, -1), len(rows))
    side = np.tile(writes, 2).astype(np.int64)
    np.add.at(active, (side, inverse), sign)
    # useful bytes per bus unit, summed over active transfers; only differences of sums, so rounding removes residues
    np.add.at(useful, (side, inverse), sign * np.tile(np.abs(run.useful[rows]) / run.bus[rows], 2))
    if run.machine.l2 is not None:  # a transfer draws in a part of its data phase only: means over the phase
        return _mean_use(run, rows, side, inverse, cycles)
    active, useful = np.cumsum(active, axis=1), np.cumsum(useful, axis=1)
    rates = shared_rates(run.machine, run.level.share_units, run.cores)[active[0], active[1]].T
    bandwidth = np.where(active > 0, useful * rates, 0.0)
    drawn = (active * rates).sum(axis=0) / port_units(run.machine, run.level.share_units)
    return DdrUse(Steps(cycles, bandwidth[0]), Steps(cycles, bandwidth[1]), Steps(cycles, drawn))


def _mean_use(run: Timeline, rows: Ints, side: Ints, inverse: Ints, cycles: Ints) -> DdrUse:
    """`ddr_use` behind an L2: useful bytes that cores move, and what they draw from DDR."""
    length, sign = np.maximum(run.end[rows] - run.start[rows], 1), np.repeat((1, -1), len(rows))
    bandwidth, drawn = np.zeros((2, len(cycles))), np.zeros(len(cycles))
    np.add.at(bandwidth, (side, inverse), sign * np.tile(np.abs(run.useful[rows]) / length, 2))
    np.add.at(drawn, inverse, sign * np.tile(run.bus[rows] / length, 2))
    read, write = np.maximum(np.cumsum(bandwidth, axis=1), 0.0)
    port = np.clip(np.cumsum(drawn) / port_units(run.machine, run.level.share_units), 0.0, 1.0)
    return DdrUse(Steps(cycles, read), Steps(cycles, write), Steps(cycles, port))


def limit_points(steps: Steps, limit: int) -> Steps:
    """At most `limit` points: each the highest value of an equal stretch of points, so that peaks stay."""
    n = len(steps.cycle)
    if n <= limit:
        return steps
    first = np.unique(np.arange(limit) * n // limit)
    return Steps(steps.cycle[first], np.maximum.reduceat(steps.value, first))
