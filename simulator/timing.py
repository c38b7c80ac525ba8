"""Event-driven timing of a program: cycles under a share of the DDR bandwidth.

The model (all times integer cycles):

* Per core the scalar unit hands out the stream in order, `issue_cycles` each, into one queue per engine; where the queue already
  holds `queue_depth` entries it waits for the oldest to leave.
* The clock starts with the program; its first instruction is handed out after `launch_cycles`.
* An entry leaves its queue when it starts.  It starts at max(dispatch, leaving of its predecessor, completion of its predecessor).
  On a pipelined matrix unit an MMAD starts when its predecessor's occupation ends, and completes `latency_cycles` after its own.
* SET leaves at once and takes effect when everything before it in its queue has completed, `between_cores_cycles` later at another
  core.  WAIT leaves when its SET has taken effect, and holds up its own queue only.  Neither occupies the engine.  The i-th WAIT of a flag
  belongs to the i-th SET.  The counter's limit is not a matter of time; the sanitizer looks after it.
* DDR transfers: a queue issues one at max(dispatch, previous leaving, the cycle in which fewer than `outstanding` before it have data to
  come).  Transfers of a queue take its DMA ports in turn.  A data phase starts at max(issue + latency, data end of the predecessor on its
  port) + the start-up of its path, draws from the DDR port at the rates of `ddr.py`, and ends in the cycle in which the last bus unit is
  through, no earlier than bus / the rate of its path.  Behind an L2 it then goes on for the bytes that the cache has (`l2_traffic`).
  A DMA's move on chip (UB -> L1) waits for all data ends before it, then lasts its fixed time, and has all DMA ports until then.
* Latency is the sum of the machine's, the level's, and `bank_wait_cycles` for each transfer of the same DMA port in flight at the issue:
an integer table over (level, transfers in flight).  But a transfer delays another one only until its own end.  Waiting for
bandwidth happens in the data phases only.

Why bounds hold: every time of a run is a maximum, minimum or sum of earlier times and of the lengths of data phases.  So it never falls if
one of them grows.  (Transfers take DMA ports in turn, not by availability, so ports do not depend on times.)  P(r), the longest path, is
the same run with data phases of ceil(bus / min(cap, r)) cycles, or the path's time.  No rate of `ddr.py` is above min(cap, port) nor, among
n DMA ports, below min(cap, turned port // n), so with sB the port at a share and f sB where its bus turns (f = 1 of an effective rate)

    P(sB) <= T(s) <= P(f sB / n),    n = 1: T(s) = P(sB), which never grows with s.

`prepare` turns a program into arrays once; `simulate_levels` measures it at several levels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from numba import njit
from numpy.typing import NDArray

from simulator import timing_state as columns
from simulator.ddr import ContentionTrace, lone_rates, shared_rates
from simulator.interval_union import compute_union
from simulator.l2_traffic import L2Traffic, draws_of
from simulator.npu import isa
from simulator.npu.cycles import cap_units, port_units, price
from simulator.npu.errors import BadInputError, DeadlockError, ProgramError
from simulator.npu.isa import Op
from simulator.npu.level import NO_CONTENTION, Level
from simulator.npu.machine import Machine
from simulator.npu.parts import DMAS, Engine
from simulator.npu.program import Code, Program
from simulator.timing_converge import no_previous_run
from simulator.timing_kernel import run_event_loop
from simulator.timing_snapshot import no_snapshots
from simulator.timing_state import BUS_BITS, ENGINES, FIXED, KIND_BITS, KIND_MASK, SET, SET_REMOTE, TRANSFER, WAIT, Ints, State
from simulator.timing_tables import BackgroundLoad, constants, level_load, path_table

Flags = NDArray[np.int32]

_OP, _ENGINE, _SRC, _DST = isa.OP, isa.ENGINE, isa.SRC, isa.DST
_FLAG_CORE, _FLAG_ENGINE, _FLAG_ID = isa.FLAG_CORE, isa.FLAG_ENGINE, isa.FLAG_ID
_SET, _WAIT = int(Op.SET), int(Op.WAIT)
_MTE2, _MTE3 = int(Engine.MTE2), int(Engine.MTE3)
_CHUNK = 1 << 14  # rows priced at a time: their prices stay in the cache


@dataclass(frozen=True)
class Prepared:
    """Program in the form of the event loop; independent of the level, but for the L2 that a level grants (`behind`).

    word: int64 [n], entries in queue order, and queue_start: int64 [cores * 7 + 1] (see `timing_state`).
    engine: uint8 [n] and stream_start: int64 [cores + 1], in stream order.
    fixed_cycles, transfers, bus_units: int64 [cores, 7], per queue.  paths: int64 [2, 8, 2] (see `timing_state.PATHS`).
    engine_cycles: `fixed_cycles`, plus issue cycles for the scalar unit.  drawn_units: bus units of all transfers.
    computes_apart: cycles in which CUBE or VECTOR of a core works, summed over cores, if no core has work for both; None: must be
    simulated.
    constants: int64 [PORT], see `timing_state`.  l2: traffic behind the machine's L2, if it has one.
    source: program, and whether it is warm, on a machine with levels that grant a part of its L2; l2_bytes: that part, None for all of it.
    """

    machine: Machine
    word: Ints
    queue_start: Ints
    engine: NDArray[np.uint8]
    stream_start: Ints
    flag_slots: int
    fixed_cycles: Ints
    transfers: Ints
    bus_units: Ints
    ddr_read_bytes: int
    ddr_write_bytes: int
    paths: Ints
    engine_cycles: Ints
    drawn_units: int
    computes_apart: int | None
    constants: Ints
    l2: L2Traffic | None = None
    source: tuple[Program, bool] | None = None
    l2_bytes: int | None = None
    smaller: dict[int, Prepared] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def of(
        cls, machine: Machine, word: Ints, queue_start: Ints, engine: NDArray[np.uint8], stream_start: Ints, flag_slots: int, totals: Ints,
        read_bytes: int, write_bytes: int, l2: L2Traffic | None = None,
    ) -> Prepared:  # fmt: skip
        """A prepared program of these arrays, which become read-only.  totals: int64 [3, queues], fixed cycles, transfers, bus units."""
        fixed, transfers, bus_units = totals.reshape(3, -1, ENGINES)
        engine_cycles = fixed.copy()
        engine_cycles[:, Engine.SCALAR] += (stream_start[1:] - stream_start[:-1]) * machine.issue_cycles
        for array in (word, queue_start, engine, stream_start, fixed, transfers, bus_units, engine_cycles):
            array.flags.writeable = False
        computing = [(of_core[Engine.CUBE], of_core[Engine.VECTOR]) for of_core in fixed.tolist()]
        return cls(
            machine, word, queue_start, engine, stream_start, flag_slots, fixed, transfers, bus_units, read_bytes, write_bytes,
            path_table(machine), engine_cycles, int(bus_units.sum()), None if any(map(all, computing)) else sum(map(sum, computing)),
            constants(machine), l2,
        )  # fmt: skip

    def behind(self, l2_bytes: int | None) -> Prepared:
        """The same program where that much of the L2 is granted; None: all of it."""
        if self.source is None or l2_bytes is None:
            return self
        if l2_bytes not in self.smaller:
            self.smaller[l2_bytes] = prepare(self.source[0], self.machine, self.source[1], l2_bytes)
        return self.smaller[l2_bytes]

    @property
    def cores(self) -> int:
        return len(self.stream_start) - 1

    @property
    def instructions(self) -> int:
        return len(self.word)

    @property
    def transfer_parts(self) -> tuple[Ints, Ints]:
        """Bus units of every entry's transfer, and cycles in which an L2 moves the rest of it; of no meaning for other entries."""
        mask, shift = self.constants[[columns.DRAWN_MASK, columns.HIT_SHIFT]].tolist()
        return self.word >> BUS_BITS & mask, self.word >> shift

    @cached_property
    def queues(self) -> Ints:
        """int64 [queues, 2]: first entry and stop of each."""
        return np.column_stack((self.queue_start[:-1], self.queue_start[1:]))

    @cached_property
    def streams(self) -> Ints:
        """int64 [cores, 2]: first row and stop of each."""
        return np.column_stack((self.stream_start[:-1], self.stream_start[1:]))

    @property
    def dma_ports(self) -> int:
        """DMA ports that move DDR data: the maximum of concurrent transfers."""
        ports = [self.machine.dma_ports(engine) for engine in DMAS]
        return int(np.minimum(self.transfers[:, DMAS], ports).sum())

    def stream_rows(self) -> Ints:
        """int64 [n]: row in the concatenated streams of every entry."""
        rows = [
            start + np.argsort(self.engine[start:end], kind="stable")
            for start, end in zip(self.stream_start[:-1], self.stream_start[1:], strict=True)
        ]
        return np.concatenate(rows).astype(np.int64) if rows else np.zeros(0, np.int64)


