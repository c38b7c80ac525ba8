"""A trace as Chrome's JSON.  Format: "Trace Event Format", Google, 2016.

Times are microseconds with three decimals.  Each kind of event has one format string, which is repeated: a hundred thousand events take
a fraction of a second.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any

import numpy as np

from simulator.timing_state import Ints
from simulator.trace_events import Arguments, AsyncSlice, Column, Counter, Event, Group, Instant, Lane, Slices, Texts, Trace

CLOSING = b"\n]}\n"


def write_json(trace: Trace) -> Iterator[bytes]:
    """Chunks of the file."""
    yield opening(trace.about)
    first = True
    for number, event in enumerate(trace.events):
        for text in _lines(event, number):
            yield text.encode() if first else b",\n" + text.encode()
            first = False
    yield CLOSING


def opening(about: Mapping[str, Any]) -> bytes:
    """The text before the first event."""
    return f'{{"displayTimeUnit":"ns","otherData":{json.dumps(about)},"traceEvents":[\n'.encode()


def event_line(**values: Any) -> str:
    """One event as a line of its own."""
    return json.dumps(values, separators=(",", ":"))


def meta(kind: str, group: int, lane: int, args: Mapping[str, Any]) -> str:
    """A metadata event: name or sort index of a group or a lane, which are processes and threads to viewers."""
    return event_line(ph="M", name=kind, pid=group, tid=lane, args=args)


def _lines(event: Event, number: int) -> Iterator[str]:
    """Lines of an event, several to a text.  number: of the event in the file, which orders groups and lanes."""
    match event:
        case Group(group, name):
            yield meta("process_name", group, 0, {"name": name})
            yield meta("process_sort_index", group, 0, {"sort_index": number})
        case Lane(group, lane, name):
            yield meta("thread_name", group, lane, {"name": name})
            yield meta("thread_sort_index", group, lane, {"sort_index": number})
        case Slices():
            for rows, arguments in event.kinds:
                if len(rows):
                    yield _slices(event, rows, arguments)
        case AsyncSlice():
            common: dict[str, Any] = {"cat": event.category, "id": f"0x{event.key:x}", "pid": event.group, "tid": event.lane}
            yield event_line(ph="b", **common, name=event.name, ts=event.begin_ns / 1000, args=event.arguments)
            yield event_line(ph="e", **common, name=event.name, ts=event.end_ns / 1000)
        case Instant():
            place: dict[str, Any] = {"cat": event.category, "pid": event.group, "tid": event.lane}
            yield event_line(ph="i", s="p", **place, name=event.name, ts=event.instant_ns / 1000, args=event.arguments)
        case Counter(group, name, unit, step_ns, values):
            if len(step_ns):
                digits = "%d" if values.dtype == np.int64 else "%.6g"
                form = f'{{"ph":"C","pid":{group},"name":{json.dumps(name)},"ts":%d.%03d,"args":{{"{unit}":{digits}}}}}'
                yield _repeat(form, [*np.divmod(step_ns, 1000), values])


def _slices(event: Slices, rows: Ints, arguments: Arguments) -> str:
    """Complete events with the same arguments."""
    begin_ns, length_ns = event.begin_ns[rows], (event.end_ns - event.begin_ns)[rows]
    keys = ",".join(f'"{key}":%s' for key in arguments)
    head = f'"cat":"{event.category}","pid":{event.group},"tid":{event.lane}'
    form = f'{{"ph":"X",{head},"ts":%d.%03d,"dur":%d.%03d,"name":%s,"args":{{{keys}}}}}'
    name = Texts(event.name.choices, event.name.number[rows])
    return _repeat(form, [*np.divmod(begin_ns, 1000), *np.divmod(length_ns, 1000), name, *arguments.values()])


def _repeat(form: str, columns: list[Column]) -> str:
    """A line for each row of the columns."""
    cells = [_cells(column) for column in columns]
    return ",\n".join([form] * len(cells[0])) % tuple(chain.from_iterable(zip(*cells, strict=True)))


def _cells(column: Column) -> list[Any]:
    if isinstance(column, Texts):
        quoted = {i: json.dumps(column.choices[i]) for i in np.unique(column.number).tolist()}
        return [quoted[i] for i in column.number.tolist()]
    if column.dtype == np.int64:
        numbers: list[Any] = column.tolist()
        return numbers
    return ["null" if np.isnan(number) else number for number in column.tolist()]
