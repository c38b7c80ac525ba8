"""Memory plan of a segment: buffers in L1 and UB with their lifetimes and addresses, or the reason why they do not fit.

On a machine without UB, a region of L1 takes the place of UB (`target.capabilities.region_blocks`).

| buffer                      | memory | contents                                                                             |
|-----------------------------|--------|--------------------------------------------------------------------------------------|
| tensor, of a storage        | L1     | a slot of the storage's resident part; a ring or a persistent tensor has only slot 0   |
| weights, of an operator     | L1     | all weights, or a slot for chunks of the weights or of a right operand                |
| constants, of an operator   | UB     | bias, scales, masks, counts; if streamed, of the planes of a tile, or of a chunk of channels |
| out, of an operator         | UB     | a slot of the tile that the operator computes or stores                               |
| residual, of an operator    | UB     | a slot of the operator's residual tile                                                |
| overlaid, of an operator    | UB     | masks, and all overlaid weights if UB holds them (`target.weight_expansion`)           |
| arriving, expanded          | UB     | two slots each of weights before and after expansion; all operators use them in turn   |

Conflicts are pairs of buffers that may not share addresses.

If nodes run one after the other, a buffer lives from the first operator that touches it to the last, and buffers with overlapping lives
conflict.  In a sliding window (`schedule.sliding_window`) two buffers may share addresses only in two cases:

* The window is one block, and all operators that touch the first buffer come before all operators that touch the second buffer, along the
  edges of the graph.
* Each buffer is the scratch of one operator, and both operators run on the same lane, whose nodes never overlap.

A shortage is a message for a person who edits a plan: missing bytes, the operator at the peak, and the buffers that are live there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from compiler.ops.conv import ConvSpec, product_of
from compiler.ops.tile_counts import partial_blocks
from compiler.plan.plan import ConvTiling, Infeasible, SegmentPlan, Tiling, Window
from compiler.segment.allocator import Buffer, BufferRequest, Conflicts, capacity_test, live_blocks, place_buffers
from compiler.segment.blocks import BlockAllocation, Blocks
from compiler.segment.buffer_demand import L0_MEMORIES, SHARED_KINDS, BufferDemand, demand_of
from compiler.segment.engine_lanes import lanes
from compiler.segment.operator_run import can_stream
from compiler.segment.persistent import NO_TENSORS, PersistentLayout
from compiler.target.capabilities import region_blocks, room_blocks
from compiler.target.target_graph import TargetGraph
from compiler.target.target_op import UbBuffers, round_up
from simulator.npu.isa import REPEAT_BLOCKS
from simulator.npu.machine import Machine
from simulator.npu.parts import BLOCK_BYTES, L1_ALIGN_BLOCKS, Memory

_LISTED_BUFFERS = 4  # buffers that a message lists, largest first

_BUFFER_NAMES = {"weights": "weights of {}", "constants": "constants of {}", "out": "tile of {}", "residual": "residual tile of {}"}
_BUFFER_NAMES |= {"overlaid": "overlaid weights of {}", "arriving": "weights to be expanded", "expanded": "expanded weights"}


def shortage(target_graph: TargetGraph, blocks: Blocks, memory: Memory, requests: Sequence[BufferRequest], need: int, free: int) -> str:
    """Message for requests that do not fit.  need: blocks that they take.  free: blocks of the memory without persistent tensors."""
    step, live = peak(requests)
    total = sum(request.size for request in live)
    capacity = room_blocks(target_graph.machine, memory) if memory == Memory.L1 else free
    beside = f", {(capacity - free) * BLOCK_BYTES:,} of them for what is held" if free < capacity else ""
    missing = f"{(need - free) * BLOCK_BYTES:,} missing"
    text = f"needs {need * BLOCK_BYTES:,} B of {memory.name}, the machine has {capacity * BLOCK_BYTES:,}{beside} ({missing})"
    if total <= free:
        text += f"; {total * BLOCK_BYTES:,} B are live at once, and lie apart"
    parts: dict[str, list[int]] = {}
    for request in live:
        parts.setdefault(_buffer_name(target_graph, blocks, request.buffer), []).append(request.size * BLOCK_BYTES)
    largest = sorted(parts.items(), key=lambda part: -sum(part[1]))
    shown = [f"{name} {f'{len(sizes)} x ' if len(sizes) > 1 else ''}{max(sizes):,} B" for name, sizes in largest[:_LISTED_BUFFERS]]
    further_bytes = sum(sum(sizes) for _, sizes in largest[_LISTED_BUFFERS:])
    shown += [f"{len(largest) - _LISTED_BUFFERS} more {further_bytes:,} B"] if further_bytes else []
    return f"{text}; live at {target_graph.operators[blocks.start + step].name}: {', '.join(shown)}"


def peak(requests: Sequence[BufferRequest]) -> tuple[int, list[BufferRequest]]:
    """First step with the most live blocks, and the requests that are live at this step."""
    steps = sorted({request.birth for request in requests})
    live = {step: [request for request in requests if request.birth <= step <= request.death] for step in steps}
    step = max(steps, key=lambda index: (sum(request.size for request in live[index]), -index))
    return step, live[step]


def _buffer_name(target_graph: TargetGraph, blocks: Blocks, buffer: Buffer) -> str:
    """Name of a buffer in messages."""
    if buffer.kind == "tensor":
        return f"tensor {target_graph.storages[buffer.of].name}"
    return _BUFFER_NAMES[buffer.kind].format("" if buffer.of < 0 else target_graph.operators[blocks.start + buffer.of].name)


Matrix = NDArray[np.bool_]


def find_conflicts(target_graph: TargetGraph, blocks: Blocks, requests: Sequence[BufferRequest], one_block: bool) -> Matrix:
    """Pairs of requests that must not share addresses, bool [n, n].  one_block: whether the window holds one block, in edge order."""
    return _find_conflicts(target_graph, blocks.start, blocks.stop, tuple([request.touched for request in requests]), one_block)


@lru_cache(maxsize=1 << 10)  # once for a gene's fit, and again for the segment's addresses
def _find_conflicts(target_graph: TargetGraph, start: int, stop: int, steps: tuple[int, ...], one_block: bool) -> Matrix:
    """`find_conflicts` for operators [start, stop).  steps: `BufferRequest.touched` of every request."""
    if not steps:
        return np.zeros((0, 0), np.bool_)
    order, count = _order(target_graph, start, stop), stop - start
    masks = _words([mask or (1 << count) - 1 for mask in steps], count)
    touched = np.unpackbits(masks.view(np.uint8), axis=1, count=count, bitorder="little")
    precedes: Matrix = np.zeros((len(steps), len(steps)), np.bool_)
    if one_block:  # over all operators that touch the buffer; by words: for small matrices threads of BLAS cost more
        buffer, step = np.nonzero(touched)
        not_behind = np.bitwise_or.reduceat(order.not_after[step], np.searchsorted(buffer, np.arange(len(steps))), axis=0)
        precedes = np.bitwise_or.reduce(not_behind[:, None] & masks, axis=2) == 0
    single = touched.sum(1) == 1
    owner = touched.argmax(1)
    lane_of = order.lanes[owner]
    taking_turns = single[:, None] & single & (owner[:, None] != owner) & (lane_of[:, None] == lane_of)
    conflicts: Matrix = ~(precedes | precedes.T | taking_turns)
    conflicts.flags.writeable = False
    return conflicts


def _words(masks: Sequence[int], count: int) -> NDArray[np.uint64]:
    """Bit masks as uint64 [n, words], the lowest bits first; a segment may have more than 64 operators."""
    wide = -(-count // 64) * 8
    return np.frombuffer(b"".join([mask.to_bytes(wide, "little") for mask in masks]), np.uint64).reshape(len(masks), wide // 8)


class _Order(NamedTuple):
    """Order of a segment's operators.  lanes: int64 [operators], lane of every operator.  not_after: uint64 [operators, words], bits of the
    operators that do not depend on an operator."""

    lanes: NDArray[np.int64]
    not_after: NDArray[np.uint64]


@lru_cache(maxsize=4096)
def _order(target_graph: TargetGraph, start: int, stop: int) -> _Order:
    count, after = stop - start, _descendants(target_graph, start, stop)
    return _Order(lanes(target_graph, start, stop), _words([(1 << count) - 1 & ~mask for mask in after], count))


def _descendants(target_graph: TargetGraph, start: int, stop: int) -> list[int]:
    """Per operator, the operators that depend on it along the edges of the graph, as bits."""
    after = [0] * (stop - start)
    for k in range(stop - start - 1, -1, -1):
        for reader in target_graph.consumers[start + k]:
            if reader < stop:
                after[k] |= after[reader - start] | 1 << reader - start
    return after


OF_ALL = -1  # owner of buffers that all operators of a segment share
_L1_ALIGN, _UB_ALIGN = L1_ALIGN_BLOCKS, REPEAT_BLOCKS


@dataclass(frozen=True)
class Places:
    """Addresses of a segment's buffers.  l1, ub: buffer -> first block.  requests: requests by memory, L1 and UB.

    peak_bytes: peak of every memory by name, in bytes.  L0A, L0B and L0C count two tiles; more slots are used if there is room
    (`target.capabilities.tile_slot`).  held: layout of persistent tensors.
    """

    l1: dict[Buffer, int]
    ub: dict[Buffer, int]
    requests: dict[Memory, list[BufferRequest]]
    peak_bytes: dict[str, int]
    held: PersistentLayout = NO_TENSORS


def segment_label(plan: SegmentPlan) -> str:
    """Name of a segment in messages."""
    return f"segment {plan.label}"


def place_segment(
    strips: Sequence[tuple[TargetGraph, Blocks]],
    plan: SegmentPlan,
    flip: bool = False,
    explain: bool = True,
    held: PersistentLayout = NO_TENSORS,
) -> Places | Infeasible:
    """Allocate buffers of a segment, at the same addresses in all strips; a segment of full rows has one strip.

    flip: whether addresses count from the top of L1 and UB (`mirrored`).  explain: whether the message lists the buffers that do not fit,
    which takes time.  held: layout of persistent tensors, at the top of L1.
    """
    demands = []
    for target_graph, blocks in strips:
        demand = _wanted(target_graph, plan, blocks)
        if isinstance(demand, str):
            return Infeasible(segment_label(plan), demand)
        demands.append(demand)
    target_graph, blocks = strips[0]
    # memory by memory: persistent tensors take the top of L1, and a machine without UB has a region of L1 in its place
    machine, addresses, peaks, requested = target_graph.machine, {}, {}, {}
    rule, region = conflict_rule(target_graph, blocks, plan.sliding, plan.window), region_blocks(machine)
    for memory, requests in _requests(strips, plan, demands):
        capacity = room_blocks(machine, memory) - (held.blocks if memory == Memory.L1 else 0)
        offsets, need = (
            place_buffers(requests, capacity, plan.spread, rule)
            if rule or memory == Memory.L1
            else _fit(tuple(requests), capacity, plan.spread)
        )
        if need > capacity:
            reason = shortage(target_graph, blocks, memory, requests, need, capacity) if explain else f"does not fit {memory.name}"
            return Infeasible(segment_label(plan), reason)
        if memory == Memory.L1:
            offsets |= {Buffer("tensor", storage): place for storage, place in held.places}
            offsets = {buffer: region + place for buffer, place in offsets.items()} if region else offsets
            need += region + held.blocks
        addresses[memory], peaks[memory.name], requested[memory] = offsets, need * BLOCK_BYTES, requests
    peaks |= _l0_peaks(demands[0])
    peaks |= dict.fromkeys(_absent(machine), 0)
    places = Places(addresses[Memory.L1], addresses[Memory.UB], requested, peaks, held)
    return mirrored(machine, places) if flip else places


@lru_cache(maxsize=1 << 13)  # requests in UB do not depend on tensors: equal layers, and a layer in several blocks, have equal requests
def _fit(requests: tuple[BufferRequest, ...], capacity: int, spread: bool) -> tuple[dict[Buffer, int], int]:
    return place_buffers(requests, capacity, spread)


@lru_cache(maxsize=64)
def _absent(machine: Machine) -> tuple[str, ...]:
    """Memories that the machine does not have."""
    return tuple([memory.name for memory in (*L0_MEMORIES, Memory.L1, Memory.UB) if not machine.has(memory)])


def capacity_tests(strips: Sequence[tuple[TargetGraph, Blocks]], plan: SegmentPlan) -> dict[Memory, Callable[[int], bool]] | None:
    """Test by memory whether requests of `place_segment` fit a number of blocks; None if it refuses the plan in memories of any size."""
    demands = [demand for target_graph, blocks in strips if not isinstance(demand := _wanted(target_graph, plan, blocks), str)]
    if len(demands) < len(strips):
        return None
    target_graph, blocks = strips[0]
    rule = conflict_rule(target_graph, blocks, plan.sliding, plan.window)
    return {memory: capacity_test(requests, plan.spread, rule) for memory, requests in _requests(strips, plan, demands)}


def _requests(
    strips: Sequence[tuple[TargetGraph, Blocks]], plan: SegmentPlan, demands: Sequence[Sequence[BufferDemand]]
) -> Iterator[tuple[Memory, list[BufferRequest]]]:
    """Requests in L1, and then in UB.  demands: per strip, demand of every operator."""
    cases = [(*strip, needs) for strip, needs in zip(strips, demands, strict=True)]
    yield (
        Memory.L1,
        _largest([l1_requests(target_graph, blocks, plan.prefetch, plan.window, needs) for target_graph, blocks, needs in cases]),
    )
    yield Memory.UB, _largest([ub_requests(target_graph, blocks, needs) for target_graph, blocks, needs in cases])


def mirrored(machine: Machine, places: Places) -> Places:
    """Addresses counted from the top of L1 and UB.  Behind a segment at the bottom, the first loads need not wait for the last reads of
    that segment.  Persistent tensors do not move, and other buffers lie below them."""
    addresses, region = {}, region_blocks(machine)
    for memory, offsets, align in ((Memory.L1, places.l1, _L1_ALIGN), (Memory.UB, places.ub, _UB_ALIGN)):
        capacity, low = room_blocks(machine, memory), region if memory == Memory.L1 else 0
        capacity -= places.held.blocks if memory == Memory.L1 else 0
        mirror = {
            request.buffer: low + (capacity - (offsets[request.buffer] - low) - request.size) // align * align
            for request in places.requests[memory]
        }
        addresses[memory] = offsets | mirror if places.held.places else mirror
    return Places(addresses[Memory.L1], addresses[Memory.UB], places.requests, places.peak_bytes, places.held)


def _largest(requests: Sequence[list[BufferRequest]]) -> list[BufferRequest]:
    """Requests for the buffers that all strips have, each with its largest size in any strip."""
    return requests[0] if len(requests) == 1 else [max(alike, key=lambda request: request.size) for alike in zip(*requests, strict=True)]


def _wanted(target_graph: TargetGraph, plan: SegmentPlan, blocks: Blocks) -> list[BufferDemand] | str:
    """Demand of every operator's tiling; or the reason why the plan is illegal with any addresses."""
    demands, operators, start = list[BufferDemand](), target_graph.operators, blocks.start
    for k, (tiling, name, inside) in enumerate(zip(plan.tilings, plan.operators, blocks.inside, strict=True)):
        spec = operators[start + k]
        product = product_of(spec)
        if (product is not None) != isinstance(tiling, ConvTiling):
            return f"{spec.name} needs a {'vector' if product is None else 'conv'} tiling"
        if name != spec.name:
            return f"operator {k} is {name!r}, in the topological order it is {spec.name!r}"
        demand = demand_of(target_graph, spec, tiling, inside)
        if product is not None and isinstance(tiling, ConvTiling):
            why = "" if demand.fits_l0 else _not_fitting(target_graph, product, tiling, demand)
            if not why and tiling.weights == "streamed":
                why = _not_streamed(target_graph, product, tiling, blocks, k)
            if why:
                return f"{spec.name}{why}"
        demands.append(demand)
    return demands


