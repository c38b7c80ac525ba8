"""Flatbuffers without a schema: tables whose fields are read by number, and tables that are written from (number, value) pairs.

A file begins with the offset of its root table.  A table begins with the distance to its list of fields, which has an offset for each
field, 0 where the field has its default.  Source: the public description of the format (FlatBuffers, "Internals").
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.npu.errors import BadInputError

_OFFSET, _SHORT = 4, 2
_FIELDS = 4
"""Bytes in front of the offsets in a list of fields: its size, and the size of the table."""


class FlatTable(NamedTuple):
    """A table of a file.  place: its first byte."""

    data: bytes
    place: int

    def number(self, field: int, code: str, default: Any = 0) -> Any:
        """A scalar, by its letter of `struct`."""
        place = self._field(field)
        return default if place is None else _unpack(self.data, place, code)

    def table(self, field: int) -> FlatTable | None:
        """A table; None where there is none."""
        place = self._field(field)
        return None if place is None else FlatTable(self.data, _target(self.data, place))

    def tables(self, field: int) -> list[FlatTable]:
        """A vector of tables."""
        first, count = self._vector(field, _OFFSET)
        return [FlatTable(self.data, _target(self.data, first + _OFFSET * index)) for index in range(count)]

    def array(self, field: int, kind: str) -> NDArray[Any]:
        """A vector of scalars by their type in numpy; empty where there is none."""
        dtype = np.dtype(kind)
        first, count = self._vector(field, dtype.itemsize)
        return np.frombuffer(self.data, dtype, count, first) if count else np.zeros(0, dtype)

    def text(self, field: int) -> str:
        """A string."""
        return self.array(field, "u1").tobytes().decode("utf-8", "replace")

    def _field(self, field: int) -> int | None:
        fields = self.place - _unpack(self.data, self.place, "i")
        entry = _FIELDS + _SHORT * field
        if entry >= _unpack(self.data, fields, "H"):
            return None
        offset = _unpack(self.data, fields + entry, "H")
        return self.place + offset if offset else None

    def _vector(self, field: int, size: int) -> tuple[int, int]:
        place = self._field(field)
        if place is None:
            return 0, 0
        vector = _target(self.data, place)
        count = _unpack(self.data, vector, "I")
        if vector + _OFFSET + count * size > len(self.data):
            raise BadInputError(f"byte {vector}: a vector of {count} entries: expected an end within {len(self.data)} bytes")
        return vector + _OFFSET, count


def read_root(data: bytes, identifier: bytes) -> FlatTable:
    """The root table of a file with an identifier."""
    if data[4:8] != identifier:
        raise BadInputError(f"begins with {data[4:8]!r}: expected {identifier!r} at byte 4")
    return FlatTable(data, _target(data, 0))


def _unpack(data: bytes, place: int, code: str) -> Any:
    try:
        if place < 0:
            raise struct.error
        return struct.unpack_from("<" + code, data, place)[0]
    except struct.error:
        raise BadInputError(f"byte {place}: expected a place within {len(data)} bytes") from None


def _target(data: bytes, place: int) -> int:
    return place + int(_unpack(data, place, "I"))


class Scalar(NamedTuple):
    """A scalar to write, by its letter of `struct`."""

    code: str
    value: Any


Fields = Mapping[Any, Any]
"""A table to write: field number -> `Scalar`, bytes (a string), an array, a mapping (a table), or a sequence of mappings."""
_ALIGN = 16
"""Of arrays: what the part demands of a stream and its constants."""


def write_root(root: Fields, identifier: bytes) -> bytes:
    """A file.  Tables come before what they refer to, so all offsets are positive."""
    out = bytearray(8)
    out[4:8] = identifier
    _link(out, 0, _write_table(out, root))
    return bytes(out)


def _pad(out: bytearray, size: int, before: int = 0) -> None:
    """Zeros, such that the byte behind `before` more is a multiple of a size."""
    out.extend(bytes(-(len(out) + before) % size))


def _link(out: bytearray, place: int, target: int) -> None:
    struct.pack_into("<I", out, place, target - place)


def _write_table(out: bytearray, fields: Fields) -> int:
    present = {number: value for number, value in sorted(fields.items()) if value is not None}
    sizes = {number: struct.calcsize(value.code) if isinstance(value, Scalar) else _OFFSET for number, value in present.items()}
    offsets, size = dict[int, int](), _OFFSET
    for number in sorted(present, key=lambda key: -sizes[key]):
        size += -size % sizes[number]
        offsets[number], size = size, size + sizes[number]
    count = max(present, default=-1) + 1
    _pad(out, _SHORT)
    listed = len(out)
    out += struct.pack(f"<{2 + count}H", _FIELDS + _SHORT * count, size, *(offsets.get(number, 0) for number in range(count)))
    _pad(out, 8)
    place = len(out)
    out += struct.pack("<i", place - listed) + bytes(size - _OFFSET)
    for number, value in present.items():
        if isinstance(value, Scalar):
            struct.pack_into("<" + value.code, out, place + offsets[number], value.value)
    for number, value in present.items():
        if not isinstance(value, Scalar):
            _link(out, place + offsets[number], _write_value(out, value))
    return place


def _write_value(out: bytearray, value: bytes | NDArray[Any] | Fields | Sequence[Fields]) -> int:
    if isinstance(value, Mapping):
        return _write_table(out, value)
    if isinstance(value, np.ndarray | bytes):
        raw = value if isinstance(value, bytes) else np.ascontiguousarray(value).tobytes()
        _pad(out, _ALIGN, _OFFSET)
        place = len(out)
        out += struct.pack("<I", len(raw) if isinstance(value, bytes) else value.size) + raw
        if isinstance(value, bytes):
            out.append(0)
        return place
    _pad(out, _OFFSET)
    place = len(out)
    out += struct.pack("<I", len(value)) + bytes(_OFFSET * len(value))
    for index, entry in enumerate(value):
        _link(out, place + _OFFSET * (1 + index), _write_table(out, entry))
    return place
