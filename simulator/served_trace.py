"""Inferences under a changing load as Chrome trace events: the variant of each, and the share of the DDR bandwidth.

There is a lane with an event per inference, named by its variant; an instant at each switch; and a counter of the share.  An inference's
event covers its latency, including a switch before it.  The work of engines inside an inference is not shown: see `simulator.trace`.
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
from simulator.trace_events import CLOSING, event, meta, nanoseconds, opening

_PROCESS, _LANE = 1, 1


def served_trace(served: ServedRun, load: ContentionTrace, machine: Machine, about: Mapping[str, Any] | None = None) -> Iterator[bytes]:
    """Chunks of the file.  load: background load of the inferences.  about: metadata of the file (JSON values)."""
    facts = {"machine": machine.name, "clock_hz": machine.clock_hz, "cycles": served.cycles, "switches": served.switches}
    yield opening(facts | dict(about or {}))
    yield meta("process_name", _PROCESS, 0, {"name": "runtime"}).encode()
    yield b",\n" + meta("thread_name", _PROCESS, _LANE, {"name": "inferences"}).encode()
    for line in (*_inferences(served, machine), *_switches(served, machine), *_share(served, load, machine)):
        yield b",\n" + line.encode()
    yield CLOSING


def _inferences(served: ServedRun, machine: Machine) -> Iterator[str]:
    begin = nanoseconds(served.start, machine.clock_hz)
    stop = nanoseconds(served.start + served.latency, machine.clock_hz)
    columns = (begin, stop - begin, served.start, served.latency, served.variant, served.compute_cycles, served.load_store_cycles)
    for i, (begin_ns, takes, start, cycles, variant, compute, load_store) in enumerate(zip(*(c.tolist() for c in columns), strict=True)):
        yield event(
            ph="X",
            cat="inference",
            pid=_PROCESS,
            tid=_LANE,
            ts=begin_ns / 1000,
            dur=takes / 1000,
            name=served.variants[variant],
            args={
                "inference": i,
                "start_cycle": start,
                "cycles": cycles,
                "rho": compute / load_store if load_store else None,
                "compute_cycles": compute,
                "load_store_cycles": load_store,
            },
        )


def _switches(served: ServedRun, machine: Machine) -> Iterator[str]:
    after = np.flatnonzero(np.diff(served.variant)) + 1
    for i, switch_ns in zip(after.tolist(), nanoseconds(served.start[after], machine.clock_hz).tolist(), strict=True):
        before, now = (served.variants[v] for v in served.variant[i - 1 : i + 1])
        args = {"from": before, "to": now, "inference": i, "cycle": int(served.start[i])}
        yield event(ph="i", s="p", cat="switch", pid=_PROCESS, tid=_LANE, ts=switch_ns / 1000, name=f"{before} to {now}", args=args)


def _share(served: ServedRun, load: ContentionTrace, machine: Machine) -> Iterator[str]:
    """Steps of the load until the last inference ends."""
    cycle: Ints = np.array(load.cycles, np.int64)
    met = cycle < served.cycles
    share = np.array(load.share_units, np.int64)[met] / SHARE_UNIT * 100
    for change_ns, percent in zip(nanoseconds(cycle[met], machine.clock_hz).tolist(), share.tolist(), strict=True):
        yield event(ph="C", pid=_PROCESS, name="DDR share, percent", ts=change_ns / 1000, args={"percent": percent})
