"""Memory accesses, costs and dependences of a segment's records: computed once per segment, used by every program that contains it.

Records touch memories in granules: rows of tensors in DDR, single blocks in L1, some hundred bytes to 2 KiB elsewhere.  Neighbouring
granules with the same accesses in the segment are one *cell*.  Data in the shared memory is named by its address in DDR
(`codegen.shared_memory`), where no other data is: tensors by their rows, and weights, which are never written in DDR, in granules behind
these.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from compiler.schedule.list_scheduler import order_records
from compiler.schedule.local_dependences import LocalDependences, find_dependences
from compiler.schedule.scratch import Scratch
from compiler.schedule.segment_table import Part, part_row
from compiler.target.capabilities import least_slot
from compiler.target.target_graph import TargetGraph
from simulator.npu import isa
from simulator.npu.access import MAX_RANGES, accesses
from simulator.npu.cycles import CostTables, Price, cost_tables, cycle_rows, latency_cycles, port_units, price_rows
from simulator.npu.level import SHARE_UNIT
from simulator.npu.machine import Machine
from simulator.npu.parts import DMAS, Engine, Memory
from simulator.npu.program import Code
from simulator.pointer import pointer

Bytes8 = NDArray[np.uint8]
Ints32 = NDArray[np.int32]
Ints = NDArray[np.int64]

ENGINE, SRC, DST = isa.ENGINE, isa.SRC, isa.DST
_DDR, _SHARED = int(Memory.DDR), int(Memory.SHARED)
_WEIGHTS_SHIFT = 8  # log2 of a granule of weights in the shared memory: 8 KiB
# log2 of the blocks per granule, by memory.  Fine if tiles of one tensor should overlap; single blocks in L1, where written and read rows
# of
# a ring are adjacent; coarse if a slot is the unit (L0A, L0B).  DDR: see `row_granules`.
_SHIFT = {Memory.DDR: 0, Memory.L1: 0, Memory.L0C: 5, Memory.UB: 3, Memory.SHARED: 0}


def _shifts(machine: Machine) -> Ints:
    def slot(memory: Memory) -> int:
        """Largest granule that divides all slots of a memory."""
        blocks = least_slot(machine, memory) if machine.has(memory) else 1
        return (blocks & -blocks).bit_length() - 1

    shifts = {memory: _SHIFT[memory] if memory in _SHIFT else slot(memory) for memory in Memory}
    if machine.dma_ports(Engine.MTE2) > 1:  # loads overlap in time, so their slots are compared block by block
        shifts[Memory.UB] = 0
    return np.array(list(shifts.values()), np.int64)


@dataclass(frozen=True, eq=False)
class Footprint:
    """Accesses, costs and dependences of n sequential records.

    Cell c is granules [bound[c], bound[c + 1]); DDR cells come first.
    engine: uint8 [n].  span: int32 [s, 2]; record i accesses cells [a >> 1, b) of span[start[i] : start[i + 1]], reads first; a & 1: a
    write.
    touched: uint8 [cells].  inside: dependences among the records, and their first and last accesses to cells.
    cost: int64 [n], busy cycles, or bus units for a transfer.  transfer: uint8 [n], on-chip memory of a DDR transfer, else 0.
    cycles: int64 [n], cycles alone on the bus, with start-up.
    totals: int64 [2, 7], by engine: busy cycles of computing records, and number of transfers.  read_bytes, written_bytes: DDR traffic.
    """

    engine: Bytes8
    span: Ints32
    start: Ints32
    bound: Ints32
    touched: Bytes8
    inside: LocalDependences
    cost: Ints
    transfer: Bytes8
    cycles: Ints
    totals: Ints
    read_bytes: int
    written_bytes: int

    @cached_property
    def row(self) -> Ints:
        """Row of this part in the kernels' table (`schedule.segment_table`)."""
        arrays = self.engine, self.span, self.start, self.bound, self.touched, self.transfer, self.cycles, self.cost
        return part_row(Part(*arrays, self.inside))

    @property
    def nbytes(self) -> int:
        arrays = (self.engine, self.span, self.start, self.bound, self.touched, self.cost, self.transfer, self.cycles)
        return sum(array.nbytes for array in arrays) + self.inside.nbytes


