"""Words are decoded strictly: a changed one is another command, another value, or refused by name in one line."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.ethosu.command_table import BY_NAME, COMMANDS, PAYLOAD, Command
from simulator.ethosu.command_words import decode_operations, encode, instructions, to_words
from simulator.ethosu.driver_payload import read_payload
from simulator.ethosu.stream_error import StreamError
from tests.simulator.ethosu.streams import cases, refusal, words_of

STOP = ("OP_STOP", {"mask": 0xFFFF})


def values_of(command: Command) -> st.SearchStrategy[dict[str, int]]:
    def of_field(field):
        if field.legal:
            return st.sampled_from(field.legal)
        return st.integers(-(1 << field.width - 1), (1 << field.width - 1) - 1) if field.signed else st.integers(0, (1 << field.width) - 1)

    return st.fixed_dictionaries({field.name: of_field(field) for field in command.fields})


def drawn(command: Command) -> st.SearchStrategy[tuple[Command, dict[str, int]]]:
    return values_of(command).map(lambda values: (command, values))


sets = [command for command in COMMANDS if command.name != "NPU_OP_STOP"]


@settings(max_examples=60)
@given(st.lists(st.sampled_from(sets).flatmap(drawn), max_size=8))
def test_commands_are_read_as_written(commands):
    words = [word for command, values in commands for word in encode(command, values)] + words_of(STOP)
    read = list(instructions(words))
    assert [(instruction.command, dict(instruction.values)) for instruction in read[:-1]] == commands
    assert [instruction.word for instruction in read] == list(np.cumsum([0, *(command.words for command, _ in commands)]))


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_every_bit_has_a_meaning_or_is_refused(command):
    """Of a command each bit is a field's, reserved, or the opcode's, where it makes another command or an unknown one."""
    zeros = {field.name: 0 for field in command.fields}
    fields = {bit: field for field in command.fields for bit in range(field.low, field.low + field.width)}
    before = list(encode(command, zeros))
    for bit in range(32 * command.words):
        words = list(before)
        words[bit // 32] ^= 1 << bit % 32
        place = bit - 16 if bit < 32 else bit - 32 + PAYLOAD
        tail = [] if command.name == "NPU_OP_STOP" else words_of(STOP)
        message = refusal(lambda: next(instructions(words + tail)))  # noqa: B023
        if message is None:
            first = next(instructions(words + tail))
            assert (first.command.opcode, first.command.words) != (command.opcode, command.words) or first.values != zeros
            assert bit < 16 or place in fields
            continue
        assert message.startswith("word 0: ")
        assert "\n" not in message
        if bit < 16:
            assert "unknown command" in message or "NPU_" in message
        else:
            assert command.name in message
            assert place not in fields or fields[place].legal


def test_each_field_has_bits_of_its_own():
    for command in COMMANDS:
        bits = [bit for field in command.fields for bit in range(field.low, field.low + field.width)]
        assert len(bits) == len(set(bits)), command.name
        assert max(bits, default=0) < (PAYLOAD + 32 if command.words == 2 else PAYLOAD), command.name
        assert all(value < 1 << field.width for field in command.fields for value in field.legal), command.name
    assert len({(command.words, command.opcode) for command in COMMANDS}) == len(COMMANDS) == len(BY_NAME)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "a stream of 0 words: expected NPU_OP_STOP at its end"),
        ([0x0001], "a stream of 1 words: expected NPU_OP_STOP at its end"),
        ([0xFFFF0000, 0xFFFF0000], "word 1: 1 words behind NPU_OP_STOP: expected none"),
        ([0x03FF], "word 0: 0x000003ff: unknown command cmd0 0x3ff"),
        ([0x40FF, 0], "word 0: 0x000040ff: unknown command cmd1 0x0ff"),
        ([0x0132], "word 0: 0x00000132: unknown command cmd0 0x132"),
        ([0x8100], "word 0: 0x00008100: unknown command cmd0 0x8100"),
        ([0x4000], "word 0: NPU_SET_IFM_BASE0 at the end of the stream: expected a payload word behind it"),
        ([0x0009010F], "word 0: NPU_SET_IFM_REGION: reserved bits 0x8 are set: expected 0"),
        ([0x00030124], "word 0: NPU_SET_ACC_FORMAT: value = 3: expected 0, 1, 2"),
        ([0x02000130], "word 0: NPU_SET_DMA0_SRC_REGION: stride_mode = 1: expected 0"),
    ],
)
def test_streams_that_are_refused(words, message):
    with pytest.raises(StreamError) as refused:
        list(instructions(words))
    assert str(refused.value) == message


def test_an_operation_sees_registers_set_before_it():
    first, second = {"value": 2}, {"value": 3}
    words = words_of(("SET_BLOCKDEP", first), ("OP_IRQ", {"mask": 1}), ("SET_BLOCKDEP", second), ("OP_IRQ", {"mask": 1}), STOP)
    one, two, stop = decode_operations(words)
    assert (one.field("BLOCKDEP"), two.field("BLOCKDEP"), stop.name) == (2, 3, "NPU_OP_STOP")
    with pytest.raises(StreamError, match="word 1: NPU_OP_IRQ needs NPU_SET_AB_START, which no word in front of it sets"):
        one.field("AB_START")


@pytest.mark.parametrize("case", cases()[:6], ids=lambda case: case.name)
def test_committed_streams_are_encoded_as_they_were(case):
    assert [word for _, command, values in instructions(case.words) for word in encode(command, values)] == case.words


def test_words_of_bytes_and_arrays():
    words = words_of(("SET_IFM_BASE0", {"low": 16, "high": 1}), STOP)
    data = np.array(words, "<u4")
    assert to_words(data.tobytes()) == to_words(data) == to_words(data.view(np.uint8)) == to_words(data.astype(np.int64)) == words
    with pytest.raises(StreamError, match="a stream of 7 bytes: expected a multiple of 4"):
        to_words(bytes(7))
    with pytest.raises(StreamError, match="word 1: -1: expected 0 to 4294967295"):
        to_words([0, -1])


CONFIG = [1 << 16 | 1, 1 << 28 | 48 << 8 | 8, 0x10000000]
MAGIC = int.from_bytes(b"COP1", "little")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "payload: begins with b'': expected b'COP1'"),
        ([MAGIC, *CONFIG], "payload: no stream: expected one of each"),
        ([MAGIC, 1 << 16 | 2, 0xFFFF0000], "payload: no configuration: expected one of each"),
        ([MAGIC, *CONFIG, 5, 2 << 16 | 2, 0], "payload word 5: a stream of 2 words: expected at most 1"),
        ([MAGIC, *CONFIG, *CONFIG], "payload word 4: action 0x00010001: expected one configuration (1), one stream (2), or none (5)"),
        ([MAGIC, 1 << 16 | 1, 2 << 28, 0, 1 << 16 | 2, 0], "payload: product 2: expected 1, an Ethos-U65"),
        ([MAGIC, 1 << 16 | 1], "payload word 1: the end of a configuration is missing"),
    ],
)
def test_payloads_that_are_refused(words, message):
    with pytest.raises(StreamError) as refused:
        read_payload(np.array(words, "<u4").tobytes())
    assert str(refused.value) == message


def test_a_payload_is_a_stream_and_a_part():
    payload = read_payload(np.array([MAGIC, *CONFIG, 5, 5, 2 << 16 | 2, 7, 8], "<u4").tobytes())
    assert payload == ((7, 8), 256, 48 * 1024)


def test_streams_longer_than_half_a_parameter():
    count = 70_000
    data = np.array([MAGIC, *CONFIG, (count & 0xFFFF) << 16 | count >> 16 << 8 | 2, *range(count)], "<u4")
    assert read_payload(data.tobytes()).words == tuple(range(count))
