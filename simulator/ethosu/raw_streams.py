"""The file of raw words: command streams with their constants, as a program reads them that talks to the driver of Linux itself.

Words have 32 bits, the lowest byte first.  Behind magic, version and the number of streams each has a header, words and constants; words
and constants begin at multiples of 16 bytes.  A header has the bytes of words, constants, arena and SRAM, the numbers of inputs and
outputs, and of each of them its offset in the arena and its bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.ethosu.command_words import STREAM_BYTES, WORD_BYTES
from simulator.ethosu.stream_error import StreamError

MAGIC, VERSION = b"U65S", 1
_ALIGN, _MOST, _HEADER = 16, 4096, 6


class RawPort(NamedTuple):
    """An input or output in the arena."""

    offset: int
    size: int


class RawStream(NamedTuple):
    """A stream.  arena, fast: bytes of DRAM and SRAM."""

    words: tuple[int, ...]
    constants: NDArray[np.uint8]
    arena: int
    fast: int
    inputs: tuple[RawPort, ...]
    outputs: tuple[RawPort, ...]


def write_raw_streams(streams: Sequence[RawStream]) -> bytes:
    """The file of streams."""
    out = bytearray(MAGIC + np.array([VERSION, len(streams)], "<u4").tobytes())
    for stream in streams:
        head = [WORD_BYTES * len(stream.words), len(stream.constants), stream.arena, stream.fast, len(stream.inputs), len(stream.outputs)]
        head += [value for port in (*stream.inputs, *stream.outputs) for value in port]
        for section in (np.array(head, "<u4").tobytes(), np.array(stream.words, "<u4").tobytes(), stream.constants.tobytes()):
            out += section + bytes(-(len(out) + len(section)) % _ALIGN)
    return bytes(out)


def read_raw_streams(data: bytes) -> tuple[RawStream, ...]:
    """The streams of a file.  Raises `StreamError` for one of another shape."""
    if data[:4] != MAGIC:
        raise StreamError(f"begins with {data[:4]!r}: expected {MAGIC!r}, a file of raw words")
    reader = _Reader(data, len(MAGIC))
    version, count = reader.words(2)
    if version != VERSION:
        raise StreamError(f"version {version}: expected {VERSION}")
    if not 1 <= count <= _MOST:
        raise StreamError(f"{count} streams: expected 1 to {_MOST}")
    return tuple(_stream(reader) for _ in range(count))


def _stream(reader: _Reader) -> RawStream:
    size, constants, arena, fast, inputs, outputs = reader.words(_HEADER)
    if size % WORD_BYTES or not 0 < size < STREAM_BYTES:
        raise StreamError(f"a stream of {size} bytes: expected a multiple of {WORD_BYTES} below {STREAM_BYTES}")
    if max(inputs, outputs) > _MOST:
        raise StreamError(f"{max(inputs, outputs)} inputs or outputs: expected at most {_MOST}")
    places = reader.words(2 * (inputs + outputs))
    ports = tuple(RawPort(*pair) for pair in zip(places[::2], places[1::2], strict=True))
    for port in ports:
        if port.offset + port.size > arena:
            raise StreamError(f"an input or output up to byte {port.offset + port.size}: expected at most the arena's {arena}")
    reader.align()
    words = tuple(reader.words(size // WORD_BYTES))
    reader.align()
    data = np.frombuffer(reader.take(constants), np.uint8)
    reader.align()
    return RawStream(words, data, arena, fast, ports[:inputs], ports[inputs:])


class _Reader:
    """Bytes with a place."""

    def __init__(self, data: bytes, place: int) -> None:
        self.data, self.place = data, place

    def take(self, count: int) -> bytes:
        if self.place + count > len(self.data):
            raise StreamError(f"ends at byte {len(self.data)}: expected {self.place + count}")
        self.place += count
        return self.data[self.place - count : self.place]

    def words(self, count: int) -> list[int]:
        return np.frombuffer(self.take(WORD_BYTES * count), "<u4").tolist()

    def align(self) -> None:
        self.place += -self.place % _ALIGN
