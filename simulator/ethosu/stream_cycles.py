"""A clock for command streams: when each copy and operation begins and ends, from words alone.

* Words are read in order.  An operation begins behind the one before it, a copy behind the one before it, each of them beside the other.
* At most two of each are under way; the third, and a wait, stop the reading of words until there are fewer.
* An operation takes the longest of its blocks (`block_cycles`) and of its bytes in each memory.  With `BLOCKDEP` above 0 it begins while
  the last block of the one before it is written.
* A copy takes its latency, then its bytes in both memories.
* Bytes in a memory take its port, by the rule of `byte_counts`, in whole bursts.  A copy and an operation that want the same port have half
  of it each.
* A wait, an operation and a copy are read in a cycle each, and bytes of words count with those of the operation behind them.

Times are integers.  Where values are from, but for those of blocks:

| value | source |
|---|---|
| rates, latency of DRAM | the machine file |
| latency of a write to DRAM, half of a read's; of SRAM, 32; bursts of 128 and 32 bytes | Vela, `vela.ini` |
| copies and operations under way, two of each | Vela, `max_outstanding_dma`, `max_outstanding_kernels` |
| a cycle for each operation, halves of a port | assumed: published nowhere that we know of |
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from types import MappingProxyType
from typing import Any, NamedTuple

from numpy.typing import NDArray

from simulator.ethosu.block_cycles import Memories, MemoryTimes
from simulator.ethosu.command_words import WORD_BYTES, Operation, decode_operations, to_words
from simulator.ethosu.operation_work import BlockFacts, OperationWork, block_work, copy_work, describe_blocks

SRAM, DRAM = "sram", "dram"
_UNDER_WAY, _READ_CYCLES, _HALVES = 2, 1, 2
_KINDS = {
    "NPU_OP_DMA_START": "copy", "NPU_OP_ELEMENTWISE": "operation", "NPU_OP_CONV": "operation", "NPU_OP_DEPTHWISE": "operation",
    "NPU_OP_POOL": "operation",
}  # fmt: skip
_WAITS = {"NPU_OP_DMA_WAIT": "copy", "NPU_OP_KERNEL_WAIT": "operation"}


class OperationTimes(NamedTuple):
    """A copy or an operation.  word: of its start.  blocks: cycles of its blocks.  sram, dram: cycles of its bytes by themselves.

    begin, end: when it has its unit, and when its last byte is written.  dram_bytes: moved, in whole bursts.
    """

    word: int
    name: str
    blocks: int
    sram: int
    dram: int
    begin: int
    end: int
    dram_bytes: int


class StreamTimes(NamedTuple):
    """cycles: from the first word to the last byte."""

    cycles: int
    operations: tuple[OperationTimes, ...]


def memory_times(sram: Fraction, dram: Fraction, latency_cycles: int = 500, queueing_cycles: int = 0) -> Mapping[int, MemoryTimes]:
    """Memories of the three regions of a stream: constants and arena in DRAM, region 2 in SRAM.

    sram, dram: bytes per cycle.  latency_cycles: of a read of DRAM.  queueing_cycles: of every transfer of DRAM, on top.
    """
    outside = MemoryTimes(DRAM, dram, latency_cycles + queueing_cycles, latency_cycles // 2 + queueing_cycles, 128)
    return MappingProxyType({0: outside, 1: outside, 2: MemoryTimes(SRAM, sram, 32, 32, 32)})


@dataclass(frozen=True, eq=False)
class DecodedStream:
    """Operations in order, those on blocks with their facts, and the bytes of words that are read for each."""

    operations: tuple[tuple[Operation | BlockFacts, int], ...]


def decode_stream(stream: bytes | NDArray[Any] | Sequence[int]) -> DecodedStream:
    """A stream that is timed in several memories.  Raises `StreamError` as the executor does for illegal words."""
    operations, previous = list[tuple[Operation | BlockFacts, int]](), 0
    for operation in decode_operations(to_words(stream)):
        kind = _KINDS.get(operation.name)
        fetched = WORD_BYTES * (operation.word - previous)
        operations.append((describe_blocks(operation) if kind == "operation" else operation, fetched))
        previous = operation.word if kind else previous
    return DecodedStream(tuple(operations))


def stream_times(stream: DecodedStream | bytes | NDArray[Any] | Sequence[int], memories: Memories) -> StreamTimes:
    """Times of a stream whose regions are in memories.  Raises `StreamError` as the executor does for illegal words."""
    clock = _Clock(memories)
    for operation, fetched in (stream if isinstance(stream, DecodedStream) else decode_stream(stream)).operations:
        clock.read(operation, fetched)
    clock.finish()
    return StreamTimes(clock.time, tuple(sorted(clock.done)))


class _Running:
    """Work that waits for its unit or has it.  left: halves of cycles by port.  begin: -1 before it has its unit."""

    def __init__(self, work: OperationWork) -> None:
        self.work, self.begin = work, -1
        self.left = {port: _HALVES * cycles for port, cycles in work.ports.items()}

    @property
    def ready(self) -> int:
        """When bytes may move."""
        return self.begin + self.work.latency

    @property
    def least(self) -> int:
        """When blocks are done."""
        return self.begin + self.work.blocks

    def wants(self, port: str, time: int) -> bool:
        """Whether it moves bytes through a port."""
        return self.begin >= 0 and self.ready <= time and self.left.get(port, 0) > 0


class _Unit:
    """Work of one kind in order.  free: when the next may begin, if it overlaps with the one before it, and if not."""

    def __init__(self) -> None:
        self.queue, self.draining = list[_Running](), list[int]()
        self.free, self.free_alone = 0, 0

    def begins(self) -> int:
        """When the first in the queue may begin."""
        return self.free if self.queue[0].work.overlaps else self.free_alone


class _Clock:
    """Time, and what is under way."""

    def __init__(self, memories: Memories) -> None:
        self.memories, self.time, self.done = memories, 0, list[OperationTimes]()
        self.units = {"copy": _Unit(), "operation": _Unit()}

    def read(self, operation: Operation | BlockFacts, fetched: int) -> None:
        """Take an operation, when there is room for it."""
        if isinstance(operation, BlockFacts):
            self.queue("operation", block_work(operation, self.memories, fetched))
        elif operation.name in _WAITS:
            self.wait(_WAITS[operation.name], operation.values["pending"])
        elif operation.name in _KINDS:
            self.queue("copy", copy_work(operation, self.memories, fetched))
        self.pass_time(self.time + _READ_CYCLES)

    def queue(self, kind: str, work: OperationWork) -> None:
        """Put work behind that of its kind."""
        self.wait(kind, _UNDER_WAY - 1)
        self.units[kind].queue.append(_Running(work))

    def finish(self) -> None:
        """Let everything end."""
        for kind in self.units:
            self.wait(kind, 0)

    def wait(self, kind: str, pending: int) -> None:
        """Let time pass until at most so many of a kind are pending."""
        unit = self.units[kind]
        while len(unit.queue) + len(unit.draining) > pending:
            self.step([])

    def pass_time(self, time: int) -> None:
        while self.time < time:
            self.step([time])

    def step(self, limit: list[int]) -> None:
        """Let time pass to the next event: work that begins, may move bytes, or ends."""
        self.start_ready()
        running = [unit.queue[0] for unit in self.units.values() if unit.queue and unit.queue[0].begin >= 0]
        sharing = {port: sum(item.wants(port, self.time) for item in running) for port in (SRAM, DRAM)}
        events = [*limit, *(end for unit in self.units.values() for end in unit.draining)]
        events += [unit.begins() for unit in self.units.values() if unit.queue]
        for item in running:
            moving = [port for port in item.left if item.wants(port, self.time)]
            events += [item.ready, item.least, *(self.time - -item.left[port] * sharing[port] // _HALVES for port in moving)]
        passed = min(event for event in events if event > self.time) - self.time
        for item in running:
            for port in item.left:
                if item.wants(port, self.time):
                    item.left[port] = max(0, item.left[port] - passed * _HALVES // sharing[port])
        self.time += passed
        for unit in self.units.values():
            unit.draining = [end for end in unit.draining if end > self.time]
            self.end_done(unit)
        self.start_ready()

    def start_ready(self) -> None:
        for unit in self.units.values():
            if unit.queue and unit.queue[0].begin < 0 and unit.begins() <= self.time:
                unit.queue[0].begin = self.time

    def end_done(self, unit: _Unit) -> None:
        """End the first work of a unit where nothing of it is left."""
        if not unit.queue or unit.queue[0].begin < 0:
            return
        item, work = unit.queue[0], unit.queue[0].work
        if any(item.left.values()) or max(item.ready, item.least) > self.time:
            return
        del unit.queue[0]
        unit.free, unit.free_alone = self.time, self.time + work.drain
        if work.drain:
            unit.draining.append(unit.free_alone)
        ports = work.ports.get(SRAM, 0), work.ports.get(DRAM, 0)
        self.done.append(
            OperationTimes(work.word, work.name, work.blocks + work.drain, *ports, item.begin, unit.free_alone, work.moved.get(DRAM, 0))
        )
