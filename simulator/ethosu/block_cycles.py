"""Cycles of an operation on blocks, from decoded words: of its multiply-accumulates, of its results, and of the bytes that it moves.

A block of a result takes the longer of two stages, its sums and its results; of the last block both count.  Blocks at the edges are as
small as they are.  Where values are from:

| value | source |
|---|---|
| 2x2 results of 8 channels at once; 1x4 of one even row by a kernel of one | Vela, `ofm_ublock`, `npu_performance.py` |
| 4 cycles for a weight of 32 inputs, or 4 of 8 in parts of a kernel; 32 at least | the same, `cycles_wb` |
| 4 taps of a depthwise kernel in 4 cycles, as weights come; a pooling one tap in a cycle, 4 at least | the same |
| kernels in parts of 8x8 | `sub_kernel_limits` |
| 2 cycles between dependent sums of one unit | `delay` |
| cycles of a result by operation and activation | `output_cycles_per_elem`, `activation_cycles_per_elem` of Ethos_U65_256 |
| a fourth of a block's way there and back, for each of four units that share blocks | `cycles_cmd` |
| 10 bytes of bias and scale for each channel, in bursts of 256 | `cycles_bias_blk` |
| bytes in a row by layout and block, and bursts of 32 and 128 bytes | `_estimate_memory_transfer_efficiency`; `vela.ini` |

Vela's `npu_performance.py` and `vela.ini` are Arm's (Apache-2.0, version 5.2.0).  No board has confirmed any of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import NamedTuple

from simulator.ethosu.block_operation import Kernel, Result, Source, mode_of
from simulator.ethosu.command_words import Operation
from simulator.ethosu.feature_map import BRICK, FeatureMap

UNIT_ROWS, UNIT_COLUMNS, UNIT_CHANNELS = 2, 2, 8
_FLAT_COLUMNS = 4
_STEP, _LEAST_STEPS, _PART, _DELAY = 4, 32, 8, 2
"""Cycles of a unit's products, least cycles between weights, rows and columns of a part of a kernel, cycles between dependent sums."""
_EIGHTHS = 8
_RESULT_EIGHTHS = {
    "two of 32 bits": 5, "one of 32 bits": 9, "product of 32 bits": 4, "product": 3, "sums of 40 bits": 3, "sum": 6, "greatest": 1,
    "any": 2,
}  # fmt: skip
"""Eighths of a cycle for each result."""
_TABLE_EIGHTHS, _BOUNDED_EIGHTHS = 8, 2
_UNITS = 4
_RECORD_BYTES, _RECORD_BURST = 10, 256
_LONGEST_WRITE = 64
_ACC_40 = 1