def _not_fitting(target_graph: TargetGraph, product: ConvSpec, tiling: ConvTiling, demand: BufferDemand) -> str:
    """Reason why a product's tile does not fit."""
    for memory, need, axes in zip(L0_MEMORIES, demand.l0_blocks, ("m k1", "n1 k1", "m n1"), strict=True):
        half = room_blocks(target_graph.machine, memory) // 2
        if need > half:
            size = " x ".join(f"tile_{axis} {getattr(tiling, f'tile_{axis}'):,}" for axis in axes.split())
            return f": a tile needs {need * BLOCK_BYTES:,} B of {memory.name} ({size}), half of it is {half * BLOCK_BYTES:,}"
    step = product.n1_step
    field, n1 = next((field, n1) for field in ("tile_n1", "chunk_n1") if (n1 := getattr(tiling, field)) % step and n1 < product.n1)
    return f": {field} {n1}: {step} n1 are a plane of its result, so accepted: multiples of {step}"


def _not_streamed(target_graph: TargetGraph, product: ConvSpec, tiling: ConvTiling, blocks: Blocks, index: int) -> str:
    """Reason why the right operand of operator `index` cannot come in chunks, or ''."""
    if product.right is not None and not can_stream(target_graph, blocks.start, index, blocks.held):
        return ": its right operand lies in L1 as a whole, made in this segment or held: weights must be resident"
    if tiling.chunk_k1 < product.k1:
        pixels, capacity = max(blocks.heights[index], default=0) * product.out_w, room_blocks(target_graph.machine, Memory.L0C) // 2 * 2
        places = target_graph.together * partial_blocks(product.fractal.sum_blocks, pixels, min(tiling.chunk_n1, product.n1), tiling.tile_m)
        if places > capacity:
            return f": chunks along k keep {places * BLOCK_BYTES:,} B of partial sums, L0C has {capacity * BLOCK_BYTES:,}"
    return ""


