"""The meaning of COPY, IM2COL, FRACTAL, MMAD and FIXPIPE on byte arrays; VECTOR is in `simulator.vector_unit`.

Every function takes (`memories`: uint8 arrays by `Memory`, `record`: 32 ints) and returns the work done in the unit of the
table of `simulator.functional`.  Records have been verified: every block lies inside its memory.  Views are made by the ndarray
constructor, which checks that they stay inside their memory (`as_strided` does not).
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numba import njit
from numpy.typing import NDArray

from simulator.npu import isa
from simulator.npu.parts import BLOCK_BYTES, FRACTALS, SUMS, DataType, Memory

Bytes = NDArray[np.uint8]
Words = list[int]

DTYPE, SRC, DST, D, S0, S1, S2 = isa.DTYPE, isa.SRC, isa.DST, isa.D, isa.S0, isa.S1, isa.S2
C_LENGTH, C_COUNT, C_SSTRIDE, C_DSTRIDE = isa.C_LENGTH, isa.C_COUNT, isa.C_SSTRIDE, isa.C_DSTRIDE
C_COUNT2, C_SSTRIDE2, C_DSTRIDE2 = isa.C_COUNT2, isa.C_SSTRIDE2, isa.C_DSTRIDE2
M_MPAD, M_K, M_N1, M_ACC = isa.M_MPAD, isa.M_K, isa.M_N1, isa.M_ACC
F_M, F_MPAD, F_N1, F_DPLANE, F_RPLANE, F_ACT, F_LIMIT = range(isa.F_M, isa.F_LIMIT + 1)
_L1, _L0A, _L0B, _L0C, _UB = (int(m) for m in (Memory.L1, Memory.L0A, Memory.L0B, Memory.L0C, Memory.UB))
_STORAGE, _SUMS = tuple(dtype.storage for dtype in DataType), SUMS.storage
_WORD_TYPE = np.dtype(np.int64)
_BLOCK_WORDS = BLOCK_BYTES // 8


@lru_cache(maxsize=4096)
def _disjoint(length: int, count: int, stride: int, count2: int, stride2: int) -> bool:
    """Whether no block lies in two bursts."""
    starts = np.sort((np.arange(count) * stride + np.arange(count2)[:, None] * stride2).ravel())
    return bool((np.diff(starts) >= length).all())


@njit(cache=True)
def _in_order(writes: NDArray[np.int64], reads: NDArray[np.int64]) -> None:
    """Burst after burst, [outer, inner, word]: a record may have millions that fall on one another."""
    for j in range(writes.shape[0]):
        for i in range(writes.shape[1]):
            for word in range(writes.shape[2]):
                writes[j, i, word] = reads[j, i, word]


def copy(memories: list[Bytes], record: Words) -> int:
    """Bursts in order: the inner count runs fastest, and of two bursts to one place the later stays."""
    source, target = memories[record[SRC]], memories[record[DST]]
    d, s, length = record[D] * BLOCK_BYTES, record[S0] * BLOCK_BYTES, record[C_LENGTH]
    count, count2 = record[C_COUNT], record[C_COUNT2]
    size = length * BLOCK_BYTES
    if count * count2 == 1:
        target[d : d + size] = source[s : s + size]
        return size
    shape = (count2, count, length * _BLOCK_WORDS)
    reads = np.ndarray(shape, _WORD_TYPE, source, s, (record[C_SSTRIDE2] * BLOCK_BYTES, record[C_SSTRIDE] * BLOCK_BYTES, 8))
    writes = np.ndarray(shape, _WORD_TYPE, target, d, (record[C_DSTRIDE2] * BLOCK_BYTES, record[C_DSTRIDE] * BLOCK_BYTES, 8))
    # more than the target holds cannot be disjoint, and is not worth an array of its own to find out
    if size * count * count2 <= target.size and _disjoint(length, count, record[C_DSTRIDE], count2, record[C_DSTRIDE2]):
        writes[...] = reads
    else:
        _in_order(writes, reads)
    return size * count * count2


@lru_cache(maxsize=8192)
def _taps(
    h: int, w: int, pitch: int, plane: int, kh: int, kw: int, sh: int, sw: int, dh: int, dw: int, pt: int, pl: int,
    ow: int, moff: int, m: int, mpad: int, koff: int, k: int, lanes: int, ring: int, first: int,
) -> tuple[NDArray[np.int64] | None, NDArray[np.int64]]:  # fmt: skip
    """(index, zeros) of an IM2COL: source unit of every destination unit counted from S0, and the flat places that are zero.

    A unit is a block, or four float16 lanes (8 bytes) where lanes = 4.  index is None where every place is zero.
    """
    if lanes == 4:
        position = 4 * (koff + np.arange(k))[:, None] + np.arange(4)  # [k, 4]
        plane_at, pitch = np.zeros_like(position), pitch * 4
        inside = position < kh * kw
    else:
        c1, position = np.divmod((koff + np.arange(k))[:, None], kh * kw)  # [k, 1]
        plane_at = c1 * plane
        inside = np.ones_like(position, dtype=bool)
    ky, kx = np.divmod(position[:, None, :], kw)  # [k, 1, units]
    oy, ox = np.divmod((moff + np.arange(m))[None, :, None], ow)  # [1, m, 1]
    y, x = oy * sh - pt + ky * dh, ox * sw - pl + kx * dw
    valid = (y >= 0) & (y < h) & (x >= 0) & (x < w) & inside[:, None, :]
    index = np.zeros((k, mpad, position.shape[1]), np.int64)
    index[:, :m] = np.where(valid, plane_at[:, None, :] + ((first + y) % ring if ring else y) * pitch + x, 0)
    zero = np.ones(index.shape, bool)
    zero[:, :m] = ~valid
    return (index.ravel() if valid.any() else None), np.flatnonzero(zero)


def im2col(memories: list[Bytes], record: Words) -> int:
    """L1 -> L0A: gather the window of every output pixel; outside the image and in the rows [M, MPAD) there is zero."""
    k, mpad, lanes = record[isa.I_K], record[isa.I_MPAD], record[isa.I_LANES]
    index, zeros = _taps(*record[isa.I_H : isa.I_FIRST + 1])
    unit = 1 if lanes == 4 else _BLOCK_WORDS
    source = memories[_L1].view(_WORD_TYPE)[record[S0] * _BLOCK_WORDS :].reshape(-1, unit)
    target = np.ndarray((k * mpad * _BLOCK_WORDS // unit, unit), _WORD_TYPE, memories[_L0A], record[D] * BLOCK_BYTES)
    if index is None:
        target[...] = 0
    else:
        source.take(index, axis=0, out=target, mode="clip")  # clip: in range already, and numpy's fast path
        if zeros.size:
            target[zeros] = 0
    return target.nbytes


def fractal(memories: list[Bytes], record: Words) -> int:
    """L1 -> L0B: pixels of planes as columns of the right operand, or transposed as its rows; zero where there is no pixel."""
    k, n1, pixels, plane = record[isa.R_K], record[isa.R_N1], record[isa.R_PIXELS], record[isa.R_PLANE] * BLOCK_BYTES
    dtype, (_, c0, n0, _, _, deep) = _STORAGE[record[DTYPE]], FRACTALS[record[DTYPE]]
    transpose = record[isa.R_TRANSPOSE]
    planes, wanted = (n1 * deep, k * c0) if transpose else (k, n1 * n0)
    there = min(pixels, wanted)
    source = np.ndarray((planes, there, c0), dtype, memories[_L1], record[S0] * BLOCK_BYTES, (plane, BLOCK_BYTES, dtype.itemsize))
    target = np.ndarray((n1, k, n0, c0), dtype, memories[_L0B], record[D] * BLOCK_BYTES)
    tile = np.zeros((planes, wanted, c0), dtype)
    tile[:, :there] = source
    if transpose:  # [n1 * n0 / c0, k, pixel, lane] -> [n1, k, n0 channels, pixel]
        swapped = tile.reshape(n1, deep, k, c0, c0).transpose(0, 2, 1, 4, 3)
        target[...] = swapped.reshape(n1, k, n0, c0)
    else:
        target[...] = tile.reshape(k, n1, n0, c0).transpose(1, 0, 2, 3)
    return target.nbytes


@lru_cache(maxsize=1024)
def _rows(m: int, products_per_row: int) -> int:
    """Rows of one matrix product, of which the last may have fewer: few enough that OpenBLAS keeps it on one thread.

    It starts threads above 2^18 products.  For tiles of this size they cost more than they bring, eighty times more on a busy
    machine, and one thread makes the sum's order a matter of the shape alone.
    """
    rows = m
    while rows > 1 and rows * products_per_row > 1 << 18:
        rows = (rows + 1) // 2
    return rows


def mmad(memories: list[Bytes], record: Words) -> int:
    """L0C[n1][m] (+)= L0A x L0B, products and sums in float32."""
    m, k, n1 = record[M_MPAD], record[M_K], record[M_N1]
    dtype, (_, k0, n0, *_) = _STORAGE[record[DTYPE]], FRACTALS[record[DTYPE]]
    a = np.ndarray((k, m, k0), dtype, memories[_L0A], record[S0] * BLOCK_BYTES)
    b = np.ndarray((n1, k, n0, k0), dtype, memories[_L0B], record[S1] * BLOCK_BYTES)
    c = np.ndarray((n1, m, n0), _SUMS, memories[_L0C], record[D] * BLOCK_BYTES)
    left = np.empty((m, k, k0), _SUMS)
    left[...] = a.transpose(1, 0, 2)
    right = np.empty((n1, n0, k, k0), _SUMS)
    right[...] = b.transpose(0, 2, 1, 3)
    rows = _rows(m, n1 * n0 * k * k0)
    whole = m // rows * rows
    product = np.empty((m, n1 * n0), _SUMS)
    left, right = left.reshape(m, k * k0), right.reshape(n1 * n0, k * k0).T
    np.matmul(left[:whole].reshape(-1, rows, k * k0), right, out=product[:whole].reshape(-1, rows, n1 * n0))
    if whole < m:
        np.matmul(left[whole:], right, out=product[whole:])
    product = product.reshape(m, n1, n0).transpose(1, 0, 2)
    if record[M_ACC]:
        c += product
    else:
        c[...] = product
    return m * k * k0 * n1 * n0


def fixpipe(memories: list[Bytes], record: Words) -> int:
    """L0C -> {UB, L1}: + bias, + residual, activation in float32, then one rounding; [N1][M][16] becomes planes of C0."""
    m, n1 = record[F_M], record[F_N1]
    dtype, (_, c0, n0, _, _, deep) = _STORAGE[record[DTYPE]], FRACTALS[record[DTYPE]]
    row = n0 * _SUMS.itemsize
    c = np.ndarray((n1, m, n0), _SUMS, memories[_L0C], record[S0] * BLOCK_BYTES, (record[F_MPAD] * row, row, _SUMS.itemsize))
    value = c
    if record[S1] >= 0:
        value = c + np.ndarray((n1, 1, n0), _SUMS, memories[_UB], record[S1] * BLOCK_BYTES)
    value = value.reshape(n1, m, deep, c0).transpose(0, 2, 1, 3)
    shape, size = (n1, deep, m, c0), dtype.itemsize
    if record[S2] >= 0:
        plane = record[F_RPLANE] * BLOCK_BYTES
        value = value + np.ndarray(shape, dtype, memories[_UB], record[S2] * BLOCK_BYTES, (plane * deep, plane, BLOCK_BYTES, size))
    if record[F_ACT] != isa.Activation.none:
        value = np.maximum(value, np.float32(0))
    if record[F_ACT] == isa.Activation.clip:
        value = np.minimum(value, np.float32(isa.bits_float(record[F_LIMIT])))
    plane = record[F_DPLANE] * BLOCK_BYTES
    target = np.ndarray(shape, dtype, memories[record[DST]], record[D] * BLOCK_BYTES, (plane * deep, plane, BLOCK_BYTES, size))
    if n1 * deep == 1 or record[F_DPLANE] >= m:
        target[...] = value
    else:  # planes that overlap: the later one stays
        for i in range(n1):
            for j in range(deep):
                target[i, j] = value[i, j]
    return c.nbytes
