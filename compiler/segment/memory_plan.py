"""What a segment keeps where: buffers in L1 and UB with their lifetimes, placed, or why they do not fit.

Where a machine has no UB, what is called so here is a region of L1 (`target.capabilities.region_blocks`).

| buffer                      | memory | what                                                                                 |
|-----------------------------|--------|--------------------------------------------------------------------------------------|
| tensor, of a storage        | L1     | a slot of what the segment keeps of it; slot 0 alone where it is a ring, or held       |
| weights, of an operator     | L1     | all of them, or a slot of their chunks; chunks of a right operand, too                |
| constants, of an operator   | UB     | bias, scales, masks, counts; streamed: of a tile's planes, or a slot of a bias's chunks |
| out, of an operator         | UB     | a slot of the tile that it works on or hands out                                      |
| residual, of an operator    | UB     | a slot of its residual tile                                                           |
| overlaid, of an operator    | UB     | masks that expand its chunks of weights, and perhaps all of these (`target.weight_expansion`)  |
| arriving, expanded          | UB     | two slots of weights before and after that, of one operator after the other            |

Which buffers of a segment may share addresses when its nodes do not run one after the other (`schedule.sliding_window`).

In a sequence that is a question of intervals: a buffer lives from the first operator that touches it to the last.  In a sliding window two
buffers may share only where the order that the window keeps says so:

* the window is one block, and everyone who touches the one comes before everyone who touches the other, along the edges of the graph; or
* each is the scratch of one operator, and both operators are of one lane, whose nodes never overlap.

Why buffers do not fit: how much is missing, when, and what is live then, in words that a person who edits a plan knows.
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
from compiler.segment.allocator import Apart, Buffer, BufferRequest, fit, fitting, live
from compiler.segment.blocks import BlockAllocation, Blocks
from compiler.segment.buffer_demand import OF_PRODUCTS, POOLED, BufferDemand, asked_of
from compiler.segment.engine_lanes import lanes
from compiler.segment.operator_run import can_stream
from compiler.segment.persistent import NOTHING, Held
from compiler.target.capabilities import region_blocks, room_blocks
from compiler.target.target_graph import TargetGraph
from compiler.target.target_op import UbBuffers, rounded
from simulator.npu.isa import REPEAT_BLOCKS
from simulator.npu.machine import Machine
from simulator.npu.parts import BLOCK_BYTES, L1_ALIGN_BLOCKS, Memory

_NAMED = 4  # tensors that a message names, the largest first

_WHAT = {"weights": "weights of {}", "constants": "constants of {}", "out": "tile of {}", "residual": "residual tile of {}"}
_WHAT |= {"overlaid": "overlaid weights of {}", "arriving": "weights to be expanded", "expanded": "expanded weights"}


def shortage(target_graph: TargetGraph, blocks: Blocks, memory: Memory, requests: Sequence[BufferRequest], need: int, have: int) -> str:
    """`need` blocks of a memory are asked for by `requests`, `have` are there beside what is held over cuts."""
    step, live = peak(requests)
    total = sum(request.size for request in live)
    whole = room_blocks(target_graph.machine, memory) if memory == Memory.L1 else have
    beside = f", {(whole - have) * BLOCK_BYTES:,} of them for what is held" if have < whole else ""
    missing = f"{(need - have) * BLOCK_BYTES:,} missing"
    text = f"needs {need * BLOCK_BYTES:,} B of {memory.name}, the machine has {whole * BLOCK_BYTES:,}{beside} ({missing})"
    if total <= have:
        text += f"; {total * BLOCK_BYTES:,} B are live at once, and lie apart"
    parts: dict[str, list[int]] = {}
    for request in live:
        parts.setdefault(_called(target_graph, blocks, request.buffer), []).append(request.size * BLOCK_BYTES)
    largest = sorted(parts.items(), key=lambda part: -sum(part[1]))
    shown = [f"{name} {f'{len(sizes)} x ' if len(sizes) > 1 else ''}{max(sizes):,} B" for name, sizes in largest[:_NAMED]]
    rest = sum(sum(sizes) for _, sizes in largest[_NAMED:])
    shown += [f"{len(largest) - _NAMED} more {rest:,} B"] if rest else []
    return f"{text}; live at {target_graph.operators[blocks.start + step].name}: {', '.join(shown)}"


def peak(requests: Sequence[BufferRequest]) -> tuple[int, list[BufferRequest]]:
    """The first step at which most is live, and what is live there."""
    steps = sorted({request.birth for request in requests})
    live = {step: [request for request in requests if request.birth <= step <= request.death] for step in steps}
    step = max(steps, key=lambda at: (sum(request.size for request in live[at]), -at))
    return step, live[step]


def _called(target_graph: TargetGraph, blocks: Blocks, buffer: Buffer) -> str:
    """A buffer by its tensor."""
    if buffer.kind == "tensor":
        return f"tensor {target_graph.storages[buffer.of].name}"
    return _WHAT[buffer.kind].format("" if buffer.of < 0 else target_graph.operators[blocks.start + buffer.of].name)


Matrix = NDArray[np.bool_]


def apart(target_graph: TargetGraph, blocks: Blocks, requests: Sequence[BufferRequest], one_block: bool) -> Matrix:
    """bool [n, n]: pairs that must not overlap.  one_block: the window holds one block, so that edges order its nodes."""
    return _apart(target_graph, blocks.start, blocks.stop, tuple([request.touched for request in requests]), one_block)


@lru_cache(maxsize=1 << 10)  # a gene asks whether its buffers fit, and then a segment for their places
def _apart(target_graph: TargetGraph, start: int, stop: int, steps: tuple[int, ...], one_block: bool) -> Matrix:
    """steps: see `BufferRequest.touched`."""
    if not steps:
        return np.zeros((0, 0), np.bool_)
    order, count = _order(target_graph, start, stop), stop - start
    masks = _words([mask or (1 << count) - 1 for mask in steps], count)
    touched = np.unpackbits(masks.view(np.uint8), axis=1, count=count, bitorder="little")
    precedes: Matrix = np.zeros((len(steps), len(steps)), np.bool_)
    if one_block:  # of everyone who touches the buffer; by words: products of matrices so small cost more in threads of BLAS
        of, step = np.nonzero(touched)
        not_behind = np.bitwise_or.reduceat(order.not_after[step], np.searchsorted(of, np.arange(len(steps))), axis=0)
        precedes = np.bitwise_or.reduce(not_behind[:, None] & masks, axis=2) == 0
    alone = touched.sum(1) == 1
    owner = touched.argmax(1)
    lane_of = order.lanes[owner]
    taking_turns = alone[:, None] & alone & (owner[:, None] != owner) & (lane_of[:, None] == lane_of)
    found: Matrix = ~(precedes | precedes.T | taking_turns)
    found.flags.writeable = False
    return found


def _words(masks: Sequence[int], count: int) -> NDArray[np.uint64]:
    """uint64 [n, words]: masks of so many bits, the lowest first; operators may be more than one word has bits."""
    wide = -(-count // 64) * 8
    return np.frombuffer(b"".join([mask.to_bytes(wide, "little") for mask in masks]), np.uint64).reshape(len(masks), wide // 8)


class _Order(NamedTuple):
    """Of a segment's operators: the lane of each; and of each, as bits of uint64 [k, words], which do not come after it along the edges."""

    lanes: NDArray[np.int64]
    not_after: NDArray[np.uint64]


