"""The file of raw words: command streams with their constants, as a program reads them that talks to the driver of Linux itself.

Words have 32 bits, the lowest byte first; every section begins at a multiple of 16 bytes.

| section | is |
|---|---|
| head | magic, version, numbers of parts, variants and levels; bytes of the constants of each part |
| levels | 80 bytes each: the number of its variant, 64 bits of cycles by the streams' words, and its name, with zeros behind it |
| constants | of each part, one section each; all variants read them |
| streams | of each variant all parts in order, two sections each: a header, and words |

A header has the bytes of words, arena and SRAM, the numbers of inputs and outputs, and of each of them its offset in the arena and its
bytes.  Parts of a model run behind each other; operators between them are the processor's.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.ethosu.command_words import STREAM_BYTES, WORD_BYTES
from simulator.ethosu.stream_error import StreamError

MAGIC, VERSION = b"U65S", 2
LEVEL_NAME = 68
"""Bytes of a level's name."""
_ALIGN, _MOST, _HEADER = 16, 4096, 5


class RawPort(NamedTuple):
    """An input or output in the arena."""

    offset: int
    size: int


class RawStream(NamedTuple):
    """A stream.  arena, fast: bytes of DRAM and SRAM."""

    words: tuple[int, ...]
    arena: int
    fast: int
    inputs: tuple[RawPort, ...]
    outputs: tuple[RawPort, ...]


class RawLevel(NamedTuple):
    """A level: its name, the number of its variant, and the cycles of that by its words."""

    name: str
    variant: int
    cycles: int


class RawFile(NamedTuple):
    """levels: in order.  constants: of each part.  variants: streams of all parts, for each variant."""

    levels: tuple[RawLevel, ...]
    constants: tuple[NDArray[np.uint8], ...]
    variants: tuple[tuple[RawStream, ...], ...]

    def streams(self, level: str) -> tuple[RawStream, ...]:
        """Streams of a level."""
        return self.variants[next(row.variant for row in self.levels if row.name == level)]


def write_raw_file(file: RawFile) -> bytes:
    """The bytes of a file."""
    head = [VERSION, len(file.constants), len(file.variants), len(file.levels), *map(len, file.constants)]
    sections = [MAGIC + np.array(head, "<u4").tobytes()]
    for level in file.levels:
        row = np.array([level.variant, level.cycles & 0xFFFF_FFFF, level.cycles >> 32], "<u4").tobytes()
        sections.append(row + level.name.encode().ljust(LEVEL_NAME, b"\0"))
    sections += [constants.tobytes() for constants in file.constants]
    for stream in (stream for variant in file.variants for stream in variant):
        numbers = [WORD_BYTES * len(stream.words), stream.arena, stream.fast, len(stream.inputs), len(stream.outputs)]
        ports = [value for port in (*stream.inputs, *stream.outputs) for value in port]
        sections += [np.array(numbers + ports, "<u4").tobytes(), np.array(stream.words, "<u4").tobytes()]
    return b"".join(section + bytes(-len(section) % _ALIGN) for section in sections)


def read_raw_file(data: bytes) -> RawFile:
    """The file.  Raises `StreamError` for one of another shape."""
    if data[:4] != MAGIC:
        raise StreamError(f"begins with {data[:4]!r}: expected {MAGIC!r}, a file of raw words")
    reader = _Reader(data, len(MAGIC))
    version, parts, variants, levels = reader.words(4)
    if version != VERSION:
        raise StreamError(f"version {version}: expected {VERSION}")
    for count, kind in ((parts, "parts"), (variants, "variants"), (levels, "levels")):
        if not 1 <= count <= _MOST:
            raise StreamError(f"{count} {kind}: expected 1 to {_MOST}")
    sizes = reader.words(parts)
    reader.align()
    rows = tuple(_level(reader, variants) for _ in range(levels))
    constants = tuple(np.frombuffer(reader.section(size), np.uint8) for size in sizes)
    return RawFile(rows, constants, tuple(tuple(_stream(reader) for _ in range(parts)) for _ in range(variants)))


def _level(reader: _Reader, variants: int) -> RawLevel:
    variant, low, high = reader.words(3)
    name = reader.take(LEVEL_NAME).rstrip(b"\0")
    if variant >= variants or not name.isascii():
        raise StreamError(f"level {name!r} of variant {variant}: expected a name in ASCII and a variant below {variants}")
    return RawLevel(name.decode(), variant, high << 32 | low)


def _stream(reader: _Reader) -> RawStream:
    size, arena, fast, inputs, outputs = reader.words(_HEADER)
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
    return RawStream(tuple(np.frombuffer(reader.section(size), "<u4").tolist()), arena, fast, ports[:inputs], ports[inputs:])


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

    def section(self, size: int) -> bytes:
        """Bytes up to the next section."""
        data = self.take(size)
        self.align()
        return data

    def align(self) -> None:
        self.place += -self.place % _ALIGN
