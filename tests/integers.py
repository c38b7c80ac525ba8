"""Machines that multiply integers, look bytes up and add lanes in their order, made of those that do not."""

from __future__ import annotations

from simulator.npu.machine import Machine


def with_integers(machine: Machine) -> Machine:
    """The machine with a product of int8 in a cycle, 16 x 32 x 16 on a cube, a repeat of look-ups in one, and of ordered sums in three."""
    raw = machine.model_dump(mode="json")
    raw["matrix"]["cycles_per_fractal" if raw["matrix"]["kind"] == "cube" else "passes"]["int8"] = 1
    raw["vector"]["lookup_cycles"], raw["vector"]["ordered_cycles"] = 1, 3
    return Machine.model_validate(raw)
