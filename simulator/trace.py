"""A run as Chrome trace events: opens in Perfetto (ui.perfetto.dev) and chrome://tracing.

A process is a core.  Every engine has a lane of work and, below it, a lane of what it waited for; events of a lane never overlap, and the
work of a lane adds up to the engine's busy cycles.  A DMA with several ports has a lane of work for each, the first with its moves on
chip.  Segments overlap, because the next one's data come early, and so do their blocks: both are asynchronous events.  Counters: bytes
in use of every memory on chip, and the DDR port in a process of its own.

Times are rounded where events meet, so that neighbours still meet; exact cycles are among the arguments (`trace_events`).

Text is made by one format string per kind of event, repeated: a hundred thousand events take a fraction of a second.
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
from simulator.npu.machine_parts import MOST_PORTS
from simulator.npu.parts import BLOCK_BYTES, DMAS, SUM_BYTES, DataType, Engine, Memory
from simulator.occupancy import Steps, bytes_in_use, ddr_use, shared_in_use, thinned
from simulator.timeline import Cause, Mask, Stalls, Timeline, data_alone
from simulator.timing_state import Ints
from simulator.trace_events import CLOSING, meta, nanoseconds, opening

Columns = dict[str, Ints]
_CHUNK = 1 << 13  # events formatted at a time
_LANES = 100  # thread ids of a core: some viewers want them different over all processes
MOST_POINTS = 20_000  # of a counter

_COPY_BLOCKS = (isa.C_LENGTH, isa.C_COUNT, isa.C_COUNT2)


def chrome_trace(t: Timeline, operators: Sequence[str] = (), about: Mapping[str, Any] | None = None) -> Iterator[bytes]:
    """The file in pieces.  operators: names by the number in TAG; about: what the file says of itself (JSON values)."""
    about = {"machine": t.machine.name, "clock_hz": t.machine.clock_hz, "cycles": t.cycles, "ddr": t.level.model_dump()} | dict(about or {})
    yield opening(about)
    yield ",\n".join(_names(t, str(about.get("level", "")))).encode()
    names = _Names(t, operators)
    waits = t.stalls
    for core in range(t.cores):
        for pieces in (
            _segments(t, names, core),
            _blocks(t, names, core),
            _work(t, names, core),
            _issue(t, names, core),
            _waits(t, names, waits, core),
        ):
            for piece in pieces:
                yield b",\n" + piece.encode()
        for memory, steps in bytes_in_use(t, core).items():
            yield from _counter(t, core + 1, f"{memory.name} bytes in use", steps, "bytes", 1)
    shared = shared_in_use(t)
    if shared is not None:
        yield from _counter(t, t.cores + 1, "SHARED bytes in use", shared, "bytes", 1)
    use = ddr_use(t)
    to_gb = t.machine.clock_hz / 1e9
    yield from _counter(t, t.cores + 1, "DDR read GB/s", use.read, "GB/s", to_gb)
    yield from _counter(t, t.cores + 1, "DDR write GB/s", use.write, "GB/s", to_gb)
    yield from _counter(t, t.cores + 1, "DDR port in use, percent of the level's share", use.port, "percent", 100)
    for piece in _longest(t, names):
        yield b",\n" + piece.encode()
    yield CLOSING


# --- names -------------------------------------------------------------------------------------------------------


class _Names:
    """JSON strings for rows: the operator, and the operator with what is done."""

    def __init__(self, t: Timeline, operators: Sequence[str]) -> None:
        self.t = t
        known = [json.dumps(name)[1:-1] for name in operators]
        numbers = int(t.operator.max(initial=-1)) + 1
        self.block = t.block
        self.many = _in_blocks(t)
        self.operators = known + [f"operator {i}" for i in range(len(known), numbers)]

    def operator(self, rows: Ints) -> list[str]:
        return [self.operators[i] for i in self.t.operator[rows].tolist()]

    def work(self, rows: Ints) -> list[str]:
        return [f"{a}: {b}" for a, b in zip(self.where(rows), self.what(rows), strict=True)]

    def where(self, rows: Ints) -> list[str]:
        """The operator, and the block where its segment has several."""
        each = zip(self.operator(rows), self.block[rows].tolist(), self.many[rows].tolist(), strict=True)
        return [f"{name} block {block}" if many else name for name, block, many in each]

    def what(self, rows: Ints) -> list[str]:
        """COPY DDR>L1, MMAD, ..."""
        code = self.t.code[rows]
        key = (code[:, isa.OP].astype(np.int64) * 8 + code[:, isa.SRC]) * 8 + code[:, isa.DST]
        some, inverse = np.unique(key, return_inverse=True)
        shown = [_kind(int(k)) for k in some]
        return [shown[i] for i in inverse.tolist()]


def _in_blocks(t: Timeline) -> Mask:
    """Rows of segments with more than one block."""
    some, inverse = np.unique(t.segment, return_inverse=True)
    last = np.zeros(len(some), np.int64)
    np.maximum.at(last, inverse, t.block)
    found: Mask = last[inverse] > 0
    return found


def _kind(key: int) -> str:
    op, src, dst = key // 64, key // 8 % 8, key % 8
    return f"COPY {Memory(src).name}>{Memory(dst).name}" if op == Op.COPY else Op(op).name


def _names(t: Timeline, level: str) -> Iterator[str]:
    at = f" at level {level}" if level else ""
    for core in range(t.cores):
        yield meta("process_name", core + 1, 0, {"name": f"core {core}{at}"})
        yield meta("process_sort_index", core + 1, 0, {"sort_index": core + 1})
        for engine in Engine:
            ports = t.machine.dma_ports(engine) if engine in DMAS else 1
            lanes = [(_lane(core, engine, 0, port), f"{engine.name} port {port}" if port else engine.name) for port in range(ports)]
            for tid, name in (*lanes, (_lane(core, engine, 1), f"{engine.name} waits")):
                yield meta("thread_name", core + 1, tid, {"name": name})
                yield meta("thread_sort_index", core + 1, tid, {"sort_index": 2 * int(engine) + name.endswith(" waits")})
    yield meta("process_name", t.cores + 1, 0, {"name": "DDR port"})
    yield meta("process_sort_index", t.cores + 1, 0, {"sort_index": t.cores + 1})
    chain = t.cores + 2
    yield meta("process_name", chain, 0, {"name": "longest chain"})
    yield meta("process_sort_index", chain, 0, {"sort_index": 0})
    yield meta("thread_name", chain, _lane(chain, 0, 0), {"name": "what held up what"})


def _lane(core: int, engine: int, waits: int, port: int = 0) -> int:
    """DMA ports behind the first have theirs above the 14 that every core has."""
    own = 2 * int(engine) + waits + 1 if port == 0 else 2 * len(Engine) + DMAS.index(Engine(engine)) * MOST_PORTS + port
    return (core + 1) * _LANES + own


# --- events ------------------------------------------------------------------------------------------------------


def _events(
    t: Timeline, head: str, start: Ints, end: Ints, texts: Mapping[str, Sequence[str]], numbers: Mapping[str, Ints]
) -> Iterator[str]:
    """Complete events, many to a piece.  head: category, process and lane; texts: `name` and arguments that are JSON string contents."""
    if not len(start):
        return
    begin, stop = nanoseconds(start, t.machine.clock_hz), nanoseconds(end, t.machine.clock_hz)
    arguments = [f'"{key}":"%s"' for key in texts if key != "name"] + [f'"{key}":%d' for key in numbers]
    form = f'{{"ph":"X",{head},"ts":%d.%03d,"dur":%d.%03d,"name":"%s","args":{{{",".join(arguments)}}}}}'
    times = [x for value in (begin, stop - begin) for x in np.divmod(value, 1000)]
    rest = [texts[key] for key in texts if key != "name"]
    columns = [*(c.tolist() for c in times), texts["name"], *rest, *(c.tolist() for c in numbers.values())]
    for at in range(0, len(start), _CHUNK):
        part = [column[at : at + _CHUNK] for column in columns]
        yield ",\n".join([form] * len(part[0])) % tuple(chain.from_iterable(zip(*part, strict=True)))


def _work(t: Timeline, names: _Names, core: int) -> Iterator[str]:
    """A complete event per instruction, lane by lane and kind by kind."""
    for engine in list(Engine)[: Engine.SCALAR]:
        queue = t.queues[core * len(Engine) + engine]
        queue = queue[t.work[queue]]
        op, port = t.code[queue, isa.OP], np.where(t.transfer[queue], t.port[queue], -1)  # -1: nothing of DDR
        for value in np.unique(op):
            for lane in np.unique(port[op == value]).tolist():
                rows = queue[(op == value) & (port == lane)]
                texts, numbers = _details(t, Op(int(value)), rows)
                own = {
                    "segment": t.segment[rows],
                    "block": names.block[rows],
                    "instruction": rows - t.stream_start[core],
                    "start_cycle": t.start[rows],
                    "cycles": t.end[rows] - t.start[rows],
                }
                shown = {"name": names.work(rows), "operator": names.operator(rows)} | texts
                head = f'"cat":"{engine.name}","pid":{core + 1},"tid":{_lane(core, engine, 0, max(0, lane))}'
                yield from _events(t, head, t.start[rows], t.end[rows], shown, own | numbers)


def _details(t: Timeline, op: Op, rows: Ints) -> tuple[dict[str, Sequence[str]], Columns]:
    """Arguments of a kind of instruction; addresses in bytes."""
    code = t.code[rows].astype(np.int64)

    def at(word: int) -> Ints:
        return code[:, word] * BLOCK_BYTES

    def memory(word: int) -> Sequence[str]:
        some = [m.name for m in Memory]
        return [some[i] for i in code[:, word].tolist()]

    dtype = code[:, isa.DTYPE]
    types = [DataType(value).name for value in dtype.tolist()]
    texts: dict[str, Sequence[str]] = {"from": memory(isa.SRC), "to": memory(isa.DST), "type": types}
    lanes, n0 = isa.LANES[dtype], isa.COLUMNS[dtype]
    numbers: Columns = {}
    if op == Op.COPY:
        numbers |= {"bytes": code[:, _COPY_BLOCKS].prod(axis=1) * BLOCK_BYTES, "run_bytes": at(isa.C_LENGTH)}
        if t.transfer[rows].any():
            whole, level = data_alone(t, rows), data_alone(t, rows, t.level.share_units)
            numbers |= {
                "alone_cycles": whole,
                "lost_to_background_cycles": level - whole,
                "lost_to_sharing_cycles": t.end[rows] - t.start[rows] - level,
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
        numbers |= {"m": m, "k": k, "n": n, "macs": m * k * n, "accumulates": code[:, isa.M_ACC], "weights_at": at(isa.S1)}
    elif op == Op.MMAD_IM2COL:
        m, k, n = code[:, isa.I_MPAD], code[:, isa.I_K] * lanes, code[:, isa.W_N1] * n0
        numbers |= {"m": m, "k": k, "n": n, "macs": m * k * n, "accumulates": code[:, isa.W_ACC], "weights_at": at(isa.S1)}
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
        numbers["from_at"] = at(isa.S0)
    return texts, numbers | {"to_at": at(isa.D)}


def _issue(t: Timeline, names: _Names, core: int) -> Iterator[str]:
    """The scalar unit's work: instructions of one operator and block that it handed out without a break are one event."""
    if t.machine.issue_cycles == 0:
        return
    first, stop = int(t.stream_start[core]), int(t.stream_start[core + 1])
    if first == stop:
        return
    step, end = np.column_stack((t.code[first:stop, isa.TAG], t.block[first:stop])), t.dispatch[first:stop]
    start = end - t.machine.issue_cycles
    new = np.flatnonzero(np.concatenate(([True], (step[1:] != step[:-1]).any(axis=1) | (start[1:] != end[:-1]))))
    last = np.concatenate((new[1:], [len(end)])) - 1
    rows = new + first
    texts = {"name": [f"{name}: issue" for name in names.where(rows)]}
    numbers = {
        "segment": t.segment[rows],
        "block": names.block[rows],
        "instruction": new,
        "instructions": last - new + 1,
        "start_cycle": start[new],
        "cycles": end[last] - start[new],
    }
    head = f'"cat":"SCALAR","pid":{core + 1},"tid":{_lane(core, Engine.SCALAR, 0)}'
    yield from _events(t, head, start[new], end[last], texts, numbers)


