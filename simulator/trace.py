"""A run as a trace: a group per core, a lane per engine and a lane of its waits.

Events of a lane never overlap, and the work of a lane adds up to the engine's busy cycles.  A DMA with several ports has a lane of work
for each; on-chip moves are in the first.
Segments overlap, because data of the next one are loaded early, and so do blocks: both are spans.  Counters show the bytes in use of every
on-chip memory; the DDR port has a group of its own.

Times are rounded where events meet, so that neighbours still meet; exact cycles are among the arguments (`trace_events`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from simulator.critical_path import WAITS, WORK, critical_chain
from simulator.npu import isa
from simulator.npu.isa import Op
from simulator.npu.machine_parts import MAX_PORTS
from simulator.npu.parts import BLOCK_BYTES, DMAS, SUM_BYTES, DataType, Engine, Memory
from simulator.occupancy import Steps, bytes_in_use, ddr_use, limit_points, shared_in_use
from simulator.timeline import Cause, Mask, Timeline, uncontended_data_cycles
from simulator.timing_state import ENGINES, Ints
from simulator.trace_events import Arguments, AsyncSlice, Column, Counter, Event, Group, Lane, Slices, Texts, Trace, nanoseconds

_CHUNK = 1 << 13  # events of a batch
_LANES = 100  # lane numbers per core
MAX_POINTS = 20_000  # points of a counter

_COPY_BLOCKS = (isa.C_LENGTH, isa.C_COUNT, isa.C_COUNT2)
_MEMORIES = [memory.name for memory in Memory]
_TYPES = [dtype.name for dtype in DataType]
_PRODUCTS = _TYPES + [f"{a} x {b}" for a in _TYPES for b in _TYPES]


def trace_run(run: Timeline, operators: Sequence[str] = (), about: Mapping[str, Any] | None = None) -> Trace:
    """A run as a trace.  operators: names by the number in TAG; about: more facts of the file (JSON values)."""
    facts = {"machine": run.machine.name, "clock_hz": run.machine.clock_hz, "cycles": run.cycles, "ddr": run.level.model_dump()}
    facts |= about or {}
    return Trace(facts, _events(run, _Names(run, operators), str(facts.get("level", ""))))


def _events(run: Timeline, names: _Names, level: str) -> Iterator[Event]:
    suffix = f" at level {level}" if level else ""
    chain, port = run.cores + 2, run.cores + 1
    yield Group(chain, "longest chain")
    yield Lane(chain, _lane(chain, 0, 0), "what held up what")
    yield from _longest(run, names, chain)
    for core in range(run.cores):
        yield Group(core + 1, f"core {core}{suffix}")
        yield from _spans(run, names, core)
        for engine in Engine:
            ports = run.machine.dma_ports(engine) if engine in DMAS else 1
            for number in range(ports):
                yield Lane(core + 1, _lane(core, engine, 0, number), f"{engine.name} port {number}" if number else engine.name)
            yield Lane(core + 1, _lane(core, engine, 1), f"{engine.name} waits")
        yield from _work(run, names, core)
        yield from _issue(run, names, core)
        yield from _waits(run, names, core)
        for memory, steps in bytes_in_use(run, core).items():
            yield _counter(run, core + 1, f"{memory.name} bytes in use", steps, "bytes")
    yield Group(port, "DDR port")
    shared = shared_in_use(run)
    if shared is not None:
        yield _counter(run, port, "SHARED bytes in use", shared, "bytes")
    use = ddr_use(run)
    to_gb = run.machine.clock_hz / 1e9
    yield _counter(run, port, "DDR read GB/s", use.read, "GB/s", to_gb)
    yield _counter(run, port, "DDR write GB/s", use.write, "GB/s", to_gb)
    yield _counter(run, port, "DDR port in use, percent of the level's share", use.port, "percent", 100)


def _lane(core: int, engine: int, waits: int, port: int = 0) -> int:
    """Number of a lane; ports after a DMA's first have numbers above the 14 that every core has."""
    lane = 2 * int(engine) + waits + 1 if port == 0 else 2 * len(Engine) + DMAS.index(Engine(engine)) * MAX_PORTS + port
    return (core + 1) * _LANES + lane


