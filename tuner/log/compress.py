"""Bytes between processes, their length in front: so a job's result fits into a message of Ray's, and takes no detour through its store."""

from __future__ import annotations

import pyarrow as pa

_HEAD = 8  # bytes of the length
_DENSEST = 255  # bytes that one byte of lz4 may stand for


def compressed(data: bytes | pa.Buffer) -> bytes:
    """A quarter to a tenth of columns and genes, in a few microseconds."""
    return len(data).to_bytes(_HEAD, "little") + pa.compress(data, codec="lz4", asbytes=True)


def decompressed(data: bytes) -> pa.Buffer:
    """Raises `ValueError` or `OSError` where `compressed` did not make it."""
    size = int.from_bytes(data[:_HEAD], "little")
    if size > _DENSEST * len(data):
        raise ValueError(f"{len(data):,} bytes for {size:,}")
    return pa.decompress(memoryview(data)[_HEAD:], size, codec="lz4")