@dataclass(frozen=True)
class Recorded:
    """Times of a run, per core, int64 [instructions] in stream order.

    dispatch: cycle of the dispatch to the queue.  start, end: bounds of the work (MMAD: its occupation; DDR transfer: its data phase);
    for SET the cycle in which it leaves the queue and takes effect (at its own core); for WAIT the cycles in which it is at the head and
    passes.
    """

    dispatch: tuple[Ints, ...]
    start: tuple[Ints, ...]
    end: tuple[Ints, ...]


@dataclass(frozen=True)
class Timing:
    """The timing of one run.

    busy_cycles: int64 [cores, 7] by `Engine`; a DMA is busy in its data phases, the scalar unit while issuing.
    load_store_cycles: cycles in which at least one DMA of a core moves DDR data, summed over cores.
    compute_cycles: cycles in which CUBE or VECTOR of a core works, summed over cores.
    bus_units: drawn from the port by all transfers, in 1/65536 bytes.
    """

    cycles: int
    busy_cycles: Ints
    ddr_read_bytes: int
    ddr_write_bytes: int
    bus_units: int
    load_store_cycles: int
    compute_cycles: int
    instructions: int
    recorded: Recorded | None = None

    @property
    def balance(self) -> float:
        """rho: compute cycles per load-store cycle; infinite without loads and stores."""
        return self.compute_cycles / self.load_store_cycles if self.load_store_cycles else float("inf")


