"""Protobuf fields on the wire, without copies of large values.

The chunks of a message are its bytes; protobuf's own serialisation copies a tensor's raw data twice.
"""

from __future__ import annotations

from collections.abc import Iterator

from google.protobuf.message import Message  # type: ignore[import-untyped]
from onnx import TensorProto

_RAW = "raw_data"
Data = bytes | memoryview  # uint8


def tensor_pieces(tensor: TensorProto, external: Data | None = None) -> list[Data]:
    """Serialised chunks of a tensor, its fields in the order of their numbers.  external: raw data of a hollow tensor."""
    if external is None and not tensor.HasField(_RAW):
        return [tensor.SerializeToString(deterministic=True)]
    data, head_fields, tail_fields = tensor.raw_data if external is None else external, TensorProto(), TensorProto()
    for field in TensorProto.DESCRIPTOR.fields:  # `ListFields` would copy the data, too
        if field.name != _RAW:
            _copy_field(head_fields if field.number < TensorProto.RAW_DATA_FIELD_NUMBER else tail_fields, tensor, field.name)
    head = field_head(TensorProto, _RAW, len(data))
    return [head_fields.SerializeToString(deterministic=True) + head, data, tail_fields.SerializeToString(deterministic=True)]


def without_data(tensor: TensorProto) -> TensorProto:
    """Copy of a tensor without its raw data."""
    copy = TensorProto()
    copy_fields(copy, tensor, _RAW)
    return copy


def copy_fields(target: Message, source: Message, left_out: str) -> None:
    """Copy all fields except one."""
    for field in source.DESCRIPTOR.fields:
        if field.name != left_out:
            _copy_field(target, source, field.name)


def _copy_field(target: Message, source: Message, name: str) -> None:
    value = getattr(source, name)
    if isinstance(value, (str, bytes, int)):
        if source.HasField(name):
            setattr(target, name, value)
    elif name == "segment":
        if source.HasField("segment"):
            target.segment.CopyFrom(source.segment)
    else:
        getattr(target, name).MergeFrom(value)


def field_head(message: type, name: str, size_bytes: int) -> bytes:
    """Header of a length-delimited field: its tag and its length."""
    number = message.DESCRIPTOR.fields_by_name[name].number  # type: ignore[attr-defined]
    return bytes((*_varint(number << 3 | 2), *_varint(size_bytes)))


def _varint(value: int) -> Iterator[int]:
    while value > 127:
        yield value & 127 | 128
        value >>= 7
    yield value
