"""The file of a trace: its name says the format."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator

from simulator.trace_events import Trace
from simulator.trace_json import write_json
from simulator.trace_perfetto import write_perfetto

_GZIP_WBITS = zlib.MAX_WBITS | 16  # a header of gzip, and the largest window, 2^15 bytes


def trace_chunks(trace: Trace, name: str) -> Iterator[bytes]:
    """Chunks of the file: protobuf for NAME.pftrace, else JSON; compressed with .gz behind it."""
    write = write_perfetto if name.removesuffix(".gz").endswith(".pftrace") else write_json
    return gzipped(write(trace)) if name.endswith(".gz") else write(trace)


def gzipped(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Compressed chunks; equal input gives equal bytes: no time and no name in the header."""
    compressor = zlib.compressobj(6, zlib.DEFLATED, _GZIP_WBITS)
    for chunk in chunks:
        yield compressor.compress(chunk)
    yield compressor.flush()
