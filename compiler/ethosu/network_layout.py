"""The layout of a network in SRAM: all segments, with tensors between them that lie there whole.

A plan is made for a machine that the part is not quite, so it is completed.  Segments without room for all of their weights are cut,
tensors between segments lie in SRAM, the largest first, neighbouring segments become one, and segments end where tensors are smaller, each
where fewer bytes of DRAM are moved so.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from compiler.ethosu.buffer_addresses import Placed, TimedBuffer, allocate
from compiler.ethosu.planned_bytes import segment_bytes
from compiler.ethosu.segment_layout import SegmentLayout, lay_out_segment
from compiler.ethosu.segments import SegmentedNetwork, StreamSegment
from compiler.ethosu.store_places import row_bytes
from compiler.ethosu.stream_events import Event, segment_events
from simulator.npu.errors import InfeasibleError

_CUTS = 4
"""Ends of a segment that are tried, those with the fewest bytes between first."""


@dataclass(frozen=True, eq=False)
class NetworkLayout:
    """Layouts of all segments, with their events.  held: places of tensors between them that lie in SRAM."""

    network: SegmentedNetwork
    held: tuple[Placed, ...]
    layouts: tuple[SegmentLayout, ...]
    events: tuple[tuple[Event, ...], ...] = ()

    def with_events(self) -> NetworkLayout:
        """The layout with the order in which segments copy weights by themselves."""
        return replace(self, events=tuple(tuple(segment_events(layout)) for layout in self.layouts))

    @cached_property
    def by_step(self) -> Mapping[int, SegmentLayout]:
        """Segments of steps."""
        return {step: layout for layout in self.layouts for step in range(layout.plan.first, layout.plan.last)}

    def blob_bytes(self, step: int, index: int) -> int:
        """Bytes of a blob of a step's weights."""
        return self.by_step[step].weights[step].blobs[index].nbytes

    @property
    def sram_bytes(self) -> int:
        """The end of what lies in SRAM."""
        return max([layout.sram_bytes for layout in self.layouts] + [address + buffer.size for buffer, address in self.held], default=0)

    @property
    def weight_depths(self) -> Iterator[tuple[bytes, int]]:
        """Digests of weights with the channels of the block that they are coded for."""
        for layout in self.layouts:
            for step in layout.weights:
                yield self.network.lowered.digests[step], layout.blocks[step].channels

    @property
    def dram_bytes(self) -> int:
        """Bytes that segments move, but for words and tables."""
        return sum(sum(segment_bytes(self.network, layout).values()) for layout in self.layouts)


def lay_out_network(network: SegmentedNetwork, sram: int) -> NetworkLayout:
    """The layout with the fewest bytes of DRAM that single changes lead to.  Raises `InfeasibleError` where a segment does not fit."""
    cut = _with_large_cut(network, sram)
    layouts = [] if cut is None else [_improved(_lay_out(cut, sram), sram)]
    try:
        layouts.append(_improved(_lay_out(network, sram), sram))
    except InfeasibleError:
        if not layouts:
            raise
    return min(layouts, key=lambda layout: layout.dram_bytes).with_events()


def _with_large_cut(network: SegmentedNetwork, sram: int) -> SegmentedNetwork | None:
    """The network with single operators in place of segments that have no room for all weights; None where all have."""
    segments = list[StreamSegment]()
    for segment in network.plan.segments:
        single = [StreamSegment(number, number + 1) for number in range(segment.first, segment.last)]
        segments += [segment] if len(single) == 1 or _has_room(network, segment, sram) else single
    if len(segments) == len(network.plan.segments):
        return None
    return replace(network, plan=replace(network.plan, segments=tuple(segments)))


def _has_room(network: SegmentedNetwork, segment: StreamSegment, sram: int) -> bool:
    """Whether a segment by itself has room for all of its weights."""
    try:
        _segment_layout(network, segment, sram, (), False)
    except InfeasibleError:
        return False
    return True


def _improved(layout: NetworkLayout, sram: int) -> NetworkLayout:
    """The layout with further tensors in SRAM, and with neighbouring segments as one."""
    layout = _with_held(layout, sram)
    place = 0
    while place + 1 < len(layout.layouts):
        joined = _joined(layout, place)
        candidate = None if joined is None else _try(joined, sram)
        candidate = None if candidate is None else _with_held(candidate, sram)
        if candidate is not None and candidate.dram_bytes < layout.dram_bytes:
            layout, place = candidate, max(0, place - 1)
        else:
            place += 1
    return _with_cuts_moved(layout, sram)


