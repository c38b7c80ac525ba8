"""Rules between words of a record and its data types, as data: each entry has a check and its message.

The types of the right operand and of the sums are words of their own; 0 means the float default, so streams of floats do not change.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.npu import isa
from simulator.npu.isa import Op
from simulator.npu.parts import BYTES, FLOATS, DataType

Flags = NDArray[np.bool_]
Words = Callable[[int], NDArray[np.int32]]
"""Reads one word of n records, int32 [n].  A rule reads only the words that it needs: a record is two cache lines."""

_BYTES, _FLOATS = (np.array([dtype in of for dtype in DataType]) for of in (BYTES, FLOATS))
_LEAST = np.array([0 if dtype == DataType.uint8 else -128 for dtype in DataType])  # least value of 8 bits, by data type
_MORE = 255  # greatest minus least value of 8 bits


class TypeRule(NamedTuple):
    """Rule.  bad: bool [n], the records that break the rule, among n records whose DTYPE is a `DataType`."""

    bad: Callable[[Words], Flags]
    why: str


def _bytes(read: Words) -> Flags:
    return _BYTES[read(isa.DTYPE)]


def _floats(read: Words) -> Flags:
    return _FLOATS[read(isa.DTYPE)]


def _nonzero(read: Words, first: int, last: int) -> Flags:
    """Records in which one of the words [first, last] is not 0."""
    return np.logical_or.reduce([read(word) != 0 for word in range(first, last + 1)])


def _integers(read: Words) -> Flags:
    """FIXPIPE records with integer sums."""
    return read(isa.F_SUMS) != 0


def _wrong_right(read: Words, word: int) -> Flags:
    right = read(word)
    return np.where(_bytes(read), (right != DataType.int8) & (right != DataType.uint8), right != 0)


def _wrong_residual(read: Words) -> Flags:
    kind = read(isa.F_RTYPE)
    of_bytes, of_floats = (kind != DataType.int8) & (kind != DataType.uint8), (kind != DataType.float16) & (kind != DataType.float32)
    of_sums = kind != DataType.int32
    wrong_kind = np.where(_integers(read), of_sums & (of_bytes | ~_bytes(read)), of_floats)
    return np.where(read(isa.S2) == -1, kind != 0, wrong_kind)


def _wrong_sums(read: Words) -> Flags:
    return np.where(_integers(read), read(isa.F_SUMS) != DataType.int32, ~_floats(read))


def _out_of_range(read: Words) -> Flags:
    """FIXPIPE records whose ZERO, LOW or HIGH is outside the range of an 8-bit result."""
    least = _LEAST[read(isa.DTYPE)]
    words = range(isa.F_ZERO, isa.F_HIGH + 1)
    return _bytes(read) & np.logical_or.reduce([(read(word) < least) | (read(word) > least + _MORE) for word in words])


_RIGHT = "right must be int8 or uint8 where the left operand is, else 0"
TYPE_RULES: dict[tuple[Op, ...], tuple[TypeRule, ...]] = {
    (Op.IM2COL, Op.FRACTAL, Op.MMAD_IM2COL): (
        TypeRule(lambda read: ~_bytes(read) & (read(isa.PAD) != -1), "pad is of int8 and uint8; others have -1, zero"),
    ),
    (Op.MMAD,): (TypeRule(partial(_wrong_right, word=isa.M_RIGHT), _RIGHT),),
    (Op.MMAD_IM2COL,): (TypeRule(partial(_wrong_right, word=isa.W_RIGHT), _RIGHT),),
    (Op.FIXPIPE,): (
        TypeRule(_wrong_sums, "sums must be int32, or 0 (float32) where the result is a float"),
        TypeRule(lambda read: ~_integers(read) & _nonzero(read, isa.F_SCALE, isa.F_HIGH), "scale, zero, low and high are of int32 sums"),
        TypeRule(
            _wrong_residual,
            "rtype must be float16 or float32 of float32 sums, int32 of int32 sums, int8 or uint8 of a result of 8 bits, 0 without one",
        ),
        TypeRule(
            lambda read: (
                (read(isa.F_RTYPE) != DataType.int8) & (read(isa.F_RTYPE) != DataType.uint8) & _nonzero(read, isa.F_OWN, isa.F_LAST)
            ),
            "own, other, fixed and last are of a residual of 8 bits",
        ),
        TypeRule(lambda read: _bytes(read) & (read(isa.F_SCALE) < 0), "a result of 8 bits needs a scale"),
        TypeRule(
            lambda read: (read(isa.DTYPE) == DataType.int32) & (read(isa.F_SCALE) != -1), "a result of int32 has no scale, which is -1"
        ),
        TypeRule(_out_of_range, "zero, low and high must be of the result's type"),
        TypeRule(lambda read: read(isa.F_LOW) > read(isa.F_HIGH), "low must not exceed high"),
        TypeRule(lambda read: ~_bytes(read) & _nonzero(read, isa.F_ZERO, isa.F_HIGH), "zero, low and high are of a result of 8 bits"),
        TypeRule(lambda read: ~_floats(read) & (read(isa.F_ACT) != 0), "an activation is of a result that is a float"),
    ),
}
"""Rules by opcode, in the order of checking."""
