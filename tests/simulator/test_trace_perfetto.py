"""A trace as Perfetto's protobuf has the events of the same trace as JSON."""

from __future__ import annotations

import gzip
import json
from collections import Counter as Count
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.ddr import ContentionTrace
from simulator.npu.level import NO_CONTENTION, SHARE_UNIT, Level
from simulator.npu.machine import Machine
from simulator.npu.machine_file import load_machine
from simulator.npu.machine_parts import Dma
from simulator.protobuf import MessageRows, field, integer_field, join, message_field, place, repeat, to_bytes, varint
from simulator.runtime import ServedRun
from simulator.served_trace import trace_served
from simulator.timeline import Timeline, join_timelines, timeline
from simulator.trace import trace_run
from simulator.trace_events import Trace, count_events
from simulator.trace_file import trace_chunks
from simulator.trace_json import write_json
from simulator.trace_perfetto import write_perfetto
from tests.perfetto_reader import ReadTrace, read_perfetto
from tests.programs import programs, random_program

TINY, EDGE, ARRAY = load_machine("tiny"), load_machine("edge"), load_machine("tpu-like")


def nanoseconds(microseconds: float) -> int:
    return round(microseconds * 1000)


def interval(event: dict[str, Any]) -> tuple[int, int]:
    begin = nanoseconds(event["ts"])
    return begin, begin + nanoseconds(event["dur"])