@lru_cache(maxsize=4096)
def _order(target_graph: TargetGraph, start: int, stop: int) -> _Order:
    count, after = stop - start, _descendants(target_graph, start, stop)
    return _Order(lanes(target_graph, start, stop), _words([(1 << count) - 1 & ~mask for mask in after], count))


def _descendants(target_graph: TargetGraph, start: int, stop: int) -> list[int]:
    """Of every operator those that come after it along the edges of the graph, as bits."""
    after = [0] * (stop - start)
    for k in range(stop - start - 1, -1, -1):
        for reader in target_graph.consumers[start + k]:
            if reader < stop:
                after[k] |= after[reader - start] | 1 << reader - start
    return after


OF_ALL = -1  # whose buffers are that all operators of a segment have together
_L1_ALIGN, _UB_ALIGN = L1_ALIGN_BLOCKS, REPEAT_BLOCKS


@dataclass(frozen=True)
class Places:
    """First blocks of buffers, what was asked for in each of the two memories, and the most that each memory holds, in bytes.

    Of L0A, L0B and L0C that is what two tiles take; where there is room for more, there are more (`target.capabilities.tile_slot`).
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
    strips: Sequence[tuple[TargetGraph, Blocks]], plan: SegmentPlan, flip: bool = False, told: bool = True, held: Held = NOTHING
) -> Places | Infeasible:
    """Addresses for a segment, the same ones in all of its strips (one where it has whole rows).

    flip: from the top of L1 and UB (`mirrored`).
    told: whether what does not fit is named, which takes its time.  held: what it leaves to others of the top of L1, and what lies there.
    """
    every = []
    for target_graph, blocks in strips:
        wanted = _wanted(target_graph, plan, blocks)
        if isinstance(wanted, str):
            return Infeasible(named(plan), wanted)
        every.append(wanted)
    target_graph, blocks = strips[0]
    machine, found, peaks, requested = target_graph.machine, {}, {}, {}
    rule, region = apart_rule(target_graph, blocks, plan.sliding, plan.window), region_blocks(machine)
    for memory, requests in _requests(strips, plan, every):
        have = room_blocks(machine, memory) - (held.blocks if memory == Memory.L1 else 0)
        at, need = fit(requests, have, plan.spread, rule) if rule or memory == Memory.L1 else _fit(tuple(requests), have, plan.spread)
        if need > have:
            what = shortage(target_graph, blocks, memory, requests, need, have) if told else f"does not fit {memory.name}"
            return Infeasible(named(plan), what)
        if memory == Memory.L1:
            at |= {Buffer("tensor", storage): place for storage, place in held.at}
            at = {buffer: region + place for buffer, place in at.items()} if region else at
            need += region + held.blocks
        found[memory], peaks[memory.name], requested[memory] = at, need * BLOCK_BYTES, requests
    peaks |= _l0_peaks(every[0])
    peaks |= dict.fromkeys(_absent(machine), 0)
    places = Places(found[Memory.L1], found[Memory.UB], requested, peaks, held)
    return mirrored(machine, places) if flip else places


@lru_cache(maxsize=1 << 13)  # UB of operators does not depend on tensors, so equal layers ask for the same, and so do other blocks of them
def _fit(requests: tuple[BufferRequest, ...], capacity: int, spread: bool) -> tuple[dict[Buffer, int], int]:
    return fit(requests, capacity, spread)


@lru_cache(maxsize=64)
def _absent(machine: Machine) -> tuple[str, ...]:
    """Memories that it does not have."""
    return tuple([memory.name for memory in (*OF_PRODUCTS, Memory.L1, Memory.UB) if not machine.has(memory)])


def asked(strips: Sequence[tuple[TargetGraph, Blocks]], plan: SegmentPlan) -> dict[Memory, Callable[[int], bool]] | None:
    """By memory whether what `place` asks of it fits so many blocks; None where it refuses the plan whatever room there is."""
    every = [wanted for target_graph, blocks in strips if not isinstance(wanted := _wanted(target_graph, plan, blocks), str)]
    if len(every) < len(strips):
        return None
    target_graph, blocks = strips[0]
    rule = apart_rule(target_graph, blocks, plan.sliding, plan.window)
    return {memory: fitting(requests, plan.spread, rule) for memory, requests in _requests(strips, plan, every)}


def _requests(
    strips: Sequence[tuple[TargetGraph, Blocks]], plan: SegmentPlan, asked: Sequence[Sequence[BufferDemand]]
) -> Iterator[tuple[Memory, list[BufferRequest]]]:
    """What a segment asks for in L1, and then in UB.  asked: by its operators in every strip."""
    every = [(*strip, each) for strip, each in zip(strips, asked, strict=True)]
    yield Memory.L1, _largest([l1_requests(target_graph, blocks, plan.prefetch, plan.window, each) for target_graph, blocks, each in every])
    yield Memory.UB, _largest([ub_requests(target_graph, blocks, each) for target_graph, blocks, each in every])


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


def _wanted(target_graph: TargetGraph, plan: SegmentPlan, blocks: Blocks) -> list[BufferDemand] | str:
    """What every operator's tiling asks for; or what makes the plan illegal whatever its addresses."""
    found, operators, start = list[BufferDemand](), target_graph.operators, blocks.start
    for k, (tiling, name, inside) in enumerate(zip(plan.tilings, plan.operators, blocks.inside, strict=True)):
        spec = operators[start + k]
        product = product_of(spec)
        if (product is not None) != isinstance(tiling, ConvTiling):
            return f"{spec.name} needs a {'vector' if product is None else 'conv'} tiling"
        if name != spec.name:
            return f"operator {k} is {name!r}, in the topological order it is {spec.name!r}"
        asked = asked_of(target_graph, spec, tiling, inside)
        if product is not None and isinstance(tiling, ConvTiling):
            why = "" if asked.fits else _not_fitting(target_graph, product, tiling, asked)
            if not why and tiling.weights == "streamed":
                why = _not_streamed(target_graph, product, tiling, blocks, k)
            if why:
                return f"{spec.name}{why}"
        found.append(asked)
    return found


