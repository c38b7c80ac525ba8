"""The trace of many inferences says what the runtime's result says."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from simulator.ddr import ContentionTrace
from simulator.npu.level import SHARE_UNIT
from simulator.npu.machine_file import load_machine
from simulator.runtime import ServedRun
from simulator.served_trace import trace_served
from simulator.trace_json import write_json

TINY = load_machine("tiny").model_copy(update={"clock_hz": 1_000_000})  # a cycle is a microsecond
LOAD = ContentionTrace.of([(0, SHARE_UNIT), (15, SHARE_UNIT // 4), (60, SHARE_UNIT)])


def read(load: ContentionTrace = LOAD) -> dict[str, Any]:
    columns = ((0, 14, 37), (14, 23, 23), (0, 1, 1), (5, 20, 20), (10, 0, 40))
    served = ServedRun(("light", "heavy"), *(np.array(column, np.int64) for column in columns))
    value = json.loads(b"".join(write_json(trace_served(served, load, TINY, {"trace": "by hand"}))))
    assert isinstance(value, dict)
    return value


def events(phase: str) -> list[dict[str, Any]]:
    return [event for event in read()["traceEvents"] if event["ph"] == phase]


def test_an_event_per_inference() -> None:
    found = [(e["name"], e["ts"], e["dur"], e["args"]["cycles"], e["args"]["rho"]) for e in events("X")]
    assert found == [("light", 0, 14, 14, 0.5), ("heavy", 14, 23, 23, None), ("heavy", 37, 23, 23, 0.5)]
    assert [e["args"]["inference"] for e in events("X")] == [0, 1, 2]


def test_an_instant_per_switch() -> None:
    (switch,) = events("i")
    assert (switch["name"], switch["ts"], switch["s"]) == ("light to heavy", 14, "p")
    assert switch["args"] == {"from": "light", "to": "heavy", "inference": 1, "cycle": 14}


def test_the_share_until_the_last_inference_ends() -> None:
    assert [(e["ts"], e["args"]) for e in events("C")] == [(0, {"percent": 100}), (15, {"percent": 25})]  # the run ends at 60


def test_the_file_says_what_it_is() -> None:
    value = read()
    assert value["otherData"] == {
        "machine": TINY.name, "clock_hz": 1_000_000, "cycles": 60, "switches": 1, "trace": "by hand",
    }  # fmt: skip
    lanes = {(e["pid"], e["tid"]): e["args"]["name"] for e in value["traceEvents"] if e["name"] == "thread_name"}
    assert {lanes[e["pid"], e["tid"]] for e in events("X")} == {"inferences"}
