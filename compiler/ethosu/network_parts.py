"""Parts of a network: runs of operators that the part executes, and operators between them that stay with the processor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace

from compiler.ethosu.buffer_addresses import ALIGN
from compiler.ethosu.constant_pool import ConstantPool
from compiler.ethosu.lowering import LoweredNetwork, find_refusals, lower_network
from compiler.ethosu.network_layout import NetworkLayout, lay_out_network
from compiler.ethosu.operator_rules import RULES
from compiler.ethosu.segments import SegmentedNetwork, StreamPlan, StreamSegment
from compiler.ethosu.store_places import ARENA, FAST
from compiler.ethosu.stream import CommandStream, emit_stream
from compiler.ethosu.weight_blobs import BlobKey, WeightBlob
from compiler.frontend.tflite.network import TfliteNetwork
from simulator.ethosu.driver_rules import driver_region_sizes
from simulator.npu.errors import UnsupportedError


@dataclass(frozen=True, eq=False)
class StreamPart:
    """Operators [first, last) of a network in one stream."""

    first: int
    last: int
    network: TfliteNetwork
    stream: CommandStream


@dataclass(frozen=True, eq=False)
class CompiledNetwork:
    """Streams of a network.  on_processor: operators that have none, with the reason.  borders: offsets of tensors between parts."""

    network: TfliteNetwork
    parts: tuple[StreamPart, ...]
    on_processor: Mapping[int, str]
    borders: Mapping[int, int]

    @property
    def arena(self) -> int:
        """Bytes of the arena in DRAM."""
        return max(part.stream.arena for part in self.parts)

    @property
    def fast(self) -> int:
        """Bytes of SRAM."""
        return max(part.stream.fast for part in self.parts)


@dataclass(frozen=True, eq=False)
class LoweredPart:
    """Operators [first, last) of a network as steps."""

    first: int
    last: int
    lowered: LoweredNetwork


@dataclass(frozen=True, eq=False)
class LoweredParts:
    """Parts of a network.  borders: offsets of tensors between parts, up to `borders_end`."""

    network: TfliteNetwork
    parts: tuple[LoweredPart, ...]
    on_processor: Mapping[int, str]
    borders: Mapping[int, int]
    borders_end: int


@dataclass(frozen=True, eq=False)
class LaidOutNetwork:
    """Layouts of all parts, in so many bytes of SRAM."""

    lowered: LoweredParts
    sram: int
    layouts: tuple[NetworkLayout, ...]

    @property
    def dram_bytes(self) -> int:
        """Bytes that all parts move, but for words and tables."""
        return sum(layout.dram_bytes for layout in self.layouts)


def compile_network(network: TfliteNetwork, plan: StreamPlan, sram: int) -> CompiledNetwork:
    """Streams of all operators that the part runs.  Raises `UnsupportedError` where that is none, `InfeasibleError` without room."""
    return emit_network(lay_out_parts(lower_parts(network), plan, sram, {}, {}))


def lower_parts(network: TfliteNetwork) -> LoweredParts:
    """Steps of all parts.  Raises `UnsupportedError` where there is none."""
    on_processor = dict(find_refusals(network, RULES))
    runs = list[tuple[int, int]]()
    for number in range(len(network.operators)):
        if number not in on_processor:
            joined = bool(runs) and runs[-1][1] == number
            runs[-1:] = [(runs[-1][0], number + 1)] if joined else [*runs[-1:], (number, number + 1)]
    if not runs:
        raise UnsupportedError(f"no operator for the part: {next(iter(on_processor.values()), 'the network is empty')}")
    networks = [_part(network, first, last) for first, last in runs]
    borders, end = dict[int, int](), 0
    for part in networks:
        for tensor in (*part.inputs, *part.outputs):
            if tensor not in borders:
                borders[tensor] = end
                end += -(-network.tensors[tensor].nbytes // ALIGN) * ALIGN
    parts = (LoweredPart(*run, lower_network(part, RULES)) for run, part in zip(runs, networks, strict=True))
    return LoweredParts(network, tuple(parts), on_processor, borders, end)


def lay_out_parts(
    lowered: LoweredParts, plan: StreamPlan, sram: int, blobs: dict[BlobKey, WeightBlob], depths: Mapping[bytes, Set[int]]
) -> LaidOutNetwork:
    """Layouts of all parts.  Raises `InfeasibleError` without room.

    blobs: weights that are coded already, and those that this codes.  depths: as `SegmentedNetwork` has them.
    """
    segmented = (SegmentedNetwork(part.lowered, _part_plan(plan, part.first, part.last), blobs, depths) for part in lowered.parts)
    return LaidOutNetwork(lowered, sram, tuple(lay_out_network(network, sram) for network in segmented))


def emit_network(
    laid_out: LaidOutNetwork, pools: Sequence[ConstantPool] | None = None, borders: Mapping[int, int] | None = None
) -> CompiledNetwork:
    """Streams of layouts.  pools: of each part's constants, new ones where none are given.  borders: of another layout of the network."""
    lowered, parts = laid_out.lowered, list[StreamPart]()
    borders = lowered.borders if borders is None else borders
    for part, layout, pool in zip(lowered.parts, laid_out.layouts, pools or [ConstantPool() for _ in lowered.parts], strict=True):
        stream = _with_room(emit_stream(layout, borders, lowered.borders_end, pool), laid_out.sram)
        parts.append(StreamPart(part.first, part.last, part.lowered.network, stream))
    return CompiledNetwork(lowered.network, tuple(parts), lowered.on_processor, borders)


def _with_room(stream: CommandStream, sram: int) -> CommandStream:
    """Memory of a stream such that the driver of Linux, which counts some inputs for more than they are, finds it inside."""
    sizes = driver_region_sizes(stream.words)
    fast = min(sram, sizes.get(FAST, 0))
    return stream._replace(arena=max(stream.arena, sizes.get(ARENA, 0)), fast=max(stream.fast, fast))


def _part(network: TfliteNetwork, first: int, last: int) -> TfliteNetwork:
    """Operators by themselves; what they read from elsewhere are inputs, what others read are outputs."""
    inside = network.operators[first:last]
    produced = {number for operator in inside for number in operator.outputs}
    read = dict.fromkeys(number for operator in inside for number in operator.inputs if number >= 0)
    constant = {number for number in read if network.tensors[number].data is not None}
    elsewhere = {number for operator in (*network.operators[:first], *network.operators[last:]) for number in operator.inputs}
    outputs = [number for operator in inside for number in operator.outputs if number in elsewhere or number in network.outputs]
    return replace(network, operators=inside, inputs=tuple(n for n in read if n not in produced | constant), outputs=tuple(outputs))


def _part_plan(plan: StreamPlan, first: int, last: int) -> StreamPlan:
    """Segments of operators [first, last), cut where they go beyond."""
    cut = (
        StreamSegment(max(first, segment.first) - first, min(last, segment.last) - first, segment.stripes)
        for segment in plan.segments
        if segment.first < last and first < segment.last
    )
    return replace(plan, segments=tuple(cut))
