"""Blocks that an instruction reads and writes: the only source for bounds, hazards, races and byte counts.

`accesses(code, i, out)` fills rows of `out` (int64 [MAX_RANGES, 8]) and returns how many:

| column | meaning                                          |
|--------|--------------------------------------------------|
| 0      | memory (`Memory`)                                |
| 1      | 1 for a write, 0 for a read                      |
| 2      | first block                                      |
| 3      | length of a run, in blocks                       |
| 4, 5   | count and stride of runs (inner)                 |
| 6, 7   | count and stride of groups of runs (outer)       |

Reads come first; an MMAD_IM2COL has its weights before its image.  Ranges are exact except for IM2COL and MMAD_IM2COL.  Their padded
taps and strided pixels are rounded up to whole rows (all columns of the rows from the first to the last one that the tile needs): an
over-estimate inside the tensor, never outside it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from simulator.npu import isa
from simulator.npu.isa import VECTOR_SOURCES, Op
from simulator.npu.parts import DataType, Memory

MAX_RANGES = 6  # ranges of one instruction

_SET, _WAIT, _COPY, _IM2COL, _FRACTAL, _MMAD, _FIXPIPE, _MMAD_IM2COL = (
    int(o) for o in (Op.SET, Op.WAIT, Op.COPY, Op.IM2COL, Op.FRACTAL, Op.MMAD, Op.FIXPIPE, Op.MMAD_IM2COL)
)
_CONVERT, _LUT, _FIRST_VECTOR, _LUT_BLOCKS = int(Op.VCONVERT), int(Op.VLUT), isa.FIRST_VECTOR_OP, isa.LUT_BLOCKS
_BYTE = int(DataType.uint8)
_L0A, _L0B, _L0C, _L1, _UB = (int(m) for m in (Memory.L0A, Memory.L0B, Memory.L0C, Memory.L1, Memory.UB))
_LANES, _N0, _WEIGHTS, _SUMS = isa.TYPE_LANES, isa.COLUMNS, isa.WEIGHT_BLOCKS, isa.SUM_BLOCKS
OP, DTYPE, SRC, DST, D, S0, S1, S2 = isa.OP, isa.DTYPE, isa.SRC, isa.DST, isa.D, isa.S0, isa.S1, isa.S2
C_LENGTH, C_COUNT, C_SSTRIDE, C_DSTRIDE = isa.C_LENGTH, isa.C_COUNT, isa.C_SSTRIDE, isa.C_DSTRIDE
C_COUNT2, C_SSTRIDE2, C_DSTRIDE2 = isa.C_COUNT2, isa.C_SSTRIDE2, isa.C_DSTRIDE2
I_H, I_W, I_PITCH, I_PLANE, I_KH, I_KW = isa.I_H, isa.I_W, isa.I_PITCH, isa.I_PLANE, isa.I_KH, isa.I_KW
I_SH, I_SW, I_DH, I_DW, I_PT, I_PL = isa.I_SH, isa.I_SW, isa.I_DH, isa.I_DW, isa.I_PT, isa.I_PL
W_KERNEL, W_STRIDE, W_DILATION, W_PADDING = isa.W_KERNEL, isa.W_STRIDE, isa.W_DILATION, isa.W_PADDING
W_N1, W_ACC, W_RSTRIDE = isa.W_N1, isa.W_ACC, isa.W_RSTRIDE
I_OW, I_MOFF, I_M, I_MPAD, I_KOFF, I_K, I_LANES = isa.I_OW, isa.I_MOFF, isa.I_M, isa.I_MPAD, isa.I_KOFF, isa.I_K, isa.I_LANES
R_PLANE, R_PIXELS, R_K, R_N1, R_TRANSPOSE = isa.R_PLANE, isa.R_PIXELS, isa.R_K, isa.R_N1, isa.R_TRANSPOSE
I_RING, I_FIRST = isa.I_RING, isa.I_FIRST
M_MPAD, M_K, M_N1, M_ACC = isa.M_MPAD, isa.M_K, isa.M_N1, isa.M_ACC
F_M, F_MPAD, F_N1, F_DPLANE, F_RPLANE = isa.F_M, isa.F_MPAD, isa.F_N1, isa.F_DPLANE, isa.F_RPLANE
F_SUMS, F_SCALE, F_SIDE, F_RTYPE = isa.F_SUMS, isa.F_SCALE, isa.F_SIDE, isa.F_RTYPE
V_BLOCKS, V_REPEATS, V_DBS, V_DRS, V_S0BS, V_IMM = isa.V_BLOCKS, isa.V_REPEATS, isa.V_DBS, isa.V_DRS, isa.V_S0BS, isa.V_IMM


@njit(cache=True, inline="always")
def _put(
    out: NDArray[np.int64], row: int, memory: int, write: int, start: int, length: int, count: int, stride: int, count2: int, stride2: int
) -> int:
    out[row, 0] = memory
    out[row, 1] = write
    out[row, 2] = start
    out[row, 3] = length
    out[row, 4] = count
    out[row, 5] = stride
    out[row, 6] = count2
    out[row, 7] = stride2
    return row + 1


@njit(cache=True, inline="always")
def planes_of(n1: int, dtype: int) -> int:
    """Planes of C0 lanes in n1 fractals of channels; the last plane may be partial."""
    return (n1 * _N0[dtype] + _LANES[dtype] - 1) // _LANES[dtype]


@njit(cache=True, inline="always")
def runs_of(dtype: int, source: int) -> tuple[int, int]:
    """(blocks of the result, blocks of the source) per counted block of a VCONVERT; of bytes, of a VLUT."""
    lanes = max(_LANES[dtype], _LANES[source])
    return lanes // _LANES[dtype], lanes // _LANES[source]


_pair = njit(cache=True, inline="always")(isa.unpack_pair)


@njit(cache=True, inline="always")
def window_of(code: NDArray[np.int32], i: int) -> Any:
    """(kh, kw, sh, sw, dh, dw, pt, pl) of record i, an IM2COL or an MMAD_IM2COL."""
    if code[i, OP] == _MMAD_IM2COL:
        kernel, stride = _pair(np.int64(code[i, W_KERNEL])), _pair(np.int64(code[i, W_STRIDE]))
        dilation, padding = _pair(np.int64(code[i, W_DILATION])), _pair(np.int64(code[i, W_PADDING]))
        return kernel[0], kernel[1], stride[0], stride[1], dilation[0], dilation[1], padding[0], padding[1]
    return (
        np.int64(code[i, I_KH]), np.int64(code[i, I_KW]), np.int64(code[i, I_SH]), np.int64(code[i, I_SW]),
        np.int64(code[i, I_DH]), np.int64(code[i, I_DW]), np.int64(code[i, I_PT]), np.int64(code[i, I_PL]),
    )  # fmt: skip


@njit(cache=True, inline="always")
def _image(code: NDArray[np.int32], i: int) -> Any:
    """(first row, rows, blocks of a row, first plane, planes) under the window of record i, IM2COL or MMAD_IM2COL; 0 rows: padding only."""
    kh, kw, sh, _, dh, _, pt, _ = window_of(code, i)
    ow = code[i, I_OW]
    first = code[i, I_MOFF] // ow
    last = (code[i, I_MOFF] + code[i, I_M] - 1) // ow
    k0 = code[i, I_KOFF]
    k1 = k0 + code[i, I_K] - 1
    c_first, c_count, width = np.int64(0), np.int64(1), np.int64(code[i, I_W])
    if code[i, I_LANES] != 4:
        taps = kh * kw
        c_first = k0 // taps
        c_count = k1 // taps - c_first + 1
    else:
        pixels = _LANES[code[i, DTYPE]] // 4  # pixels of a block
        width = (width + pixels - 1) // pixels
    y0 = max(0, first * sh - pt)
    y1 = min(code[i, I_H] - 1, last * sh - pt + (kh - 1) * dh)
    return y0, max(0, y1 - y0 + 1), width, c_first, c_count


@njit(cache=True)
def image_blocks(code: NDArray[np.int32], i: int) -> int:
    """Blocks of L1, each once, under the window of record i, an IM2COL or an MMAD_IM2COL."""
    _, rows, width, _, planes = _image(code, i)
    return min(rows * width * planes, np.int64(code[i, I_K]) * code[i, I_M])


@njit(cache=True)
def accesses(code: NDArray[np.int32], i: int, out: NDArray[np.int64]) -> int:
    """Fill `out` with the ranges of record `i` of `code` (int32 [n, WORDS]); returns their number."""
    op = code[i, OP]
    n = 0
    if op == _COPY:
        length = code[i, C_LENGTH]
        n = _put(out, n, code[i, SRC], 0, code[i, S0], length, code[i, C_COUNT], code[i, C_SSTRIDE], code[i, C_COUNT2], code[i, C_SSTRIDE2])
        n = _put(out, n, code[i, DST], 1, code[i, D], length, code[i, C_COUNT], code[i, C_DSTRIDE], code[i, C_COUNT2], code[i, C_DSTRIDE2])
    elif op in (_IM2COL, _MMAD_IM2COL):
        k, dtype = code[i, I_K], code[i, DTYPE]
        if op == _MMAD_IM2COL:
            n = _put(out, n, _L1, 0, code[i, S1], k * _WEIGHTS[dtype], code[i, W_N1], code[i, W_RSTRIDE], 1, 0)
        y0, rows, width, c_first, c_count = _image(code, i)
        if rows:
            # the last row ends at its last pixel, not at the pitch
            plane, pitch = code[i, S0] + c_first * code[i, I_PLANE], code[i, I_PITCH]
            ring = code[i, I_RING]
            if ring:
                y0 = (code[i, I_FIRST] + y0) % ring
                front_rows = min(rows, ring - y0)  # rows before the end of the ring; later rows start at its beginning
                n = _put(out, n, _L1, 0, plane + y0 * pitch, (front_rows - 1) * pitch + width, c_count, code[i, I_PLANE], 1, 0)
                y0, rows = 0, rows - front_rows
            if rows:
                n = _put(out, n, _L1, 0, plane + y0 * pitch, (rows - 1) * pitch + width, c_count, code[i, I_PLANE], 1, 0)
        if op == _IM2COL:
            n = _put(out, n, _L0A, 1, code[i, D], k * code[i, I_MPAD], 1, 0, 1, 0)
        else:
            sums = code[i, W_N1] * code[i, I_MPAD] * _SUMS[dtype]
            if code[i, W_ACC]:
                n = _put(out, n, _L0C, 0, code[i, D], sums, 1, 0, 1, 0)
            n = _put(out, n, _L0C, 1, code[i, D], sums, 1, 0, 1, 0)
    elif op == _FRACTAL:
        k, n1 = code[i, R_K], code[i, R_N1]
        dtype = code[i, DTYPE]
        planes, pixels = (planes_of(n1, dtype), k * _LANES[dtype]) if code[i, R_TRANSPOSE] else (k, n1 * _N0[dtype])
        n = _put(out, n, _L1, 0, code[i, S0], min(code[i, R_PIXELS], pixels), planes, code[i, R_PLANE], 1, 0)
        n = _put(out, n, _L0B, 1, code[i, D], n1 * k * _WEIGHTS[dtype], 1, 0, 1, 0)
    elif op == _MMAD:
        m, k, n1, dtype = code[i, M_MPAD], code[i, M_K], code[i, M_N1], code[i, DTYPE]
        n = _put(out, n, _L0A, 0, code[i, S0], k * m, 1, 0, 1, 0)
        n = _put(out, n, _L0B, 0, code[i, S1], n1 * k * _WEIGHTS[dtype], 1, 0, 1, 0)
        if code[i, M_ACC]:
            n = _put(out, n, _L0C, 0, code[i, D], n1 * m * _SUMS[dtype], 1, 0, 1, 0)
        n = _put(out, n, _L0C, 1, code[i, D], n1 * m * _SUMS[dtype], 1, 0, 1, 0)
    elif op == _FIXPIPE:
        m, n1 = code[i, F_M], code[i, F_N1]
        planes, sums = planes_of(n1, code[i, DTYPE]), _SUMS[code[i, DTYPE]]
        side = code[i, F_SIDE] if code[i, F_SIDE] else _UB
        n = _put(out, n, _L0C, 0, code[i, S0], m * sums, n1, code[i, F_MPAD] * sums, 1, 0)
        if code[i, S1] >= 0:
            n = _put(out, n, side, 0, code[i, S1], n1 * sums, 1, 0, 1, 0)
        if code[i, F_SUMS] and code[i, F_SCALE] >= 0:
            n = _put(out, n, side, 0, code[i, F_SCALE], n1 * sums, 1, 0, 1, 0)
        if code[i, S2] >= 0:
            n = _put(out, n, side, 0, code[i, S2], m, planes_of(n1, code[i, F_RTYPE]), code[i, F_RPLANE], 1, 0)
        n = _put(out, n, code[i, DST], 1, code[i, D], m, planes, code[i, F_DPLANE], 1, 0)
    elif op >= _FIRST_VECTOR:
        blocks, repeats = code[i, V_BLOCKS], code[i, V_REPEATS]
        run, source_run, source = 1, 1, code[i, SRC]
        if op in (_CONVERT, _LUT):
            run, source_run = runs_of(code[i, DTYPE], code[i, V_IMM] if op == _CONVERT else _BYTE)
        for s in range(VECTOR_SOURCES[op]):
            if op == _LUT and s == 1:
                n = _put(out, n, source, 0, code[i, S1], _LUT_BLOCKS * run, 1, 0, 1, 0)
            else:
                bs, rs = code[i, V_S0BS + 2 * s], code[i, V_S0BS + 2 * s + 1]
                n = _put(out, n, source, 0, code[i, S0 + s], source_run, blocks, source_run * bs, repeats, rs)
        n = _put(out, n, code[i, DST], 1, code[i, D], run, blocks, run * code[i, V_DBS], repeats, code[i, V_DRS])
    return n


@njit(cache=True)
def extent(row: NDArray[np.int64]) -> tuple[int, int]:
    """(first block, one past the last block) of one range; strides may be zero or negative."""
    lo = row[2]
    hi = row[2] + row[3]
    inner = (row[4] - 1) * row[5]
    outer = (row[6] - 1) * row[7]
    lo += min(0, inner) + min(0, outer)
    hi += max(0, inner) + max(0, outer)
    return lo, hi
