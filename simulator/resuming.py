"""Programs timed one after the other at a level, each where it differs from the one before.

A run leaves snapshots (`timing_snapshot`).  The next one goes on from the last of them that dispatched nothing but what both programs begin
with, so it ends as if it had run from its first cycle.  Behind what differs it stops at a snapshot of the run before whose state is its own
but for a shift in time (`timing_rejoin`), and takes over what comes then.  Nothing here changes a time: without snapshots every run begins
at the beginning and goes on to the end.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator import timing_state as columns
from simulator.npu.errors import DeadlockError
from simulator.npu.level import Level
from simulator.npu.machine import Machine
from simulator.npu.parts import DMAS
from simulator.timing_kernel import run
from simulator.timing_rejoin import carry
from simulator.timing_snapshot import CONTROL, COUNT, CYCLES, FROM, INTERVAL, MET, SLOTS, UNIT, row_length
from simulator.timing_state import ENGINES, Ints
from simulator.timing_tables import constants, level_load

SNAPSHOTS = 64  # of a run at most
_BYTES = 4 << 20  # of them at most; a machine of deep queues and many cores has fewer
_STEPS = 2  # of the clock for each transfer: its first data and its end
_BETWEEN = 48  # so many stretches of equal steps, with some room for steps that a path adds


class Entries(NamedTuple):
    """A program as the event loop wants it, in arrays with room behind each queue.

    word: int64, queue q has word[queues[q, 0] : queues[q, 1]].  engine: uint8, core c has engine[streams[c, 0] : streams[c, 1]], in stream
    order.  slots: flags.  transfers: from and to DDR.
    """

    word: Ints
    queues: Ints
    engine: NDArray[np.uint8]
    streams: Ints
    slots: int
    transfers: int


class Common(NamedTuple):
    """What a program has in common with the one before in the same arrays.

    It begins as that: up to entry words[q] of queue q, and up to row rows[c] of stream c, the end of a stream counted as a row.
    It ends as that: the last last_words[q] entries, but that their flag slots are `slots` higher, and the last last_rows[c] rows.
    """

    words: Ints
    rows: Ints
    last_words: Ints
    last_rows: Ints
    slots: int


class Times(NamedTuple):
    """cycles: of the program.  moved: int64 [cores, 7], cycles in which a DMA moves DDR data.  load_store_cycles: see `timing.Timing`."""

    cycles: int
    moved: Ints
    load_store_cycles: int


class _Ended(NamedTuple):
    """A run: its snapshots, how many flag slots its program has, and what it took."""

    rows: Ints
    slots: int
    times: Times


class ResumingRuns:
    """Runs at one level, of programs on so many cores.

    resuming: False leaves no snapshots.
    """

    def __init__(self, machine: Machine, level: Level, cores: int, resuming: bool = True) -> None:
        self._machine, self._level, self._cores = machine, level, cores
        dma = machine.dma.load_ports + machine.dma.store_ports
        ring = int(constants(machine)[columns.RING])
        self._state = columns.new_state(0, 0, cores, dma, ring, False)
        items = sum(len(array) for array in (self._state.unit, self._state.dma, self._state.ends))
        row = row_length(items, cores, machine.queue_depth)
        room = min(SNAPSHOTS, _BYTES // (8 * row)) if resuming else 0
        self._tables = [np.empty((room, row if room else 0), np.int64) for _ in range(2)]  # the first one of the last run
        self._count = 0  # rows that the next run has as well
        self._ended: _Ended | None = None  # the last run
        self._common: Common | None = None  # of its program and the next one

    def differs(self, common: Common) -> None:
        """Tells what the next program and the last one have in common; if nothing was run of that, both are told."""
        table = self._tables[0]
        unit = self._units(table[: self._count])
        fit = (unit[:, :, :ENGINES, columns.TAIL] <= common.words.reshape(self._cores, ENGINES)).all((1, 2))
        fit &= (unit[:, :, columns.SCALAR_UNIT, columns.PC] < common.rows).all(1)
        self._count = int(fit.sum())  # both grow from snapshot to snapshot
        if self._common is not None:
            self._ended = None
        self._common = common

    def forget(self) -> None:
        """The next program has nothing in common with the last one."""
        self._count, self._ended, self._common = 0, None, None

    def run(self, program: Entries) -> Times:
        """Raises `DeadlockError`."""
        olds, old_flag = self._olds()
        self._make_room(program)
        kept, rows = self._tables
        stride = 2 if 2 * self._count > len(rows) else 1  # a full table keeps every second row
        self._count = len(range(0, self._count, stride))
        rows[: self._count] = kept[: stride * self._count : stride]
        self._tables = [rows, kept]
        load = level_load(self._machine, self._level.share_units, self._level.latency_cycles, self._cores)
        port = constants(self._machine).copy()
        port[columns.STEPS] = len(load.rates)
        control = np.empty(CONTROL, np.int64)
        control[FROM], control[COUNT] = self._count - 1, self._count
        control[INTERVAL] = 1 + _STEPS * program.transfers // _BETWEEN if len(rows) else 0
        if self._ended is not None and self._common is not None:
            control[SLOTS], control[CYCLES] = self._common.slots, self._ended.times.cycles
        s, p = self._state, program
        flag = s.flag[: p.slots]
        arrays = s.time, flag, *s[2:], p.word, p.engine, p.queues, p.streams, *load, port, rows, control, olds, old_flag
        cycles = int(run(*arrays))
        self._count = int(control[COUNT])
        if cycles < 0:
            self.forget()
            raise DeadlockError("deadlock: an entry waits for a SET that does not come")
        unit = s.unit.reshape(self._cores, columns.UNITS, columns.COLUMNS)
        moved, busy = unit[:, :ENGINES, columns.MOVED].copy(), int(unit[:, columns.SCALAR_UNIT, columns.CORE_MOVED].sum())
        met = int(control[MET])
        if met >= 0:
            assert self._ended is not None
            then = self._units(olds[met : met + 1])[0]
            moved += self._ended.times.moved - then[:, :ENGINES, columns.MOVED]
            busy += self._ended.times.load_store_cycles - int(then[:, columns.SCALAR_UNIT, columns.CORE_MOVED].sum())
            self._count = int(carry(olds, old_flag, control, rows, s.time, flag, s.unit, s.dma, s.ends, port, p.word, load.steps))
        times = Times(cycles, moved, busy)
        self._ended, self._common = _Ended(rows[: self._count], p.slots, times), None
        return times

    def _units(self, rows: Ints) -> Ints:
        """int64 [rows, cores, units, columns]."""
        return rows[:, UNIT : UNIT + len(self._state.unit)].reshape(-1, self._cores, columns.UNITS, columns.COLUMNS)

    def _olds(self) -> tuple[Ints, Ints]:
        """Rows of the last run behind which its program is the next one, and its flags."""
        if self._ended is None or self._common is None:
            return self._tables[0][:0], self._state.flag[:0]
        unit = self._units(self._ended.rows)
        queue, scalar = unit[:, :, :ENGINES], unit[:, :, columns.SCALAR_UNIT]
        to_come = queue[..., columns.STOP] - queue[..., columns.HEAD]
        for engine in DMAS:  # transfers that have left the queue may be under way
            to_come[..., engine] = queue[..., engine, columns.STOP] - queue[..., engine, columns.DATA]
        equal = (to_come <= self._common.last_words.reshape(self._cores, ENGINES)).all((1, 2))
        equal &= (scalar[..., columns.STOP] - scalar[..., columns.PC] <= self._common.last_rows).all(1)
        olds = self._ended.rows[len(self._ended.rows) - int(equal.sum()) :]
        return olds, self._state.flag[: self._ended.slots].copy() if len(olds) else self._state.flag[:0]

    def _make_room(self, program: Entries) -> None:
        """Longer arrays hold nothing of an earlier run."""
        if len(program.word) > len(self._state.time) or program.slots > len(self._state.flag):
            slots = max(2 * program.slots, len(self._state.flag))
            self._state = self._state._replace(time=np.empty(len(program.word), np.int64), flag=np.empty(slots, np.int64))
            self._count = 0
