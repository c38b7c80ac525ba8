"""Decoder: from a gene to the plan of its segment, by fixed rules that choose tilings and resident weights so that L1 and UB hold them.

Number of blocks in a window (`formula_window`): W = max(1, min(ceil(latency / II), floor((capacity - resident) / live bytes per block))).

latency: cycles of a block in all operators, one after the other.  II, the initiation interval: cycles per block of the busiest of the two
lanes and the bus.  resident: bytes of L1 taken with any window.  live bytes: bytes of L1 that one more block in the window takes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import chain, compress
from typing import NamedTuple

from compiler.cost.features import operator_cycles
from compiler.cost.ranking import CHUNK_BUDGETS, LAST_BUDGETS, conv_tiling
from compiler.ops.conv import product_of
from compiler.ops.cost_class import CostClass, cost_class_of
from compiler.plan.plan import Infeasible, Plan, SegmentPlan, Tiling, Window
from compiler.schedule.sliding_window import load_cycles
from compiler.segment.allocator import fits, packs_within
from compiler.segment.blocks import Blocks
from compiler.segment.buffer_demand import BufferDemand, tiling_demand
from compiler.segment.engine_lanes import lanes
from compiler.segment.l1_limits import fits_l1
from compiler.segment.memory_plan import (
    conflict_rule,
    merge_pooled,
    runs_repeatedly,
    tensor_blocks,
    tensor_requests,
    ub_requests_of,
    weight_requests,
    weight_requests_of,
    weights_stay,
)
from compiler.segment.operator_run import can_stream
from compiler.segment.persistent import isolated_layout
from compiler.segment.pool_fusion import feed_refusal, tiling_refusal
from compiler.segment.segment import Outline, StripBlocks, largest_strip
from compiler.segment.segment_transform import RewrittenSegment
from compiler.segment.transforms import TRANSFORMS
from compiler.space.fit_ub import fitted
from compiler.space.gene import (
    ALL,
    FORMULA,
    PINS,
    UB_SLOTS,
    Gene,
    Genome,
    bits,
    copied,
    keeps_weights,
    outline,
    pinned_tilings,
    tiling_count,
    vector_choice,
    working_cores,
)
from compiler.space.persistent import FREE, Space, spaces
from compiler.space.shared_memory import with_shared
from compiler.target.capabilities import room_blocks
from compiler.target.level_limits import limited_to, memory_grants
from compiler.target.target_graph import TargetGraph
from simulator.npu.parts import Memory


def formula_window(strip: StripBlocks, prefetch: int, tilings: Sequence[Tiling], capacity: int) -> int:
    """W of a segment with streamed weights, at most its iterations.  tilings: of all operators.  capacity: blocks of L1."""
    target_graph, blocks = strip
    iterations = blocks.count * target_graph.storages[target_graph.operators[blocks.start].y.storage].n
    work = [0.0, 0.0, float(load_cycles(target_graph, blocks, range(blocks.count)).sum())]
    for k, lane in enumerate(lanes(target_graph, blocks.start, blocks.stop).tolist()):
        work[lane] += operator_cycles(strip, k, tilings[k]) * target_graph.together
    latency, interval = work[0] + work[1], max(work)
    needed = -int(-latency // interval) if interval else 1
    chunks = max(sum(request.size for request in weight_requests(target_graph, blocks, k, tiling)) for k, tiling in enumerate(tilings))
    one, two = (sum(request.size for request in tensor_requests(target_graph, blocks, prefetch, window)) for window in (1, 2))
    live = two - one
    room = 1 + (capacity - chunks - one) // live if live else needed
    return max(1, min(needed, room, iterations))


@lru_cache(maxsize=1 << 14)  # a search places, estimates and measures a gene: every second call is a repeat
def decode(target_graph: TargetGraph, gene: Gene, held: int = 0, beside: int = 0) -> SegmentPlan | None:
    """Plan of a gene; None if L1 or UB cannot hold its buffers.

    held: persistent storages, as bits, that the segment accesses.  beside: blocks of L1 that all persistent tensors take during the segment
    (`space.persistent`).

    Weights stay if the gene asks for it, smallest weights first, while L1 has room; other weights are streamed.  The right operand of a
    product of two tensors stays as a whole if it fits.  If UB cannot hold the tiles that `choices` name, the tilings with the best
    estimates replace them, and are split until they fit (`space.fit_ub`).  Pinned tilings do not change.  The gene's grant limits all
    memories.  All passes have the tilings of the last pass.
    """
    # held tensors and ends of L1 matter only in a program; the order of passes depends on the window, so the formula cannot choose it
    in_order = gene.window == FORMULA and (gene.passes > 1 or gene.input_passes > 1)
    if gene.held or gene.same_end or in_order:
        plain = gene._replace(held=0, same_end=False, window=1 if in_order else gene.window)
        plan = decode(target_graph, plain, held, beside)
        return plan if plan is None or not gene.same_end else plan.model_copy(update={"same_end": True})
    expansion = expand(limited_to(target_graph, memory_grants(target_graph.machine)[gene.grant]), gene, held)
    if expansion is None or (gene.parts and target_graph.machine.shared is not None):
        return None
    target_graph, gene, segments = expansion
    if gene.pinned:
        plan = _pinned(target_graph, gene, held, beside)
    else:
        plan = _fitting(target_graph, gene, segments[-1].leaders if segments else tuple(range(gene.stop - gene.start)), held, beside)
    for segment in reversed(segments):
        plan = plan and segment.contract(plan)
    return plan


def expand(target_graph: TargetGraph, gene: Gene, held: int = 0) -> tuple[TargetGraph, Gene, list[RewrittenSegment]] | None:
    """Graph and gene after all transforms, and the segment after each transform, in order; None if a transform is impossible.

    held: persistent storages, as bits.
    """
    segments = list[RewrittenSegment]()
    for transform in TRANSFORMS:
        if transform.wanted(gene):
            segment = transform.apply(target_graph, gene, gene.start, gene.stop)
            if isinstance(segment, Infeasible) or held & segment.loaded:
                return None
            segments.append(segment)
            target_graph, gene = segment.target_graph, _expanded(gene, segment)
    return target_graph, gene, segments


def _expanded(gene: Gene, segment: RewrittenSegment) -> Gene:
    """Gene of the new operators; parts on VECTOR have choice 0."""
    cached, choices = bits(gene), tuple([gene.choices[place] if place < len(gene.choices) else 0 for place in segment.tilings])
    pinned = *segment.tilings, *range(max(segment.tilings) + 1, tiling_count(gene))  # parts on VECTOR that a later transform makes
    return gene._replace(
        stop=gene.start + len(segment.order),
        choices=choices if any(choices) else (),
        pinned=tuple([pin for place in pinned for pin in gene.pinned[PINS * place : PINS * (place + 1)]]),
        cached=sum([(cached >> of & 1) << index for index, of in enumerate(segment.order)]),
        **{key: Gene._field_defaults[key] for key in segment.asked},
    )


def _fitting(target_graph: TargetGraph, gene: Gene, leaders: Sequence[int], held: int, beside: int) -> SegmentPlan | None:
    """Plan of a gene without pins.  leaders: per operator, the operator whose tiling it has."""
    divided = outline(target_graph, gene, held)
    strip = largest_strip(target_graph, divided)
    if isinstance(strip, Infeasible):
        return None
    if divided.channels == 1:  # with one part of the channels, a plan is split by rows
        gene = gene._replace(split="rows", parts=0)
    fed = _fed(target_graph, gene, divided, leaders, held)
    if fed:
        strip = StripBlocks(strip.target_graph, divided.blocks_of(strip.target_graph, 0, fed))
        fitting = _Fitting(strip, gene, leaders, beside)
        if fitting.fill() and fitting.fits_ub() and fitting.feeds():
            return fitting.plan(fitting.tilings)
        return _fitting(target_graph, _unfed(gene, fed), leaders, held, beside)
    for streamed in _in_chunks(strip.target_graph, gene, leaders, held):
        if streamed:
            strip = StripBlocks(strip.target_graph, divided.blocks_of(strip.target_graph, streamed))
        fitting = _Fitting(strip, gene, leaders, beside)
        if not fitting.fill():
            continue
        if fitting.fits_ub():
            return fitting.plan(fitting.tilings)
        fitting = _Fitting(strip, gene._replace(choices=()), leaders, beside)
        if fitting.fill() and (smaller := fitted(*strip, fitting.tilings, fitting.apart, leaders)) is not None:
            return fitting.plan(smaller)
    return None


def _fed(target_graph: TargetGraph, gene: Gene, divided: Outline, leaders: Sequence[int], held: int) -> int:
    """Pools, as bits, that the gene wants fed and that can be fed."""
    undivided = divided.channels == divided.columns == 1 and tuple(leaders) == tuple(range(len(leaders)))
    if max(gene.choices, default=0) < len(UB_SLOTS) or not undivided:
        return 0
    fed = 0
    for k, choice in enumerate(gene.choices):
        spec = target_graph.operators[gene.start + k]
        if choice >= len(UB_SLOTS) and spec.runs_on != "CUBE" and not held >> spec.reads[0].storage & 1:
            fed |= (not feed_refusal(target_graph, gene.start, gene.start + k)) << k
    return fed


def _unfed(gene: Gene, fed: int) -> Gene:
    choices = tuple([choice % len(UB_SLOTS) if fed >> k & 1 else choice for k, choice in enumerate(gene.choices)])
    return gene._replace(choices=choices if any(choices) else ())


def _pinned(target_graph: TargetGraph, gene: Gene, held: int, beside: int) -> SegmentPlan | None:
    """Plan with the pinned tilings, if it is legal and fits every core."""
    tilings, caching = pinned_tilings(gene.pinned), [bool(bits(gene) >> k & 1) for k in range(gene.stop - gene.start)]
    for window in _windows(target_graph, gene, tilings, held, beside):
        plan = _planned(target_graph, gene, tilings, window, caching, held)
        if fits_l1(target_graph, plan, gene.start, isolated_layout(target_graph, held)._replace(blocks=beside)):
            return plan
    return None


def _windows(target_graph: TargetGraph, gene: Gene, tilings: Sequence[Tiling], held: int, beside: int) -> tuple[Window, ...]:
    """Windows to try for a gene with pins, in order."""
    if gene.window != FORMULA:
        return ("all" if gene.window == ALL else gene.window,)
    strip = largest_strip(target_graph, outline(target_graph, gene, held))
    capacity = room_blocks(target_graph.machine, Memory.L1) - beside
    return (1,) if isinstance(strip, Infeasible) else (formula_window(strip, gene.prefetch, tilings, capacity), 1)


def _in_chunks(target_graph: TargetGraph, gene: Gene, leaders: Sequence[int], held: int) -> Iterator[int]:
    """Sets of operators, as bits, whose right operand comes in chunks: none, then the largest operand, the two largest operands, ...

    Operators with the same leader are in a set together, because they have one tiling.
    """
    yield 0
    operators = target_graph.operators[gene.start : gene.stop]
    blocks = {k: spec.right_blocks for k, spec in enumerate(operators) if spec.right is not None}
    streamed = 0
    for k in sorted(blocks, key=lambda k: (-blocks[k], k)):
        alike = [operator for operator in blocks if leaders[operator] == leaders[k]]
        if not streamed >> k & 1 and all(can_stream(target_graph, gene.start, operator, held) for operator in alike):
            streamed |= sum(1 << operator for operator in alike)
            yield streamed


@lru_cache(maxsize=1 << 16)
def _asked(kind: CostClass, rows: int, inside: bool, whole: bool, budget: int, choice: int, fed: bool) -> BufferDemand | None:
    """Demand of an operator's tiling number `choice` for blocks of `rows` rows; None if there is no such tiling.

    inside: whether its result stays on chip.  whole: whether weights or a right operand stay in L1; else they come in chunks of at most
    `budget` blocks.  fed: see `gene.vector_choice`.
    """
    target_graph, spec = kind.target_graph, kind.spec
    product = product_of(spec)
    if product is not None:
        tiling: Tiling | None = conv_tiling(target_graph, product, rows, inside, whole, budget, choice)
    else:
        tiling = vector_choice(target_graph, spec, rows, choice, fed)
    if tiling is None:
        return None
    return tiling_demand(kind, tiling, inside)


class _Fitting:
    """Tilings of a segment during their choice; the tilings in `taken` always fit L1."""

    def __init__(self, strip: StripBlocks, gene: Gene, leaders: Sequence[int], beside: int) -> None:
        self.strip, self.gene, self.leaders = strip, gene, leaders
        self.target_graph, self.layout = target_graph, layout = strip
        self.operators = range(gene.stop - gene.start)
        self.rows = [layout.rows(k) for k in self.operators]
        self.run = _run(target_graph, gene.start, gene.stop)
        self.have = room_blocks(target_graph.machine, Memory.L1) - beside
        self.repeated = runs_repeatedly(target_graph, layout)
        self.taken: dict[int, BufferDemand] = {}  # in the operators' order
        self._slots(1 if gene.window == FORMULA else "all" if gene.window == ALL else gene.window)

    def _slots(self, window: Window) -> None:
        target_graph, layout, gene = self.target_graph, self.layout, self.gene
        self.window = window
        self.allocations = tensor_requests(target_graph, layout, gene.prefetch, window)
        self.live, held = tensor_blocks(target_graph, layout, gene.prefetch, window)
        self.room = self.have - held
        self.apart = conflict_rule(target_graph, layout, gene.sliding, window)

    @property
    def tilings(self) -> tuple[Tiling, ...]:
        return tuple([self.taken[k].tiling for k in self.operators])

    def fill(self) -> bool:
        """Take tilings of all operators, with as many resident weights as fit; False if no tilings fit."""
        by_size = self.run.weighted if keeps_weights(self.target_graph, self.gene) else ()
        every = {k: k in self.run.weighted for k in self.operators}
        if by_size and self._all_stay() and self.take(every, 0):
            return True
        streamed = dict.fromkeys((*reversed(self.run.weighted), *self.operators), False)  # largest weights first: most likely too large
        for budget in CHUNK_BUDGETS[self.gene.chunk :]:
            if not self.take(streamed, budget):
                continue
            if self.gene.window == FORMULA:
                self.widen()
            for of in dict.fromkeys([self.leaders[k] for k in by_size]):
                if not self.take({k: True for k in by_size if self.leaders[k] == of}, budget):
                    break
            return True
        # two slots of the smallest chunk may need more than all of the weights
        return self.take(every, CHUNK_BUDGETS[-1]) or any(self.take(streamed, budget * self.run.least) for budget in LAST_BUDGETS)

    def _all_stay(self) -> bool:
        """Whether all weights fit for certain, without a trial with chunks.  L1 then has room at every step of `fill`, which takes weights
        one by one while other operators have the largest chunks; and a chunk with all of k is within the budget."""
        if self.gene.window == FORMULA or self.layout.streamed:
            return False
        budget = CHUNK_BUDGETS[self.gene.chunk]
        sizes = self.run.sizes
        if max(size.deep for size in sizes) > budget:
            return False
        needed = peak = sum([2 * min(budget, size.group) for size in sizes])
        for size in sizes:
            needed += size.size - 2 * min(budget, size.group)
            peak = max(peak, needed)
        return peak <= self.room

    def fits_ub(self) -> bool:
        capacity = room_blocks(self.target_graph.machine, Memory.UB)
        if sum([asked.ub_blocks for asked in self.taken.values()]) <= capacity:
            return True
        last = len(self.operators) - 1 if self.repeated else -1
        requests = [ub_requests_of(k, asked.ub_buffers, last, self.layout.until[k]) for k, asked in self.taken.items()]
        return fits(tuple(merge_pooled(list(chain.from_iterable(requests)), len(self.operators) - 1)), capacity, self.apart)

    def feeds(self) -> bool:
        """Whether the tilings taken allow every fed pool to be fed."""
        fed = [k for k in self.operators if self.layout.fed >> k & 1]
        return not any(tiling_refusal(self.target_graph, self.gene.start, self.tilings, k) for k in fed)

    def widen(self) -> None:
        """Set the window of the formula if its slots fit beside the tilings taken, else one slot."""
        self._slots(formula_window(self.strip, self.gene.prefetch, self.tilings, self.have))
        if not self.take({}, 0):
            self._slots(1)

    def take(self, resident: dict[int, bool], budget: int) -> bool:
        """Take tilings of operators with resident or streamed weights; False, without a change, if they do not fit."""
        taken = self.taken.copy()
        for k, stays in resident.items():
            asked = self._asked(k, stays, budget)
            # operators that do not fit alone need no further test
            if asked is None or self.live[k] + asked.weight_slots * asked.weight_slot_blocks > self.have:
                return False
            taken[k] = asked
        taken = {k: taken[k] for k in self.operators}
        if not self._fits_l1(taken):
            return False
        self.taken = taken
        return True

    def _fits_l1(self, taken: dict[int, BufferDemand]) -> bool:
        """Whether tilings fit L1.  Two sums mostly decide: all buffers, and buffers that are live at one step in any case."""
        every = [asked.weight_slots * asked.weight_slot_blocks for asked in taken.values()]
        if sum(every) <= self.room:
            return True
        stays = [weights_stay(asked.weight_slots, self.repeated) for asked in taken.values()]
        always = sum(compress(every, stays))
        if max([live + (0 if stay else size) for live, size, stay in zip(self.live, every, stays, strict=True)]) + always > self.have:
            return False
        last = len(self.operators) - 1
        asks = zip(taken.items(), stays, strict=True)
        until = self.layout.until
        weights = [
            weight_requests_of(k, asked.weight_slots, asked.weight_slot_blocks, last if stay else -1, until[k])
            for (k, asked), stay in asks
            if asked.weight_slots
        ]
        return packs_within((*self.allocations, *chain.from_iterable(weights)), self.have, self.apart)

    def _asked(self, k: int, resident: bool, budget: int) -> BufferDemand | None:
        gene, of = self.gene, self.leaders[k]
        feeds = self.layout.until[of] != of
        stays = resident or feeds or not (of in self.run.weighted or self.layout.streamed >> of & 1)
        choice = gene.choices[of] if gene.choices else 0
        fed, inside = bool(self.layout.fed >> of & 1), self.layout.inside
        asked = _asked(self.run.kinds[of], self.rows[of], inside[of], stays, 0 if stays else budget, choice, fed)
        return asked if of == k or asked is None else tiling_demand(self.run.kinds[k], asked.tiling, inside[k])

    def plan(self, tilings: Sequence[Tiling]) -> SegmentPlan:
        """Plan with `tilings`, which differ from the tilings taken if UB is too small for them."""
        return _planned(
            self.target_graph, self.gene, tilings, self.window, _caching(self.target_graph, self.gene, self.layout), self.layout.held
        )


def _planned(
    target_graph: TargetGraph, gene: Gene, tilings: Sequence[Tiling], window: Window, caching: Sequence[bool], held: int
) -> SegmentPlan:
    cores = working_cores(target_graph, gene)
    return _run(target_graph, gene.start, gene.stop).plain.model_copy(
        update=copied(gene)
        | {
            "parts": gene.parts if gene.parts < len(cores) else 0,
            "window": window,
            "tilings": tuple(tilings),
            "halo": tuple(["cache" if used else "recompute" for used in caching]) if any(caching) else (),
            "cores": cores,
        }
        | (
            {"held": tuple(sorted(target_graph.storages[storage].name for storage in range(held.bit_length()) if held >> storage & 1))}
            if held
            else {}
        )
    )


class _Weights(NamedTuple):
    """Blocks of an operator's weights.  size: all weights.  group: weights of a group.  deep: all of k for one fractal of channels."""

    size: int
    group: int
    deep: int