# --- names -------------------------------------------------------------------------------------------------------


class _Names:
    """Texts of rows: the operator, and the operator with its activity."""

    def __init__(self, run: Timeline, operators: Sequence[str]) -> None:
        numbers = int(run.operator.max(initial=-1)) + 1
        self.run, self.many = run, _in_blocks(run)
        self.operators = list(operators) + [f"operator {i}" for i in range(len(operators), numbers)]

    def operator(self, rows: Ints) -> Texts:
        return Texts(self.operators, self.run.operator[rows])

    def issues(self, rows: Ints) -> Texts:
        return distinct_texts(lambda *place: f"{self._place(*place)}: issue", *self._places(rows))

    def work(self, rows: Ints) -> Texts:
        """Operators and activities: conv block 2: COPY DDR>L1, conv: MMAD, ..."""

        def text(operator: int, block: int, op: int, source: int, destination: int) -> str:
            kind = f"COPY {_MEMORIES[source]}>{_MEMORIES[destination]}" if op == Op.COPY else Op(op).name
            return f"{self._place(operator, block)}: {kind}"

        code = self.run.code
        return distinct_texts(text, *self._places(rows), *(code[rows, word] for word in (isa.OP, isa.SRC, isa.DST)))

    def _places(self, rows: Ints) -> tuple[Ints, Ints]:
        """Operators, and blocks where the segment has several, else -1."""
        return self.run.operator[rows], np.where(self.many[rows], self.run.block[rows], -1)

    def _place(self, operator: int, block: int) -> str:
        return self.operators[operator] + (f" block {block}" if block >= 0 else "")


def distinct_texts(text: Callable[..., str], *columns: Ints) -> Texts:
    """A text for each row, made once for rows that are equal in all columns."""
    key = np.zeros(len(columns[0]), np.int64)
    for column in columns:
        least = int(column.min(initial=0))
        key = key * (int(column.max(initial=0)) - least + 1) + column - least
    _, first, index = np.unique(key, return_index=True, return_inverse=True)
    return Texts([text(*row) for row in zip(*(column[first].tolist() for column in columns), strict=True)], index)


def _in_blocks(run: Timeline) -> Mask:
    """Rows of segments with more than one block."""
    some, inverse = np.unique(run.segment, return_inverse=True)
    last = np.zeros(len(some), np.int64)
    np.maximum.at(last, inverse, run.block)
    mask: Mask = last[inverse] > 0
    return mask


# --- events ------------------------------------------------------------------------------------------------------


def _chunks(rows: Ints) -> list[Ints]:
    return [rows[first : first + _CHUNK] for first in range(0, len(rows), _CHUNK)]


def _slices(
    run: Timeline, category: str, lane: tuple[int, int], start: Ints, end: Ints, name: Texts, kinds: Sequence[tuple[Ints, Arguments]]
) -> Slices:
    """lane: number of its group, and its own."""
    return Slices(category, *lane, nanoseconds(start, run.machine.clock_hz), nanoseconds(end, run.machine.clock_hz), name, kinds)