def _l0_peaks(demands: Sequence[BufferDemand]) -> dict[str, int]:
    tiles = [demand.l0_blocks for demand in demands if demand.l0_blocks] or [(0, 0, 0)]
    a, b, c = tiles[0] if len(tiles) == 1 else map(max, zip(*tiles, strict=True))
    return {"L0A": 2 * BLOCK_BYTES * a, "L0B": 2 * BLOCK_BYTES * b, "L0C": 2 * BLOCK_BYTES * c}


def _iterations(target_graph: TargetGraph, blocks: Blocks) -> int:
    """Iterations of a segment: every block of every image, in every strip."""
    return blocks.count * target_graph.storages[target_graph.operators[blocks.start].y.storage].n * target_graph.strips


def runs_repeatedly(target_graph: TargetGraph, blocks: Blocks) -> bool:
    """Whether a segment's operators run more than once."""
    return _iterations(target_graph, blocks) > 1


def conflict_rule(target_graph: TargetGraph, blocks: Blocks, sliding: bool, window: Window) -> Conflicts | None:
    """Conflicts for `place_buffers` from a segment's order, in addition to the buffers' lifetimes."""
    return _sliding_rule(target_graph, blocks, window == 1) if sliding else None


@lru_cache(maxsize=4096)  # equal rules must be one object, because they are keys of caches
def _sliding_rule(target_graph: TargetGraph, blocks: Blocks, one_block: bool) -> Conflicts:
    return lambda requests: find_conflicts(target_graph, blocks, requests, one_block)


