"""Protobuf messages by columns: the same fields for many rows, written without a loop over rows.

The wire format has two kinds of field here: a varint, and bytes behind their length (https://protobuf.dev/programming-guides/encoding).
Doubles are eight bytes.  `field` is one field of one message; all else works on `MessageRows`.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.timing_state import Ints

_VARINT, _EIGHT_BYTES, _BYTES = 0, 1, 2


class MessageRows(NamedTuple):
    """A piece of a message per row: row i has octets[i, is_used[i]].  uint8 and bool, [n, width]."""

    octets: NDArray[np.uint8]
    is_used: NDArray[np.bool_]


def varint(number: int) -> bytes:
    """A number of 0 or more: seven bits to a byte, the lowest first."""
    octets = bytearray()
    while number > 0x7F:
        octets.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*octets, number])


def tag(number: int, wire_type: int = _VARINT) -> bytes:
    """The beginning of a field."""
    return varint(number << 3 | wire_type)


def field(number: int, content: int | float | str | bytes) -> bytes:
    """One field; an int is 0 or more."""
    if isinstance(content, int):
        return tag(number) + varint(content)
    if isinstance(content, float):
        return tag(number, _EIGHT_BYTES) + struct.pack("<d", content)
    octets = content.encode() if isinstance(content, str) else content
    return tag(number, _BYTES) + varint(len(octets)) + octets


def repeat(octets: bytes, count: int) -> MessageRows:
    """The same bytes in each row."""
    return repeat_each([octets], count)


def repeat_each(pieces: Sequence[bytes], count: int) -> MessageRows:
    """Pieces one after the other, as rows, `count` times."""
    width = max(map(len, pieces))
    octets = np.frombuffer(b"".join(piece.ljust(width, b"\0") for piece in pieces), np.uint8).reshape(len(pieces), width)
    is_used = np.arange(width) < np.array([[len(piece)] for piece in pieces])
    return MessageRows(np.tile(octets, (count, 1)), np.tile(is_used, (count, 1)))


def varints(numbers: NDArray[Any]) -> MessageRows:
    """int64 [n]; a negative one has ten bytes, as in protobuf's int64."""
    bits = numbers.astype(np.uint64)
    columns, used = [], [np.ones(len(bits), bool)]
    while True:
        higher_bits = bits >> np.uint64(7)
        has_more = higher_bits > 0
        columns.append(((bits & np.uint64(0x7F)) | (has_more.astype(np.uint64) << np.uint64(7))).astype(np.uint8))
        if not has_more.any():
            return MessageRows(np.stack(columns, 1), np.stack(used, 1))
        used.append(has_more)
        bits = higher_bits


def integer_field(number: int, numbers: NDArray[Any]) -> MessageRows:
    return join(repeat(tag(number), len(numbers)), varints(numbers))


def double_field(number: int, numbers: NDArray[Any]) -> MessageRows:
    octets = np.ascontiguousarray(numbers, "<f8").view(np.uint8).reshape(len(numbers), 8)
    return join(repeat(tag(number, _EIGHT_BYTES), len(numbers)), MessageRows(octets, np.ones(octets.shape, bool)))


def message_field(number: int, message: MessageRows) -> MessageRows:
    """A field that holds a message, behind its length."""
    return join(repeat(tag(number, _BYTES), len(message.octets)), varints(message.is_used.sum(1)), message)


def join(*parts: MessageRows) -> MessageRows:
    """Pieces side by side."""
    return MessageRows(np.concatenate([part.octets for part in parts], 1), np.concatenate([part.is_used for part in parts], 1))


def fold(rows: MessageRows, count: int) -> MessageRows:
    """Each `count` neighbouring rows as one."""
    shape = len(rows.octets) // count, count * rows.octets.shape[1]
    return MessageRows(rows.octets.reshape(shape), rows.is_used.reshape(shape))


def place(parts: list[tuple[Ints, MessageRows]], count: int) -> MessageRows:
    """MessageRows of several parts, each at its row numbers of `count` rows; others are empty."""
    width = max((part.octets.shape[1] for _, part in parts), default=0)
    octets, is_used = np.zeros((count, width), np.uint8), np.zeros((count, width), bool)
    for rows, part in parts:
        octets[rows, : part.octets.shape[1]], is_used[rows, : part.octets.shape[1]] = part
    return MessageRows(octets, is_used)


def to_bytes(rows: MessageRows) -> bytes:
    """All rows, one after the other."""
    return rows.octets[rows.is_used].tobytes()
