"""Machines whose paths from and to DDR differ from a preset's."""

from __future__ import annotations

from typing import Any

from simulator.npu.machine import Machine
from simulator.npu.machine_parts import DataPath


def with_rates(machine: Machine, read: float | None = None, write: float | None = None, **ddr: Any) -> Machine:
    """read, write: bytes per cycle of all paths from and to DDR.  ddr: other values of `ddr`."""

    def changed(path: DataPath) -> DataPath:
        rate = read if path.source == "DDR" else write if path.destination == "DDR" else None
        return path if rate is None else path.model_copy(update={"bytes_per_cycle": rate})

    paths = tuple(map(changed, machine.paths))
    return machine.model_copy(update={"paths": paths, "ddr": machine.ddr.model_copy(update=ddr)})


def with_path(machine: Machine, name: str, **values: Any) -> Machine:
    """One path, as `DDR->L1`."""
    paths = tuple(path.model_copy(update=values) if path.name == name else path for path in machine.paths)
    return machine.model_copy(update={"paths": paths})
