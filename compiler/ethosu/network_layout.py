"""The layout of a network in SRAM: all segments, with tensors between them that lie there whole.

Those are the plan's persistent tensors, and others, the largest first, where fewer bytes of DRAM are moved with them there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from compiler.ethosu.addresses import Buffer, Placed, allocate
from compiler.ethosu.places import row_bytes
from compiler.ethosu.planned_bytes import segment_bytes
from compiler.ethosu.segment_layout import SegmentLayout, lay_out_segment
from compiler.ethosu.segments import SegmentedNetwork
from simulator.npu.errors import InfeasibleError

_Known = dict[tuple[int, tuple[Placed, ...]], SegmentLayout]


@dataclass(frozen=True, eq=False)
class NetworkLayout:
    """held: places of tensors between segments.  layouts: of segments."""

    network: SegmentedNetwork
    held: tuple[Placed, ...]
    layouts: tuple[SegmentLayout, ...]

    @property
    def sram_bytes(self) -> int:
        """The end of what lies in SRAM."""
        return max([layout.sram_bytes for layout in self.layouts] + [address + buffer.size for buffer, address in self.held], default=0)

    @property
    def dram_bytes(self) -> int:
        """Bytes that segments move, but for words and tables."""
        return sum(sum(segment_bytes(self.network, layout).values()) for layout in self.layouts)


def lay_out_network(network: SegmentedNetwork, sram: int) -> NetworkLayout:
    """The layout with as many tensors in SRAM as have room.  Raises `InfeasibleError` where a segment does not fit."""
    known = _Known()
    layout = _lay_out(network, sram, known, True)
    for tensor in _candidates(network):
        plan = replace(network.plan, held=network.plan.held | {tensor})
        try:
            other = _lay_out(replace(network, plan=plan), sram, known, False)
        except InfeasibleError:
            continue
        if other.dram_bytes < layout.dram_bytes:
            network, layout = other.network, other
    return layout


def _candidates(network: SegmentedNetwork) -> Iterator[int]:
    """Tensors between segments, of each store one, the largest first."""
    stores, tensors = network.lowered.stores, dict[int, int]()
    for number, home in network.lowered.homes.items():
        first, last = network.lifetime(home.store) if home.store in network.writers else (0, 0)
        if first < last and home.store not in network.outside | network.held:
            tensors.setdefault(home.store, number)
    return (tensors[store] for store in sorted(tensors, key=lambda store: (-stores[store].nbytes, store)))


def _lay_out(network: SegmentedNetwork, sram: int, known: _Known, shrinks: bool) -> NetworkLayout:
    """known: layouts by segment and what lies beside it, which are made once."""
    held, end = _place_held(network)
    if end > sram:
        raise InfeasibleError(f"held tensors: {end:,} bytes of SRAM, {sram:,} are there: expected fewer")
    layouts = []
    for number in range(len(network.plan.segments)):
        beside = tuple(
            Placed(Buffer(buffer.key, buffer.size, 0, 1 << 30), address) for buffer, address in held if buffer.begin <= number <= buffer.end
        )
        if (number, beside) not in known:
            known[number, beside] = lay_out_segment(network, number, sram, beside, shrinks)
        layouts.append(known[number, beside])
    return NetworkLayout(network, held, tuple(layouts))


def _place_held(network: SegmentedNetwork) -> tuple[tuple[Placed, ...], int]:
    buffers = []
    for store in sorted(network.held):
        spec = network.lowered.stores[store]
        buffers.append(Buffer(store, spec.rows * row_bytes(spec, store in network.bricks), *network.lifetime(store)))
    addresses, end = allocate(buffers)
    return tuple(Placed(buffer, addresses[buffer.key]) for buffer in buffers), end