def slot_counts(target_graph: TargetGraph, blocks: Blocks, prefetch: int, window: Window) -> dict[int, int]:
    """Storage -> number of slots: `window` for intermediates, `prefetch` for loaded tensors, never more than iterations.

    A persistent tensor, and a part that an input pass loads, has one slot.  A window without limit keeps a slot per iteration of a strip,
    also for loaded storages that several operators read: the last reader may be far behind the first.
    """
    iterations = _iterations(target_graph, blocks)
    slots = {}
    for allocation in blocks.allocations.values():
        if allocation.held or target_graph.storages[allocation.storage].ddr_planes:
            slots[allocation.storage] = 1
        elif window == "all":
            several = allocation.produced or allocation.birth < allocation.death
            slots[allocation.storage] = iterations // target_graph.strips if several else min(prefetch, iterations)
        else:
            slots[allocation.storage] = min(window if allocation.produced else prefetch, iterations)
    return slots


def l1_requests(
    target_graph: TargetGraph, blocks: Blocks, prefetch: int, window: Window, demands: Sequence[BufferDemand]
) -> list[BufferRequest]:
    """Requests in L1 for tensors and weights."""
    requests, repeats, last = (
        list(tensor_requests(target_graph, blocks, prefetch, window)),
        runs_repeatedly(target_graph, blocks),
        blocks.stop - blocks.start - 1,
    )
    for k, (_, slots, size, *_) in enumerate(demands):
        requests += weight_requests_of(k, slots, size, last if weights_stay(slots, repeats) else -1, blocks.until[k])
    return requests