@njit(cache=True)
def _count(
    code: Code, core: int, cores: int, ids: int, queue_count: Ints, index: Flags, flags: Ints, flag_count: int, engine: NDArray[np.uint8]
) -> int:
    """First pass over a stream: entries per queue, SETs and WAITs per flag; flags are numbered from 1 in order of appearance.

    index: int32 [queues, queues, ids], number of a flag.  flags: int64 [.., 2], its SETs and WAITs.  Returns the number of known flags,
    or -1 - the first invalid row.
    """
    for i in range(code.shape[0]):
        e = code[i, _ENGINE]
        if e < 0 or e >= ENGINES:
            return -1 - i
        engine[i] = e
        queue = core * ENGINES + e
        queue_count[queue] += 1
        op = code[i, _OP]
        if op in (_SET, _WAIT):
            other_core, other_engine, flag = code[i, _FLAG_CORE], code[i, _FLAG_ENGINE], code[i, _FLAG_ID]
            if other_core < 0 or other_core >= cores or other_engine < 0 or other_engine >= ENGINES or flag < 0 or flag >= ids:
                return -1 - i
            other_queue = other_core * ENGINES + other_engine
            source, target = (queue, other_queue) if op == _SET else (other_queue, queue)
            if index[source, target, flag] == 0:
                flag_count += 1
                index[source, target, flag] = flag_count
            flags[index[source, target, flag], 0 if op == _SET else 1] += 1
    return flag_count


@njit(cache=True)
def _fill(
    code: Code, core: int, busy: Ints, bus: Ints, useful: Ints, word: Ints, cursor: Ints, index: Flags, slots: Ints, totals: Ints
) -> int:
    """Second pass: entries into their queues.  slots: int64 [.., 2], next slot of a flag's SETs and WAITs.

    totals: int64 [5, queues], fixed cycles, transfers, bus units, bytes read, bytes written.  Returns the first invalid row, or -1.
    """
    for i in range(code.shape[0]):
        queue = core * ENGINES + code[i, _ENGINE]
        op = code[i, _OP]
        if op in (_SET, _WAIT):
            other_queue = code[i, _FLAG_CORE] * ENGINES + code[i, _FLAG_ENGINE]
            flag = index[queue, other_queue, code[i, _FLAG_ID]] if op == _SET else index[other_queue, queue, code[i, _FLAG_ID]]
            side = 0 if op == _SET else 1
            kind = WAIT if op == _WAIT else SET if code[i, _FLAG_CORE] == core else SET_REMOTE
            word[cursor[queue]] = slots[flag, side] << KIND_BITS | kind
            slots[flag, side] += 1
        elif bus[i] > 0:
            if code[i, _ENGINE] != _MTE2 and code[i, _ENGINE] != _MTE3:
                return i
            on_chip = np.int64(code[i, _SRC] + code[i, _DST])  # the other one is DDR, which is 0
            word[cursor[queue]] = bus[i] << BUS_BITS | on_chip << KIND_BITS | TRANSFER
            totals[1, queue] += 1
            totals[2, queue] += bus[i]
            totals[3, queue] += max(0, useful[i])
            totals[4, queue] -= min(0, useful[i])
        else:
            word[cursor[queue]] = busy[i] << KIND_BITS | FIXED
            totals[0, queue] += busy[i]
        cursor[queue] += 1
    return -1


