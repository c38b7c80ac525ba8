"""Perfetto's traces as the `protobuf` package decodes them: slices, spans, instants and counters by track.

`MESSAGES` are the fields of Perfetto's `protos/perfetto/trace` that a reader of such a file needs; it fails on any other.  As Perfetto's
importer does, packets are put in order of their time, those of one time in the order of the file, and an end closes the last open slice
of its track.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

# field: (number, type); a type with [] is repeated
MESSAGES: dict[str, dict[str, tuple[int, str]]] = {
    "Trace": {"packet": (1, "TracePacket[]")},
    "TracePacket": {
        "timestamp": (8, "uint64"),
        "trusted_packet_sequence_id": (10, "uint32"),
        "track_event": (11, "TrackEvent"),
        "interned_data": (12, "InternedData"),
        "sequence_flags": (13, "uint32"),
        "track_descriptor": (60, "TrackDescriptor"),
    },
    "TrackEvent": {
        "category_iids": (3, "uint64[]"),
        "debug_annotations": (4, "DebugAnnotation[]"),
        "type": (9, "int32"),
        "name_iid": (10, "uint64"),
        "track_uuid": (11, "uint64"),
        "counter_value": (30, "int64"),
        "double_counter_value": (44, "double"),
    },
    "DebugAnnotation": {
        "name_iid": (1, "uint64"),
        "bool_value": (2, "bool"),
        "int_value": (4, "int64"),
        "double_value": (5, "double"),
        "string_value": (6, "string"),
        "name": (10, "string"),
        "dict_entries": (11, "DebugAnnotation[]"),
        "string_value_iid": (17, "uint64"),
    },
    "InternedData": {
        "event_categories": (1, "InternedString[]"),
        "event_names": (2, "InternedString[]"),
        "debug_annotation_names": (3, "InternedString[]"),
        "debug_annotation_string_values": (29, "InternedString[]"),
    },
    "InternedString": {"iid": (1, "uint64"), "str": (2, "string")},
    "TrackDescriptor": {
        "uuid": (1, "uint64"),
        "name": (2, "string"),
        "parent_uuid": (5, "uint64"),
        "counter": (8, "CounterDescriptor"),
        "child_ordering": (11, "int32"),
        "sibling_order_rank": (12, "int32"),
    },
    "CounterDescriptor": {"unit_name": (6, "string")},
}
FIELD = descriptor_pb2.FieldDescriptorProto
BEGIN, END, INSTANT, STEP = 1, 2, 3, 4
CLEARED, NEEDED = 1, 2


def _trace_class() -> Any:
    file = descriptor_pb2.FileDescriptorProto(name="trace.proto", package="p", syntax="proto2")
    for name, fields in MESSAGES.items():
        message = file.message_type.add(name=name)
        for key, (number, kind) in fields.items():
            base = kind.removesuffix("[]")
            label = (
                descriptor_pb2.FieldDescriptorProto.LABEL_REPEATED if kind != base else descriptor_pb2.FieldDescriptorProto.LABEL_OPTIONAL
            )
            field = message.field.add(name=key, number=number, label=label)
            if base in MESSAGES:
                field.type, field.type_name = FIELD.TYPE_MESSAGE, f".p.{base}"
            else:
                field.type = getattr(FIELD, f"TYPE_{base.upper()}")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("p.Trace"))


TRACE = _trace_class()


class ReadSlice(NamedTuple):
    """An event with a begin and an end, in nanoseconds; of an instant they are equal.  depth: open slices of its track before it."""

    begin: int
    end: int
    name: str
    category: str
    arguments: dict[str, Any]
    depth: int


class ReadTrace(NamedTuple):
    """tracks: path of names by uuid, in the order of viewers.  slices, instants, counters: by uuid."""

    tracks: dict[int, tuple[str, ...]]
    slices: dict[int, list[ReadSlice]]
    instants: dict[int, list[ReadSlice]]
    counters: dict[int, list[tuple[int, float]]]
    units: dict[int, str]


def read_perfetto(data: bytes) -> ReadTrace:
    trace = TRACE.FromString(data)
    trace.DiscardUnknownFields()
    assert trace.ByteSize() == len(data), "fields that the schema lacks"
    texts: dict[str, dict[int, str]] = {key: {} for key in MESSAGES["InternedData"]}
    described: dict[int, Any] = {}
    open_slices: dict[int, list[tuple[int, str, str, dict[str, Any]]]] = {}
    read = ReadTrace({}, {}, {}, {}, {})
    events = []
    for number, packet in enumerate(trace.packet):
        assert packet.trusted_packet_sequence_id == 1
        assert packet.sequence_flags == (NEEDED if number else CLEARED)
        for key in texts:
            for entry in getattr(packet.interned_data, key):
                assert entry.iid not in texts[key]
                assert entry.str not in texts[key].values()
                texts[key][entry.iid] = entry.str
        if packet.HasField("track_descriptor"):
            described[packet.track_descriptor.uuid] = packet.track_descriptor
        if packet.HasField("track_event"):
            assert packet.track_event.track_uuid in described
            events.append((packet.timestamp, packet.track_event, _named(packet.track_event, texts)))  # texts known so far
    for uuid in sorted(described, key=lambda uuid: [rank for rank, _ in _path(described, uuid)]):
        read.tracks[uuid] = tuple(name for _, name in _path(described, uuid))
        if described[uuid].HasField("counter"):
            read.units[uuid] = described[uuid].counter.unit_name
    for timestamp, event, named in sorted(events, key=lambda entry: entry[0]):
        stack = open_slices.setdefault(event.track_uuid, [])
        if event.type == BEGIN:
            stack.append((timestamp, *named))
        elif event.type == END:
            begin, *rest = stack.pop()
            read.slices.setdefault(event.track_uuid, []).append(ReadSlice(begin, timestamp, *rest, len(stack)))
        elif event.type == INSTANT:
            read.instants.setdefault(event.track_uuid, []).append(ReadSlice(timestamp, timestamp, *named, 0))
        else:
            assert event.type == STEP
            value = event.counter_value if event.HasField("counter_value") else event.double_counter_value
            read.counters.setdefault(event.track_uuid, []).append((timestamp, value))
    assert not any(open_slices.values())
    return read


def _path(described: dict[int, Any], uuid: int) -> list[tuple[int, str]]:
    """Ranks and names from the root to a track."""
    track = described[uuid]
    above = _path(described, track.parent_uuid) if track.HasField("parent_uuid") else []
    return [*above, (track.sibling_order_rank, track.name)]


def _named(event: Any, texts: dict[str, dict[int, str]]) -> tuple[str, str, dict[str, Any]]:
    """Name, category and arguments."""
    arguments = dict(_argument(annotation, texts) for annotation in event.debug_annotations)
    assert len(arguments) == len(event.debug_annotations)
    if event.type not in (BEGIN, INSTANT):
        return "", "", arguments
    (category,) = event.category_iids
    return texts["event_names"][event.name_iid], texts["event_categories"][category], arguments


def _argument(annotation: Any, texts: dict[str, dict[int, str]]) -> tuple[str, Any]:
    name = texts["debug_annotation_names"][annotation.name_iid] if annotation.HasField("name_iid") else annotation.name
    if annotation.dict_entries:
        return name, dict(_argument(entry, texts) for entry in annotation.dict_entries)
    (value,) = [value for field, value in annotation.ListFields() if field.name not in ("name", "name_iid")]
    return name, texts["debug_annotation_string_values"][value] if annotation.HasField("string_value_iid") else value