class _Run(NamedTuple):
    """Common part of all plans of a run of operators.

    weighted: operators with weights, smallest weights first.  sizes: their weights, in the same order.  least: blocks of the smallest chunk
    that every product can have.  kinds: cost class of every operator.  plain: plan that has only the names of the operators.
    """

    weighted: tuple[int, ...]
    sizes: tuple[_Weights, ...]
    least: int
    kinds: tuple[CostClass, ...]
    plain: SegmentPlan


@lru_cache(maxsize=4096)
def _run(target_graph: TargetGraph, start: int, stop: int) -> _Run:
    operators = target_graph.operators[start:stop]
    least = [product.fractal.weight_blocks for product in map(product_of, operators) if product is not None]
    sizes = {
        k: _Weights(
            product.weight_blocks, product.n1 * product.k1 * product.fractal.weight_blocks, product.k1 * product.fractal.weight_blocks
        )
        for k, product in enumerate(map(product_of, operators))
        if product is not None and product.weight_blocks
    }
    weighted = sorted(sizes, key=lambda k: (sizes[k].size, k))
    return _Run(
        tuple(weighted),
        tuple(sizes[k] for k in weighted),
        max(least, default=1),
        tuple(cost_class_of(target_graph, spec) for spec in operators),
        SegmentPlan.model_construct(operators=tuple(spec.name for spec in operators), tilings=()),
    )


