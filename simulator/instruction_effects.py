"""Semantics of COPY, IM2COL, FRACTAL, MMAD, MMAD_IM2COL and FIXPIPE on byte arrays; VECTOR is in `simulator.vector_unit`.

Every function takes (`memories`: uint8 arrays by `Memory`, `record`: 32 ints) and returns the work done in the unit of the
table of `simulator.functional`.  Records have been verified: every block lies inside its memory.  Views are made by the ndarray
constructor, which checks that they stay inside their memory (`as_strided` does not).
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from simulator.npu import isa
from simulator.npu.fixed_point import scale_fixed_point
from simulator.npu.fused import fma
from simulator.npu.parts import BLOCK_BYTES, BYTES, FRACTALS, DataType, Memory

Bytes = NDArray[np.uint8]
Words = list[int]

DTYPE, SRC, DST, D, S0, S1, S2 = isa.DTYPE, isa.SRC, isa.DST, isa.D, isa.S0, isa.S1, isa.S2
C_LENGTH, C_COUNT, C_SSTRIDE, C_DSTRIDE = isa.C_LENGTH, isa.C_COUNT, isa.C_SSTRIDE, isa.C_DSTRIDE
C_COUNT2, C_SSTRIDE2, C_DSTRIDE2 = isa.C_COUNT2, isa.C_SSTRIDE2, isa.C_DSTRIDE2
M_MPAD, M_K, M_N1, M_ACC, M_RIGHT = isa.M_MPAD, isa.M_K, isa.M_N1, isa.M_ACC, isa.M_RIGHT
F_M, F_MPAD, F_N1, F_DPLANE, F_RPLANE, F_ACT, F_LIMIT, F_SUMS, F_SCALE, F_ZERO, F_LOW, F_HIGH, F_SIDE = range(isa.F_M, isa.F_SIDE + 1)
_L1, _L0A, _L0B, _L0C, _UB = (int(m) for m in (Memory.L1, Memory.L0A, Memory.L0B, Memory.L0C, Memory.UB))
_STORAGE, _SUMS = tuple(dtype.storage for dtype in DataType), tuple(dtype.sums.storage for dtype in DataType)
_FLOAT, _INT32 = DataType.float32.storage, DataType.int32.storage
_WORD_TYPE = np.dtype(np.int64)
_BLOCK_WORDS = BLOCK_BYTES // 8  # words of 8 bytes
_EXACT_PRODUCTS = (1 << 24) // 255**2  # products of bytes: this many sums are exact in float32 in any order


@lru_cache(maxsize=4096)
def _disjoint(length: int, count: int, stride: int, count2: int, stride2: int) -> bool:
    """Whether no block belongs to two bursts."""
    starts = np.sort((np.arange(count) * stride + np.arange(count2)[:, None] * stride2).ravel())
    return bool((np.diff(starts) >= length).all())


@njit(cache=True)
def _in_order(writes: NDArray[np.int64], reads: NDArray[np.int64]) -> None:
    """Copy burst after burst, [outer, inner, word]: a record may have millions that overlap."""
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
    # more blocks than the memory cannot be disjoint; no array is made to find out
    if size * count * count2 <= target.size and _disjoint(length, count, record[C_DSTRIDE], count2, record[C_DSTRIDE2]):
        writes[...] = reads
    else:
        _in_order(writes, reads.copy() if source is target else reads)
    return size * count * count2


@lru_cache(maxsize=8192)
def _taps(
    height: int, width: int, pitch: int, plane: int, kh: int, kw: int, sh: int, sw: int, dh: int, dw: int, pt: int, pl: int,
    ow: int, moff: int, rows: int, mpad: int, koff: int, k_blocks: int, units: int, ring: int, first: int,
) -> tuple[NDArray[np.int64] | None, NDArray[np.int64]]:  # fmt: skip
    """(index, pads) of an IM2COL: source unit of every destination unit counted from S0, and the flat places that are padding.

    A unit is a block, or four lanes of one.  units: number of source units.  index is None if all places are padding.
    """
    if units > 1:
        position = units * (koff + np.arange(k_blocks))[:, None] + np.arange(units)  # [k, units]
        plane_at, pitch = np.zeros_like(position), pitch * units
        inside = position < kh * kw
    else:
        c1, position = np.divmod((koff + np.arange(k_blocks))[:, None], kh * kw)  # [k, 1]
        plane_at = c1 * plane
        inside = np.ones_like(position, dtype=bool)
    ky, kx = np.divmod(position[:, None, :], kw)  # [k, 1, units]
    oy, ox = np.divmod((moff + np.arange(rows))[None, :, None], ow)  # [1, m, 1]
    y, x = oy * sh - pt + ky * dh, ox * sw - pl + kx * dw
    valid = (y >= 0) & (y < height) & (x >= 0) & (x < width) & inside[:, None, :]
    index = np.zeros((k_blocks, mpad, position.shape[1]), np.int64)
    index[:, :rows] = np.where(valid, plane_at[:, None, :] + ((first + y) % ring if ring else y) * pitch + x, 0)
    pads = np.ones(index.shape, bool)
    pads[:, :rows] = ~valid
    return (index.ravel() if valid.any() else None), np.flatnonzero(pads)


def _padding(record: Words, words: np.dtype[Any]) -> NDArray[Any]:
    """The pad value of an IM2COL or a FRACTAL, repeated over a word."""
    return np.frombuffer(bytes([max(0, record[isa.PAD])]) * words.itemsize, words)


def im2col(memories: list[Bytes], record: Words) -> int:
    """L1 -> L0A: gather the window of every output pixel; the pad value outside the image and in the rows [M, MPAD)."""
    k, mpad, lanes = record[isa.I_K], record[isa.I_MPAD], record[isa.I_LANES]
    units = FRACTALS[record[DTYPE]].lanes // lanes
    index, pads = _taps(*record[isa.I_H : isa.I_LANES], units, *record[isa.I_RING : isa.I_FIRST + 1])
    word = _WORD_TYPE if units <= _BLOCK_WORDS else _INT32  # a unit is one or more such words
    per_block = BLOCK_BYTES // word.itemsize
    per_unit = per_block // units
    source = memories[_L1].view(word)[record[S0] * per_block :].reshape(-1, per_unit)
    target = np.ndarray((k * mpad * units, per_unit), word, memories[_L0A], record[D] * BLOCK_BYTES)
    pad = _padding(record, word)
    if index is None:
        target[...] = pad
    else:
        source.take(index, axis=0, out=target, mode="clip")  # clip: indices are in range, and numpy has a fast path for it
        if pads.size:
            target[pads] = pad
    return target.nbytes


def fractal(memories: list[Bytes], record: Words) -> int:
    """L1 -> L0B: pixels of planes as columns of the right operand, or transposed as its rows; the pad value for missing pixels."""
    k, n1, pixels, plane = record[isa.R_K], record[isa.R_N1], record[isa.R_PIXELS], record[isa.R_PLANE] * BLOCK_BYTES
    dtype, (_, c0, n0, *_) = _STORAGE[record[DTYPE]], FRACTALS[record[DTYPE]]
    transpose = record[isa.R_TRANSPOSE]
    planes, tile_pixels = (-(-n1 * n0 // c0), k * c0) if transpose else (k, n1 * n0)
    pixel_count = min(pixels, tile_pixels)
    source = np.ndarray((planes, pixel_count, c0), dtype, memories[_L1], record[S0] * BLOCK_BYTES, (plane, BLOCK_BYTES, dtype.itemsize))
    target = np.ndarray((n1, k, n0, c0), dtype, memories[_L0B], record[D] * BLOCK_BYTES)
    tile = np.empty((planes, tile_pixels, c0), dtype)
    tile[:, :pixel_count] = source
    tile[:, pixel_count:] = _padding(record, dtype)
    if transpose:  # [planes, k, pixel, lane] -> [n1 * n0 channels, k, pixel] -> [n1, k, n0 channels, pixel]
        channels = tile.reshape(planes, k, c0, c0).transpose(0, 3, 1, 2).reshape(planes * c0, k, c0)[: n1 * n0]
        target[...] = channels.reshape(n1, n0, k, c0).transpose(0, 2, 1, 3)
    else:
        target[...] = tile.reshape(k, n1, n0, c0).transpose(1, 0, 2, 3)
    return target.nbytes


@lru_cache(maxsize=1024)
def _rows(tile_rows: int, products_per_row: int) -> int:
    """Rows of a matrix product that is small enough for OpenBLAS to use one thread; the last product of a tile may have fewer.

    OpenBLAS starts threads above 2^18 products.  For tiles of this size threads cost more than they gain (eighty times more on a busy
    machine).  With one thread the order of a sum depends on the shape only.
    """
    rows = tile_rows
    while rows > 1 and rows * products_per_row > 1 << 18:
        rows = (rows + 1) // 2
    return rows


def mmad(memories: list[Bytes], record: Words) -> int:
    """L0C[n1][m] (+)= L0A x L0B, products and sums in float32; integers exactly, then wrapped to int32."""
    m, k, n1 = record[M_MPAD], record[M_K], record[M_N1]
    integers = record[DTYPE] in BYTES
    dtype, sums, (_, k0, n0, *_) = _STORAGE[record[DTYPE]], _SUMS[record[DTYPE]], FRACTALS[record[DTYPE]]
    a = np.ndarray((k, m, k0), dtype, memories[_L0A], record[S0] * BLOCK_BYTES)
    b = np.ndarray((n1, k, n0, k0), _STORAGE[record[M_RIGHT]] if integers else dtype, memories[_L0B], record[S1] * BLOCK_BYTES)
    c = np.ndarray((n1, m, n0), sums, memories[_L0C], record[D] * BLOCK_BYTES)
    # integers: float32 sums are exact for few products, float64 for any
    wide = _FLOAT if not integers or k * k0 <= _EXACT_PRODUCTS else np.dtype(np.float64)
    left_operand = np.empty((m, k, k0), wide)
    left_operand[...] = a.transpose(1, 0, 2)
    right_operand = np.empty((n1, n0, k, k0), wide)
    right_operand[...] = b.transpose(0, 2, 1, 3)
    # batches of rows that BLAS keeps on one thread, then the remaining rows
    rows = _rows(m, n1 * n0 * k * k0)
    full_rows = m // rows * rows
    product = np.empty((m, n1 * n0), wide)
    left_operand, right_operand = left_operand.reshape(m, k * k0), right_operand.reshape(n1 * n0, k * k0).T
    np.matmul(left_operand[:full_rows].reshape(-1, rows, k * k0), right_operand, out=product[:full_rows].reshape(-1, rows, n1 * n0))
    if full_rows < m:
        np.matmul(left_operand[full_rows:], right_operand, out=product[full_rows:])
    product = product.reshape(m, n1, n0).transpose(1, 0, 2)
    if integers:
        product = product.astype(np.int64).astype(sums)
    if record[M_ACC]:
        c += product
    else:
        c[...] = product
    return m * k * k0 * n1 * n0


def mmad_im2col(memories: list[Bytes], record: Words) -> int:
    """`mmad` of the `im2col` of the window in L1, with weights in L1."""
    k, mpad, n1 = record[isa.I_K], record[isa.I_MPAD], record[isa.W_N1]
    run = k * isa.WEIGHT_BLOCKS[record[DTYPE]] * BLOCK_BYTES
    weights = np.ndarray((n1, run), np.uint8, memories[_L1], record[S1] * BLOCK_BYTES, (record[isa.W_RSTRIDE] * BLOCK_BYTES, 1))
    operands = [*memories]
    operands[_L0A], operands[_L0B] = np.empty(k * mpad * BLOCK_BYTES, np.uint8), np.ascontiguousarray(weights).reshape(-1)
    image, product = [*record], [*record]
    for index, word in zip(range(isa.I_KH, isa.I_OW, 2), (isa.W_KERNEL, isa.W_STRIDE, isa.W_DILATION, isa.W_PADDING), strict=True):
        image[index], image[index + 1] = isa.unpack_pair(record[word])
    image[D] = product[S0] = product[S1] = 0
    im2col(operands, image)
    product[M_MPAD], product[M_K], product[M_N1], product[M_ACC], product[M_RIGHT] = mpad, k, n1, record[isa.W_ACC], record[isa.W_RIGHT]
    return mmad(operands, product)


def fixpipe(memories: list[Bytes], record: Words, fixed_point: bool = False) -> int:
    """L0C -> {UB, L1, DDR}: add the bias, then convert by the types of sums and of the result; [N1][M][16] becomes planes of C0.

    fixed_point: the rounding of int32 sums to 8 bits (`Machine.rounding`).
    """
    side = memories[record[F_SIDE] or _UB]
    m, n1 = record[F_M], record[F_N1]
    dtype, (_, c0, n0, *_) = _STORAGE[record[DTYPE]], FRACTALS[record[DTYPE]]
    sums = _INT32 if record[F_SUMS] else _FLOAT
    row = n0 * sums.itemsize
    c = np.ndarray((n1, m, n0), sums, memories[_L0C], record[S0] * BLOCK_BYTES, (record[F_MPAD] * row, row, sums.itemsize))
    value = c
    if record[S1] >= 0:
        value = c + np.ndarray((n1, 1, n0), sums, side, record[S1] * BLOCK_BYTES)
    of_sums = record[S2] >= 0 and (not record[F_SUMS] or record[isa.F_RTYPE] == DataType.int32)
    if of_sums:
        value = value + _residual(side, record)
    if record[F_SUMS]:
        value = _scaled_sums(side, record, value, fixed_point)
    planes = -(-n1 * n0 // c0)
    if n1 * n0 < planes * c0:
        value = np.concatenate((value, np.full((planes * c0 // n0 - n1, m, n0), record[F_ZERO], value.dtype)))
    # [N1][M][16] -> planes [C1][M][C0]
    value = value.reshape(planes, -1, m, n0).transpose(0, 2, 1, 3) if c0 > n0 else value.reshape(n1, m, -1, c0).transpose(0, 2, 1, 3)
    value = value.reshape(planes, m, c0)
    shape, size = (planes, m, c0), dtype.itemsize
    if record[S2] >= 0 and not of_sums:
        value = _added(side, record, value.astype(_FLOAT), shape)
    if record[F_ACT] != isa.Activation.none:
        value = np.maximum(value, np.float32(0))
    if record[F_ACT] == isa.Activation.clip:
        value = np.minimum(value, np.float32(isa.bits_float(record[F_LIMIT])))
    plane = record[F_DPLANE] * BLOCK_BYTES
    target = np.ndarray(shape, dtype, memories[record[DST]], record[D] * BLOCK_BYTES, (plane, BLOCK_BYTES, size))
    if planes == 1 or record[F_DPLANE] >= m:
        target[...] = value
    else:  # overlapping planes: the later one wins
        for i in range(planes):
            target[i] = value[i]
    return c.nbytes


def _residual(side: Bytes, record: Words) -> NDArray[Any]:
    """[N1][M][16]: the summand in memory, floats or int32."""
    m, n1, kind = record[F_M], record[F_N1], _STORAGE[record[isa.F_RTYPE]]
    _, c0, n0, *_ = FRACTALS[record[isa.F_RTYPE]]
    strides = (record[F_RPLANE] * BLOCK_BYTES, BLOCK_BYTES, kind.itemsize)
    planes = np.ndarray((n1 * n0 // c0, m, c0), kind, side, record[S2] * BLOCK_BYTES, strides)
    return planes.reshape(n1, -1, m, c0).transpose(0, 2, 1, 3).reshape(n1, m, n0)


def _added(side: Bytes, record: Words, sums: NDArray[Any], shape: tuple[int, int, int]) -> NDArray[Any]:
    """An 8-bit result plus its residual: two products, each rounded once with a sum, then an integer of the type."""
    kind = _STORAGE[record[isa.F_RTYPE]]
    strides = (record[F_RPLANE] * BLOCK_BYTES, BLOCK_BYTES, kind.itemsize)
    residual = np.ndarray(shape, kind, side, record[S2] * BLOCK_BYTES, strides).astype(_FLOAT)
    sum_factor, residual_factor, fixed = (np.float32(isa.bits_float(record[word])) for word in (isa.F_OWN, isa.F_OTHER, isa.F_FIXED))
    (inner, first), (outer, last) = (
        ((sums, sum_factor), (residual, residual_factor)) if record[isa.F_LAST] else ((residual, residual_factor), (sums, sum_factor))
    )
    limits = np.iinfo(_STORAGE[record[DTYPE]])
    return np.asarray(np.rint(fma(outer, last, fma(inner, first, fixed))).clip(limits.min, limits.max))


def _scaled_sums(side: Bytes, record: Words, value: NDArray[Any], fixed_point: bool) -> NDArray[Any]:
    """[N1][M][16]: int32 sums with their bias, scaled; for an 8-bit result clipped and rounded, still wide."""
    if record[DTYPE] == DataType.int32:
        return value
    if fixed_point and record[DTYPE] in BYTES:
        scale = np.ndarray((value.shape[0], 1, value.shape[2]), _FLOAT, side, record[F_SCALE] * BLOCK_BYTES)
        return (scale_fixed_point(value, scale) + record[F_ZERO]).clip(record[F_LOW], record[F_HIGH])
    value = value.astype(_FLOAT)
    if record[F_SCALE] >= 0:
        n1, _, n0 = value.shape
        value *= np.ndarray((n1, 1, n0), _FLOAT, side, record[F_SCALE] * BLOCK_BYTES)
    if record[DTYPE] not in BYTES:
        return value
    zero = record[F_ZERO]
    low, high = np.float32(record[F_LOW] - zero), np.float32(record[F_HIGH] - zero)
    return np.rint(np.fmin(np.fmax(value, low), high)) + np.float32(zero)
