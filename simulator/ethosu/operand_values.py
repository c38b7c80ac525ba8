"""Elementwise operations: two operands that are broadcast and scaled, or one.

Sums and differences scale their operands first.  In `scale_mode` 0 each has a factor of 16 bits.  In modes 1 and 2 the first or the
second operand has a factor and a shift, with double rounding at bit 31, and the other is shifted left. That is the addition of TFLite,
whose left shifts are 20 for 8 bits and 15 for 16 bits. A product of 32 bits is shifted by `OFM_SCALE`, without its factor: with a shift
of 31 it is that of gemmlowp's fixed point.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.ethosu.block_operation import Result, Source, mode_of, operand_of
from simulator.ethosu.command_words import Operation
from simulator.ethosu.memory_regions import RegionMemory
from simulator.ethosu.requantise import DOUBLE, NATURAL, TRUNCATE, requantise

ONE_OPERAND = ("LRELU", "ABS", "CLZ")
_LEFT_SHIFT = {1: 20, 2: 15}
"""Of an operand, by the bytes of its type."""
_WORD = 1 << 31


class Operands(NamedTuple):
    """Operands in memory.  second: None with one operand, or where it is `scalar`.  swapped: whether the second comes first."""

    first: Source
    second: Source | None
    scalar: int
    scalar_zero: int
    swapped: bool


def operands_of(operation: Operation, result: Result) -> Operands:
    """Operands of an NPU_OP_ELEMENTWISE."""
    first = operand_of(operation, result, "IFM", (False, False, False))
    if operation.field("IFM_DEPTH_M1") + 1 != result.channels:
        raise operation.refuse(
            f"NPU_SET_IFM_DEPTH_M1 = {operation.field('IFM_DEPTH_M1')}: expected {result.channels - 1}, as of the result"
        )
    if operation.field("IFM_UPSCALE"):
        raise operation.refuse(f"NPU_SET_IFM_UPSCALE = {operation.field('IFM_UPSCALE')}: expected 0")
    if mode_of(operation) in ONE_OPERAND:
        return Operands(first, None, 0, 0, False)
    swapped = bool(operation.field("IFM2_BROADCAST", "reversed"))
    if operation.field("IFM2_BROADCAST", "scalar"):
        zero, scalar = operation.field("IFM2_ZERO_POINT"), operation.field("IFM2_SCALAR")
        return Operands(first, None, scalar, zero, swapped)
    broadcast = (*(bool(operation.field("IFM2_BROADCAST", axis)) for axis in ("rows", "columns", "channels")),)
    second = operand_of(operation, result, "IFM2", broadcast)  # type: ignore[arg-type]
    if second.map.dtype.itemsize != first.map.dtype.itemsize:
        raise operation.refuse(f"NPU_SET_IFM2_PRECISION: {second.map.dtype}: expected the bytes of {first.map.dtype}")
    return Operands(first, second, 0, second.map.zero_point, swapped)


def combine(operation: Operation, memory: RegionMemory, result: Result, operands: Operands) -> NDArray[np.int64]:
    """Scaled values of an NPU_OP_ELEMENTWISE, [rows, columns, channels], without zero point and limits."""
    mode, zero = mode_of(operation), operands.first.map.zero_point
    raw = operands.first.read(memory).astype(np.int64)
    if mode in ONE_OPERAND:
        return _one(operation, result, mode, raw - zero)
    second = np.full((1, 1, 1), operands.scalar) if operands.second is None else operands.second.read(memory).astype(np.int64)
    if mode in ("MIN", "MAX"):
        if not zero == operands.scalar_zero == result.map.zero_point:
            raise operation.refuse("operands and a result of several zero points: expected the same")
        return np.asarray((np.minimum if mode == "MIN" else np.maximum)(raw, second)) - zero
    one, two = raw - zero, second - operands.scalar_zero
    if operands.swapped:
        one, two = two, one
    if mode in ("SHR", "SHL"):
        return _shifted(operation, result, mode, *np.broadcast_arrays(one, two))
    if mode == "MUL":
        if operands.first.map.dtype.itemsize == 4:
            return requantise(one * two, 1, operation.field("OFM_SCALE", "shift"), result.round_mode)
        value = one * two
    else:
        one, two = _scaled_operands(operation, operands, one, two)
        value = one + two if mode == "ADD" else one - two
    return _scaled(operation, result, value)


def _scaled(operation: Operation, result: Result, values: NDArray[np.int64]) -> NDArray[np.int64]:
    if not result.global_scale:
        raise operation.refuse("NPU_SET_OFM_PRECISION: scales of channels: expected a global scale")
    return requantise(values, operation.field("OFM_SCALE", "factor"), operation.field("OFM_SCALE", "shift"), result.round_mode)


def _scaled_operands(
    operation: Operation, operands: Operands, one: NDArray[np.int64], two: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    which, factor = operation.field("IFM_PRECISION", "scale_mode"), operation.field("OPA_SCALE", "factor")
    if which == 0:
        if factor >= 1 << 16:
            raise operation.refuse(f"NPU_SET_OPA_SCALE = {factor}: expected less than {1 << 16}, as both operands are scaled")
        return one * factor, two * operation.field("OPB_SCALE", "factor")
    element = operands.first.map.dtype.itemsize
    if element not in _LEFT_SHIFT:
        raise operation.refuse(f"NPU_SET_IFM_PRECISION: scale_mode {which} of 32 bits: expected 8 or 16 bits")
    shift_left = _LEFT_SHIFT[element]
    rounded = operation.field("IFM_PRECISION", "round_mode")
    if rounded != DOUBLE:
        raise operation.refuse(f"NPU_SET_IFM_PRECISION: round_mode {rounded}: expected {DOUBLE}")
    shift = operation.field("OPA_SCALE", "shift") + shift_left

    def scaled(values: NDArray[np.int64]) -> NDArray[np.int64]:
        return requantise(values << shift_left, factor, shift, DOUBLE)

    return (scaled(one), two << shift_left - 1) if which == 1 else (one << shift_left - 1, scaled(two))


def _one(operation: Operation, result: Result, mode: str, values: NDArray[np.int64]) -> NDArray[np.int64]:
    if mode == "CLZ":
        low = (values & 2 * _WORD - 1).astype(np.float64)
        return 32 - np.frexp(low)[1].astype(np.int64)
    if mode == "ABS":
        return _scaled(operation, result, np.abs(values))
    return np.where(values < 0, _scaled(operation, result, values), values)


def _shifted(operation: Operation, result: Result, mode: str, values: NDArray[np.int64], shifts: NDArray[np.int64]) -> NDArray[np.int64]:
    if shifts.min() < 0 or shifts.max() > 31:
        raise operation.refuse(f"a shift of {shifts.min()} to {shifts.max()}: expected 0 to 31")
    if mode == "SHL":
        out = values << shifts
        if out.min() < -_WORD or out.max() >= _WORD:
            raise operation.refuse("a value shifted beyond 32 bits: what the part does then is not public")
        return out
    if result.round_mode == TRUNCATE:
        return values >> shifts
    if result.round_mode == NATURAL:
        return (values + (np.int64(1) << shifts >> 1)) >> shifts
    half = np.int64(1) << shifts >> 1
    return (values + half - ((values < 0) & (shifts > 0))) >> shifts