def _waits(t: Timeline, names: _Names, s: Stalls, core: int) -> Iterator[str]:
    """What engines waited for: one event per stall, the cause in its name."""
    engines = [engine.name for engine in Engine]
    for engine in Engine:
        for cause in Cause:
            at = np.flatnonzero((s.core == core) & (s.engine == engine) & (s.cause == cause))
            rows, source = s.row[at], [engines[e] for e in s.source_engine[at].tolist()]
            far = s.source_core[at] != core
            source = [
                f"{name} of core {c}" if f else name for name, c, f in zip(source, s.source_core[at].tolist(), far.tolist(), strict=True)
            ]
            texts = {"name": _CAUSES[cause](source), "cause": [cause.name.lower()] * len(at), "operator": names.operator(rows)}
            numbers = {
                "segment": t.segment[rows],
                "block": names.block[rows],
                "instruction": rows - t.stream_start[core],
                "start_cycle": s.start[at],
                "cycles": s.end[at] - s.start[at],
            }
            if cause == Cause.FLAG:
                behind = s.source_row[at]
                texts["set_after"] = [
                    name if row >= 0 else "" for name, row in zip(names.work(np.maximum(behind, 0)), behind.tolist(), strict=True)
                ]
                numbers["flag"] = t.code[rows, isa.FLAG_ID].astype(np.int64)
                numbers["from_core"] = s.source_core[at]
            head = f'"cat":"stall","pid":{core + 1},"tid":{_lane(core, engine, 1)}'
            yield from _events(t, head, s.start[at], s.end[at], texts, numbers)


