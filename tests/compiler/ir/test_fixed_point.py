"""Rounding in fixed point: the formula and what FIXPIPE does, beside TFLite's C in plain integers."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compiler.ir.quantised import fixed_point, linear
from compiler.ir.quantised.parameters import Quantisation
from simulator.npu.errors import BadInputError
from simulator.npu.fixed_point import scale_fixed_point
from simulator.npu.machine import Machine
from simulator.npu.machine_file import load_machine
from tests.messages import naming

LEAST, MOST = -(2**31), 2**31 - 1


def divided_as_c(a: int, b: int) -> int:
    """C's /: towards zero."""
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def tflite(x: int, scale: float) -> int:
    """QuantizeMultiplier and MultiplyByQuantizedMultiplier, statement by statement; a left shift that int32 does not hold saturates."""
    mantissa, shift = math.frexp(scale)
    m = round(mantissa * (1 << 31))
    if m == 1 << 31:
        m, shift = m // 2, shift + 1
    if shift < -31:
        m, shift = 0, 0
    left, right = max(shift, 0), max(-shift, 0)
    a = min(max(x << left, LEAST), MOST)
    product = a * m
    nudge = 1 << 30 if product >= 0 else 1 - (1 << 30)
    high = divided_as_c(product + nudge, 1 << 31)
    mask = (1 << right) - 1
    threshold = (mask >> 1) + (1 if high < 0 else 0)
    return (high >> right) + (1 if high & mask > threshold else 0)


SUMS = st.one_of(st.integers(LEAST, MOST), st.integers(-(1 << 12), 1 << 12), st.sampled_from([LEAST, MOST, 0, -1, 1]))
# powers of two and their halves and thirds put many products next to a half
SCALES = st.one_of(
    st.floats(2.0**-40, 2.0**20, width=32),
    st.builds(
        lambda m, e: float(np.float32(math.ldexp(m, e))),
        st.sampled_from([1.0, 1.5, 1.25, 1 + 2.0**-23, 2 - 2.0**-23]),
        st.integers(-40, 18),
    ),
)


@given(st.lists(SUMS, min_size=1, max_size=20), SCALES)
def test_both_spellings_are_tflites(sums: list[int], scale: float) -> None:
    x, s = np.array(sums, np.int32), np.array([scale], np.float32)
    expected = [tflite(each, scale) for each in sums]
    assert fixed_point.multiply_by_multiplier(x.astype(np.int64), *fixed_point.quantize_multiplier(s)).tolist() == expected
    assert scale_fixed_point(x, s).tolist() == expected


@pytest.mark.parametrize(
    ("x", "scale", "expected"),
    [
        (1, 0.5, 1), (-1, 0.5, 0),  # of one rounding, at the point: a half up
        (2, 0.25, 1), (-2, 0.25, -1),  # of the second: a half away from zero
        (3, 0.125, 1), (5, 0.25, 2), (-3, 0.125, 0),  # two roundings: 0.375 becomes 0.5, and that 1; 1.25 becomes 1.5, and that 2
        (MOST, 2.0, 1 << 30), (LEAST, 4.0, -(1 << 30)),  # the sum saturates before the product, far beyond 8 bits
        (MOST, 2.0**-33, 0), (7, 1.0, 7),
    ],
)  # fmt: skip
def test_halves_by_hand(x: int, scale: float, expected: int) -> None:
    assert scale_fixed_point(np.array([x], np.int32), np.array([scale], np.float32)).tolist() == [expected]


@given(st.lists(SUMS, min_size=1, max_size=20), st.floats(2.0**-30, 4.0, width=32), st.integers(-128, 127))
def test_integers_differ_from_floats_by_one_step(sums: list[int], scale: float, zero: int) -> None:
    x, s, q = np.array(sums, np.int32), np.array([scale], np.float32), Quantisation.of(np.float32(1), np.int8(zero), np.int8)
    mine, theirs = fixed_point.requantize(x, s, q), linear.requantize(x, s, q)
    assert mine.dtype == np.int8
    assert np.abs(mine.astype(int) - theirs).max() <= 1


def test_channels_have_their_own_scales() -> None:
    x = np.arange(-50, 50, dtype=np.int32).reshape(1, 4, 5, 5)
    s = np.array([0.5, 0.25, 1.5, 3.0], np.float32)[:, None, None]
    q = Quantisation.of(np.float32(1), np.uint8(3), np.uint8)
    expected = [min(max(tflite(int(v), float(s[c, 0, 0])) + 3, 0), 255) for c in range(4) for v in x[0, c].reshape(-1)]
    assert fixed_point.requantize(x, s, q).reshape(-1).tolist() == expected


def test_machine_without_floats_is_named() -> None:
    ethos = load_machine("ethos-u65-512")
    assert ethos.rounding == "fixed_point"
    floats = load_machine("ethos-u65-512:rounding=float")
    assert floats.digest != ethos.digest
    assert "rounding" not in floats.model_dump()
    assert Machine.model_validate(ethos.model_dump(mode="json")) == ethos
    with pytest.raises(BadInputError, match=naming("fixed_point", "float16, float32, int8")):
        load_machine("edge:rounding=fixed_point")
