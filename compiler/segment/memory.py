"""What a segment keeps where: buffers in L1 and UB with their lifetimes, placed, or why they do not fit.

Where a machine has no UB, what is called so here is a region of L1 (`unit.machine.region_blocks`).

| buffer                      | memory | what                                                                                 |
|-----------------------------|--------|--------------------------------------------------------------------------------------|
| tensor, of a storage        | L1     | a slot of what the segment keeps of it; slot 0 alone where it is a ring, or held       |
| weights, of an operator     | L1     | all of them, or a slot of their chunks; chunks of a right operand, too                |
| constants, of an operator   | UB     | bias, scales, masks, counts; streamed: of a tile's planes, or a slot of a bias's chunks |
| out, of an operator         | UB     | a slot of the tile that it works on or hands out                                      |
| residual, of an operator    | UB     | a slot of its residual tile                                                           |
| overlaid, of an operator    | UB     | masks that expand its chunks of weights, and perhaps all of these (`unit.expansion`)  |
| arriving, expanded          | UB     | two slots of weights before and after that, of one operator after the other            |
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain

from compiler.kinds.conv import product_of
from compiler.kinds.counts import l0_blocks, partial_blocks
from compiler.plan.plan import ConvTiling, Infeasible, SegmentPlan, Tiling, Window
from compiler.segment.asked import OF_PRODUCTS, Asked, asked_of
from compiler.segment.blocks import BlockAllocation, Blocks
from compiler.segment.buffers import Apart, Buffer, BufferRequest, fit, fitting, live
from compiler.segment.held import NOTHING, Held
from compiler.segment.run import can_stream
from compiler.segment.sharing import apart
from compiler.segment.shortage import shortage
from compiler.unit.machine import region_blocks, room_blocks
from compiler.unit.operators import UbBuffers, rounded
from compiler.unit.unit import Unit
from simulator.npu.isa import REPEAT_BLOCKS
from simulator.npu.machine import Machine
from simulator.npu.parts import BLOCK_BYTES, L1_ALIGN_BLOCKS, Memory

POOLED, OF_ALL = ("arriving", "expanded"), -1  # kinds of buffers that all operators of a segment have together, and whose these are
_L1_ALIGN, _UB_ALIGN = L1_ALIGN_BLOCKS, REPEAT_BLOCKS


@dataclass(frozen=True)
class Places:
    """First blocks of buffers, what was asked for in each of the two memories, and the most that each memory holds, in bytes.

    Of L0A, L0B and L0C that is what two tiles take; where there is room for more, there are more (`unit.machine.tile_slot`).
    """

    l1: dict[Buffer, int]
    ub: dict[Buffer, int]
    requests: dict[Memory, list[BufferRequest]]
    peak_bytes: dict[str, int]
    held: Held = NOTHING


def named(plan: SegmentPlan) -> str:
    """The segment as messages call it."""
    return f"segment {plan.label}"


def place(
    strips: Sequence[tuple[Unit, Blocks]], plan: SegmentPlan, flip: bool = False, told: bool = True, held: Held = NOTHING
) -> Places | Infeasible:
    """Addresses for a segment, the same ones in all of its strips (one where it has whole rows).

    flip: from the top of L1 and UB (`mirrored`).
    told: whether what does not fit is named, which takes its time.  held: what it leaves to others of the top of L1, and what lies there.
    """
    where = named(plan)
    for unit, blocks in strips:
        refusal = _refuse(unit, plan, blocks, blocks.start)
        if refusal:
            return Infeasible(where, refusal)
    unit, blocks = strips[0]
    found, peaks, asked, region = {}, {}, {}, region_blocks(unit.machine)
    every = [asked_of_all(*strip, plan.tilings) for strip in strips]
    for memory, requests in _requests(strips, plan, every):
        have = room_blocks(unit.machine, memory) - (held.blocks if memory == Memory.L1 else 0)
        at, need = fit(requests, have, plan.spread, apart_rule(unit, blocks, plan.sliding, plan.window))
        if need > have:
            return Infeasible(where, shortage(unit, blocks, memory, requests, need, have) if told else f"does not fit {memory.name}")
        if memory == Memory.L1:
            at |= {Buffer("tensor", storage): place for storage, place in held.at}
            at = {buffer: region + place for buffer, place in at.items()} if region else at
            need += region + held.blocks
        found[memory], peaks[memory.name], asked[memory] = at, need * BLOCK_BYTES, requests
    peaks |= _l0_peaks(every[0])
    most = {name: peak if unit.machine.has(Memory[name]) else 0 for name, peak in peaks.items()}
    places = Places(found[Memory.L1], found[Memory.UB], asked, most, held)
    return mirrored(unit.machine, places) if flip else places


def asked(strips: Sequence[tuple[Unit, Blocks]], plan: SegmentPlan) -> dict[Memory, Callable[[int], bool]] | None:
    """By memory whether what `place` asks of it fits so many blocks; None where it refuses the plan whatever room there is."""
    if any(_refuse(unit, plan, blocks, blocks.start) for unit, blocks in strips):
        return None
    unit, blocks = strips[0]
    rule, every = apart_rule(unit, blocks, plan.sliding, plan.window), [asked_of_all(*strip, plan.tilings) for strip in strips]
    return {memory: fitting(requests, plan.spread, rule) for memory, requests in _requests(strips, plan, every)}


def asked_of_all(unit: Unit, blocks: Blocks, tilings: Sequence[Tiling]) -> list[Asked]:
    """What every operator's tiling asks for."""
    specs = unit.operators[blocks.start : blocks.stop]
    return [asked_of(unit, *each) for each in zip(specs, tilings, blocks.inside, strict=True)]