@lru_cache(maxsize=16)
def row_granules(target_graph: TargetGraph) -> Ints32:
    """Granule of each DDR block behind the constants, one granule per tensor row: int32 [blocks], ascending from 0.

    Blocks of a segment are rows, and parts are planes, so a store of one core and a load of another conflict only if they share data.  With
    granules of a fixed size (2 KiB), a row could end inside a granule: neighbours on two cores then waited for each other, and two cores
    computed the rows of a layer one after the other.
    """
    constants = target_graph.memory.constant_blocks
    begins = np.zeros(max(1, target_graph.memory.size_blocks - constants), np.int32)
    for s in target_graph.storages:
        if s.address >= constants:
            begins[s.address - constants : s.address - constants + s.n * s.image_blocks : s.row_blocks] = 1
    begins[0] = 0
    np.cumsum(begins, out=begins)
    begins.flags.writeable = False
    return begins


class _OfMachine(NamedTuple):
    """Parameters of a machine.  port: bus units that a DDR port moves in a cycle.  several: bool [engines], engines with several DMA ports.

    late: int64 [engines], cycles from an engine's end until its results are visible.  ddr_late: the same for DDR transfers.
    """

    port: int
    several: NDArray[np.bool_]
    late: Ints
    ddr_late: int


class _Granules(NamedTuple):
    """Granules of a target graph.  offsets, shifts: int64 [memories].  row_of: see `row_granules`.  weights: the first granule of weights.

    ranges: int64 [MAX_RANGES, 8], scratch.
    """

    offsets: Ints
    shifts: Ints
    row_of: Ints32
    constant_blocks: int
    weights: int
    ranges: Ints


@njit(cache=True)
def _spans(code: Code, granules: _Granules, start: Ints32, span: Ints32) -> int:
    """Fill span and start; returns the number of spans, or -1 if there is no room."""
    constant_blocks, weights = granules.constant_blocks, granules.weights
    words, bases, shifts, granule = pointer(granules.ranges), pointer(granules.offsets), pointer(granules.shifts), pointer(granules.row_of)
    spans = pointer(span)
    room = span.shape[0]
    span_count = 0
    for i in range(code.shape[0]):
        start[i] = begin = span_count
        for r in range(0, 8 * accesses(code, i, granules.ranges), 8):
            memory, write, first_block, length = words[r], words[r + 1], words[r + 2], words[r + 3]
            s, base = shifts[memory], bases[memory]
            if memory == _SHARED and first_block < constant_blocks:
                s, base = _WEIGHTS_SHIFT, weights
            elif memory in (_DDR, _SHARED):
                if first_block < constant_blocks:
                    continue
                first_block -= constant_blocks
                memory, s, base = _DDR, 0, bases[_DDR]
            runs, stride, groups, group_stride = words[r + 4], words[r + 5], words[r + 6], words[r + 7]
            # runs without gaps, or with gaps below a granule, are one run
            if stride == length or stride * runs < (1 << s):
                length += (runs - 1) * stride
                runs = 1
            if runs == 1 and (group_stride == length or group_stride * groups < (1 << s)):
                length += (groups - 1) * group_stride
                groups = 1
            for o in range(groups):
                last = -1
                for k in range(runs):
                    block = first_block + o * group_stride + k * stride
                    g0, g1 = block >> s, (block + length - 1) >> s
                    if memory == _DDR:
                        g0, g1 = np.int64(granule[block]), np.int64(granule[block + length - 1])
                    # a granule that two runs share is one access
                    if stride >= 0 and g0 <= last:
                        g0 = last + 1
                    last = max(last, g1)
                    if g0 > g1:
                        continue
                    if span_count > begin and spans[2 * span_count - 1] == base + g0 and spans[2 * span_count - 2] & 1 == write:
                        spans[2 * span_count - 1] = base + g1 + 1
                        continue
                    if span_count == room:
                        return -1
                    spans[2 * span_count], spans[2 * span_count + 1] = (base + g0) * 2 + write, base + g1 + 1
                    span_count += 1
    start[code.shape[0]] = span_count
    return span_count


