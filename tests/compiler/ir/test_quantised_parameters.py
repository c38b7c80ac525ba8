"""Scales, zero points and sums that cannot be right are refused in one line."""

from __future__ import annotations

import numpy as np
import pytest

from compiler.ir.quantised.parameters import Quantisation
from compiler.ir.quantised.products import MAX_SUM, SlidingWindow, check_bound, conv_sums
from simulator.npu.errors import BadInputError, UnsupportedError
from tests.messages import naming

F = np.float32
ONE, EIGHT = F(0.5), np.full(8, 0.5, np.float32)

# scale, zero point, type, shape, axis, what the error says
REFUSED = [
    (F(0), np.uint8(0), np.uint8, (), None, "w: scale 0; expected a finite number above 0"),
    (F(-0.5), np.uint8(0), np.uint8, (), None, "w: scale -0.5; expected a finite number above 0"),
    (F("nan"), np.uint8(0), np.uint8, (), None, "w: scale nan; expected a finite number above 0"),
    (F("inf"), np.uint8(0), np.uint8, (), None, "w: scale inf; expected a finite number above 0"),
    (np.float64(0.5), np.uint8(0), np.uint8, (), None, "w: scale of type float64; expected float32 or float16"),
    (EIGHT[:3], None, np.int8, (8, 4), 0, "w: 3 scales for 8 channels on axis 0; expected 1 or 8"),
    (EIGHT, np.zeros(3, np.int8), np.int8, (8, 4), 0, "w: 3 zero points for 8 channels on axis 0; expected 1 or 8"),
    (EIGHT, None, np.int8, (8, 4), None, "w: several scales or zero points; expected one of each for the whole tensor"),
    (EIGHT, None, np.int8, (8, 4), 2, "w: scales along axis 2; expected an axis of the shape [8, 4]"),
    (EIGHT.reshape(2, 4), None, np.int8, (8, 4), 0, "w: scale or zero point of shape [2, 4]; expected one axis at most"),
    (ONE, np.int8(0), np.uint8, (), None, "w: zero point of type int8; expected that of the tensor, uint8"),
    (ONE, F(0), np.uint8, (), None, "w: zero point of type float32; expected that of the tensor, uint8"),
    (ONE, 300, np.uint8, (), None, "w: zero point 300; expected 0 to 255, the range of uint8"),
    (ONE, -129, np.int8, (), None, "w: zero point -129; expected -128 to 127, the range of int8"),
    (ONE, np.int32(5), np.int32, (), None, "w: zero point 5 of int32; expected 0"),
    (ONE, None, np.int16, (), None, "w: quantised as int16; expected int8, uint8, or int32 of a bias"),
]


@pytest.mark.parametrize(("scale", "zero", "dtype", "shape", "axis", "said"), REFUSED, ids=[row[-1][3:40] for row in REFUSED])
def test_what_cannot_be_right_is_refused(scale, zero, dtype, shape, axis, said):
    with pytest.raises(BadInputError) as caught:
        Quantisation.of(scale, zero, dtype, shape, axis, "w")
    assert str(caught.value) == said


def test_several_nonzero_scales_share_one_zero_point():
    q = Quantisation.of(EIGHT, np.int8(3), np.int8, (4, 8), -1)
    assert (q.axis, q.zero_point.tolist(), q.dtype) == (1, [3] * 8, np.int8)
    assert Quantisation.of(ONE, None, np.uint8).single("x") == (ONE, 0)


def test_scales_lie_along_the_output_channels():
    q = Quantisation.of(EIGHT, None, np.int8, (4, 8), 1)
    with pytest.raises(BadInputError, match=naming("conv", "axis 1", "axis 0")):
        q.of_channels(0, "conv")
    assert q.of_channels(1, "matmul") is q


def test_sum_bound_is_reached_and_beyond_int32_refused():
    x_q, w_q = Quantisation.of(ONE, np.uint8(0), np.uint8), Quantisation.of(ONE, np.int8(0), np.int8)
    w = np.array([[[[127]], [[-128]]], [[[1]], [[2]]]], np.int8)
    bias = np.array([5, -7], np.int32)
    assert check_bound(x_q, w, w_q, 0, bias, "conv") == 255 * 255 + 5
    x = np.array([255, 0], np.uint8).reshape(1, 2, 1, 1)
    assert conv_sums(x, x_q, w, w_q, SlidingWindow((1, 1), (1, 1), (0,) * 4, (1, 1)), bias).reshape(-1).tolist() == [255 * 127 + 5, 255 - 7]
    bias[0] = MAX_SUM - 255 * 255
    assert check_bound(x_q, w, w_q, 0, bias, "conv") == MAX_SUM
    bias[0] += 1
    with pytest.raises(UnsupportedError, match=naming("conv", "2,147,483,648", "2,147,483,647", "int32")):
        check_bound(x_q, w, w_q, 0, bias, "conv")
