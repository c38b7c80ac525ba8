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
from simulator.ethosu.block_operation import Kernel, Result, Source, kernel_of, result_of, source_of
from simulator.ethosu.byte_counts import constant_bytes, input_bytes, name_of, operand_bytes, result_bytes
from simulator.ethosu.command_words import Operation
from simulator.ethosu.convolution import scale_spans, weight_spans
from simulator.ethosu.operand_values import operands_of

CONSTANTS, COPY = 0, "DMA"
"""The region of constants, beside which words lie; name of a copy among operations."""


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
    return _work(operation, memories, [*moved, (CONSTANTS, fetched)], COPY, latency=latency)


class Transfer(NamedTuple):
    """Bytes of a region that an operation moves, in runs of so many; of 0 those that take no whole bursts."""

    region: int
    size: int
    run: int


class BlockFacts(NamedTuple):
    """An operation on blocks, in any memories.  kernel: None of an elementwise one."""

    operation: Operation
    result: Result
    kernel: Kernel | None
    sources: tuple[Source, ...]
    transfers: tuple[Transfer, ...]


def describe_blocks(operation: Operation) -> BlockFacts:
    """Facts of an operation, which are the same in all memories."""
    result = result_of(operation)
    block, kernel = largest_block(result), None
    if operation.name == "NPU_OP_ELEMENTWISE":
        operands = operands_of(operation, result)
        sources = tuple(source for source in (operands.first, operands.second) if source is not None)
        sizes = [operand_bytes(result, source).bytes for source in sources]
    else:
        kernel = kernel_of(operation)
        sources = (source_of(operation, result, kernel),)
        sizes = [input_bytes(operation, result, kernel, sources[0]).bytes]
    moved = [Transfer(source.map.region, size, read_run(source, block)) for source, size in zip(sources, sizes, strict=True)]
    moved += [] if kernel is None else _constants(operation, result)
    moved.append(Transfer(result.map.region, result_bytes(result).bytes, write_run(result, block)))
    return BlockFacts(operation, result, kernel, sources, tuple(moved))


def block_work(facts: BlockFacts, memories: Memories, fetched: int) -> OperationWork:
    """An operation on blocks."""
    operation, result, kernel, sources, transfers = facts
    moved = [(CONSTANTS, fetched)]
    for region, size, run in transfers:
        memory = _memory(operation, memories, region)
        moved.append((region, burst_bytes(size, run, memory.burst_bytes) if run else size))
    if kernel is None:
        times = elementwise_times(operation, result, sources[0], sources[1] if len(sources) > 1 else None, memories)
    else:
        if operation.name != "NPU_OP_POOL":
            _memory(operation, memories, operation.field("SCALE_REGION"))
        times = window_times(operation, result, kernel, sources[0], memories)
    overlaps = operation.field("BLOCKDEP") > 0
    return _work(operation, memories, moved, name_of(operation), times.cycles, times.drain, overlaps=overlaps)


def _constants(operation: Operation, result: Result) -> Iterator[Transfer]:
    if operation.name != "NPU_OP_POOL":
        for span in (*weight_spans(operation), *scale_spans(operation)):
            yield Transfer(span.region, constant_bytes(result, span).bytes, 0)


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
