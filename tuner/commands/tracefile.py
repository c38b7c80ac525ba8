"""Writing a file of trace events."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from compiler.build import check_out
from simulator.npu.errors import BadInputError
from simulator.npu.files import atomic_write
from simulator.trace_events import gzipped

OPEN_IT = "open it in https://ui.perfetto.dev or chrome://tracing"


def check_trace_out(out: Path) -> None:
    """Raises `BadInputError` unless a trace can be written there, before anything is run for it."""
    if not out.name.endswith((".json", ".json.gz")):
        raise BadInputError(f"--out {out}: a trace is called .json, or .json.gz to have it compressed")
    check_out(out)


def write_trace_file(out: Path, pieces: Iterable[bytes]) -> int:
    """Compressed where the name says so; returns how many events there are."""
    events = _Counted(pieces)
    atomic_write(out, gzipped(events) if out.name.endswith(".gz") else events)
    return events.lines


class _Counted:
    """Pieces of a trace, and how many events they hold: every event is a line of its own, with a comma before it but for the first."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces = pieces
        self.lines = 0

    def __iter__(self) -> Iterator[bytes]:
        for piece in self._pieces:
            self.lines += piece.count(b",\n{")
            yield piece
        self.lines += 1