_CAUSES = {
    Cause.FLAG: lambda source: [f"waits for {name}" for name in source],
    Cause.LATENCY: lambda source: ["waits for DDR latency"] * len(source),
    Cause.ISSUE: lambda source: ["waits for issue"] * len(source),
    Cause.QUEUE: lambda source: [f"waits for room in the queue of {name}" for name in source],
}


def _longest(t: Timeline, names: _Names) -> Iterator[str]:
    """The chain that the run is as long as; links of one operator, engine and cause that follow one another are one event."""
    chain = critical_chain(t)
    rows = np.maximum(chain.row, 0)
    kind = np.column_stack([np.where(chain.row >= 0, t.operator[rows], -1), chain.engine, chain.cause]) if len(t.code) else chain.engine[:0]
    if not len(kind):
        return
    new = np.flatnonzero(np.concatenate(([True], (kind[1:] != kind[:-1]).any(axis=1))))
    last = np.concatenate((new[1:], [len(kind)])) - 1
    start, end = chain.start[new], chain.end[last]
    engines, causes = [Engine(e).name for e in chain.engine[new].tolist()], chain.cause[new].tolist()
    what = [engine if cause == WORK else f"{engine} {WAITS[Cause(cause)]}" for engine, cause in zip(engines, causes, strict=True)]
    known = names.operator(rows[new])
    operators = [name if row >= 0 else "" for name, row in zip(known, chain.row[new].tolist(), strict=True)]
    shown = [f"{name}: {each}" if name else each for name, each in zip(operators, what, strict=True)]
    texts = {"name": shown, "engine": engines, "operator": operators}
    numbers = {
        "segment": t.segment[rows[new]],
        "instruction": rows[new] - t.stream_start[t.core[rows[new]]],
        "links": last - new + 1,
        "start_cycle": start,
        "cycles": end - start,
    }
    pid = t.cores + 2
    yield from _events(t, f'"cat":"chain","pid":{pid},"tid":{_lane(pid, 0, 0)}', start, end, texts, numbers)