def frozen(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def json_events(trace: Trace) -> dict[str, Any]:
    """Events of the JSON, by what they are."""
    value = json.loads(b"".join(write_json(trace)))
    events = value["traceEvents"]
    groups = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    lanes = {(e["pid"], e["tid"]): (groups[e["pid"]], e["args"]["name"]) for e in events if e["name"] == "thread_name"}
    order = {e["tid"]: e["args"]["sort_index"] for e in events if e["name"] == "thread_sort_index"}
    begins = {(e["cat"], e["id"]): e for e in events if e["ph"] == "b"}
    ends = {(e["cat"], e["id"]): e["ts"] for e in events if e["ph"] == "e"}
    assert begins.keys() == ends.keys()
    counters: dict[tuple[str, str, str], list[tuple[int, str]]] = {}
    for event in events:
        if event["ph"] == "C":
            ((unit, value_of_step),) = event["args"].items()
            counters.setdefault((groups[event["pid"]], event["name"], unit), []).append((nanoseconds(event["ts"]), f"{value_of_step:.6g}"))
    slices = [
        (
            lanes[e["pid"], e["tid"]],
            nanoseconds(e["ts"]),
            nanoseconds(e["ts"]) + nanoseconds(e["dur"]),
            e["name"],
            e["cat"],
            bare(e["args"]),
        )
        for e in events
        if e["ph"] == "X"
    ]
    spans = [
        (groups[e["pid"]], nanoseconds(e["ts"]), nanoseconds(ends[key]), e["name"], key[0], frozen(e["args"])) for key, e in begins.items()
    ]
    instants = [(lanes[e["pid"], e["tid"]], nanoseconds(e["ts"]), e["name"], e["cat"], frozen(e["args"])) for e in events if e["ph"] == "i"]
    return {
        "about": {key: fact for key, fact in value["otherData"].items() if fact is not None},
        "lanes": [name for (_, tid), name in sorted(lanes.items(), key=lambda lane: order[lane[0][1]])],
        "slices": Count(slices),
        "spans": Count(spans),
        "instants": Count(instants),
        "counters": counters,
    }


def bare(arguments: dict[str, Any]) -> str:
    return frozen({key: value for key, value in arguments.items() if value is not None})


def perfetto_events(read: ReadTrace) -> dict[str, Any]:
    """The same of a protobuf file."""
    (about,) = read.instants.pop(next(uuid for uuid, path in read.tracks.items() if len(path) == 1))
    is_span = {uuid for uuid, path in read.tracks.items() if path[-1] == "segments" or path[-1].startswith("block ")}
    lanes = {uuid: (path[1], path[2]) for uuid, path in read.tracks.items() if len(path) == 3 and uuid not in is_span | read.units.keys()}
    slices, spans = [], []
    for uuid, some in read.slices.items():
        for event in some:
            assert event.depth == 0
            times = event.begin, event.end, event.name, event.category, frozen(event.arguments)
            if uuid in is_span:
                spans.append((read.tracks[uuid][1], *times))
            else:
                slices.append((lanes[uuid], *times))
    return {
        "about": about.arguments,
        "lanes": list(lanes.values()),
        "slices": Count(slices),
        "spans": Count(spans),
        "instants": Count(
            (lanes[uuid], e.begin, e.name, e.category, frozen(e.arguments)) for uuid, some in read.instants.items() for e in some
        ),
        "counters": {
            (*read.tracks[uuid][1:], unit): [(time, f"{value:.6g}") for time, value in read.counters[uuid]]
            for uuid, unit in read.units.items()
            if uuid in read.counters
        },
    }


def check(run: Timeline, operators: tuple[str, ...] = ()) -> None:
    def trace() -> Trace:
        return trace_run(run, operators, {"level": "none", "plan": None})

    read = perfetto_events(read_perfetto(b"".join(write_perfetto(trace()))))
    written = json_events(trace())
    assert read == written
    count = sum(sum(read[kind].values()) for kind in ("slices", "spans", "instants")) + sum(map(len, read["counters"].values()))
    assert count == sum(map(count_events, trace().events))


def variant(machine: Machine, issue_cycles: int, load_ports: int, clock_hz: int) -> Machine:
    return machine.model_copy(update={"issue_cycles": issue_cycles, "dma": Dma(load_ports=load_ports), "clock_hz": clock_hz})


@given(st.data())
def test_events_are_those_of_the_json(data: st.DataObject) -> None:
    machine = variant(
        data.draw(st.sampled_from([TINY, EDGE, ARRAY])),
        data.draw(st.integers(0, 2)),
        data.draw(st.integers(1, 2)),
        data.draw(st.sampled_from([3, 680_000_000, 1 << 40])),
    )
    run = timeline(data.draw(programs(machine)), machine, Level.of_units(data.draw(st.sampled_from([SHARE_UNIT, SHARE_UNIT // 3]))))
    check(run, tuple(data.draw(st.lists(st.text(), max_size=2))))


def test_events_of_programs_in_sequence() -> None:
    runs = [timeline(random_program(EDGE, seed, 300), EDGE, NO_CONTENTION) for seed in (1, 2)]
    check(join_timelines(runs, [(1, 1), (1, 1)]), ("conv",))


def test_events_of_several_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("simulator.trace._CHUNK", 3)
    check(timeline(random_program(TINY, 5, 200), TINY, NO_CONTENTION), ("a", "b"))


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(1, 99), st.integers(0, 9), st.integers(0, 9)), min_size=1))
def test_events_of_many_inferences(rows: list[tuple[int, int, int, int]]) -> None:
    variant_of, latency, compute, moves = (np.array(column, np.int64) for column in zip(*rows, strict=True))
    served = ServedRun(("light", "heavy"), np.cumsum(latency) - latency, latency, variant_of, compute, moves)
    load = ContentionTrace.of([(0, SHARE_UNIT), (15, SHARE_UNIT // 3), (60, SHARE_UNIT)])

    def trace() -> Trace:
        return trace_served(served, load, TINY, {"level": None, "trace": "by hand"})

    assert perfetto_events(read_perfetto(b"".join(write_perfetto(trace())))) == json_events(trace())


def test_file_name_says_the_format() -> None:
    def chunks(name: str) -> bytes:
        return b"".join(trace_chunks(trace_run(timeline(random_program(TINY, 1, 40), TINY, NO_CONTENTION)), name))

    assert read_perfetto(chunks("t.pftrace"))
    assert json.loads(chunks("t.json"))
    for name in ("t.pftrace", "t.json"):
        assert gzip.decompress(chunks(f"{name}.gz")) == chunks(name)


@given(st.lists(st.integers(0, (1 << 63) - 1), min_size=1), st.integers(1, 1 << 20), st.data())
def test_rows_are_the_fields_one_by_one(numbers: list[int], number: int, data: st.DataObject) -> None:
    column, count = np.array(numbers, np.int64), len(numbers)
    head = data.draw(st.binary(max_size=200))
    rows = join(repeat(head, count), integer_field(number, column))
    single = [head + field(number, value) for value in numbers]
    assert to_bytes(rows) == b"".join(single)
    assert to_bytes(message_field(number, rows)) == b"".join(field(number, message) for message in single)
    order = np.array(data.draw(st.permutations(range(count))), np.int64)
    cut = data.draw(st.integers(0, count))
    parts = [(some, MessageRows(rows.octets[some], rows.is_used[some])) for some in (order[:cut], order[cut:])]
    assert to_bytes(place(parts, count)) == to_bytes(rows)


def test_varints_of_the_documentation() -> None:
    assert varint(150) == b"\x96\x01"
    assert to_bytes(integer_field(1, np.array([150, -2]))) == b"\x08\x96\x01\x08\xfe" + b"\xff" * 8 + b"\x01"
    assert field(2, "testing") == b"\x12\x07testing"
    assert field(1, 0.5) == b"\x09" + b"\x00" * 6 + b"\xe0\x3f"
