"""Machines without some of their buffers, made of those that have all."""

from __future__ import annotations

from simulator.npu.machine import Machine

_INSTEAD = {
    "UB": {"engine": "MTE1", "source": "L1", "destination": "L1", "bytes_per_cycle": 64, "startup_cycles": 4},
    "L0A": {"engine": "CUBE", "source": "L1", "destination": "L0C", "bytes_per_cycle": 256, "startup_cycles": 2},
}


def without(machine: Machine, *buffers: str) -> Machine:
    """The machine without `UB`, `L0A` and `L0B`, as named, and with the paths that the compiler needs in their place."""
    raw = machine.model_dump(mode="json")
    raw["name"] = "-".join((machine.name, "without", *buffers)).lower()
    raw["buffers_bytes"] = {name: size for name, size in raw["buffers_bytes"].items() if name not in buffers}
    raw["paths"] = [path for path in raw["paths"] if not {path["source"], path["destination"]} & {*buffers}]
    raw["paths"] += [_INSTEAD[name] for name in buffers if name in _INSTEAD]
    return Machine.model_validate(raw)
