"""A run as Chrome trace events: opens in Perfetto (ui.perfetto.dev) and chrome://tracing.

A process is a core.  Every engine has a lane of work and, below it, a lane of its waits.  Events of a lane never overlap, and the
work of a lane adds up to the engine's busy cycles.  A DMA with several ports has a lane of work for each; on-chip moves are in the first.
Segments overlap, because data of the next one are loaded early, and so do blocks: both are asynchronous events.  Counters show the bytes
in use of every on-chip memory; the DDR port has a process of its own.

Times are rounded where events meet, so that neighbours still meet; exact cycles are among the arguments (`trace_events`).

Each kind of event has one format string, which is repeated: a hundred thousand events take a fraction of a second.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.critical_path import WAITS, WORK, critical_chain
from simulator.npu import isa
from simulator.npu.isa import Op
from simulator.npu.machine_parts import MAX_PORTS
from simulator.npu.parts import BLOCK_BYTES, DMAS, SUM_BYTES, DataType, Engine, Memory
from simulator.occupancy import Steps, bytes_in_use, ddr_use, limit_points, shared_in_use
from simulator.timeline import Cause, Mask, Stalls, Timeline, uncontended_data_cycles
from simulator.timing_state import Ints
from simulator.trace_events import CLOSING, meta, nanoseconds, opening

Columns = dict[str, Ints]
_CHUNK = 1 << 13  # events formatted at a time
_LANES = 100  # thread ids per core: some viewers need different ids over all processes
MAX_POINTS = 20_000  # points of a counter

_COPY_BLOCKS = (isa.C_LENGTH, isa.C_COUNT, isa.C_COUNT2)


def chrome_trace(run: Timeline, operators: Sequence[str] = (), about: Mapping[str, Any] | None = None) -> Iterator[bytes]:
    """The file in pieces.  operators: names by the number in TAG; about: metadata of the file (JSON values)."""
    about = {"machine": run.machine.name, "clock_hz": run.machine.clock_hz, "cycles": run.cycles, "ddr": run.level.model_dump()} | dict(
        about or {}
    )
    yield opening(about)
    yield ",\n".join(_names(run, str(about.get("level", "")))).encode()
    names = _Names(run, operators)
    waits = run.stalls
    # a process per core, its lanes and its counters
    for core in range(run.cores):
        for pieces in (
            _segments(run, names, core),
            _blocks(run, names, core),
            _work(run, names, core),
            _issue(run, names, core),
            _waits(run, names, waits, core),
        ):
            for piece in pieces:
                yield b",\n" + piece.encode()
        for memory, steps in bytes_in_use(run, core).items():
            yield from _counter(run, core + 1, f"{memory.name} bytes in use", steps, "bytes", 1)
    shared = shared_in_use(run)
    if shared is not None:
        yield from _counter(run, run.cores + 1, "SHARED bytes in use", shared, "bytes", 1)
    # a process for the DDR port, and one for the critical path
    use = ddr_use(run)
    to_gb = run.machine.clock_hz / 1e9
    yield from _counter(run, run.cores + 1, "DDR read GB/s", use.read, "GB/s", to_gb)
    yield from _counter(run, run.cores + 1, "DDR write GB/s", use.write, "GB/s", to_gb)
    yield from _counter(run, run.cores + 1, "DDR port in use, percent of the level's share", use.port, "percent", 100)
    for piece in _longest(run, names):
        yield b",\n" + piece.encode()
    yield CLOSING


# --- names -------------------------------------------------------------------------------------------------------


class _Names:
    """JSON strings for rows: the operator, and the operator with its activity."""

    def __init__(self, run: Timeline, operators: Sequence[str]) -> None:
        self.t = run
        quoted_names = [json.dumps(name)[1:-1] for name in operators]
        numbers = int(run.operator.max(initial=-1)) + 1
        self.block = run.block
        self.many = _in_blocks(run)
        self.operators = quoted_names + [f"operator {i}" for i in range(len(quoted_names), numbers)]

    def operator(self, rows: Ints) -> list[str]:
        return [self.operators[i] for i in self.t.operator[rows].tolist()]

    def work(self, rows: Ints) -> list[str]:
        return [f"{a}: {b}" for a, b in zip(self.places(rows), self.activities(rows), strict=True)]

    def places(self, rows: Ints) -> list[str]:
        """Operators, with the block where the segment has several."""
        labels = zip(self.operator(rows), self.block[rows].tolist(), self.many[rows].tolist(), strict=True)
        return [f"{name} block {block}" if many else name for name, block, many in labels]

    def activities(self, rows: Ints) -> list[str]:
        """Activities: COPY DDR>L1, MMAD, ..."""
        code = self.t.code[rows]
        key = (code[:, isa.OP].astype(np.int64) * 8 + code[:, isa.SRC]) * 8 + code[:, isa.DST]
        some, inverse = np.unique(key, return_inverse=True)
        shown = [_kind(int(k)) for k in some]
        return [shown[i] for i in inverse.tolist()]


def _in_blocks(run: Timeline) -> Mask:
    """Rows of segments with more than one block."""
    some, inverse = np.unique(run.segment, return_inverse=True)
    last = np.zeros(len(some), np.int64)
    np.maximum.at(last, inverse, run.block)
    mask: Mask = last[inverse] > 0
    return mask


def _kind(key: int) -> str:
    op, src, dst = key // 64, key // 8 % 8, key % 8
    return f"COPY {Memory(src).name}>{Memory(dst).name}" if op == Op.COPY else Op(op).name


def _names(run: Timeline, level: str) -> Iterator[str]:
    suffix = f" at level {level}" if level else ""
    for core in range(run.cores):
        yield meta("process_name", core + 1, 0, {"name": f"core {core}{suffix}"})
        yield meta("process_sort_index", core + 1, 0, {"sort_index": core + 1})
        for engine in Engine:
            ports = run.machine.dma_ports(engine) if engine in DMAS else 1
            lanes = [(_lane(core, engine, 0, port), f"{engine.name} port {port}" if port else engine.name) for port in range(ports)]
            for tid, name in (*lanes, (_lane(core, engine, 1), f"{engine.name} waits")):
                yield meta("thread_name", core + 1, tid, {"name": name})
                yield meta("thread_sort_index", core + 1, tid, {"sort_index": 2 * int(engine) + name.endswith(" waits")})
    yield meta("process_name", run.cores + 1, 0, {"name": "DDR port"})
    yield meta("process_sort_index", run.cores + 1, 0, {"sort_index": run.cores + 1})
    chain = run.cores + 2
    yield meta("process_name", chain, 0, {"name": "longest chain"})
    yield meta("process_sort_index", chain, 0, {"sort_index": 0})
    yield meta("thread_name", chain, _lane(chain, 0, 0), {"name": "what held up what"})


def _lane(core: int, engine: int, waits: int, port: int = 0) -> int:
    """Thread id of a lane; ports after a DMA's first have ids above the 14 that every core has."""
    lane = 2 * int(engine) + waits + 1 if port == 0 else 2 * len(Engine) + DMAS.index(Engine(engine)) * MAX_PORTS + port
    return (core + 1) * _LANES + lane