def prepare(program: Program, machine: Machine, warm: bool = False, l2_bytes: int | None = None) -> Prepared:
    """Price every record, sort records into their queues and match WAITs with SETs.

    warm: of a machine with an L2, whether the same program has run just before (`l2_traffic`).  l2_bytes: granted part of it; None: all.
    The program must be legal (`Program.verify`); faults that would make the event loop unsafe are refused here too (`ProgramError`).
    """
    cores = len(program.streams)
    if not 1 <= cores <= machine.cores:
        raise ProgramError(f"program has {cores} streams, {machine.name} has {machine.cores} cores")
    queues, ids = cores * ENGINES, machine.flags.ids_per_pair
    stream_start = np.concatenate(([0], np.cumsum([len(code) for code in program.streams]))).astype(np.int64)
    total = int(stream_start[-1])
    engine = np.empty(total, np.uint8)
    queue_count = np.zeros(queues, np.int64)
    index = np.zeros((queues, queues, ids), np.int32)
    flags = np.zeros((min(index.size, total) + 1, 2), np.int64)
    # entries per queue and flags, to know the places of both
    count = 0
    for core, code in enumerate(program.streams):
        stream_engine = engine[stream_start[core] : stream_start[core + 1]]
        count = _count(code, core, cores, ids, queue_count, index, flags, count, stream_engine)
        if count < 0:
            raise ProgramError(f"core {core} instruction {-1 - count}: names an engine, core or flag that {machine.name} does not have")
    queue_start = np.concatenate(([0], np.cumsum(queue_count)))
    # a slot per SET or WAIT of a flag, whichever are more: the i-th WAIT has the slot of the i-th SET
    need = flags[: count + 1].max(axis=1)
    slots = np.repeat(np.cumsum(need) - need, 2).reshape(-1, 2)
    word = np.empty(total, np.int64)
    cursor = queue_start[:-1].copy()
    totals = np.zeros((5, queues), np.int64)
    prices = None if machine.l2 is None else [price(code, machine) for code in program.streams]
    draws = None if prices is None else draws_of(program, machine, tuple(cost.bus for cost in prices), warm, l2_bytes)
    for core, code in enumerate(program.streams):
        for start in range(0, len(code), _CHUNK):
            rows = code[start : start + _CHUNK]
            if prices is None or draws is None:
                busy, bus, useful = price(rows, machine)
            else:
                chunk = slice(start, start + _CHUNK)
                busy, useful = prices[core].busy[chunk], prices[core].useful[chunk]
                bus = draws.drawn_units[core][chunk] | draws.hit_cycles[core][chunk] << columns.DRAWN_BITS
            bad = _fill(rows, core, busy, bus, useful, word, cursor, index, slots, totals)
            if bad >= 0:
                raise ProgramError(f"core {core} instruction {start + bad}: DDR is reached by MTE2 and MTE3 only")
    if draws is not None:
        totals[2] = 0
        for core, (code, units) in enumerate(zip(program.streams, draws.drawn_units, strict=True)):
            np.add.at(totals[2], core * ENGINES + code[:, _ENGINE], units)
    read, written = totals[3:].sum(axis=1).tolist()
    traffic = None if draws is None else draws.traffic
    prepared = Prepared.of(machine, word, queue_start, engine, stream_start, int(need.sum()), totals[:3], read, written, traffic)
    has_parts = l2_bytes is None and any(level.l2_bytes is not None for level in machine.contention.values())
    return replace(prepared, source=(program, warm) if has_parts else None, l2_bytes=l2_bytes)


def _state(prepared: Prepared, record: bool) -> State:
    dma = prepared.machine.dma
    return columns.new_state(
        prepared.instructions,
        prepared.flag_slots,
        prepared.cores,
        dma.load_ports + dma.store_ports,
        int(prepared.constants[columns.RING]),
        record,
    )


