"""Condition under which a segment runs, as columns: contention level and machine, so that one model may know any of them.

| name                                   | meaning                                                                             |
|----------------------------------------|-------------------------------------------------------------------------------------|
| `share`, `latency`                     | the level's share of the DDR bandwidth; cycles that it adds, log2(1 + x)              |
| `l1`, `shared`, `cores`                | grants of the level: log2(1 + bytes) of L1 of a core and of the shared memory; cores  |
| `l0a`, `l0b`, `l0c`, `ub`              | log2(1 + bytes) of the other buffers of a core                                        |
| `macs`                                 | log2 of the multiply-accumulates per cycle of a core, for the data type               |
| `ddr`, `read`, `write`                 | log2 of bytes per cycle: deliverable by the port; that a core's DMAs draw             |
| `wait`, `flight`                       | log2(1 + cycles) until the first data of a transfer; transfers that a DMA has in flight |
| `activate`, `turned`                   | log2(1 + bytes) that the pins move from row to row (0: rows are never missed);        |
|                                        | share of the rate that remains if reads and writes take turns                         |

A machine has other parameters as well; their effect is in the features of a segment (`compiler.cost.features`), whose cycles are the
machine's own.
"""

from __future__ import annotations

from math import log2

import numpy as np
from numpy.typing import NDArray

from simulator.npu.machine import Machine
from simulator.npu.parts import BLOCK_BYTES, DataType, Engine, Memory

CONDITIONS = (
    "share", "latency", "l1", "shared", "cores", "l0a", "l0b", "l0c", "ub", "macs", "ddr", "read", "write", "wait", "flight", "activate",
    "turned",
)  # fmt: skip
SHARE, LATENCY = (CONDITIONS.index(name) - len(CONDITIONS) for name in ("share", "latency"))  # counted from the end, behind the features


def condition_of(machine: Machine, dtype: DataType, level: str) -> NDArray[np.float32]:
    """Columns of a level of the machine, float32 [len(CONDITIONS)]."""
    contention, grant, ddr = machine.contention[level], machine.granted(level), machine.ddr
    timings = ddr.timings
    columns = (
        contention.share, log2(1 + contention.latency_cycles), log2(1 + grant.l1_bytes), log2(1 + grant.shared_bytes), grant.cores,
        *(log2(1 + machine.buffer_blocks(memory) * BLOCK_BYTES) for memory in (Memory.L0A, Memory.L0B, Memory.L0C, Memory.UB)),
        log2(machine.peak(dtype)), log2(ddr.deliverable),
        *(log2(machine.path_bytes_per_cycle(engine)) for engine in (Engine.MTE2, Engine.MTE3)), log2(1 + ddr.latency_cycles),
        ddr.outstanding, 0.0 if timings is None else log2(1 + timings.activate_bytes), float(ddr.turned / ddr.deliverable),
    )  # fmt: skip
    return np.array(columns, np.float32)


def join_condition(features: NDArray[np.float32], condition: NDArray[np.float32]) -> NDArray[np.float32]:
    """Features [n, F] with the condition appended to each row, [n, F + len(CONDITIONS)]."""
    return np.hstack([features, np.broadcast_to(condition, (len(features), len(condition)))])