def _segments(t: Timeline, names: _Names, core: int) -> Iterator[str]:
    """From the start of a segment's first work to the end of its last."""
    for mine in _grouped(np.flatnonzero(t.work & (t.core == core)), t.segment):
        number = int(t.segment[mine[0]])
        operators = np.unique(t.operator[mine]).tolist()
        inside = names.operators[operators[0]] + (f" .. {names.operators[operators[-1]]}" if len(operators) > 1 else "")
        head = f'"cat":"segment","id":"0x{core << 16 | number & 0xFFFF:x}"'
        yield from _asynchronous(t, core, mine, head, f"segment {number}: {inside}", f'"operators":{len(operators)}')


def _blocks(t: Timeline, names: _Names, core: int) -> Iterator[str]:
    """The same of every block, where a segment has several.  Blocks of one number have one name: readers show them in one row."""
    segment = t.segment
    for mine in _grouped(np.flatnonzero(t.work & (t.core == core) & names.many), segment << 32 | names.block & 0xFFFFFFFF):
        number, block = int(segment[mine[0]]), int(names.block[mine[0]])
        head = f'"cat":"block","id":"0x{core:x}{number & 0xFFFF:04x}{block & 0xFFFFFFFF:08x}"'
        yield from _asynchronous(t, core, mine, head, f"block {block}", f'"segment":{number},"block":{block}')