def _caching(target_graph: TargetGraph, gene: Gene, layout: Blocks) -> list[bool]:
    """Per operator, whether it caches a halo; operators without a halo do not, so that equal plans have equal keys."""
    mask = bits(gene)
    if not mask:
        return []
    rings = {storage for storage, allocation in layout.allocations.items() if allocation.cached}
    return [
        bool(mask >> k & 1) and any(read.storage in rings for read in spec.reads)
        for k, spec in enumerate(target_graph.operators[gene.start : gene.stop])
    ]


def plan_of(target_graph: TargetGraph, segments: list[SegmentPlan]) -> Plan:
    """Plan of a target graph.  segments: plans of its segments, in order."""
    return Plan.model_construct(
        version=1,
        model=target_graph.graph.digest,
        machine=target_graph.machine_digest,
        dtype=target_graph.dtype.name,  # type: ignore[arg-type]
        segments=tuple(segments),
    )


def sharing(target_graph: TargetGraph, genes: Sequence[Gene]) -> TargetGraph:
    """Target graph within the shared memory of a program: the smallest shared memory that the grant of a gene names."""
    grants = memory_grants(target_graph.machine)
    if len(grants) == 1:
        return target_graph
    return limited_to(
        target_graph, target_graph.machine.full_grant._replace(shared_bytes=min([grants[gene.grant].shared_bytes for gene in genes]))
    )


