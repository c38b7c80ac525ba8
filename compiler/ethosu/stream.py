"""The command stream of a network in segments: addresses in DRAM, constants, and words of all segments in order.

A *store* holds a tensor, or several that a concatenation joins (`lowering`).  Its *home* is the place of all its rows: constants, the arena
in DRAM, or SRAM.  A cascade also has rows of it in a ring in SRAM.  *Bricks* are the layout NHCWB16 (`store_places`).
"""

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
    """Command words and constants.  arena, fast: bytes of the arena in DRAM and of SRAM.  planned: bytes that the plan moves."""

    words: tuple[int, ...]
    constants: NDArray[np.uint8]
    arena: int
    fast: int
    inputs: tuple[TensorPlace, ...]
    outputs: tuple[TensorPlace, ...]
    planned: PlannedBytes
    layouts: tuple[SegmentLayout, ...]


def emit_stream(layout: NetworkLayout, io_offsets: Mapping[int, int], io_end: int, pool: ConstantPool | None = None) -> CommandStream:
    """The stream of a network that is laid out.

    io_offsets: by tensor, offsets in the arena of inputs and outputs, of this stream and of others of the model.  They end at `io_end`;
    other tensors of this stream lie behind.  pool: constants of all streams of the model, to add to.
    """
    segmented, segments = layout.network, layout.layouts
    emitter = _Emitter(layout, io_offsets, io_end, pool or ConstantPool())
    for segment, events in zip(segments, layout.events, strict=True):
        emitter.write_segment(segment, events)
    words, graph = emitter.writer.stop(), segmented.lowered.network
    inputs, outputs = (tuple(emitter.tensor_place(number) for number in numbers) for numbers in (graph.inputs, graph.outputs))
    planned = planned_bytes(segmented, segments, len(words), emitter.tables_loaded)
    return CommandStream(words, emitter.pool.data(), emitter.arena, max(layout.sram_bytes, ALIGN), inputs, outputs, planned, segments)


class _Emitter:
    """Writer of words and constants, segment by segment."""

    def __init__(self, layout: NetworkLayout, io_offsets: Mapping[int, int], io_end: int, pool: ConstantPool) -> None:
        self.pool, self.by_step = pool, layout.by_step
        self.segmented, self.lowered = layout.network, layout.network.lowered
        self.held = {buffer.key: address for buffer, address in layout.held}
        self.writer, self.tables_loaded = CommandWriter(), 0
        self._tables = OrderedDict[bytes, int]()
        self._dram, self.arena = self._place_arena(io_offsets, io_end)

    def _place_arena(self, io_offsets: Mapping[int, int], io_end: int) -> tuple[dict[int, int], int]:
        """(addresses in the arena of all stores that have rows in DRAM, end of the arena)."""
        graph, segmented = self.lowered.network, self.segmented
        io_stores = {self.lowered.homes[number].store: io_offsets[number] for number in (*graph.inputs, *graph.outputs)}
        sram_only_stores = {store for number in range(len(segmented.plan.segments)) for store in segmented.cascade(number, 1).inside}
        buffers = []
        for number, store in enumerate(self.lowered.stores):
            if number in segmented.writers and store.constant is None and number not in {*self.held, *sram_only_stores, *io_stores}:
                size = store.rows * row_bytes(store, number in segmented.bricks)
                buffers.append(TimedBuffer(number, size, *segmented.lifetime(number)))
        io_area = Placed(TimedBuffer(None, io_end, -1, len(segmented.plan.segments)), 0)
        addresses, end = allocate(buffers, [io_area])
        return io_stores | {buffer.key: addresses[buffer.key] for buffer in buffers}, max(end, ALIGN)

    def tensor_place(self, number: int) -> TensorPlace:
        """The place of an input or output."""
        tensor = self.lowered.network.tensors[number]
        return TensorPlace(number, self._dram[self.lowered.homes[number].store], tensor.shape, tensor.dtype)

    def write_segment(self, layout: SegmentLayout, events: Sequence[Event]) -> None:
        """Write copies and operations of a segment."""
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
        """Copy weights to SRAM, perhaps those of a later segment."""
        layout = self.by_step[event.step]
        blob, address = layout.weights[event.step].blobs[event.blob], layout.weight_place(event.step, event.blob)
        source = self.pool.add(blob.weights + blob.scales)
        self.writer.copy(ByteRange(CONSTANTS, source, source + blob.nbytes), ByteRange(FAST, address, address + blob.nbytes))

    def _run(self, layout: SegmentLayout, event: RunBlob) -> None:
        """Write an operation on the event's rows, and on the channels of its blob of weights."""
        step = self.lowered.steps[event.step]
        weights = layout.weights.get(event.step)
        table = None if step.table is None else self._table(step.table.tobytes())
        reads = tuple((self._place(layout, view.store), self.lowered.stores[view.store]) for view in step.reads)
        result = self._place(layout, step.result.store), self.lowered.stores[step.result.store]
        weight_place, channels = None, (0, step.result.channels)
        if weights:
            blob = weights.blobs[event.blob]
            channels = (blob.first, blob.last)
            if weights.copied[event.blob]:
                region, address = FAST, layout.weight_place(event.step, event.blob)
            else:
                region, address = CONSTANTS, self.pool.add(blob.weights + blob.scales)
            weight_place = WeightPlace(region, address, address + len(blob.weights), address + blob.nbytes)
        rows = (event.first, event.last)
        write_run(self.writer, StepRun(step, rows, channels, layout.blocks[event.step], reads, result, weight_place, table))

    def _place(self, layout: SegmentLayout, store: int) -> Place:
        return self._ring(layout, store) if store in layout.plan.rings else self._home(store)

    def _ring(self, layout: SegmentLayout, store: int) -> Place:
        return Place(FAST, layout.rings[store], layout.ring_rows[store], store in self.segmented.bricks)

    def _home(self, store: int) -> Place:
        """Place of a whole store."""
        spec = self.lowered.stores[store]
        if spec.constant is not None:
            return Place(CONSTANTS, self.pool.add(spec.constant.tobytes()), spec.rows, False)
        if store in self.held:
            return Place(FAST, self.held[store], spec.rows, store in self.segmented.bricks)
        return Place(ARENA, self._dram[store], spec.rows, store in self.segmented.bricks)

    def _table(self, table: bytes) -> int:
        """Slot of a table in the shared buffer; a table that is not there replaces the one that was used longest ago."""
        if table in self._tables:
            self._tables.move_to_end(table)
            return self._tables[table]
        slot = len(self._tables) if len(self._tables) < _TABLE_SLOTS else self._tables.popitem(last=False)[1]
        self._tables[table] = slot
        source, place = self.pool.add(table), TABLES + slot * TABLE_BYTES
        self.writer.copy(ByteRange(CONSTANTS, source, source + TABLE_BYTES), ByteRange(SHARED, place, place + TABLE_BYTES))
        self.tables_loaded += 1
        return slot