def _with_cuts_moved(layout: NetworkLayout, sram: int) -> NetworkLayout:
    """The layout with segments that end where less goes from one to the next."""
    crossing, place = layout.network.lowered.crossing_bytes, 0
    while place + 1 < len(layout.layouts):
        first, second = layout.network.plan.segments[place : place + 2]
        fewer = (cut for cut in range(first.first + 1, second.last) if crossing[cut] < crossing[first.last])
        for cut in sorted(fewer, key=lambda cut: (crossing[cut], abs(cut - first.last)))[:_CUTS]:
            candidate = _try(_with_segments(layout.network, place, (first._replace(last=cut), second._replace(first=cut))), sram)
            candidate = None if candidate is None else _with_held(candidate, sram)
            if candidate is not None and candidate.dram_bytes < layout.dram_bytes:
                layout = candidate
                break
        else:
            place += 1
    return layout


def _with_held(layout: NetworkLayout, sram: int) -> NetworkLayout:
    """The layout with further tensors in SRAM."""
    for tensor in _candidates(layout.network):
        plan = replace(layout.network.plan, held=layout.network.plan.held | {tensor})
        candidate = _try(replace(layout.network, plan=plan), sram)
        if candidate is not None and candidate.dram_bytes < layout.dram_bytes:
            layout = candidate
    return layout


def _joined(layout: NetworkLayout, place: int) -> SegmentedNetwork | None:
    """Segments `place` and the next one as one; None where nothing goes through DRAM between them."""
    network = layout.network
    between = {store for store, writers in network.writers.items() if place in writers and place + 1 in network.readers.get(store, ())}
    if not between - network.held:
        return None
    first, second = network.plan.segments[place : place + 2]
    return _with_segments(network, place, (StreamSegment(first.first, second.last, max(first.stripes, second.stripes)),))


def _with_segments(network: SegmentedNetwork, place: int, segments: tuple[StreamSegment, ...]) -> SegmentedNetwork:
    """The network with others in place of segments `place` and the next one; tensors inside of one are not held."""
    segments = (*network.plan.segments[:place], *segments, *network.plan.segments[place + 2 :])
    changed = replace(network, plan=replace(network.plan, segments=segments))
    homes, held = network.lowered.homes, set[int]()
    for tensor in network.plan.held:
        if tensor in homes and homes[tensor].store in changed.writers:
            first, last = changed.lifetime(homes[tensor].store)
            held |= {tensor} if first < last else set()
    return replace(changed, plan=replace(changed.plan, held=frozenset(held)))


def _try(network: SegmentedNetwork, sram: int) -> NetworkLayout | None:
    try:
        return _lay_out(network, sram, False)
    except InfeasibleError:
        return None


def _candidates(network: SegmentedNetwork) -> Iterator[int]:
    """Tensors between segments, of each store one, the largest first."""
    stores, tensors = network.lowered.stores, dict[int, int]()
    for number, home in network.lowered.homes.items():
        first, last = network.lifetime(home.store) if home.store in network.writers else (0, 0)
        if first < last and home.store not in network.lowered.outside | network.held:
            tensors.setdefault(home.store, number)
    return (tensors[store] for store in sorted(tensors, key=lambda store: (-stores[store].nbytes, store)))


def _lay_out(network: SegmentedNetwork, sram: int, shrinks: bool = True) -> NetworkLayout:
    """shrinks: whether segments may have weights that come again."""
    held, end = _place_held(network)
    if end > sram:
        raise InfeasibleError(f"held tensors: {end:,} bytes of SRAM, {sram:,} are there: expected fewer")
    layouts = []
    for number, segment in enumerate(network.plan.segments):
        beside = tuple(
            Placed(TimedBuffer(buffer.key, buffer.size, 0, 1 << 30), address)
            for buffer, address in held
            if buffer.begin <= number <= buffer.end
        )
        layouts.append(_segment_layout(network, segment, sram, beside, shrinks))
    return NetworkLayout(network, held, tuple(layouts))


def _segment_layout(
    network: SegmentedNetwork, segment: StreamSegment, sram: int, beside: tuple[Placed, ...], shrinks: bool
) -> SegmentLayout:
    """The layout of a segment, which is made once for the same operators.  Raises as `lay_out_segment`."""
    memo, key = network.lowered.layouts, (segment, beside, sram)
    if key not in memo and (key, shrinks) not in memo:
        try:
            memo[key] = lay_out_segment(network, network.plan.segments.index(segment), sram, beside, shrinks)
        except InfeasibleError as error:
            memo[key, shrinks] = str(error)
    if key not in memo:
        raise InfeasibleError(memo[key, shrinks])
    return memo[key]


def _place_held(network: SegmentedNetwork) -> tuple[tuple[Placed, ...], int]:
    buffers = []
    for store in sorted(network.held):
        spec = network.lowered.stores[store]
        buffers.append(TimedBuffer(store, spec.rows * row_bytes(spec, store in network.bricks), *network.lifetime(store)))
    addresses, end = allocate(buffers)
    return tuple(Placed(buffer, addresses[buffer.key]) for buffer in buffers), end
