"""Words of a command stream, as operations with the registers that they see.

A register keeps its value until another word sets it; an operation takes those that are set in front of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.ethosu.command_table import BY_OPCODE, PAYLOAD, Command, Field
from simulator.ethosu.stream_error import StreamError

OPCODE_BITS, TWO_WORDS = 10, 1 << 14
WORD_BYTES = 4
STREAM_BYTES = 1 << 24
"""Bytes of a stream that the part can address, exclusive."""

Values = Mapping[str, int]
"""Values of a command's fields by name."""


class Instruction(NamedTuple):
    """A command with values.  word: number of its first word in the stream."""

    word: int
    command: Command
    values: Values


class Operation(NamedTuple):
    """An operation of a stream.  registers: values of fields by the register's name without `NPU_SET_`."""

    word: int
    name: str
    values: Values
    registers: Mapping[str, Values]

    def field(self, register: str, field: str = "value") -> int:
        """A field of a register; an error where no word has set it."""
        if register not in self.registers:
            raise StreamError(f"word {self.word}: {self.name} needs NPU_SET_{register}, which no word in front of it sets")
        return self.registers[register][field]

    def address(self, register: str) -> int:
        """An address of 40 bits, or another number in a pair of such fields."""
        return self.field(register, "high") * (1 << 32) + self.field(register, "low")

    def refuse(self, why: str) -> StreamError:
        """The error for this operation."""
        return StreamError(f"word {self.word}: {self.name}: {why}")


def to_words(stream: bytes | NDArray[Any] | Sequence[int]) -> list[int]:
    """Words of a stream: of bytes in little-endian order, of an array of bytes or words, or of integers."""
    if isinstance(stream, np.ndarray):
        stream = np.ascontiguousarray(stream).tobytes() if stream.dtype in (np.uint8, np.int8, np.uint32, np.int32) else stream.tolist()
    if isinstance(stream, bytes):
        if len(stream) % WORD_BYTES:
            raise StreamError(f"a stream of {len(stream)} bytes: expected a multiple of {WORD_BYTES}")
        return np.frombuffer(stream, "<u4").tolist()
    for number, word in enumerate(stream):
        if not 0 <= word < 1 << 32:
            raise StreamError(f"word {number}: {word}: expected 0 to {(1 << 32) - 1}")
    return list(stream)


def instructions(words: Sequence[int]) -> Iterator[Instruction]:
    """Commands of a stream, up to its NPU_OP_STOP, behind which there may be nothing."""
    if len(words) * WORD_BYTES >= STREAM_BYTES:
        raise StreamError(f"a stream of {len(words)} words: expected less than {STREAM_BYTES // WORD_BYTES}")
    place = 0
    while place < len(words):
        instruction = _instruction(words, place)
        yield instruction
        place += instruction.command.words
        if instruction.command.name == "NPU_OP_STOP":
            break
    else:
        raise StreamError(f"a stream of {len(words)} words: expected NPU_OP_STOP at its end")
    if place != len(words):
        raise StreamError(f"word {place}: {len(words) - place} words behind NPU_OP_STOP: expected none")


def decode_operations(words: Sequence[int]) -> tuple[Operation, ...]:
    """Operations of a stream in order; NPU_OP_STOP is the last."""
    registers, operations = dict[str, Values](), []
    for word, command, values in instructions(words):
        if command.starts:
            operations.append(Operation(word, command.name, values, MappingProxyType(dict(registers))))
        else:
            registers[command.name.removeprefix("NPU_SET_")] = values
    return tuple(operations)


def encode(command: Command, values: Values) -> tuple[int, ...]:
    """The words of a command; the inverse of `instructions`."""
    bits = sum((values[field.name] & (1 << field.width) - 1) << field.low for field in command.fields)
    first = command.opcode | (bits & 0xFFFF) << 16
    return (first,) if command.words == 1 else (first | TWO_WORDS, bits >> PAYLOAD)


def _instruction(words: Sequence[int], place: int) -> Instruction:
    """Decode the command at word `place`."""
    word = words[place]
    code, parameter = word & 0xFFFF, word >> 16
    count = 2 if code & TWO_WORDS else 1
    command = BY_OPCODE.get((count, code & ~TWO_WORDS))
    if command is None:
        raise StreamError(f"word {place}: 0x{word:08x}: unknown command cmd{count - 1} 0x{code & ~TWO_WORDS:03x}")
    if place + count > len(words):
        raise StreamError(f"word {place}: {command.name} at the end of the stream: expected a payload word behind it")
    bits = parameter | (words[place + 1] << PAYLOAD if count == 2 else 0)
    values = {field.name: _value(place, command, field, bits >> field.low & (1 << field.width) - 1) for field in command.fields}
    reserved = bits & ~sum((1 << field.width) - 1 << field.low for field in command.fields)
    if reserved:
        raise StreamError(f"word {place}: {command.name}: reserved bits 0x{reserved:x} are set: expected 0")
    return Instruction(place, command, values)


def _value(place: int, command: Command, field: Field, raw: int) -> int:
    if field.legal and raw not in field.legal:
        legal = ", ".join(map(str, field.legal))
        raise StreamError(f"word {place}: {command.name}: {field.name} = {raw}: expected {legal}")
    return raw - (1 << field.width) if field.signed and raw >> field.width - 1 else raw