def spaces_of(target_graph: TargetGraph, genome: Genome) -> list[Space]:
    """Space of every segment of a program under the persistent tensors."""
    if all(not gene.held for gene in genome):
        return [FREE] * len(genome)
    return spaces(target_graph, genome, lambda gene, space: decode(target_graph, gene, *space) is not None)


def decode_all(target_graph: TargetGraph, genome: Genome) -> Plan | Infeasible:
    """Plan of a genome, or the first segment that does not fit."""
    segments = []
    for index, (gene, space) in enumerate(zip(genome, spaces_of(target_graph, genome), strict=True)):
        plan = decode(target_graph, gene, *space)
        if plan is None:
            names = f"{target_graph.operators[gene.start].name}..{target_graph.operators[gene.stop - 1].name}"
            sizes = target_graph.machine.buffers_bytes
            strips = f" of {gene.columns} strips" if gene.columns > 1 else ""
            ub = f" and {sizes.UB:,} B of UB" if sizes.UB else ""
            reason = f"no tiling in {gene.blocks} blocks{strips} fits {sizes.L1:,} B of L1{ub}"
            return Infeasible(f"segment {index}, {names}", reason)
        segments.append(plan)
    starts = [gene.start for gene in genome]
    return plan_of(target_graph, with_shared(sharing(target_graph, genome), list(zip(segments, starts, strict=True))))