def _not_fitting(target_graph: TargetGraph, product: ConvSpec, tiling: ConvTiling, asked: BufferDemand) -> str:
    """Why a product's tile does not fit."""
    for memory, need, axes in zip(OF_PRODUCTS, asked.tile, ("m k1", "n1 k1", "m n1"), strict=True):
        half = room_blocks(target_graph.machine, memory) // 2
        if need > half:
            size = " x ".join(f"tile_{axis} {getattr(tiling, f'tile_{axis}'):,}" for axis in axes.split())
            return f": a tile needs {need * BLOCK_BYTES:,} B of {memory.name} ({size}), half of it is {half * BLOCK_BYTES:,}"
    step = product.n1_step
    what, n1 = next((what, n1) for what in ("tile_n1", "chunk_n1") if (n1 := getattr(tiling, what)) % step and n1 < product.n1)
    return f": {what} {n1}: {step} n1 are a plane of its result, so accepted: multiples of {step}"


def _not_streamed(target_graph: TargetGraph, product: ConvSpec, tiling: ConvTiling, blocks: Blocks, k: int) -> str:
    """What keeps operator k of a segment from a right operand that comes in chunks, or ''."""
    if product.right is not None and not can_stream(target_graph, blocks.start, k, blocks.held):
        return ": its right operand lies in L1 as a whole, made in this segment or held: weights must be resident"
    if tiling.chunk_k1 < product.k1:
        pixels, have = max(blocks.heights[k], default=0) * product.out_w, room_blocks(target_graph.machine, Memory.L0C) // 2 * 2
        places = target_graph.together * partial_blocks(product.fractal.sum_blocks, pixels, min(tiling.chunk_n1, product.n1), tiling.tile_m)
        if places > have:
            return f": chunks along k keep {places * BLOCK_BYTES:,} B of partial sums, L0C has {have * BLOCK_BYTES:,}"
    return ""