def slot_blocks(target_graph: TargetGraph, allocation: BlockAllocation, slots: int) -> int:
    """Blocks of one slot of a storage, or of the ring that holds all `slots` slots."""
    storage = target_graph.storages[allocation.storage]
    return round_up(allocation.planes * allocation.high(slots, storage.n) * storage.row_blocks * target_graph.together, _L1_ALIGN)


@lru_cache(maxsize=4096)
def tensor_requests(target_graph: TargetGraph, blocks: Blocks, prefetch: int, window: Window) -> tuple[BufferRequest, ...]:
    """Requests in L1 for loaded tensors (`prefetch` slots) and intermediates (`window` slots).

    A part that an input pass loads is live in that pass, and in the `prefetch` - 1 operators before it.
    """
    repeats = runs_repeatedly(target_graph, blocks)
    last = blocks.stop - blocks.start - 1
    requests = []
    for storage, slots in slot_counts(target_graph, blocks, prefetch, window).items():
        allocation = blocks.allocations[storage]
        if allocation.held:
            continue
        size = slot_blocks(target_graph, allocation, slots)
        if allocation.cached:
            requests.append(BufferRequest(Buffer("tensor", storage), size, 0, last))
        elif target_graph.storages[storage].ddr_planes:
            birth = max(0, allocation.birth + 1 - prefetch)
            requests.append(BufferRequest(Buffer("tensor", storage), size, birth, allocation.death, allocation.readers))
        elif repeats and (slots > 1 or not allocation.produced):
            requests += [BufferRequest(Buffer("tensor", storage, slot), size, 0, last) for slot in range(slots)]
        else:
            requests.append(
                BufferRequest(Buffer("tensor", storage), size, allocation.birth, allocation.death, allocation.makers | allocation.readers)
            )
    return tuple(requests)


