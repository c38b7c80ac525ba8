"""The text form loses nothing, and says where it cannot be read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from simulator.npu import isa
from simulator.npu.asm import parse, print_program
from simulator.npu.errors import BadInputError
from simulator.npu.isa import OPS, WORDS, Op
from simulator.npu.parts import DataType, Engine, Memory

GOLDEN = Path(__file__).parents[2] / "golden" / "every_opcode.asm"
WORD = st.one_of(st.integers(-2, 300), st.integers(-(1 << 31), (1 << 31) - 1))


@st.composite
def legal_looking(draw):
    """A record with its own opcode's words filled in at random."""
    op = draw(st.sampled_from(sorted(OPS)))
    spec = OPS[op]
    record = np.zeros(WORDS, np.int32)
    record[isa.OP] = op
    record[isa.ENGINE] = draw(st.sampled_from(spec.engines or tuple(Engine)))
    record[isa.DTYPE] = draw(st.sampled_from(DataType))
    record[isa.TAG] = draw(WORD)
    record[isa.BLOCK] = draw(WORD)
    record[isa.D + 1 + spec.sources : isa.S2 + 1] = -1
    if spec.moves:
        record[isa.SRC], record[isa.DST] = draw(st.sampled_from(spec.moves))
        for word in range(isa.D, isa.D + 1 + spec.sources + spec.optional):
            record[word] = draw(WORD)
    for i in range(len(spec.params)):
        record[isa.P + i] = draw(WORD)
    return record


@given(st.lists(legal_looking(), max_size=5))
def test_round_trip_of_legal_looking_records(records):
    code = np.array(records, np.int32).reshape(-1, WORDS)
    for numbers in (False, True):
        np.testing.assert_array_equal(parse(print_program(code, numbers=numbers)), code)


@given(st.sampled_from(sorted(OPS)), st.lists(WORD, min_size=WORDS, max_size=WORDS))
@example(Op.FIXPIPE, [0] * isa.F_SIDE + [int(Memory.L0A)] + [0] * (WORDS - isa.F_SIDE - 1))  # no memory that it has sides in
def test_round_trip_of_any_words(op, words):
    code = np.array([words], np.int64).astype(np.int32)
    code[0, isa.OP] = op
    text = print_program(code)
    assert text.count("\n") == 1
    np.testing.assert_array_equal(parse(text), code)


@given(st.sampled_from(sorted(OPS)), st.integers(1, WORDS - 1), st.integers(1, 1 << 20))
def test_every_word_shows(op, word, change):
    """No word of a record is invisible in the text."""
    code = np.zeros((2, WORDS), np.int32)
    code[:, isa.OP] = op
    code[1, word] += change
    first, second = print_program(code).splitlines()
    assert first != second


def test_a_number_is_left_out_in_front_only():
    with pytest.raises(BadInputError, match="line 1: '3:'"):
        parse("MTE2 3: MOVE")


def test_long_token_is_refused_in_a_short_message():
    with pytest.raises(BadInputError) as caught:
        parse("9" * 100_000)  # of time, too: it took more than a minute
    assert len(str(caught.value)) < 200


def test_the_block_has_a_word_of_its_own():
    assert all(isa.P + len(spec.params) <= isa.BLOCK for spec in OPS.values())
    assert isa.RECORD.fields["block"][1] == 4 * isa.BLOCK
    assert isa.RECORD.itemsize == 4 * WORDS


def test_golden():
    """The golden has every opcode, prints as it stands and reads back."""
    text = GOLDEN.read_text()
    code = parse(text)
    assert set(code[:, isa.OP].tolist()) == {int(op) for op in OPS}
    assert print_program(code) == "".join(line + "\n" for line in text.splitlines() if not line.startswith("#"))