def _work(run: Timeline, names: _Names, core: int) -> Iterator[Event]:
    """An event per instruction, lane by lane."""
    for engine in list(Engine)[: Engine.SCALAR]:
        queue = run.queues[core * ENGINES + engine]
        queue = queue[run.work[queue]]
        port = np.where(run.transfer[queue], run.port[queue], 0)
        for number in np.unique(port).tolist():
            rows = queue[port == number]
            for some in _chunks(rows[np.lexsort((run.end[rows], run.start[rows]))]):
                kind = run.code[some, isa.OP] * 2 + run.transfer[some]
                kinds = []
                for key in np.unique(kind).tolist():
                    events = np.flatnonzero(kind == key)
                    alike = some[events]
                    common: dict[str, Column] = {
                        "operator": names.operator(alike),
                        "segment": run.segment[alike],
                        "block": run.block[alike],
                        "instruction": alike - run.stream_start[core],
                        "start_cycle": run.start[alike],
                        "cycles": run.end[alike] - run.start[alike],
                    }
                    kinds.append((events, common | _details(run, Op(key // 2), alike)))
                lane = core + 1, _lane(core, engine, 0, number)
                yield _slices(run, engine.name, lane, run.start[some], run.end[some], names.work(some), kinds)


def _details(run: Timeline, op: Op, rows: Ints) -> dict[str, Column]:
    """Arguments of a kind of instruction; addresses in bytes."""
    code = run.code[rows].astype(np.int64)

    def address(word: int) -> Ints:
        return code[:, word] * BLOCK_BYTES

    dtype = code[:, isa.DTYPE]
    lanes, n0 = isa.TYPE_LANES[dtype], isa.COLUMNS[dtype]
    texts: dict[str, Column] = {"from": Texts(_MEMORIES, code[:, isa.SRC]), "to": Texts(_MEMORIES, code[:, isa.DST])}
    texts["type"] = Texts(_TYPES, dtype)
    numbers: dict[str, Column] = {}
    if op == Op.COPY:
        numbers |= {"bytes": code[:, _COPY_BLOCKS].prod(axis=1) * BLOCK_BYTES, "run_bytes": address(isa.C_LENGTH)}
        # cycles that DDR transfers lose: to the background load, then to other DMAs
        if run.transfer[rows].any():
            lone_cycles, level_cycles = uncontended_data_cycles(run, rows), uncontended_data_cycles(run, rows, run.level.share_units)
            numbers |= {
                "alone_cycles": lone_cycles,
                "lost_to_background_cycles": level_cycles - lone_cycles,
                "lost_to_sharing_cycles": run.end[rows] - run.start[rows] - level_cycles,
            }
    elif op == Op.IM2COL:
        numbers |= {"bytes": code[:, isa.I_K] * code[:, isa.I_MPAD] * BLOCK_BYTES, "m": code[:, isa.I_M], "k": code[:, isa.I_K] * lanes}
    elif op == Op.FRACTAL:
        k, n = code[:, isa.R_K] * lanes, code[:, isa.R_N1] * n0
        numbers |= {
            "bytes": code[:, isa.R_K] * code[:, isa.R_N1] * isa.WEIGHT_BLOCKS[dtype] * BLOCK_BYTES,
            "k": k,
            "n": n,
            "transpose": code[:, isa.R_TRANSPOSE],
        }
    elif op == Op.MMAD:
        right = code[:, isa.M_RIGHT]
        mixed = (right != 0) & (right != dtype)
        texts["type"] = Texts(_PRODUCTS, np.where(mixed, (dtype + 1) * len(_TYPES) + right, dtype))
        m, k, n = code[:, isa.M_MPAD], code[:, isa.M_K] * lanes, code[:, isa.M_N1] * n0
        numbers |= {"m": m, "k": k, "n": n, "macs": m * k * n, "accumulates": code[:, isa.M_ACC], "weights_at": address(isa.S1)}
    elif op == Op.MMAD_IM2COL:
        m, k, n = code[:, isa.I_MPAD], code[:, isa.I_K] * lanes, code[:, isa.W_N1] * n0
        numbers |= {"m": m, "k": k, "n": n, "macs": m * k * n, "accumulates": code[:, isa.W_ACC], "weights_at": address(isa.S1)}
    elif op == Op.FIXPIPE:
        m, n = code[:, isa.F_M], code[:, isa.F_N1] * n0
        numbers |= {
            "bytes": m * n * SUM_BYTES,
            "m": m,
            "n": n,
            "bias": (code[:, isa.S1] >= 0) * 1,
            "residual": (code[:, isa.S2] >= 0) * 1,
        }
    else:
        numbers |= {
            "bytes": code[:, isa.V_BLOCKS] * code[:, isa.V_REPEATS] * BLOCK_BYTES,
            "blocks": code[:, isa.V_BLOCKS],
            "repeats": code[:, isa.V_REPEATS],
        }
    if op != Op.VFILL:
        numbers["from_at"] = address(isa.S0)
    return texts | numbers | {"to_at": address(isa.D)}


def _issue(run: Timeline, names: _Names, core: int) -> Iterator[Event]:
    """Events of the scalar unit: consecutive instructions of one operator and block are one event."""
    first, stop = int(run.stream_start[core]), int(run.stream_start[core + 1])
    if run.machine.issue_cycles == 0 or first == stop:
        return
    step, end = np.column_stack((run.code[first:stop, isa.TAG], run.block[first:stop])), run.dispatch[first:stop]
    start = end - run.machine.issue_cycles
    new = np.flatnonzero(np.concatenate(([True], (step[1:] != step[:-1]).any(axis=1) | (start[1:] != end[:-1]))))
    last = np.concatenate((new[1:], [len(end)])) - 1
    for some in _chunks(np.arange(len(new))):
        begin, final = new[some], last[some]
        rows = begin + first
        arguments: Arguments = {
            "segment": run.segment[rows],
            "block": run.block[rows],
            "instruction": begin,
            "instructions": final - begin + 1,
            "start_cycle": start[begin],
            "cycles": end[final] - start[begin],
        }
        lane = core + 1, _lane(core, Engine.SCALAR, 0)
        yield _slices(run, "SCALAR", lane, start[begin], end[final], names.issues(rows), [(np.arange(len(some)), arguments)])


def _waits(run: Timeline, names: _Names, core: int) -> Iterator[Event]:
    """Events of waiting engines: one per stall, with the cause in its name."""

    def text(cause: int, engine: int, source_core: int) -> str:
        source = Engine(engine).name + (f" of core {source_core}" if source_core >= 0 else "") if engine >= 0 else ""
        return _CAUSES[Cause(cause)] + source

    stalls = run.stalls
    queue = stalls.core * ENGINES + stalls.engine
    for engine in Engine:
        first, stop = np.searchsorted(queue, core * ENGINES + engine + np.arange(2))
        for some in _chunks(np.arange(first, stop)):
            other_core = np.where(stalls.source_core[some] != core, stalls.source_core[some], -1)
            name = distinct_texts(text, stalls.cause[some], stalls.source_engine[some], other_core)
            kinds = []
            for cause in Cause:
                events = np.flatnonzero(stalls.cause[some] == cause)
                alike = some[events]
                rows = stalls.row[alike]
                arguments: dict[str, Column] = {
                    "cause": Texts([cause.name.lower()], np.zeros(len(rows), np.int64)),
                    "operator": names.operator(rows),
                    "segment": run.segment[rows],
                    "block": run.block[rows],
                    "instruction": rows - run.stream_start[core],
                    "start_cycle": stalls.start[alike],
                    "cycles": stalls.end[alike] - stalls.start[alike],
                }
                if cause == Cause.FLAG:
                    # the work before the SET; -1 without work
                    work_before = stalls.source_row[alike]
                    work = names.work(np.maximum(work_before, 0))
                    arguments["set_after"] = Texts([*work.choices, ""], np.where(work_before >= 0, work.number, len(work.choices)))
                    arguments["flag"] = run.code[rows, isa.FLAG_ID].astype(np.int64)
                    arguments["from_core"] = stalls.source_core[alike]
                kinds.append((events, arguments))
            yield _slices(run, "stall", (core + 1, _lane(core, engine, 1)), stalls.start[some], stalls.end[some], name, kinds)


_CAUSES = {
    Cause.FLAG: "waits for ",
    Cause.LATENCY: "waits for DDR latency",
    Cause.ISSUE: "waits for issue",
    Cause.QUEUE: "waits for room in the queue of ",
}


def _longest(run: Timeline, names: _Names, group: int) -> Iterator[Event]:
    """Events of the critical chain; consecutive links of one operator, engine and cause are one event."""
    chain = critical_chain(run)
    if not len(run.code) or not len(chain.row):
        return
    rows = np.maximum(chain.row, 0)
    operator = np.where(chain.row >= 0, run.operator[rows], -1)
    kind = np.column_stack([operator, chain.engine, chain.cause])
    # links of one operator, engine and cause become one event
    new = np.flatnonzero(np.concatenate(([True], (kind[1:] != kind[:-1]).any(axis=1))))
    last = np.concatenate((new[1:], [len(kind)])) - 1

    def text(number: int, engine: int, cause: int) -> str:
        activity = Engine(engine).name + ("" if cause == WORK else f" {WAITS[Cause(cause)]}")
        return f"{names.operators[number]}: {activity}" if number >= 0 else activity

    for some in _chunks(np.arange(len(new))):
        begin, final = new[some], last[some]
        start, end, first = chain.start[begin], chain.end[final], rows[begin]
        arguments: Arguments = {
            "engine": Texts([engine.name for engine in Engine], chain.engine[begin]),
            "operator": Texts([*names.operators, ""], np.where(operator[begin] >= 0, operator[begin], len(names.operators))),
            "segment": run.segment[first],
            "instruction": first - run.stream_start[run.core[first]],
            "links": final - begin + 1,
            "start_cycle": start,
            "cycles": end - start,
        }
        name = distinct_texts(text, operator[begin], chain.engine[begin], chain.cause[begin])
        yield _slices(run, "chain", (group, _lane(group, 0, 0)), start, end, name, [(np.arange(len(some)), arguments)])


def _spans(run: Timeline, names: _Names, core: int) -> Iterator[Event]:
    """Events of segments and, in segments with several, of blocks, from the start of the first work to the end of the last.

    Blocks of one number have one name: viewers show them in one row.
    """

    def span(category: str, key: int, rows: Ints, name: str, arguments: Mapping[str, int]) -> AsyncSlice:
        start, end = int(run.start[rows].min()), int(run.end[rows].max())
        begin_ns, end_ns = nanoseconds(np.array([start, end]), run.machine.clock_hz).tolist()
        cycles = {"start_cycle": start, "cycles": end - start}
        return AsyncSlice(category, core << 48 | key, core + 1, _lane(core, 0, 0), name, begin_ns, end_ns, {**arguments, **cycles})

    work = np.flatnonzero(run.work & (run.core == core))
    for rows in _grouped(work, run.segment):
        number, operators = int(run.segment[rows[0]]), np.unique(run.operator[rows]).tolist()
        inside = names.operators[operators[0]] + (f" .. {names.operators[operators[-1]]}" if len(operators) > 1 else "")
        yield span("segment", number, rows, f"segment {number}: {inside}", {"operators": len(operators)})
    for rows in _grouped(work[names.many[work]], run.segment << 32 | run.block):
        number, block = int(run.segment[rows[0]]), int(run.block[rows[0]])
        yield span("block", number << 32 | block, rows, f"block {block}", {"segment": number, "block": block})


def _grouped(rows: Ints, key: Ints) -> list[Ints]:
    """Rows of equal key together, in order of the key."""
    keys = key[rows]
    order = np.argsort(keys, kind="stable")
    return np.split(rows[order], np.flatnonzero(np.diff(keys[order])) + 1) if len(rows) else []


def _counter(run: Timeline, group: int, name: str, steps: Steps, unit: str, scale: float | None = None) -> Counter:
    steps = limit_points(steps, MAX_POINTS)
    values = steps.value if scale is None else np.asarray(steps.value * scale, np.float64)
    return Counter(group, name, unit, nanoseconds(steps.cycle, run.machine.clock_hz), values)