def _grouped(rows: Ints, key: Ints) -> list[Ints]:
    """Rows of equal key together, in order of the key."""
    mine = key[rows]
    order = np.argsort(mine, kind="stable")
    return np.split(rows[order], np.flatnonzero(np.diff(mine[order])) + 1) if len(rows) else []


def _asynchronous(t: Timeline, core: int, rows: Ints, head: str, name: str, args: str) -> Iterator[str]:
    """The begin and the end of what some work belongs to.  head: category and id."""
    start, end = int(t.start[rows].min()), int(t.end[rows].max())
    where = f'{head},"pid":{core + 1},"tid":{_lane(core, 0, 0)},"name":"{name}"'
    for phase, cycle in (("b", start), ("e", end)):
        us, ns = divmod(int(nanoseconds(np.array([cycle]), t.machine.clock_hz)[0]), 1000)
        rest = f',"args":{{{args},"start_cycle":{start},"cycles":{end - start}}}}}' if phase == "b" else "}"
        yield f'{{"ph":"{phase}",{where},"ts":{us}.{ns:03d}{rest}'


def _counter(t: Timeline, pid: int, name: str, steps: Steps, unit: str, scale: float) -> Iterator[bytes]:
    steps = thinned(steps, MOST_POINTS)
    if not len(steps.cycle):
        return
    us, ns = (column.tolist() for column in np.divmod(nanoseconds(steps.cycle, t.machine.clock_hz), 1000))
    value: NDArray[Any] = steps.value * scale
    digits = "%d" if unit == "bytes" else "%.6g"
    form = f'{{"ph":"C","pid":{pid},"name":{json.dumps(name)},"ts":%d.%03d,"args":{{"{unit}":{digits}}}}}'
    flat = tuple(chain.from_iterable(zip(us, ns, value.tolist(), strict=True)))
    yield (",\n" + ",\n".join([form] * len(us)) % flat).encode()
