"""Kernels that are compiled once for all callers."""

from __future__ import annotations

import numpy as np
from numba import njit

from compiler.instructions.builders import Ints, compile_once


@compile_once
@njit
def _scaled(out: Ints, at: int, factor: int, offset: int) -> int:
    out[at] = at * factor + offset
    return at + 1


@njit
def _fill(out: Ints) -> int:
    at = _scaled(out, 0, 5, 0)
    at = _scaled(out, at, 7, at - 1)
    return int(_scaled(out, at, at, offset=3))


def test_constant_arguments_make_no_kernels_of_their_own() -> None:
    out = np.zeros(3, np.int64)
    assert _fill(out) == 3
    assert out.tolist() == [0, 7, 7]
    assert len(_scaled.signatures) == 1
