"""The event loop of the timing model, in numba (`timing.py` has the interface and the model).

Lazy dataflow: only the ends of DDR transfers depend on other queues' progress.  Every other time is a maximum and a sum of times that are
known as soon as their sources have run, and may be in the future.  So queues are processed as far as possible, in any order (a worklist of
woken queues), and the clock steps to the next start or end of a data phase only if no queue can continue.
This is exact: a time that is still unknown then waits for a transfer that has not ended, so it is not before that end.

`timing_state` describes the arrays, `timing_queues` and `timing_dma` the steps of queues and of their transfers.

Between two steps of the clock, when the worklist is empty, the state describes the run completely.  There it may leave a snapshot, and a
later run may resume from it (`timing_snapshot`), or converge with it (`timing_converge`).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from simulator.pointer import Pointer, pointer
from simulator.timing_converge import CommonSuffix, PreviousRun, adopt, converges
from simulator.timing_dma import advance_dma, complete, drawn_units, release_cycle, start_data
from simulator.timing_queues import advance, dispatch, engine_of, inlined, wake
from simulator.timing_snapshot import COUNT, FROM, INTERVAL, NOW, UNIT, resume_snapshot, save_snapshot
from simulator.timing_state import (
    ACTIVE,
    BEGAN,
    BEGIN,
    COLUMNS,
    DONE,
    ENTRY,
    FAR,
    FINISH,
    FRONT,
    FULL,
    HEAD,
    ISSUED,
    LAG,
    MTE2,
    MTE3,
    NEXT,
    OWNER,
    PC,
    PORT_COLUMNS,
    PORTS,
    QUEUE_DEPTH,
    QUEUED,
    SCALAR,
    SCALAR_UNIT,
    SERVED,
    STOP,
    TAIL,
    TOP,
    Ints,
    reset,
)  # fmt: skip


@inlined
def _ceil_div(dividend: int, divisor: int) -> int:
    """Rounded-up quotient for a dividend of 0 or more and a divisor above 0: unsigned, so without tests of signs."""
    quotient: Any = np.int64(np.uint64(dividend + divisor - 1) // np.uint64(divisor))
    return quotient


@inlined
def _drain(
    unit: Pointer, port: Pointer, time: Pointer, flag: Pointer, dma: Pointer, ends: Pointer, load: Pointer, record: Pointer, word: Pointer,
    engine: Pointer, now: int,
) -> None:  # fmt: skip
    """Run all queues of the worklist ahead until it is empty."""
    while port[TOP] >= 0:
        u = port[TOP]
        port[TOP] = unit[u + NEXT]
        unit[u + QUEUED] = 0
        e = engine_of(u)
        if e == SCALAR_UNIT:
            dispatch(unit, port, time, record, engine, u)
            continue
        if e in (MTE2, MTE3):
            advance_dma(unit, port, time, flag, dma, ends, load, record, word, u, now)
        else:
            advance(unit, port, time, flag, record, word, u)
        # a full queue with room again wakes its scalar unit
        scalar = u | SCALAR
        if unit[scalar + FULL] == u and unit[u + HEAD] > unit[u + TAIL] - port[QUEUE_DEPTH]:
            wake(unit, port, scalar)


@njit(cache=True, error_model="numpy")
def run_event_loop(
    time_array: Ints,
    flag_array: Ints,
    unit_array: Ints,
    dma_array: Ints,
    ends_array: Ints,
    record_array: Ints,
    word_array: Ints,
    engine_array: NDArray[np.uint8],
    queues: Ints,
    streams: Ints,
    rates: Ints,
    load_array: Ints,
    port_array: Ints,
    suffix: CommonSuffix,
    previous: PreviousRun,
    snapshots: Ints,
    control: Ints,
) -> int:
    """Simulate; returns the last cycle, or -1 in a deadlock.

    queues: int64 [queues, 2], first entry and stop; streams: int64 [cores, 2], the same of `engine_array`.
    rates: int64 [steps, load ports + 1, store ports + 1, 2] (see `ddr`); rates[i] holds from load_array[i] on, the first from 0.
    snapshots, control: see `timing_snapshot`; suffix, previous: see `timing_converge`; a run that resumes from a snapshot, or may converge
    with one, has a load of one step.
    """
    now, step, pause, candidate = 0, 0, control[INTERVAL], 0
    if control[FROM] >= 0:
        row = snapshots[control[FROM]]
        history = previous.flag, previous.source, previous.first, previous.low, previous.begin
        now = resume_snapshot(
            row, time_array, flag_array, unit_array, dma_array, ends_array, port_array, word_array, queues, streams, *history
        )
    else:
        flag_array[:] = -1
        unit_array[:] = 0
        ends_array[:] = 0
        reset(unit_array, dma_array, port_array, queues, streams)
    time, flag, unit, record = pointer(time_array), pointer(flag_array), pointer(unit_array), pointer(record_array)
    word, engine, port = pointer(word_array), pointer(engine_array), pointer(port_array)
    dma, ends, load, steps = pointer(dma_array), pointer(ends_array), pointer(load_array), rates.shape[0]
    units, dma_ports = unit_array.shape[0], dma_array.shape[0]
    load_ports = streams.shape[0] * port_array[PORTS] * PORT_COLUMNS
    rate, loads, stores = pointer(rates), rates.shape[1] - 1, rates.shape[2] - 1
    while True:
        _drain(unit, port, time, flag, dma, ends, load, record, word, engine, now)
        # converge: candidates are snapshots at this position of core 0; positions grow from one to the next
        if candidate < previous.snapshots.shape[0]:
            pc = unit[SCALAR + PC] - suffix.rows[0, 1]
            while candidate < previous.snapshots.shape[0] and previous.snapshots[candidate, UNIT + SCALAR + PC] < pc:
                candidate += 1
            k = candidate
            while k < previous.snapshots.shape[0] and previous.snapshots[k, UNIT + SCALAR + PC] == pc:
                state = flag_array, unit_array, dma_array, ends_array, port_array
                if converges(previous.snapshots[k], now, time_array, *state, word_array, suffix, previous):
                    control[COUNT] = adopt(k, now, *state, suffix, previous, snapshots, control[COUNT])
                    return previous.cycles + now - previous.snapshots[k, NOW]
                k += 1
        # a snapshot every INTERVAL steps, while there is room
        pause -= 1
        if pause == 0:
            pause = control[INTERVAL]
            if control[COUNT] < snapshots.shape[0]:
                control[COUNT] += save_snapshot(snapshots[control[COUNT]], time_array, unit_array, dma_array, ends_array, port_array, now)
        # rates until the next step: they depend on the load and on the number of active transfers only
        cell = ((step * (loads + 1) + port[ACTIVE]) * (stores + 1) + port[ACTIVE + 1]) * 2
        read_rate, write_rate = rate[cell], rate[cell + 1]
        # the next event: a data phase begins or is released by its path, or the first transfer of a kind ends
        upcoming, read_end, write_end = FAR, FAR, FAR
        for dma_port in range(0, load_ports, PORT_COLUMNS):
            upcoming = min(upcoming, dma[dma_port + BEGIN])
            read_end = min(read_end, dma[dma_port + FINISH])
        for dma_port in range(load_ports, dma_ports, PORT_COLUMNS):
            upcoming = min(upcoming, dma[dma_port + BEGIN])
            write_end = min(write_end, dma[dma_port + FINISH])
        if read_end != FAR:
            upcoming = min(upcoming, now + _ceil_div(read_end - port[SERVED], read_rate))
        if write_end != FAR:
            upcoming = min(upcoming, now + _ceil_div(write_end - port[SERVED + 1], write_rate))
        if upcoming == FAR:
            break
        if step + 1 < steps and load[step + 1] <= upcoming:
            step += 1
            upcoming = load[step]
        port[SERVED] += read_rate * (upcoming - now)
        port[SERVED + 1] += write_rate * (upcoming - now)
        now = upcoming
        # events of this cycle, port by port, in a fixed order
        for dma_port in range(0, dma_ports, PORT_COLUMNS):
            k = 0 if dma_port < load_ports else 1
            if dma[dma_port + FINISH] <= port[SERVED + k]:
                release = release_cycle(port, dma, dma_port, word[dma[dma_port + ENTRY]], now)
                if release > now:
                    port[ACTIVE + k] -= 1
                    dma[dma_port + FINISH], dma[dma_port + BEGIN] = FAR, release
                    continue
            elif dma[dma_port + BEGIN] > now:
                continue
            elif dma[dma_port + BEGAN] < 0:
                start_data(unit, port, dma, dma[dma_port + OWNER], dma_port, drawn_units(port, word[dma[dma_port + ENTRY]]), now)
                continue
            complete(unit, port, time, flag, dma, ends, load, record, word, dma[dma_port + OWNER], dma_port, now)
    # the end is the last cycle of any unit; a unit with entries left waits for a SET that cannot come
    last = 0
    for u in range(0, units, COLUMNS):
        if unit[u + HEAD] != unit[u + STOP]:  # HEAD and PC are the same column
            return -1
        last = max(last, unit[u + ISSUED]) if engine_of(u) == SCALAR_UNIT else max(last, unit[u + FRONT], unit[u + DONE] + unit[u + LAG])
    return last
