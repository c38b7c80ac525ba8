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
_GZIP_WBITS = zlib.MAX_WBITS | 16  # a header of gzip, and the largest window, 2^15 bytes
_EXACT_CLOCK_HZ = 1 << 33  # up to here a remainder of a second, in cycles, times 10^9 fits int64


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
    if clock_hz <= _EXACT_CLOCK_HZ:
        fraction_ns = (remainder * 1_000_000_000 + clock_hz // 2) // clock_hz
    else:
        fraction_ns = np.rint(remainder / clock_hz * 1e9)
    return np.asarray(seconds * 1_000_000_000 + fraction_ns, np.int64)


def gzipped(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Compressed chunks; equal input gives equal bytes: no time and no name in the header."""
    compressor = zlib.compressobj(6, zlib.DEFLATED, _GZIP_WBITS)
    for chunk in chunks:
        yield compressor.compress(chunk)
    yield compressor.flush()
