"""Inferences under a changing load as a trace: the variant of each, and the share of the DDR bandwidth.

There is a lane with an event per inference, named by its variant, with an instant at each switch; and a counter of the share.  An
inference's event covers its latency, including a switch before it.  The work of engines inside an inference is not shown: see
`simulator.trace`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from simulator.ddr import ContentionTrace
from simulator.npu.level import SHARE_UNIT
from simulator.npu.machine import Machine
from simulator.runtime import ServedRun
from simulator.timing_state import Ints
from simulator.trace_events import Counter, Event, Group, Instant, Lane, Slices, Texts, Trace, nanoseconds

_GROUP, _LANE = 1, 1


def trace_served(served: ServedRun, load: ContentionTrace, machine: Machine, about: Mapping[str, Any] | None = None) -> Trace:
    """load: background load of the inferences.  about: more facts of the file (JSON values)."""
    facts = {"machine": machine.name, "clock_hz": machine.clock_hz, "cycles": served.cycles, "switches": served.switches}
    return Trace(facts | dict(about or {}), _events(served, load, machine))


def _events(served: ServedRun, load: ContentionTrace, machine: Machine) -> Iterator[Event]:
    yield Group(_GROUP, "runtime")
    yield Lane(_GROUP, _LANE, "inferences")
    yield _inferences(served, machine)
    yield from _switches(served, machine)
    yield _share(served, load, machine)


def _inferences(served: ServedRun, machine: Machine) -> Slices:
    numbers = np.arange(served.inferences)
    has_transfers = served.load_store_cycles > 0
    rho = np.divide(served.compute_cycles, served.load_store_cycles, out=np.full(len(numbers), np.nan), where=has_transfers)
    begin_ns, end_ns = (nanoseconds(cycle, machine.clock_hz) for cycle in (served.start, served.start + served.latency))
    arguments = {
        "inference": numbers,
        "start_cycle": served.start,
        "cycles": served.latency,
        "rho": rho,
        "compute_cycles": served.compute_cycles,
        "load_store_cycles": served.load_store_cycles,
    }
    return Slices("inference", _GROUP, _LANE, begin_ns, end_ns, Texts(served.variants, served.variant), [(numbers, arguments)])


def _switches(served: ServedRun, machine: Machine) -> Iterator[Instant]:
    after = np.flatnonzero(np.diff(served.variant)) + 1
    for i, switch_ns in zip(after.tolist(), nanoseconds(served.start[after], machine.clock_hz).tolist(), strict=True):
        before, now = (served.variants[v] for v in served.variant[i - 1 : i + 1])
        arguments = {"from": before, "to": now, "inference": i, "cycle": int(served.start[i])}
        yield Instant("switch", _GROUP, _LANE, f"{before} to {now}", switch_ns, arguments)


def _share(served: ServedRun, load: ContentionTrace, machine: Machine) -> Counter:
    """Steps of the load until the last inference ends."""
    cycle: Ints = np.array(load.cycles, np.int64)
    met = cycle < served.cycles
    share = np.array(load.share_units, np.int64)[met] / SHARE_UNIT * 100
    return Counter(_GROUP, "DDR share, percent", "percent", nanoseconds(cycle[met], machine.clock_hz), share)