def _requests(
    strips: Sequence[tuple[Unit, Blocks]], plan: SegmentPlan, asked: Sequence[Sequence[Asked]]
) -> Iterator[tuple[Memory, list[BufferRequest]]]:
    """What a segment asks for in L1, and then in UB.  asked: by its operators in every strip."""
    every = [(*strip, each) for strip, each in zip(strips, asked, strict=True)]
    yield Memory.L1, _largest([l1_requests(unit, blocks, plan.prefetch, plan.window, each) for unit, blocks, each in every])
    yield Memory.UB, _largest([ub_requests(unit, blocks, each) for unit, blocks, each in every])


def mirrored(machine: Machine, places: Places) -> Places:
    """The same from the top of L1 and UB: behind a segment that lies at the bottom, first loads need not wait for its last reads.

    What is held stays where it is, and L1 ends below that.
    """
    found, region = {}, region_blocks(machine)
    for memory, at, align in ((Memory.L1, places.l1, _L1_ALIGN), (Memory.UB, places.ub, _UB_ALIGN)):
        have, low = room_blocks(machine, memory), region if memory == Memory.L1 else 0
        have -= places.held.blocks if memory == Memory.L1 else 0
        own = {
            request.buffer: low + (have - (at[request.buffer] - low) - request.size) // align * align for request in places.requests[memory]
        }
        found[memory] = at | own if places.held.at else own
    return Places(found[Memory.L1], found[Memory.UB], places.requests, places.peak_bytes, places.held)


def _largest(requests: Sequence[list[BufferRequest]]) -> list[BufferRequest]:
    """Of strips that ask for the same buffers, each as large as where it is largest."""
    return requests[0] if len(requests) == 1 else [max(alike, key=lambda request: request.size) for alike in zip(*requests, strict=True)]


def _refuse(unit: Unit, plan: SegmentPlan, blocks: Blocks, start: int) -> str:
    """What makes the plan illegal whatever its addresses, or ''."""
    half = _halves(unit.machine)
    for k, tiling in enumerate(plan.tilings):
        spec = unit.operators[start + k]
        product = product_of(spec)
        if (product is not None) != isinstance(tiling, ConvTiling):
            return f"{spec.name} needs a {'vector' if product is None else 'conv'} tiling"
        if plan.operators[k] != spec.name:
            return f"operator {k} is {plan.operators[k]!r}, in the topological order it is {spec.name!r}"
        if product is None or not isinstance(tiling, ConvTiling):
            continue
        if tiling.weights == "resident" and asked_of(unit, spec, tiling, blocks.inside[k]).fits:
            continue
        a, b, c = l0_blocks(product.fractal.weight_blocks, product.fractal.sum_blocks, tiling.tile_m, tiling.tile_n1, tiling.tile_k1)
        for memory, need, axes in ((Memory.L0A, a, "m k1"), (Memory.L0B, b, "n1 k1"), (Memory.L0C, c, "m n1")):
            if need > half[memory]:
                size = " x ".join(f"tile_{axis} {getattr(tiling, f'tile_{axis}'):,}" for axis in axes.split())
                have = half[memory] * BLOCK_BYTES
                return f"{spec.name}: a tile needs {need * BLOCK_BYTES:,} B of {memory.name} ({size}), half of it is {have:,}"
        step = product.n1_step
        for what, n1 in (("tile_n1", tiling.tile_n1), ("chunk_n1", tiling.chunk_n1)):
            if n1 % step and n1 < product.n1:
                return f"{spec.name}: {what} {n1}: {step} n1 are a plane of its result, so accepted: multiples of {step}"
        if spec.right is not None and tiling.weights == "streamed" and not can_stream(unit, start, k, blocks.held):
            return f"{spec.name}: its right operand lies in L1 as a whole, made in this segment or held: weights must be resident"
        if tiling.weights == "streamed" and tiling.chunk_k1 < product.k1:
            pixels = max(blocks.heights[k], default=0) * spec.out_w
            places = partial_blocks(product.fractal.sum_blocks, pixels, min(tiling.chunk_n1, product.n1), tiling.tile_m)
            if places > 2 * half[Memory.L0C]:
                have = 2 * half[Memory.L0C] * BLOCK_BYTES
                return f"{spec.name}: chunks along k keep {places * BLOCK_BYTES:,} B of partial sums, L0C has {have:,}"
    return ""


