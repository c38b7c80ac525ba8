"""Every instruction against plain loops, and programs against what they are for."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.functional import apply, execute, fill_undefined
from simulator.host_layout import load_input, read_output
from simulator.npu import isa
from simulator.npu.cycles import cost_tables, price
from simulator.npu.errors import BadInputError, DeadlockError, ProgramError
from simulator.npu.isa import Op
from simulator.npu.parts import BLOCK_BYTES, BYTES, DataType, Engine, Memory
from simulator.npu.program import DdrBuffer
from tests.programs import record as make_record
from tests.simulator.micro import DDR_BLOCKS, SIDES, TINY, TYPES, look, memories, place, program, records, reference

INEXACT = (Op.MMAD, Op.MMAD_IM2COL, Op.VEXP, Op.VLN)  # order of a sum, last bit of a library function


def ddr_of(*placed: tuple[int, np.ndarray]) -> np.ndarray:
    ddr = np.zeros(DDR_BLOCKS * BLOCK_BYTES, np.uint8)
    for block, values in placed:
        place(ddr, block, values)
    return ddr


_ALONE = (Op.COPY, Op.IM2COL, Op.FRACTAL, Op.MMAD, Op.MMAD_IM2COL, Op.FIXPIPE, Op.VCONVERT, Op.VMADD, Op.VLUT, Op.VLANE_ADD)
FAMILIES = {op.name: (op,) for op in _ALONE}
FAMILIES["VECTOR"] = tuple(op for op in isa.OPS if op >= isa.FIRST_VECTOR_OP)


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=60, deadline=None)
@given(st.data())
def test_every_instruction_is_what_plain_loops_do(family, data):
    record = data.draw(records(FAMILIES[family], data.draw(st.sampled_from([1, 16])), SIDES))
    seed = data.draw(st.integers(0, 3))
    ours, theirs = memories(seed), memories(seed)
    apply(ours, record)
    reference(theirs, record)
    dtype = DataType(record[isa.DTYPE]).sums.storage if record[isa.OP] in isa.PRODUCT_OPS else TYPES[record[isa.DTYPE]]
    for mine, other in zip(ours, theirs, strict=True):
        if record[isa.OP] in INEXACT and np.dtype(dtype).kind == "f":
            tolerance = 2e-3 if dtype is np.float16 else 5e-4  # sums of up to 72 products below 64 in float32
            np.testing.assert_allclose(mine.view(dtype), other.view(dtype), rtol=tolerance, atol=tolerance)
        else:
            # numbers, not bytes: the payload of a NaN and the sign of a zero maximum are nobody's business
            np.testing.assert_array_equal(mine.view(dtype), other.view(dtype))


@pytest.mark.parametrize("dtype", [DataType.float16, DataType.float32])
@pytest.mark.parametrize("m", [1, 7, 49, 100, 131])
def test_a_large_product_of_any_number_of_rows(m, dtype):
    """Of 2^15 products a row, 2^18 at a time: pieces of rows, and what is left of them."""
    rng, c0 = np.random.default_rng(m), dtype.lanes
    k, n1 = 256 // c0, 8
    a, b = (rng.integers(-8, 9, shape).astype(dtype.storage) for shape in ((k, m, c0), (n1, k, 16, c0)))
    c = rng.integers(-8, 9, (n1, m, 16)).astype(np.float32)
    cores = [np.zeros(1 << 20, np.uint8) for _ in Memory]
    for memory, values in ((Memory.L0A, a), (Memory.L0B, b), (Memory.L0C, c)):
        place(cores[memory], 3, values)
    apply(cores, make_record(Op.MMAD, Engine.CUBE, m, k, n1, 1, dtype=dtype, src=Memory.L0A, dst=Memory.L0C, d=3, s=(3, 3)).tolist())
    expected = c + np.einsum("kmc,nkjc->nmj", a.astype(np.int64), b.astype(np.int64))
    np.testing.assert_array_equal(look(cores[Memory.L0C], 3, c.shape, np.float32), expected)


@settings(max_examples=100, deadline=None)
@given(records())
def test_no_instruction_is_faster_than_its_path(record):
    """Cycles >= bytes over the path / its rate and MACs / peak, with the work counted by the interpreter."""
    code = np.array([record], np.int32)
    work = apply(memories(), record)
    cost = price(code, TINY)
    op, src, dst = record[isa.OP], record[isa.SRC], record[isa.DST]
    if op == Op.FIXPIPE and dst == Memory.DDR:  # work counts sums
        written = record[isa.F_M] * -(-record[isa.F_N1] * 16 // DataType(record[isa.DTYPE]).lanes) * BLOCK_BYTES
        assert int(cost.useful[0]) == -written
        assert cost.bus[0] >= written << 16
        return
    if Memory.DDR in (src, dst) and op == Op.COPY:
        assert abs(int(cost.useful[0])) == work
        assert cost.bus[0] >= work << 16
        return
    tables = cost_tables(TINY)
    if op in isa.PRODUCT_OPS:
        rate = TINY.macs_per_cycle["int8" if record[isa.DTYPE] in BYTES else DataType(record[isa.DTYPE]).name]
    elif op >= isa.FIRST_VECTOR_OP:
        # a repeat is 8 blocks per cycle at best; where VCONVERT widens, 8 blocks of its narrow side
        rate = isa.REPEAT_BLOCKS * BLOCK_BYTES * (2 if op == Op.VCONVERT else 1)
    else:
        rate = int(tables.rate[src, dst])
    assert int(cost.busy[0]) * rate >= work


CONVOLUTIONS = [
    # h, w, c1, n1, (kh, kw), stride, dilation, (pt, pl, pb, pr)
    (5, 6, 2, 2, (3, 3), (1, 1), (1, 1), (1, 1, 1, 1)),
    (7, 5, 1, 1, (3, 2), (2, 1), (1, 2), (0, 2, 1, 1)),
    (6, 6, 1, 2, (1, 1), (2, 2), (1, 1), (0, 0, 0, 0)),
    (4, 4, 1, 1, (4, 4), (1, 1), (1, 1), (0, 0, 0, 0)),
    (5, 5, 1, 1, (3, 3), (2, 2), (2, 2), (2, 2, 2, 2)),
]


def onnx_conv(x, w, b, residual, stride, dilation, pads):
    """relu(conv + bias + residual) by onnxruntime, float32."""
    helper = onnx.helper
    names = {"x": x, "w": w, "b": b, "r": residual}
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"], strides=stride, dilations=dilation, pads=pads),
        helper.make_node("Add", ["c", "r"], ["s"]),
        helper.make_node("Relu", ["s"], ["y"]),
    ]
    inputs = [helper.make_tensor_value_info(name, 1, value.shape) for name, value in names.items()]
    graph = helper.make_graph(nodes, "conv", inputs, [helper.make_tensor_value_info("y", 1, None)])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return onnxruntime.InferenceSession(model.SerializeToString()).run(None, names)[0]


@pytest.mark.parametrize("dtype", [DataType.float16, DataType.float32])
@pytest.mark.parametrize(("h", "w", "c1", "n1", "kernel", "stride", "dilation", "pads"), CONVOLUTIONS)
def test_convolution_with_bias_residual_and_relu(dtype, h, w, c1, n1, kernel, stride, dilation, pads):
    """IM2COL and MMAD over k in tiles of two, FIXPIPE at the end, equal onnxruntime's convolution."""
    rng = np.random.default_rng(7)
    c0, kh, kw = dtype.lanes, *kernel
    oh = (h + pads[0] + pads[2] - (kh - 1) * dilation[0] - 1) // stride[0] + 1
    ow = (w + pads[1] + pads[3] - (kw - 1) * dilation[1] - 1) // stride[1] + 1
    m, mpad, k = oh * ow, -(-oh * ow // 16) * 16, c1 * kh * kw
    narrow = TYPES[dtype]
    x = rng.standard_normal((1, c1 * c0, h, w)).astype(narrow).astype(np.float32)
    weights = rng.standard_normal((n1 * 16, c1 * c0, kh, kw)).astype(narrow).astype(np.float32)
    bias = rng.standard_normal(n1 * 16).astype(np.float32)
    residual = rng.standard_normal((1, n1 * 16, oh, ow)).astype(narrow).astype(np.float32)
    planes = n1 * 16 // c0
    at_w, at_b, at_r, at_y = 200, 1500, 1600, 1800
    xb = DdrBuffer("x", "input", 0, 200, (1, c1 * c0, h, w), (), tuple(range(c1 * c0)), c0, c1)
    rb = DdrBuffer("r", "input", at_r, 200, (1, n1 * 16, oh, ow), (), tuple(range(n1 * 16)), c0, planes)
    yb = DdrBuffer("y", "output", at_y, 200, (1, n1 * 16, oh, ow), (), tuple(range(n1 * 16)), c0, planes)
    middle = DdrBuffer("w", "input", at_w, at_r - at_w)
    packed = weights.reshape(n1, 16, c1, c0, kh, kw).transpose(0, 2, 4, 5, 1, 3).astype(narrow)  # [n1][k][16][c0]
    ddr = ddr_of((at_w, packed), (at_b, bias))
    load_input(ddr, xb, x, dtype)
    load_input(ddr, rb, residual, dtype)

    f = "f16" if dtype == DataType.float16 else "f32"
    image, w_blocks = c1 * h * w, n1 * k * 16
    lines = [
        f"MTE2 COPY L1[0] DDR[0] length={image} count=1 count2=1 {f}",
        f"MTE2 COPY L1[{image}] DDR[{at_w}] length={w_blocks} count=1 count2=1 {f}",
        f"MTE2 COPY UB[0] DDR[{at_b}] length={2 * n1} count=1 count2=1 {f}",
        f"MTE2 COPY UB[8] DDR[{at_r}] length={planes * m} count=1 count2=1 {f}",
    ]
    for start in range(0, k, 2):
        size = min(2, k - start)
        lines += [
            f"MTE1 IM2COL L0A[0] L1[0] h={h} w={w} pitch={w} plane={h * w} kh={kh} kw={kw} sh={stride[0]} sw={stride[1]} dh={dilation[0]} "
            f"dw={dilation[1]} pt={pads[0]} pl={pads[1]} ow={ow} m={m} mpad={mpad} koff={start} k={size} lanes={c0} {f}",
            f"MTE1 COPY L0B[0] L1[{image + start * 16}] length={size * 16} count={n1} sstride={k * 16} dstride={size * 16} count2=1 {f}",
            f"CUBE MMAD L0C[0] L0A[0] L0B[0] mpad={mpad} k={size} n1={n1} acc={int(start > 0)} {f}",
        ]
    lines += [
        f"FIXPIPE FIXPIPE UB[8] L0C[0] UB[0] UB[8] m={m} mpad={mpad} n1={n1} dplane={m} rplane={m} act=1 rtype={f} {f}",
        f"MTE3 COPY DDR[{at_y}] UB[8] length={planes * m} count=1 count2=1 {f}",
    ]
    counters = execute(program("\n".join(lines), buffers=(xb, middle, rb, yb)), TINY, ddr)
    expected = onnx_conv(x, weights, bias, residual, stride, dilation, pads)
    tolerance = 2e-3 if dtype == DataType.float16 else 1e-5
    np.testing.assert_allclose(read_output(ddr, yb, dtype), expected, rtol=tolerance, atol=tolerance * np.abs(expected).max())
    assert counters.macs == mpad * k * c0 * n1 * 16
    assert counters.ddr_write_bytes == planes * m * 32
    assert counters.ddr_read_bytes == (image + w_blocks + 2 * n1 + planes * m) * 32


def test_first_layer_with_four_lanes():
    """Three channels in the four-lane layout: 3x3, stride 2, pad 1, on a 5x7 image, equals the direct sum."""
    rng = np.random.default_rng(3)
    h, w, oh, ow = 5, 7, 3, 4
    x = rng.standard_normal((1, 3, h, w)).astype(np.float16).astype(np.float32)
    weights = rng.standard_normal((16, 3, 3, 3)).astype(np.float16).astype(np.float32)
    xb = DdrBuffer("x", "input", 0, h * 2, (1, 3, h, w), (), (2, 0, 1), 4, 1)  # channels in lanes of their own order
    ddr = ddr_of()
    load_input(ddr, xb, x, DataType.float16)
    by_lane = np.zeros((16, 9, 4), np.float32)
    by_lane[:, :, [2, 0, 1]] = weights.transpose(0, 2, 3, 1).reshape(16, 9, 3)
    packed = np.zeros((3, 16, 16), np.float16)  # [k][16][4 positions of 4 lanes]
    for tap in range(9):
        packed[tap // 4, :, tap % 4 * 4 : tap % 4 * 4 + 4] = by_lane[:, tap]
    place(ddr, 100, packed)
    text = f"""
    MTE2 COPY L1[0] DDR[0] length={h * 2} count=1 count2=1
    MTE2 COPY L1[50] DDR[100] length=48 count=1 count2=1
    MTE1 IM2COL L0A[0] L1[0] h={h} w={w} pitch=2 plane={h * 2} kh=3 kw=3 sh=2 sw=2 dh=1 dw=1 pt=1 pl=1 ow={ow} m=12 mpad=16 k=3 lanes=4
    MTE1 COPY L0B[0] L1[50] length=48 count=1 count2=1
    CUBE MMAD L0C[0] L0A[0] L0B[0] mpad=16 k=3 n1=1
    FIXPIPE FIXPIPE UB[0] L0C[0] m=12 mpad=16 n1=1 dplane=12
    MTE3 COPY DDR[500] UB[0] length=12 count=1 count2=1
    """
    execute(program(text), TINY, ddr)
    padded = np.pad(x[0], ((0, 0), (1, 1), (1, 1)))
    expected = np.zeros((oh, ow, 16), np.float32)
    for y in range(oh):
        for col in range(ow):
            expected[y, col] = (weights * padded[:, 2 * y : 2 * y + 3, 2 * col : 2 * col + 3]).sum((1, 2, 3))
    np.testing.assert_allclose(look(ddr, 500, (oh, ow, 16), np.float16), expected, rtol=2e-3, atol=5e-3)


def test_max_pool_by_vmax():
    """2x2, stride 2, on 4x8 pixels: four taps by block stride 2, repeats over rows."""
    x = np.random.default_rng(1).standard_normal((4, 8, 16)).astype(np.float16)
    text = """
    MTE2 COPY UB[0] DDR[0] length=32 count=1 count2=1
    VECTOR VMAX UB[64] UB[0] UB[1] blocks=4 repeats=4 dbs=1 drs=4 s0bs=2 s0rs=8 s1bs=2 s1rs=8
    VECTOR VMAX UB[100] UB[64] UB[68] blocks=4 repeats=2 dbs=1 drs=4 s0bs=1 s0rs=8 s1bs=1 s1rs=8
    MTE3 COPY DDR[100] UB[100] length=8 count=1 count2=1
    """
    ddr = ddr_of((0, x))
    execute(program(text), TINY, ddr)
    np.testing.assert_array_equal(look(ddr, 100, (2, 4, 16), np.float16), x.reshape(2, 2, 4, 2, 16).max((1, 3)))


def test_accumulation_by_repeat_stride_zero_rounds_each_time():
    """2048 + 1 is 2048 in float16: a hundred single additions change nothing, as they would on the machine."""
    values = np.ones((101, 16), np.float16)
    values[0] = 2048
    text = """
    MTE2 COPY UB[0] DDR[0] length=101 count=1 count2=1
    VECTOR VADD UB[0] UB[0] UB[1] blocks=1 repeats=100 dbs=1 drs=0 s0bs=1 s0rs=0 s1bs=1 s1rs=1
    MTE3 COPY DDR[200] UB[0] length=1 count=1 count2=1
    """
    ddr = ddr_of((0, values))
    execute(program(text), TINY, ddr)
    assert look(ddr, 200, (16,), np.float16).tolist() == [2048.0] * 16


def test_repeats_run_in_order():
    """Repeat r reads what repeat r - 1 wrote: block 0 runs through all of them."""
    values = np.arange(6 * 16, dtype=np.float16).reshape(6, 16)
    text = """
    MTE2 COPY UB[0] DDR[0] length=6 count=1 count2=1
    VECTOR VADDS UB[1] UB[0] blocks=1 repeats=5 dbs=1 drs=1 s0bs=1 s0rs=1 imm=1.0
    MTE3 COPY DDR[200] UB[0] length=6 count=1 count2=1
    """
    ddr = ddr_of((0, values))
    execute(program(text), TINY, ddr)
    np.testing.assert_array_equal(look(ddr, 200, (6, 16), np.float16), values[0] + np.arange(6)[:, None])


def test_float16_overflows_to_infinity_in_silence():
    ddr = ddr_of((0, np.full(16, 300, np.float16)))
    text = """
    MTE2 COPY UB[0] DDR[0] length=1 count=1 count2=1
    VECTOR VMUL UB[0] UB[0] UB[0] blocks=1 repeats=1 dbs=1 s0bs=1 s1bs=1
    MTE3 COPY DDR[1] UB[0] length=1 count=1 count2=1
    """
    execute(program(text), TINY, ddr)
    assert np.isposinf(look(ddr, 1, (16,), np.float16)).all()


def test_fixpipe_rounds_once():
    """2049 + 0.5 + 0.5 = 2050 in float32; rounding after the bias would give 2048."""
    a, b = np.zeros((16, 16), np.float16), np.zeros((16, 16), np.float16)
    a[:, 0], a[:, 1], b[:, 0], b[:, 1] = 2048, 1, 1, 1
    ddr = ddr_of((0, a), (16, b), (32, np.full(16, 0.5, np.float32)), (34, np.full((16, 16), 0.5, np.float16)))
    text = """
    MTE2 COPY L1[0] DDR[0] length=32 count=1 count2=1
    MTE2 COPY UB[0] DDR[32] length=18 count=1 count2=1
    MTE1 IM2COL L0A[0] L1[0] h=1 w=16 pitch=16 plane=16 kh=1 kw=1 sh=1 sw=1 dh=1 dw=1 ow=16 m=16 mpad=16 k=1 lanes=16
    MTE1 COPY L0B[0] L1[16] length=16 count=1 count2=1
    CUBE MMAD L0C[0] L0A[0] L0B[0] mpad=16 k=1 n1=1
    FIXPIPE FIXPIPE UB[100] L0C[0] UB[0] UB[2] m=16 mpad=16 n1=1 dplane=16 rplane=16
    MTE3 COPY DDR[100] UB[100] length=16 count=1 count2=1
    """
    execute(program(text), TINY, ddr)
    assert (look(ddr, 100, (16, 16), np.float16) == 2050).all()


CROSSED = (
    # the first stream's WAIT stands before its SET can come: queues, not the stream, must run ahead
    """
    MTE1 WAIT core=0 engine=MTE3 id=0
    MTE1 COPY UB[1] L1[0] length=1 count=1 count2=1
    MTE2 COPY L1[0] DDR[0] length=1 count=1 count2=1
    MTE2 SET core=0 engine=MTE3 id=0
    MTE3 WAIT core=0 engine=MTE2 id=0
    MTE3 WAIT core=1 engine=MTE3 id=0
    MTE3 SET core=0 engine=MTE1 id=0
    MTE1 SET core=0 engine=MTE3 id=1
    MTE3 WAIT core=0 engine=MTE1 id=1
    MTE3 COPY DDR[9] UB[1] length=1 count=1 count2=1
    """,
    "MTE3 SET core=0 engine=MTE3 id=0",
)


def test_queues_run_ahead_and_cores_wait_mutually():
    values = np.arange(16, dtype=np.float16)
    ddr = ddr_of((0, values))
    execute(program(*CROSSED), TINY, ddr)
    np.testing.assert_array_equal(look(ddr, 9, (16,), np.float16), values)


def test_every_wait_takes_one_set():
    """The second WAIT is not content with the first SET: the store comes after the second load."""
    text = """
    MTE3 WAIT core=0 engine=MTE2 id=0
    MTE3 WAIT core=0 engine=MTE2 id=0
    MTE3 COPY DDR[9] UB[0] length=1 count=1 count2=1
    MTE2 COPY UB[0] DDR[0] length=1 count=1 count2=1
    MTE2 SET core=0 engine=MTE3 id=0
    MTE2 WAIT core=1 engine=MTE2 id=0
    MTE2 COPY UB[0] DDR[1] length=1 count=1 count2=1
    MTE2 SET core=0 engine=MTE3 id=0
    """
    values = np.arange(32, dtype=np.float16).reshape(2, 16)
    ddr = ddr_of((0, values))
    # the second core speaks late: it stands in its own queue order first
    other = """
    MTE2 WAIT core=1 engine=MTE3 id=0
    MTE2 SET core=0 engine=MTE2 id=0
    MTE3 SET core=1 engine=MTE2 id=0
    """
    execute(program(text, other), TINY, ddr)
    np.testing.assert_array_equal(look(ddr, 9, (16,), np.float16), values[1])


def test_any_legal_order_gives_the_same_bytes():
    """The same queues, the streams handed out from the last engine to the first: every WAIT stands before its SET."""
    text = """
    MTE2    COPY L1[0] DDR[64]  length=32 count=1 count2=1
    MTE2    COPY L1[32] DDR[0]  length=64 count=1 count2=1
    MTE2    SET  core=0 engine=MTE1 id=0
    MTE1    WAIT core=0 engine=MTE2 id=0
    MTE1    IM2COL L0A[0] L1[0] h=2 w=8 pitch=8 plane=16 kh=1 kw=1 sh=1 sw=1 dh=1 dw=1 ow=8 m=16 mpad=16 k=2 lanes=16
    MTE1    COPY L0B[0] L1[32]  length=64 count=1 count2=1
    MTE1    SET  core=0 engine=CUBE id=0
    CUBE    WAIT core=0 engine=MTE1 id=0
    CUBE    MMAD L0C[0] L0A[0] L0B[0] mpad=16 k=2 n1=2
    CUBE    SET  core=0 engine=FIXPIPE id=0
    FIXPIPE WAIT core=0 engine=CUBE id=0
    FIXPIPE FIXPIPE UB[0] L0C[0] m=16 mpad=16 n1=2 dplane=16
    FIXPIPE SET  core=0 engine=MTE3 id=0
    MTE3    WAIT core=0 engine=FIXPIPE id=0
    MTE3    COPY DDR[128] UB[0] length=32 count=1 count2=1
    """
    lines = [line.strip() for line in text.strip().splitlines()]
    values = np.random.default_rng(5).standard_normal((128, 16)).astype(np.float16)
    results = []
    for order in (lines, sorted(lines, key=lambda line: line.split()[0], reverse=True), sorted(lines, key=lambda line: line.split()[0])):
        ddr = ddr_of((0, values))
        counters = execute(program("\n".join(order)), TINY, ddr)
        assert counters.macs == 16 * 32 * 32
        results.append(ddr.tobytes())
    expected = values[64:96].reshape(2, 16, 16).transpose(1, 0, 2).reshape(16, 32).astype(np.float32)
    weights = values[:64].reshape(2, 2, 16, 16).transpose(0, 2, 1, 3).reshape(32, 32).astype(np.float32)
    y = look(np.frombuffer(results[0], np.uint8), 128, (2, 16, 16), np.float16).transpose(1, 0, 2).reshape(16, 32)
    np.testing.assert_allclose(y, expected @ weights.T, rtol=2e-3, atol=2e-3)
    assert results[0] == results[1] == results[2]


def test_deadlock_names_queues_and_flags():
    first = "MTE1 WAIT core=1 engine=MTE2 id=2\nMTE1 SET core=1 engine=MTE2 id=0"
    second = "MTE2 WAIT core=0 engine=MTE1 id=0\nMTE2 SET core=0 engine=MTE1 id=2"
    with pytest.raises(DeadlockError) as caught:
        execute(program(first, second), TINY, ddr_of())
    assert "core 0 MTE1 instruction 0 waits for flag 2 of core 1 MTE2" in str(caught.value)
    assert "core 1 MTE2 instruction 0 waits for flag 0 of core 0 MTE1" in str(caught.value)


def test_unread_memory_is_harmless_and_unwritten_memory_shows():
    text = """
    MTE2 COPY UB[0] DDR[0] length=2 count=1 count2=1
    VECTOR VADD UB[4] UB[0] UB[{}] blocks=2 repeats=1 dbs=1 s0bs=1 s1bs=1
    MTE3 COPY DDR[8] UB[4] length=2 count=1 count2=1
    """
    values = np.arange(32, dtype=np.float16)
    results = []
    for at in (0, 600):
        for seed in (0, 1):
            ddr = ddr_of((0, values))
            execute(program(text.format(at)), TINY, ddr, scramble_seed=seed)
            results.append(look(ddr, 8, (32,), np.float16))
    np.testing.assert_array_equal(results[0], 2 * values)
    np.testing.assert_array_equal(results[0], results[1])
    assert np.isnan(results[2]).all()
    assert np.isnan(results[3]).all()
    assert results[2].tobytes() != results[3].tobytes()


def test_undefined_memory_is_nan_in_both_types():
    memory = np.zeros(4096, np.uint8)
    fill_undefined(memory, np.random.default_rng(0))
    assert np.isnan(memory.view(np.float16)).all()
    assert np.isnan(memory.view(np.float32)).all()


def test_what_is_illegal_is_refused():
    with pytest.raises(ProgramError, match="read-only constant"):
        execute(program("MTE3 COPY DDR[3] UB[0] length=1 count=1 count2=1", constants=8), TINY, ddr_of())
    with pytest.raises(BadInputError, match="expected a writeable contiguous uint8"):
        execute(program(""), TINY, ddr_of()[:-1])
    with pytest.raises(BadInputError, match="not a flag"):
        apply(memories(), [int(Op.SET)] + [0] * 31)