def _l0_peaks(asked: Sequence[BufferDemand]) -> dict[str, int]:
    tiles = [each.tile for each in asked if each.tile] or [(0, 0, 0)]
    a, b, c = tiles[0] if len(tiles) == 1 else map(max, zip(*tiles, strict=True))
    return {"L0A": 2 * BLOCK_BYTES * a, "L0B": 2 * BLOCK_BYTES * b, "L0C": 2 * BLOCK_BYTES * c}


def _iterations(target_graph: TargetGraph, blocks: Blocks) -> int:
    """Every block of every image, in every strip."""
    return blocks.count * target_graph.storages[target_graph.operators[blocks.start].y.storage].n * target_graph.strips


def repeated(target_graph: TargetGraph, blocks: Blocks) -> bool:
    """Whether a segment's operators run more than once."""
    return _iterations(target_graph, blocks) > 1


def apart_rule(target_graph: TargetGraph, blocks: Blocks, sliding: bool, window: Window) -> Apart | None:
    """What `fit` needs to know of a segment's order beside the buffers' lifetimes."""
    return _sliding_rule(target_graph, blocks, window == 1) if sliding else None


@lru_cache(maxsize=4096)  # one object for one rule, so that what is known of it is found again
def _sliding_rule(target_graph: TargetGraph, blocks: Blocks, one_block: bool) -> Apart:
    return lambda requests: apart(target_graph, blocks, requests, one_block)


def slot_counts(target_graph: TargetGraph, blocks: Blocks, prefetch: int, window: Window) -> dict[int, int]:
    """Storage that stays -> slots: `window` of an intermediate, `prefetch` of what is loaded, never more than iterations; 1 if it is held,
    or a run of planes that input passes load.

    A window without limit keeps a slot per iteration of a strip, also of what several operators load and read: the last of them may be
    far behind.
    """
    iterations = _iterations(target_graph, blocks)
    found = {}
    for allocation in blocks.allocations.values():
        if allocation.held or target_graph.storages[allocation.storage].whole:
            found[allocation.storage] = 1
        elif window == "all":
            several = allocation.produced or allocation.birth < allocation.death
            found[allocation.storage] = iterations // target_graph.strips if several else min(prefetch, iterations)
        else:
            found[allocation.storage] = min(window if allocation.produced else prefetch, iterations)
    return found


def l1_requests(
    target_graph: TargetGraph, blocks: Blocks, prefetch: int, window: Window, asked: Sequence[BufferDemand]
) -> list[BufferRequest]:
    """Buffers in L1 of tensors and of weights."""
    requests, again, last = (
        list(tensor_requests(target_graph, blocks, prefetch, window)),
        repeated(target_graph, blocks),
        blocks.stop - blocks.start - 1,
    )
    for k, (_, slots, size, *_) in enumerate(asked):
        requests += weight_requests_of(k, slots, size, last if stays(slots, again) else -1, blocks.until[k])
    return requests


