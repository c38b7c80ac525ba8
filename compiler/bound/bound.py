"""What no program of a unit is faster than, at a level: the largest of three terms, proved in `docs/bounds.md`."""

from __future__ import annotations

from functools import cached_property
from math import ceil
from typing import NamedTuple

import numpy as np

from compiler.bound.needs import needs_of
from compiler.bound.prefetch import Behind, behind, finished_before
from compiler.bound.traffic import Excess, FusedGraph, excess, fused_of, once
from compiler.bound.work import dealt, out_of, work_of
from compiler.unit.unit import Unit
from simulator.npu.cycles import port_units
from simulator.npu.level import SHARE_UNIT
from simulator.npu.machine import Machine
from simulator.npu.parts import SUM_BYTES, Engine, Memory

TERMS = ("engines", "prefetch", "traffic")


class Terms(NamedTuple):
    """Cycles below which no program comes, by what each term counts; `traffic_bytes` are those of DDR that the last one counts."""

    engines: int
    prefetch: int
    traffic: int
    traffic_bytes: int

    @property
    def by_term(self) -> dict[str, int]:
        return {name: getattr(self, name) for name in TERMS}

    @property
    def cycles(self) -> int:
        return max(self.by_term.values())

    @property
    def term(self) -> str:
        """The name of the largest one."""
        return max(TERMS, key=self.by_term.__getitem__)


class Bound:
    """Of a whole unit.  What does not depend on the level is worked out once."""

    def __init__(self, unit: Unit) -> None:
        self.unit = unit
        self.needs = needs_of(unit)
        self.work = work_of(unit, self.needs)
        self.once = once(self.needs, self.work.weights)
        self._windows: dict[int, tuple[Excess, ...]] = {}

    def of(self, level: str) -> Terms:
        moved = sum(self.once) + sum(window.bytes for window in self.windows(capacity_bytes(self.unit, level)))
        return Terms(self._engines(level), self._prefetch(level), self._traffic(level, moved), moved)

    def windows(self, capacity: int) -> tuple[Excess, ...]:
        """Those that move bytes more than once where so many are on chip."""
        if capacity not in self._windows:
            self._windows[capacity] = excess(self._fused, capacity)
        return self._windows[capacity]

    def _engines(self, level: str) -> int:
        """Theorem 1."""
        machine, work = self.unit.machine, self.work
        cores = machine.granted(level).cores
        vector = float(work.vector.sum())
        deals = [dealt(cycles, work.on_vector, vector)[0] for cycles in work.matrix.T]
        begins, ends = first_data_cycles(machine, level), last_data_cycles(machine, level)
        stores = float(work.back.sum()) / out_of(machine, Memory.UB, Engine.MTE3)
        stores += self.once.outputs / float(machine.dma_bytes_per_cycle(Engine.MTE3))
        busiest = max(*deals, vector) / cores
        return max(begins + ceil(busiest - _SLACK) + ends if busiest else 0, begins + ceil(stores / cores - _SLACK))

    def _prefetch(self, level: str) -> int:
        """Theorem 2."""
        machine, found = self.unit.machine, self._behind
        later = np.maximum(0.0, found.weights_left - capacity_bytes(self.unit, level)) / _read_rate(machine, level)
        if not later.any():
            return 0
        cores = machine.granted(level).cores
        begins, ends = first_data_cycles(machine, level), last_data_cycles(machine, level)
        return begins + ceil(float((found.work / cores + later)[later > 0].max()) - _SLACK) + ends

    def _traffic(self, level: str, moved: int) -> int:
        """Theorem 3."""
        machine = self.unit.machine
        cores, port = machine.granted(level).cores, port_units(machine, machine.contention[level].share_units)
        loads = (self.once.inputs + self.once.weights) / _read_rate(machine, level)
        stores = self.once.outputs / (cores * float(machine.dma_bytes_per_cycle(Engine.MTE3)))
        return first_data_cycles(machine, level) + max(-(-moved * SHARE_UNIT // port), ceil(loads - _SLACK), ceil(stores - _SLACK))

    @cached_property
    def _fused(self) -> FusedGraph:
        return fused_of(self.unit, self.needs, self.work.weights)

    @cached_property
    def _behind(self) -> Behind:
        work = self.work
        weight = dealt(work.spread, work.on_vector, float(work.vector.sum()))[1]
        both = np.minimum(weight * work.spread, (1 - weight) * work.on_vector)
        return behind(both, work.weights.astype(np.float64), finished_before(self.unit, self.needs))


_SLACK = 1e-6  # of sums of fractions


def capacity_bytes(unit: Unit, level: str) -> int:
    """Of values on chip, wherever they lie, in what a level grants: in L0C each takes as much as a sum."""
    machine = unit.machine
    granted, widest = machine.granted(level), max(storage.dtype.size_bytes for storage in unit.storages)
    sizes = machine.buffers_bytes.there | {"L1": granted.l1_bytes}
    sizes["L0C"] = sizes["L0C"] * min(SUM_BYTES, widest) // SUM_BYTES
    return granted.cores * sum(sizes.values()) + granted.shared_bytes


def first_data_cycles(machine: Machine, level: str) -> int:
    """Cycles before the first byte of DDR moves."""
    return machine.launch_cycles + _latency(machine, level) + _least_startup(machine, Engine.MTE2)


def last_data_cycles(machine: Machine, level: str) -> int:
    """Cycles between the last computation and the first byte of what it made that is stored."""
    return _latency(machine, level) + _least_startup(machine, Engine.MTE3)


def _latency(machine: Machine, level: str) -> int:
    return machine.ddr.latency_cycles + machine.contention[level].latency_cycles


def _least_startup(machine: Machine, engine: Engine) -> int:
    return min((path.startup_cycles for path in machine.paths if path.of_ddr and path.engine == engine.name), default=0)


def _read_rate(machine: Machine, level: str) -> float:
    """Bytes per cycle that all granted cores load at most."""
    port = port_units(machine, machine.contention[level].share_units) / SHARE_UNIT
    return min(port, machine.granted(level).cores * float(machine.dma_bytes_per_cycle(Engine.MTE2)))