# --- events ------------------------------------------------------------------------------------------------------


def _events(
    run: Timeline, head: str, start: Ints, end: Ints, texts: Mapping[str, Sequence[str]], numbers: Mapping[str, Ints]
) -> Iterator[str]:
    """Complete events, many to a piece.  head: category, process and lane; texts: `name` and arguments that are JSON string contents."""
    if not len(start):
        return
    begin, stop = nanoseconds(start, run.machine.clock_hz), nanoseconds(end, run.machine.clock_hz)
    arguments = [f'"{key}":"%s"' for key in texts if key != "name"] + [f'"{key}":%d' for key in numbers]
    form = f'{{"ph":"X",{head},"ts":%d.%03d,"dur":%d.%03d,"name":"%s","args":{{{",".join(arguments)}}}}}'
    times = [x for value in (begin, stop - begin) for x in np.divmod(value, 1000)]
    text_columns = [texts[key] for key in texts if key != "name"]
    columns = [*(c.tolist() for c in times), texts["name"], *text_columns, *(c.tolist() for c in numbers.values())]
    for first in range(0, len(start), _CHUNK):
        part = [column[first : first + _CHUNK] for column in columns]
        yield ",\n".join([form] * len(part[0])) % tuple(chain.from_iterable(zip(*part, strict=True)))


def _work(run: Timeline, names: _Names, core: int) -> Iterator[str]:
    """A complete event per instruction, lane by lane and kind by kind."""
    for engine in list(Engine)[: Engine.SCALAR]:
        queue = run.queues[core * len(Engine) + engine]
        queue = queue[run.work[queue]]
        op, port = run.code[queue, isa.OP], np.where(run.transfer[queue], run.port[queue], -1)  # -1: no DDR memory
        for value in np.unique(op):
            for lane in np.unique(port[op == value]).tolist():
                rows = queue[(op == value) & (port == lane)]
                texts, numbers = _details(run, Op(int(value)), rows)
                common_numbers = {
                    "segment": run.segment[rows],
                    "block": names.block[rows],
                    "instruction": rows - run.stream_start[core],
                    "start_cycle": run.start[rows],
                    "cycles": run.end[rows] - run.start[rows],
                }
                shown = {"name": names.work(rows), "operator": names.operator(rows)} | texts
                head = f'"cat":"{engine.name}","pid":{core + 1},"tid":{_lane(core, engine, 0, max(0, lane))}'
                yield from _events(run, head, run.start[rows], run.end[rows], shown, common_numbers | numbers)