def slot_blocks(target_graph: TargetGraph, allocation: BlockAllocation, slots: int) -> int:
    """Size of one of a storage's slots, or of the ring that holds all of them."""
    storage = target_graph.storages[allocation.storage]
    return rounded(allocation.planes * allocation.high(slots, storage.n) * storage.row_blocks * target_graph.together, _L1_ALIGN)


@lru_cache(maxsize=4096)
def tensor_requests(target_graph: TargetGraph, blocks: Blocks, prefetch: int, window: Window) -> tuple[BufferRequest, ...]:
    """Buffers in L1 of what is loaded (`prefetch` slots) and of intermediates (`window` slots).

    A run of planes that an input pass loads is there for that pass, and with more slots for as many passes before it.
    """
    again = repeated(target_graph, blocks)
    last = blocks.stop - blocks.start - 1
    requests = []
    for storage, slots in slot_counts(target_graph, blocks, prefetch, window).items():
        allocation = blocks.allocations[storage]
        if allocation.held:
            continue
        size = slot_blocks(target_graph, allocation, slots)
        if allocation.cached:
            requests.append(BufferRequest(Buffer("tensor", storage), size, 0, last))
        elif target_graph.storages[storage].whole:
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
def tensor_blocks(target_graph: TargetGraph, blocks: Blocks, prefetch: int, window: Window) -> tuple[list[int], int]:
    """Blocks of `tensor_requests` that are live at each of a segment's operators, and of all of them."""
    requests = tensor_requests(target_graph, blocks, prefetch, window)
    return live(requests, blocks.stop - blocks.start), sum([request.size for request in requests])


def stays(slots: int, again: bool) -> bool:
    """Whether weights in so many buffers stay there from the first time on: all of them in one, of operators that run again."""
    return again and slots == 1


def weight_requests(target_graph: TargetGraph, blocks: Blocks, k: int, tiling: Tiling) -> tuple[BufferRequest, ...]:
    """Buffers in L1 of operator k's weights."""
    slots, size = target_graph.operators[blocks.start + k].weight_slots(tiling)
    last = blocks.stop - blocks.start - 1 if stays(slots, repeated(target_graph, blocks)) else -1
    return weight_requests_of(k, slots, size, last, blocks.until[k])


@lru_cache(maxsize=1 << 14)
def weight_requests_of(k: int, slots: int, size: int, last: int, until: int) -> tuple[BufferRequest, ...]:
    """`slots` buffers of `size` blocks for operator k's weights.  last: step until which they are kept from the first on; -1: k's alone.

    until: see `run.worked`.
    """
    life = (0, last) if last >= 0 else _scratch(k, until)
    return tuple(BufferRequest(Buffer("weights", k, slot), size, *life) for slot in range(slots))


def _scratch(k: int, until: int) -> tuple[int, int, int]:
    """Life of what only operator k touches, and only while it works."""
    return k, until, 1 << k | 1 << until


def ub_requests(target_graph: TargetGraph, blocks: Blocks, asked: Sequence[BufferDemand]) -> list[BufferRequest]:
    """Buffers in UB of every operator: its constants and two slots of its tile, and of its residual's."""
    last = blocks.stop - blocks.start - 1
    kept = last if repeated(target_graph, blocks) else -1
    requests = list(chain.from_iterable([ub_requests_of(k, each.buffers, kept, blocks.until[k]) for k, each in enumerate(asked)]))
    return pooled(requests, last) if any(each.pools for each in asked) else requests


def own_requests(target_graph: TargetGraph, blocks: Blocks, k: int, tiling: Tiling) -> tuple[BufferRequest, ...]:
    """Buffers in UB of operator k, before what it has together with others is `pooled`."""
    asked = asked_of(target_graph, target_graph.operators[blocks.start + k], tiling, blocks.inside[k])
    return ub_requests_of(k, asked.buffers, blocks.stop - blocks.start - 1 if repeated(target_graph, blocks) else -1, blocks.until[k])


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
def ub_requests_of(k: int, buffers: tuple[UbBuffers, ...], last: int, until: int) -> tuple[BufferRequest, ...]:
    """Of operator k.  last: step until which what is kept lives from the first on; -1: it lives while k works.  until: see `run.worked`."""
    requests = []
    for kind, slots, size, kept in buffers:
        life = (0, last) if kept and last >= 0 else _scratch(k, until)
        requests += [BufferRequest(Buffer(kind, k, slot), size, *life) for slot in range(slots)]
    return tuple(requests)
