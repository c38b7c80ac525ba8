"""A slow, plain statement of the timing model: every core looked at in every cycle, rates shared out transfer by transfer.

Shares no code with `simulator.timing` beyond prices, caps and ports; `test_timing_properties` holds the two together.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from simulator.npu import isa
from simulator.npu.cycles import bank_wait_cycles, cap_units, latency_cycles, port_units, price, turned_units
from simulator.npu.isa import Op
from simulator.npu.level import SHARE_UNIT
from simulator.npu.machine import Machine
from simulator.npu.parts import Engine, Memory
from simulator.npu.program import Program


@dataclass
class Entry:
    core: int
    engine: Engine
    op: Op
    busy: int
    bus: int
    lag: int = 0  # MMAD on a pipelined array: from the end of its occupation to its results
    startup: int = 0  # of a transfer's path
    least: int = 0  # cycles that its path needs for it
    ready: int | None = None  # first data there, and everything before it through
    key: tuple[int, int, int, int, int] = (0, 0, 0, 0, 0)
    ordinal: int = 0  # among the SETs or WAITs of its flag
    dispatched: int | None = None
    reached: int | None = None  # WAIT: first cycle at the head of its queue
    left: int | None = None
    begun: int | None = None  # data phase of a transfer
    left_to_move: int = 0
    completed: int | None = None

    @property
    def is_transfer(self) -> bool:
        return self.bus > 0

    def done_by(self, now: int) -> bool:
        return self.completed is not None and self.completed <= now

    def out_by(self, now: int) -> bool:
        return self.completed is not None and self.completed + self.lag <= now


@dataclass
class Reference:
    cycles: int
    entries: list[list[Entry]]  # per core in stream order
    load_store_cycles: int = 0
    compute_cycles: int = 0
    moved: dict[tuple[int, Engine], int] = field(default_factory=dict)


def _entries(program: Program, machine: Machine) -> list[list[Entry]]:
    counts: dict[tuple[bool, tuple[int, int, int, int, int]], int] = {}
    cores = []
    for core, code in enumerate(program.streams):
        costs = price(code, machine)
        entries = []
        for row, busy, bus in zip(code.tolist(), costs.busy.tolist(), costs.bus.tolist(), strict=True):
            lag = latency_cycles(machine) if row[isa.OP] == Op.MMAD else 0
            entry = Entry(core, Engine(row[isa.ENGINE]), Op(row[isa.OP]), busy, bus, lag, left_to_move=bus)
            if bus:
                path = machine.path(Memory(row[isa.SRC]), Memory(row[isa.DST]))
                assert path is not None
                entry.startup, entry.least = path.startup_cycles, -(-bus // int(path.bytes_per_cycle * SHARE_UNIT))
            other = (row[isa.FLAG_CORE], row[isa.FLAG_ENGINE])
            if entry.op in (Op.SET, Op.WAIT):
                here = (core, row[isa.ENGINE])
                entry.key = (*here, *other, row[isa.FLAG_ID]) if entry.op == Op.SET else (*other, *here, row[isa.FLAG_ID])
                place = (entry.op == Op.SET, entry.key)
                entry.ordinal = counts.get(place, 0)
                counts[place] = entry.ordinal + 1
            entries.append(entry)
        cores.append(entries)
    return cores


def water_fill(caps: list[int], port: int) -> list[int]:
    """Max-min fair rates, the smallest cap served first; at least one unit each."""
    rates = [0] * len(caps)
    left = port
    order = sorted(range(len(caps)), key=lambda i: caps[i])
    for served, i in enumerate(order):
        even = left // (len(caps) - served)
        if caps[i] > even:
            for j in order[served:]:
                rates[j] = even
            break
        rates[i] = caps[i]
        left -= caps[i]
    return [max(1, rate) for rate in rates]


def before_on_port(x: Entry, queue: list[Entry], machine: Machine) -> list[Entry]:
    """What a transfer follows: the transfers before it on its DMA port, which they take in turn, and all moves on chip before it."""
    ports = machine.dma.load_ports if x.engine == Engine.MTE2 else machine.dma.store_ports
    transfers = [y for y in queue if y.is_transfer]
    turn = {id(y): i % ports for i, y in enumerate(transfers)}
    return [y for y in queue[: queue.index(x)] if y.busy or (y.is_transfer and turn[id(y)] == turn[id(x)])]


def first_data(x: Entry, before: list[Entry], machine: Machine, added: int) -> int:
    """When the first data of an issued transfer come: each one in flight on its port at its issue holds it up, at most until its end."""
    assert x.left is not None
    at = x.left
    in_flight = [y.completed for y in before if y.is_transfer and y.completed is not None and y.completed > x.left]
    for end in in_flight:
        at = max(at, min(end, at + bank_wait_cycles(machine)))
    return at + machine.ddr.latency_cycles + added


def reference(
    program: Program, machine: Machine, shares: list[tuple[int, int]], *, divisor: int = 0, added: int = 0, limit: int = 200_000
) -> Reference:
    """Run cycle by cycle; `shares` are (from cycle, share_units); divisor > 0: every transfer alone at min(cap, port // divisor).

    added: latency of the level.
    """
    cores = _entries(program, machine)
    queues = {(c, e): [x for x in entries if x.engine == e] for c, entries in enumerate(cores) for e in Engine}
    sets = {(x.key, x.ordinal): x for entries in cores for x in entries if x.op == Op.SET}
    result = Reference(0, cores)
    now = 0
    while True:
        while any(_step(entries, queues, sets, machine, now, added) for entries in cores):
            pass
        if now >= machine.launch_cycles and all(x.out_by(now) for entries in cores for x in entries):
            break
        moving = [x for entries in cores for x in entries if x.begun is not None and x.completed is None]
        drawing = [x for x in moving if x.left_to_move > 0]
        turns = divisor > 1 if divisor else len({x.engine for x in drawing}) > 1
        port = (turned_units if turns else port_units)(machine, [share for cycle, share in shares if cycle <= now][-1])
        caps = [cap_units(machine, x.engine) for x in drawing]
        rates = [max(1, min(cap, port // divisor)) for cap in caps] if divisor else water_fill(caps, port)
        for x, rate in zip(drawing, rates, strict=True):
            x.left_to_move -= rate
        for x in moving:
            assert x.begun is not None
            if x.left_to_move <= 0 and now + 1 >= x.begun + x.least:
                x.completed = now + 1
        for place in {(x.core, x.engine) for x in moving}:
            result.moved[place] = result.moved.get(place, 0) + 1
        result.load_store_cycles += len({x.core for x in moving})
        for c in range(len(cores)):
            working = [x for e in (Engine.CUBE, Engine.VECTOR) for x in queues[c, e] if x.busy and x.left is not None]
            result.compute_cycles += any(x.left <= now < x.left + x.busy for x in working if x.left is not None)
        now += 1
        if now > limit:
            raise TimeoutError("no end in sight")
    result.cycles = max([machine.launch_cycles, *((x.completed or 0) + x.lag for entries in cores for x in entries)])
    return result


def _step(
    entries: list[Entry],
    queues: dict[tuple[int, Engine], list[Entry]],
    sets: dict[tuple[tuple[int, int, int, int, int], int], Entry],
    machine: Machine,
    now: int,
    added: int,
) -> bool:
    """Everything that may happen in cycle `now` on one core; True if something did."""
    moved = False
    waiting = [x for x in entries if x.dispatched is None]
    if waiting:
        handed = [x.dispatched for x in entries if x.dispatched is not None]
        x = waiting[0]
        queued = sum(y.dispatched is not None and y.left is None for y in queues[x.core, x.engine])
        if now >= (max(handed) if handed else machine.launch_cycles) + machine.issue_cycles and queued < machine.queue_depth:
            x.dispatched = now
            moved = True
    for engine in Engine:
        queue = queues[entries[0].core, engine] if entries else []
        standing = [x for x in queue if x.dispatched is not None and x.left is None]
        if standing and _may_leave(standing[0], queue, sets, machine, now):
            x = standing[0]
            x.left = now
            if x.op == Op.WAIT:
                x.completed = now
            elif x.op != Op.SET and not x.is_transfer:
                x.completed = now + x.busy
            moved = True
        for i, x in enumerate(queue):
            if x.left is None or x.completed is not None:
                continue
            if x.op == Op.SET and all(y.out_by(now) for y in queue[:i]):
                x.completed = now
                moved = True
            elif x.is_transfer and x.begun is None:
                before = before_on_port(x, queue, machine)
                if all(y.done_by(now) for y in before) and now >= first_data(x, before, machine, added):
                    x.ready = now if x.ready is None else x.ready
                    if now >= x.ready + x.startup:
                        x.begun = now
                        moved = True
    return moved


def _may_leave(
    x: Entry, queue: list[Entry], sets: dict[tuple[tuple[int, int, int, int, int], int], Entry], machine: Machine, now: int
) -> bool:
    if x.op == Op.SET:
        return True
    if x.op == Op.WAIT:
        if x.reached is None:
            x.reached = now
        source = sets.get((x.key, x.ordinal))
        if source is None or source.completed is None:
            return False
        return now >= source.completed + (machine.flags.between_cores_cycles if source.core != x.core else 0)
    if x.is_transfer:
        return sum(y.is_transfer and y.left is not None and not y.done_by(now) for y in queue) < machine.ddr.outstanding
    # a SET behind an MMAD takes effect when the results are out, and holds up nobody until then
    return all(y.done_by(now) for y in queue[: queue.index(x)] if y.op != Op.SET)
