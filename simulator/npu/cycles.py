"""Cycles of one instruction without contention: the only source for estimates and for the simulator.

`price(code, machine)` returns, per instruction:

| name     | dtype    | meaning                                                                       |
|----------|----------|-------------------------------------------------------------------------------|
| busy     | int64[n] | cycles of the engine's occupation; 0 for SET, WAIT and for DDR transfers       |
| bus      | int64[n] | capacity of the DDR port that a transfer takes, in 1/65536 bytes; else 0       |
| useful   | int64[n] | useful DDR bytes, + read, - written; else 0                                   |

A DDR transfer lasts bus / rate cycles; `cap_units` bounds the rate, which this file does not decide.  The bus units of a transfer are the
bytes of its runs (contiguous ranges in DDR), and at least the bytes that the pins could move while DDR opens the rows:

    bus = max(bytes of all bursts, rows * activate_bytes)

| run of L bytes      | meaning                                                                                                |
|---------------------|--------------------------------------------------------------------------------------------------------|
| L                   | bytes of the run, rounded up to the path's granule; adjacent runs are one run                          |
| bytes of its bursts | L rounded up to full bursts if the stride keeps runs aligned to bursts, else the mean, L + burst - 32       |
| rows                | mean over positions in a page, 1 + (L - 32) / page; of all runs at a stride below a page, 1 + (span - 32) / page |

Only differences of addresses matter.  A machine with an effective rate has `activate_bytes` 0 and bursts of 32, so only granules matter.

MMAD, a tile of M x K x N (M = mpad, K = k * C0, N = n1 * 16), by kind of the matrix unit:

| kind                            | busy, without the start-up                                  | results are ready   |
|---------------------------------|-------------------------------------------------------------|---------------------|
| cube                            | ceil(M/m0) * ceil(K/k0) * ceil(N/n0) * cycles               | at its end          |
| output-stationary               | passes * ceil(M/R) * ceil(N/C) * (R + C + K - 2)            | at its end          |
| output-stationary, pipelined    | passes * ceil(M/R) * ceil(N/C) * max(K, R)                  | R + C - 2 later     |
| weight-stationary               | passes * ceil(K/R) * ceil(N/C) * (2R + C + M - 2)           | at its end          |
| weight-stationary, pipelined    | passes * ceil(K/R) * ceil(N/C) * max(M, R)                  | 2R + C - 2 later    |

m0, k0, n0, cycles: shape of one step of a cube, and its cycles; 16 x C0 x 16 and cycles_per_fractal unless the machine file has others.

An array has R rows and C columns.  Operands enter the array skewed, each row and column one cycle after the previous one: the last cell
begins R + C - 2 cycles after the first cell.  Output-stationary: every cell then takes K steps.  Weight-stationary: the weights enter row
by row in R cycles, then M rows pass.  These are the closed forms of SCALE-Sim, version 3 (Samajdar et al., "A systematic methodology for
characterizing scalability of DNN accelerators using SCALE-Sim", ISPASS 2020); a partial tile costs as much as a full tile.

Pipelined weight-stationary: the weights of a tile enter second registers in R cycles while the previous tile passes, so a tile starts
max(M, R) cycles after the previous tile.  Pipelined output-stationary: the sums of a tile leave through second registers while the next
tile passes, so the distance is max(K, R) cycles.  Fill and drain of the array are latency, not occupation: `latency_cycles` between the end
of the last tile and its results.  Latency counts only if the queue is empty or another engine waits, so once for back-to-back MMADs: T
weight-stationary tiles take T * max(M, R) + 2R + C - 2.  A derivation tile by tile ends max(0, R - M) earlier.

Consecutive MMADs add up to the closed form of the full product exactly if no tile of the array is cut in two: tiles of n are multiples of
C; output-stationary, tiles of m are multiples of R, and k is not tiled; weight-stationary, tiles of k are multiples of R, and m is not
tiled (pipelined: tiles of m are at least R).  Other tilings cost more: each tile of k fills an output-stationary array again, each tile of
m loads the weights of a weight-stationary array again.  M counts in rows of a fractal, K in blocks of C0, N in 16.

MMAD_IM2COL takes the longer of two times: the time of the MMAD, and the time of its reads from L1 on the path to L0C.  The reads are the
weights, and every block of the window once (the unit keeps blocks that several of its pixels read).

A VECTOR record takes the cycles of its class per repeat; a unit narrower than a repeat takes them per part of its width.  A repeat of
VCONVERT is 8 blocks of the narrower type and up to 16 blocks of the other type; 32 blocks (int8 to 32 bits or back) take twice as long.
VLUT takes its cycles per 8 blocks that it writes.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from simulator.npu import isa
from simulator.npu.access import image_blocks, planes_of, runs_of
from simulator.npu.isa import OPS, Op
from simulator.npu.level import SHARE_UNIT
from simulator.npu.machine import Machine
from simulator.npu.machine_parts import CubeUnit, SystolicUnit, exact_decimal
from simulator.npu.parts import BLOCK_BYTES, BYTES, SUM_BYTES, DataType, Engine, Memory

OP, DTYPE, SRC, DST = isa.OP, isa.DTYPE, isa.SRC, isa.DST
_COPY, _IM2COL, _FRACTAL, _MMAD, _FIXPIPE = int(Op.COPY), int(Op.IM2COL), int(Op.FRACTAL), int(Op.MMAD), int(Op.FIXPIPE)
_MMAD_IM2COL, _WEIGHTS = int(Op.MMAD_IM2COL), isa.WEIGHT_BLOCKS
_DDR, _L1, _L0A, _L0B, _L0C = int(Memory.DDR), int(Memory.L1), int(Memory.L0A), int(Memory.L0B), int(Memory.L0C)
C_LENGTH, C_COUNT, C_COUNT2 = isa.C_LENGTH, isa.C_COUNT, isa.C_COUNT2
C_SSTRIDE, C_DSTRIDE = isa.C_SSTRIDE, isa.C_DSTRIDE
C_SSTRIDE2, C_DSTRIDE2 = isa.C_SSTRIDE2, isa.C_DSTRIDE2
_LANES, _COLUMNS = isa.TYPE_LANES, isa.COLUMNS
I_MPAD, I_K = isa.I_MPAD, isa.I_K
R_K, R_N1 = isa.R_K, isa.R_N1
M_MPAD, M_K, M_N1 = isa.M_MPAD, isa.M_K, isa.M_N1
F_M, F_N1, F_DPLANE, W_N1 = isa.F_M, isa.F_N1, isa.F_DPLANE, isa.W_N1
V_BLOCKS, V_REPEATS, V_IMM = isa.V_BLOCKS, isa.V_REPEATS, isa.V_IMM
_REPEAT_BLOCKS = isa.REPEAT_BLOCKS
_FIRST_VECTOR, _CONVERT, _LUT, _BYTE = isa.FIRST_VECTOR_OP, int(Op.VCONVERT), int(Op.VLUT), int(DataType.uint8)


class CostTables(NamedTuple):
    """Machine as flat integer tables, for Numba kernels.

    rate, granule, startup: int64 [7, 7] by (source, destination) memory: bytes per cycle (0: no path; in 1/65536 on paths of DDR), bytes,
    cycles.  A missing memory has the values of its substitute (`substitute_paths`).
    matrix: int64 [5, 3, 3] by data type of the left operand, axis (m, k, n) and (unit, least, fill).  The number of steps of an MMAD is
    the product over its axes of max(ceil(length / unit), least) + fill.  step_cycles: int64 [5] by data type (0: not supported).
    vector_cycles: int64 [64], cycles of a full repeat by opcode (0: not supported).
    scalars: int64 [matrix startup, vector startup, width of VECTOR in blocks].  dram: int64 [burst bytes, page bytes, activate bytes].
    """

    rate: NDArray[np.int64]
    granule: NDArray[np.int64]
    startup: NDArray[np.int64]
    matrix: NDArray[np.int64]
    step_cycles: NDArray[np.int64]
    vector_cycles: NDArray[np.int64]
    scalars: NDArray[np.int64]
    dram: NDArray[np.int64]


def _matrix_tables(unit: CubeUnit | SystolicUnit) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """`matrix` and `step_cycles` of `CostTables`."""
    matrix = np.zeros((len(DataType), 3, 3), np.int64)
    if isinstance(unit, CubeUnit):
        matrix[:, :, 0] = 1  # of unsupported data types: avoids a division by 0
        for dtype, product in unit.by_type.items():
            matrix[dtype, :, 0] = product.m0, product.k0, product.n0
        per_step = {dtype: product.cycles for dtype, product in unit.by_type.items()}
    else:
        r, fill = unit.rows, _fill_cycles(unit)
        streamed = (1, r, 0) if unit.pipelined else (1, 0, fill)
        weights_stay = unit.dataflow == "weight-stationary"
        matrix[:] = (streamed, (r, 0, 0), (unit.columns, 0, 0)) if weights_stay else ((r, 0, 0), streamed, (unit.columns, 0, 0))
        per_step = {DataType[name]: passes for name, passes in unit.passes.items()}
    step_cycles = np.zeros(len(DataType), np.int64)
    for dtype, cycles in per_step.items():
        step_cycles[dtype] = cycles
    matrix[list(BYTES)], step_cycles[list(BYTES)] = matrix[DataType.int8], step_cycles[DataType.int8]
    return matrix, step_cycles


def _fill_cycles(unit: SystolicUnit) -> int:
    """Cycles of a tile during which not all cells work: the array fills or drains."""
    return unit.columns + unit.rows - 2 + (unit.rows if unit.dataflow == "weight-stationary" else 0)


def latency_cycles(machine: Machine) -> int:
    """Cycles from the end of an MMAD's occupation of a pipelined array to its results; 0 for other matrix units.  This latency is a
    constant after the occupation: a full latency in every MMAD would count overlapped cycles twice."""
    unit = machine.matrix
    return _fill_cycles(unit) if isinstance(unit, SystolicUnit) and unit.pipelined else 0


def substitute_paths(machine: Machine) -> dict[Memory, tuple[Memory, Memory]]:
    """Substitute paths of missing memories: memory -> (source, destination) of the path whose rates apply."""
    paths = dict.fromkeys((Memory.L0A, Memory.L0B), (Memory.L1, Memory.L0C)) | {Memory.UB: (Memory.L1, Memory.L1)}
    return {memory: path for memory, path in paths.items() if not machine.has(memory)}


@lru_cache(maxsize=64)
def cost_tables(machine: Machine) -> CostTables:
    """Rates of the machine as read-only tables; cached per machine, since fractions take longer than pricing a short program."""
    shape = (len(Memory), len(Memory))
    rate, granule, startup = (np.zeros(shape, np.int64) for _ in range(3))
    for path in machine.paths:
        cell = (Memory[path.source], Memory[path.destination])
        rate[cell] = int(exact_decimal(path.bytes_per_cycle) * SHARE_UNIT) if path.of_ddr else path.bytes_per_cycle
        granule[cell], startup[cell] = path.granule_bytes, path.startup_cycles
        if machine.shared is not None and Memory.SHARED in cell and not path.of_ddr:
            rate[cell] = min(rate[cell], machine.shared.bytes_per_cycle // machine.cores)
            startup[cell] += machine.shared.latency_cycles
    # substitutes: CUBE reads operands in L1, VECTOR works in L1
    for missing, (source, destination) in substitute_paths(machine).items():
        for table in (rate, granule, startup):
            if missing == Memory.UB:
                table[:, missing], table[missing, :] = table[:, destination], table[source, :]
                table[missing, missing] = table[source, destination]
            else:
                table[Memory.L1, missing] = table[source, destination]
    matrix, step_cycles = _matrix_tables(machine.matrix)
    vector, width = np.zeros(64, np.int64), machine.vector.width_bytes // BLOCK_BYTES
    for op, spec in OPS.items():
        if spec.cost_class:
            vector[op] = (getattr(machine.vector, f"{spec.cost_class}_cycles") or 0) * (isa.REPEAT_BLOCKS // width)
    dram = machine.ddr.timings
    rows = (dram.burst_bytes, dram.page_bytes, dram.activate_bytes) if dram else (BLOCK_BYTES, BLOCK_BYTES, 0)
    scalars = np.array([machine.matrix.startup_cycles, machine.vector.startup_cycles, width], np.int64)
    tables = CostTables(rate, granule, startup, matrix, step_cycles, vector, scalars, np.array(rows, np.int64))
    for table in tables:
        table.flags.writeable = False
    return tables


@njit(cache=True, inline="always")
def steps(length: int, axis: NDArray[np.int64]) -> int:
    """Number of steps along one axis of an MMAD.  length: elements.  axis: int64 [3], row of `CostTables.matrix`."""
    return max((length + axis[0] - 1) // axis[0], axis[1]) + axis[2]


@njit(cache=True, forceinline=True)
def _bus(run: int, count: int, stride: int, groups: int, outer: int, granule: int, dram: NDArray[np.int64]) -> int:
    """Bus units (1/65536 byte) of a set of runs (see the top of this file); lengths and strides in bytes, counts in runs."""
    # merge adjacent runs; with a single inner run, the outer count becomes the inner count
    if stride == run:
        run, count = run * count, 1
    if count == 1:
        if outer == run:
            run, groups = run * groups, 1
        count, stride, groups, outer = groups, outer, 1, 0
    burst, page, activate = dram[0], dram[1], dram[2]
    run = (run + granule - 1) // granule * granule
    if (count == 1 or stride % burst == 0) and (groups == 1 or outer % burst == 0):
        moved = (run + burst - 1) // burst * burst
    else:
        moved = run + burst - BLOCK_BYTES
    moved *= count * groups * SHARE_UNIT
    if activate == 0:
        return moved
    span = count * (run - BLOCK_BYTES)
    rows = count * SHARE_UNIT + span * SHARE_UNIT // page
    if count > 1 and 0 <= stride < page:  # for a single run the division would be rounded differently
        rows = min(rows, SHARE_UNIT + ((count - 1) * stride + run - BLOCK_BYTES) * SHARE_UNIT // page)
    return max(moved, rows * groups * activate)


@njit(cache=True)
def price_rows(
    code: NDArray[np.int32], tables: CostTables, busy: NDArray[np.int64], bus: NDArray[np.int64], useful: NDArray[np.int64]
) -> None:
    """Fill `busy`, `bus` and `useful` of `price`, all int64 [n]."""
    busy[:] = bus[:] = useful[:] = 0
    for i in range(code.shape[0]):
        op = code[i, OP]
        src, dst = code[i, SRC], code[i, DST]
        if op == _COPY:
            length = code[i, C_LENGTH] * BLOCK_BYTES
            count, groups = np.int64(code[i, C_COUNT]), np.int64(code[i, C_COUNT2])
            g = tables.granule[src, dst]
            # strides on the side of DDR decide the bursts
            if src == _DDR or dst == _DDR:
                stride, outer = code[i, C_SSTRIDE], code[i, C_SSTRIDE2]
                if dst == _DDR:
                    stride, outer = code[i, C_DSTRIDE], code[i, C_DSTRIDE2]
                total = length * count * groups
                bus[i] = _bus(length, count, stride * BLOCK_BYTES, groups, outer * BLOCK_BYTES, g, tables.dram)
                useful[i] = total if src == _DDR else -total
            else:
                moved = (length + g - 1) // g * g * count * groups
                busy[i] = tables.startup[src, dst] + (moved + tables.rate[src, dst] - 1) // tables.rate[src, dst]
        elif op == _IM2COL:
            r = tables.rate[_L1, _L0A]
            busy[i] = tables.startup[_L1, _L0A] + (code[i, I_K] * code[i, I_MPAD] * BLOCK_BYTES + r - 1) // r
        elif op == _FRACTAL:
            r = tables.rate[_L1, _L0B]
            busy[i] = tables.startup[_L1, _L0B] + (code[i, R_K] * code[i, R_N1] * _COLUMNS[code[i, DTYPE]] * BLOCK_BYTES + r - 1) // r
        elif op == _MMAD:
            dtype = code[i, DTYPE]
            m, k, n = tables.matrix[dtype, 0], tables.matrix[dtype, 1], tables.matrix[dtype, 2]
            product = steps(code[i, M_MPAD], m) * steps(code[i, M_K] * _LANES[dtype], k) * steps(code[i, M_N1] * _COLUMNS[dtype], n)
            busy[i] = tables.scalars[0] + product * tables.step_cycles[dtype]
        elif op == _MMAD_IM2COL:
            dtype = code[i, DTYPE]
            m, k, n = tables.matrix[dtype, 0], tables.matrix[dtype, 1], tables.matrix[dtype, 2]
            product = steps(code[i, I_MPAD], m) * steps(code[i, I_K] * _LANES[dtype], k) * steps(code[i, W_N1] * _COLUMNS[dtype], n)
            r = tables.rate[_L1, _L0C]
            # longer of two times: the product, and its reads from L1 (every image block once, and the weights)
            read = (image_blocks(code, i) + np.int64(code[i, W_N1]) * code[i, I_K] * _WEIGHTS[dtype]) * BLOCK_BYTES
            busy[i] = tables.scalars[0] + max(product * tables.step_cycles[dtype], tables.startup[_L1, _L0C] + (read + r - 1) // r)
        elif op == _FIXPIPE:
            if dst == _DDR:
                run, planes = code[i, F_M] * BLOCK_BYTES, planes_of(code[i, F_N1], code[i, DTYPE])
                bus[i] = _bus(run, planes, code[i, F_DPLANE] * BLOCK_BYTES, 1, 0, tables.granule[_L0C, _DDR], tables.dram)
                useful[i] = -run * planes
            else:
                r = tables.rate[_L0C, dst]
                busy[i] = tables.startup[_L0C, dst] + (code[i, F_M] * code[i, F_N1] * _COLUMNS[code[i, DTYPE]] * SUM_BYTES + r - 1) // r
        elif op >= _FIRST_VECTOR:
            # a partial repeat takes the cycles of every part of the unit's width that it touches
            wide = tables.scalars[2]
            repeats, some = np.int64(code[i, V_REPEATS]), (code[i, V_BLOCKS] + wide - 1) // wide * wide
            if op == _CONVERT:
                run, source_run = runs_of(code[i, DTYPE], code[i, V_IMM])
                repeats *= max(1, run // 2, source_run // 2)
            elif op == _LUT:
                repeats *= runs_of(code[i, DTYPE], _BYTE)[0]
            repeat_cycles = tables.vector_cycles[op] if some >= _REPEAT_BLOCKS else tables.vector_cycles[op] * some // _REPEAT_BLOCKS
            busy[i] = tables.scalars[1] + repeats * repeat_cycles


class Price(NamedTuple):
    busy: NDArray[np.int64]
    bus: NDArray[np.int64]
    useful: NDArray[np.int64]


def price(code: NDArray[np.int32], machine: Machine) -> Price:
    """Uncontended cost of every record of a stream (see the table at the top of this file)."""
    out = Price(*np.empty((3, len(code)), np.int64))
    price_rows(code, cost_tables(machine), *out)
    return out


def uncontended_cycles(code: NDArray[np.int32], bus: NDArray[np.int64], machine: Machine, port: int) -> NDArray[np.int64]:
    """Data cycles of DDR transfers on an otherwise idle port, int64 [n]; 0 for other records.

    bus: from `price`.  port: bus units per cycle of the port.
    """
    rate = np.maximum(1, np.minimum(cost_tables(machine).rate[code[:, SRC], code[:, DST]], port))
    return np.where(bus > 0, (bus + rate - 1) // rate, 0)


def record_cycles(code: NDArray[np.int32], cost: Price, machine: Machine) -> NDArray[np.int64]:
    """Uncontended engine cycles of each record, int64 [n]; for a DDR transfer, start-up and data cycles on an otherwise idle port."""
    tables, cycles = cost_tables(machine), np.empty(len(code), np.int64)
    cycle_rows(code, cost.busy, cost.bus, tables.rate, tables.startup, port_units(machine, SHARE_UNIT), cycles)
    return cycles


@njit(cache=True)
def cycle_rows(
    code: NDArray[np.int32],
    busy: NDArray[np.int64],
    bus: NDArray[np.int64],
    rate: NDArray[np.int64],
    startup: NDArray[np.int64],
    port: int,
    cycles: NDArray[np.int64],
) -> None:
    """Fill `cycles` with the values of `record_cycles`.  busy, bus: see `price`.  port: bus units per cycle of the port."""
    for i in range(code.shape[0]):
        cycles[i] = busy[i]
        if bus[i] > 0:
            src, dst = code[i, SRC], code[i, DST]
            lone_rate = max(1, min(rate[src, dst], port))
            cycles[i] = startup[src, dst] + (bus[i] + lone_rate - 1) // lone_rate


def cap_units(machine: Machine, engine: Engine) -> int:
    """Highest rate of one transfer of an engine (MTE2 reads, MTE3 writes), in 1/65536 bytes per cycle."""
    return max(1, int(machine.path_bytes_per_cycle(engine) * SHARE_UNIT))


@lru_cache(maxsize=256)
def port_units(machine: Machine, share_units: int) -> int:
    """Rate of the DDR port for the NPU at a share, in 1/65536 bytes per cycle; at least 1."""
    return max(1, int(machine.ddr.deliverable * share_units))


@lru_cache(maxsize=256)
def turned_units(machine: Machine, share_units: int) -> int:
    """`port_units` while reads and writes alternate."""
    return max(1, int(machine.ddr.turned * share_units))


def bank_wait_cycles(machine: Machine) -> int:
    """Cycles by which one transfer in flight delays the first data of the next transfer; 0 with an effective rate."""
    dram = machine.ddr.timings
    return 0 if dram is None else math.ceil(dram.bank_wait_ns * machine.clock_hz / 10**9)
