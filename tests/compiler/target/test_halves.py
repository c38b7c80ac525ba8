"""float16 as numpy rounds it, bit by bit."""

from __future__ import annotations

import numpy as np
import pytest

from compiler.target.weights import halves

# where rounding differs: below and around the least normal number, ties, the largest number, infinity, no numbers
EDGES = (0x0000_0000, 0x0000_0001, 0x3300_0000, 0x3380_0000, 0x387F_E000, 0x3880_0000, 0x3F80_1000, 0x477F_E000, 0x477F_F000, 0x7F80_0000)


@pytest.mark.parametrize("sign", [0, 1 << 31])
def test_bits_are_numpys(sign: int) -> None:
    near = (np.array(EDGES, np.int64)[:, None] + np.arange(-(1 << 14), 1 << 14)).ravel()
    spread = np.random.default_rng(0).integers(0, 1 << 31, 1 << 20)
    bits = (np.concatenate([near[(near >= 0) & (near < 1 << 31)], spread, np.arange(0, 1 << 31, 4093)]) + sign).astype(np.uint32)
    values = bits.view(np.float32)
    with np.errstate(all="ignore"):
        expected = values.astype(np.float16)
    assert (halves(values).view(np.uint16) == expected.view(np.uint16)).all()


def test_any_shape_and_stride() -> None:
    values = np.random.default_rng(1).random((6, 4, 3), np.float32)
    for given in (values, values.T, values[::2, 1:], values[:0]):
        assert halves(given).shape == given.shape
        assert (halves(given) == given.astype(np.float16)).all()
