"""The command stream of a network in segments: addresses in DRAM, constants, and words of all segments in order."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from compiler.ethosu.buffer_addresses import ALIGN, Placed, TimedBuffer, allocate
from compiler.ethosu.cascade import LoadRows, SaveRows
from compiler.ethosu.command_writer import SHARED, ByteRange, CommandWriter
from compiler.ethosu.constant_pool import ConstantPool
from compiler.ethosu.network_layout import NetworkLayout
from compiler.ethosu.planned_bytes import PlannedBytes, planned_bytes
from compiler.ethosu.segment_layout import SegmentLayout
from compiler.ethosu.step_writer import TABLE_BYTES, TABLES, StepRun, WeightPlace, write_run
from compiler.ethosu.store_places import ARENA, CONSTANTS, FAST, Place, copy_rows, row_bytes
from compiler.ethosu.stream_events import Event, FetchWeights, RunBlob

_TABLE_SLOTS = 8


class TensorPlace(NamedTuple):
    """An input or output of a stream.  offset: in the arena in DRAM.  tensor: its number in the network."""

    tensor: int
    offset: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]


class CommandStream(NamedTuple):
    """Words, constants, and bytes of the arena in DRAM and of SRAM.  planned: bytes that are moved, as the plan has them."""

    words: tuple[int, ...]
    constants: NDArray[np.uint8]
    arena: int
    fast: int
    inputs: tuple[TensorPlace, ...]
    outputs: tuple[TensorPlace, ...]
    planned: PlannedBytes
    layouts: tuple[SegmentLayout, ...]


def emit_stream(network: NetworkLayout, borders: Mapping[int, int], borders_end: int, pool: ConstantPool | None = None) -> CommandStream:
    """The stream of a network that is laid out.

    borders: offsets in the arena of the network's inputs and outputs, and of others that the stream leaves alone, up to `borders_end`.
    pool: where constants go, beside those of other streams.
    """
    segmented, layouts = network.network, network.layouts
    emitter = _Emitter(network, borders, borders_end, pool or ConstantPool())
    for layout, events in zip(layouts, network.events, strict=True):
        emitter.write_segment(layout, events)
    words, ends = emitter.writer.stop(), segmented.lowered.network
    inputs, outputs = (tuple(emitter.tensor_place(number) for number in numbers) for numbers in (ends.inputs, ends.outputs))
    planned = planned_bytes(segmented, layouts, len(words), emitter.tables_loaded)
    return CommandStream(words, emitter.pool.data(), emitter.arena, max(network.sram_bytes, ALIGN), inputs, outputs, planned, layouts)


class _Emitter:
    """Words and constants as they grow."""

    def __init__(self, layout: NetworkLayout, borders: Mapping[int, int], borders_end: int, pool: ConstantPool) -> None:
        self.pool, self.by_step = pool, layout.by_step
        self.network, self.lowered = layout.network, layout.network.lowered
        self.held = {buffer.key: address for buffer, address in layout.held}
        self.writer, self.tables_loaded = CommandWriter(), 0
        self._tables = OrderedDict[bytes, int]()
        self._dram, self.arena = self._place_arena(borders, borders_end)

    def _place_arena(self, borders: Mapping[int, int], borders_end: int) -> tuple[dict[int, int], int]:
        """Addresses in DRAM of all tensors that are not in SRAM alone."""
        network = self.lowered.network
        outside = {self.lowered.homes[number].store: borders[number] for number in (*network.inputs, *network.outputs)}
        inside = {store for number in range(len(self.network.plan.segments)) for store in self.network.cascade(number, 1).inside}
        buffers = []
        for number, store in enumerate(self.lowered.stores):
            if number in self.network.writers and store.constant is None and number not in {*self.held, *inside, *outside}:
                size = store.rows * row_bytes(store, number in self.network.bricks)
                buffers.append(TimedBuffer(number, size, *self.network.lifetime(number)))
        taken = Placed(TimedBuffer(None, borders_end, -1, len(self.network.plan.segments)), 0)
        addresses, end = allocate(buffers, [taken])
        return outside | {buffer.key: addresses[buffer.key] for buffer in buffers}, max(end, ALIGN)

    def tensor_place(self, number: int) -> TensorPlace:
        """The place of an input or output."""
        tensor = self.lowered.network.tensors[number]
        return TensorPlace(number, self._dram[self.lowered.homes[number].store], tensor.shape, tensor.dtype)

    def write_segment(self, layout: SegmentLayout, events: Sequence[Event]) -> None:
        """Copies and operations of a segment."""
        for event in events:
            if isinstance(event, RunBlob):
                self._run(layout, event)
            elif isinstance(event, FetchWeights):
                self._fetch(event)
            else:
                self._copy(layout, event)

    def _copy(self, layout: SegmentLayout, event: LoadRows | SaveRows) -> None:
        ends = [self._home(event.store), self._ring(layout, event.store)]
        source, target = ends if isinstance(event, LoadRows) else ends[::-1]
        copy_rows(self.writer, self.lowered.stores[event.store], source, target, event.first, event.last)

    def _fetch(self, event: FetchWeights) -> None:
        """A copy of weights to SRAM, perhaps of a later segment."""
        layout = self.by_step[event.step]
        blob, address = layout.weights[event.step].blobs[event.blob], layout.weight_place(event.step, event.blob)
        source = self.pool.add(blob.weights + blob.scales)
        self.writer.copy(ByteRange(CONSTANTS, source, source + blob.nbytes), ByteRange(FAST, address, address + blob.nbytes))

    def _run(self, layout: SegmentLayout, event: RunBlob) -> None:
        step = self.lowered.steps[event.step]
        weights = layout.weights.get(event.step)
        table = None if step.table is None else self._table(step.table.tobytes())
        reads = tuple((self._place(layout, view.store), self.lowered.stores[view.store]) for view in step.reads)
        result = self._place(layout, step.result.store), self.lowered.stores[step.result.store]
        place, channels = None, (0, step.result.channels)
        if weights:
            blob = weights.blobs[event.blob]
            channels = (blob.first, blob.last)
            if weights.copied[event.blob]:
                region, address = FAST, layout.weight_place(event.step, event.blob)
            else:
                region, address = CONSTANTS, self.pool.add(blob.weights + blob.scales)
            place = WeightPlace(region, address, address + len(blob.weights), address + blob.nbytes)
        rows = (event.first, event.last)
        write_run(self.writer, StepRun(step, rows, channels, layout.blocks[event.step], reads, result, place, table))

    def _place(self, layout: SegmentLayout, store: int) -> Place:
        return self._ring(layout, store) if store in layout.plan.rings else self._home(store)

    def _ring(self, layout: SegmentLayout, store: int) -> Place:
        return Place(FAST, layout.rings[store], layout.ring_rows[store], store in self.network.bricks)

    def _home(self, store: int) -> Place:
        """Place of all of a store: SRAM, constants or the arena."""
        spec = self.lowered.stores[store]
        if spec.constant is not None:
            return Place(CONSTANTS, self.pool.add(spec.constant.tobytes()), spec.rows, False)
        if store in self.held:
            return Place(FAST, self.held[store], spec.rows, store in self.network.bricks)
        return Place(ARENA, self._dram[store], spec.rows, store in self.network.bricks)

    def _table(self, table: bytes) -> int:
        """The slot of a table in the shared buffer, which has room for eight."""
        if table in self._tables:
            self._tables.move_to_end(table)
            return self._tables[table]
        slot = len(self._tables) if len(self._tables) < _TABLE_SLOTS else self._tables.popitem(last=False)[1]
        self._tables[table] = slot
        source, place = self.pool.add(table), TABLES + slot * TABLE_BYTES
        self.writer.copy(ByteRange(CONSTANTS, source, source + TABLE_BYTES), ByteRange(SHARED, place, place + TABLE_BYTES))
        self.tables_loaded += 1
        return slot
