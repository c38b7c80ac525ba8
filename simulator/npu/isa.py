"""The instruction set: one fixed-width record per instruction, and its legality as data.

A stream is an int32 array of shape [n, WORDS].  Columns:

| word | name   | meaning                                                              |
|------|--------|----------------------------------------------------------------------|
| 0    | OP     | `Op`                                                                 |
| 1    | ENGINE | `Engine` whose queue takes it                                        |
| 2    | DTYPE  | `DataType` of the operands; of the left one of MMAD, of the result of |
|      |        | FIXPIPE and VCONVERT, whose other types are parameters               |
| 3    | TAG    | free for the compiler: segment << 16 | operator; changes no behaviour |
| 4    | SRC    | `Memory` of src0 (and src1, src2 unless the opcode says otherwise)   |
| 5    | DST    | `Memory` of dst                                                      |
| 6..9 | D, S0, S1, S2 | addresses in blocks of 32 bytes; -1 where an optional one is absent |
| 10.. | P0..P20 | parameters, named per opcode below                                  |
| 31   | BLOCK  | free for the compiler: block of the segment, or its complement if the |
|      |        | data written to L1 outlives the segment; changes no behaviour        |

All addresses, strides and lengths are in blocks of 32 bytes.  `C0` is the number of elements in a block (16 float16, 8 float32 or int32,
32 int8 or uint8).  Layouts:

* activation plane set: [C1][H][W] blocks, C0 channels in each block (NC1HWC0 with N outside);
* L0A tile: [K1][M] blocks: K1 runs over (c1, ky, kx), M over output pixels, padded to the machine's fractal (16 rows or fewer);
* L0B tile and weights: [N1][K1][16] blocks: block (n1, k1, j) holds C0 values of K1 for output channel 16*n1+j;
* L0C tile: [N1][M] pairs of blocks, 16 accumulators in each pair: float32, or int32 for operands of 8 bits.

Opcodes are primitive: none hides an operator.

A machine need not have all memories.  Where it has no UB, VECTOR and FIXPIPE work in L1; where it has no L0A and L0B, products are
MMAD_IM2COLs, which read their operands in L1.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from simulator.npu.parts import BLOCK_BYTES, BYTES, FLOATS, FRACTALS, DataType, Engine, Memory

Ints = TypeVar("Ints", int, NDArray[np.int64])

ISA_VERSION = 4
WORDS = 32

OP, ENGINE, DTYPE, TAG, SRC, DST, D, S0, S1, S2 = range(10)
P = 10  # first parameter word
BLOCK = WORDS - 1
REPEAT_BLOCKS = 8
MAX_REPEATS = 255
LUT_BLOCKS = (1 << 8) // BLOCK_BYTES  # a table has 256 bytes
MAX_WINDOW = 255  # IM2COL: largest kernel, stride, dilation and leading padding

OPERATOR_BITS = 16  # low bits of TAG; the segment number has the bits above
OPERATOR_MASK = (1 << OPERATOR_BITS) - 1

# tables that numba can read as constants, int64 [data types], indexed by the type of the operands
TYPE_LANES = np.array([dtype.lanes for dtype in DataType], np.int64)  # elements of a block (C0)
COLUMNS = np.array([fractal.columns for fractal in FRACTALS], np.int64)  # output channels of a fractal
WEIGHT_BLOCKS = np.array([fractal.weight_blocks for fractal in FRACTALS], np.int64)  # blocks of a fractal of weights, per block of k
SUM_BLOCKS = np.array([fractal.sum_blocks for fractal in FRACTALS], np.int64)  # blocks of a row of a fractal's sums in L0C

RECORD = np.dtype(
    [(name, "<i4") for name in ("op", "engine", "dtype", "tag", "src", "dst", "d", "s0", "s1", "s2")]
    + [("p", "<i4", (BLOCK - P,)), ("block", "<i4")]
)
"""The same bytes as one row of int32[WORDS], with names."""


class Op(IntEnum):
    SET = 1
    WAIT = 2
    COPY = 3
    IM2COL = 4
    MMAD = 5
    FIXPIPE = 6
    FRACTAL = 7
    MMAD_IM2COL = 8
    # VECTOR, UB -> UB, or L1 -> L1 where there is no UB
    VFILL = 16  # dst = imm
    VCOPY = 17  # dst = s0
    VRELU = 18  # dst = max(s0, 0)
    VEXP = 19
    VLN = 20
    VSQRT = 21
    VRECIPROCAL = 22
    VADDS = 24  # dst = s0 + imm
    VMULS = 25  # dst = s0 * imm
    VMAXS = 26
    VMINS = 27
    VADD = 32  # dst = s0 + s1
    VSUB = 33
    VMUL = 34
    VMAX = 35
    VMIN = 36
    VDIV = 37
    VMADD = 40  # dst = s0 * s1 + s2, rounded once
    VLANE_MAX = 48  # every lane of the dst block = max over the lanes of the s0 block
    VLANE_SUM = 49
    VLANE_ADD = 50  # every lane of the dst block = s1 + the lanes of the s0 block, added one after the other from lane 0 on
    VLUT = 52  # dst = s1[s0]: the element of a table of 256 that the byte of s0 counts to, from 0
    VCONVERT = 56  # dst of DTYPE, s0 of type P[imm]; see below


class Activation(IntEnum):
    """The last step of FIXPIPE."""

    none = 0
    relu = 1
    clip = 2  # min(relu, LIMIT)


# P words by opcode -----------------------------------------------------------------------------------------------
# SET / WAIT: the other core, the other engine, the flag id
FLAG_CORE, FLAG_ENGINE, FLAG_ID = P, P + 1, P + 2

# COPY: up to COUNT2 x COUNT bursts of LENGTH blocks; strides start to start
(C_LENGTH, C_COUNT, C_SSTRIDE, C_DSTRIDE, C_COUNT2, C_SSTRIDE2, C_DSTRIDE2) = range(P, P + 7)

# Within L1 an instruction reads all its sources before it writes.

# IM2COL: L1 -> L0A.  Element (m, k1): pixel (oy, ox) = divmod(M_OFF + m, OW); for LANES = C0:
#   (c1, ky, kx) from k1 = K_OFF + k, kx fastest; block at S0 + c1*PLANE + y*PITCH + x with
#   y = oy*SH - PT + ky*DH, x = ox*SW - PL + kx*DW; outside [0, H) x [0, W) every lane is the pad value.  PL may be as low as -7:
#   the image then begins in front of the first window.
# LANES = 4 (only where C0 is 16 or 32): an image of [H][W] pixels of 4 lanes, C0/4 in a block, PITCH and PLANE in blocks, W in pixels;
#   block k1 holds kernel positions C0/4*k1 .. C0/4*k1 + C0/4-1 of 4 lanes each, positions >= KH*KW give the pad value.
# RING > 0: the planes are rings of RING rows (at least H), row y is row (FIRST + y) mod RING of the plane at S0 + c1*PLANE.
# Rows m in [M, MPAD) of L0A are filled with the pad value, up to a multiple of the rows of the machine's fractal.
# Dst block (k, m) at D + k*MPAD + m.
# PAD: all parameter words are taken, so it stands where S2 would.  -1: zero; else, of int8 and uint8, the byte of the pad value, 0..255.
(I_H, I_W, I_PITCH, I_PLANE, I_KH, I_KW, I_SH, I_SW, I_DH, I_DW, I_PT, I_PL) = range(P, P + 12)
(I_OW, I_MOFF, I_M, I_MPAD, I_KOFF, I_K, I_LANES, I_RING, I_FIRST) = range(P + 12, P + 21)
PAD = S2  # word of IM2COL and FRACTAL

# FRACTAL: L1 -> L0B.  An activation as the right operand: block of plane c and pixel s at S0 + c*PLANE + s, PIXELS of them from S0 on, dst
# block (n1, k1, j) at D + (n1*K + k1)*16 + j.  For pixels that are not there it gives the pad value (PAD, as IM2COL's).
# TRANSPOSE = 0: K runs over channels, N over pixels: block (n1, k1, j) is the block of plane k1 and pixel 16*n1 + j.
# TRANSPOSE = 1: K runs over pixels, N over channels: lane i of block (n1, k1, j) is channel 16*n1 + j, in lane (16*n1 + j) % C0 of plane
#   (16*n1 + j) / C0, of pixel C0*k1 + i.
R_PLANE, R_PIXELS, R_K, R_N1, R_TRANSPOSE = range(P, P + 5)

# MMAD: L0C[n1][m] (+)= L0A x L0B.  S0 in L0A [K][MPAD], S1 in L0B [N1][K][16], D in L0C [N1][MPAD] pairs.
# SRC is L0A (S1 is always L0B).  ACC: 1 adds to the sums, 0 starts them.  RIGHT: DataType of the L0B operand, int8 or uint8, if the
# L0A operand is int8 or uint8 (any combination); 0 for floats, where both have one type.  Sums of integers are int32 and wrap.
M_MPAD, M_K, M_N1, M_ACC, M_RIGHT = range(P, P + 5)

# MMAD_IM2COL: L0C[n1][m] (+)= window x weights, both in L1: MMAD of the output of IM2COL for S0, with the weights at S1, [N1][K][16]
# with RSTRIDE blocks from n1 to n1.  Words common with IM2COL and MMAD mean the same.  Pairs of words of IM2COL are one word here,
# y << 9 and x in the 9 bits below, signed: KERNEL (KH, KW), STRIDE (SH, SW), DILATION (DH, DW), PADDING (PT, PL).  D in L0C, S2: PAD.
W_KERNEL, W_STRIDE, W_DILATION, W_PADDING, W_N1, W_ACC, W_RIGHT, W_RSTRIDE = range(I_KH, I_OW)
PAIR_BITS = 9
_PAIR_MASK, _PAIR_SIGN = (1 << PAIR_BITS) - 1, 1 << PAIR_BITS - 1

# FIXPIPE: L0C -> {UB, L1, DDR}.  S0 in L0C [N1][MPAD] pairs; writes M pixels of N1*16 channels as planes: plane c at D + c*DPLANE, M
# contiguous blocks.  float16: N1 planes; float32 and int32: 2*N1 planes; int8 and uint8: n1 = 2c and 2c + 1 make plane c, and where N1 is
# odd, the upper half of the last plane is ZERO.
# Operands lie in the memory SIDE: 0, which is UB, or L1 where there is no UB.  Their words are addresses, or -1 if there is none:
#   S1     bias[N1*16], of the type of the sums
#   SCALE  float32 scale[N1*16], for int32 sums only
#   S2     residual, of type RTYPE, as planes of that type of stride RPLANE
# SUMS = 0: the sums are float32; RTYPE is float16 or float32.
#   result = ACT(sum + bias + residual), where LIMIT of ACT is the bits of a float32.  Arithmetic in float32, one rounding at the end.
# SUMS = int32: the sums are int32.
#   s = sum + bias, + residual where RTYPE is int32; int32, which wraps
#   v = float32(s) * scale, each rounded to nearest even; float32(s) without SCALE
#   result, by DTYPE:
#     int32           s
#     float16, float32  ACT(v), then one rounding
#     int8, uint8     w = round(min(max(v, LOW - ZERO), HIGH - ZERO)) + ZERO, to nearest even (or as `Machine.rounding` says); LOW of NaN.
#                     SCALE is needed; ZERO, LOW and HIGH are of the type.
#     int8, uint8, with a residual r whose RTYPE is int8 or uint8
#                     LAST = 0: round(OWN * w + (OTHER * r + FIXED)), cut to the type
#                     LAST = 1: round(OTHER * r + (OWN * w + FIXED)), cut to the type
#                     OWN, OTHER and FIXED are the bits of float32; a product and its sum are rounded once, in float32.
F_M, F_MPAD, F_N1, F_DPLANE, F_RPLANE, F_ACT, F_LIMIT, F_SUMS, F_SCALE, F_ZERO, F_LOW, F_HIGH, F_SIDE = range(P, P + 13)
F_RTYPE, F_OWN, F_OTHER, F_FIXED, F_LAST = range(P + 13, P + 18)

# VECTOR: REPEATS (<= 255) of BLOCKS (<= 8) blocks; block b of repeat r at base + r*xRS + b*xBS.  Repeats run in order, so
# a dst (and s0 or s1) with repeat stride 0 accumulates.  IMM holds the bits of a float32; for VCONVERT it holds the source DataType.
# VCONVERT counts in blocks of the type with more lanes.  On the other side such a block is a run of 2 or 4 blocks: float16 -> float32
#   reads BLOCKS blocks and writes twice as many (block b to D + r*DRS + 2*b*DBS and the next one); int8 has runs of 4 of float32 and int32.
#   It rounds to nearest even, and to an integer type saturates; NaN becomes 0.
# VLUT: S1 is the first block of the table, 256 elements of DTYPE, used by all repeats; s1 has no strides.  It counts in blocks of
#   bytes; each becomes a run of 1, 2 or 4 blocks, as in VCONVERT.
# Integers: VADD and VSUB wrap; VFILL converts IMM as VCONVERT converts a float32.
(V_BLOCKS, V_REPEATS, V_DBS, V_DRS, V_S0BS, V_S0RS, V_S1BS, V_S1RS, V_S2BS, V_S2RS, V_IMM) = range(P, P + 11)


@dataclass(frozen=True)
class OpSpec:
    """Legality of one opcode.

    engines: queues that may take it; empty if the machine's `paths` decide (COPY, IM2COL, FRACTAL, FIXPIPE).
    moves: (source, destination) pairs that the opcode can express; the machine must have the path as well.
    sources: number of required sources, the first ones of s0, s1, s2.
    optional: number of optional sources behind them, -1 where absent.
    params: names of the parameter words in order, as in the text form.
    cost_class: key of the machine's cost of a VECTOR opcode, `vector.<cost_class>_cycles`; '' for other opcodes.
    types: legal values of DTYPE.
    """

    engines: tuple[Engine, ...]
    moves: tuple[tuple[Memory, Memory], ...]
    sources: int
    optional: int
    params: tuple[str, ...]
    cost_class: str = ""
    types: tuple[DataType, ...] = tuple(DataType)


_FLOATS_AND_BYTES = (*FLOATS, *BYTES)
_FLAG = OpSpec(tuple(Engine), (), 0, 0, ("core", "engine", "id"))
_DMA = tuple(
    (Memory[s], Memory[d])
    for s, d in (
        ("DDR", "L1"), ("DDR", "UB"), ("L1", "UB"), ("L1", "L0B"), ("UB", "L1"), ("UB", "DDR"), ("L1", "DDR"),
        ("DDR", "SHARED"), ("SHARED", "L1"), ("SHARED", "UB"), ("UB", "SHARED"), ("L1", "SHARED"), ("SHARED", "DDR"), ("L1", "L1"),
    )
)  # fmt: skip
_WINDOW_ENDS = ("h", "w", "pitch", "plane"), ("ow", "moff", "m", "mpad", "koff", "k", "lanes", "ring", "first")
_VPARAMS = ("blocks", "repeats", "dbs", "drs", "s0bs", "s0rs", "s1bs", "s1rs", "s2bs", "s2rs", "imm")


def _vector(sources: int, cost_class: str, types: tuple[DataType, ...] = FLOATS) -> OpSpec:
    return OpSpec((Engine.VECTOR,), ((Memory.UB, Memory.UB), (Memory.L1, Memory.L1)), sources, 0, _VPARAMS, cost_class, types)


OPS: dict[Op, OpSpec] = {
    Op.SET: _FLAG,
    Op.WAIT: _FLAG,
    Op.COPY: OpSpec((), _DMA, 1, 0, ("length", "count", "sstride", "dstride", "count2", "sstride2", "dstride2")),
    Op.IM2COL: OpSpec(
        (), ((Memory.L1, Memory.L0A),), 1, 0,
        (
            "h", "w", "pitch", "plane", "kh", "kw", "sh", "sw", "dh", "dw", "pt", "pl", "ow", "moff", "m", "mpad", "koff", "k", "lanes",
            "ring", "first",
        ),
        types=_FLOATS_AND_BYTES,
    ),
    Op.MMAD_IM2COL: OpSpec(
        (), ((Memory.L1, Memory.L0C),), 2, 0,
        (*_WINDOW_ENDS[0], "kernel", "stride", "dilation", "padding", "n1", "acc", "right", "rstride", *_WINDOW_ENDS[1]),
        types=_FLOATS_AND_BYTES,
    ),
    Op.MMAD: OpSpec((Engine.CUBE,), ((Memory.L0A, Memory.L0C),), 2, 0, ("mpad", "k", "n1", "acc", "right"), types=_FLOATS_AND_BYTES),
    Op.FIXPIPE: OpSpec(
        (), ((Memory.L0C, Memory.UB), (Memory.L0C, Memory.L1), (Memory.L0C, Memory.DDR)), 1, 2,
        (
            "m", "mpad", "n1", "dplane", "rplane", "act", "limit", "sums", "scale", "zero", "low", "high", "side", "rtype", "own", "other",
            "fixed", "last",
        ),
    ),
    Op.FRACTAL: OpSpec((), ((Memory.L1, Memory.L0B),), 1, 0, ("plane", "pixels", "k", "n1", "transpose"), types=_FLOATS_AND_BYTES),
    Op.VFILL: _vector(0, "simple", tuple(DataType)),
    Op.VCOPY: _vector(1, "simple", tuple(DataType)),
    Op.VRELU: _vector(1, "simple"),
    Op.VEXP: _vector(1, "transcendental"),
    Op.VLN: _vector(1, "transcendental"),
    Op.VSQRT: _vector(1, "transcendental"),
    Op.VRECIPROCAL: _vector(1, "divide"),
    Op.VADDS: _vector(1, "simple"),
    Op.VMULS: _vector(1, "simple"),
    Op.VMAXS: _vector(1, "simple"),
    Op.VMINS: _vector(1, "simple"),
    Op.VADD: _vector(2, "simple", (*FLOATS, DataType.int32)),
    Op.VSUB: _vector(2, "simple", _FLOATS_AND_BYTES),
    Op.VMUL: _vector(2, "simple"),
    Op.VMAX: _vector(2, "simple", _FLOATS_AND_BYTES),
    Op.VMIN: _vector(2, "simple", _FLOATS_AND_BYTES),
    Op.VDIV: _vector(2, "divide"),
    Op.VMADD: _vector(3, "simple"),
    Op.VLANE_MAX: _vector(1, "reduce", _FLOATS_AND_BYTES),
    Op.VLANE_SUM: _vector(1, "reduce"),
    Op.VLANE_ADD: _vector(2, "ordered", (DataType.float32,)),
    Op.VLUT: _vector(2, "lookup", (*BYTES, *FLOATS, DataType.int32)),
    Op.VCONVERT: _vector(1, "simple", tuple(DataType)),
}  # fmt: skip

PRODUCT_OPS = (Op.MMAD, Op.MMAD_IM2COL)
FIRST_VECTOR_OP = int(Op.VFILL)
# number of sources of a VECTOR opcode, int64 [opcodes]: a table that numba can close over
VECTOR_SOURCES = np.zeros(64, np.int64)
for _op, _spec in OPS.items():
    if _op >= FIRST_VECTOR_OP:
        VECTOR_SOURCES[_op] = _spec.sources


def tag_of(segment: Ints, operator: Ints) -> Ints:
    """TAG of numbers, or of arrays of them."""
    return segment << OPERATOR_BITS | operator


def segment_of(tag: Ints) -> Ints:
    """The segment of a TAG, or of an array of them."""
    return tag >> OPERATOR_BITS


def block_of(word: Ints) -> Ints:
    """The block of the segment of a BLOCK, or of an array of them."""
    return word ^ (word >> 31)


def operator_of(tag: Ints) -> Ints:
    """The operator of a TAG, or of an array of them."""
    return tag & OPERATOR_MASK


def macs(products: NDArray[np.int64]) -> NDArray[np.int64]:
    """Multiply-accumulates, int64 [n], padding included.  products: records of `PRODUCT_OPS`, int64 [n, WORDS]."""
    dtype, windows = products[:, DTYPE], products[:, OP] == Op.MMAD_IM2COL
    mpad, k, n1 = (np.where(windows, products[:, a], products[:, b]) for a, b in ((I_MPAD, M_MPAD), (I_K, M_K), (W_N1, M_N1)))
    counts: NDArray[np.int64] = mpad * k * TYPE_LANES[dtype] * n1 * COLUMNS[dtype]
    return counts


def pack_pair(vertical: Ints, horizontal: Ints) -> Ints:
    """Two signed fields of a window in one word: y, x."""
    return (vertical << PAIR_BITS) | (horizontal & _PAIR_MASK)


def unpack_pair(word: Ints) -> tuple[Ints, Ints]:
    """(y, x) of a `pack_pair` word."""
    unsigned_x = word & _PAIR_MASK
    x = (unsigned_x ^ _PAIR_SIGN) - _PAIR_SIGN  # sign extension
    return word >> PAIR_BITS, x


def float_bits(value: float) -> int:
    """The int32 word that carries a float32 immediate."""
    return int(np.float32(value).view(np.int32))


def bits_float(word: int) -> float:
    """The float32 immediate that an int32 word carries."""
    return float(np.int32(word).view(np.float32))


def digest_inputs() -> str:
    """Text that changes whenever records change their meaning or layout; part of the ISA digest."""
    rows = [f"{op.name}={int(op)}:{spec.params}:{spec.sources}:{spec.optional}:{[t.name for t in spec.types]}" for op, spec in OPS.items()]
    return f"isa {ISA_VERSION} words {WORDS}\n" + "\n".join(rows)
