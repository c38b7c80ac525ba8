"""Traffic through a hardware L2 (`Machine.l2`): bytes that DDR has to give or take for each transfer of a program.

The model depends on the order of access and on footprints only, never on times.  So levels and schedules of one program have one traffic,
but for levels that grant a part of the cache.

* Order.  The i-th transfers of all cores in a segment are one *round*; rounds come one after the other, in a round reads and writes of
  core 0 first.  Cores with equal shares are in step, so this is their order in time.
* A line stays until a fill evicts it, and a fill evicts any line with equal chance (random replacement).  After fills of f bytes since its
  last touch it is present with probability exp(-f / capacity).  A read then fills the missing part of it, in the mean.  So a re-read costs
  nothing while the footprint between is small, and all of it when that is some capacities.
* Cores that read a line in one round wait for the same fill: each has an equal part of it.
* A write takes a line without a read of DDR, and makes it dirty.  A fill evicts dirty lines by their part of the cache, and the transfer
  that fills draws their bytes as well.
* Cold: the cache is full of clean data of others.  Warm: the same program has run just before.

| name    | dtype, shape    | meaning                                                                                              |
|---------|-----------------|------------------------------------------------------------------------------------------------------|
| access  | int64 [n, 8]    | transfers in order: round, write, first block, run, count, stride, groups, stride of groups           |
| touched | int64 [lines]   | `filled` at the last touch of a line; -1: none                                                        |
| written | int64 [lines]   | `filled` at the last write; -1: none                                                                  |
| stamp   | int64 [lines]   | round of the last touch by a read                                                                     |
| missing | int64 [lines]   | in that round: what its fill draws                                                                    |
| readers | int64 [lines]   | in that round: number of reads                                                                        |
| totals  | int64 [4]       | filled, dirty, and drawn to fill and to write back so far                                             |

All amounts are in 1/65536 of a line.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numba import njit

from simulator.npu import isa
from simulator.npu.cycles import cost_tables
from simulator.npu.errors import ProgramError
from simulator.npu.level import SHARE_UNIT
from simulator.npu.machine import Machine
from simulator.npu.parts import BLOCK_BYTES
from simulator.npu.program import Program
from simulator.npu.transfers import Transfers, find_transfers
from simulator.timing_state import BUS_BITS, DRAWN_BITS, Ints

_UNIT = SHARE_UNIT
_STEPS = 1 << 12  # of the table of exp(-x) for an x of 1
_END = 12  # exp(-12) is below 1 / 65536
_FILLED, _DIRTY, _READ, _WRITTEN = range(4)
_HIT_LIMIT = 1 << (63 - BUS_BITS - DRAWN_BITS)


class L2Traffic(NamedTuple):
    """Bytes between L2 and DDR over a whole program.  dirty_bytes: written to the L2 and not yet to DDR at its end."""

    read_bytes: int
    written_bytes: int
    dirty_bytes: int


class L2Start(NamedTuple):
    """State before a program.  filled, dirty: so far, in 1/65536 of a line.  touched: int64 [lines], as in the table above."""

    filled: int
    dirty: int
    touched: Ints


class Draws(NamedTuple):
    """Per stream, int64 [instructions] each: bus units that a transfer draws from DDR, at least 1, and cycles of the L2 after them.  They
    are 0 for other records."""

    drawn_units: tuple[Ints, ...]
    hit_cycles: tuple[Ints, ...]
    traffic: L2Traffic


@lru_cache(maxsize=1)
def _stay_table() -> Ints:
    """exp(-i / _STEPS) in 1/65536, int64 [_END * _STEPS]."""
    table = np.rint(np.exp(-np.arange(_END * _STEPS) / _STEPS) * _UNIT).astype(np.int64)
    table.flags.writeable = False
    return table


@njit(cache=True, inline="always")
def _missing_part(last: int, filled: int, step: int, stay: Ints) -> int:
    """Expected part of a line that is not in the cache.  step: fills of one entry of the table."""
    if last < 0:
        return _UNIT
    if filled - last < step:
        return 0
    i = (filled - last) // step
    return _UNIT - stay[i] if i < stay.shape[0] else _UNIT


@njit(cache=True, inline="always")
def _are_equal_reads(access: Ints, i: int, k: int) -> bool:
    """Whether two transfers read the same runs: cores of a grid do, in one round."""
    equal = access[i, 1] == 0 and access[k, 1] == 0
    for word in range(2, 8):
        equal = equal and access[i, word] == access[k, word]
    return equal


@njit(cache=True)
def count_draws(
    access: Ints, touched: Ints, written: Ints, stamp: Ints, missing: Ints, readers: Ints, totals: Ints, stay: Ints, line: int, lines: int,
    passed: int, drawn: Ints,
) -> None:  # fmt: skip
    """Add to `drawn`, int64 [n], what the fills of each transfer draw (see the tables at the top).

    line: blocks of a line.  lines: capacity.  passed: rounds before the first.
    """
    n, capacity = access.shape[0], lines * _UNIT
    step, start = max(1, capacity // _STEPS), 0
    example, equal = np.empty(n, np.int64), np.empty(n, np.int64)  # first equal read of the round; number of equal reads, then their draw
    while start < n:
        stop, turn = start, access[start, 0] + passed
        while stop < n and access[stop, 0] == access[start, 0]:
            example[stop], equal[stop] = stop, 1
            for i in range(start, stop):
                if example[i] == i and _are_equal_reads(access, i, stop):
                    example[stop] = i
                    equal[i] += 1
                    break
            stop += 1
        for second in range(2):
            for i in range(start, stop):
                write, run, count, groups = access[i, 1], access[i, 3], access[i, 4], access[i, 6]
                if write and second:
                    continue
                if example[i] != i:
                    drawn[i] += equal[example[i]] * second
                    continue
                draw = 0
                for group in range(groups):
                    for k in range(count):
                        first = access[i, 2] + group * access[i, 7] + k * access[i, 5]
                        for x in range(first // line, (first + run - 1) // line + 1):
                            if second:
                                draw += missing[x] // readers[x]
                                continue
                            if not write and stamp[x] == turn:
                                readers[x] += equal[i]
                                continue
                            fill = _missing_part(touched[x], totals[_FILLED], step, stay)
                            back = fill * totals[_DIRTY] // capacity
                            totals[_FILLED] += fill
                            totals[_DIRTY] -= back
                            totals[_WRITTEN] += back
                            if write:
                                clean = _missing_part(written[x], totals[_FILLED], step, stay)
                                totals[_DIRTY] += clean
                                written[x] = totals[_FILLED]
                                draw += back
                            else:
                                totals[_READ] += fill
                                stamp[x], missing[x], readers[x] = turn, fill + back, equal[i]
                            touched[x] = totals[_FILLED]
                drawn[i] += draw
                if second:
                    equal[i] = draw
        start = stop


def count_traffic(
    machine: Machine,
    blocks: int,
    access: Ints,
    core: Ints,
    segment: Ints,
    place: Ints,
    warm: bool = False,
    l2_bytes: int | None = None,
    start: L2Start | None = None,
) -> tuple[Ints, L2Traffic]:
    """Bus units, int64 [n], that fills of each transfer draw, and what they move in all.

    blocks: of the program's DDR.  access: see the table at the top; rounds are filled in.  core, segment, place: int64 [n], of each
    transfer, and where it is in the core's stream.  l2_bytes: granted part of the cache; None: all of it.
    start: None: cold.
    """
    l2 = machine.l2
    assert l2 is not None
    order = _in_rounds(access, core, segment, place)
    line = l2.line_bytes // BLOCK_BYTES
    state = np.full((5, -(-blocks // line) + 1), -1, np.int64)
    ordered, drawn, totals = access[order], np.zeros(len(access), np.int64), np.zeros(4, np.int64)
    if start is not None:
        totals[_FILLED], totals[_DIRTY], state[0] = start
    for run in range(1 + warm):
        drawn[:] = totals[[_READ, _WRITTEN]] = 0
        count_draws(ordered, *state, totals, _stay_table(), line, (l2_bytes or l2.bytes) // l2.line_bytes, run * (len(access) + 1), drawn)
    read, written = (totals[[_READ, _WRITTEN]] * l2.line_bytes // _UNIT).tolist()
    of_transfer = np.empty_like(drawn)
    of_transfer[order] = drawn * l2.line_bytes
    return of_transfer, L2Traffic(read, written, int(totals[_DIRTY]) * l2.line_bytes // _UNIT)


def _in_rounds(access: Ints, core: Ints, segment: Ints, place: Ints) -> Ints:
    """Order of transfers by rounds, then cores; the rounds of `access` are filled in."""
    n = len(access)
    by_core = np.lexsort((place, core, segment))
    begins = (np.diff(segment[by_core], prepend=-1) != 0) | (np.diff(core[by_core], prepend=-1) != 0)
    number = np.empty(n, np.int64)  # of a transfer among those of its core in its segment
    number[by_core] = np.arange(n) - np.flatnonzero(begins)[np.cumsum(begins) - 1] if n else 0
    order = np.lexsort((core, number, segment))
    access[order, 0] = np.cumsum((np.diff(segment[order], prepend=-1) != 0) | (np.diff(number[order], prepend=-1) != 0))
    return order


def split_draws(machine: Machine, transfers: Transfers, moved: Ints, drawn: Ints, owner: str) -> tuple[Ints, Ints]:
    """`Draws.drawn_units` and `Draws.hit_cycles` of transfers.

    moved, drawn: int64 [n], bus units of all their bytes and of their fills.  owner: of the transfers, for errors.  Raises `ProgramError`
    for a transfer too large for the event loop.
    """
    units = np.maximum(drawn, 1)
    filled = np.where(transfers.access[:, 1] > 0, 0, np.minimum(drawn, moved))
    rate = np.maximum(1, cost_tables(machine).rate[transfers.path[:, 0], transfers.path[:, 1]])
    hits = -(-(moved - filled) // rate)
    bad = (units >= 1 << DRAWN_BITS) | (hits >= _HIT_LIMIT)
    if bad.any():
        why = f"accepted with an L2: transfers of less than {(1 << DRAWN_BITS) // _UNIT} bytes"
        first = int(np.argmax(bad))
        raise ProgramError(f"{owner} instruction {transfers.row[first]}: draws {int(units[first]) // _UNIT} bytes; {why}")
    return units, hits


def draws_of(program: Program, machine: Machine, bus: tuple[Ints, ...], warm: bool = False, l2_bytes: int | None = None) -> Draws:
    """Draws of all transfers.  bus: per stream, `Price.bus`.  Raises `ProgramError` for a transfer too large for the event loop."""
    streams = [find_transfers(code) for code in program.streams]
    segments = [
        isa.segment_of(code[of_stream.row, isa.TAG]).astype(np.int64) for code, of_stream in zip(program.streams, streams, strict=True)
    ]
    counts = [len(of_stream.row) for of_stream in streams]
    access, place = np.concatenate([of_stream.access for of_stream in streams]), np.concatenate([of_stream.row for of_stream in streams])
    core = np.repeat(np.arange(len(counts)), counts)
    drawn, traffic = count_traffic(machine, program.memory.size_blocks, access, core, np.concatenate(segments), place, warm, l2_bytes)
    drawn_units, hit_cycles = [], []
    parts = np.split(drawn, np.cumsum(counts)[:-1])
    for number, (code, moved, of_stream, of_core) in enumerate(zip(program.streams, bus, streams, parts, strict=True)):
        units, hits = np.zeros((2, len(code)), np.int64)
        units[of_stream.row], hits[of_stream.row] = split_draws(machine, of_stream, moved[of_stream.row], of_core, f"core {number}")
        drawn_units.append(units)
        hit_cycles.append(hits)
    return Draws(tuple(drawn_units), tuple(hit_cycles), traffic)
