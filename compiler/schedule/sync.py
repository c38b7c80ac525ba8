"""Flags and issue order: from one sequential stream to queues that overlap and still mean the same.

Emission writes a stream whose *sequential* execution is right.  `synchronise` keeps that meaning while engines run side by side:

1. Hazards.  For each instruction, the last conflicting access of every other engine (by granules of its memories, an over-estimate)
   must have completed.  Vector clocks drop what is already implied, so that waits on one pair of engines come in the order of their
   sets and one flag id per pair suffices (a counting semaphore).  Its count is limited: the SET that could exceed the limit is moved to
   the last instruction of its queue so far, which covers all later waits, and the next instruction of that queue waits for the consumer.
2. Times.  The longest path through queues and flags at full bandwidth: when each instruction could start.
3. Issue.  The scalar unit hands out one stream in order; sorting by those times (ties by the sequential order, which keeps every SET
   before its WAIT) lets loads run ahead of the computation that precedes them in the program, over block and segment borders.

Any stream that lists every SET before its WAIT and keeps the queues' order cannot deadlock, whatever the queues' depth: the oldest
instruction that is not done has nothing left to wait for.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from compiler.emit.records import Code
from simulator.npu import isa
from simulator.npu.access import MAX_RANGES, accesses
from simulator.npu.cycles import CostTables, cap_units, cost_tables, port_units, price
from simulator.npu.isa import Op
from simulator.npu.machine import SHARE_UNIT, Engine, Machine, Memory
from simulator.npu.program import MemoryMap

ENGINES = 6  # all but SCALAR
_LONGEST_COUNT = 1024  # flags never count further, whatever the machine allows: the waits that are remembered stay few
_MTE3 = int(Engine.MTE3)
_DDR = int(Memory.DDR)
# log2 of a granule in blocks, by memory: fine where tiles of one tensor should overlap, coarse where a slot is the unit
_SHIFT = np.array([6, 4, 6, 6, 5, 3], np.int64)
OP, ENGINE, FLAG_ENGINE = isa.OP, isa.ENGINE, isa.FLAG_ENGINE
_SET, _WAIT = int(Op.SET), int(Op.WAIT)


@njit(cache=True)
def _hazards(code, offsets, shift, constant_blocks, limit, writer, reader, known, edge_from, edge_count):  # type: ignore[no-untyped-def]
    """Fills edge_from[i, :edge_count[i]] with the instructions that instruction i waits for.

    limit: how far a flag may count.  SET number k + limit of a pair comes after WAIT number k, whatever the times.
    """
    clock = np.full((ENGINES, ENGINES), -1, np.int64)
    latest = np.full(ENGINES, -1, np.int64)  # last instruction of every queue
    waiter = np.full((ENGINES, ENGINES, limit), -1, np.int64)  # of the last `limit` waits from a queue in another; a ring
    waits = np.zeros((ENGINES, ENGINES), np.int64)
    need = np.empty(ENGINES, np.int64)
    rows = np.empty((MAX_RANGES, 8), np.int64)
    for i in range(code.shape[0]):
        me = code[i, ENGINE]
        need[:] = -1
        count = accesses(code, i, rows)
        for r in range(count):
            memory, write, start, length = rows[r, 0], rows[r, 1], rows[r, 2], rows[r, 3]
            if memory == _DDR:
                if start < constant_blocks:
                    continue
                start -= constant_blocks
            s = shift[memory]
            base = offsets[memory]
            runs, stride = rows[r, 4], rows[r, 5]
            groups, group_stride = rows[r, 6], rows[r, 7]
            if stride == length or stride * runs < (1 << s):
                length += (runs - 1) * stride
                runs = 1
            if runs == 1 and (group_stride == length or group_stride * groups < (1 << s)):
                length += (groups - 1) * group_stride
                groups = 1
            for o in range(groups):
                last = -1
                for k in range(runs):
                    first = start + o * group_stride + k * stride
                    g0 = first >> s
                    g1 = (first + length - 1) >> s
                    if stride >= 0 and g0 <= last:
                        g0 = last + 1
                    last = max(last, g1)
                    for g in range(base + g0, base + g1 + 1):
                        w = writer[g]
                        if w >= 0 and w != i:
                            e = code[w, ENGINE]
                            if w > need[e]:
                                need[e] = w
                        if write:
                            for e in range(ENGINES):
                                if reader[g, e] > need[e]:
                                    need[e] = reader[g, e]
                            writer[g] = i
                        else:
                            reader[g, me] = i
        mine = clock[me]
        for e in range(ENGINES):  # `limit` of my SETs may still stand with e: no more until e has been waited for
            if waiter[me, e, waits[me, e] % limit] > mine[e]:
                need[e] = latest[e]
        need[me] = -1
        n = 0
        while True:
            best = -1
            for e in range(ENGINES):
                if need[e] > mine[e] and need[e] > best:
                    best = need[e]
            if best < 0:
                break
            e = code[best, ENGINE]
            k = waits[e, me]
            early = waiter[e, me, k % limit] > known[best, me]
            waiter[e, me, k % limit] = i
            if early or waiter[e, me, (k + 1) % limit] > clock[e, me]:
                best = latest[e]
            waits[e, me] = k + 1
            edge_from[i, n] = best
            n += 1
            mine[e] = best
            for other in range(ENGINES):
                if known[best, other] > mine[other]:
                    mine[other] = known[best, other]
        edge_count[i] = n
        known[i] = mine
        mine[me] = i
        latest[me] = i


@njit(cache=True)
def _times(code, busy, bus, latency, read_rate, write_rate, edge_from, edge_count, key):  # type: ignore[no-untyped-def]
    """Longest path with every transfer alone on the bus.  key[i]: when the instruction is wanted at its engine; returns the end."""
    free = np.zeros(ENGINES, np.int64)
    end = np.empty(code.shape[0], np.int64)
    latest = 0
    for i in range(code.shape[0]):
        e = code[i, ENGINE]
        ready = np.int64(0)
        for k in range(edge_count[i]):
            ready = max(ready, end[edge_from[i, k]])
        if bus[i] > 0:
            rate = write_rate if e == _MTE3 else read_rate
            start = max(free[e], ready + latency)
            end[i] = start + (bus[i] + rate - 1) // rate
            # wanted when its predecessor's data starts to flow, not before: a queue full of loads would stall the scalar unit
            key[i] = max(ready, start - latency)
        else:
            start = max(free[e], ready)
            end[i] = start + busy[i]
            key[i] = start
        free[e] = end[i]
        latest = max(latest, end[i])
    for e in range(ENGINES):
        last = np.int64(0)
        for i in range(code.shape[0]):
            if code[i, ENGINE] == e:
                last = max(last, key[i])
                key[i] = last
    return latest


@njit(cache=True)
def _merge(code, edge_from, edge_count, key, out, origin):  # type: ignore[no-untyped-def]
    """Write the stream: queues merged by (key, sequence), each instruction after its WAITs and before its SETs."""
    n = code.shape[0]
    # successors as linked lists: the SETs behind an instruction, in the order of their waiters
    total = 0
    for i in range(n):
        total += edge_count[i]
    head = np.full(n, -1, np.int64)
    tail = np.full(n, -1, np.int64)
    follow = np.full(max(1, total), -1, np.int64)
    target = np.empty(max(1, total), np.int64)
    used = 0
    for i in range(n):
        for k in range(edge_count[i]):
            j = edge_from[i, k]
            target[used] = code[i, ENGINE]
            if head[j] < 0:
                head[j] = used
            else:
                follow[tail[j]] = used
            tail[j] = used
            used += 1
    queue = np.empty(n, np.int64)
    first = np.zeros(ENGINES + 1, np.int64)
    for i in range(n):
        first[code[i, ENGINE] + 1] += 1
    for e in range(ENGINES):
        first[e + 1] += first[e]
    fill = first.copy()
    for i in range(n):
        e = code[i, ENGINE]
        queue[fill[e]] = i
        fill[e] += 1
    pointer = first[:ENGINES].copy()
    at = 0
    for _ in range(n):
        best = -1
        for e in range(ENGINES):
            if pointer[e] < first[e + 1]:
                i = queue[pointer[e]]
                if best < 0 or key[i] < key[best] or (key[i] == key[best] and i < best):
                    best = i
        pointer[code[best, ENGINE]] += 1
        for k in range(edge_count[best]):
            out[at, :] = 0
            out[at, OP] = _WAIT
            out[at, ENGINE] = code[best, ENGINE]
            out[at, isa.TAG] = code[best, isa.TAG]
            out[at, FLAG_ENGINE] = code[edge_from[best, k], ENGINE]
            origin[at] = -1
            at += 1
        out[at] = code[best]
        origin[at] = best
        at += 1
        link = head[best]
        while link >= 0:
            out[at, :] = 0
            out[at, OP] = _SET
            out[at, ENGINE] = code[best, ENGINE]
            out[at, isa.TAG] = code[best, isa.TAG]
            out[at, FLAG_ENGINE] = target[link]
            origin[at] = -1
            at += 1
            link = follow[link]
    return at


class Synchroniser:
    """Holds the tables of one (machine, memory map); `synchronise` may be called for any number of streams."""

    def __init__(self, machine: Machine, memory: MemoryMap, core: int = 0) -> None:
        self.core = core
        self.tables: CostTables = cost_tables(machine)
        self.constant_blocks = memory.constant_blocks
        sizes = [max(0, memory.size_blocks - memory.constant_blocks)]
        sizes += [machine.buffer_blocks(m) for m in Memory if m != Memory.DDR]
        granules = [(size >> int(s)) + 2 for size, s in zip(sizes, _SHIFT, strict=True)]
        self.offsets = np.concatenate(([0], np.cumsum(granules)[:-1])).astype(np.int64)
        self.total = int(sum(granules))
        self.count_limit = min(machine.flags.count_limit, _LONGEST_COUNT)
        self.latency = machine.ddr.latency_cycles
        port = port_units(machine, SHARE_UNIT)
        self.rates = (min(cap_units(machine, Engine.MTE2), port), min(cap_units(machine, Engine.MTE3), port))

    def synchronise(self, code: Code) -> Code:
        """Flags inserted and instructions in issue order: a stream for core `self.core`."""
        n = len(code)
        writer = np.full(self.total, -1, np.int32)
        reader = np.full((self.total, ENGINES), -1, np.int32)
        known = np.empty((n, ENGINES), np.int32)
        edge_from = np.empty((n, ENGINES), np.int32)
        edge_count = np.empty(n, np.int32)
        _hazards(code, self.offsets, _SHIFT, self.constant_blocks, self.count_limit, writer, reader, known, edge_from, edge_count)
        cost = price(code, self.tables)
        key = np.empty(n, np.int64)
        _times(code, cost.busy, cost.bus, self.latency, *self.rates, edge_from, edge_count, key)
        out = np.empty((n + 2 * int(edge_count.sum()), isa.WORDS), np.int32)
        origin = np.empty(len(out), np.int32)
        _merge(code, edge_from, edge_count, key, out, origin)
        if self.core:
            flags = origin < 0
            out[flags, isa.FLAG_CORE] = self.core
        return out