def test_a_line_means_what_it_says():
    code = parse(
        "CUBE MMAD L0C[2] L0A[3] L0B[64] mpad=128 k=8 n1=8 acc=1 f32 @3.12.5  # a comment\n\n 7: VECTOR VADDS UB[1] UB[2] imm=-0.5\n"
    )
    expected = np.zeros((2, WORDS), np.int32)
    expected[0, : isa.P + 4] = [Op.MMAD, Engine.CUBE, 1, 3 << 16 | 12, Memory.L0A, Memory.L0C, 2, 3, 64, -1, 128, 8, 8, 1]
    expected[0, isa.BLOCK] = 5
    expected[1, : isa.P] = [Op.VADDS, Engine.VECTOR, 0, 0, Memory.UB, Memory.UB, 1, 2, -1, -1]
    expected[1, isa.V_IMM] = isa.float_bits(-0.5)
    np.testing.assert_array_equal(code, expected)


@pytest.mark.parametrize(
    ("line", "token", "accepted"),
    [
        ("CUBR MMAD", "CUBR", "MTE2, MTE1, CUBE"),
        ("CUBE", "''", "an opcode: SET"),
        ("CUBE MAD L0C[0]", "MAD", "an opcode: SET, WAIT"),
        ("CUBE MMAD L0C[0] L0A[0]", "L0C[0] L0A[0]", "3 operands of MMAD"),
        ("CUBE MMAD L0C[0] L0A[0] UB[0]", "UB[0]", "in L0B"),
        ("CUBE MMAD L0C[0] L9[0] L0B[0]", "L9[0]", "a memory: DDR, L1"),
        ("CUBE MMAD L0C[0] - L0B[0]", "'-'", "not optional"),
        ("CUBE MMAD L0C[0] L0A[0] L0B[0] kk=3", "kk=3", "mpad, k, n1, acc"),
        ("CUBE MMAD L0C[0] L0A[0] L0B[0] k=x", "k=x", "an integer"),
        ("CUBE MMAD L0C[0] L0A[0] L0B[0] k=4294967296", "k=4294967296", "32 bits"),
        ("CUBE MMAD L0C[0] L0A[0] L0B[0] k=3 k=4", "k=4", "'k' once"),
        ("CUBE MMAD L0C[0] L0A[0] L0B[0] f16 f32", "f32", "'type' once"),
        ("CUBE MMAD L0C[0] L0A[0] L0B[0] f64", "f64", "a data type (f16, f32, i8, u8, i32)"),
        ("CUBE MMAD L0C[0] L0A[0] L0B[0] @7", "@7", "@segment.operator"),
        ("CUBE MMAD L0C[0] L0A[0] L0B[0] @7.1.2.3", "@7.1.2.3", "@segment.operator.block"),
        ("CUBE MMAD L0C[0] L0A[0] L0B[0] pad=3", "pad=3", "mpad, k, n1, acc, right"),
        ("CUBE MMAD L0C[0] L0A[0] L0B[0] right=i9", "right=i9", "an integer"),
        ("MTE1 FRACTAL L0B[0] L1[0] pads=3", "pads=3", "transpose, pad"),
        ("VECTOR VADDS UB[0] UB[0] imm=0xFFFFFFFFF", "imm=0xFFFFFFFFF", "bits of a float32"),
        ("FIXPIPE SET core=0 engine=DMA id=0", "engine=DMA", "an engine: MTE2"),
        ("VECTOR VFILL UB[0] word99=1", "word99=1", "a parameter of VFILL"),
        ("VECTOR VFILL UB[0] word\u00b2=1", "word\u00b2=1", "a parameter of VFILL"),
    ],
)
def test_errors_say_line_token_and_what_is_accepted(line, token, accepted):
    with pytest.raises(BadInputError) as caught:
        parse(f"# first\n{line}\n")
    message = str(caught.value)
    assert message.startswith("line 2: ")
    assert token in message
    assert accepted in message
    assert "\n" not in message


def test_unknown_opcode_is_not_printed():
    with pytest.raises(BadInputError, match="opcode 63"):
        print_program(np.full((1, WORDS), 63, np.int32))
