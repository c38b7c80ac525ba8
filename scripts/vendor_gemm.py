"""The GEMM that a vendor published for its part, as a program of this simulator.

Schedule of `kernels/manual/a2a3/gemm_performance` in pto-isa: A [m, k] and B [n, k] in float16, C [m, n] in float32.  A grid of 4 x 6
cores; a core computes blocks of 128 x 256, with one block of sums in L0C, rows of blocks outside.  L1 has two slots of 256 along k, L0A and
L0B two of 64.  Flags are those of the kernel.  A and B lie in DDR in the layouts of activations and weights, C in planes of 8 lanes.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from simulator.npu import isa
from simulator.npu.errors import BadInputError
from simulator.npu.isa import WORDS, Op
from simulator.npu.machine import Machine
from simulator.npu.parts import DataType, Engine, Memory
from simulator.npu.program import Code, DdrBuffer, MemoryMap, Program

GRID = 4, 6
BLOCK_M, BLOCK_N = 128, 256
L1_K, L0_K = 256, 64
C0, SUM_LANES, COLUMNS = DataType.float16.lanes, DataType.float32.lanes, 16
_ROWS = (0, 2, 1, 3)  # the host has rows of channels
_SLOT_A, _SLOT_B = BLOCK_M * L1_K // C0, BLOCK_N * L1_K // C0  # blocks in L1
_SLOT_L0 = 1024  # half of L0A and of L0B
MTE1, MTE2, MTE3, CUBE = Engine.MTE1, Engine.MTE2, Engine.MTE3, Engine.CUBE


def vendor_program(machine: Machine, m: int, k: int, n: int) -> Program:
    """The program of a product, verified.  Raises `BadInputError` for sizes that the schedule has no blocks for."""
    for name, size, unit in (("m", m, GRID[0] * BLOCK_M), ("n", n, GRID[1] * BLOCK_N), ("k", k, 2 * L1_K)):
        if size < 1 or size % unit:
            raise BadInputError(f"{name}: {size}; accepted: multiples of {unit}")
    a, b, c = m * k // C0, n * k // C0, m * n // SUM_LANES
    buffers = (
        DdrBuffer("b", "constant", 0, b),
        DdrBuffer("a", "input", b, a, (1, k, m, 1), (m, k), tuple(range(k)), C0, k // C0, _ROWS),
        DdrBuffer("c", "output", b + a, c, (1, n, m, 1), (m, n), tuple(range(n)), SUM_LANES, n // SUM_LANES, _ROWS, "float32"),
    )
    memory = MemoryMap(DataType.float16, buffers, a + b + c)
    first = _core(m, k, n)
    loads, results = first[:, isa.SRC] == Memory.DDR, first[:, isa.DST] == Memory.DDR
    is_move, is_flag = np.isin(first[:, isa.OP], (Op.COPY, Op.FIXPIPE)), np.isin(first[:, isa.OP], (Op.SET, Op.WAIT))
    of_b = is_move & loads & (first[:, isa.S0] < b)
    of_a, of_c = is_move & loads & ~of_b, is_move & results
    streams = []
    for core in range(machine.cores):
        if core >= GRID[0] * GRID[1]:
            streams.append(np.empty((0, WORDS), np.int32))
            continue
        code = first.copy()
        row, column = core % GRID[0] * (m // GRID[0]), core // GRID[0] * (n // GRID[1])
        code[of_a, isa.S0] += row
        code[of_b, isa.S0] += column * (k // C0)
        code[of_c, isa.D] += column // SUM_LANES * m + row
        code[is_flag, isa.FLAG_CORE] = core
        streams.append(code)
    program = Program(machine.digest, tuple(streams), memory)
    program.verify(machine)
    return program


def _core(m: int, k: int, n: int) -> Code:
    """Records of core 0."""
    block = _block(m, k, n)
    blocks_m, blocks_n = m // GRID[0] // BLOCK_M, n // GRID[1] // BLOCK_N
    code = np.tile(block, (blocks_m * blocks_n, 1, 1))
    i, j = (numbers.reshape(-1, 1).astype(np.int32) for numbers in np.divmod(np.arange(blocks_m * blocks_n), blocks_n))
    of_a, of_b, of_c = (np.flatnonzero(block[:, isa.BLOCK] == number) for number in (1, 2, 3))
    code[:, of_a, isa.S0] += i * BLOCK_M
    code[:, of_b, isa.S0] += j * BLOCK_N * (k // C0)
    code[:, of_c, isa.D] += j * (BLOCK_N // SUM_LANES) * m + i * BLOCK_M
    code[:, :, isa.BLOCK] = 0
    before = [_set(MTE1, MTE2, 0), _set(MTE1, MTE2, 1), _set(CUBE, MTE1, 0), _set(CUBE, MTE1, 1)]
    after = [_wait(CUBE, MTE1, 0), _wait(CUBE, MTE1, 1), _wait(MTE1, MTE2, 0), _wait(MTE1, MTE2, 1)]
    return np.concatenate((np.stack(before), code.reshape(-1, WORDS), np.stack(after)))


def _block(m: int, k: int, n: int) -> Code:
    """Records of the first block; word BLOCK marks loads of A by 1, of B by 2, the result by 3."""
    first_a, first_c = n * k // C0, n * k // C0 + m * k // C0
    rows = []
    for step in range(k // L0_K):
        inner, slot, half = step % (L1_K // L0_K), step // (L1_K // L0_K) % 2, step % 2
        a_l1, b_l1 = slot * _SLOT_A, 2 * _SLOT_A + slot * _SLOT_B
        if inner == 0:
            k1 = step * L0_K // C0
            planes, run = L1_K // C0, L1_K // C0 * COLUMNS
            rows += [
                _wait(MTE1, MTE2, slot),
                _copy(MTE2, Memory.DDR, Memory.L1, a_l1, first_a + k1 * m, (BLOCK_M, planes, m, BLOCK_M), 1),
                _set(MTE2, MTE1, 0),
                _copy(MTE2, Memory.DDR, Memory.L1, b_l1, k1 * COLUMNS, (run, BLOCK_N // COLUMNS, k // C0 * COLUMNS, run), 2),
                _set(MTE2, MTE1, 1),
            ]
        blocks_k = L0_K // C0
        l0 = half * _SLOT_L0
        rows.append(_wait(CUBE, MTE1, half))
        if inner == 0:
            rows.append(_wait(MTE2, MTE1, 0))
        rows.append(_image(a_l1 + inner * blocks_k * BLOCK_M, l0, blocks_k))
        if inner == 0:
            rows.append(_wait(MTE2, MTE1, 1))
        run = blocks_k * COLUMNS
        rows.append(_copy(MTE1, Memory.L1, Memory.L0B, l0, b_l1 + inner * run, (run, BLOCK_N // COLUMNS, L1_K // C0 * COLUMNS, run), 0))
        if inner == L1_K // L0_K - 1:
            rows.append(_set(MTE1, MTE2, slot))
        product = _record(Op.MMAD, CUBE, Memory.L0A, Memory.L0C, 0, l0, l0)
        product[isa.P : isa.P + 4] = BLOCK_M, blocks_k, BLOCK_N // COLUMNS, int(step > 0)
        rows += [_set(MTE1, CUBE, half), _wait(MTE1, CUBE, half), product, _set(CUBE, MTE1, half)]
    result = _record(Op.FIXPIPE, MTE3, Memory.L0C, Memory.DDR, first_c, 0, -1, DataType.float32)
    result[[isa.F_M, isa.F_MPAD, isa.F_N1, isa.F_DPLANE, isa.BLOCK]] = BLOCK_M, BLOCK_M, BLOCK_N // COLUMNS, m, 3
    rows += [_set(CUBE, MTE3, 0), _wait(CUBE, MTE3, 0), result, _set(MTE3, CUBE, 0), _wait(MTE3, CUBE, 0)]
    return np.stack(rows)


def _record(
    op: Op, engine: Engine, source: int, target: int, d: int, s0: int, s1: int, dtype: DataType = DataType.float16
) -> NDArray[np.int32]:
    row = np.zeros(WORDS, np.int32)
    row[: isa.P] = op, engine, dtype, 0, source, target, d, s0, s1, -1
    return row


def _copy(
    engine: Engine, source: Memory, target: Memory, to: int, place: int, runs: tuple[int, int, int, int], mark: int
) -> NDArray[np.int32]:
    """COPY.  runs: blocks, number, and strides of source and target.  mark: word BLOCK."""
    row = _record(Op.COPY, engine, source, target, to, place, -1)
    row[isa.P : isa.P + 5], row[isa.BLOCK] = (*runs, 1), mark
    return row


def _image(source: int, target: int, blocks_k: int) -> NDArray[np.int32]:
    """IM2COL of a window of one pixel on 128 pixels."""
    row = _record(Op.IM2COL, MTE1, Memory.L1, Memory.L0A, target, source, -1)
    row[[isa.I_H, isa.I_KH, isa.I_KW, isa.I_SH, isa.I_SW, isa.I_DH, isa.I_DW]] = 1
    row[[isa.I_W, isa.I_PITCH, isa.I_PLANE, isa.I_OW, isa.I_M, isa.I_MPAD]] = BLOCK_M
    row[[isa.I_K, isa.I_LANES]] = blocks_k, C0
    return row


def _set(source: Engine, target: Engine, number: int) -> NDArray[np.int32]:
    return _flag(Op.SET, source, target, number)


def _wait(source: Engine, target: Engine, number: int) -> NDArray[np.int32]:
    return _flag(Op.WAIT, target, source, number)


def _flag(op: Op, queue: Engine, other: Engine, number: int) -> NDArray[np.int32]:
    row = _record(op, queue, 0, 0, -1, -1, -1, DataType.float16)
    row[isa.P : isa.P + 3] = 0, other, number
    return row