@lru_cache(maxsize=4096)
def tensor_blocks(target_graph: TargetGraph, blocks: Blocks, prefetch: int, window: Window) -> tuple[list[int], int]:
    """Blocks of `tensor_requests` that are live at every operator of a segment, and the sum of all their blocks."""
    requests = tensor_requests(target_graph, blocks, prefetch, window)
    return live_blocks(requests, blocks.stop - blocks.start), sum([request.size for request in requests])


def weights_stay(slots: int, repeats: bool) -> bool:
    """Whether weights stay after the first load: they have one buffer, and operators run repeatedly.  slots: number of buffers."""
    return repeats and slots == 1


def weight_requests(target_graph: TargetGraph, blocks: Blocks, index: int, tiling: Tiling) -> tuple[BufferRequest, ...]:
    """Requests in L1 for the weights of operator `index`."""
    slots, size = target_graph.operators[blocks.start + index].weight_slots(tiling)
    last = blocks.stop - blocks.start - 1 if weights_stay(slots, runs_repeatedly(target_graph, blocks)) else -1
    return weight_requests_of(index, slots, size, last, blocks.until[index])


@lru_cache(maxsize=1 << 14)
def weight_requests_of(index: int, slots: int, size: int, last: int, until: int) -> tuple[BufferRequest, ...]:
    """Requests for `slots` buffers of `size` blocks of weights.

    last: last step of buffers that are live from step 0 on; -1: buffers live while the operator works.  until: see `operator_run.worked`.
    """
    life = (0, last) if last >= 0 else _scratch(index, until)
    return tuple(BufferRequest(Buffer("weights", index, slot), size, *life) for slot in range(slots))


