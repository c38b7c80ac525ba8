"""Quantised operators as programs, to the integer: what integers are for, from text to values."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import pytest

from simulator.exact_onnxruntime import exact_session
from simulator.functional import execute
from simulator.host_layout import load_input
from simulator.npu.asm import parse
from simulator.npu.container import Container, Variant
from simulator.npu.container_file import decode, encode
from simulator.npu.errors import BadInputError
from simulator.npu.level import NO_CONTENTION
from simulator.npu.parts import BLOCK_BYTES, DataType
from simulator.npu.program import DdrBuffer, MemoryMap
from simulator.session import InferenceSession
from simulator.timing import simulate
from tests.simulator.micro import DDR_BLOCKS, TINY, look, place, program

Array = np.ndarray


def run(text: str, *placed: tuple[int, Array]) -> Array:
    """DDR after a program without flags, whose records are done in their order."""
    ddr = np.zeros(DDR_BLOCKS * BLOCK_BYTES, np.uint8)
    for block, values in placed:
        place(ddr, block, values)
    made = program(text)
    execute(made, TINY, ddr)
    assert simulate(made, TINY, NO_CONTENTION).cycles > 0
    return ddr


def moved(to: str, source: str, blocks: int) -> str:
    engine = "MTE3" if to.startswith("DDR") else "MTE1" if source.startswith("L1") else "MTE2"
    return f"{engine} COPY {to} {source} length={blocks} count=1 count2=1 i8"


def saturated(values: Array, dtype: type) -> Array:
    limits = np.iinfo(dtype)
    return np.clip(values, limits.min, limits.max).astype(dtype)


def planes_of(x: Array) -> Array:
    """[C1][H][W][32] of bytes [C, H, W]; lanes without a channel are 0."""
    c, h, w = x.shape
    out = np.zeros((-(-c // 32) * 32, h, w), x.dtype)
    out[:c] = x
    return out.reshape(-1, 32, h, w).transpose(0, 2, 3, 1)


# a convolution -------------------------------------------------------------------------------------------------------


def onnx_qlinear_conv(x, w, bias, scales, zeros, pads, strides) -> Array:
    """By onnxruntime."""
    helper = onnx.helper
    (x_scale, w_scale, y_scale), (x_zero, y_zero) = scales, zeros
    feeds = {
        "x": x, "xs": np.float32(x_scale), "xz": x.dtype.type(x_zero), "w": w, "ws": w_scale, "wz": np.zeros(len(w), np.int8),
        "ys": np.float32(y_scale), "yz": x.dtype.type(y_zero), "b": bias,
    }  # fmt: skip
    types = {key: helper.np_dtype_to_tensor_dtype(np.asarray(value).dtype) for key, value in feeds.items()}
    constants = [onnx.numpy_helper.from_array(np.asarray(value), key) for key, value in feeds.items() if key != "x"]
    node = helper.make_node("QLinearConv", list(feeds), ["y"], pads=pads, strides=strides)
    graph = helper.make_graph(
        [node],
        "conv",
        [helper.make_tensor_value_info("x", types["x"], x.shape)],
        [helper.make_tensor_value_info("y", types["x"], None)],
        constants,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return exact_session(model).run(None, {"x": x})[0]


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
@pytest.mark.parametrize(("c", "n", "stride"), [(40, 48, 1), (32, 16, 2), (70, 32, 1)])
def test_a_convolution_is_that_of_onnxruntime(dtype: type, c: int, n: int, stride: int) -> None:
    """Zero points, a scale per channel, padding, more channels than a plane: the zero point of x goes into bias and padding."""
    rng = np.random.default_rng(c)
    h, w, k = 5, 6, 3
    x_zero, y_zero = (131, 9) if dtype is np.uint8 else (-5, 17)
    limits = np.iinfo(dtype)
    x = rng.integers(limits.min, limits.max + 1, (1, c, h, w)).astype(dtype)
    weights = rng.integers(-128, 128, (n, c, k, k)).astype(np.int8)
    bias = rng.integers(-3000, 3000, n).astype(np.int32)
    x_scale, y_scale, w_scale = np.float32(0.031), np.float32(0.4), rng.uniform(0.001, 0.02, n).astype(np.float32)
    oh, ow = (h - 1) // stride + 1, (w - 1) // stride + 1
    m, c1, n1 = oh * ow, -(-c // 32), n // 16
    mpad, taps, planes = -(-m // 16) * 16, c1 * k * k, -(-n // 32)

    wide = np.zeros((n, c1 * 32, k, k), np.int8)
    wide[:, :c] = weights
    packed = wide.reshape(n1, 16, c1, 32, k, k).transpose(0, 2, 4, 5, 1, 3)  # [N1][K1][16][32]
    folded = bias - x_zero * weights.sum(axis=(1, 2, 3), dtype=np.int32)
    scale = x_scale * w_scale / y_scale

    t = "u8" if dtype is np.uint8 else "i8"
    around = f"kh={k} kw={k} sh={stride} sw={stride} dh=1 dw=1 pt=1 pl=1"
    image, blocks, at_w, at_b, at_y = c1 * h * w, n1 * taps * 16, 300, 1900, 1920
    lines = [
        moved("L1[0]", "DDR[0]", image),
        moved("L1[400]", f"DDR[{at_w}]", blocks),
        moved("UB[0]", f"DDR[{at_b}]", 4 * n1),  # biases, then scales
    ]
    for start in range(0, taps, 5):
        size = min(5, taps - start)
        lines += [
            f"MTE1 IM2COL L0A[0] L1[0] h={h} w={w} pitch={w} plane={h * w} {around} ow={ow}"
            f" m={m} mpad={mpad} koff={start} k={size} lanes=32 pad={x_zero % 256} {t}",
            f"MTE1 COPY L0B[0] L1[{400 + start * 16}] length={size * 16} count={n1} sstride={taps * 16} dstride={size * 16} count2=1 i8",
            f"CUBE MMAD L0C[0] L0A[0] L0B[0] mpad={mpad} k={size} n1={n1} acc={int(start > 0)} right=i8 {t}",
        ]
    lines += [
        f"FIXPIPE FIXPIPE UB[64] L0C[0] UB[0] m={m} mpad={mpad} n1={n1} dplane={m} sums=i32 scale={2 * n1} zero={y_zero} "
        f"low={limits.min} high={limits.max} {t}",
        moved(f"DDR[{at_y}]", "UB[64]", planes * m),
    ]
    ddr = run("\n".join(lines), (0, planes_of(x[0])), (at_w, packed), (at_b, folded), (at_b + 2 * n1, scale))
    found = look(ddr, at_y, (planes, oh, ow, 32), dtype).transpose(0, 3, 1, 2).reshape(1, planes * 32, oh, ow)
    expected = onnx_qlinear_conv(x, weights, bias, (x_scale, w_scale, y_scale), (x_zero, y_zero), [1, 1, 1, 1], [stride, stride])
    np.testing.assert_array_equal(found[:, :n], expected)
    assert (found[:, n:] == y_zero).all()  # the half that no fractal fills
    assert 0 < np.isin(expected, [limits.min, limits.max]).mean() < 0.9  # some saturate, most do not


def test_a_first_layer_of_four_lanes() -> None:
    """Three channels, eight pixels in a block, the zero point where there is no pixel."""
    rng = np.random.default_rng(3)
    h, w, oh, ow, zero = 5, 11, 3, 6, 200
    x = rng.integers(0, 256, (1, 3, h, w)).astype(np.uint8)
    weights = rng.integers(-128, 128, (16, 3, 3, 3)).astype(np.int8)
    buffer = DdrBuffer("x", "input", 0, h * 2, (1, 3, h, w), (), (2, 0, 1), 4, 1, dtype="uint8")
    image = np.zeros(64 * BLOCK_BYTES, np.uint8)
    load_input(image, buffer, x, DataType.uint8)
    by_lane = np.zeros((16, 16, 4), np.int8)  # positions behind the ninth are padding too: weights of zero
    by_lane[:, :9, [2, 0, 1]] = weights.transpose(0, 2, 3, 1).reshape(16, 9, 3)
    packed = by_lane.reshape(16, 2, 32).transpose(1, 0, 2)  # [K1][16][8 positions of 4 lanes]
    text = f"""
    {moved("L1[0]", "DDR[0]", h * 2)}
    {moved("L1[50]", "DDR[100]", 32)}
    MTE1 IM2COL L0A[0] L1[0] h={h} w={w} pitch=2 plane={h * 2} kh=3 kw=3 sh=2 sw=2 dh=1 dw=1 pt=1 pl=1 ow={ow} m=18 mpad=32 k=2 lanes=4 pad={zero} u8
    {moved("L0B[0]", "L1[50]", 32)}
    CUBE MMAD L0C[0] L0A[0] L0B[0] mpad=32 k=2 n1=1 right=i8 u8
    FIXPIPE FIXPIPE UB[0] L0C[0] m=18 mpad=32 n1=1 dplane=18 sums=i32 scale=-1 i32
    {moved("DDR[500]", "UB[0]", 36)}
    """  # noqa: E501
    ddr = run(text, (0, image), (100, packed))
    padded = np.pad(x[0].astype(np.int64), ((0, 0), (1, 1), (1, 1)), constant_values=zero)
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(1, 2))[:, ::2, ::2]
    expected = np.einsum("cyxij,ncij->nyx", windows, weights.astype(np.int64))
    found = look(ddr, 500, (2, oh, ow, 8), np.int32).transpose(0, 3, 1, 2).reshape(16, oh, ow)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("transpose", [0, 1])
def test_a_product_of_two_activations(transpose: int) -> None:
    """(a - za)(b - zb) over the columns that there are, by FRACTAL: where one is missing, b is its zero point and adds nothing."""
    rng = np.random.default_rng(transpose)
    rows, inner, columns, a_zero, b_zero = 16, 40, 20, 13, -7
    a = rng.integers(0, 256, (rows, inner)).astype(np.uint8)
    b = rng.integers(-128, 128, (inner, columns)).astype(np.int8)
    left = np.full((2, rows, 32), 77, np.uint8)  # lanes behind the fortieth: anything
    for k in range(inner):
        left[k // 32, :, k % 32] = a[:, k]
    # transpose = 0: K over channels, N over pixels; 1: K over pixels, N over channels
    wide = np.full((64, columns), b_zero, np.int8)
    wide[:inner] = b
    if transpose:
        planes = np.zeros((1, inner, 32), np.int8)  # [plane][pixel][lane]
        planes[0, :, :columns] = b
        record = f"plane={inner} pixels={inner} k=2 n1=2 transpose=1"
    else:
        planes = wide.reshape(2, 32, columns).transpose(0, 2, 1)
        record = f"plane={columns} pixels={columns} k=2 n1=2"
    text = f"""
    {moved("L1[0]", "DDR[0]", 2 * rows)}
    {moved("L1[100]", "DDR[100]", planes.size // 32)}
    MTE1 IM2COL L0A[0] L1[0] h=1 w={rows} pitch={rows} plane={rows} kh=1 kw=1 sh=1 sw=1 dh=1 dw=1 ow={rows} m={rows} mpad={rows} k=2 lanes=32 u8
    MTE1 FRACTAL L0B[0] L1[100] {record} pad={b_zero % 256} i8
    CUBE MMAD L0C[0] L0A[0] L0B[0] mpad=16 k=2 n1=2 right=i8 u8
    FIXPIPE FIXPIPE UB[0] L0C[0] m=16 mpad=16 n1=2 dplane=16 sums=i32 scale=-1 i32
    {moved("DDR[500]", "UB[0]", 64)}
    """  # noqa: E501
    ddr = run(text, (0, left), (100, planes))
    found = look(ddr, 500, (4, rows, 8), np.int32).transpose(1, 0, 2).reshape(rows, 32)[:, :columns].astype(np.int64)
    # sums over all 64 of k, as the machine has them, the ones that are not there included
    all_a = left.transpose(1, 0, 2).reshape(rows, 64).astype(np.int64)
    corrected = found - b_zero * all_a.sum(axis=1)[:, None] - a_zero * wide.astype(np.int64).sum(axis=0) + 64 * a_zero * b_zero
    np.testing.assert_array_equal(corrected, (a.astype(np.int64) - a_zero) @ (b.astype(np.int64) - b_zero))


# results of sums -----------------------------------------------------------------------------------------------------


def requantised(sums: Array, record: str, scale: Array, dtype: str, blocks: int) -> Array:
    """DDR blocks 600.. after a FIXPIPE of sums [N1, 16 pixels, 16 channels], which are made of one product with the identity."""
    n1 = len(sums)
    # sums = 127 * high + low, of bytes: a row of the left operand is one-hot, its weights are the sums' parts
    high, low = np.divmod(sums.astype(np.int64) + 63, 127)
    low -= 63
    assert np.abs(high).max() <= 128
    weights = np.zeros((n1, 1, 16, 32), np.int8)
    weights[..., :16], weights[..., 16:] = high.transpose(0, 2, 1)[:, None], low.transpose(0, 2, 1)[:, None]
    left = np.concatenate((127 * np.eye(16), np.eye(16)), axis=1).astype(np.int8)
    text = f"""
    {moved("L1[0]", "DDR[0]", 16)}
    {moved("L1[16]", "DDR[16]", 16 * n1)}
    {moved("UB[0]", "DDR[100]", 2 * n1)}
    MTE1 IM2COL L0A[0] L1[0] h=1 w=16 pitch=16 plane=16 kh=1 kw=1 sh=1 sw=1 dh=1 dw=1 ow=16 m=16 mpad=16 k=1 lanes=32 i8
    {moved("L0B[0]", "L1[16]", 16 * n1)}
    CUBE MMAD L0C[0] L0A[0] L0B[0] mpad=16 k=1 n1={n1} right=i8 i8
    FIXPIPE FIXPIPE UB[64] L0C[0] m=16 mpad=16 n1={n1} dplane=16 sums=i32 scale=0 {record} {dtype}
    {moved("DDR[600]", "UB[64]", blocks)}
    """
    return run(text, (0, left), (16, weights), (100, scale))[600 * BLOCK_BYTES : (600 + blocks) * BLOCK_BYTES]


SUMS = np.random.default_rng(0).integers(-8000, 8000, (3, 16, 16))
SUMS[0, 0, :8] = [1, 2, 3, 5, -1, -3, 255, -257]


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
@pytest.mark.parametrize(("zero", "low", "high"), [(3, 0, 127), (0, 0, 100), (100, 20, 100)])
def test_result_of_8_bits_is_clipped_rounded_moved(dtype: type, zero: int, low: int, high: int) -> None:
    """Against plain loops; scales of a half and a quarter are exact, so that many lie between two integers."""
    scale = np.resize(np.array([0.5, 0.25, 0.013, 1.0, -0.5, 1e-30], np.float32), 48)
    t = "i8" if dtype is np.int8 else "u8"
    data = requantised(SUMS, f"zero={zero} low={low} high={high}", scale, t, 32).view(dtype).reshape(2, 16, 32)
    halves = 0
    for n in range(48):
        for m in range(16):
            v = float(np.float32(SUMS[n // 16, m, n % 16]) * scale[n])
            halves += v % 1 == 0.5
            assert data[n // 32, m, n % 32] == round(min(max(v, low - zero), high - zero)) + zero
    assert halves > 50
    assert (data[1, :, 16:] == zero).all()


def test_nan_scale_gives_the_lower_bound() -> None:
    data = requantised(SUMS[:1], "zero=-3 low=-100 high=127", np.full(16, np.nan, np.float32), "i8", 16).view(np.int8).reshape(16, 32)
    assert (data[:, :16] == -100).all()


def test_sums_become_floats_with_a_scale_and_without() -> None:
    scale = np.random.default_rng(1).uniform(-1, 1, 16).astype(np.float32)
    sums = SUMS[0].astype(np.float32)
    half = requantised(SUMS[:1], "act=1", scale, "f16", 16).view(np.float16).reshape(16, 16)
    np.testing.assert_array_equal(half, np.maximum(sums * scale, 0).astype(np.float16))
    single = requantised(SUMS[:1], "", scale, "f32", 32).view(np.float32).reshape(2, 16, 8)
    np.testing.assert_array_equal(single.transpose(1, 0, 2).reshape(16, 16), sums * scale)


# the vector unit -----------------------------------------------------------------------------------------------------


def vector_text(lines: Sequence[str]) -> str:
    """Lines as `VCONVERT UB[96] UB[0] blocks=6 imm=i8 f32`: strides of dense operands are filled in."""
    return "\n".join(f"VECTOR {line} dbs=1 s0bs=1 s1bs=1 repeats=1" for line in lines)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
def test_a_sum_of_two_quantised_tensors(dtype: type) -> None:
    """QLinearAdd as ONNX defines it, in float32: dequantise, add, quantise; the zero point is added to what is rounded already."""
    rng = np.random.default_rng(2)
    limits = np.iinfo(dtype)
    t = "i8" if dtype is np.int8 else "u8"
    a, b = (rng.integers(limits.min, limits.max + 1, (2, 32)).astype(dtype) for _ in range(2))
    zeros = (3, -7, 11) if dtype is np.int8 else (120, 0, 131)
    scales = tuple(np.float32(s) for s in (0.5, 0.25, 0.375))
    ratios = [scales[0] / scales[2], scales[1] / scales[2]]
    lines = []
    for at, x, zero, ratio in ((64, 0, zeros[0], ratios[0]), (80, 2, zeros[1], ratios[1])):
        lines += [
            f"VCONVERT UB[{at}] UB[{x}] blocks=2 imm={t} f32",
            f"VADDS UB[{at}] UB[{at}] blocks=8 imm={-zero} f32",
            f"VMULS UB[{at}] UB[{at}] blocks=8 imm={ratio} f32",
        ]
    lines += [
        "VADD UB[64] UB[64] UB[80] blocks=8 f32",
        f"VMAXS UB[64] UB[64] blocks=8 imm={limits.min - zeros[2]} f32",
        f"VMINS UB[64] UB[64] blocks=8 imm={limits.max - zeros[2]} f32",
        "VCONVERT UB[64] UB[64] blocks=8 imm=f32 i32",
        f"VFILL UB[80] blocks=8 imm={zeros[2]} i32",
        "VADD UB[64] UB[64] UB[80] blocks=8 i32",
        f"VCONVERT UB[96] UB[64] blocks=2 imm=i32 {t}",
    ]
    text = "\n".join([moved("UB[0]", "DDR[0]", 4), vector_text(lines), moved("DDR[9]", "UB[96]", 2)])
    found = look(run(text, (0, a), (2, b)), 9, (2, 32), dtype)
    total = (a.astype(np.float32) - zeros[0]) * ratios[0] + (b.astype(np.float32) - zeros[1]) * ratios[1]
    assert total.dtype == np.float32
    expected = saturated(np.rint(total).astype(np.int64) + zeros[2], dtype)
    np.testing.assert_array_equal(found, expected)


def test_a_multiply_add_is_rounded_once() -> None:
    """A product halfway between two float32, and an addend too small for float64: it decides, for rounding up and down."""
    near, small = np.float32(1 + 2**-12), np.float32(2.0**-60)
    a, b, c = (np.resize(values, 8).astype(np.float32) for values in ([near], [near, -near], [small, small, -small, -small]))
    lines = [moved("UB[0]", "DDR[0]", 3), vector_text(["VMADD UB[8] UB[0] UB[1] UB[2] blocks=1 f32"]), moved("DDR[9]", "UB[8]", 1)]
    found = look(run("\n".join(lines), (0, a), (1, b), (2, c)), 9, (8,), np.float32)
    below, above = 1 + 2**-11, 1 + 2**-11 + 2**-23
    assert found.tolist() == [above, -below, below, -above] * 2


def test_integer_average_is_exact_to_the_last_step() -> None:
    """Nine pixels of uint8, added up in int32 by a repeat stride of 0."""
    x = np.random.default_rng(4).integers(0, 256, (9, 32)).astype(np.uint8)
    lines = [
        moved("UB[0]", "DDR[0]", 9),
        "VECTOR VFILL UB[100] blocks=4 repeats=1 dbs=1 imm=0 i32",
        "VECTOR VCONVERT UB[64] UB[0] blocks=1 repeats=9 dbs=1 drs=4 s0bs=1 s0rs=1 imm=u8 i32",
        "VECTOR VADD UB[100] UB[100] UB[64] blocks=4 repeats=9 dbs=1 drs=0 s0bs=1 s0rs=0 s1bs=1 s1rs=4 i32",
        vector_text(
            [
                "VCONVERT UB[100] UB[100] blocks=4 imm=i32 f32",
                f"VMULS UB[100] UB[100] blocks=4 imm={np.float32(1) / np.float32(9)} f32",
                "VCONVERT UB[120] UB[100] blocks=1 imm=f32 u8",
            ]
        ),
        moved("DDR[20]", "UB[120]", 1),
    ]
    found = look(run("\n".join(lines), (0, x)), 20, (32,), np.uint8)
    expected = np.rint(x.astype(np.int64).sum(axis=0).astype(np.float32) * (np.float32(1) / np.float32(9)))
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
def test_a_maximum_of_integers(dtype: type) -> None:
    limits = np.iinfo(dtype)
    t = "i8" if dtype is np.int8 else "u8"
    x = np.random.default_rng(5).integers(limits.min, limits.max + 1, (9, 32)).astype(dtype)
    lines = [
        moved("UB[0]", "DDR[0]", 9),
        f"VECTOR VFILL UB[100] blocks=1 repeats=1 imm={limits.min} {t}",
        f"VECTOR VMAX UB[100] UB[100] UB[0] blocks=1 repeats=9 s1rs=1 {t}",
        f"VECTOR VMIN UB[101] UB[0] UB[4] blocks=1 repeats=1 {t}",
        moved("DDR[20]", "UB[100]", 2),
    ]
    found = look(run("\n".join(lines), (0, x)), 20, (2, 32), dtype)
    np.testing.assert_array_equal(found, [x.max(axis=0), np.minimum(x[0], x[4])])


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int32])
def test_every_half_is_converted_as_its_nearest(dtype: type) -> None:
    """All 65536 numbers of float16: half to even, what is beyond saturates, NaN is 0."""
    values = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    t, lanes = {np.int8: ("i8", 32), np.uint8: ("u8", 32), np.int32: ("i32", 16)}[dtype]
    results = []
    for part in values.reshape(16, -1):
        count = part.size // lanes  # blocks of the type with more lanes
        repeats, rest = divmod(count, 8)
        assert rest == 0
        runs = "drs=8 s0rs=16" if lanes == 32 else "drs=16 s0rs=8"
        convert = f"VECTOR VCONVERT UB[300] UB[0] blocks=8 repeats={repeats} dbs=1 s0bs=1 {runs} imm=f16 {t}"
        made = run("\n".join([moved("UB[0]", "DDR[0]", 256), convert, moved("DDR[512]", "UB[300]", 512)]), (0, part))
        results.append(look(made, 512, part.shape, dtype))
    whole = np.nan_to_num(values.astype(np.float64), posinf=1e9, neginf=-1e9)
    # beyond: float16 has infinities, which are the ends of every integer type
    whole = np.where(np.isinf(values.astype(np.float64)), np.sign(whole) * 2.0**40, np.rint(whole))
    np.testing.assert_array_equal(np.concatenate(results), saturated(whole, dtype))


def test_integers_become_each_other_and_floats() -> None:
    x = np.array([-128, -1, 0, 1, 127, *range(-13, 14)], np.int8)
    big = np.array([2**31 - 1, -(2**31), 2**24 + 1, 16777219, 300, -300, 128, -129] * 4, np.int32)
    lines = [
        "VCONVERT UB[64] UB[0] blocks=1 imm=i8 u8",
        "VCONVERT UB[65] UB[0] blocks=1 imm=i8 f16",
        "VCONVERT UB[67] UB[1] blocks=1 imm=i32 i8",
        "VCONVERT UB[68] UB[1] blocks=4 imm=i32 f32",
    ]
    ddr = run("\n".join([moved("UB[0]", "DDR[0]", 5), vector_text(lines), moved("DDR[9]", "UB[64]", 8)]), (0, x), (1, big))
    np.testing.assert_array_equal(look(ddr, 9, (32,), np.uint8), np.maximum(x, 0))
    np.testing.assert_array_equal(look(ddr, 10, (32,), np.float16), x)
    np.testing.assert_array_equal(look(ddr, 12, (32,), np.int8), saturated(big, np.int8))
    np.testing.assert_array_equal(look(ddr, 13, (32,), np.float32), big.astype(np.float32))


def test_sums_of_int32_wrap() -> None:
    text = "\n".join([moved("UB[0]", "DDR[0]", 2), vector_text(["VADD UB[8] UB[0] UB[1] blocks=1 i32"]), moved("DDR[9]", "UB[8]", 1)])
    found = look(run(text, (0, np.full(8, 2**31 - 1, np.int32)), (1, np.full(8, 2, np.int32))), 9, (8,), np.int32)
    assert (found == -(2**31) + 1).all()


# a compiled model ----------------------------------------------------------------------------------------------------

H, W, CHANNELS = 3, 5, 40


def looked_up() -> Container:
    """y = table[x]: int8 in, uint8 out, on a network that computes in float16."""
    port = {
        "shape": (1, CHANNELS, H, W),
        "onnx_shape": (1, CHANNELS, H, W),
        "lanes": tuple(range(CHANNELS)),
        "pixel_lanes": 32,
        "planes": 2,
    }
    blocks = 2 * H * W
    buffers = (
        DdrBuffer("table", "constant", 0, 8),
        DdrBuffer("x", "input", 8, blocks, **port, dtype="int8"),
        DdrBuffer("y", "output", 8 + blocks, blocks, **port, dtype="uint8"),
    )
    text = f"""
    MTE2 COPY UB[0] DDR[0] length=8 count=1 count2=1 u8
    MTE2 COPY UB[8] DDR[8] length={blocks} count=1 count2=1 i8
    MTE2 SET core=0 engine=VECTOR id=0
    VECTOR WAIT core=0 engine=MTE2 id=0
    VECTOR VLUT UB[64] UB[8] UB[0] blocks=1 repeats={blocks} drs=1 s0rs=1 u8
    VECTOR SET core=0 engine=MTE3 id=0
    MTE3 WAIT core=0 engine=VECTOR id=0
    MTE3 COPY DDR[{8 + blocks}] UB[64] length={blocks} count=1 count2=1 u8
    """
    streams = (parse(text), *[parse("")] * (TINY.cores - 1))
    memory = MemoryMap(DataType.float16, buffers, 8 + 2 * blocks)
    table = np.roll(np.arange(256, dtype=np.uint8), 3)
    return Container("0" * 32, TINY, memory, (Variant("none", streams, "", {"none": 1}),), table.tobytes())


def test_a_session_takes_and_gives_integers() -> None:
    session = InferenceSession(encode(looked_up()))
    assert [port.type for port in (*session.get_inputs(), *session.get_outputs())] == ["tensor(int8)", "tensor(uint8)"]
    x = np.arange(-300, 300).astype(np.int8).reshape(1, CHANNELS, H, W)
    (y,) = session.run(None, {"x": x})
    assert y.dtype == np.uint8
    np.testing.assert_array_equal(y, (x.view(np.uint8).astype(int) - 3) % 256)
    for wrong in (x.astype(np.float32), x.view(np.uint8), x.astype(np.int64)):
        with pytest.raises(BadInputError, match=rf"found {wrong.dtype} .*, expected int8 \[1, 40, 3, 5\]"):
            session.run(None, {"x": wrong})


def test_types_of_buffers_are_part_of_the_file() -> None:
    again = decode(encode(looked_up()))
    assert [buffer.dtype for buffer in again.memory.buffers] == [None, "int8", "uint8"]
    assert [again.memory.type_of(buffer) for buffer in again.memory.buffers] == [DataType.float16, DataType.int8, DataType.uint8]
