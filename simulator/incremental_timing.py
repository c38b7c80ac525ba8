"""Incremental timing of programs at one level: each run resumes before the first difference from the previous program.

A run leaves snapshots (`timing_snapshot`).  The next run resumes at the last snapshot whose dispatched entries lie in the common prefix;
its result is the same as from the first cycle.  When it converges with a later snapshot inside the common suffix, it adopts the remaining
times (`timing_converge`).  So the times are those of a full run; without snapshots a run starts at cycle 0.

Terms: docs/incremental.md.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator import timing_state as columns
from simulator.npu.errors import DeadlockError
from simulator.npu.level import Level
from simulator.npu.machine import Machine
from simulator.npu.parts import DMAS
from simulator.timing_converge import CommonSuffix, PreviousRun, no_previous_run
from simulator.timing_kernel import run_event_loop
from simulator.timing_snapshot import CONTROL, COUNT, FROM, INTERVAL, UNIT, row_length
from simulator.timing_state import ENGINES, Ints
from simulator.timing_tables import constants, level_load

SNAPSHOTS = 64  # most snapshots of a run
_BYTES = 4 << 20  # most bytes of all snapshots; a machine with deep queues and many cores has fewer
_STEPS = 2  # steps of the clock per transfer: first data and end
_BETWEEN = 48  # snapshots at equal steps, with room for steps that a path adds


class Entries(NamedTuple):
    """Program for the event loop, in arrays with spare room behind each queue.

    word: int64, queue q has word[queues[q, 0] : queues[q, 1]].  engine: uint8, core c has engine[streams[c, 0] : streams[c, 1]], in stream
    order.  slots: number of flags.  transfers: number of DDR transfers.

    source: int32 [slots], instruction that sets each flag, in ascending order.  marks: int64 [n, queues], first entry of every queue that
    belongs to instruction i * every or a later one; slots_from: int [n], first flag of these instructions.
    """

    word: Ints
    queues: Ints
    engine: NDArray[np.uint8]
    streams: Ints
    slots: int
    transfers: int
    source: NDArray[np.int32]
    marks: Ints
    slots_from: NDArray[np.signedinteger[Any]]
    every: int


class Times(NamedTuple):
    """Times of a program.  cycles: total.  moved: int64 [cores, 7], cycles in which a DMA moves DDR data.  load_store_cycles: see
    `timing.Timing`."""

    cycles: int
    moved: Ints
    load_store_cycles: int


class IncrementalRuns:
    """Runs at one level, of programs on `cores` cores.

    resuming: False leaves no snapshots.  record: whether runs have `ends`; they adopt no end of the last program then.
    """

    def __init__(self, machine: Machine, level: Level, cores: int, resuming: bool = True, record: bool = False) -> None:
        self._cores = cores
        self._load = level_load(machine, level.share_units, level.latency_cycles, cores)
        self._port = constants(machine).copy()
        self._port[columns.STEPS] = len(self._load.rates)
        self._port[columns.RECORD] = record
        dma = machine.dma.load_ports + machine.dma.store_ports
        ring = int(self._port[columns.RING])
        self._state = columns.new_state(0, 0, cores, dma, ring, record)
        items = sum(len(array) for array in (self._state.unit, self._state.dma, self._state.ends))
        row = row_length(items, cores * ENGINES, machine.queue_depth)
        room = min(SNAPSHOTS, _BYTES // (8 * row)) if resuming else 0
        self._snapshots = np.empty((room, row if room else 0), np.int64)
        self._count = 0
        self._none, self._nothing = no_previous_run(cores)
        self._alike: CommonSuffix | None = None  # common suffix of the last and the next program
        self._flags, self._slots = np.empty(0, np.int64), 0  # room for the flags of the last run; number of its flags
        self._left, self._cycles, self._ran = 0, 0, False  # snapshots of the last run; its cycles; whether it ran the last program

    def set_common_parts(self, words: Ints, rows: Ints, suffix: CommonSuffix | None) -> None:
        """Announce the common parts of the next program and the last one; may be called again before the run.

        words: end of the common prefix in each queue.  rows: end of the common prefix in each stream; the end of a stream counts as a row.
        suffix: the common suffix; None: unknown.
        """
        self._alike, self._ran = suffix if self._ran and not self._port[columns.RECORD] else None, False
        if not self._count:
            return
        unit = self._snapshots[: self._count, UNIT : UNIT + len(self._state.unit)].reshape(-1, self._cores, columns.UNITS, columns.COLUMNS)
        fit = (unit[:, :, :ENGINES, columns.TAIL] <= words.reshape(self._cores, ENGINES)).all((1, 2))
        fit &= (unit[:, :, columns.SCALAR_UNIT, columns.PC] < rows).all(1)
        self._count = int(fit.sum())  # both grow from snapshot to snapshot

    def forget(self) -> None:
        """Forget the last program: the next run starts at cycle 0."""
        self._count, self._ran = 0, False

    def run(self, program: Entries) -> Times:
        """Raises `DeadlockError`."""
        previous = self._before(program)
        control = np.empty(CONTROL, np.int64)
        control[FROM], control[COUNT] = self._count - 1, self._count
        control[INTERVAL] = 1 + _STEPS * program.transfers // _BETWEEN if len(self._snapshots) else 0
        state, p = self._state, program
        run_arrays = *self._load, self._port.copy(), *previous, self._snapshots, control
        arrays = state.time, state.flag[: p.slots], *state[2:], p.word, p.engine, p.queues, p.streams, *run_arrays
        cycles = int(run_event_loop(*arrays))
        self._left = self._count = int(control[COUNT])
        self._cycles, self._slots, self._ran = cycles, p.slots, cycles >= 0
        if cycles < 0:
            self._count = 0
            raise DeadlockError("deadlock: an entry waits for a SET that does not come")
        unit = state.unit.reshape(self._cores, columns.UNITS, columns.COLUMNS)
        return Times(cycles, unit[:, :ENGINES, columns.MOVED].copy(), int(unit[:, columns.SCALAR_UNIT, columns.CORE_MOVED].sum()))

    @property
    def ends(self) -> Ints:
        """End of every entry of the last program (`timing.Recorded`), int64; the next run overwrites it."""
        return self._state.record.reshape(-1, columns.ROW)[:, columns.END]

    def _before(self, program: Entries) -> tuple[CommonSuffix, PreviousRun]:
        """The common suffix and the previous run for the next one, and room for its own times, flags and snapshots.

        Longer arrays lose the previous run; a full table of snapshots keeps every second one.
        """
        suffix, self._alike = self._alike, None
        state = self._state
        if len(program.word) > len(state.time) or program.slots > len(state.flag):
            slots = max(2 * program.slots, len(state.flag))
            record = np.empty(columns.ROW * len(program.word) if self._port[columns.RECORD] else 0, np.int64)
            self._state = state._replace(time=np.empty(len(program.word), np.int64), flag=np.empty(slots, np.int64), record=record)
            self._count, suffix = 0, None
        later_snapshots = self._snapshots[self._count : self._left].copy() if suffix is not None else self._nothing.snapshots
        if 2 * self._count > len(self._snapshots):
            thinned_snapshots = self._snapshots[: self._count : 2].copy()
            self._snapshots[: len(thinned_snapshots)] = thinned_snapshots
            self._count = len(thinned_snapshots)
        if suffix is None and not self._count:
            return self._none, self._nothing
        row = self._settled_row(program) if self._count else 0
        first, low, begin = row * program.every, int(program.slots_from[row]), program.marks[row]
        if len(state.flag) > len(self._flags):
            self._flags = np.empty(len(state.flag), np.int64)
        self._flags[low : self._slots] = state.flag[low : self._slots]
        if suffix is None or not len(later_snapshots):
            return self._none, self._nothing._replace(flag=self._flags, source=program.source, first=first, low=low, begin=begin)
        return suffix, PreviousRun(self._flags, program.source, first, low, begin, state.unit.copy(), later_snapshots, self._cycles)

    def _settled_row(self, program: Entries) -> int:
        """The last row of marks whose earlier entries have all taken effect at the last snapshot."""
        unit = self._snapshots[self._count - 1, UNIT : UNIT + len(self._state.unit)].reshape(self._cores, columns.UNITS, columns.COLUMNS)
        settled = unit[:, :ENGINES, columns.HEAD].copy()
        for engine in DMAS:
            settled[:, engine] = unit[:, engine, columns.DATA]
        return int((program.marks <= settled.reshape(-1)).all(1).sum()) - 1  # marks grow from row to row
