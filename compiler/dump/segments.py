"""Text of segments as cores run them: rows of every block, tensors in L1, and the address of every buffer."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from compiler.dump.align import aligned
from compiler.dump.plan import counted
from compiler.dump.target_graph import kind
from compiler.ops.conv import product_of
from compiler.pipeline import Compiler, ScheduledShare, places_of, with_starts
from compiler.plan.plan import Infeasible, Plan, SegmentPlan
from compiler.schedule.shared_memory_allocator import SharedPlaces
from compiler.segment.allocator import Buffer, BufferRequest
from compiler.segment.blocks import BlockAllocation, Ints
from compiler.segment.memory_plan import Places
from compiler.segment.persistent import PersistentLayout, held_blocks
from compiler.segment.reorder import permute_to
from compiler.segment.segment import Segment, StripBlocks
from compiler.target.target_graph import TargetGraph
from compiler.target.target_op import TargetOp
from simulator.npu.errors import InfeasibleError
from simulator.npu.parts import BLOCK_BYTES, Memory


def segment_lines(compiler: Compiler, plan: Plan) -> Iterator[str]:
    """Text of all segments.  Rows of a block are half-open, `-` without rows.  A segment that does not fit has the reason after its rows.

    Raises `InfeasibleError` if the plan has other operators than the compiler's target graph.
    """
    target_graph = permute_to(compiler.target_graph, [name for segment in plan.segments for name in segment.operators])
    if isinstance(target_graph, Infeasible):
        raise InfeasibleError(str(target_graph))
    yield f"segments of plan {plan.digest}: {target_graph.machine.name}, {target_graph.dtype.name}"
    segments, parts = with_starts(plan), list[ScheduledShare]()
    granted, held = compiler.within(target_graph, segments)
    for index, ((segment_plan, start), scheduled) in enumerate(zip(segments, compiler.by_segment(target_graph, segments), strict=True)):
        sizes = (counted(segment_plan.blocks, "block"), counted(target_graph.images, "image"), counted(segment_plan.columns, "strip"))
        yield f"segment {index}, {segment_plan.label}: {', '.join(sizes)}"
        segment = Segment.of(granted, segment_plan, start)
        if not isinstance(segment, Infeasible):
            shares, layout = [] if isinstance(scheduled, Infeasible) else scheduled, None if isinstance(held, Infeasible) else held[index]
            yield from _segment(segment, index, shares, layout)
        if isinstance(scheduled, Infeasible):
            yield f"  does not fit: {scheduled}"
        else:
            parts += scheduled
    yield from _shared_lines(target_graph, places_of(parts))


def _shared_lines(target_graph: TargetGraph, places: SharedPlaces) -> Iterator[str]:
    """Residents of the memory that all cores share, by address, if there are any."""
    if not places.residents:
        return
    names = {storage.address: ("tensor", storage.name) for storage in target_graph.storages}
    names |= {product.weights_at: ("weights", product.name) for product in map(product_of, target_graph.operators) if product is not None}
    rows = sorted((r.block, r.birth, f"{r.blocks * BLOCK_BYTES:,} B", *names[r.first], r.death) for r in places.residents)
    yield f"shared memory: {places.need * BLOCK_BYTES:,} of {target_graph.machine.buffer_blocks(Memory.SHARED) * BLOCK_BYTES:,} B"
    yield from aligned(
        [[f"SHARED[{address}]", size, kind, name, f"segments {birth}:{death + 1}"] for address, birth, size, kind, name, death in rows]
    )


def _segment(segment: Segment, index: int, shares: list[ScheduledShare], held: PersistentLayout | None) -> Iterator[str]:
    """Text of a segment.  shares: cores with work.  held: addresses of persistent tensors of the program."""
    several = len(segment.parts) > 1
    for part in range(len(segment.parts)):
        strips = segment.strips(part)
        for number, strip in enumerate(strips):
            owner = [f"part {part} of the channels"] if several else []
            owner += [f"strip {number}"] if len(strips) > 1 else []
            yield from [f"  {', '.join(owner)}"] if owner else []
            yield from aligned([_operator(segment.plan, strip, index, k) for k in range(len(segment.plan.operators))], 4)
            yield from aligned([_staged(segment, strip, allocation) for allocation in strip.blocks.allocations.values()], 4)
        part_shares = [share for share in shares if not several or share.place == part]
        for places, alike in groupby(part_shares, key=lambda share: _places(segment, share, held)):
            yield from (_share(segment, share) for share in alike)
            yield from places


def _operator(plan: SegmentPlan, strip: StripBlocks, index: int, k: int) -> list[str]:
    target_graph, blocks = strip
    spec = target_graph.operators[blocks.start + k]
    goes = "SHARED" if target_graph.storages[spec.y.storage].name in plan.shared else "DDR"
    columns = ""
    if spec.strip is not None:
        first_made, first_owned = spec.strip.first_made, spec.strip.first_owned
        columns = f"columns {first_made}:{first_made + spec.out_w}, to {goes} {first_owned}:{first_owned + spec.strip.owned}"
    words = [f"makes rows {_rows(blocks.computed[k])}"]
    words += [f"to {goes} {_rows(blocks.ddr_rows[k])}"] if blocks.stored[k] else []
    return [f"@{index}.{spec.tag}", spec.name, kind(spec), *([columns] if columns else []), *words]


def _staged(segment: Segment, strip: StripBlocks, allocation: BlockAllocation) -> list[str]:
    target_graph, blocks = strip
    storage = target_graph.storages[allocation.storage]
    loads = [f"{load.plane}:{load.plane + load.planes}" for load in blocks.loads if load.storage == allocation.storage]
    slots = "held" if allocation.held else counted(segment.slots(strip)[allocation.storage], "slot")
    words = [f"made by {_operators(strip, allocation.makers)}"] if allocation.produced else []
    words += [f"planes {','.join(loads)} loaded"] if loads else []
    words += [f"read by {_operators(strip, allocation.readers)}"] if allocation.readers else []
    fresh = [f"anew {_rows(allocation.fresh)}"] if allocation.cached else []
    return [
        "in L1",
        f"{storage.name}[{allocation.plane}:{allocation.plane + allocation.planes}]",
        f"ring of {slots}" if allocation.cached else slots,
        ", ".join(words),
        f"rows {_rows(allocation.rows)}",
        *fresh,
    ]


def _operators(strip: StripBlocks, bits: int) -> str:
    operators = strip.target_graph.operators[strip.blocks.start : strip.blocks.stop]
    return " ".join(spec.name for k, spec in enumerate(operators) if bits >> k & 1)


def _rows(rows: Ints) -> str:
    return " ".join(f"{first}:{stop}" if stop > first else "-" for first, stop in rows.tolist())


def _share(segment: Segment, part: ScheduledShare) -> str:
    iterations, end = segment.share(part.place).iterations, "top" if part.flip else "bottom"
    per_strip = " of each strip" if segment.outline.columns > 1 else ""
    records = counted(len(part.lowered.footprint.engine), "record")
    return f"  core {part.core}: iterations {iterations.start}:{iterations.stop}{per_strip}, {records}, addresses from the {end}"


def _places(segment: Segment, part: ScheduledShare, held: PersistentLayout | None) -> list[str]:
    """Buffers and peaks; cores with the same rows share one text."""
    share = segment.share(part.place)
    places = segment.memory(share, part.flip, held=held)
    assert not isinstance(places, Infeasible), "it was lowered"
    target_graph, blocks = share.strips[0]
    operators = target_graph.operators[blocks.start : blocks.stop]
    peak_bytes = {Memory[name]: held for name, held in places.peak_bytes.items() if target_graph.machine.has(Memory[name])}
    peaks = (
        f"{memory.name} {held:,} of {target_graph.machine.buffer_blocks(memory) * BLOCK_BYTES:,}" for memory, held in peak_bytes.items()
    )
    return [
        *aligned([row for memory in (Memory.L1, Memory.UB) for row in _buffers(target_graph, operators, places, memory)], 4),
        f"    peak bytes: {', '.join(peaks)}",
    ]


def _buffers(target_graph: TargetGraph, operators: tuple[TargetOp, ...], places: Places, memory: Memory) -> Iterator[list[str]]:
    """Buffers in the order of their addresses."""
    addresses = places.l1 if memory == Memory.L1 else places.ub

    def order(request: BufferRequest) -> tuple[int, int]:
        return addresses[request.buffer], request.birth

    for request in sorted(places.requests[memory], key=order):
        kind, of, slot = request.buffer
        first, last = operators[request.birth].name, operators[request.death].name
        yield [
            f"{(target_graph.machine.vector_memory if memory == Memory.UB else memory).name}[{addresses[request.buffer]}]",
            f"{request.size * BLOCK_BYTES:,} B",
            kind,
            target_graph.storages[of].name if kind == "tensor" else operators[of].name if of >= 0 else "all operators",
            f"slot {slot}",
            f"live {first}" + (f"..{last}" if last != first else ""),
        ]
    for storage, _ in places.held.places if memory == Memory.L1 else ():
        size = held_blocks(target_graph, storage) * BLOCK_BYTES
        yield [f"L1[{addresses[Buffer('tensor', storage)]}]", f"{size:,} B", "tensor", target_graph.storages[storage].name, "held"]
