"""Tables of a machine and a level for the event loop, cached, since computing them takes as long as a small program."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from simulator import timing_state as columns
from simulator.ddr import Rates, shared_rates
from simulator.npu.cycles import bank_wait_cycles, cap_units, cost_tables, latency_cycles
from simulator.npu.machine import Machine
from simulator.npu.parts import DMAS, Engine, Memory
from simulator.timing_state import Ints


class BackgroundLoad(NamedTuple):
    """A background load for the kernel.  rates: int64 [steps, ..]; steps: int64 [2 * steps] (see `timing_state`)."""

    rates: Rates
    steps: Ints


@lru_cache(maxsize=256)
def level_load(machine: Machine, share_units: int, latency_cycles: int, cores: int) -> BackgroundLoad:
    """The load of a level, constant over time."""
    return BackgroundLoad(shared_rates(machine, share_units, cores)[None], np.array([0, latency_cycles], np.int64))


@lru_cache(maxsize=64)
def ring_size(machine: Machine) -> int:
    """Remembered transfer ends per DMA port, a power of two: at least the transfers in flight or the banks, whichever is less."""
    dram = machine.ddr.timings
    return 0 if dram is None else 1 << (min(machine.ddr.outstanding, dram.banks) - 1).bit_length()


@lru_cache(maxsize=64)
def path_table(machine: Machine) -> Ints:
    """int64 [2, 8, 2] of `timing_state.PATHS`."""
    tables = cost_tables(machine)
    paths = np.zeros((2, 8, 2), np.int64)
    for k, engine in enumerate(DMAS):
        cap = cap_units(machine, engine)
        for memory in Memory:
            path = (Memory.DDR, memory) if engine == Engine.MTE2 else (memory, Memory.DDR)
            paths[k, memory] = tables.startup[path], tables.rate[path] if tables.rate[path] < cap else 0
    paths.flags.writeable = False
    return paths


@lru_cache(maxsize=64)
def constants(machine: Machine) -> Ints:
    """int64 [PORT]: constants of every run of a machine."""
    port = np.zeros(columns.PORT, np.int64)
    port[columns.ISSUE_CYCLES] = machine.issue_cycles
    port[columns.QUEUE_DEPTH] = machine.queue_depth
    port[columns.LATENCY] = machine.ddr.latency_cycles
    port[columns.OUTSTANDING] = machine.ddr.outstanding
    port[columns.REMOTE_CYCLES] = machine.flags.between_cores_cycles
    port[columns.LAUNCH] = machine.launch_cycles
    port[columns.MATRIX_LATENCY] = latency_cycles(machine)
    port[columns.BANK_WAIT] = bank_wait_cycles(machine)
    port[columns.RING] = ring_size(machine)
    port[columns.PORTS : columns.HIT_SHIFT] = [machine.dma_ports(engine) for engine in DMAS]
    port[columns.HIT_SHIFT] = 63 if machine.l2 is None else columns.BUS_BITS + columns.DRAWN_BITS
    port[columns.DRAWN_MASK] = columns.FAR if machine.l2 is None else (1 << columns.DRAWN_BITS) - 1
    port[columns.PATHS :] = path_table(machine).reshape(-1)
    port.flags.writeable = False
    return port
