"""The formulas against onnxruntime's kernels: no value differs."""

from __future__ import annotations

import numpy as np
import pytest

from compiler.ir.quantised import elementwise
from compiler.ir.quantised.parameters import Quantisation
from compiler.ir.quantised.rounding import saturate, to_int32
from simulator.npu.fused import fma
from tests.messages import naming
from tests.quantised_kernels import CASES, Batch, near, single


@pytest.mark.parametrize("group", CASES)
def test_no_value_differs_from_onnxruntime(group):
    case, count = CASES[group]
    rng, batch = np.random.default_rng(26), Batch()
    for _ in range(count):
        case(batch, rng)
    assert batch.differing() == []


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("group", CASES)
def test_long_sweep_equals_onnxruntime(group, seed):
    case, count = CASES[group]
    rng, batch = np.random.default_rng([26, seed]), Batch()
    for _ in range(2 * count):
        case(batch, rng)
    assert batch.differing() == []


def every_pair(rng, count=60):
    """Scales near halves and every pair of integers: what tells one order of operations from another."""
    x = np.arange(256).astype(np.uint8)
    for _ in range(count):
        yield x[:, None], x[None], [single(rng, np.uint8, near(rng, 0.01)) for _ in range(3)]


def test_scales_tell_fused_sum_from_two_roundings():
    differing = 0
    for a, b, (a_q, b_q, y_q) in every_pair(np.random.default_rng(1)):
        (sa, za), (sb, zb), (sy, zy) = (q.single("") for q in (a_q, b_q, y_q))
        ra, rb = sa / sy, sb / sy
        fixed = np.float32(zy) - (ra * np.float32(za) + rb * np.float32(zb))
        unfused = saturate(to_int32(a.astype(np.float32) * ra + (b.astype(np.float32) * rb + fixed)), y_q)
        differing += int((unfused != elementwise.add(np.broadcast_to(a, (256, 256)), a_q, np.broadcast_to(b, (256, 256)), b_q, y_q)).sum())
    assert differing > 100


def test_fma_rounds_once():
    rng = np.random.default_rng(2)
    a, b = (rng.integers(2**23, 2**24, 20000).astype(np.float32) for _ in range(2))
    c = -np.asarray(a.astype(np.float64) * b, np.float32) + rng.choice([0, 0.5, -0.25], 20000).astype(np.float32)
    for i, found in enumerate(fma(a, b, c)):
        exact = int(a[i]) * int(b[i]) * 4 + int(float(c[i]) * 4)  # an integer of quarters below 2^53 rounds once
        assert found == np.float32(exact / 4)
    tiny = np.float32(2.0**-60)  # 1 + 2^-24 is half way between two float32; whatever is added decides, however small
    assert fma(np.float32(1), np.float32(1 + 2.0**-23), np.float32(2.0**-24)) == np.float32(1 + 2.0**-22)
    assert fma(np.asarray(np.float32(1 + 2.0**-12)), np.float32(1 + 2.0**-12), -tiny) == np.float32(1 + 2.0**-11)
    assert fma(np.asarray(np.float32(1 + 2.0**-12)), np.float32(1 + 2.0**-12), tiny) == np.float32(1 + 2.0**-11 + 2.0**-23)


def test_conversion_beyond_int32_is_as_on_x86():
    x = np.array([2.5, -2.5, 3.5, 2.0**31, -(2.0**31), np.nan, np.inf], np.float32)
    assert to_int32(x).tolist() == [2, -2, 4, -(2**31), -(2**31), -(2**31), -(2**31)]


def test_tensor_has_one_scale_where_kernels_have_one():
    q = Quantisation.of(np.ones(3, np.float32), np.zeros(3, np.uint8), np.uint8, (2, 3), 1)
    x = np.zeros((2, 3), np.uint8)
    with pytest.raises(Exception, match=naming("a", "3 scales", "axis 1")):
        elementwise.add(x, q, x, q, q)
