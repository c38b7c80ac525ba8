"""Queues: dispatch by the scalar unit, and entries of fixed duration (see `timing_kernel`; u is a queue, or a scalar unit)."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from simulator.pointer import Pointer
from simulator.timing_state import (
    COLUMN_BITS,
    COLUMNS,
    DISPATCHED,
    DONE,
    END,
    FIRST,
    FIXED,
    FRONT,
    FULL,
    HEAD,
    ISSUE_CYCLES,
    ISSUED,
    KIND_BITS,
    KIND_MASK,
    LAG,
    NEXT,
    PC,
    QUEUE_DEPTH,
    QUEUED,
    RECORD,
    REMOTE_CYCLES,
    SCALAR,
    SET_REMOTE,
    STALLED,
    START,
    STOP,
    TAIL,
    TOP,
    UNITS,
    WAIT,
)  # fmt: skip

# Helpers of the loop are inlined: they take ten pointers each and would return an unused status, so calls would take a visible part of the
# time.
inlined = njit(cache=True, forceinline=True, error_model="numpy")


@inlined
def engine_of(u: int) -> int:
    return u >> COLUMN_BITS & (UNITS - 1)


@inlined
def wake(unit: Pointer, port: Pointer, u: int) -> None:
    if not unit[u + QUEUED]:
        unit[u + QUEUED] = 1
        unit[u + NEXT] = port[TOP]
        port[TOP] = u


@inlined
def fire(unit: Pointer, port: Pointer, flag: Pointer, slot: int, cycle: int) -> None:
    """Let a SET take effect; wakes the queue whose head is its WAIT."""
    waiter = flag[slot]
    flag[slot] = cycle
    if waiter <= -2:
        unit[-2 - waiter + STALLED] = 0
        wake(unit, port, -2 - waiter)


@inlined
def dispatch(unit: Pointer, port: Pointer, time: Pointer, record: Pointer, engine: Pointer, u: int) -> None:
    """The scalar unit u hands out instructions until a queue is full."""
    pc, stop, cycle = unit[u + PC], unit[u + STOP], unit[u + ISSUED]
    issue, depth = port[ISSUE_CYCLES], port[QUEUE_DEPTH]
    first = u - SCALAR
    unit[u + FULL] = -1
    while pc < stop:
        e: Any = np.int64(engine[pc])
        q = first + e * COLUMNS
        begin = entry = unit[q + TAIL]
        room, waits = unit[q + HEAD] + depth, unit[q + FIRST] + depth
        # `advance` wakes this scalar unit when an entry has left
        if entry == room:
            unit[u + FULL] = q
            break
        last = min(stop, pc + room - entry)
        # a stretch of instructions for one engine, as far as its queue has room
        while pc < last and engine[pc] == e:
            cycle += issue
            # the place of an entry is free when the one `depth` places before has left
            if entry >= waits:
                cycle = max(cycle, time[entry - depth])
            time[entry] = cycle
            entry += 1
            pc += 1
        if port[RECORD]:
            for i in range(begin, entry):
                record[3 * i + DISPATCHED] = time[i]
        unit[q + TAIL] = entry
        if not unit[q + STALLED]:
            wake(unit, port, q)
    unit[u + PC], unit[u + ISSUED] = pc, cycle


@inlined
def advance(unit: Pointer, port: Pointer, time: Pointer, flag: Pointer, record: Pointer, word: Pointer, u: int) -> None:
    """Queue u, of fixed-duration entries and flags, runs as far as it can."""
    head, tail, front, done = unit[u + HEAD], unit[u + TAIL], unit[u + FRONT], unit[u + DONE]
    while head < tail:
        kind, value = word[head] & KIND_MASK, word[head] >> KIND_BITS
        ready = max(front, time[head])
        if kind == FIXED:
            front = max(ready, done)
            # DONE is without LAG: work may start while results of earlier work leave the array
            done = front + value
            end = done
        elif kind == WAIT:
            cycle = flag[value]
            # not set yet: the SET finds this queue by its flag and wakes it (`fire`)
            if cycle < 0:
                flag[value] = -2 - u
                unit[u + STALLED] = 1
                break
            front = max(ready, cycle)
            end = front
        else:
            # a SET leaves at once; it takes effect when results of all work before it are out
            front = ready
            end = max(ready, done + unit[u + LAG])
            fire(unit, port, flag, value, end + port[REMOTE_CYCLES] if kind == SET_REMOTE else end)
        time[head] = front
        if port[RECORD]:
            record[3 * head + START], record[3 * head + END] = ready if kind == WAIT else front, end
        head += 1
    unit[u + HEAD], unit[u + FRONT], unit[u + DONE] = head, front, done
