"""The execution of a command stream on byte arrays, with its bytes counted and its waits checked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.ethosu.block_operation import Result, Source, kernel_of, result_of, source_of
from simulator.ethosu.byte_counts import (
    COMMANDS,
    COPIES_READ,
    COPIES_WRITTEN,
    INPUTS,
    RESULTS,
    SCALES,
    WEIGHTS,
    ByteCount,
    ByteCounts,
    Channel,
    constant_bytes,
    input_bytes,
    moved_once,
    multiply_accumulates,
    name_of,
    operand_bytes,
    result_bytes,
)
from simulator.ethosu.command_words import WORD_BYTES, Operation, decode_operations, to_words
from simulator.ethosu.convolution import convolve, scale_spans, weight_spans
from simulator.ethosu.memory_regions import SHARED, Region, RegionMemory, Span, flat_span
from simulator.ethosu.operand_values import combine, operands_of
from simulator.ethosu.pending_operations import Accesses, PendingOperations
from simulator.ethosu.pool_windows import pool
from simulator.ethosu.result_values import finish, table_of
from simulator.ethosu.shared_buffer import check_blocks, check_shared_buffer
from simulator.ethosu.type_rules import check_types

_SHARED_STEP = 16


class Execution(NamedTuple):
    """bytes: by channel.  operations: how many of each.  macs: multiply-accumulates of convolutions."""

    bytes: Mapping[Channel, ByteCount]
    operations: Mapping[str, int]
    macs: int


def execute(stream: bytes | NDArray[Any] | Sequence[int], regions: Mapping[int, Region], commands: int | None = None) -> Execution:
    """Run a stream to its end; results are in the arrays of `regions`.

    commands: the region that holds the stream itself, for the count of its words.  A stream that is refused leaves arrays half written.
    """
    words = to_words(stream)
    run = _Run(RegionMemory(regions))
    if commands is not None:
        run.counts.add(commands, COMMANDS, moved_once(WORD_BYTES * len(words)))
    for operation in decode_operations(words):
        run.step(operation)
    return Execution(run.counts.rows, dict(sorted(run.operations.items())), run.macs)


class _Run:
    """The state between operations."""

    def __init__(self, memory: RegionMemory) -> None:
        self.memory, self.counts, self.pending = memory, ByteCounts(memory), PendingOperations()
        self.operations, self.macs = Counter[str](), 0

    def step(self, operation: Operation) -> None:
        name = operation.name
        if name == "NPU_OP_DMA_WAIT":
            self.pending.wait("copy", operation.values["pending"])
        elif name == "NPU_OP_KERNEL_WAIT":
            self.pending.wait("operation", operation.values["pending"])
        elif name == "NPU_OP_DMA_START":
            self._copy(operation)
        elif name == "NPU_OP_ELEMENTWISE":
            self._elementwise(operation)
        elif name in ("NPU_OP_CONV", "NPU_OP_DEPTHWISE", "NPU_OP_POOL"):
            self._windows(operation)
        else:
            return  # an interrupt, counters or the end: no value depends on them
        self.operations[name_of(operation)] += 1

    def _copy(self, operation: Operation) -> None:
        length = operation.address("DMA0_LEN")
        spans = list[Span]()
        for side in ("SRC", "DST"):
            region = SHARED if operation.field(f"DMA0_{side}_REGION", "internal") else operation.field(f"DMA0_{side}_REGION")
            first = operation.address(f"DMA0_{side}")
            if region == SHARED and first % _SHARED_STEP:
                raise operation.refuse(f"NPU_SET_DMA0_{side} = {first}: expected a multiple of {_SHARED_STEP} in the shared buffer")
            spans.append(flat_span(region, first, length))
        source, target = spans
        if target.region == SHARED and length % _SHARED_STEP:
            raise operation.refuse(f"NPU_SET_DMA0_LEN = {length}: expected a multiple of {_SHARED_STEP} in the shared buffer")
        if length == 0:
            raise operation.refuse("NPU_SET_DMA0_LEN = 0: expected at least 1")
        self.memory.check(source)
        self.memory.check(target, writes=True)
        if source.overlaps(target):
            raise operation.refuse("the source overlaps with the destination: expected two places")
        self.pending.start("copy", Accesses(operation.word, operation.name, (source,), (target,)))
        octets = np.dtype(np.uint8)
        self.memory.view(target, octets, writes=True)[...] = self.memory.view(source, octets)
        self.counts.add(source.region, COPIES_READ, moved_once(length))
        self.counts.add(target.region, COPIES_WRITTEN, moved_once(length))

    def _windows(self, operation: Operation) -> None:
        result, kernel = result_of(operation), kernel_of(operation)
        source = source_of(operation, result, kernel)
        check_types(operation, name_of(operation), source.map.dtype, result.map.dtype)
        check_shared_buffer(operation, result, False)
        check_blocks(operation, result, kernel, source)
        constants = list[Span]()
        if operation.name == "NPU_OP_POOL":
            self._begin(operation, result, (source,), ())
            values = pool(operation, self.memory, result, kernel, source)
        else:
            for channel, spans in ((WEIGHTS, weight_spans(operation)), (SCALES, scale_spans(operation))):
                constants += spans
                for span in spans:
                    self.counts.add(span.region, channel, constant_bytes(result, span))
            self._begin(operation, result, (source,), tuple(constants))
            values = convolve(operation, self.memory, result, kernel, source)
        self._end(operation, result, values)
        self.counts.add(source.map.region, INPUTS, input_bytes(operation, result, kernel, source))
        self.macs += multiply_accumulates(operation, result, kernel, source)

    def _elementwise(self, operation: Operation) -> None:
        result = result_of(operation)
        operands = operands_of(operation, result)
        check_types(operation, name_of(operation), operands.first.map.dtype, result.map.dtype)
        check_shared_buffer(operation, result, operands.second is not None)
        sources = tuple(source for source in (operands.first, operands.second) if source is not None)
        self._begin(operation, result, sources, ())
        self._end(operation, result, combine(operation, self.memory, result, operands))
        for source in sources:
            self.counts.add(source.map.region, INPUTS, operand_bytes(result, source))

    def _begin(self, operation: Operation, result: Result, sources: tuple[Source, ...], constants: tuple[Span, ...]) -> None:
        reads = [span for source in sources for _, _, span in source.map.spans(source.rows, source.columns, source.channels)]
        table = table_of(operation, result)
        reads += (*constants, *([table] if table else []))
        writes = tuple(span for _, _, span in result.map.spans(result.rows, result.columns, result.channels))
        for span in reads:
            self.memory.check(span)
        for span in writes:
            self.memory.check(span, writes=True)
        self.pending.start("operation", Accesses(operation.word, operation.name, tuple(reads), writes))

    def _end(self, operation: Operation, result: Result, values: NDArray[np.int64]) -> None:
        result.map.write(self.memory, finish(operation, result, self.memory, values))
        self.counts.add(result.map.region, RESULTS, result_bytes(result))