def _details(run: Timeline, op: Op, rows: Ints) -> tuple[dict[str, Sequence[str]], Columns]:
    """Arguments of a kind of instruction; addresses in bytes."""
    code = run.code[rows].astype(np.int64)

    def address(word: int) -> Ints:
        return code[:, word] * BLOCK_BYTES

    def memory(word: int) -> Sequence[str]:
        some = [m.name for m in Memory]
        return [some[i] for i in code[:, word].tolist()]

    dtype = code[:, isa.DTYPE]
    types = [DataType(value).name for value in dtype.tolist()]
    texts: dict[str, Sequence[str]] = {"from": memory(isa.SRC), "to": memory(isa.DST), "type": types}
    lanes, n0 = isa.TYPE_LANES[dtype], isa.COLUMNS[dtype]
    numbers: Columns = {}
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
        mixed = (code[:, isa.M_RIGHT] != 0) & (code[:, isa.M_RIGHT] != dtype)
        for i in np.flatnonzero(mixed).tolist():
            types[i] += f" x {DataType(int(code[i, isa.M_RIGHT])).name}"
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
    return texts, numbers | {"to_at": address(isa.D)}


def _issue(run: Timeline, names: _Names, core: int) -> Iterator[str]:
    """Events of the scalar unit: consecutive instructions of one operator and block are one event."""
    if run.machine.issue_cycles == 0:
        return
    first, stop = int(run.stream_start[core]), int(run.stream_start[core + 1])
    if first == stop:
        return
    step, end = np.column_stack((run.code[first:stop, isa.TAG], run.block[first:stop])), run.dispatch[first:stop]
    start = end - run.machine.issue_cycles
    new = np.flatnonzero(np.concatenate(([True], (step[1:] != step[:-1]).any(axis=1) | (start[1:] != end[:-1]))))
    last = np.concatenate((new[1:], [len(end)])) - 1
    rows = new + first
    texts = {"name": [f"{name}: issue" for name in names.places(rows)]}
    numbers = {
        "segment": run.segment[rows],
        "block": names.block[rows],
        "instruction": new,
        "instructions": last - new + 1,
        "start_cycle": start[new],
        "cycles": end[last] - start[new],
    }
    head = f'"cat":"SCALAR","pid":{core + 1},"tid":{_lane(core, Engine.SCALAR, 0)}'
    yield from _events(run, head, start[new], end[last], texts, numbers)


def _waits(run: Timeline, names: _Names, stalls: Stalls, core: int) -> Iterator[str]:
    """Events of waiting engines: one per stall, with the cause in its name."""
    engines = [engine.name for engine in Engine]
    for engine in Engine:
        for cause in Cause:
            matches = np.flatnonzero((stalls.core == core) & (stalls.engine == engine) & (stalls.cause == cause))
            rows, source = stalls.row[matches], [engines[e] for e in stalls.source_engine[matches].tolist()]
            far = stalls.source_core[matches] != core
            source = [
                f"{name} of core {c}" if f else name
                for name, c, f in zip(source, stalls.source_core[matches].tolist(), far.tolist(), strict=True)
            ]
            texts = {"name": _CAUSES[cause](source), "cause": [cause.name.lower()] * len(matches), "operator": names.operator(rows)}
            numbers = {
                "segment": run.segment[rows],
                "block": names.block[rows],
                "instruction": rows - run.stream_start[core],
                "start_cycle": stalls.start[matches],
                "cycles": stalls.end[matches] - stalls.start[matches],
            }
            # the work before the SET; -1 without work
            if cause == Cause.FLAG:
                work_before = stalls.source_row[matches]
                texts["set_after"] = [
                    name if row >= 0 else "" for name, row in zip(names.work(np.maximum(work_before, 0)), work_before.tolist(), strict=True)
                ]
                numbers["flag"] = run.code[rows, isa.FLAG_ID].astype(np.int64)
                numbers["from_core"] = stalls.source_core[matches]
            head = f'"cat":"stall","pid":{core + 1},"tid":{_lane(core, engine, 1)}'
            yield from _events(run, head, stalls.start[matches], stalls.end[matches], texts, numbers)


_CAUSES = {
    Cause.FLAG: lambda source: [f"waits for {name}" for name in source],
    Cause.LATENCY: lambda source: ["waits for DDR latency"] * len(source),
    Cause.ISSUE: lambda source: ["waits for issue"] * len(source),
    Cause.QUEUE: lambda source: [f"waits for room in the queue of {name}" for name in source],
}