class MemoryTimes(NamedTuple):
    """A memory: rate, latencies in cycles, and bytes of a burst.  Regions of one name share its port."""

    name: str
    bytes_per_cycle: Fraction
    read_latency: int
    write_latency: int
    burst_bytes: int

    def cycles(self, moved: int) -> int:
        """Cycles that bytes take the port for."""
        return -(-moved // self.bytes_per_cycle)


Memories = Mapping[int, MemoryTimes]
"""Memories by region."""


class BlockShape(NamedTuple):
    """Rows, columns and channels of a block, and how many blocks are like it."""

    rows: int
    columns: int
    channels: int
    blocks: int

    @property
    def elements(self) -> int:
        """Results of a block."""
        return self.rows * self.columns * self.channels


class BlockTimes(NamedTuple):
    """Cycles of all blocks of an operation.  drain: of the stage of the last block that the next operation need not wait for."""

    cycles: int
    drain: int


class UnitWork(NamedTuple):
    """Work of the part's units for blocks of a result.  kind: CONV, DEPTHWISE, POOL or REDUCE_SUM.  element: bytes of an input's element.

    eighths: of a cycle, for each result.  flat: whether one even row is made by a kernel of one row.
    """

    kind: str
    kernel_rows: int
    kernel_columns: int
    stride_y: int
    stride_x: int
    inputs: int
    element: int
    part_first: bool
    flat: bool
    eighths: int
    cores: int = 1

    @property
    def input_depth(self) -> int:
        """Channels of an input block."""
        if self.element == 2:
            return _ceil(min(self.inputs, 16), 4) * 4
        limit = 16 if self.part_first and self.kind == "CONV" else 32
        return _ceil(min(self.inputs, limit), UNIT_CHANNELS) * UNIT_CHANNELS

    def input_bytes(self, rows: int, columns: int, channels: int) -> int:
        """Bytes of an input block."""
        high = (rows - 1) * self.stride_y + min(self.kernel_rows, _PART)
        wide = (columns - 1) * self.stride_x + min(self.kernel_columns, _PART)
        return high * wide * (self.input_depth if self.kind == "CONV" else min(channels, self.inputs)) * self.element

    def stages(self, rows: int, columns: int, channels: int, way: int, record_latency: int) -> tuple[int, int]:
        """Cycles of the sums and of the results of a block.  way: of its input and its result between memory and units."""
        sums = _ceil(self._sums(rows, columns, channels), self.cores)
        out = _ceil(self.eighths * rows * columns * channels, _EIGHTHS)
        out = max(out, _ceil(_RECORD_BYTES * channels * record_latency, _RECORD_BURST))
        least = _ceil(way + sums + out, _UNITS)
        return max(sums, least), max(out, least)

    def _sums(self, rows: int, columns: int, channels: int) -> int:
        unit_rows, unit_columns = (1, _FLAT_COLUMNS) if self.flat else (UNIT_ROWS, UNIT_COLUMNS)
        high, wide, deep = _ceil(rows, unit_rows), _ceil(columns, unit_columns), _ceil(channels, UNIT_CHANNELS)
        total, depth, halves = 0, self.input_depth, 2 if self.element == 2 else 1
        for taps in _kernel_parts(self.kernel_rows, self.kernel_columns):
            steps, repeats, cycles = taps, 1, max(_LEAST_STEPS, _STEP * high * wide) * taps * deep
            if self.kind == "POOL":
                steps, cycles = 1, max(_STEP, taps) * high * wide * deep * halves
            elif self.kind == "DEPTHWISE":
                steps = _ceil(taps, 4)
                cycles = max(_LEAST_STEPS, _STEP * high * wide * halves) * steps * deep
            elif self.part_first and self.kind == "CONV":
                steps, repeats = _ceil(taps, 4 // halves), _ceil(depth, UNIT_CHANNELS)
                cycles = max(_LEAST_STEPS, _STEP * high * wide) * steps * repeats * deep
            delay = 0
            if high == wide == 1:
                delay = _DELAY * steps if deep == 1 else _DELAY * (steps - 1) * deep
            total += cycles + delay * repeats
        return total * _ceil(self.inputs, depth) if self.kind in ("CONV", "REDUCE_SUM") else total


def window_times(operation: Operation, result: Result, kernel: Kernel, source: Source, memories: Memories) -> BlockTimes:
    """A convolution or pooling.  memories: by region."""
    kind = operation.name.removeprefix("NPU_OP_")
    if kind == "POOL" and mode_of(operation) == "REDUCE_SUM":
        kind = "REDUCE_SUM"
    work = UnitWork(
        kind, kernel.rows, kernel.columns, kernel.stride_y, kernel.stride_x, source.channels, source.map.dtype.itemsize, kernel.part_first,
        kind in ("CONV", "DEPTHWISE") and result.rows == 1 and result.columns % 2 == 0 and kernel.rows == 1,
        _result_eighths(operation, result, source, None),
        1 + operation.registers.get("PARALLEL_MODE", {"value": 0})["value"],  # which share the channels of a block
    )  # fmt: skip
    latency = memories[operation.field("SCALE_REGION")].read_latency if kind in ("CONV", "DEPTHWISE") else 0
    times = []
    for block in _blocks(result):
        loaded = min(work.input_bytes(*block[:3]), source.rows * source.columns * source.channels * source.map.dtype.itemsize)
        way = _way(result, block, source.map, loaded, memories)
        times.append((*work.stages(*block[:3], way, latency), block.blocks))
    return _joined(times)


def elementwise_times(operation: Operation, result: Result, first: Source, second: Source | None, memories: Memories) -> BlockTimes:
    """An elementwise operation, whose blocks have one stage."""
    per_result, times = _result_eighths(operation, result, first, second), []
    for block in _blocks(result):
        out = _ceil(per_result * block.elements, _EIGHTHS)
        way = _way(result, block, first.map, block.elements * first.map.dtype.itemsize, memories)
        times.append((0, max(out, _ceil(way + out, _UNITS)), block.blocks))
    return _joined(times)


def burst_bytes(moved: int, run: int, burst: int) -> int:
    """Bytes that a memory is busy for: each run of bytes takes whole bursts."""
    return moved if run >= burst else _ceil(moved * burst, max(1, run))


def read_run(source: Source, block: BlockShape) -> int:
    """Bytes in a row of an input that is read in blocks."""
    element = source.map.dtype.itemsize
    if source.map.bricks:
        return BRICK * element * block.columns
    contiguous = source.map.stride_x == source.channels * element
    return source.channels * element * (block.columns if contiguous else 1)


def write_run(result: Result, block: BlockShape) -> int:
    """Bytes in a row of a result."""
    element = result.map.dtype.itemsize
    if result.map.bricks:
        return BRICK * element * block.columns
    if block.channels <= BRICK and result.map.stride_x == block.channels * element:
        return element * block.channels * block.columns
    return min(_LONGEST_WRITE, BRICK * element, block.channels * element)


def largest_block(result: Result) -> BlockShape:
    """The block that most of a result is made in."""
    return next(_blocks(result))


def _blocks(result: Result) -> Iterator[BlockShape]:
    return block_shapes((result.rows, result.columns, result.channels), (result.block_rows, result.block_columns, result.block_channels))


def block_shapes(extents: tuple[int, int, int], block: tuple[int, int, int]) -> Iterator[BlockShape]:
    """Blocks of a result by their sizes, the whole ones first; rows, columns and channels of both."""
    axes = [_sizes(extent, size) for extent, size in zip(extents, block, strict=True)]
    for rows, high in axes[0]:
        for columns, wide in axes[1]:
            for channels, deep in axes[2]:
                yield BlockShape(rows, columns, channels, high * wide * deep)


def _sizes(extent: int, block: int) -> list[tuple[int, int]]:
    """Sizes of blocks on an axis, with how many there are."""
    full = [(block, extent // block)] if extent >= block else []
    return full + ([(extent % block, 1)] if extent % block else [])


def _joined(times: list[tuple[int, int, int]]) -> BlockTimes:
    """Blocks behind each other, two stages each."""
    total = sum(max(sums, out) * count for sums, out, count in times)
    return BlockTimes(total, min(times[-1][:2]))


def _kernel_parts(rows: int, columns: int) -> Iterator[int]:
    """Taps of each part of a kernel."""
    for row in range(0, rows, _PART):
        for column in range(0, columns, _PART):
            yield min(_PART, rows - row) * min(_PART, columns - column)


def _result_eighths(operation: Operation, result: Result, source: Source, second: Source | None) -> int:
    """Eighths of a cycle for a result."""
    mode = "" if operation.name in ("NPU_OP_CONV", "NPU_OP_DEPTHWISE") else mode_of(operation)
    if operation.name == "NPU_OP_ELEMENTWISE" and source.map.dtype.itemsize == 4:
        kind = "one of 32 bits" if second is None else "two of 32 bits"
    elif operation.name == "NPU_OP_ELEMENTWISE" and mode == "MUL" and result.map.dtype.itemsize == 4:
        kind = "product of 32 bits"
    elif operation.name == "NPU_OP_ELEMENTWISE":
        kind = elementwise_kind(mode)
    elif operation.field("ACC_FORMAT") == _ACC_40:
        kind = "sums of 40 bits"
    else:
        kind = "greatest" if mode == "MAX" else "any"
    bounds = operation.field("ACTIVATION_MIN"), operation.field("ACTIVATION_MAX")
    bounded = bounds not in ((-128, 127), (0, 255), (-32768, 32767))
    return result_eighths(kind, bool(operation.field("ACTIVATION", "function")), bounded)


def elementwise_kind(mode: str) -> str:
    """The kind of results of an elementwise operation on 8 or 16 bits."""
    return {"MUL": "product", "ADD": "sum", "SUB": "sum"}.get(mode, "any")


def result_eighths(kind: str, table: bool, bounded: bool) -> int:
    """Eighths of a cycle for a result, with a table or bounds behind it."""
    return max(_RESULT_EIGHTHS[kind], _TABLE_EIGHTHS if table else _BOUNDED_EIGHTHS if bounded else 0)


def _way(result: Result, block: BlockShape, source: FeatureMap, loaded: int, memories: Memories) -> int:
    """Cycles of a block's input from its memory and of its result to its own, latencies with them."""
    read, written = memories[source.region], memories[result.map.region]
    stored = block.elements * result.map.dtype.itemsize
    return read.read_latency + read.cycles(loaded) + written.write_latency + written.cycles(stored)


def _ceil(count: int, step: int) -> int:
    return -(-count // step)