@lru_cache(maxsize=64)
def _halves(machine: Machine) -> dict[Memory, int]:
    return {memory: room_blocks(machine, memory) // 2 for memory in OF_PRODUCTS}


def _l0_peaks(asked: Sequence[Asked]) -> dict[str, int]:
    tiles = [each.tile for each in asked if each.tile] or [(0, 0, 0)]
    return {memory.name: 2 * BLOCK_BYTES * max(sizes) for memory, sizes in zip(OF_PRODUCTS, zip(*tiles, strict=True), strict=True)}


def _iterations(unit: Unit, blocks: Blocks) -> int:
    """Every block of every image, in every strip."""
    return blocks.count * unit.storages[unit.operators[blocks.start].y.storage].n * unit.strips


def repeated(unit: Unit, blocks: Blocks) -> bool:
    """Whether a segment's operators run more than once."""
    return _iterations(unit, blocks) > 1


def apart_rule(unit: Unit, blocks: Blocks, sliding: bool, window: Window) -> Apart | None:
    """What `fit` needs to know of a segment's order beside the buffers' lifetimes."""
    return _sliding_rule(unit, blocks, window == 1) if sliding else None


@lru_cache(maxsize=4096)  # one object for one rule, so that what is known of it is found again
def _sliding_rule(unit: Unit, blocks: Blocks, one_block: bool) -> Apart:
    return lambda requests: apart(unit, blocks, requests, one_block)


def slot_counts(unit: Unit, blocks: Blocks, prefetch: int, window: Window) -> dict[int, int]:
    """Storage that stays -> slots: `window` of an intermediate, `prefetch` of what is loaded, never more than iterations; 1 if it is held,
    or a run of planes that input passes load.

    A window without limit keeps a slot per iteration of a strip, also of what several operators load and read: the last of them may be
    far behind.
    """
    iterations = _iterations(unit, blocks)
    found = {}
    for allocation in blocks.allocations.values():
        if allocation.held or unit.storages[allocation.storage].whole:
            found[allocation.storage] = 1
        elif window == "all":
            several = allocation.produced or allocation.birth < allocation.death
            found[allocation.storage] = iterations // unit.strips if several else min(prefetch, iterations)
        else:
            found[allocation.storage] = min(window if allocation.produced else prefetch, iterations)
    return found


def l1_requests(unit: Unit, blocks: Blocks, prefetch: int, window: Window, asked: Sequence[Asked]) -> list[BufferRequest]:
    """Buffers in L1 of tensors and of weights."""
    requests, again, last = list(tensor_requests(unit, blocks, prefetch, window)), repeated(unit, blocks), blocks.stop - blocks.start - 1
    for k, (_, slots, size, *_) in enumerate(asked):
        requests += weight_requests_of(k, slots, size, last if stays(slots, again) else -1)
    return requests


def slot_blocks(unit: Unit, allocation: BlockAllocation, slots: int) -> int:
    """Size of one of a storage's slots, or of the ring that holds all of them."""
    storage = unit.storages[allocation.storage]
    return rounded(allocation.planes * allocation.high(slots, storage.n) * storage.row_blocks, _L1_ALIGN)


@lru_cache(maxsize=4096)
def tensor_requests(unit: Unit, blocks: Blocks, prefetch: int, window: Window) -> tuple[BufferRequest, ...]:
    """Buffers in L1 of what is loaded (`prefetch` slots) and of intermediates (`window` slots).

    A run of planes that an input pass loads is there for that pass, and with more slots for as many passes before it.
    """
    again = repeated(unit, blocks)
    last = blocks.stop - blocks.start - 1
    requests = []
    for storage, slots in slot_counts(unit, blocks, prefetch, window).items():
        allocation = blocks.allocations[storage]
        if allocation.held:
            continue
        size = slot_blocks(unit, allocation, slots)
        if allocation.cached:
            requests.append(BufferRequest(Buffer("tensor", storage), size, 0, last))
        elif unit.storages[storage].whole:
            birth = max(0, allocation.birth + 1 - prefetch)
            requests.append(BufferRequest(Buffer("tensor", storage), size, birth, allocation.death, allocation.readers))
        elif again and (slots > 1 or not allocation.produced):
            requests += [BufferRequest(Buffer("tensor", storage, slot), size, 0, last) for slot in range(slots)]
        else:
            requests.append(
                BufferRequest(Buffer("tensor", storage), size, allocation.birth, allocation.death, allocation.makers | allocation.readers)
            )
    return tuple(requests)


@lru_cache(maxsize=4096)
def tensor_blocks(unit: Unit, blocks: Blocks, prefetch: int, window: Window) -> tuple[list[int], int]:
    """Blocks of `tensor_requests` that are live at each of a segment's operators, and of all of them."""
    requests = tensor_requests(unit, blocks, prefetch, window)
    return live(requests, blocks.stop - blocks.start), sum([request.size for request in requests])


def stays(slots: int, again: bool) -> bool:
    """Whether weights in so many buffers stay there from the first time on: all of them in one, of operators that run again."""
    return again and slots == 1


def weight_requests(unit: Unit, blocks: Blocks, k: int, tiling: Tiling) -> tuple[BufferRequest, ...]:
    """Buffers in L1 of operator k's weights."""
    slots, size = unit.operators[blocks.start + k].weight_slots(tiling)
    last = blocks.stop - blocks.start - 1 if stays(slots, repeated(unit, blocks)) else -1
    return weight_requests_of(k, slots, size, last)


@lru_cache(maxsize=1 << 14)
def weight_requests_of(k: int, slots: int, size: int, last: int) -> tuple[BufferRequest, ...]:
    """`slots` buffers of `size` blocks for operator k's weights.  last: step until which they are kept from the first on; -1: k's alone."""
    life = (0, last) if last >= 0 else _scratch(k)
    return tuple(BufferRequest(Buffer("weights", k, slot), size, *life) for slot in range(slots))


def _scratch(k: int) -> tuple[int, int, int]:
    """Life of what only operator k touches, and only while it works."""
    return k, k, 1 << k


def ub_requests(unit: Unit, blocks: Blocks, asked: Sequence[Asked]) -> list[BufferRequest]:
    """Buffers in UB of every operator: its constants and two slots of its tile, and of its residual's."""
    last = blocks.stop - blocks.start - 1
    kept = last if repeated(unit, blocks) else -1
    return pooled(list(chain.from_iterable([ub_requests_of(k, each.buffers, kept) for k, each in enumerate(asked)])), last)


def own_requests(unit: Unit, blocks: Blocks, k: int, tiling: Tiling) -> tuple[BufferRequest, ...]:
    """Buffers in UB of operator k, before what it has together with others is `pooled`."""
    asked = asked_of(unit, unit.operators[blocks.start + k], tiling, blocks.inside[k])
    return ub_requests_of(k, asked.buffers, blocks.stop - blocks.start - 1 if repeated(unit, blocks) else -1)


def pooled(requests: list[BufferRequest], last: int) -> list[BufferRequest]:
    """Those with what all operators have together, each as large as the largest that is asked for.

    Weights of an operator are expanded while the one before it still works, so they do not lie where that has its tiles.
    """
    sizes: dict[Buffer, int] = {}
    own = []
    for request in requests:
        kind, _, slot = request.buffer
        if kind in POOLED:
            common = Buffer(kind, OF_ALL, slot)
            sizes[common] = max(sizes.get(common, 0), request.size)
        else:
            own.append(request)
    return own + [BufferRequest(common, size, 0, last) for common, size in sizes.items()]


@lru_cache(maxsize=1 << 14)
def ub_requests_of(k: int, buffers: tuple[UbBuffers, ...], last: int) -> tuple[BufferRequest, ...]:
    """Of operator k.  last: step until which what is kept lives from the first on; -1: it lives while k works."""
    requests = []
    for kind, slots, size, kept in buffers:
        life = (0, last) if kept and last >= 0 else _scratch(k)
        requests += [BufferRequest(Buffer(kind, k, slot), size, *life) for slot in range(slots)]
    return tuple(requests)