def _longest(run: Timeline, names: _Names) -> Iterator[str]:
    """Events of the critical chain; consecutive links of one operator, engine and cause are one event."""
    chain = critical_chain(run)
    rows = np.maximum(chain.row, 0)
    kind = (
        np.column_stack([np.where(chain.row >= 0, run.operator[rows], -1), chain.engine, chain.cause])
        if len(run.code)
        else chain.engine[:0]
    )
    if not len(kind):
        return
    # links of one operator, engine and cause become one event
    new = np.flatnonzero(np.concatenate(([True], (kind[1:] != kind[:-1]).any(axis=1))))
    last = np.concatenate((new[1:], [len(kind)])) - 1
    start, end = chain.start[new], chain.end[last]
    engines, causes = [Engine(e).name for e in chain.engine[new].tolist()], chain.cause[new].tolist()
    activities = [engine if cause == WORK else f"{engine} {WAITS[Cause(cause)]}" for engine, cause in zip(engines, causes, strict=True)]
    operator_names = names.operator(rows[new])
    operators = [name if row >= 0 else "" for name, row in zip(operator_names, chain.row[new].tolist(), strict=True)]
    shown = [f"{name}: {activity}" if name else activity for name, activity in zip(operators, activities, strict=True)]
    texts = {"name": shown, "engine": engines, "operator": operators}
    numbers = {
        "segment": run.segment[rows[new]],
        "instruction": rows[new] - run.stream_start[run.core[rows[new]]],
        "links": last - new + 1,
        "start_cycle": start,
        "cycles": end - start,
    }
    pid = run.cores + 2
    yield from _events(run, f'"cat":"chain","pid":{pid},"tid":{_lane(pid, 0, 0)}', start, end, texts, numbers)


def _segments(run: Timeline, names: _Names, core: int) -> Iterator[str]:
    """Events of segments, from the start of the first work to the end of the last."""
    for rows in _grouped(np.flatnonzero(run.work & (run.core == core)), run.segment):
        number = int(run.segment[rows[0]])
        operators = np.unique(run.operator[rows]).tolist()
        inside = names.operators[operators[0]] + (f" .. {names.operators[operators[-1]]}" if len(operators) > 1 else "")
        head = f'"cat":"segment","id":"0x{core << 16 | number & 0xFFFF:x}"'
        yield from _asynchronous(run, core, rows, head, f"segment {number}: {inside}", f'"operators":{len(operators)}')


def _blocks(run: Timeline, names: _Names, core: int) -> Iterator[str]:
    """Events of blocks, in segments with several.  Blocks of one number have one name: viewers show them in one row."""
    segment = run.segment
    for rows in _grouped(np.flatnonzero(run.work & (run.core == core) & names.many), segment << 32 | names.block & 0xFFFFFFFF):
        number, block = int(segment[rows[0]]), int(names.block[rows[0]])
        head = f'"cat":"block","id":"0x{core:x}{number & 0xFFFF:04x}{block & 0xFFFFFFFF:08x}"'
        yield from _asynchronous(run, core, rows, head, f"block {block}", f'"segment":{number},"block":{block}')


def _grouped(rows: Ints, key: Ints) -> list[Ints]:
    """Rows of equal key together, in order of the key."""
    keys = key[rows]
    order = np.argsort(keys, kind="stable")
    return np.split(rows[order], np.flatnonzero(np.diff(keys[order])) + 1) if len(rows) else []


def _asynchronous(run: Timeline, core: int, rows: Ints, head: str, name: str, args: str) -> Iterator[str]:
    """Begin and end events of a group of work rows.  head: category and id."""
    start, end = int(run.start[rows].min()), int(run.end[rows].max())
    where = f'{head},"pid":{core + 1},"tid":{_lane(core, 0, 0)},"name":"{name}"'
    for phase, cycle in (("b", start), ("e", end)):
        us, ns = divmod(int(nanoseconds(np.array([cycle]), run.machine.clock_hz)[0]), 1000)
        ending = f',"args":{{{args},"start_cycle":{start},"cycles":{end - start}}}}}' if phase == "b" else "}"
        yield f'{{"ph":"{phase}",{where},"ts":{us}.{ns:03d}{ending}'


def _counter(run: Timeline, pid: int, name: str, steps: Steps, unit: str, scale: float) -> Iterator[bytes]:
    steps = limit_points(steps, MAX_POINTS)
    if not len(steps.cycle):
        return
    us, ns = (column.tolist() for column in np.divmod(nanoseconds(steps.cycle, run.machine.clock_hz), 1000))
    value: NDArray[Any] = steps.value * scale
    digits = "%d" if unit == "bytes" else "%.6g"
    form = f'{{"ph":"C","pid":{pid},"name":{json.dumps(name)},"ts":%d.%03d,"args":{{"{unit}":{digits}}}}}'
    flat = tuple(chain.from_iterable(zip(us, ns, value.tolist(), strict=True)))
    yield (",\n" + ",\n".join([form] * len(us)) % flat).encode()
