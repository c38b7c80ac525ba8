"""Machines with a memory on the chip that all cores share, made of those that have none."""

from __future__ import annotations

from typing import Any

from simulator.npu.machine import Machine

PATHS = (
    ("MTE2", "DDR", "SHARED"),
    ("MTE2", "SHARED", "L1"),
    ("MTE2", "SHARED", "UB"),
    ("MTE3", "UB", "SHARED"),
    ("MTE3", "L1", "SHARED"),
    ("MTE3", "SHARED", "DDR"),
)


def with_shared(
    machine: Machine, size_bytes: int = 1 << 15, bytes_per_cycle: int = 256, latency_cycles: int = 5, **changes: Any
) -> Machine:
    """The machine with one, and with all of its paths at 128 bytes per cycle."""
    raw = machine.model_dump(mode="json") | changes
    raw["shared"] = {"bytes": size_bytes, "bytes_per_cycle": bytes_per_cycle, "latency_cycles": latency_cycles}
    raw["paths"] += [
        {"engine": engine, "source": source, "destination": destination, "bytes_per_cycle": 128} for engine, source, destination in PATHS
    ]
    return Machine.model_validate(raw)
