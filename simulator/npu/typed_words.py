"""Which words of a record go with which data types, as data: an entry says what is wrong, and why."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.npu import isa
from simulator.npu.isa import Op
from simulator.npu.parts import BYTES, FLOATS, DataType

Records = NDArray[np.int32]
Flags = NDArray[np.bool_]

_LEAST = np.array([0 if dtype == DataType.uint8 else -128 for dtype in DataType])  # of what 8 bits hold, by data type
_MORE = 255


class TypeRule(NamedTuple):
    """bad: bool [n] of n records, int32 [n, WORDS]."""

    bad: Callable[[Records], Flags]
    why: str


def _of(records: Records, *types: DataType) -> Flags:
    return np.isin(records[:, isa.DTYPE], types)


def _any(records: Records, first: int, last: int, absent: int = 0) -> Flags:
    """Whether one of the words [first, last] says something."""
    found: Flags = (records[:, first : last + 1] != absent).any(axis=1)
    return found


def _integers(records: Records) -> Flags:
    """Of a FIXPIPE's sums."""
    found: Flags = records[:, isa.F_SUMS] != 0
    return found


def _wrong_right(records: Records) -> Flags:
    right = np.where(records[:, isa.OP] == Op.MMAD_IM2COL, records[:, isa.W_RIGHT], records[:, isa.M_RIGHT])
    return np.where(_of(records, *BYTES), ~np.isin(right, BYTES), right != 0)


def _wrong_sums(records: Records) -> Flags:
    return np.where(_integers(records), records[:, isa.F_SUMS] != DataType.int32, ~_of(records, *FLOATS))


def _beyond(records: Records) -> Flags:
    """ZERO, LOW or HIGH is not of the result's 8 bits."""
    least = _LEAST[records[:, isa.DTYPE], None]
    words = records[:, isa.F_ZERO : isa.F_HIGH + 1]
    return _of(records, *BYTES) & np.any((words < least) | (words > least + _MORE), axis=1)


TYPE_RULES: dict[tuple[Op, ...], tuple[TypeRule, ...]] = {
    (Op.IM2COL, Op.FRACTAL, Op.MMAD_IM2COL): (
        TypeRule(lambda r: ~_of(r, *BYTES) & (r[:, isa.PAD] != -1), "pad is of int8 and uint8; others have -1, zero"),
    ),
    (Op.MMAD, Op.MMAD_IM2COL): (TypeRule(_wrong_right, "right must be int8 or uint8 where the left operand is, else 0"),),
    (Op.FIXPIPE,): (
        TypeRule(_wrong_sums, "sums must be int32, or 0 (float32) where the result is a float"),
        TypeRule(lambda r: ~_integers(r) & _any(r, isa.F_SCALE, isa.F_HIGH), "scale, zero, low and high are of int32 sums"),
        TypeRule(lambda r: _integers(r) & (r[:, isa.S2] != -1), "a residual is of float32 sums"),
        TypeRule(lambda r: _of(r, *BYTES) & (r[:, isa.F_SCALE] < 0), "a result of 8 bits needs a scale"),
        TypeRule(lambda r: _of(r, DataType.int32) & (r[:, isa.F_SCALE] != -1), "a result of int32 has no scale, which is -1"),
        TypeRule(_beyond, "zero, low and high must be of the result's type"),
        TypeRule(lambda r: r[:, isa.F_LOW] > r[:, isa.F_HIGH], "low must not exceed high"),
        TypeRule(lambda r: ~_of(r, *BYTES) & _any(r, isa.F_ZERO, isa.F_HIGH), "zero, low and high are of a result of 8 bits"),
        TypeRule(lambda r: ~_of(r, *FLOATS) & (r[:, isa.F_ACT] != 0), "an activation is of a result that is a float"),
    ),
}
"""By opcode, in the order in which they are asked."""
