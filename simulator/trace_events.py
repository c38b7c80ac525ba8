"""Common parts of Chrome trace files: the frame around the events, names of lanes, time.

Times are microseconds with three decimals (a nanosecond is Perfetto's grain).  Format: "Trace Event Format", Google, 2016.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from simulator.timing_state import Ints

CLOSING = b"\n]}\n"


def opening(about: Mapping[str, Any]) -> bytes:
    """The text before the first event.  about: metadata of the file (JSON values)."""
    return f'{{"displayTimeUnit":"ns","otherData":{json.dumps(about)},"traceEvents":[\n'.encode()


def event(**values: Any) -> str:
    """One event as a line of its own."""
    return json.dumps(values, separators=(",", ":"))


def meta(kind: str, pid: int, tid: int, args: Mapping[str, Any]) -> str:
    """A metadata event: name or sort index of a process or a lane."""
    return event(ph="M", name=kind, pid=pid, tid=tid, args=args)


def nanoseconds(cycle: Ints, clock_hz: int) -> Ints:
    """Cycles in nanoseconds, rounded to nearest; in steps, so that no product leaves int64."""
    seconds, remainder = np.divmod(cycle, clock_hz)
    if clock_hz <= 1 << 33:
        return np.asarray(seconds * 1_000_000_000 + (remainder * 1_000_000_000 + clock_hz // 2) // clock_hz, np.int64)
    return np.asarray(seconds * 1_000_000_000 + np.rint(remainder / clock_hz * 1e9), np.int64)


def gzipped(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Compressed chunks; equal input gives equal bytes: no time and no name in the header."""
    press = zlib.compressobj(6, zlib.DEFLATED, 31)
    for chunk in chunks:
        yield press.compress(chunk)
    yield press.flush()
