"""Work of a copy or an operation, from decoded words: cycles of its blocks, and of each memory's port."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from fractions import Fraction
from typing import NamedTuple

from simulator.ethosu.block_cycles import (
    Memories,
    MemoryTimes,
    burst_bytes,
    elementwise_times,
    largest_block,
    read_run,
    window_times,
    write_run,
)
from simulator.ethosu.block_operation import Result, Source, kernel_of, result_of, source_of
from simulator.ethosu.byte_counts import constant_bytes, input_bytes, name_of, operand_bytes, result_bytes
from simulator.ethosu.command_words import Operation
from simulator.ethosu.convolution import scale_spans, weight_spans
from simulator.ethosu.operand_values import operands_of

CONSTANTS = 0
"""The region of constants, beside which words lie."""


class OperationWork(NamedTuple):
    """name: of the operation, with its mode.  blocks: cycles of its blocks but for `drain`, the last stage of the last one.

    latency: cycles before its bytes move.  ports: cycles of each memory's port, by the memory's name.  moved: bytes in whole bursts.
    overlaps: whether it begins while the last block of the one before it is written.
    """

    word: int
    name: str
    blocks: int
    drain: int
    latency: int
    ports: dict[str, int]
    moved: dict[str, int]
    overlaps: bool


def copy_work(operation: Operation, memories: Memories, fetched: int) -> OperationWork:
    """A copy; the shared buffer is on chip.  fetched: bytes of words that are read for it."""
    length, latency, moved = operation.address("DMA0_LEN"), 0, list[tuple[int, int]]()
    for side in ("SRC", "DST"):
        region = operation.field(f"DMA0_{side}_REGION")
        if not operation.field(f"DMA0_{side}_REGION", "internal"):
            moved.append((region, length))
            latency += _memory(operation, memories, region).read_latency if side == "SRC" else 0
    return _work(operation, memories, [*moved, (CONSTANTS, fetched)], "DMA", latency=latency)


def block_work(operation: Operation, memories: Memories, fetched: int) -> OperationWork:
    """An operation on blocks."""
    result = result_of(operation)
    if operation.name == "NPU_OP_ELEMENTWISE":
        operands = operands_of(operation, result)
        sources = [source for source in (operands.first, operands.second) if source is not None]
        _known(operation, memories, result, sources)
        times = elementwise_times(operation, result, operands.first, operands.second, memories)
        moved = [_read(result, source, operand_bytes(result, source).bytes, memories) for source in sources]
    else:
        kernel = kernel_of(operation)
        source = source_of(operation, result, kernel)
        _known(operation, memories, result, [source])
        moved = [_read(result, source, input_bytes(operation, result, kernel, source).bytes, memories)]
        moved += _constants(operation, result)
        times = window_times(operation, result, kernel, source, memories)
    region, size = result.map.region, result_bytes(result).bytes
    moved.append((region, burst_bytes(size, write_run(result, largest_block(result)), memories[region].burst_bytes)))
    overlaps = operation.field("BLOCKDEP") > 0
    return _work(operation, memories, [*moved, (CONSTANTS, fetched)], name_of(operation), times.cycles, times.drain, overlaps=overlaps)


def _constants(operation: Operation, result: Result) -> Iterator[tuple[int, int]]:
    if operation.name != "NPU_OP_POOL":
        for span in (*weight_spans(operation), *scale_spans(operation)):
            yield span.region, constant_bytes(result, span).bytes


def _read(result: Result, source: Source, size: int, memories: Memories) -> tuple[int, int]:
    region = source.map.region
    return region, burst_bytes(size, read_run(source, largest_block(result)), memories[region].burst_bytes)


def _work(
    operation: Operation,
    memories: Memories,
    parts: list[tuple[int, int]],
    name: str,
    blocks: int = 0,
    drain: int = 0,
    latency: int = 0,
    overlaps: bool = False,
) -> OperationWork:
    """parts: regions with bytes."""
    moved, rates = Counter[str](), dict[str, Fraction]()
    for region, size in parts:
        memory = _memory(operation, memories, region)
        moved[memory.name] += size
        rates[memory.name] = memory.bytes_per_cycle
    ports = {port: -(-size // rates[port]) for port, size in moved.items()}
    return OperationWork(operation.word, name, blocks, drain, latency, ports, dict(moved), overlaps)


def _memory(operation: Operation, memories: Memories, region: int) -> MemoryTimes:
    if region not in memories:
        raise operation.refuse(f"region {region}: expected one of {', '.join(map(str, sorted(memories)))}")
    return memories[region]


def _known(operation: Operation, memories: Memories, result: Result, sources: list[Source]) -> None:
    """An error for a region without a memory."""
    regions = [result.map.region, *(source.map.region for source in sources)]
    if operation.name in ("NPU_OP_CONV", "NPU_OP_DEPTHWISE"):
        regions.append(operation.field("SCALE_REGION"))
    for region in regions:
        _memory(operation, memories, region)
