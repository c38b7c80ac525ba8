"""State of a run of the timing model: the arrays of `timing_kernel`, their columns and their initial values.

A unit is a queue, or the scalar unit that feeds a core's queues; u = (core * 8 + engine) * 16 is its place in `unit`, with engine 7 for
the scalar unit.  Entries are instructions in queue order.

| name   | dtype, shape           | meaning                                                                                  |
|--------|------------------------|------------------------------------------------------------------------------------------|
| word   | int64 [n]              | entry: value << 3 or kind; value = busy cycles, flag slot, or transfer << 3 or memory    |
| engine | uint8 [n]              | engine of each instruction in stream order                                               |
| time   | int64 [n]              | of an entry: dispatch cycle, then the cycle in which it left the queue                   |
| flag   | int64 [slots]          | cycle in which the SET of a slot takes effect; -1 unknown; -2 - u: u waits for it        |
| unit   | int64 [cores * 8 * 16] | state of queues (FIRST..) and of scalar units (PC..)                                     |
| dma    | int64 [ports * 8]      | DMA ports: the load ports core after core, then the store ports                          |
| ends   | int64 [ports, 1 + r]   | per DMA port: transfers that have ended, and when the last r did, r a power of two       |
| load   | int64 [2 * steps]      | of the background load: from when on a step holds, and the latency that it adds          |
| port   | int64 [52]             | state of the DDR port, constants of the run                                              |
| record | int64 [3 * n or 0]     | dispatch, start and end of entries, one after the other; empty when not wanted           |

Kernels use plain pointers (`simulator.pointer`): counting references to arrays took more than half of the time of this loop.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from simulator.npu.parts import Engine

Ints = NDArray[np.int64]

ENGINES = len(Engine)
UNITS = ENGINES + 1  # units of a core: its queues and its scalar unit
SCALAR_UNIT = ENGINES
FAR = np.iinfo(np.int64).max
MTE2, MTE3, CUBE, VECTOR = int(Engine.MTE2), int(Engine.MTE3), int(Engine.CUBE), int(Engine.VECTOR)

# entries
KIND_BITS, KIND_MASK = 3, 7
BUS_BITS = 6  # bits of a transfer for its kind and its on-chip memory
# A transfer's value is its bus units.  On a machine with an L2, these are the lowest DRAWN_BITS bits; the bits above them are cycles in
# which the L2 alone moves data, after the draw.
DRAWN_BITS = 38
FIXED, TRANSFER, WAIT, SET, SET_REMOTE = range(5)

# columns of `unit`: worklist (a linked stack), then of a queue
QUEUED, NEXT = 0, 1
FIRST, STOP = 2, 3  # range of its entries
HEAD, TAIL = 4, 5  # next entry to leave, next entry to be dispatched
FRONT = 6  # cycle of the last leaving
DONE = 7  # cycle in which all that left have completed (DMA: the last completed one); without LAG
STALLED = 8  # 1 while it waits for a flag or a completion; a dispatch then need not wake it
DATA = 9  # DMA: first entry whose effect is not settled; transfers in DATA..HEAD are issued
INFLIGHT = 10  # DMA: transfers issued and not ended
TURN = 11  # DMA: port of the next transfer
MOVED = 14  # DMA: cycles so far in which some port moved data
LAG = 15  # cycles from DONE to the results of a pipelined matrix unit; else 0
# columns of a scalar unit (FIRST, STOP: its rows)
PC, ISSUED = 4, 5  # next row to dispatch, cycle of the last dispatch
FULL = 6  # queue whose lack of room stops it, or -1
MOVING, MOVING_SINCE, CORE_MOVED = 7, 8, 9  # running transfers of the core; since when; cycles with at least one so far
COLUMN_BITS = 4
COLUMNS = 1 << COLUMN_BITS
CORE = UNITS * COLUMNS  # distance between the units of two cores
SCALAR = SCALAR_UNIT * COLUMNS  # u | SCALAR is the scalar unit of u's core

# columns of a DMA port
OWNER = 0  # queue of the port
ENTRY = 1  # transfer on the port that has not ended, or FAR
BEGIN = 2  # known start of its data phase, or end of a phase limited by its path, or FAR
FINISH = 3  # value of SERVED at which it ends, or FAR
BEGAN = 4  # start of the running data phase, or -1
FREE = 5  # end of the port's previous use
SINCE = 6  # start of the current unbroken data movement of its queue, over all ports, while this port moves data
AFTER = 7  # next port of its queue
PORT_COLUMNS = 8

# columns of `port`
SERVED, ACTIVE = 0, 2  # [2] each: bus units that every transfer of MTE2 / MTE3 would have had so far; running transfers
TOP = 4  # top of the worklist, or -1
ISSUE_CYCLES, QUEUE_DEPTH, LATENCY, OUTSTANDING, REMOTE_CYCLES, RECORD, LAUNCH, MATRIX_LATENCY, BANK_WAIT, RING, STEPS = range(5, 16)
PORTS = STEPS + 1  # [2]: DMA ports of a core, to load and to store
HIT_SHIFT, DRAWN_MASK = PORTS + 2, PORTS + 3  # of a transfer's word: position of its L2 cycles (63 without L2), bits of its bus units
PATHS = PORTS + 4  # [2, 8, 2]: of MTE2 / MTE3, by memory: start-up, and rate if it is below the engine's, else 0
PATHS_OF = 2 << KIND_BITS  # length of one engine's part of PATHS
PORT = PATHS + 2 * PATHS_OF

DISPATCHED, START, END = range(3)
ROW = END + 1  # columns of `record`


class State(NamedTuple):
    """Arrays of a run (see the table at the top); `timing_kernel.run_event_loop` initialises them."""

    time: Ints
    flag: Ints
    unit: Ints
    dma: Ints
    ends: Ints
    record: Ints


def new_state(instructions: int, slots: int, cores: int, ports: int, ring: int, record: bool) -> State:
    """Empty arrays of a run.  ports: DMA ports of a core.  ring: remembered ends of transfers per port."""
    return State(
        np.empty(instructions, np.int64),
        np.empty(slots, np.int64),
        np.empty(cores * CORE, np.int64),
        np.empty(cores * ports * PORT_COLUMNS, np.int64),
        np.empty(cores * ports * (1 + ring), np.int64),
        np.empty(ROW * instructions if record else 0, np.int64),
    )


@njit(cache=True)
def reset(unit: Ints, dma: Ints, port: Ints, queues: Ints, streams: Ints) -> None:
    """Set cycle 0; `unit` must be all 0.  queues, streams: int64 [.., 2], (first, stop) of their entries, or rows."""
    port[SERVED], port[SERVED + 1], port[ACTIVE], port[ACTIVE + 1], port[TOP] = 0, 0, 0, 0, -1
    for core in range(streams.shape[0]):
        for e in range(ENGINES):
            u, q = core * CORE + e * COLUMNS, core * ENGINES + e
            unit[u + FIRST] = unit[u + HEAD] = unit[u + TAIL] = unit[u + DATA] = queues[q, 0]
            unit[u + STOP] = queues[q, 1]
            if e == CUBE:  # the array is empty: DONE + LAG is cycle 0
                unit[u + LAG] = port[MATRIX_LATENCY]
                unit[u + DONE] = -port[MATRIX_LATENCY]
        u = core * CORE + SCALAR
        unit[u + FIRST] = unit[u + PC] = streams[core, 0]
        unit[u + STOP] = streams[core, 1]
        unit[u + FULL] = -1
        unit[u + ISSUED] = port[LAUNCH]
        unit[u + NEXT] = port[TOP]
        unit[u + QUEUED] = 1
        port[TOP] = u
    s = 0
    for k in range(2):
        for core in range(streams.shape[0]):
            u = core * CORE + (MTE2 if k == 0 else MTE3) * COLUMNS
            unit[u + TURN] = s
            ports = port[PORTS + k]
            for i in range(ports):
                dma[s + AFTER] = s + PORT_COLUMNS if i + 1 < ports else unit[u + TURN]
                dma[s + OWNER] = u
                dma[s + ENTRY] = dma[s + BEGIN] = dma[s + FINISH] = FAR
                dma[s + BEGAN] = -1
                dma[s + FREE] = 0
                s += PORT_COLUMNS