@njit(cache=True)
def _compress(span: Ints32, cell_index: Ints32, ends: Bytes8, bound: Ints32) -> int:
    """Rewrite spans of granules as spans of cells and fill bound; returns how many.

    cell_index: int32 [granules + 1].  ends: uint8 [granules + 1 or more, a multiple of 8], all 0 before and after.  A program has many
    granules, and few of them are ends of a segment's spans, so eight are looked at at a time.
    """
    for s in range(span.shape[0]):
        ends[span[s, 0] >> 1] = 1
        ends[span[s, 1]] = 1
    bounds, eight = 0, ends.view(np.uint64)
    for w in range(eight.shape[0]):
        if eight[w]:
            for g in range(8 * w, 8 * w + 8):
                if ends[g]:
                    cell_index[g] = bounds
                    bound[bounds] = g
                    bounds += 1
            eight[w] = 0
    for s in range(span.shape[0]):
        span[s, 0] = cell_index[span[s, 0] >> 1] << 1 | span[s, 0] & 1
        span[s, 1] = cell_index[span[s, 1]]
    return bounds


@njit(cache=True)
def _fill_record_arrays(
    code: Code, cost: Price, of_machine: _OfMachine, engine: Bytes8, overlaps: Bytes8, transfer: Bytes8, busy_or_bus: Ints, late: Ints,
    totals: Ints,
) -> tuple[int, int]:  # fmt: skip
    """Fill the arrays of `Footprint` per record, overlaps and late; returns bytes read and written.

    overlaps: 1 where other transfers of the queue may overlap.  late: cycles from a record's end until its results are there.
    """
    busy, bus, useful = cost
    several, late_of, ddr_late = of_machine.several, of_machine.late, of_machine.ddr_late
    totals[:] = 0
    read = written = 0
    for i in range(code.shape[0]):
        e = code[i, ENGINE]
        engine[i] = e
        moves = bus[i] > 0
        overlaps[i] = moves and several[e]
        transfer[i] = code[i, SRC] + code[i, DST] if moves else 0  # the other memory is DDR, which is 0
        busy_or_bus[i] = bus[i] if moves else busy[i]
        late[i] = ddr_late if moves else late_of[e]
        totals[0, e] += 0 if moves else busy[i]
        totals[1, e] += moves
        read += max(0, useful[i])
        written -= min(0, useful[i])
    return read, written


@njit(cache=True)
def _compute_arrays(
    code: Code, granules: _Granules, of_machine: _OfMachine, tables: CostTables, span: Ints32, cell_index: Ints32, ends: Bytes8,
    bound: Ints32, start: Ints32, engine: Bytes8, overlaps: Bytes8, transfer: Bytes8, busy_or_bus: Ints, cycles: Ints, late: Ints,
    totals: Ints, cost: Price,
) -> tuple[int, int, int, int]:  # fmt: skip
    """Compute all arrays of the records: (spans, or -1 if there is no room for them, bounds, bytes read, bytes written).

    cost: scratch.  The others: see `_spans`, `_compress` and `_fill_record_arrays`, and `cycles.record_cycles`.
    """
    span_count = _spans(code, granules, start, span)
    if span_count < 0:
        return span_count, 0, 0, 0
    bounds = _compress(span[:span_count], cell_index, ends, bound)
    price_rows(code, tables, cost.busy, cost.bus, cost.useful)
    cycle_rows(code, cost.busy, cost.bus, tables.rate, tables.startup, of_machine.port, cycles)
    read, written = _fill_record_arrays(code, cost, of_machine, engine, overlaps, transfer, busy_or_bus, late, totals)
    return span_count, bounds, read, written