def _run(prepared: Prepared, state: State, load: BackgroundLoad, record: bool) -> Timing:
    port = prepared.constants.copy()
    port[columns.RECORD] = record
    port[columns.STEPS] = len(load.rates)
    # no snapshot to resume from or to converge with
    no_history = *no_previous_run(prepared.cores), *no_snapshots()
    cycles = int(
        run_event_loop(*state, prepared.word, prepared.engine, prepared.queues, prepared.streams, load.rates, load.steps, port, *no_history)
    )
    if cycles < 0:
        raise DeadlockError(_deadlock(prepared, state))
    unit = state.unit.reshape(prepared.cores, columns.UNITS, columns.COLUMNS)
    busy = prepared.engine_cycles + unit[:, :ENGINES, columns.MOVED]
    busy.flags.writeable = False
    computing = prepared.computes_apart
    return Timing(
        cycles=cycles,
        busy_cycles=busy,
        ddr_read_bytes=prepared.ddr_read_bytes,
        ddr_write_bytes=prepared.ddr_write_bytes,
        bus_units=prepared.drawn_units,
        load_store_cycles=sum(unit[:, columns.SCALAR_UNIT, columns.CORE_MOVED].tolist()),
        compute_cycles=int(compute_union(state.time, prepared.word, prepared.queue_start, prepared.cores))
        if computing is None
        else computing,
        instructions=prepared.instructions,
        recorded=_recorded(prepared, state) if record else None,
    )


def _recorded(prepared: Prepared, state: State) -> Recorded:
    rows = prepared.stream_rows()

    def per_core(entries: Ints) -> tuple[Ints, ...]:
        stream = np.empty(len(rows), np.int64)
        stream[rows] = entries
        return tuple(np.split(stream, prepared.stream_start[1:-1]))

    return Recorded(*(per_core(column) for column in state.record.reshape(-1, 3).T))


