"""Program.verify: every illegal thing is refused with what it is and where; what it accepts can be executed."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.functional import execute
from simulator.npu import isa
from simulator.npu.errors import DeadlockError, ProgramError
from simulator.npu.isa import OPS, WORDS, Op
from simulator.npu.machine_file import load_machine
from simulator.npu.parts import BLOCK_BYTES, DataType, Engine, Memory
from simulator.npu.program import DdrBuffer, MemoryMap, Program
from tests.integers import with_integers
from tests.messages import naming
from tests.plans import multiplying

TINY = with_integers(load_machine("tiny"))
F16, F32, I8, U8 = DataType.float16, DataType.float32, DataType.int8, DataType.uint8
MAP = MemoryMap(
    F16,
    (DdrBuffer("w", "constant", 0, 8), DdrBuffer("x", "input", 8, 40), DdrBuffer("y", "output", 48, 40), DdrBuffer("s", "scratch", 88, 12)),
    100,
)


def record(
    op: Op, engine: Engine, source: Memory, destination: Memory, at: tuple[int, ...], dtype: DataType = F16, **words: int
) -> np.ndarray:
    row = np.zeros(WORDS, np.int32)
    row[: isa.P] = [op, engine, dtype, 0, source, destination, *at]
    for name, value in words.items():
        row[getattr(isa, name)] = value
    return row


def flag(op: Op, engine: Engine, core: int, other: Engine, number: int) -> np.ndarray:
    row = np.zeros(WORDS, np.int32)
    row[[isa.OP, isa.ENGINE, isa.FLAG_CORE, isa.FLAG_ENGINE, isa.FLAG_ID]] = op, engine, core, other, number
    return row


DDR, L1, L0A, L0B, L0C, UB, SHARED = Memory
ONE = {"C_COUNT": 1, "C_COUNT2": 1}
STEP = {"V_BLOCKS": 2, "V_REPEATS": 3, "V_DBS": 1, "V_DRS": 2, "V_S0BS": 1, "V_S0RS": 2, "V_S1BS": 1, "V_S1RS": 2, "V_S2BS": 1, "V_S2RS": 2}
IMAGE = {
    "I_H": 4, "I_W": 5, "I_PITCH": 5, "I_PLANE": 20, "I_KH": 3, "I_KW": 3, "I_SH": 1, "I_SW": 1, "I_DH": 1, "I_DW": 1, "I_PT": 1, "I_PL": 1,
    "I_OW": 5, "I_MOFF": 0, "I_M": 20, "I_MPAD": 32, "I_KOFF": 0, "I_K": 6, "I_LANES": 16,
}  # fmt: skip
LOAD, IM2COL, FRACTAL, MMAD, FIXPIPE, VMADD, CONVERT, STORE, SET, WAIT, IM2COL8, FRACTAL8, MMAD8, FIXPIPE8, LUT, LANE_ADD = range(16)
I32 = int(DataType.int32)
QUANTISED = {"F_SUMS": I32, "F_SCALE": 8, "F_ZERO": 3, "F_LOW": -128, "F_HIGH": 126}


def legal() -> list[np.ndarray]:
    """One record of every kind, on core 0."""
    return [
        record(Op.COPY, Engine.MTE2, DDR, L1, (0, 0, -1, -1), C_LENGTH=4, C_COUNT=3, C_SSTRIDE=8, C_DSTRIDE=4, C_COUNT2=1),
        record(Op.IM2COL, Engine.MTE1, L1, L0A, (0, 3, -1, -1), **IMAGE),
        record(Op.FRACTAL, Engine.MTE1, L1, L0B, (0, 3, -1, -1), R_PLANE=20, R_PIXELS=20, R_K=2, R_N1=2, R_TRANSPOSE=1),
        record(Op.MMAD, Engine.CUBE, L0A, L0C, (0, 0, 0, -1), M_MPAD=16, M_K=2, M_N1=2, M_ACC=1),
        record(Op.FIXPIPE, Engine.FIXPIPE, L0C, UB, (100, 0, 4, 40), F_M=9, F_MPAD=16, F_N1=2, F_DPLANE=16, F_RPLANE=9, F_ACT=1),
        record(Op.VMADD, Engine.VECTOR, UB, UB, (0, 10, 20, 30), **STEP),
        record(Op.VCONVERT, Engine.VECTOR, UB, UB, (50, 10, -1, -1), F32, **STEP | {"V_DRS": 4}, V_IMM=F16),
        record(Op.COPY, Engine.MTE3, UB, DDR, (88, 5, -1, -1), C_LENGTH=12, **ONE),
        flag(Op.SET, Engine.MTE2, 1, Engine.MTE1, 3),
        flag(Op.WAIT, Engine.MTE1, 1, Engine.MTE3, 0),
        record(Op.IM2COL, Engine.MTE1, L1, L0A, (0, 3, -1, 128), U8, **IMAGE | {"I_LANES": 32}),
        record(Op.FRACTAL, Engine.MTE1, L1, L0B, (0, 3, -1, 255), I8, R_PLANE=20, R_PIXELS=20, R_K=2, R_N1=3, R_TRANSPOSE=1),
        record(Op.MMAD, Engine.CUBE, L0A, L0C, (0, 0, 0, -1), U8, M_MPAD=16, M_K=2, M_N1=3, M_ACC=0, M_RIGHT=I8),
        record(Op.FIXPIPE, Engine.FIXPIPE, L0C, UB, (100, 0, 4, -1), I8, F_M=9, F_MPAD=16, F_N1=3, F_DPLANE=16, **QUANTISED),
        record(Op.VLUT, Engine.VECTOR, UB, UB, (0, 10, 20, -1), U8, V_BLOCKS=2, V_REPEATS=3, V_DBS=1, V_DRS=2, V_S0BS=1, V_S0RS=2),
        record(Op.VLANE_ADD, Engine.VECTOR, UB, UB, (0, 10, 0, -1), F32, V_BLOCKS=2, V_REPEATS=3, V_DBS=1, V_S0BS=1, V_S0RS=2, V_S1BS=1),
    ]


def partner() -> list[np.ndarray]:
    """What core 1 does so that flags are paired."""
    return [flag(Op.WAIT, Engine.MTE1, 0, Engine.MTE2, 3), flag(Op.SET, Engine.MTE3, 0, Engine.MTE1, 0)]


def program(rows: list[np.ndarray], others: list[np.ndarray] | None = None, memory: MemoryMap = MAP, machine: str = TINY.digest) -> Program:
    return Program(
        machine, (np.array(rows, np.int32), np.array(partner() if others is None else others, np.int32).reshape(-1, WORDS)), memory
    )


def changed(at: int, word: str, value: int) -> Program:
    rows = legal()
    rows[at][getattr(isa, word)] = value
    return program(rows)


def test_the_legal_one_passes_and_runs():
    assert program(legal()).instructions == 18
    execute(program(legal()), TINY, np.zeros(100 * BLOCK_BYTES, np.uint8))
    Program(TINY.digest, (np.zeros((0, WORDS), np.int32),) * 2, MAP).verify(TINY)


@pytest.mark.parametrize(
    ("at", "word", "value", "message"),
    [
        (LOAD, "OP", 0, "unknown opcode; opcodes: SET=1"),
        (LOAD, "OP", -1, "unknown opcode"),
        (VMADD, "OP", 63, "unknown opcode"),
        (MMAD, "DTYPE", I8, "right must be int8 or uint8 where the left operand is"),
        (MMAD, "DTYPE", I32, "data type not supported by MMAD on tiny; accepted: float16, float32, int8, uint8"),
        (MMAD, "M_RIGHT", I8, "right must be int8 or uint8 where the left operand is, else 0"),
        (MMAD8, "M_RIGHT", 0, "right must be int8 or uint8"),
        (MMAD8, "M_RIGHT", I32, "right must be int8 or uint8"),
        (VMADD, "DTYPE", I8, "data type not supported by VMADD on tiny; accepted: float16, float32"),
        (LANE_ADD, "DTYPE", F16, "data type not supported by VLANE_ADD on tiny; accepted: float32"),
        (IM2COL, "PAD", 0, "pad is of int8 and uint8"),
        (FRACTAL, "PAD", 3, "pad is of int8 and uint8"),
        (IM2COL8, "PAD", 256, "parameter word 9 must be in -1..255"),
        (FRACTAL8, "PAD", -2, "parameter word 9 must be in -1..255"),
        (IM2COL8, "I_LANES", 16, "lanes must be C0 of the data type, or 4"),
        (FIXPIPE, "F_SUMS", I32, "rtype must be float16 or float32 of float32 sums, int32 of int32 sums"),
        (FIXPIPE, "F_RTYPE", I8, "rtype must be float16 or float32 of float32 sums, int32 of int32 sums, int8 or uint8"),
        (FIXPIPE8, "F_RTYPE", I8, "rtype must be float16 or float32 of float32 sums, int32 of int32 sums, int8 or uint8"),
        (FIXPIPE8, "F_OWN", 1, "own, other, fixed and last are of a residual of 8 bits"),
        (FIXPIPE8, "F_LAST", 2, "parameter word 27 must be in 0..1"),
        (FIXPIPE, "F_SUMS", F32, "sums must be int32, or 0"),
        (FIXPIPE, "F_SCALE", 9, "scale, zero, low and high are of int32 sums"),
        (FIXPIPE, "F_HIGH", 9, "scale, zero, low and high are of int32 sums"),
        (FIXPIPE8, "F_SUMS", 0, "sums must be int32, or 0"),
        (FIXPIPE8, "F_SCALE", -1, "a result of 8 bits needs a scale"),
        (FIXPIPE8, "DTYPE", I32, "a result of int32 has no scale, which is -1"),
        (FIXPIPE8, "DTYPE", F16, "zero, low and high are of a result of 8 bits"),
        (FIXPIPE8, "DTYPE", U8, "zero, low and high must be of the result's type"),
        (FIXPIPE8, "F_ZERO", 128, "zero, low and high must be of the result's type"),
        (FIXPIPE8, "F_LOW", -129, "zero, low and high must be of the result's type"),
        (FIXPIPE8, "F_HIGH", -129, "zero, low and high must be of the result's type"),
        (FIXPIPE8, "F_LOW", 127, "low must not exceed high"),
        (FIXPIPE8, "S2", 4, "rtype must be float16 or float32 of float32 sums, int32 of int32 sums, int8 or uint8"),
        (FIXPIPE8, "F_ACT", 1, "an activation is of a result that is a float"),
        (FIXPIPE8, "F_SCALE", 1019, r"FIXPIPE touches UB blocks 1019..1025, outside"),
        (FIXPIPE8, "D", 1000, r"FIXPIPE touches UB blocks 1000..1025, outside"),
        (LUT, "S1", 1017, r"VLUT touches UB blocks 1017..1025, outside"),
        (MMAD, "DTYPE", 9, "data type not supported by tiny"),
        (LOAD, "ENGINE", Engine.MTE3, "COPY: no such path or engine on tiny"),
        (MMAD, "ENGINE", Engine.VECTOR, "MMAD: no such path or engine"),
        (VMADD, "ENGINE", 9, "VMADD: no such path or engine"),
        (LOAD, "DST", L0A, "COPY: no such path or engine"),
        (LOAD, "SRC", -1, "COPY: no such path or engine"),
        (MMAD, "SRC", L0B, "MMAD: no such path or engine"),
        (VMADD, "DST", L1, "VMADD: no such path or engine"),
        (LOAD, "C_LENGTH", 0, "parameter word 10 must be in 1.."),
        (LOAD, "C_COUNT", -1, "parameter word 11 must be in 1.."),
        (LOAD, "C_COUNT2", 0, "parameter word 14 must be in 1.."),
        (IM2COL, "I_W", 0, "parameter word 11 must be in 1.."),
        (IM2COL, "I_KH", 256, "parameter word 14 must be in 1..255"),
        (IM2COL, "I_SH", 0, "parameter word 16 must be in 1..255"),
        (IM2COL, "I_PT", -1, "parameter word 20 must be in 0..255"),
        (IM2COL, "I_OW", 0, "parameter word 22 must be in 1.."),
        (IM2COL, "I_MOFF", -1, "parameter word 23 must be in 0.."),
        (IM2COL, "I_MPAD", 24, "mpad must be a multiple of 16"),
        (IM2COL, "I_M", 33, "m must not exceed mpad"),
        (IM2COL, "I_RING", 1, "h must not exceed the ring's rows"),
        (IM2COL, "I_RING", -1, "parameter word 29 must be in 0.."),
        (IM2COL, "I_LANES", 8, "lanes must be C0 of the data type, or 4 for float16"),
        (IM2COL, "S0", -1, "parameter word 7 must be in 0.."),
        (FRACTAL, "R_PIXELS", 0, "parameter word 11 must be in 1.."),
        (FRACTAL, "R_PLANE", 0, "parameter word 10 must be in 1.."),
        (FRACTAL, "R_N1", 0, "parameter word 13 must be in 1.."),
        (FRACTAL, "R_TRANSPOSE", 2, "parameter word 14 must be in 0..1"),
        (MMAD, "M_MPAD", 0, "parameter word 10 must be in 1.."),
        (MMAD, "M_MPAD", 8, "mpad must be a multiple of 16"),
        (MMAD, "M_MPAD", 40, "mpad must be a multiple of 16"),
        (MMAD, "M_ACC", 2, "parameter word 13 must be in 0..1"),
        (FIXPIPE, "F_M", 17, "m must not exceed mpad"),
        (FIXPIPE, "F_ACT", 3, "parameter word 15 must be in 0..2"),
        (FIXPIPE, "F_LIMIT", -1, "parameter word 16 must be in 0.."),
        (VMADD, "V_BLOCKS", 9, "parameter word 10 must be in 1..8"),
        (VMADD, "V_REPEATS", 256, "parameter word 11 must be in 1..255"),
        (VMADD, "V_REPEATS", 0, "parameter word 11 must be in 1..255"),
        (CONVERT, "V_IMM", 7, "parameter word 20 must be in 0..4"),
        (LOAD, "S0", 100, r"COPY touches DDR blocks 100..120, outside the 100 blocks of DDR"),
        (LOAD, "S0", -1, r"COPY touches DDR blocks -1..19, outside the 100 blocks of DDR"),
        (LOAD, "C_SSTRIDE", -1, r"COPY touches DDR blocks -2..4, outside"),
        (LOAD, "C_SSTRIDE", 2**31 - 1, r"outside the 100 blocks of DDR"),
        (LOAD, "D", 2040, r"COPY touches L1 blocks 2040..2052, outside the 2048 blocks of L1"),
        (IM2COL, "S0", 2040, r"IM2COL touches L1 blocks 2040..2060, outside the 2048 blocks of L1"),
        (IM2COL, "I_K", 9, r"IM2COL touches L0A blocks 0..288, outside the 256 blocks of L0A"),
        (MMAD, "S0", 225, r"MMAD touches L0A blocks 225..257, outside the 256 blocks of L0A"),
        (MMAD, "S1", 193, r"MMAD touches L0B blocks 193..257, outside the 256 blocks of L0B"),
        (MMAD, "D", 449, r"MMAD touches L0C blocks 449..513, outside the 512 blocks of L0C"),
        (FIXPIPE, "S0", 463, r"FIXPIPE touches L0C blocks 463..513, outside the 512 blocks of L0C"),
        (FIXPIPE, "S1", 1021, r"FIXPIPE touches UB blocks 1021..1025, outside the 1024 blocks of UB"),
        (FIXPIPE, "S2", 1010, r"FIXPIPE touches UB blocks 1010..1028, outside"),
        (FIXPIPE, "D", 1000, r"FIXPIPE touches UB blocks 1000..1025, outside"),
        (VMADD, "S2", 1019, r"VMADD touches UB blocks 1019..1025, outside"),
        (VMADD, "S1", -1, r"VMADD touches UB blocks -1..5, outside"),
        (VMADD, "D", 1019, r"VMADD touches UB blocks 1019..1025, outside"),
        (CONVERT, "D", 1013, r"VCONVERT touches UB blocks 1013..1025, outside"),
        (STORE, "D", 89, r"COPY touches DDR blocks 89..101, outside the 100 blocks of DDR"),
        (STORE, "D", 0, r"COPY touches DDR blocks 0..12, a read-only constant"),
        (STORE, "D", 7, r"COPY touches DDR blocks 7..19, a read-only constant"),
        (SET, "ENGINE", 7, "SET: no such path or engine on tiny"),
        (SET, "FLAG_CORE", 2, "SET names core 2, tiny has 2"),
        (SET, "FLAG_CORE", -1, "SET names core -1, tiny has 2"),
        (WAIT, "FLAG_ENGINE", 7, "WAIT names engine 7, tiny has 7"),
        (SET, "FLAG_ID", 4, "SET names flag id 4, tiny has 4"),
    ],
)  # fmt: skip
def test_an_illegal_record_is_named(at, word, value, message):
    with pytest.raises(ProgramError, match=rf"^core 0 instruction {at}: .*{message}") as caught:
        changed(at, word, value).verify(TINY)
    assert "\n" not in str(caught.value)


def test_machine_without_types_table_or_order_refuses_records():
    floats = multiplying(load_machine("tiny"), float16=(16, 16, 16, 1), float32=(16, 8, 16, 1))
    without = TINY.model_copy(update={"vector": TINY.vector.model_copy(update={"lookup_cycles": None, "ordered_cycles": None})})
    for machine, at, message in (
        (floats, IM2COL8, "data type not supported by tiny"),
        (floats, MMAD8, "data type not supported by tiny"),
        (floats, FIXPIPE8, "data type not supported by tiny"),
        (without, LUT, r"tiny has no VLUT: vector\.lookup_cycles is not given"),
        (without, LANE_ADD, r"tiny has no VLANE_ADD: vector\.ordered_cycles is not given"),
    ):
        with pytest.raises(ProgramError, match=rf"^core 0 instruction 0: {message}"):
            program([legal()[at]], [], machine=machine.digest).verify(machine)


def test_integers_alone_make_every_type_of_a_vector():
    """A machine that multiplies int8 alone has float32 for its vector unit, and no product of it."""
    machine = multiplying(TINY, int8=(16, 32, 16, 1))
    program([legal()[MMAD8], legal()[CONVERT]], [], machine=machine.digest).verify(machine)
    with pytest.raises(ProgramError, match=naming("MMAD", "tiny", "int8, uint8")):
        program([legal()[MMAD]], [], machine=machine.digest).verify(machine)


@pytest.mark.parametrize(("m0", "mpad", "step"), [(1, 17, 1), (4, 20, 4), (4, 18, 4), (24, 24, 8), (24, 20, 8), (32, 16, 16), (32, 24, 16)])
def test_rows_are_padded_to_fractals_of_the_machine(m0, mpad, step):
    machine = multiplying(TINY, float16=(m0, 16, 16, 1), float32=(16, 8, 16, 1))
    rows = legal()[:IM2COL8]
    rows[IM2COL][[isa.I_M, isa.I_MPAD]] = rows[MMAD][isa.M_MPAD] = mpad
    made = program(rows, machine=machine.digest)
    if mpad % step == 0:
        made.verify(machine)
    else:
        with pytest.raises(ProgramError, match=naming(f"instruction {IM2COL}", "mpad", step)):
            made.verify(machine)


def test_unused_stride_does_not_matter():
    changed(IM2COL, "I_PLANE", 1 << 20).verify(TINY)  # one plane only is read


def test_the_core_is_named():
    others = partner()
    others[1][isa.OP] = 0
    with pytest.raises(ProgramError, match=naming("core 1", "instruction 1", "opcode")):
        program(legal(), others).verify(TINY)


def test_a_copy_that_falls_on_itself_is_bounded():
    rows = legal()
    rows[LOAD][[isa.C_COUNT, isa.C_SSTRIDE, isa.C_DSTRIDE]] = 1 << 23, 0, 0
    with pytest.raises(ProgramError, match=naming("core 0", "instruction 0", "COPY")):
        program(rows).verify(TINY)


def test_unpaired_flags_are_named():
    with pytest.raises(ProgramError, match=naming("flag 3", "core 0 MTE2 -> core 1 MTE1", "SETs", 1)):
        program(legal(), partner()[1:]).verify(TINY)
    with pytest.raises(ProgramError, match=naming("flag 0", "core 1 MTE3 -> core 0 MTE1", "WAITs", 1)):
        program(legal(), partner()[:1]).verify(TINY)


def test_program_of_another_machine_or_shape_is_refused():
    with pytest.raises(ProgramError, match=naming("0" * 32, "tiny")):
        program(legal(), machine="0" * 32).verify(TINY)
    with pytest.raises(ProgramError, match=naming(1, "tiny", 2)):
        Program(TINY.digest, (np.zeros((0, WORDS), np.int32),), MAP).verify(TINY)
    for wrong in (np.zeros((2, 31), np.int32), np.zeros((2, WORDS), np.int64), np.zeros(WORDS, np.int32)):
        with pytest.raises(ProgramError, match=naming("core 1", "int32 [n, 32]")):
            Program(TINY.digest, (np.zeros((0, WORDS), np.int32), wrong), MAP).verify(TINY)


@pytest.mark.parametrize(
    ("buffers", "size", "message"),
    [
        ((DdrBuffer("a", "input", 0, 8), DdrBuffer("b", "output", 7, 8)), 20, "'b' at block 7 overlaps its predecessor"),
        ((DdrBuffer("a", "input", -1, 8),), 20, "'a' at block -1 overlaps"),
        ((DdrBuffer("a", "input", 0, -8),), 20, "'a' at block 0 overlaps"),
        ((DdrBuffer("a", "input", 0, 8), DdrBuffer("w", "constant", 8, 8)), 20, r"'a' \(input\) lies between constants"),
        ((DdrBuffer("a", "input", 0, 8), DdrBuffer("b", "output", 8, 8)), 15, "buffers end at block 16, the map has 15"),
    ],
)
def test_a_memory_map_that_cannot_be_is_refused(buffers, size, message):
    with pytest.raises(ProgramError, match=f"memory map: .*{message}"):
        Program(TINY.digest, (np.zeros((0, WORDS), np.int32),) * 2, MemoryMap(F16, buffers, size)).verify(TINY)


def test_a_path_that_the_machine_lacks_is_refused():
    ascend = load_machine("ascend310")
    row = record(Op.FIXPIPE, Engine.VECTOR, L0C, UB, (0, 0, -1, -1), F_M=1, F_MPAD=16, F_N1=1)
    empty = np.zeros((0, WORDS), np.int32)
    Program(ascend.digest, (row[None], empty), MAP).verify(ascend)
    row[isa.DST] = L1
    with pytest.raises(ProgramError, match=naming("FIXPIPE", "ascend310")):
        Program(ascend.digest, (row[None], empty), MAP).verify(ascend)


def test_digests_tell_programs_apart():
    rows = legal()
    empty: list[np.ndarray] = []
    digests = {
        program(rows).digest,
        program(rows[:-1]).digest,
        program(rows, empty).digest,
        Program(TINY.digest, (np.array(empty, np.int32).reshape(-1, WORDS), np.array(rows)), MAP).digest,
        program(rows, machine="0" * 32).digest,
    }
    assert len(digests) == 5


VALUES = st.one_of(st.integers(-3, 40), st.sampled_from([63, 64, 100, 255, 256, 1 << 16, 1 << 20, 1 << 24, 2**31 - 1, -(2**31)]))
VECTOR_OPS = sorted(op for op in OPS if op >= isa.FIRST_VECTOR_OP)


@settings(max_examples=400, deadline=None, derandomize=True)
@given(
    st.sampled_from([*range(STORE), *range(IM2COL8, LANE_ADD + 1)]),
    st.sampled_from(VECTOR_OPS),
    st.lists(st.tuples(st.integers(isa.DTYPE, WORDS - 1), VALUES), min_size=1, max_size=4),
)
def test_programs_are_executable_or_refused(at, vector_op, changes):
    row = legal()[at]
    if at == VMADD:
        row[isa.OP] = vector_op
    for word, value in changes:
        row[word] = value
    one = program([row], [])
    ddr = np.arange(100 * BLOCK_BYTES).astype(np.uint8)
    constants = ddr[: 8 * BLOCK_BYTES].copy()
    try:
        execute(one, TINY, ddr)
    except ProgramError as error:
        refused = str(error)
        assert refused.startswith("core 0 instruction 0: ")
        return
    except DeadlockError:
        pytest.fail("a program without flags cannot stand")
    np.testing.assert_array_equal(ddr[: 8 * BLOCK_BYTES], constants)
