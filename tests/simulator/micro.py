"""Small programs from text, and a second reading of the instruction set: plain loops over blocks, nothing shared with the interpreter."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from simulator.functional import Memories
from simulator.npu import isa
from simulator.npu.asm import parse
from simulator.npu.isa import OPS, WORDS, Op
from simulator.npu.machine import Machine
from simulator.npu.machine_file import load_machine
from simulator.npu.parts import BLOCK_BYTES, BYTES, FLOATS, DataType, Engine, Memory
from simulator.npu.program import DdrBuffer, MemoryMap, Program
from tests.integers import with_integers
from tests.shared_machine import with_shared

_IN_L1 = [{"engine": engine, "source": "L1", "destination": to, "bytes_per_cycle": 32} for engine, to in (("MTE1", "L1"), ("CUBE", "L0C"))]
_ALL = with_integers(with_shared(load_machine("tiny"))).model_dump(mode="json")
_RESULT = {"engine": "MTE3", "source": "L0C", "destination": "DDR", "bytes_per_cycle": 16}
TINY = Machine.model_validate(_ALL | {"paths": [*_ALL["paths"], *_IN_L1, _RESULT]})  # so that every record that there is can be made
SIDES = (Memory.UB, Memory.L1)
DDR_BLOCKS = 2048
TYPES = {0: np.float16, 1: np.float32, 2: np.int8, 3: np.uint8, 4: np.int32}


def program(*texts: str, buffers: tuple[DdrBuffer, ...] = (), constants: int = 0) -> Program:
    """Streams for `tiny`; without buffers all of DDR is constants and then one input."""
    if not buffers:
        buffers = (DdrBuffer("x", "input", constants, DDR_BLOCKS - constants),)
        if constants:
            buffers = (DdrBuffer("w", "constant", 0, constants), *buffers)
    streams = [parse(text) for text in texts] + [np.zeros((0, WORDS), np.int32)] * (TINY.cores - len(texts))
    return Program(TINY.digest, tuple(streams), MemoryMap(DataType.float16, buffers, DDR_BLOCKS))


def memories(seed: int = 0) -> list[np.ndarray]:
    """One core's memories; every float16 in them is 1.5..2.5 and every float32 0.125..8, of either sign."""
    rng = np.random.default_rng(seed)
    cores = Memories(TINY, np.zeros(DDR_BLOCKS * BLOCK_BYTES, np.uint8), 0).cores[0]
    for array in cores:
        array.view(np.uint16)[:] = rng.integers(0x3E00, 0x4100, array.size // 2) | rng.integers(0, 2, array.size // 2) << 15
    return cores


def place(memory: np.ndarray, block: int, values: np.ndarray) -> None:
    data = np.ascontiguousarray(values).view(np.uint8).ravel()
    memory[block * BLOCK_BYTES : block * BLOCK_BYTES + data.size] = data


def look(memory: np.ndarray, block: int, shape: tuple[int, ...], dtype: type) -> np.ndarray:
    count = int(np.prod(shape)) * np.dtype(dtype).itemsize
    return memory[block * BLOCK_BYTES : block * BLOCK_BYTES + count].view(dtype).reshape(shape).copy()


# the second reading ----------------------------------------------------------------------------------------------


def reference(cores: list[np.ndarray], record: list[int]) -> None:
    """Do one record, block by block, as the comments of `isa` say."""
    op = Op(record[isa.OP])
    p = dict(zip(OPS[op].params, record[isa.P :], strict=False))
    with np.errstate(all="ignore"):
        known = {Op.COPY: _copy, Op.IM2COL: _im2col, Op.FRACTAL: _fractal, Op.MMAD: _mmad, Op.FIXPIPE: _fixpipe, Op.MMAD_IM2COL: _windows}
        known.get(op, _vector)(cores, record, p)


def _block(memory: np.ndarray, block: int) -> np.ndarray:
    return memory[block * BLOCK_BYTES : (block + 1) * BLOCK_BYTES]


def _copy(cores, record, p):
    source, target = cores[record[isa.SRC]].copy(), cores[record[isa.DST]]  # within a memory all is read first
    for j in range(p["count2"]):
        for i in range(p["count"]):
            for b in range(p["length"]):
                s = record[isa.S0] + j * p["sstride2"] + i * p["sstride"] + b
                d = record[isa.D] + j * p["dstride2"] + i * p["dstride"] + b
                _block(target, d)[:] = _block(source, s)


def _im2col(cores, record, p):
    l1, l0a = cores[Memory.L1], cores[Memory.L0A]
    size = TYPES[record[isa.DTYPE]]().itemsize
    for k in range(p["k"]):
        for m in range(p["mpad"]):
            target = _block(l0a, record[isa.D] + k * p["mpad"] + m)
            target[:] = max(0, record[isa.PAD])
            if m >= p["m"]:
                continue
            oy, ox = divmod(p["moff"] + m, p["ow"])
            pieces = BLOCK_BYTES // size // 4 if p["lanes"] == 4 else 1
            width = p["lanes"] * size
            for piece in range(pieces):
                tap = (p["koff"] + k) * pieces + piece
                c1, tap = divmod(tap, p["kh"] * p["kw"])
                if p["lanes"] == 4 and c1:
                    continue
                ky, kx = divmod(tap, p["kw"])
                y, x = oy * p["sh"] - p["pt"] + ky * p["dh"], ox * p["sw"] - p["pl"] + kx * p["dw"]
                if 0 <= y < p["h"] and 0 <= x < p["w"]:
                    row = (p["first"] + y) % p["ring"] if p["ring"] else y
                    start = (record[isa.S0] + c1 * p["plane"] + row * p["pitch"]) * BLOCK_BYTES + x * width
                    target[piece * width : (piece + 1) * width] = l1[start : start + width]


def _fractal(cores, record, p):
    l1, l0b = cores[Memory.L1], cores[Memory.L0B]
    size = TYPES[record[isa.DTYPE]]().itemsize
    c0 = BLOCK_BYTES // size

    def element(channel, pixel):
        start = (record[isa.S0] + channel // c0 * p["plane"] + pixel) * BLOCK_BYTES + channel % c0 * size
        return l1[start : start + size] if pixel < p["pixels"] else max(0, record[isa.PAD])

    for n in range(p["n1"] * 16):
        for k in range(p["k"] * c0):
            block = record[isa.D] + (n // 16 * p["k"] + k // c0) * 16 + n % 16
            start = block * BLOCK_BYTES + k % c0 * size
            l0b[start : start + size] = element(n, k) if p["transpose"] else element(k, n)


def _mmad(cores, record, p):
    dtype = TYPES[record[isa.DTYPE]]
    c0 = BLOCK_BYTES // dtype().itemsize
    wide, sums, right = (np.int64, np.int32, TYPES[p["right"]]) if record[isa.DTYPE] in BYTES else (np.float64, np.float32, dtype)
    a = look(cores[Memory.L0A], record[isa.S0], (p["k"], p["mpad"], c0), dtype).astype(wide)
    b = look(cores[Memory.L0B], record[isa.S1], (p["n1"], p["k"], 16, c0), right).astype(wide)
    c = look(cores[Memory.L0C], record[isa.D], (p["n1"], p["mpad"], 16), sums)
    total = np.einsum("kmc,nkjc->nmj", a, b) + (c if p["acc"] else 0)
    place(cores[Memory.L0C], record[isa.D], total.astype(sums))


def _windows(cores, record, p):
    """MMAD_IM2COL: what the two others would make of it in a scratch memory."""
    pairs = {"kernel": ("kh", "kw"), "stride": ("sh", "sw"), "dilation": ("dh", "dw"), "padding": ("pt", "pl")}
    for name, fields in pairs.items():
        low = p[name] & 511
        p |= dict(zip(fields, (p[name] >> 9, low - 512 if low > 255 else low), strict=True))
    scratch = [*cores]
    scratch[Memory.L0A], scratch[Memory.L0B] = (np.zeros(1 << 16, np.uint8) for _ in range(2))
    image, product = [*record], [*record]
    image[isa.D] = product[isa.S0] = product[isa.S1] = 0
    _im2col(scratch, image, p)
    run = p["k"] * 16
    for n in range(p["n1"]):
        place(scratch[Memory.L0B], n * run, look(cores[Memory.L1], record[isa.S1] + n * p["rstride"], (run * BLOCK_BYTES,), np.uint8))
    _mmad(scratch, product, p)


def _fixpipe(cores, record, p):
    dtype = TYPES[record[isa.DTYPE]]
    kind = TYPES[p["rtype"]]
    c0, r0 = (BLOCK_BYTES // each().itemsize for each in (dtype, kind))
    written = []
    for plane in range(-(-p["n1"] * 16 // c0)):
        for m in range(p["m"]):
            side = cores[p["side"] or Memory.UB]
            lanes = []
            for channel in range(plane * c0, (plane + 1) * c0):
                (n, j), residual = divmod(channel, 16), None
                if record[isa.S2] >= 0:
                    residual = look(side, record[isa.S2] + channel // r0 * p["rplane"] + m, (r0,), kind)[channel % r0]
                value = _result(cores, record, p, n, m, j, None if p["sums"] else residual)
                lanes.append(value if residual is None or not p["sums"] else _with_residual(p, value, residual, dtype))
            written.append((record[isa.D] + plane * p["dplane"] + m, np.array(lanes).astype(dtype)))
    for block, value in written:  # all reads first: a residual may lie where the result goes
        place(cores[record[isa.DST]], block, value)


def _with_residual(p, own, other, dtype):
    """Of 8 bits.  float64 holds a product of a float32 and a byte exactly, and their sums nearly: enough for what is not next to a half."""
    weigh, beside, fixed = (np.float64(np.int32(p[name]).view(np.float32)) for name in ("own", "other", "fixed"))
    (inner, first), (outer, last) = ((own, weigh), (other, beside)) if p["last"] else ((other, beside), (own, weigh))
    total = np.float32(np.float64(int(outer)) * last + np.float64(np.float32(np.float64(int(inner)) * first + fixed)))
    limits = np.iinfo(dtype)
    return min(max(round(float(total)), limits.min), limits.max)


def _result(cores, record, p, n, m, j, residual):
    """One lane of a FIXPIPE, not rounded to a float type yet: channel 16 * n + j of pixel m."""
    if n >= p["n1"]:
        return p["zero"]
    sums = np.int32 if p["sums"] else np.float32
    value = look(cores[Memory.L0C], record[isa.S0] + 2 * (n * p["mpad"] + m), (16,), sums)[j]
    side = cores[p["side"] or Memory.UB]
    bias = look(side, record[isa.S1] + 2 * n, (16,), sums)[j] if record[isa.S1] >= 0 else sums(0)
    if p["sums"]:
        total = (int(value) + int(bias) + 2**31) % 2**32 - 2**31
        if record[isa.DTYPE] == DataType.int32:
            return total
        value = np.float32(total)
        if p["scale"] >= 0:
            value = value * look(side, p["scale"] + 2 * n, (16,), np.float32)[j]
        if record[isa.DTYPE] in BYTES:
            low, high = p["low"] - p["zero"], p["high"] - p["zero"]
            return p["low"] if np.isnan(value) else round(min(max(float(value), low), high)) + p["zero"]
    else:
        value = value + bias
        if residual is not None:
            value = value + np.float32(residual)
    return max(value, np.float32(0)) if p["act"] else value


def converted(value, dtype):
    """What an element becomes in an integer type."""
    limits = np.iinfo(dtype)
    if np.isnan(value):
        return 0
    return int(min(max(value, limits.min), limits.max)) if np.isinf(value) else min(max(round(float(value)), limits.min), limits.max)


def _vector(cores, record, p):
    op, ub = Op(record[isa.OP]), cores[record[isa.DST]]
    dtype = TYPES[record[isa.DTYPE]]
    source_dtype = TYPES[p["imm"]] if op == Op.VCONVERT else np.uint8 if op == Op.VLUT else dtype
    sizes = [t().itemsize for t in (dtype, source_dtype)]
    lanes = BLOCK_BYTES // min(sizes)
    run, source_run = (size // min(sizes) for size in sizes)
    integers = dtype not in (np.float16, np.float32)
    imm = np.int32(p["imm"]).view(np.float32)
    for r in range(p["repeats"]):
        written = []
        for b in range(p["blocks"]):
            s = [
                look(ub, record[isa.S0 + i] + r * p[f"s{i}rs"] + b * p[f"s{i}bs"] * source_run, (lanes,), source_dtype)
                for i in range(1 if op == Op.VLUT else OPS[op].sources)
            ]
            if op == Op.VLUT:
                table = look(ub, record[isa.S1], (256,), dtype)
                value = np.array([table[x] for x in s[0]])
            elif integers and op in (Op.VCONVERT, Op.VFILL):
                value = np.array([converted(x, dtype) for x in (s[0] if s else [imm] * lanes)])
            else:
                wider = np.int64 if source_dtype not in (np.float16, np.float32) else np.float32
                value = _lanes(op, [x.astype(wider) for x in s], imm, lanes, dtype)
            written.append((record[isa.D] + r * p["drs"] + b * p["dbs"] * run, value.astype(dtype)))
        for block, value in written:
            place(ub, block, value)


def _lanes(op, s, imm, lanes, dtype):
    if op == Op.VFILL:
        return np.full(lanes, imm)
    if op == Op.VMADD and dtype is np.float32:
        return s[0].astype(np.float64) * s[1] + s[2]
    if op == Op.VLANE_SUM:
        total = s[0]
        while total.size > 1:
            total = total[: total.size // 2] + total[total.size // 2 :]
        return np.full(lanes, total[0])
    if op == Op.VLANE_ADD:
        total = s[1]
        for lane in s[0]:
            total = total + lane
        return total
    return {
        Op.VCOPY: lambda: s[0], Op.VCONVERT: lambda: s[0], Op.VRELU: lambda: np.maximum(s[0], 0), Op.VEXP: lambda: np.exp(s[0]),
        Op.VLN: lambda: np.log(s[0]), Op.VSQRT: lambda: np.sqrt(s[0]), Op.VRECIPROCAL: lambda: np.float32(1) / s[0],
        Op.VADDS: lambda: s[0] + imm, Op.VMULS: lambda: s[0] * imm, Op.VMAXS: lambda: np.maximum(s[0], imm),
        Op.VMINS: lambda: np.minimum(s[0], imm), Op.VADD: lambda: s[0] + s[1], Op.VSUB: lambda: s[0] - s[1],
        Op.VMUL: lambda: s[0] * s[1], Op.VMAX: lambda: np.maximum(s[0], s[1]), Op.VMIN: lambda: np.minimum(s[0], s[1]),
        Op.VDIV: lambda: s[0] / s[1], Op.VMADD: lambda: s[0] * s[1] + s[2], Op.VLANE_MAX: lambda: np.full(lanes, s[0].max()),
    }[op]()  # fmt: skip


# random legal records ----------------------------------------------------------------------------------------------


@st.composite
def records(draw, ops=tuple(op for op in OPS if op not in (Op.SET, Op.WAIT)), fractal_rows=16, sides=(Memory.UB,)):
    """A record that `tiny` takes: every block inside its memory (the middle of it, so that strides may go either way).

    sides: where VECTOR works and FIXPIPE has its bias, scale and residual; `tiny` has UB for that.  fractal_rows: 16 on `tiny`; 1 where the
    matrix unit multiplies so many rows at a time that any number of them is legal.
    """
    op = draw(st.sampled_from(ops))
    record = np.zeros(WORDS, np.int32)
    record[isa.OP], record[isa.S0 : isa.S2 + 1] = op, -1
    dtype = DataType(draw(st.sampled_from(OPS[op].types)))
    record[isa.DTYPE] = dtype
    small = st.integers(1, 4)

    def put(**values):
        for name, value in values.items():
            record[isa.P + OPS[op].params.index(name)] = value

    def between(low, high):
        return draw(st.integers(low, high))

    if op == Op.COPY:
        record[isa.SRC], record[isa.DST] = draw(st.sampled_from(OPS[op].moves))
        record[isa.ENGINE] = Engine[TINY.path(Memory(record[isa.SRC]), Memory(record[isa.DST])).engine]
        record[isa.D], record[isa.S0] = between(100, 140), between(100, 140)
        put(**{name: draw(small) for name in ("length", "count", "count2")})
        put(**{name: between(-8, 8) for name in ("sstride", "dstride", "sstride2", "dstride2")})
    elif op in (Op.IM2COL, Op.MMAD_IM2COL):
        fused = op == Op.MMAD_IM2COL
        record[[isa.ENGINE, isa.SRC, isa.DST]] = (Engine.CUBE, Memory.L1, Memory.L0C) if fused else (Engine.MTE1, Memory.L1, Memory.L0A)
        lanes = 4 if dtype != DataType.float32 and draw(st.booleans()) else dtype.lanes
        record[isa.PAD] = between(-1, 255) if dtype in BYTES else -1
        h, w, kh, kw = between(1, 6), between(1, 6), draw(small), draw(small)
        pitch = -(-w // (dtype.lanes // 4)) if lanes == 4 else w + between(0, 2)
        record[isa.D], record[isa.S0] = between(0, 100), between(0, 100)
        ring = h + between(0, 2) if draw(st.booleans()) else 0
        put(
            h=h,
            w=w,
            pitch=pitch,
            plane=max(h, ring) * pitch + between(0, 3),
            ring=ring,
            first=between(0, max(0, ring - 1)),
        )
        window = {"sh": between(1, 3), "sw": between(1, 3), "dh": between(1, 2)}
        window |= {"dw": between(1, 2), "pt": between(0, 3), "pl": between(0, 3), "kh": kh, "kw": kw}
        if fused:
            pairs = {"kernel": ("kh", "kw"), "stride": ("sh", "sw"), "dilation": ("dh", "dw"), "padding": ("pt", "pl")}
            put(**{name: window[y] * 512 + window[x] for name, (y, x) in pairs.items()})
            put(n1=between(1, 3), acc=between(0, 1), right=draw(st.sampled_from(BYTES)) if dtype in BYTES else 0)
            record[isa.S1] = between(0, 50)
            put(rstride=between(0, 70))
        else:
            put(**window)
        put(ow=between(1, 7), moff=between(0, 9))
        put(m=between(1, 16), mpad=16 + (between(0, 4) if fractal_rows == 1 else 0))
        # a tile behind the last kernel position of the four-lane mode is all zero; else up to three planes of C1
        put(koff=between(0, 1 if lanes == 4 else 5), k=between(1, 4), lanes=lanes)
    elif op == Op.FRACTAL:
        record[[isa.ENGINE, isa.SRC, isa.DST]] = Engine.MTE1, Memory.L1, Memory.L0B
        record[isa.D], record[isa.S0] = between(0, 50), between(0, 100)
        record[isa.PAD] = between(-1, 255) if dtype in BYTES else -1
        put(plane=between(1, 60), pixels=between(1, 60), k=between(1, 3), n1=between(1, 3), transpose=between(0, 1))
    elif op == Op.MMAD:
        record[[isa.ENGINE, isa.SRC, isa.DST]] = Engine.CUBE, Memory.L0A, Memory.L0C
        record[[isa.D, isa.S0, isa.S1]] = [between(0, 50) for _ in range(3)]
        put(mpad=fractal_rows * between(1, 32 // fractal_rows), k=between(1, 3), n1=between(1, 3), acc=between(0, 1))
        put(right=draw(st.sampled_from(BYTES)) if dtype in BYTES else 0)
    elif op == Op.FIXPIPE:
        record[isa.SRC], record[isa.DST] = draw(st.sampled_from(OPS[op].moves))
        record[isa.ENGINE] = Engine.MTE3 if record[isa.DST] == Memory.DDR else Engine.FIXPIPE
        record[[isa.D, isa.S0]] = between(100, 120), between(0, 50)
        record[[isa.S1, isa.S2]] = draw(st.sampled_from((-1, 60, 104))), draw(st.sampled_from((-1, 100, 107, 150)))
        m = between(1, 12)
        put(m=m, mpad=16 + between(0, 3), n1=between(1, 3), dplane=m + between(0, 3), rplane=between(0, 15))
        put(side=draw(st.sampled_from(sides)) % Memory.UB)
        if dtype in FLOATS:
            put(act=between(0, 1))
        if dtype not in FLOATS or draw(st.booleans()):
            record[isa.S2] = -1
            put(
                sums=DataType.int32,
                scale=-1 if dtype == DataType.int32 else draw(st.sampled_from((60, 80) if dtype in BYTES else (-1, 60, 80))),
            )
        if record[isa.S2] >= 0:
            put(rtype=draw(st.sampled_from(FLOATS)))
        if dtype in BYTES:
            zero, low, high = (between(*(-128, 127) if dtype == DataType.int8 else (0, 255)) for _ in range(3))
            put(zero=zero, low=min(low, high), high=max(low, high))
    else:
        memory = draw(st.sampled_from(sides))
        record[[isa.ENGINE, isa.SRC, isa.DST]] = Engine.VECTOR, memory, memory
        record[isa.D] = between(200, 204)
        for i in range(OPS[op].sources):
            record[isa.S0 + i] = draw(st.sampled_from((record[isa.D], between(195, 210))))
            if op != Op.VLUT or i == 0:
                put(**{f"s{i}bs": between(0, 3), f"s{i}rs": draw(st.sampled_from((0, 1, 3, 8, -2)))})
        put(blocks=between(1, 8), repeats=between(1, 5), dbs=between(0, 2), drs=draw(st.sampled_from((0, 1, 3, 8, 8, -2))))
        imm = draw(st.sampled_from(DataType)) if op == Op.VCONVERT else isa.float_bits(draw(st.floats(-4, 4, width=32)))
        put(imm=imm)
    return record.tolist()
