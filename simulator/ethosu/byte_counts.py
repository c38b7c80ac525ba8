"""Bytes that operations move, by memory, AXI port and channel, from decoded words alone.

The rule for what is read again: **a block of a result reads whatever it needs, and nothing stays from one block to the next.**

* A result is cut into blocks as `OFM_BLK_*` say; each block is written once.
* A block of a convolution reads from the first to the last row and column that its windows reach, in all channels of the input.
  So the input is read once for each block of channels, and rows and columns that windows of two blocks share are read twice.
* A block of a depthwise convolution or of a pooling reads them in its own channels, REDUCE_SUM in all channels.
* A block reads the weights, biases and scales of its channels; so a stream of weights is read once for each block of rows and columns.
* A block of an elementwise operation reads its own elements of each operand, and on axes that are broadcast one element.
* A copy reads and writes its bytes once, the words of the stream are read once.

Padding is not read, and bytes of a brick that no channel has are not counted.  `once` counts an operand's bytes once for each operation.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from simulator.ethosu.block_operation import Kernel, Result, Source, mode_of
from simulator.ethosu.command_words import Operation
from simulator.ethosu.memory_regions import SHARED, RegionMemory, Span

COMMANDS, INPUTS, WEIGHTS, SCALES, COPIES_READ, RESULTS, COPIES_WRITTEN = (
    "commands", "inputs", "weights", "scales", "copies_read", "results", "copies_written",
)  # fmt: skip
"""Channels, as the counters of the part divide them."""


class Channel(NamedTuple):
    """A row of a count."""

    memory: str
    port: int
    channel: str


class ByteCount(NamedTuple):
    """bytes: by the rule.  once: each operand once for each operation."""

    bytes: int
    once: int


class ByteCounts:
    """Sums by channel."""

    def __init__(self, memory: RegionMemory) -> None:
        self._memory = memory
        self._sums = defaultdict[Channel, list[int]](lambda: [0, 0])

    def add(self, region: int, channel: str, count: ByteCount) -> None:
        """Count bytes of a region; those of the shared buffer are on chip, and are not counted."""
        if region != SHARED:
            place = self._memory.region(region)
            sums = self._sums[Channel(place.memory, place.port, channel)]
            sums[0], sums[1] = sums[0] + count.bytes, sums[1] + count.once

    @property
    def rows(self) -> Mapping[Channel, ByteCount]:
        """Counts by channel, in the order of their names."""
        return {channel: ByteCount(*self._sums[channel]) for channel in sorted(self._sums)}


def moved_once(count: int) -> ByteCount:
    """Bytes that the rule and each operation count once: of copies and words."""
    return ByteCount(count, count)


def result_bytes(result: Result) -> ByteCount:
    """The bytes of a result."""
    return moved_once(result.rows * result.columns * result.channels * result.map.dtype.itemsize)


def input_bytes(operation: Operation, result: Result, kernel: Kernel, source: Source) -> ByteCount:
    """The bytes of the input of a convolution or pooling."""
    rows = sum(
        _reached(block, kernel.stride_y, (kernel.rows - 1) * kernel.dilation_y + 1, kernel.pad_top, source.rows, kernel.upscale)
        for block in _blocks(result.rows, result.block_rows)
    )
    columns = sum(
        _reached(block, kernel.stride_x, (kernel.columns - 1) * kernel.dilation_x + 1, kernel.pad_left, source.columns, kernel.upscale)
        for block in _blocks(result.columns, result.block_columns)
    )
    passes = -(-result.channels // result.block_channels) if operation.name == "NPU_OP_CONV" else 1
    element = source.map.dtype.itemsize
    return ByteCount(rows * columns * source.channels * element * passes, source.rows * source.columns * source.channels * element)


def operand_bytes(result: Result, source: Source) -> ByteCount:
    """The bytes of an operand of an elementwise operation."""
    count = source.map.dtype.itemsize
    for size, block, extent in (
        (result.rows, result.block_rows, source.rows), (result.columns, result.block_columns, source.columns),
        (result.channels, result.block_channels, source.channels),
    ):  # fmt: skip
        count *= size if extent == size else -(-size // block)
    return ByteCount(count, source.rows * source.columns * source.channels * source.map.dtype.itemsize)


def constant_bytes(result: Result, span: Span) -> ByteCount:
    """The bytes of weights, or of biases and scales."""
    passes = -(-result.rows // result.block_rows) * -(-result.columns // result.block_columns)
    return ByteCount(span.sizes[0] * passes, span.sizes[0])


def multiply_accumulates(operation: Operation, result: Result, kernel: Kernel, source: Source) -> int:
    """Multiply-accumulates of a convolution; 0 of a pooling."""
    if operation.name == "NPU_OP_POOL":
        return 0
    inputs = source.channels if operation.name == "NPU_OP_CONV" else 1
    return result.rows * result.columns * result.channels * kernel.rows * kernel.columns * inputs


def name_of(operation: Operation) -> str:
    """The operation, with its mode where it has one."""
    name = operation.name.removeprefix("NPU_OP_")
    return f"{name} {mode_of(operation)}" if "mode" in operation.values else name


def _blocks(size: int, block: int) -> Iterator[range]:
    return (range(first, min(first + block, size)) for first in range(0, size, block))


def _reached(block: range, stride: int, reach: int, padding: int, size: int, upscale: int) -> int:
    """Rows of an input that windows of a block reach."""
    first = max(0, block[0] * stride - padding)
    last = min(size * upscale - 1, block[-1] * stride - padding + reach - 1)
    return last // upscale - first // upscale + 1
