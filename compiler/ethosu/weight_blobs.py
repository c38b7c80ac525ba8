"""Weights, biases and scales of a step as the part reads them, in runs of channels."""

from __future__ import annotations

import hashlib
from typing import NamedTuple

import numpy as np

from compiler.ethosu.block_choice import Block, part_kernel_first
from compiler.ethosu.step import BlockStep, ChannelScales
from compiler.ethosu.weight_encoder import encode_weights
from simulator.ethosu.weight_order import KernelShape

RECORD_BYTES, _ALIGN = 10, 16


BlobKey = tuple[bytes, int, int, int]
"""Digest of a step's weights, channels of its block, first and last channel of a blob."""


def digest_weights(step: BlockStep) -> bytes:
    """A digest of all that the coded weights of a step depend on but for the block; empty without weights."""
    if step.weights is None or step.records is None:
        return b""
    shape = (step.weights.shape, step.unit, step.window.dilation_y, step.window.dilation_x, part_kernel_first(step))
    content = hashlib.blake2b(repr(shape).encode(), digest_size=16)
    for part in (step.weights, *step.records):
        content.update(np.ascontiguousarray(part).tobytes())
    return content.digest()


class WeightBlob(NamedTuple):
    """Channels [first, last): the stream of weights, then biases and scales, both of a multiple of 16 bytes."""

    first: int
    last: int
    weights: bytes
    scales: bytes

    @property
    def nbytes(self) -> int:
        """Bytes of both."""
        return len(self.weights) + len(self.scales)


def encode_blob(step: BlockStep, block: Block, first: int, last: int) -> WeightBlob:
    """The blob of some channels of a step with weights."""
    assert step.weights is not None
    assert step.records is not None
    weights, window = step.weights[first:last], step.window
    shape = KernelShape(
        len(weights), weights.shape[1], weights.shape[2], weights.shape[3], block.channels, step.unit == "DEPTHWISE",
        part_kernel_first(step), 8, window.dilation_y, window.dilation_x,
    )  # fmt: skip
    return WeightBlob(
        first, last, encode_weights(weights, shape), _encode_records(ChannelScales(*(part[first:last] for part in step.records)))
    )


def _encode_records(records: ChannelScales) -> bytes:
    """Ten bytes for each channel: bias of 40 bits, factor of 32, shift of 6."""
    table = np.zeros((len(records.bias), RECORD_BYTES), np.uint8)
    for first, count, values in ((0, 5, records.bias), (5, 4, records.factor), (9, 1, records.shift)):
        table[:, first : first + count] = np.asarray(values, np.int64)[:, None] >> 8 * np.arange(count) & 0xFF
    raw = table.tobytes()
    return raw + bytes(-len(raw) % _ALIGN)
