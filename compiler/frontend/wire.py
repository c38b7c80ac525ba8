"""Protobuf's fields on the wire, for messages whose large values are not to be copied once more.

A message given in pieces is the same bytes; protobuf's own way has a tensor's raw data twice over while it is at it.
"""

from __future__ import annotations

from collections.abc import Iterator

from onnx import TensorProto

from compiler.frontend.skeleton import copy_fields

_RAW = "raw_data"


def tensor_pieces(tensor: TensorProto) -> list[bytes]:
    """What a tensor is serialised to, its fields in the order of their numbers."""
    if not tensor.HasField(_RAW):
        return [tensor.SerializeToString(deterministic=True)]
    data = tensor.raw_data
    ends = []
    for wanted in (_before_raw, _behind_raw):
        part = TensorProto()
        copy_fields(part, tensor, {field.name for field, _ in tensor.ListFields() if not wanted(field.number)})
        ends.append(part.SerializeToString(deterministic=True))
    return [ends[0], field_head(TensorProto, _RAW, len(data)), data, ends[1]]


def field_head(message: type, name: str, size_bytes: int) -> bytes:
    """What stands before a length-delimited field: its tag and its length."""
    number = message.DESCRIPTOR.fields_by_name[name].number  # type: ignore[attr-defined]
    return bytes((*_varint(number << 3 | 2), *_varint(size_bytes)))


def _before_raw(number: int) -> bool:
    return number < TensorProto.RAW_DATA_FIELD_NUMBER


def _behind_raw(number: int) -> bool:
    return number > TensorProto.RAW_DATA_FIELD_NUMBER


def _varint(value: int) -> Iterator[int]:
    while value > 127:
        yield value & 127 | 128
        value >>= 7
    yield value
