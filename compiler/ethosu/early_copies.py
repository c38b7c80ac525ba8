"""Weights that are copied to SRAM as early as there is room for them, so that DRAM has work while blocks are computed.

The layout of a network has most weights where they are, or copies them during the operation in front of their own.  Here operations are
walked in order with the times of a clock: in front of each, the next weights in the order of their use are copied if bytes of SRAM are free
from now until they are used, if no operation has to wait for the copies that are under way, and if no rows of a tensor come too late.
Weights for which that is never so are read as before.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from compiler.ethosu.buffer_addresses import ALIGN
from compiler.ethosu.cascade import LoadRows
from compiler.ethosu.network_layout import NetworkLayout
from compiler.ethosu.segment_layout import SegmentLayout
from compiler.ethosu.store_places import row_bytes
from compiler.ethosu.stream_events import Event, FetchWeights, RunBlob
from simulator.ethosu.block_cycles import MemoryTimes
from simulator.ethosu.stream_cycles import OperationTimes

_UNDER_WAY = 2
"""Operations, and copies, that are under way at once."""


class _Box(NamedTuple):
    """Bytes [first, last) of SRAM during operations begin to end, both included."""

    begin: int
    end: int
    first: int
    last: int


class _Blob(NamedTuple):
    """Weights with the first and last operation that reads them.  box: their place if they are copied anyway."""

    step: int
    number: int
    size: int
    begin: int
    end: int
    box: _Box | None


def copy_early(layout: NetworkLayout, times: Sequence[OperationTimes], sram: int, dram: MemoryTimes) -> NetworkLayout:
    """The layout with early copies.  times: of the operations of its stream, in order, without copies."""
    return _Schedule(layout, times, sram, dram).run()


class _Schedule:
    """Operations that are done so far, and what lies in SRAM."""

    def __init__(self, layout: NetworkLayout, times: Sequence[OperationTimes], sram: int, dram: MemoryTimes) -> None:
        self.layout, self.times, self.sram, self.dram = layout, times, sram, dram
        self.boxes, blobs = list[_Box](), list[_Blob]()
        place = 0
        spans = list[tuple[int, int]]()
        self.loads = list[int]()
        for segment, events in zip(layout.layouts, layout.events, strict=True):
            count = sum(isinstance(event, RunBlob) for event in events)
            self.loads += _load_places(events, place)
            self.boxes += _ring_boxes(layout, segment, events, place)
            blobs += _blobs(segment, events, place)
            spans.append((place, place + count - 1))
            place += count
        for buffer, address in layout.held:
            first, last = max(0, buffer.begin), min(len(spans) - 1, buffer.end)
            self.boxes.append(_Box(spans[first][0], spans[last][1], address, address + buffer.size))
        self.queue = deque(sorted(blobs, key=lambda blob: (blob.begin, blob.number)))
        self.boxes += [blob.box for blob in self.queue if blob.box]
        self.ends, self.copy_ends, self.time = [0] * _UNDER_WAY, [0] * _UNDER_WAY, 0
        self.ready, self.copied = dict[tuple[int, int], int](), dict[tuple[int, int], int]()
        self.spent = [0]
        for operation in times:
            self.spent.append(self.spent[-1] + max(operation.blocks, operation.sram))

    def run(self) -> NetworkLayout:
        """All segments."""
        queued = {(blob.step, blob.number) for blob in self.queue}
        ordered, number = list[tuple[Event, ...]](), 0
        for events in self.layout.events:
            changed = list[Event]()
            for event in events:
                if isinstance(event, FetchWeights) and (event.step, event.blob) in queued:
                    continue
                if isinstance(event, RunBlob):
                    changed += self._fetches(number)
                    self._operate(number, event)
                    number += 1
                else:
                    self._copy(self._size(event))
                changed.append(event)
            ordered.append(tuple(changed))
        layouts = tuple(_with_copies(segment, self.copied, queued) for segment in self.layout.layouts)
        return replace(self.layout, layouts=layouts, events=tuple(ordered))

    def _size(self, event: Event) -> int:
        """Bytes of a copy."""
        if isinstance(event, FetchWeights):
            return self.layout.blob_bytes(event.step, event.blob)
        assert not isinstance(event, RunBlob)
        network = self.layout.network
        return (event.last - event.first) * row_bytes(network.lowered.stores[event.store], event.store in network.bricks)

    def _copy(self, size: int) -> int:
        """When a copy ends that is issued now."""
        self.time = max(self.time, self.copy_ends[-_UNDER_WAY])
        self.copy_ends.append(self._copy_end(size))
        return self.copy_ends[-1]

    def _copy_end(self, size: int) -> int:
        return max(self.time, self.copy_ends[-1]) + self.dram.read_latency + self.dram.cycles(size)

    def _fetches(self, number: int) -> Iterator[FetchWeights]:
        """Copies in front of an operation."""
        self.time = max(self.time, self.ends[-_UNDER_WAY])
        while self.queue:
            blob = self.queue[0]
            due, address = blob.begin == number, None
            if not due and not self._has_time(blob, number):
                return
            if blob.box:
                self.boxes.remove(blob.box)
            if not due:
                address = self._free_address(blob, number - _UNDER_WAY)
            if address is None and blob.box and number >= blob.box.begin:
                address = blob.box.first
            if address is None and not due:
                self.boxes += [blob.box] if blob.box else []
                return
            self.queue.popleft()
            if address is not None:
                self.boxes.append(_Box(number, blob.end, address, address + blob.size))
                self.copied[blob.step, blob.number] = address
                self.ready[blob.step, blob.number] = self._copy(blob.size)
                yield FetchWeights(blob.step, blob.number)

    def _has_time(self, blob: _Blob, number: int) -> bool:
        """Whether a copy makes neither an operation nor a load of rows wait; one whose own time has come need not ask."""
        if blob.box and number >= blob.box.begin:
            return True
        if self.copy_ends[-_UNDER_WAY] > self.ends[-1]:
            return False
        load = next((place for place in self.loads if place >= number), None)
        return load is None or self._copy_end(blob.size) <= self.ends[-1] + self.spent[load] - self.spent[number]

    def _free_address(self, blob: _Blob, begin: int) -> int | None:
        """The highest address that is free until the weights are used."""
        end = self.sram
        for box in sorted(self.boxes, key=lambda box: -box.last):
            if box.begin <= blob.end and begin <= box.end:
                if box.last + blob.size <= end // ALIGN * ALIGN:
                    break
                end = min(end, box.first)
        address = (end - blob.size) // ALIGN * ALIGN
        return address if address >= 0 else None

    def _operate(self, number: int, event: RunBlob) -> None:
        """Let an operation end."""
        times, key = self.times[number], (event.step, event.blob)
        self.time = max(self.time, self.ready.get(key, 0))
        begin, cycles = max(self.time, self.ends[-1]), max(times.blocks, times.sram)
        if key not in self.ready:
            cycles = max(cycles, times.dram)
            self.copy_ends[-1] = max(self.copy_ends[-1], begin) + times.dram
        self.ends.append(begin + cycles)


def _load_places(events: Sequence[Event], place: int) -> Iterator[int]:
    """Operations in front of which rows are loaded."""
    for event in events:
        if isinstance(event, LoadRows):
            yield place
        place += isinstance(event, RunBlob)


def _ring_boxes(layout: NetworkLayout, segment: SegmentLayout, events: Sequence[Event], place: int) -> Iterator[_Box]:
    """Rings of a segment: from the first to the last event that touches them, in stripes for all of it."""
    spans, number, steps = dict[int, tuple[int, int]](), place, layout.network.lowered.steps
    for event in events:
        touched = list[int]()
        if isinstance(event, RunBlob):
            touched = [view.store for view in (*steps[event.step].reads, steps[event.step].result)]
        elif not isinstance(event, FetchWeights):
            touched = [event.store]
        for store in touched:
            spans[store] = spans.get(store, (number, number))[0], number
        number += isinstance(event, RunBlob)
    for store, address in segment.rings.items():
        size = segment.ring_rows[store] * row_bytes(layout.network.lowered.stores[store], store in layout.network.bricks)
        begin, end = (place, number - 1) if segment.plan.stripes > 1 else spans[store]
        yield _Box(begin, min(end, number - 1), address, address + size)


def _blobs(segment: SegmentLayout, events: Sequence[Event], place: int) -> Iterator[_Blob]:
    """Weights of a segment that are read once or copied."""
    fetched, uses = dict[tuple[int, int], int](), dict[tuple[int, int], list[int]]()
    for event in events:
        if isinstance(event, FetchWeights):
            fetched[event.step, event.blob] = place
        elif isinstance(event, RunBlob):
            uses.setdefault((event.step, event.blob), []).append(place)
            place += 1
    for (step, index), numbers in uses.items():
        weights = segment.weights.get(step)
        if weights is None or (not weights.copied[index] and weights.reads > 1):
            continue
        box, size = None, weights.blobs[index].nbytes
        if weights.copied[index]:
            address = segment.weight_place(step, index)
            box = _Box(fetched[step, index], numbers[-1], address, address + size)
        yield _Blob(step, index, size, numbers[0], numbers[-1], box)


def _with_copies(segment: SegmentLayout, addresses: Mapping[tuple[int, int], int], moved: set[tuple[int, int]]) -> SegmentLayout:
    """A segment with the places of weights that were decided anew, one for each blob."""
    weights, end = dict(segment.weights), segment.sram_bytes
    places = {key: address for key, address in segment.weight_places.items() if (key[0], 0) not in moved}
    for step, coded in segment.weights.items():
        if (step, 0) not in moved:
            continue
        weights[step] = coded._replace(copied=tuple((step, number) in addresses for number in range(len(coded.blobs))), turns=False)
        for number, blob in enumerate(coded.blobs):
            if (step, number) in addresses:
                places[step, number] = addresses[step, number]
                end = max(end, places[step, number] + blob.nbytes)
    return segment._replace(weights=weights, weight_places=places, sram_bytes=end)
