"""Which words of a record go with which data types, as data: an entry says what is wrong, and why."""

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
"""Of n records: int32 [n] of a word.  A rule asks for those that it is about: a record is two lines of a cache."""

_BYTES, _FLOATS = (np.array([dtype in of for dtype in DataType]) for of in (BYTES, FLOATS))
_LEAST = np.array([0 if dtype == DataType.uint8 else -128 for dtype in DataType])  # of what 8 bits hold, by data type
_MORE = 255


class TypeRule(NamedTuple):
    """bad: bool [n] of n records, whose DTYPE is one of `DataType`."""

    bad: Callable[[Words], Flags]
    why: str


def _bytes(w: Words) -> Flags:
    return _BYTES[w(isa.DTYPE)]


def _floats(w: Words) -> Flags:
    return _FLOATS[w(isa.DTYPE)]


def _any(w: Words, first: int, last: int) -> Flags:
    """Whether one of the words [first, last] says something."""
    return np.logical_or.reduce([w(word) != 0 for word in range(first, last + 1)])


def _integers(w: Words) -> Flags:
    """Of a FIXPIPE's sums."""
    return w(isa.F_SUMS) != 0


def _wrong_right(w: Words, word: int) -> Flags:
    right = w(word)
    return np.where(_bytes(w), (right != DataType.int8) & (right != DataType.uint8), right != 0)


def _wrong_residual(w: Words) -> Flags:
    kind = w(isa.F_RTYPE)
    of_bytes, of_floats = (kind != DataType.int8) & (kind != DataType.uint8), (kind != DataType.float16) & (kind != DataType.float32)
    of_sums = kind != DataType.int32
    others = np.where(_integers(w), of_sums & (of_bytes | ~_bytes(w)), of_floats)
    return np.where(w(isa.S2) == -1, kind != 0, others)


def _wrong_sums(w: Words) -> Flags:
    return np.where(_integers(w), w(isa.F_SUMS) != DataType.int32, ~_floats(w))


def _beyond(w: Words) -> Flags:
    """ZERO, LOW or HIGH is not of the result's 8 bits."""
    least = _LEAST[w(isa.DTYPE)]
    words = range(isa.F_ZERO, isa.F_HIGH + 1)
    return _bytes(w) & np.logical_or.reduce([(w(word) < least) | (w(word) > least + _MORE) for word in words])


_RIGHT = "right must be int8 or uint8 where the left operand is, else 0"
TYPE_RULES: dict[tuple[Op, ...], tuple[TypeRule, ...]] = {
    (Op.IM2COL, Op.FRACTAL, Op.MMAD_IM2COL): (
        TypeRule(lambda w: ~_bytes(w) & (w(isa.PAD) != -1), "pad is of int8 and uint8; others have -1, zero"),
    ),
    (Op.MMAD,): (TypeRule(partial(_wrong_right, word=isa.M_RIGHT), _RIGHT),),
    (Op.MMAD_IM2COL,): (TypeRule(partial(_wrong_right, word=isa.W_RIGHT), _RIGHT),),
    (Op.FIXPIPE,): (
        TypeRule(_wrong_sums, "sums must be int32, or 0 (float32) where the result is a float"),
        TypeRule(lambda w: ~_integers(w) & _any(w, isa.F_SCALE, isa.F_HIGH), "scale, zero, low and high are of int32 sums"),
        TypeRule(
            _wrong_residual,
            "rtype must be float16 or float32 of float32 sums, int32 of int32 sums, int8 or uint8 of a result of 8 bits, 0 without one",
        ),
        TypeRule(
            lambda w: (w(isa.F_RTYPE) != DataType.int8) & (w(isa.F_RTYPE) != DataType.uint8) & _any(w, isa.F_OWN, isa.F_LAST),
            "own, other, fixed and last are of a residual of 8 bits",
        ),
        TypeRule(lambda w: _bytes(w) & (w(isa.F_SCALE) < 0), "a result of 8 bits needs a scale"),
        TypeRule(lambda w: (w(isa.DTYPE) == DataType.int32) & (w(isa.F_SCALE) != -1), "a result of int32 has no scale, which is -1"),
        TypeRule(_beyond, "zero, low and high must be of the result's type"),
        TypeRule(lambda w: w(isa.F_LOW) > w(isa.F_HIGH), "low must not exceed high"),
        TypeRule(lambda w: ~_bytes(w) & _any(w, isa.F_ZERO, isa.F_HIGH), "zero, low and high are of a result of 8 bits"),
        TypeRule(lambda w: ~_floats(w) & (w(isa.F_ACT) != 0), "an activation is of a result that is a float"),
    ),
}
"""By opcode, in the order in which they are asked."""