class Footprints:
    """Maker of footprints for one target graph, with its scratch."""

    def __init__(self, target_graph: TargetGraph) -> None:
        machine = target_graph.machine
        self.machine = machine
        self.constant_blocks = target_graph.memory.constant_blocks
        self.row_of, self.shifts = row_granules(target_graph), _shifts(machine)
        sizes = [int(self.row_of[-1]), *(machine.buffer_blocks(m) for m in list(Memory)[1 : Memory.SHARED]), 0]
        granules = [(size >> int(s)) + 2 for size, s in zip(sizes, self.shifts, strict=True)]
        self.weights = granules[_DDR]
        if machine.shared is not None:
            granules[_DDR] += (self.constant_blocks >> _WEIGHTS_SHIFT) + 1
        self.ddr_granules, self.on_chip = granules[_DDR], sum(granules) - granules[_DDR]
        self.offsets = np.concatenate(([0], np.cumsum(granules)[:-1])).astype(np.int64)
        self._at = np.empty(sum(granules) + 1, np.int32)
        self._ends = np.zeros(-(-(sum(granules) + 1) // 8) * 8, np.uint8)
        self._bound = np.empty(sum(granules) + 1, np.int32)
        self._span, self._scratch = np.empty((1 << 12, 2), np.int32), Scratch()
        ranges = np.empty((MAX_RANGES, 8), np.int64)
        self._granules = _Granules(self.offsets, self.shifts, self.row_of, self.constant_blocks, self.weights, ranges)
        late, several = np.zeros(len(Engine), np.int64), np.array([e in DMAS and machine.dma_ports(e) > 1 for e in Engine])
        late[Engine.CUBE] = latency_cycles(machine)
        self._of_machine = _OfMachine(port_units(machine, SHARE_UNIT), several, late, machine.ddr.latency_cycles)

    def granules_of(self, first: int, blocks: int) -> slice:
        """Granules of a tensor or of an operator's weights in the shared memory, by its blocks in DDR."""
        last = first + blocks - 1
        if first < self.constant_blocks:
            return slice(self.weights + (first >> _WEIGHTS_SHIFT), self.weights + (last >> _WEIGHTS_SHIFT) + 1)
        return slice(int(self.row_of[first - self.constant_blocks]), int(self.row_of[last - self.constant_blocks]) + 1)

    def of(self, code: Code) -> Footprint:
        """Footprint of records in their order."""
        return self.listed(code, 1)[0]

    def listed(self, code: Code, lookahead: int, overtake: bool = False, urgent: bool = False) -> tuple[Footprint, Ints]:
        """Footprint of records in the order of `schedule.list_scheduler`, and that order, int64 [n]; a lookahead of 1 keeps their order."""
        n, scratch = len(code), self._scratch
        (engine, overlaps, transfer), (busy_or_bus, cycles, late, *cost) = np.empty((3, n), np.uint8), np.empty((6, n), np.int64)
        start, totals = np.empty(n + 1, np.int32), np.empty((2, len(Engine)), np.int64)
        outputs = start, engine, overlaps, transfer, busy_or_bus, cycles, late, totals, Price(*cost)
        target_tables = self._granules, self._of_machine, cost_tables(self.machine)
        while (counts := _compute_arrays(code, *target_tables, self._span, self._at, self._ends, self._bound, *outputs))[0] < 0:
            self._span = np.empty((2 * len(self._span), 2), np.int32)
        span_count, bounds, read, written = counts
        span, bound, cells = self._span[:span_count], self._bound[:bounds].copy(), max(0, bounds - 1)
        if lookahead > 1:
            order = order_records(engine, span, start, cells, cycles, late, lookahead, overtake, urgent, scratch)
            columns = engine, overlaps, transfer, busy_or_bus, cycles, span, start
            new_columns = tuple(map(np.empty_like, columns))
            _reorder(order, *columns, *new_columns)
            engine, overlaps, transfer, busy_or_bus, cycles, span, start = new_columns
        else:
            span, order = span.copy(), np.arange(n)
        touched = np.empty(cells, np.uint8)
        dependences = find_dependences(engine, span, start, int(bound.searchsorted(self.ddr_granules)), overlaps, touched, scratch)
        footprint = Footprint(engine, span, start, bound, touched, dependences, busy_or_bus, transfer, cycles, totals, read, written)
        return footprint, order


@njit(cache=True)
def _reorder(
    order: Ints, engine: Bytes8, overlaps: Bytes8, transfer: Bytes8, cost: Ints, cycles: Ints, span: Ints32, start: Ints32,
    new_engine: Bytes8, new_overlaps: Bytes8, new_transfer: Bytes8, new_cost: Ints, new_cycles: Ints, new_span: Ints32, new_start: Ints32,
) -> None:  # fmt: skip
    """Copy the records' arrays and spans in another order."""
    span_count = 0
    for k in range(order.shape[0]):
        i = order[k]
        new_engine[k], new_overlaps[k], new_transfer[k] = engine[i], overlaps[i], transfer[i]
        new_cost[k], new_cycles[k], new_start[k] = cost[i], cycles[i], span_count
        for s in range(start[i], start[i + 1]):
            new_span[span_count, 0], new_span[span_count, 1] = span[s, 0], span[s, 1]
            span_count += 1
    new_start[order.shape[0]] = span_count
