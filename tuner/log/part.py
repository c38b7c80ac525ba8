"""Part of a dataset as a file: Parquet with a mark in its footer: dataset, number of the part, and a digest over all bytes.

Parquet's own checksums cover pages only.  The footer has none, though it has the positions of columns and the number of rows; and a file
does not know its own name.  So a damaged, renamed or copied file could be read with wrong content.  For other readers the mark is ordinary
metadata of the footer.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from tuner.platform.files import AnyPath

SUFFIX = ".parquet"
_KEY = "tilefarm_part"
_MARK = re.compile(rb"tilefarm part ([a-z]{1,20}) (\d{8,12}) (\d{16}) ([0-9a-f]{64})")
_DIGEST = 64  # hex digits of a SHA-256, zeros while it is computed
_TAIL = 8  # bytes at the end: length of the footer, and Parquet's magic number
_MAGIC = b"PAR1"


class PartMark(NamedTuple):
    """Mark of a part.  dataset, number: its place."""

    dataset: str
    number: int

    @property
    def file(self) -> str:
        return f"{self.dataset}/{part_name(self.number)}"


class PartFile(NamedTuple):
    """Content of a part.  schema: schema of all columns.  table: requested columns."""

    mark: PartMark
    rows: int
    schema: pa.Schema
    table: pa.Table


class PartError(Exception):
    """Fault of a file.  schema: its schema, if it is Parquet without a mark: from another program, or from an earlier version."""

    def __init__(self, problem: str, schema: pa.Schema | None = None) -> None:
        super().__init__(problem)
        self.schema = schema


def part_name(number: int) -> str:
    return f"{number:08d}{SUFFIX}"


def part_number(name: str) -> int | None:
    """Number of a part by its file name; None for other names."""
    digits = name.removesuffix(SUFFIX)
    return int(digits) if digits.isdecimal() and len(digits) < 13 and name == part_name(int(digits)) else None


def encoded(table: pa.Table, mark: PartMark) -> bytes:
    """The file of a part."""
    # a mark with zeros first, since size and digest follow from the finished file; both are at the end of the mark
    blank = f"tilefarm part {mark.dataset} {mark.number:08d} {0:016d} {'0' * _DIGEST}".encode()
    data = _parquet(table, blank)
    end = data.rindex(blank) + len(blank)
    digest_begin = end - _DIGEST
    size_begin, size_end = digest_begin - 17, digest_begin - 1  # a space lies between
    data[size_begin:size_end] = b"%016d" % len(data)
    data[digest_begin:end] = _digest(memoryview(data), digest_begin)
    return bytes(data)


def _parquet(table: pa.Table, mark: bytes) -> bytearray:
    """Parquet bytes of a table, with a mark in the footer that has neither length nor digest yet."""
    # only columns that are dictionary-coded already: trying it on digests, texts or features takes time and is given up
    names = [field.name for field in table.schema if pa.types.is_dictionary(field.type)]
    # a part has a hundred short columns of numbers, and setting up zstd for each takes longer than writing it
    codecs = {field.name: "zstd" if pa.types.is_string(field.type) else "lz4" for field in table.schema}
    sink = pa.BufferOutputStream()
    # statistics are for skipping parts, which does not pay for parts that take seconds to write
    with pq.ParquetWriter(sink, table.schema, compression=codecs, use_dictionary=names, write_statistics=False) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata({_KEY: mark.decode()})
    return bytearray(sink.getvalue())


def read_part(path: AnyPath, columns: Sequence[str] | None = None) -> PartFile:
    """Read a file after checking that all bytes are unchanged.  Raises `PartError`; until then the bytes are not parsed as Parquet."""
    try:
        if not path.is_file():  # reading a pipe would block
            raise PartError("no file there")
        data = path.mapped()  # mapped, not read: the size of an unchecked file is unknown
    except OSError as error:
        raise PartError(f"cannot be read: {error.strerror or error}") from None
    return decoded(data, columns)


def decoded(data: memoryview, columns: Sequence[str] | None = None) -> PartFile:
    """A part from all bytes of its file.  Raises `PartError`."""
    mark = _mark(data)
    buffer = pa.BufferReader(pa.py_buffer(data))
    try:
        file = pq.ParquetFile(buffer)
        if mark is None:
            raise PartError("not a part that this program wrote", file.schema_arrow)
        schema = file.schema_arrow
        table = file.read(columns=None if columns is None else list(columns))
    except (OSError, ValueError, pa.ArrowException) as error:
        raise PartError(f"cannot be read: {' '.join(str(error).split())[:200]}") from None
    return PartFile(mark, file.metadata.num_rows, schema, table.replace_schema_metadata(schema.metadata))


def _mark(data: memoryview) -> PartMark | None:
    """Mark of the file; None without one.  Raises `PartError` if the bytes do not match the mark."""
    size = len(data)
    footer_bytes = int.from_bytes(data[-_TAIL : -len(_MAGIC)], "little") if size >= _TAIL else 0
    if size < _TAIL + len(_MAGIC) or data[-len(_MAGIC) :] != _MAGIC or footer_bytes > size - _TAIL:
        raise PartError("cut off, or not Parquet" if size else "empty")
    begin = size - _TAIL - footer_bytes
    marks = list(_MARK.finditer(data[begin : size - _TAIL]))
    if len(marks) != 1:
        return None
    dataset, number, size_bytes, digest = marks[0].groups()
    if int(size_bytes) != size:
        raise PartError(f"{size} bytes, was written with {int(size_bytes)}")
    if _digest(data, begin + marks[0].start(4)) != digest:
        raise PartError("changed since it was written (its digest differs)")
    return PartMark(dataset.decode(), int(number))


def _digest(data: memoryview, offset: int) -> bytes:
    """Digest of a file's bytes, with zeros in the place of the digest."""
    digest = hashlib.sha256(data[:offset])
    digest.update(b"0" * _DIGEST)
    digest.update(data[offset + _DIGEST :])
    return digest.hexdigest().encode()
