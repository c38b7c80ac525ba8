"""Biases and scales of results: ten bytes for each channel, bias (40 bits, signed), factor (32 bits), right shift (6 bits)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.ethosu.stream_error import StreamError

RECORD_BYTES = 10


class ScaleRecords(NamedTuple):
    """[channels] of each, int64."""

    bias: NDArray[np.int64]
    factor: NDArray[np.int64]
    shift: NDArray[np.int64]


def read_scales(data: bytes, channels: int) -> ScaleRecords:
    """The records of the first channels of a table."""
    if len(data) < RECORD_BYTES * channels:
        raise StreamError(f"scales: {len(data)} bytes: expected at least {RECORD_BYTES * channels} for {channels} channels")
    table = np.frombuffer(data[: RECORD_BYTES * channels], np.uint8).reshape(channels, RECORD_BYTES).astype(np.int64)
    low = _joined(table[:, :5])
    if (table[:, 9] >> 6).any():
        raise StreamError(f"scales: channel {int(np.argmax(table[:, 9] >> 6))}: reserved bits of the shift are set: expected 0")
    return ScaleRecords(low - ((low >> 39) << 40), _joined(table[:, 5:9]), table[:, 9])


def _joined(octets: NDArray[np.int64]) -> NDArray[np.int64]:
    """Integers of bytes on the last axis, the lowest first."""
    return np.asarray((octets << 8 * np.arange(octets.shape[1])).sum(axis=1))
