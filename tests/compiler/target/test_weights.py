"""Packed weights, read back block by block as the machine does, are the convolution's own."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from compiler.ir.layout import Placement
from compiler.ir.operators import Conv
from compiler.target.weights import dense_weights, effective_groups, pack_channel_vector, pack_conv, pack_lanes, pack_pixels
from simulator.npu.parts import FRACTALS, DataType


def conv(c_out: int, c_in: int, kernel: tuple[int, int], groups: int = 1) -> Conv:
    rng = np.random.default_rng(c_out)
    weights = rng.standard_normal((c_out, c_in // groups, *kernel)).astype(np.float16).astype(np.float32)
    return Conv("c", "x", "y", weights, rng.standard_normal(c_out).astype(np.float32), groups=groups)


def place(lanes: NDArray[np.int64] | range, c0: int) -> Placement:
    values = tuple(int(lane) for lane in lanes)
    return Placement("s", 0, -(-(max(values) + 1) // 16) * 16 // c0, values)


def unpacked(data: NDArray[np.uint8], dtype: DataType, groups: int, n1: int, c1: int, kernel: tuple[int, int]) -> NDArray[np.float32]:
    """[groups * n1 * 16, groups * c1 * C0, kh, kw] from blocks [groups][n1][(c1, ky, kx)][16] of C0 values."""
    c0 = dtype.lanes
    kind = np.float16 if dtype == DataType.float16 else np.float32
    blocks = data.view(kind).reshape(groups, n1, c1, *kernel, 16, c0)
    out = np.zeros((groups * n1 * 16, groups * c1 * c0, *kernel), np.float32)
    for g in range(groups):
        for n in range(n1):
            for c in range(c1):
                rows = slice((g * n1 + n) * 16, (g * n1 + n + 1) * 16)
                columns = slice((g * c1 + c) * c0, (g * c1 + c + 1) * c0)
                out[rows, columns] = blocks[g, n, c].transpose(2, 3, 0, 1)
    return out


@pytest.mark.parametrize("dtype", [DataType.float16, DataType.float32])
@pytest.mark.parametrize(
    ("c_out", "c_in", "kernel", "groups"),
    [(20, 7, (3, 2), 1), (32, 32, (1, 1), 1), (40, 40, (3, 3), 40), (96, 64, (1, 3), 2), (12, 18, (2, 2), 3), (1104, 304, (1, 1), 1)],
)
def test_round_trip(c_out: int, c_in: int, kernel: tuple[int, int], groups: int, dtype: DataType) -> None:
    c = conv(c_out, c_in, kernel, groups)
    rng = np.random.default_rng(1)
    orders = [(range(c_in), range(c_out))]
    if groups == 1:  # any lanes with gaps, as behind a shuffle and a Concat
        orders.append((rng.permutation(c_in + 9)[:c_in], rng.permutation(c_out + 30)[:c_out]))
    for x_lanes, y_lanes in orders:
        x, y = place(x_lanes, dtype.lanes), place(y_lanes, dtype.lanes)
        fractal = FRACTALS[dtype]
        count = effective_groups(c, x, y, dtype, fractal)
        n1, c1 = y.planes * dtype.lanes // 16 // count, x.planes // count
        whole = dense_weights(c.weights, groups)
        data = np.full(count * n1 * c1 * kernel[0] * kernel[1] * 16 * 32, 0xFF, np.uint8)  # every byte is written
        pack_conv(whole, x, y, y.planes * dtype.lanes, count, dtype, fractal, dtype.lanes, data)
        dense = unpacked(data, dtype, count, n1, c1, kernel)
        assert (dense[np.ix_(y.lanes, x.lanes)] == whole).all()
        assert np.abs(dense).sum() == pytest.approx(np.abs(c.weights).sum(dtype=np.float64), rel=1e-5)  # the rest is zero


def test_groups_on_paper() -> None:
    """What counts is whether groups fill whole planes and whole blocks of 16 output channels."""

    def groups(c_out: int, c_in: int, count: int, dtype: DataType = DataType.float16) -> int:
        x, y = place(range(c_in), dtype.lanes), place(range(c_out), dtype.lanes)
        return effective_groups(conv(c_out, c_in, (1, 1), count), x, y, dtype, FRACTALS[dtype])

    assert groups(96, 64, 2) == 2  # 32 in, 48 out: 2 planes, 3 blocks each
    assert groups(64, 64, 64) == 4  # depthwise: a product of 16 channels per plane
    assert groups(64, 64, 64, DataType.float32) == 4  # C0 = 8: still 16 output channels at a time
    assert groups(64, 64, 64, DataType.int8) == 2  # C0 = 32: whole planes of the result, two fractals each
    assert groups(12, 18, 3) == 1  # groups within one plane
    assert groups(48, 96, 3) == 3
    assert groups(72, 72, 3) == 1  # 24 channels each: a plane is shared by two groups
    shuffled = tuple(np.arange(64).reshape(2, 32).T.reshape(-1).tolist())
    y = Placement("s", 0, 4, shuffled)
    x, dtype = place(range(64), 16), DataType.float16
    assert effective_groups(conv(64, 64, (1, 1), 2), x, y, dtype, FRACTALS[dtype]) == 1  # every output block meets both groups


def test_four_lane_image() -> None:
    """Blocks hold four kernel positions of four lanes; what is behind the last position is zero."""
    c = conv(5, 3, (3, 3))
    x, y, dtype = Placement("s", 0, 1, (2, 0, 1)), place(range(5), 16), DataType.float16
    data = np.full(3 * 16 * 32, 0xFF, np.uint8)
    pack_conv(c.weights, x, y, 16, 1, dtype, FRACTALS[dtype], 4, data)
    blocks = data.view(np.float16).reshape(1, 3, 16, 4, 4)  # [n1][k1][16][position][lane]
    for channel in range(5):
        for tap in range(9):
            found = blocks[0, tap // 4, channel, tap % 4]
            assert (found[[2, 0, 1]] == c.weights[channel, :, tap // 3, tap % 3]).all()
            assert found[3] == 0
    assert not blocks[0, 2, :, 1:].any()
    assert not blocks[:, :, 5:].any()


def test_biases_lanes_and_pixels() -> None:
    y = Placement("s", 0, 2, (3, 0, 17))
    values = np.array([1, 2, 3], np.float32)
    bias = pack_channel_vector(values, y, 32, DataType.float32).view(np.float32)
    assert bias.size == 32
    assert (bias[[3, 0, 17]] == values).all()
    assert bias.sum() == 6
    lanes = pack_lanes(values, y, DataType.float16, padding=-7.0).view(np.float16)
    assert (lanes[[3, 0, 17]] == values).all()
    assert (np.delete(lanes, [3, 0, 17]) == -7).all()
    pixels = pack_pixels(np.array([[1, 2], [3, 4]], np.float32), DataType.float32).view(np.float32).reshape(4, 8)
    assert (pixels == np.array([[1], [2], [3], [4]])).all()
