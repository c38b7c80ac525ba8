"""A trace as Perfetto's protobuf: a `Trace` of `TracePacket`s, as `protos/perfetto/trace/trace_packet.proto` of Perfetto has them.

A slice is a packet for its begin and one for its end.  Names, categories and texts of arguments are interned: a packet of
`InternedData` has each once, before its first use.  Tracks are a tree: the file, its groups, their lanes, spans and counters.
Spans of a category are tracks of one name, which viewers show as one.  Facts of the file are an instant at 0, named `about`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from simulator.protobuf import (
    MessageRows,
    double_field,
    field,
    fold,
    integer_field,
    join,
    message_field,
    place,
    repeat,
    repeat_each,
    tag,
    to_bytes,
    varints,
)
from simulator.timing_state import Ints
from simulator.trace_events import Arguments, AsyncSlice, Counter, Event, Group, Instant, Lane, Slices, Texts, Trace

# numbers of fields, by message
_PACKET = 1  # Trace
_TIMESTAMP, _SEQUENCE, _TRACK_EVENT, _INTERNED_DATA, _SEQUENCE_FLAGS, _TRACK_DESCRIPTOR = 8, 10, 11, 12, 13, 60  # TracePacket
_CATEGORY_IID, _ANNOTATION, _TYPE, _NAME_IID, _TRACK, _COUNTER_VALUE, _DOUBLE_VALUE = 3, 4, 9, 10, 11, 30, 44  # TrackEvent
_UUID, _TRACK_NAME, _PARENT, _COUNTER, _CHILD_ORDERING, _RANK = 1, 2, 5, 8, 11, 12  # TrackDescriptor
_UNIT_NAME = 6  # CounterDescriptor
_KEY_IID, _KEY, _BOOL, _INT, _DOUBLE, _TEXT, _ENTRY, _TEXT_IID = 1, 10, 2, 4, 5, 6, 11, 17  # DebugAnnotation
_CATEGORIES, _NAMES, _KEYS, _TEXTS = 1, 2, 3, 29  # InternedData, each of messages with iid = 1 and the text = 2

_BEGIN, _END, _INSTANT, _STEP = 1, 2, 3, 4  # TrackEvent.Type
_EXPLICIT = 3  # TrackDescriptor.ChildTracksOrdering: by rank
_STATE_CLEARED, _NEEDS_STATE = 1, 2  # TracePacket.SequenceFlags, of interned texts
_ROOT = 1  # track of the file
_IN_ORDER = field(_CHILD_ORDERING, _EXPLICIT)
_ONE_SEQUENCE = field(_SEQUENCE, 1) + field(_SEQUENCE_FLAGS, _NEEDS_STATE)


def write_perfetto(trace: Trace) -> Iterator[bytes]:
    """Chunks of the file."""
    file = _File()
    root = field(_UUID, _ROOT) + field(_TRACK_NAME, str(trace.about["machine"])) + _IN_ORDER
    yield field(_PACKET, field(_SEQUENCE, 1) + field(_SEQUENCE_FLAGS, _STATE_CLEARED) + field(_TRACK_DESCRIPTOR, root))
    yield from file.instant(_ROOT, "about", "about", 0, trace.about)
    for event in trace.events:
        yield from file.write(event)


class _File:
    """Tracks and interned texts so far."""

    def __init__(self) -> None:
        self.tracks = _ROOT
        self.track: dict[tuple[str, int], int] = {}  # of groups and lanes, by their number
        self.iids: dict[int, dict[str, int]] = {kind: {} for kind in (_CATEGORIES, _NAMES, _KEYS, _TEXTS)}
        self.fresh: list[bytes] = []  # messages of `InternedData` that no packet has yet

    def write(self, event: Event) -> Iterator[bytes]:
        match event:
            case Group(group, name):
                yield self._declare(_ROOT, name)
                self.track["group", group] = self.tracks
            case Lane(group, lane, name):
                yield self._declare(self.track["group", group], name)
                self.track["lane", lane] = self.tracks
            case Slices():
                yield from self._slices(event)
            case AsyncSlice():
                # blocks of one number are one track to a viewer
                yield self._declare(self.track["group", event.group], event.name if event.category == "block" else f"{event.category}s")
                yield from self._span(event)
            case Instant(category, _, lane, name, instant_ns, arguments):
                yield from self.instant(self.track["lane", lane], category, name, instant_ns, arguments)
            case Counter():
                yield self._declare(self.track["group", event.group], event.name, field(_COUNTER, field(_UNIT_NAME, event.unit)))
                yield self._steps(event)

    def _declare(self, parent: int, name: str, more: bytes = b"") -> bytes:
        """A packet that declares the next track, below its older siblings."""
        self.tracks += 1
        place_in_tree = field(_PARENT, parent) + field(_RANK, self.tracks) + _IN_ORDER
        return field(
            _PACKET, _ONE_SEQUENCE + field(_TRACK_DESCRIPTOR, field(_UUID, self.tracks) + field(_TRACK_NAME, name) + place_in_tree + more)
        )

    # --- interned texts ------------------------------------------------------------------------------------------

    def _iid(self, kind: int, text: str) -> int:
        iids = self.iids[kind]
        if text not in iids:
            iids[text] = len(iids) + 1
            self.fresh.append(field(kind, field(1, iids[text]) + field(2, text)))
        return iids[text]

    def _iids(self, kind: int, texts: Texts) -> Ints:
        iids = np.zeros(len(texts.choices), np.int64)
        for i in np.unique(texts.number).tolist():
            iids[i] = self._iid(kind, texts.choices[i])
        return iids[texts.number]

    def _with_interned(self, packets: bytes) -> Iterator[bytes]:
        """Packets behind one that has the texts which they use for the first time."""
        if self.fresh:
            yield field(_PACKET, _ONE_SEQUENCE + field(_INTERNED_DATA, b"".join(self.fresh)))
            self.fresh.clear()
        yield packets

    # --- many events ---------------------------------------------------------------------------------------------

    def _slices(self, event: Slices) -> Iterator[bytes]:
        count, track = len(event.begin_ns), field(_TRACK, self.track["lane", event.lane])
        head = field(_TYPE, _BEGIN) + track + field(_CATEGORY_IID, self._iid(_CATEGORIES, event.category))
        name = integer_field(_NAME_IID, self._iids(_NAMES, event.name))
        annotations = place([(rows, self._annotations(arguments, len(rows))) for rows, arguments in event.kinds], count)
        begin = _packets(event.begin_ns, message_field(_TRACK_EVENT, join(repeat(head, count), name, annotations)))
        end = _packets(event.end_ns, repeat(field(_TRACK_EVENT, field(_TYPE, _END) + track), count))
        yield from self._with_interned(to_bytes(join(begin, end)))

    def _annotations(self, arguments: Arguments, count: int) -> MessageRows:
        """All arguments of events: numbers and interned texts are varints, made together."""
        heads: list[bytes] = []
        numbers: list[Any] = []
        doubles: list[MessageRows] = []
        for key, column in arguments.items():
            head = field(_KEY_IID, self._iid(_KEYS, key))
            if isinstance(column, Texts):
                heads.append(head + tag(_TEXT_IID))
                numbers.append(self._iids(_TEXTS, column))
            elif column.dtype == np.int64:
                heads.append(head + tag(_INT))
                numbers.append(column)
            else:
                octets, is_used = message_field(_ANNOTATION, join(repeat(head, count), double_field(_DOUBLE, column)))
                doubles.append(MessageRows(octets, is_used & ~np.isnan(column)[:, None]))
        message = join(repeat_each(heads, count), varints(np.stack(numbers, 1).ravel()))
        return join(fold(message_field(_ANNOTATION, message), len(heads)), *doubles)

    def _steps(self, event: Counter) -> bytes:
        head = repeat(field(_TYPE, _STEP) + field(_TRACK, self.tracks), len(event.step_ns))
        is_whole = event.values.dtype == np.int64
        step = integer_field(_COUNTER_VALUE, event.values) if is_whole else double_field(_DOUBLE_VALUE, event.values)
        return to_bytes(_packets(event.step_ns, message_field(_TRACK_EVENT, join(head, step))))

    # --- one event -----------------------------------------------------------------------------------------------

    def instant(self, track: int, category: str, name: str, instant_ns: int, arguments: Mapping[str, Any]) -> Iterator[bytes]:
        packet = self._packet(instant_ns, _INSTANT, track, self._named(category, name, arguments))
        yield from self._with_interned(packet)

    def _span(self, event: AsyncSlice) -> Iterator[bytes]:
        begin = self._packet(event.begin_ns, _BEGIN, self.tracks, self._named(event.category, event.name, event.arguments))
        yield from self._with_interned(begin + self._packet(event.end_ns, _END, self.tracks, b""))

    def _named(self, category: str, name: str, arguments: Mapping[str, Any]) -> bytes:
        head = field(_CATEGORY_IID, self._iid(_CATEGORIES, category)) + field(_NAME_IID, self._iid(_NAMES, name))
        return head + b"".join(field(_ANNOTATION, annotation(key, value)) for key, value in arguments.items() if value is not None)

    def _packet(self, time_ns: int, kind: int, track: int, more: bytes) -> bytes:
        event = field(_TRACK_EVENT, field(_TYPE, kind) + field(_TRACK, track) + more)
        return field(_PACKET, field(_TIMESTAMP, time_ns) + _ONE_SEQUENCE + event)


def annotation(key: str, value: Any) -> bytes:
    """A `DebugAnnotation` of a JSON value other than a list."""
    head = field(_KEY, key)
    if isinstance(value, Mapping):
        return head + b"".join(field(_ENTRY, annotation(inner, entry)) for inner, entry in value.items() if entry is not None)
    if isinstance(value, bool):
        return head + field(_BOOL, int(value))
    kind = _TEXT if isinstance(value, str) else _DOUBLE if isinstance(value, float) else _INT
    return head + field(kind, value)


def _packets(time_ns: Ints, event: MessageRows) -> MessageRows:
    count = len(time_ns)
    return message_field(_PACKET, join(integer_field(_TIMESTAMP, time_ns), repeat(_ONE_SEQUENCE, count), event))
