"""The trace as its readers see it: what a file must have to be shown, lanes that nest, times that add up."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from compiler.build import default_plan
from compiler.codegen.lower_segment import Infeasible
from compiler.frontend import lower
from compiler.ops.lower_graph import make_unit
from compiler.pipeline import Compiler
from compiler.space.decode import decode, plan_of
from compiler.space.gene import Gene
from simulator.npu import isa
from simulator.npu.isa import Op
from simulator.npu.level import NO_CONTENTION, Level
from simulator.npu.machine import Machine
from simulator.npu.machine_file import load_machine
from simulator.npu.machine_parts import Dma
from simulator.npu.parts import DMAS, DataType, Engine, Memory
from simulator.npu.program import Code, Program
from simulator.timeline import merge_intervals, timeline
from simulator.timing import simulate
from simulator.trace import trace_run
from simulator.trace_file import gzipped
from simulator.trace_json import write_json
from tests.models import small_model
from tests.programs import copy, flag_set, flag_wait, program, random_program, record

TINY, EDGE = load_machine("tiny"), load_machine("edge")
DDR, L1, L0A, L0C, UB = Memory.DDR, Memory.L1, Memory.L0A, Memory.L0C, Memory.UB
MTE2, MTE1, VECTOR, MTE3 = Engine.MTE2, Engine.MTE1, Engine.VECTOR, Engine.MTE3
# what a reader needs of an event, by its phase
KEYS = {
    "M": {"pid", "tid", "args"},
    "X": {"cat", "pid", "tid", "ts", "dur", "args"},
    "b": {"cat", "id", "pid", "tid", "ts", "args"},
    "e": {"cat", "id", "pid", "tid", "ts"},
    "C": {"pid", "ts", "args"},
}


def read(p: Program, machine: Machine, at: Level = NO_CONTENTION, operators: tuple[str, ...] = (), **about: str) -> dict[str, Any]:
    value = json.loads(b"".join(write_json(trace_run(timeline(p, machine, at), operators, about))))
    assert isinstance(value, dict)
    return value


def tagged(tag: int, row: Code, block: int = 0) -> Code:
    row[isa.TAG], row[isa.BLOCK] = tag, block
    return row


def small() -> Program:
    """Load, a vector operation, store, on core 0; core 1 stores as well and so takes a part of the port."""
    relu = record(Op.VRELU, VECTOR, 8, 1, 1, 8, 1, 8, src=UB, dst=UB, d=8, s=(0,))
    rows = [copy(TINY, DDR, UB, 8), flag_set(MTE2, 0, VECTOR), flag_wait(VECTOR, 0, MTE2), relu, flag_set(VECTOR, 0, MTE3)]
    rows += [flag_wait(MTE3, 0, VECTOR), copy(TINY, UB, DDR, 8, at=8, to=100)]
    mmad = record(Op.MMAD, Engine.CUBE, 16, 3, 1, 0, src=L0A, dst=L0C, d=0, s=(0, 0))
    fixpipe = record(Op.FIXPIPE, Engine.FIXPIPE, 16, 16, 1, 16, 0, 0, src=L0C, dst=UB, d=32, s=(0,))
    last = [
        tagged(1 << 16 | 1, row)
        for row in (mmad, flag_set(Engine.CUBE, 0, Engine.FIXPIPE), flag_wait(Engine.FIXPIPE, 0, Engine.CUBE), fixpipe)
    ]
    return program(TINY, [*rows, *last], [copy(TINY, UB, DDR, 4, to=200)])


def compiled() -> Program:
    target_graph = make_unit(lower(small_model("conv_chain")), EDGE, DataType.float16)
    found = Compiler(target_graph).compile(default_plan(target_graph))
    assert not isinstance(found, Infeasible)
    return found


def test_golden(golden: Callable[[str, str], None]) -> None:
    t = timeline(small(), TINY.model_copy(update={"issue_cycles": 1}), NO_CONTENTION)
    golden("small.trace.json", b"".join(write_json(trace_run(t, ("relu", 'conv "1" 100%ü'), {"level": "none"}))).decode())


def test_every_event_has_what_its_phase_needs() -> None:
    value = read(compiled(), EDGE, EDGE.contention["severe"], level="severe")
    assert set(value) == {"displayTimeUnit", "otherData", "traceEvents"}
    assert value["otherData"]["level"] == "severe"
    assert value["otherData"]["ddr"] == {"share": 0.25, "latency_cycles": 90}
    seen = set()
    for event in value["traceEvents"]:
        seen.add(event["ph"])
        assert set(event) == {"ph", "name", *KEYS[event["ph"]]}
        assert all(event[key] >= 0 for key in ("ts", "dur") if key in event)
        if event["ph"] == "X":
            assert {"segment", "instruction", "start_cycle", "cycles"} <= set(event["args"])
    assert seen == set(KEYS)
    named = {(e["pid"], e["tid"]) for e in value["traceEvents"] if e["name"] == "thread_name"}
    assert {(e["pid"], e["tid"]) for e in value["traceEvents"] if e["ph"] == "X"} <= named
    assert len({tid for _, tid in named}) == len(named)


def lanes(value: dict[str, Any]) -> dict[tuple[int, str], list[dict[str, Any]]]:
    """(core, lane name) -> its events in order of time: several may begin in one nanosecond."""
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in value["traceEvents"] if e["name"] == "thread_name"}
    found = defaultdict(list)
    for event in value["traceEvents"]:
        if event["ph"] == "X":
            found[event["pid"] - 1, names[event["pid"], event["tid"]]].append(event)
    return {lane: sorted(events, key=lambda e: (e["ts"], e["args"]["start_cycle"])) for lane, events in found.items()}


def nanoseconds(microseconds: float) -> int:
    return round(microseconds * 1000)


def check_lanes(p: Program, machine: Machine, level: Level) -> None:
    value = read(p, machine, level)
    busy = simulate(p, machine, level).busy_cycles
    found = lanes(value)
    for core in range(machine.cores):
        for engine in Engine:
            ports = machine.dma_ports(engine) if engine in DMAS else 1
            names = [engine.name, *(f"{engine.name} port {port}" for port in range(1, ports))]
            events = [e["args"] for name in names for e in found.get((core, name), [])]
            start, cycles = (np.array([e[key] for e in events], np.int64) for key in ("start_cycle", "cycles"))
            begin, end = merge_intervals(start, start + cycles)
            assert (end - begin).sum() == busy[core, engine]
    for events in found.values():
        ends = 0
        for event in events:
            at = nanoseconds(event["ts"])
            assert at >= ends
            ends = at + nanoseconds(event["dur"])
            # the picture is the cycles, to a nanosecond
            assert abs(event["ts"] * machine.clock_hz / 1e6 - event["args"]["start_cycle"]) <= machine.clock_hz / 1e9
            assert abs(event["dur"] * machine.clock_hz / 1e6 - event["args"]["cycles"]) <= machine.clock_hz / 1e9


@pytest.mark.parametrize("clock_hz", [1_000_000, 680_000_000, 1_850_000_000, 3])
def test_lane_events_are_consecutive_and_add_up(clock_hz: int) -> None:
    for seed in range(6):
        dma = Dma(load_ports=1 + seed % 2, store_ports=1 + seed // 2 % 2)
        machine = TINY.model_copy(update={"issue_cycles": seed % 3, "queue_depth": 2 + seed, "clock_hz": clock_hz, "dma": dma})
        check_lanes(random_program(machine, seed, 80), machine, Level.of_units(1 << 16 - seed % 3))


def test_lanes_of_a_compiled_program() -> None:
    check_lanes(compiled(), EDGE, EDGE.contention["severe"])


def test_clocks_beyond_int64_products() -> None:
    fast = TINY.model_copy(update={"clock_hz": 1 << 40})
    # 2**18 blocks at 2**-16 of the port: 2**34 cycles, which are 1/64 s
    slow = record(Op.COPY, MTE2, 1, 1 << 18, 0, 0, 1, 0, 0, src=DDR, dst=L1, d=0, s=(0,))
    value = read(program(fast, [slow]), fast, Level.of_units(1))
    (event,) = [e for e in value["traceEvents"] if e["ph"] == "X" and e["cat"] == "MTE2"]
    assert event["args"]["cycles"] == 1 << 34
    assert event["dur"] == 1e6 / 64


def test_what_a_transfer_loses() -> None:
    (event,) = lanes(read(program(TINY, [copy(TINY, DDR, L1, 10)]), TINY, Level(share=0.5)))[0, "MTE2"]
    found = event["args"]
    # 10 cycles with the whole port, 20 with half of it, and nobody else there
    assert (found["alone_cycles"], found["lost_to_background_cycles"], found["lost_to_sharing_cycles"], found["cycles"]) == (10, 10, 0, 20)


def test_what_an_event_says() -> None:
    value = read(small(), TINY, operators=("relu", "conv"), level="none")
    found = lanes(value)
    assert found[0, "VECTOR"][0]["name"] == "relu: VRELU"
    assert found[0, "CUBE"][0]["name"] == "conv: MMAD"
    assert found[0, "CUBE"][0]["args"]["macs"] == 16 * 48 * 16
    store = found[0, "MTE3"][0]["args"]
    # 8 blocks at half a block per cycle; core 1 is done before: nobody disturbs
    assert (store["bytes"], store["alone_cycles"], store["lost_to_sharing_cycles"], store["lost_to_background_cycles"]) == (256, 16, 0, 0)
    # core 1 stores 4 blocks at half a block per cycle, 4..12; the load has the other half until then, and the last 4 blocks by 16
    load = found[0, "MTE2"][0]["args"]
    assert (load["start_cycle"], load["cycles"], load["alone_cycles"], load["lost_to_sharing_cycles"]) == (4, 12, 8, 4)
    wait = found[0, "VECTOR waits"][0]
    assert (wait["name"], wait["dur"], wait["args"]["set_after"]) == ("waits for MTE2", 16, "relu: COPY DDR>UB")
    segments = {e["name"]: (e["ts"], e["args"]["cycles"]) for e in value["traceEvents"] if e["ph"] == "b" and e["pid"] == 1}
    # 8 blocks loaded by 16, 1 cycle of relu, latency 4, 16 cycles of store; MMAD 3 cycles, FIXPIPE 16 pixels of 16 float32 at 64 bytes
    assert segments == {"segment 0: relu": (4, 33), "segment 1: conv": (0, 19)}


def test_what_an_event_says_of_its_block() -> None:
    def load(segment: int, block: int) -> Code:
        return tagged(segment << 16, copy(TINY, DDR, L1, 8), block)

    rows = [load(0, 0), load(1, 0), load(1, 1), tagged(1 << 16, flag_set(MTE2, 0, MTE1), 1), tagged(1 << 16, flag_wait(MTE1, 0, MTE2), 1)]
    value = read(program(TINY, rows), TINY.model_copy(update={"issue_cycles": 1}), operators=("conv",))
    found = lanes(value)
    name = "COPY DDR>L1"
    assert [e["name"] for e in found[0, "MTE2"]] == [f"conv: {name}", f"conv block 0: {name}", f"conv block 1: {name}"]
    assert [e["args"]["block"] for e in found[0, "MTE2"]] == [0, 0, 1]
    assert [(e["name"], e["args"]["instructions"]) for e in found[0, "SCALAR"]] == [
        ("conv: issue", 1),
        ("conv block 0: issue", 1),
        ("conv block 1: issue", 3),
    ]
    assert {(e["args"]["block"], e["args"].get("set_after")) for e in found[0, "MTE1 waits"]} == {(1, f"conv block 1: {name}"), (1, None)}
    blocks = [e for e in value["traceEvents"] if e.get("cat") == "block"]
    # one block has no event of its own; 8 cycles each after a latency of 4 and an issue of 1
    assert [(e["ph"], e["name"], e["ts"]) for e in blocks] == [
        ("b", "block 0", 13), ("e", "block 0", 21), ("b", "block 1", 21), ("e", "block 1", 29),
    ]  # fmt: skip
    assert blocks[0]["args"] == {"segment": 1, "block": 0, "start_cycle": 13, "cycles": 8}


def test_blocks_of_a_compiled_program() -> None:
    target_graph = make_unit(lower(small_model("conv_chain")), EDGE, DataType.float16)
    first, last = decode(target_graph, Gene(0, 3, 4)), decode(target_graph, Gene(3, len(target_graph.operators), 1))
    assert first is not None
    assert last is not None
    found = Compiler(target_graph).compile(plan_of(target_graph, [first, last]))
    assert not isinstance(found, Infeasible)
    value = read(found, EDGE, EDGE.contention["severe"])
    spans: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for event in value["traceEvents"]:
        if event["ph"] == "X" and event["cat"] not in ("SCALAR", "stall", "chain") and event["args"]["segment"] == 0:
            spans[event["args"]["block"]].append((event["args"]["start_cycle"], event["args"]["start_cycle"] + event["args"]["cycles"]))
    begins = [e for e in value["traceEvents"] if e["ph"] == "b" and e["cat"] == "block"]
    shown = {e["args"]["block"]: (e["args"]["start_cycle"], e["args"]["start_cycle"] + e["args"]["cycles"]) for e in begins}
    assert shown == {block: (min(a for a, _ in each), max(b for _, b in each)) for block, each in spans.items()}
    assert len(shown) == len(begins) == first.blocks == 4
    assert len({e["id"] for e in begins}) == 4


def test_names_that_the_file_does_not_have() -> None:
    found = lanes(read(small(), TINY, operators=("relu",)))
    assert found[0, "CUBE"][0]["name"] == "operator 1: MMAD"


def test_a_wait_for_another_core_says_so() -> None:
    relu = record(Op.VRELU, VECTOR, 1, 10, 1, 1, 1, 1, src=UB, dst=UB, d=0, s=(0,))
    p = program(TINY, [relu, flag_set(VECTOR, 1, MTE1)], [flag_wait(MTE1, 0, VECTOR), copy(TINY, L1, UB, 1)])
    (event,) = lanes(read(p, TINY))[1, "MTE1 waits"]
    assert (event["name"], event["dur"], event["args"]["set_after"]) == ("waits for VECTOR of core 0", 13, "operator 0: VRELU")


def test_counters_stay_within_the_machine() -> None:
    value = read(compiled(), EDGE, EDGE.contention["slight"])
    peaks: dict[str, float] = defaultdict(float)
    for event in value["traceEvents"]:
        if event["ph"] == "C":
            ((_, number),) = event["args"].items()
            peaks[event["name"]] = max(peaks[event["name"]], number)
    assert "SHARED bytes in use" not in peaks
    for memory in list(Memory)[1 : Memory.SHARED]:
        assert 0 < peaks[f"{memory.name} bytes in use"] <= EDGE.buffer_blocks(memory) * 32
    rate = EDGE.ddr.bytes_per_cycle * EDGE.clock_hz / 1e9 / 2
    assert 0 < peaks["DDR read GB/s"] <= rate
    assert 0 < peaks["DDR write GB/s"] <= rate
    assert 0 < peaks["DDR port in use, percent of the level's share"] <= 100


def test_a_program_of_nothing() -> None:
    value = read(program(TINY, []), TINY)
    assert {e["ph"] for e in value["traceEvents"]} == {"M"}


def test_compression_is_the_same_bytes_every_time() -> None:
    pieces = list(write_json(trace_run(timeline(small(), TINY, NO_CONTENTION))))
    data = b"".join(gzipped(pieces))
    assert data == b"".join(gzipped(pieces))
    assert gzip.decompress(data) == b"".join(pieces)
    assert np.frombuffer(data[4:8], np.uint32)[0] == 0  # no time in it
