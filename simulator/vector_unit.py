"""Semantics of the VECTOR opcodes, in UB, or in L1 without UB: floats are computed in float32 and rounded once to the data type.

A repeat reads its blocks, then writes them; repeats run in order.  If no repeat reads output of an earlier one, all of
them are one numpy expression; if dst stays in place and is a source (accumulation), one `accumulate`; else a loop.

float16 operands go to numpy's float16 ufuncs where those exist: they compute in float32 and round once.  VMADD in float32
is a fused multiply-add.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.instruction_effects import Bytes, Words
from simulator.npu import isa
from simulator.npu.fused import fma
from simulator.npu.isa import DTYPE, S0, S1, V_BLOCKS, V_DBS, V_DRS, V_IMM, V_REPEATS, V_S0BS, VECTOR_SOURCES, D, Op
from simulator.npu.parts import BLOCK_BYTES, DataType

Values = NDArray[Any]
Span = tuple[int, int, int, int]  # offset from dst, run, block stride, repeat stride: in blocks

_SOURCES, _LANES, _STORAGE = VECTOR_SOURCES.tolist(), tuple(dtype.lanes for dtype in DataType), tuple(dtype.storage for dtype in DataType)
_F32_TYPE = DataType.float32.storage

INDEPENDENT, SEQUENTIAL = -1, -2


def _blocks_of(blocks: int, repeats: int, span: Span) -> NDArray[np.int64]:
    """[repeats, blocks * run] block numbers."""
    offset, run, bs, rs = span
    numbers = offset + np.arange(repeats)[:, None, None] * rs + np.arange(blocks)[:, None] * bs + np.arange(run)
    return numbers.reshape(repeats, blocks * run)


@lru_cache(maxsize=16384)
def _order(blocks: int, repeats: int, written: Span, sources: tuple[Span, ...]) -> int:
    """INDEPENDENT, SEQUENTIAL, or the number of the source through which dst accumulates (dst touches no other source)."""
    writes = _blocks_of(blocks, repeats, written)
    if written[3] == 0:
        through = [i for i, span in enumerate(sources) if span == written]
        other_spans = [span for i, span in enumerate(sources) if i not in through]
        if len(through) == 1 and not any(np.isin(_blocks_of(blocks, repeats, span), writes).any() for span in other_spans):
            return through[0]
        return SEQUENTIAL
    flat, first = np.unique(writes, return_index=True)
    if flat.size != writes.size:
        return SEQUENTIAL
    writer = first // writes.shape[1]
    for span in sources:
        reads = _blocks_of(blocks, repeats, span)
        index = np.minimum(np.searchsorted(flat, reads), flat.size - 1)
        if ((flat[index] == reads) & (writer[index] < np.arange(repeats)[:, None])).any():
            return SEQUENTIAL
    return INDEPENDENT


def vector(memories: list[Bytes], record: Words) -> int:
    """Execute any VECTOR opcode; returns the bytes written."""
    op, ub = record[isa.OP], memories[record[isa.DST]]
    blocks, repeats, imm = record[V_BLOCKS], record[V_REPEATS], record[V_IMM]
    source_type = imm if op == Op.VCONVERT else DataType.uint8 if op == Op.VLUT else record[DTYPE]
    lanes = max(_LANES[record[DTYPE]], _LANES[source_type])  # lanes of the unit that counts as a block on both sides
    run, source_run = lanes // _LANES[record[DTYPE]], lanes // _LANES[source_type]
    written: Span = (0, run, record[V_DBS] * run, record[V_DRS])
    d = record[D]
    sources: list[Span] = []
    for s in range(1 if op == Op.VLUT else _SOURCES[op]):
        word = V_S0BS + 2 * s
        sources.append((record[S0 + s] - d, source_run, record[word] * source_run, record[word + 1]))
    byte_count = repeats * blocks * run * BLOCK_BYTES
    if blocks > 1 and written[2] == 0:  # blocks written to one place: the last one stays
        sources = [(offset + (blocks - 1) * bs, width, bs, rs) for offset, width, bs, rs in sources]
        blocks = 1

    dtype, source_dtype = _STORAGE[record[DTYPE]], _STORAGE[source_type]
    shape = (repeats, blocks, lanes)
    target = np.ndarray(shape, dtype, ub, d * BLOCK_BYTES, (written[3] * BLOCK_BYTES, written[2] * BLOCK_BYTES, dtype.itemsize))
    values = [
        np.ndarray(shape, source_dtype, ub, (d + offset) * BLOCK_BYTES, (rs * BLOCK_BYTES, bs * BLOCK_BYTES, source_dtype.itemsize))
        for offset, _, bs, rs in sources
    ]
    if op == Op.VLUT:
        sources.append((record[S1] - d, isa.LUT_BLOCKS * run, 0, 0))
        values.append(np.ndarray(isa.LUT_BLOCKS * BLOCK_BYTES, dtype, ub, record[S1] * BLOCK_BYTES))
    order = INDEPENDENT if repeats == 1 else _order(blocks, repeats, written, tuple(sources))
    compute = _COMPUTE[op]
    if order == INDEPENDENT:
        compute(target, values, imm)
    elif order >= 0 and (op, order) in _ACCUMULATE:
        _accumulate(op, target[0], values[order][0], [value for i, value in enumerate(values) if i != order])
    else:
        for r in range(repeats):
            compute(target[r : r + 1], [value[r : r + 1] if value.ndim > 1 else value for value in values], imm)
    return byte_count


# An accumulation in place: the running value (the source given by the number) op the others, repeat by repeat, rounded each time.
_ACCUMULATE: dict[tuple[int, int], np.ufunc] = {
    (Op.VADD, 0): np.add, (Op.VADD, 1): np.add, (Op.VMUL, 0): np.multiply, (Op.VMUL, 1): np.multiply,
    (Op.VMAX, 0): np.maximum, (Op.VMAX, 1): np.maximum, (Op.VMIN, 0): np.minimum, (Op.VMIN, 1): np.minimum,
    (Op.VSUB, 0): np.subtract, (Op.VDIV, 0): np.divide,
}  # fmt: skip


def _accumulate(op: int, target: Values, start: Values, operands: list[Values]) -> None:
    stack = np.concatenate((start[None], operands[0]))
    ufunc = _ACCUMULATE[op, 0]
    # accumulate is sequential by definition, and each partial result is stored in the data type
    target[...] = ufunc.accumulate(stack, axis=0)[-1]


def _imm(word: int) -> np.float32:
    return np.float32(isa.bits_float(word))


def _unary(function: Callable[..., Values]) -> Callable[[Values, list[Values], int], None]:
    def run(target: Values, values: list[Values], _imm_bits: int) -> None:
        target[...] = function(values[0].astype(np.float32))

    return run


def _with_imm(ufunc: np.ufunc) -> Callable[[Values, list[Values], int], None]:
    def run(target: Values, values: list[Values], imm_bits: int) -> None:
        target[...] = ufunc(values[0], _imm(imm_bits), dtype=np.float32)

    return run


def _binary(ufunc: np.ufunc) -> Callable[[Values, list[Values], int], None]:
    def run(target: Values, values: list[Values], _imm_bits: int) -> None:
        ufunc(values[0], values[1], out=target)

    return run


def _fill(target: Values, _values: list[Values], imm_bits: int) -> None:
    target[...] = _converted(target.dtype, _imm(imm_bits).reshape(1))


def _converted(dtype: np.dtype[Any], values: Values) -> Values:
    """VCONVERT of values; floats are left to the assignment, which rounds to nearest even."""
    if dtype.kind == "f":
        return values
    limits = np.iinfo(dtype)
    wide = np.rint(np.nan_to_num(values.astype(np.float64)))  # float64 has room for every int32
    return wide.clip(limits.min, limits.max).astype(dtype)


def _convert(target: Values, values: list[Values], _imm_bits: int) -> None:
    target[...] = _converted(target.dtype, values[0])


def _look_up(target: Values, values: list[Values], _imm_bits: int) -> None:
    target[...] = values[1][values[0]]


def _move(target: Values, values: list[Values], _imm_bits: int) -> None:
    target[...] = values[0]


def _relu(target: Values, values: list[Values], _imm_bits: int) -> None:
    np.maximum(values[0], values[0].dtype.type(0), out=target)


def _multiply_add(target: Values, values: list[Values], _imm_bits: int) -> None:
    if target.dtype == _F32_TYPE:
        target[...] = fma(values[0], values[1], values[2])
    else:
        target[...] = np.multiply(values[0], values[1], dtype=np.float32) + values[2]


def _lane_max(target: Values, values: list[Values], _imm_bits: int) -> None:
    target[...] = values[0].max(axis=-1, keepdims=True)


def _lane_sum(target: Values, values: list[Values], _imm_bits: int) -> None:
    """A tree in float32: lane i takes lane i + half, halving until one is left."""
    total = values[0].astype(np.float32)
    while total.shape[-1] > 1:
        half = total.shape[-1] // 2
        total = total[..., :half] + total[..., half:]
    target[...] = total


def _lane_add(target: Values, values: list[Values], _imm_bits: int) -> None:
    total = values[1]
    for lane in range(values[0].shape[-1]):
        total = total + values[0][..., lane : lane + 1]
    target[...] = total


_COMPUTE: dict[int, Callable[[Values, list[Values], int], None]] = {
    Op.VFILL: _fill,
    Op.VCOPY: _move,
    Op.VLUT: _look_up,
    Op.VCONVERT: _convert,
    Op.VRELU: _relu,
    Op.VEXP: _unary(np.exp),
    Op.VLN: _unary(np.log),
    Op.VSQRT: _unary(np.sqrt),
    Op.VRECIPROCAL: _unary(np.reciprocal),
    Op.VADDS: _with_imm(np.add),
    Op.VMULS: _with_imm(np.multiply),
    Op.VMAXS: _with_imm(np.maximum),
    Op.VMINS: _with_imm(np.minimum),
    Op.VADD: _binary(np.add),
    Op.VSUB: _binary(np.subtract),
    Op.VMUL: _binary(np.multiply),
    Op.VMAX: _binary(np.maximum),
    Op.VMIN: _binary(np.minimum),
    Op.VDIV: _binary(np.divide),
    Op.VMADD: _multiply_add,
    Op.VLANE_MAX: _lane_max,
    Op.VLANE_SUM: _lane_sum,
    Op.VLANE_ADD: _lane_add,
}