def _deadlock(prepared: Prepared, state: State) -> str:
    """A message with the flags or queues that every blocked queue and scalar unit waits for."""
    rows = prepared.stream_rows()
    setter = {int(w >> KIND_BITS): i for i, w in enumerate(prepared.word.tolist()) if w & KIND_MASK in (SET, SET_REMOTE)}
    entry_queue = np.repeat(np.arange(len(prepared.queue_start) - 1), np.diff(prepared.queue_start))

    def name(entry: int) -> str:
        core, engine = divmod(int(entry_queue[entry]), ENGINES)
        return f"core {core} {Engine(engine).name} instruction {int(rows[entry] - prepared.stream_start[core])}"

    parts = []
    for u, unit in enumerate(state.unit.reshape(-1, columns.COLUMNS).tolist()):
        core, e = divmod(u, columns.UNITS)
        head = unit[columns.HEAD]
        if e == columns.SCALAR_UNIT:
            if unit[columns.FULL] >= 0:
                full = Engine(unit[columns.FULL] // columns.COLUMNS % columns.UNITS).name
                where = f"instruction {unit[columns.PC] - unit[columns.FIRST]}"
                parts.append(f"core {core} cannot dispatch {where}: the queue of {full} is full ({prepared.machine.queue_depth} entries)")
        elif head < unit[columns.TAIL] and (int(prepared.word[head]) & KIND_MASK) == WAIT:
            source = setter.get(int(prepared.word[head]) >> KIND_BITS)
            parts.append(f"{name(head)} waits for " + ("a SET that does not exist" if source is None else f"the SET at {name(source)}"))
    return "deadlock: " + "; ".join(parts)


def _as_prepared(program: Program | Prepared, machine: Machine) -> Prepared:
    if isinstance(program, Prepared):
        if program.machine is not machine and program.machine != machine:  # comparing them takes as long as a small program
            raise BadInputError(f"program was prepared for machine {program.machine.name}, this is {machine.name}")
        return program
    return prepare(program, machine)


def simulate(
    program: Program | Prepared,
    machine: Machine,
    level: Level,
    *,
    shared: bool = True,
    rate_divisor: int = 1,
    record: bool = False,
) -> Timing:
    """Run a program at a contention level.

    shared=False: transfers do not affect each other; each runs at min(cap, port // rate_divisor).  This is the longest path P(r), which
    bounds the real time: P(port) <= T <= P(turned port / number of DMA ports).  record: store start and end of every instruction.

    Raises `DeadlockError`, `ProgramError`, `BadInputError`.
    """
    prepared = _as_prepared(program, machine).behind(level.l2_bytes)
    if shared and rate_divisor != 1:
        raise BadInputError(f"rate_divisor {rate_divisor}: only with shared=False")
    share, latency = level.share_units, level.latency_cycles
    if shared:
        load = level_load(machine, share, latency, prepared.cores)
    else:
        load = BackgroundLoad(lone_rates(machine, share, prepared.cores, rate_divisor)[None], np.array([0, latency], np.int64))
    return _run(prepared, _state(prepared, record), load, record)


def simulate_levels(program: Program | Prepared, machine: Machine, levels: Sequence[str] | None = None) -> dict[str, Timing]:
    """Run a program at several contention levels (default: all of the machine's), prepared once."""
    names = tuple(machine.contention) if levels is None else tuple(levels)
    unknown = [name for name in names if name not in machine.contention]
    if unknown:
        raise BadInputError(f"contention level {unknown[0]!r}: {machine.name} has {', '.join(machine.contention)}")
    prepared = _as_prepared(program, machine)
    state = _state(prepared, record=False)
    timings = {}
    for name in names:
        level = machine.contention[name]
        load = level_load(machine, level.share_units, level.latency_cycles, prepared.cores)
        timings[name] = _run(prepared.behind(level.l2_bytes), state, load, record=False)
    return timings


def simulate_trace(program: Program | Prepared, machine: Machine, trace: ContentionTrace, *, record: bool = False) -> Timing:
    """Run a program under a changing background load; cycles of the trace count from the program's start.

    A share adds the latency of `Machine.load_latency`; the first one grants the L2 of `Machine.l2_bytes_at`.
    """
    prepared = _as_prepared(program, machine).behind(machine.l2_bytes_at(trace.share_units[0]))
    shares, inverse = np.unique(np.asarray(trace.share_units, np.int64), return_inverse=True)
    rates = np.stack([shared_rates(machine, int(share), prepared.cores) for share in shares])[inverse]
    latencies = np.array([machine.load_latency(int(share)) for share in shares], np.int64)[inverse]
    return _run(
        prepared, _state(prepared, record), BackgroundLoad(rates, np.concatenate([np.asarray(trace.cycles, np.int64), latencies])), record
    )


@njit(cache=True)
def _alone_cycles(word: Ints, start: int, end: int, rate: int, paths: Ints, drawn_mask: int, hit_shift: int) -> int:
    total = 0
    for i in range(start, end):
        if (word[i] & KIND_MASK) == TRANSFER:
            startup, slower = paths[word[i] >> KIND_BITS & KIND_MASK]
            least = min(rate, slower) if slower else rate
            drawn = word[i] >> BUS_BITS & drawn_mask
            total += startup + (drawn + least - 1) // least + (word[i] >> hit_shift)
    return total


def program_bound(program: Program | Prepared, machine: Machine, level: Level = NO_CONTENTION) -> int:
    """A lower bound of the cycles at this level: launch, then the busiest engine, or the bus.

    Engine: its fixed cycles, a DMA's also start-up and bus units / min(path, cap, port) rounded up per transfer, over its ports (neither
    data phases nor start-ups of a port overlap), the scalar unit's issue cycles.  Bus: all bus units / port, as if it never turned;
    max(port, DMA ports), because a rate is never below one unit.
    """
    prepared = _as_prepared(program, machine).behind(level.l2_bytes)
    port = port_units(machine, level.share_units)
    busy, of_words = prepared.engine_cycles.copy(), prepared.constants[[columns.DRAWN_MASK, columns.HIT_SHIFT]].tolist()
    for core in range(prepared.cores):
        for k, engine in enumerate(DMAS):
            q = core * ENGINES + engine
            rate = max(1, min(cap_units(machine, engine), port))
            queue = prepared.queue_start[q], prepared.queue_start[q + 1]
            lone_cycles = _alone_cycles(prepared.word, *queue, rate, prepared.paths[k], *of_words)
            busy[core, engine] += -(-lone_cycles // machine.dma_ports(engine))
    drawn = max(port, prepared.dma_ports)
    return machine.launch_cycles + max(int(busy.max()), -(-prepared.drawn_units // drawn))
