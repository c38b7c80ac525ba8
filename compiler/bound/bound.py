"""Lower bound of any program of a model at a level: the largest of three terms, proved in `docs/bounds.md`."""

from __future__ import annotations

from functools import cached_property
from math import ceil
from typing import NamedTuple

import numpy as np

from compiler.bound.dependences import needs_of
from compiler.bound.engine_balance import Floats, weightings, work_worth
from compiler.bound.engine_work import Shared, fastest_path_from, work_of
from compiler.bound.phases import Phases, phases_of
from compiler.bound.prefetch import UnfinishedWeights, finished_before, unfinished_weights
from compiler.bound.traffic import Excess, FusedGraph, find_excess, fused_of, least_traffic
from compiler.target.target_graph import TargetGraph
from simulator.npu.cycles import port_units
from simulator.npu.level import SHARE_UNIT
from simulator.npu.machine import Machine
from simulator.npu.parts import SUM_BYTES, Engine, Memory

TERMS = ("engines", "prefetch", "traffic")


class Terms(NamedTuple):
    """Lower bounds in cycles, by term; `traffic_bytes`: bytes of DDR that the last one counts."""

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
        """Name of the largest one."""
        return max(TERMS, key=self.by_term.__getitem__)


class Bound:
    """Bounds of a target graph.  Values that do not depend on the level are computed once."""

    def __init__(self, target_graph: TargetGraph) -> None:
        self.target_graph = target_graph
        self.needs = needs_of(target_graph)
        self.work = work_of(target_graph, self.needs)
        self.once = least_traffic(target_graph, self.needs, self.work.weights)
        self.phases = phases_of(target_graph, self.needs, self.work.matrix[:, 0] + self.work.vector)
        self._windows: dict[int, tuple[Excess, ...]] = {}

    def of(self, level: str) -> Terms:
        moved = sum(self.once) + sum(window.bytes for window in self.windows(capacity_bytes(self.target_graph, level)))
        return Terms(self._engines(level), self._prefetch(level), self._traffic(level, moved), moved)

    def windows(self, capacity: int) -> tuple[Excess, ...]:
        """Windows that move some bytes more than once, given `capacity` bytes on chip."""
        if capacity not in self._windows:
            self._windows[capacity] = find_excess(self._fused, capacity)
        return self._windows[capacity]

    def _engines(self, level: str) -> int:
        """Theorem 1."""
        machine, work = self.target_graph.machine, self.work
        cores = machine.granted(level).cores
        begins, ends = first_data_cycles(machine, level), last_data_cycles(machine, level)
        stores = float(work.back.sum()) / fastest_path_from(machine, Memory.UB, Engine.MTE3).bytes_per_cycle
        stores += self.once.outputs / float(machine.dma_bytes_per_cycle(Engine.MTE3))
        busiest = self._busiest / cores
        return max(begins + ceil(busiest - _SLACK) + ends if busiest else 0, begins + ceil(stores / cores - _SLACK))

    def _prefetch(self, level: str) -> int:
        """Theorem 2."""
        machine, curves = self.target_graph.machine, self._behind
        cores, room = machine.granted(level).cores, weight_bytes(self.target_graph, level)
        cycles = 0.0
        for curve in curves:
            later = np.maximum(0.0, curve.weights_left - room) / _read_rate(machine, level)
            cycles = max(cycles, float((curve.work / cores + later)[later > 0].max(initial=0.0)))
        return first_data_cycles(machine, level) + ceil(cycles - _SLACK) + last_data_cycles(machine, level) if cycles else 0

    def _traffic(self, level: str, moved: int) -> int:
        """Theorem 3.  An L2 may take all results, and fetch each byte once."""
        machine = self.target_graph.machine
        moved = moved if machine.l2 is None else self.once.inputs + self.once.weights
        cores, port = machine.granted(level).cores, port_units(machine, machine.contention[level].share_units)
        loads = (self.once.inputs + self.once.weights) / _read_rate(machine, level)
        stores = self.once.outputs / (cores * float(machine.dma_bytes_per_cycle(Engine.MTE3)))
        return first_data_cycles(machine, level) + max(-(-moved * SHARE_UNIT // port), ceil(loads - _SLACK), ceil(stores - _SLACK))

    @cached_property
    def _fused(self) -> FusedGraph:
        return fused_of(self.target_graph, self.needs, self.work.weights)

    @cached_property
    def _busiest(self) -> float:
        """Cycles of the busiest engine if one core does all work, in the best split."""
        return max(float(worth.sum()) for worth, _ in self._worth)

    @cached_property
    def _worth(self) -> list[tuple[Floats, Floats]]:
        """Per engine and weighting: worth of each operator's work, and the part of it before which none of its weights is finished."""
        work, count = self.work, len(self.target_graph.operators)
        nothing = np.zeros(count)
        free = Shared(nothing[:, None], nothing[:, None])
        engines = [(work.loads, free, Phases.one(count)), (work.fixpipe, free, self.phases), (work.cube, work.spread, self.phases)]
        return [
            (work_worth(product, work.vector, w, phases), work_worth(spread, nothing, w, phases))
            for product, spread, phases in engines
            for w in weightings(product, work.vector, phases)
        ]

    @cached_property
    def _behind(self) -> tuple[UnfinishedWeights, ...]:
        shares, weights = finished_before(self.target_graph, self.needs), self.work.weights.astype(np.float64)
        return tuple(unfinished_weights(operator_worth, spread, weights, shares) for operator_worth, spread in self._worth)


_SLACK = 1e-6  # rounding error of sums of fractions


def capacity_bytes(target_graph: TargetGraph, level: str) -> int:
    """Capacity in bytes of all on-chip memories for tensor values, within the grant of a level; a value in L0C takes the size of a sum."""
    widest = max(storage.dtype.size_bytes for storage in target_graph.storages)
    granted, sizes = target_graph.machine.granted(level), _sizes(target_graph, level)
    return weight_bytes(target_graph, level) + granted.cores * (sizes.get("L0A", 0) + sizes["L0C"] * min(SUM_BYTES, widest) // SUM_BYTES)


def weight_bytes(target_graph: TargetGraph, level: str) -> int:
    """Bytes on chip for weights of products that are still to be computed; without L0A (left operands) and L0C (sums)."""
    granted = target_graph.machine.granted(level)
    return (
        granted.cores * sum(size for name, size in _sizes(target_graph, level).items() if name not in ("L0A", "L0C")) + granted.shared_bytes
    )


def _sizes(target_graph: TargetGraph, level: str) -> dict[str, int]:
    return target_graph.machine.buffers_bytes.present_sizes | {"L1": target_graph.machine.granted(level).l1_bytes}


def first_data_cycles(machine: Machine, level: str) -> int:
    """Cycles before the first byte of DDR moves."""
    return machine.launch_cycles + _latency(machine, level) + _least_startup(machine, Engine.MTE2)


def last_data_cycles(machine: Machine, level: str) -> int:
    """Cycles between the last computation and the first byte of its result in DDR."""
    return _latency(machine, level) + _least_startup(machine, Engine.MTE3)


def _latency(machine: Machine, level: str) -> int:
    return machine.ddr.latency_cycles + machine.contention[level].latency_cycles


def _least_startup(machine: Machine, engine: Engine) -> int:
    return min((path.startup_cycles for path in machine.paths if path.of_ddr and path.engine == engine.name), default=0)


def _read_rate(machine: Machine, level: str) -> float:
    """Most bytes per cycle that all granted cores load."""
    port = port_units(machine, machine.contention[level].share_units) / SHARE_UNIT
    return min(port, machine.granted(level).cores * float(machine.dma_bytes_per_cycle(Engine.MTE2)))