def _scratch(index: int, until: int) -> tuple[int, int, int]:
    """Birth, death and touching steps of a buffer that only operator `index` uses.  until: see `operator_run.worked`."""
    return index, until, 1 << index | 1 << until


def ub_requests(target_graph: TargetGraph, blocks: Blocks, demands: Sequence[BufferDemand]) -> list[BufferRequest]:
    """Requests in UB of all operators: constants, and two slots each of the result's tile and the residual's tile."""
    last = blocks.stop - blocks.start - 1
    last_use = last if runs_repeatedly(target_graph, blocks) else -1
    requests = list(
        chain.from_iterable([ub_requests_of(k, demand.ub_buffers, last_use, blocks.until[k]) for k, demand in enumerate(demands)])
    )
    return merge_pooled(requests, last) if any(demand.shares_pool for demand in demands) else requests


def own_requests(target_graph: TargetGraph, blocks: Blocks, index: int, tiling: Tiling) -> tuple[BufferRequest, ...]:
    """Requests in UB of operator `index`, before `merge_pooled` merges shared buffers."""
    demand = demand_of(target_graph, target_graph.operators[blocks.start + index], tiling, blocks.inside[index])
    return ub_requests_of(
        index, demand.ub_buffers, blocks.stop - blocks.start - 1 if runs_repeatedly(target_graph, blocks) else -1, blocks.until[index]
    )


def merge_pooled(requests: list[BufferRequest], last: int) -> list[BufferRequest]:
    """Requests with shared buffers merged; a shared buffer is as large as the largest request for it, and lives in all steps.

    Weights of an operator are expanded while the previous operator still works, so shared buffers must not overlap that operator's tiles.
    last: last step of the segment.
    """
    sizes: dict[Buffer, int] = {}
    single = []
    for request in requests:
        kind, _, slot = request.buffer
        if kind in SHARED_KINDS:
            common = Buffer(kind, OF_ALL, slot)
            sizes[common] = max(sizes.get(common, 0), request.size)
        else:
            single.append(request)
    return single + [BufferRequest(common, size, 0, last) for common, size in sizes.items()]


@lru_cache(maxsize=1 << 14)
def ub_requests_of(index: int, buffers: tuple[UbBuffers, ...], last: int, until: int) -> tuple[BufferRequest, ...]:
    """Requests in UB of operator `index`.  until: see `operator_run.worked`.

    last: last step of lasting buffers, which are live from step 0 on; -1: these buffers, too, live while the operator works.
    """
    requests = []
    for kind, slots, size, stays_live in buffers:
        life = (0, last) if stays_live and last >= 0 else _scratch(index, until)
        requests += [BufferRequest(Buffer(kind, index, slot), size, *life) for slot in range(slots)]
    return tuple(requests)
