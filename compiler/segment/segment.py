"""What a plan's segment is on the cores that run it: the one place where a plan and a unit become shares, strips, blocks and memory.

| step    | from -> to                                   | by                                                                  |
|---------|----------------------------------------------|---------------------------------------------------------------------|
| images  | unit -> that of groups of images             | `segment.batch_tiles`; as it is where a block is of one image            |
| passes  | unit and plan -> those of all passes         | `segment.channel_splits`; as they are where there is one pass               |
| engines | unit and plan -> parts of two engines        | `segment.engine_split`; as they are where VECTOR makes no products       |
| parts   | unit -> a unit per run of output channels    | `segment.core_channels`; one part where cores share rows, or there is one |
| strips  | part -> a unit per run of columns            | `segment.strips`; one strip where rows are whole                    |
| blocks  | strip -> rows of every block, what stays     | `segment.blocks`, for right operands that are streamed              |
| shares  | blocks of all images -> a run for each core  | of iterations; of a part all of them                                |
| memory  | strips of a share -> addresses               | `segment.memory_plan`, the same ones in all strips                        |

A gene has no tilings yet, so it asks with an `Outline`, of which a plan has one too.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from compiler.plan.plan import Infeasible, SegmentPlan
from compiler.segment.batch_tiles import tile_batch
from compiler.segment.blocks import Blocks, cut, dealt
from compiler.segment.channel_splits import passes
from compiler.segment.core_channels import channel_parts, largest
from compiler.segment.engine_split import divided, planes_of
from compiler.segment.memory_plan import Places, named, place, slot_counts
from compiler.segment.operator_run import streamed_rights
from compiler.segment.persistent import Held, alone, held_storages
from compiler.segment.pool_fusion import fed_of
from compiler.segment.strips import strips, widest
from compiler.target.target_graph import TargetGraph


class Outline(NamedTuple):
    """What decides shares, strips and blocks of operators [start, stop), whatever their tilings.

    channels: parts of the output channels.  columns: strips.  blocks: of rows.  dealt: cores to which the iterations are dealt.
    halo: operators, as bits, that cache the halo of what they read.  held: storages, as bits, that lie whole in L1 (`segment.persistent`).
    """

    start: int
    stop: int
    channels: int = 1
    columns: int = 1
    blocks: int = 1
    dealt: int = 1
    halo: int = 0
    held: int = 0

    def blocks_of(self, strip: TargetGraph, streamed: int = 0, fed: int = 0) -> Blocks:
        """The blocks of a strip.

        streamed: operators, as bits, whose right operand comes in chunks.  fed: those that are (`segment.pool_fusion`).
        """
        return cut(strip, self.start, self.stop, self.blocks, self.halo, self.dealt, streamed, self.held, fed)


class StripBlocks(NamedTuple):
    """A strip of a segment, all of it where rows are whole: the unit of its tensors and operators, and its blocks."""

    target_graph: TargetGraph
    blocks: Blocks

    def residence(self, k: int) -> tuple[tuple[bool, bool], ...]:
        """Of every operand of operator k: whether the segment has it in L1, and whether it makes it there."""
        kept, found = self.blocks.allocations, []
        if self.blocks.fed >> k & 1:
            return ((True, True),)
        for read in self.target_graph.operators[self.blocks.start + k].reads:
            allocation = kept.get(read.storage)
            found.append((False, False) if allocation is None else (True, allocation.makers > 0))
        if self.blocks.streamed >> k & 1:
            found[1] = False, False  # chunks come from DDR, whatever else is in L1
        return tuple(found)


class CoreShare(NamedTuple):
    """What one core runs: iterations (every block of every image) of each of its strips."""

    strips: tuple[StripBlocks, ...]
    iterations: range


def largest_strip(target_graph: TargetGraph, outline: Outline) -> StripBlocks | Infeasible:
    """The largest part as wide as its widest strip, all right operands in L1: what fits for it fits for all."""
    start, stop, channels, *_ = outline
    parts = channel_parts(target_graph, start, stop, channels)
    if isinstance(parts, Infeasible):
        return parts
    strip = widest(parts[0] if channels == 1 else largest(parts, start, stop), start, stop, outline.columns)
    return strip if isinstance(strip, Infeasible) else StripBlocks(strip, outline.blocks_of(strip))


class Segment(NamedTuple):
    """A segment as it is made.

    plan: of all passes.  parts: a unit for each, whose operators `outline` counts; cuts: those of its strips.  fed: operators, as bits.
    """

    plan: SegmentPlan
    outline: Outline
    parts: tuple[TargetGraph, ...]
    cuts: tuple[tuple[TargetGraph, ...], ...]
    fed: int = 0

    @classmethod
    def of(cls, target_graph: TargetGraph, plan: SegmentPlan, start: int) -> Segment | Infeasible:
        """The segment whose first operator is `start`; why not where its channels or columns cannot be split so."""
        if plan.images > 1:
            together = _of_images(target_graph, plan)
            if isinstance(together, Infeasible):
                return together
            target_graph = together
        if plan.passes > 1 or plan.input_passes > 1:
            inside = _in_passes(target_graph, plan, start)
            if isinstance(inside, Infeasible):
                return inside
            target_graph, plan = inside
        if plan.on_vector:
            shared = _on_engines(target_graph, plan, start)
            if isinstance(shared, Infeasible):
                return shared
            target_graph, plan = shared
        stop = start + len(plan.operators)
        held = held_storages(target_graph, plan, start)
        if isinstance(held, Infeasible):
            return held
        outline = Outline(start, stop, plan.channels, plan.columns, plan.blocks, plan.dealt, plan.caching, held)
        found = _cut(target_graph, start, stop, outline.channels, outline.columns)
        fed = fed_of(target_graph, start, plan.tilings, outline.channels > 1 or outline.columns > 1, held)
        if isinstance(found, Infeasible):
            return _refused(plan, found)
        if isinstance(fed, Infeasible):
            return _refused(plan, fed)
        return cls(plan, outline, *found, fed)

    @property
    def largest(self) -> int:
        """The number of the part with the most channels, the first of equals."""
        return self.parts.index(largest(self.parts, self.outline.start, self.outline.stop)) if len(self.parts) > 1 else 0

    def streamed(self, part: int) -> int:
        """Operators of a part, as bits, whose right operand comes in chunks."""
        return streamed_rights(self.parts[part], self.outline.start, self.plan.tilings, self.outline.held)

    def strips(self, part: int) -> tuple[StripBlocks, ...]:
        """All strips of a part."""
        blocks_of, streamed = self.outline.blocks_of, self.streamed(part)
        return tuple([StripBlocks(strip, blocks_of(strip, streamed, self.fed)) for strip in self.cuts[part]])

    def widest(self) -> StripBlocks:
        """The largest part as wide as its widest strip."""
        target_graph, outline = self.parts[self.largest], self.outline
        strip = widest(target_graph, outline.start, outline.stop, outline.columns)
        assert not isinstance(strip, Infeasible), "`of` refuses what has none"
        return StripBlocks(strip, outline.blocks_of(strip, self.streamed(self.largest), self.fed))

    def share(self, core: int) -> CoreShare:
        """What the core at this place among the plan's has to do: its part of the channels, or a run of the iterations of all of them."""
        part = core if len(self.parts) > 1 else 0
        mine = self.strips(part)
        target_graph = mine[0].target_graph
        every = target_graph.storages[target_graph.operators[self.outline.start].y.storage].n * self.outline.blocks
        return CoreShare(mine, dealt(every, (core - part, self.outline.dealt)))

    def slots(self, strip: StripBlocks) -> dict[int, int]:
        """How many slots every tensor that stays in L1 has (`segment.memory_plan.slot_counts`)."""
        return slot_counts(strip.target_graph, strip.blocks, self.plan.prefetch, self.plan.window)

    def memory(self, share: CoreShare, flip: bool = False, told: bool = True, held: Held | None = None) -> Places | Infeasible:
        """Addresses in L1 and UB for a share, or why they do not suffice.  flip, told: see `segment.memory_plan.place`.

        held: where a program has what lies whole in L1; None: as if nobody else were there.
        """
        return place(share.strips, self.plan, flip, told, held or alone(share.strips[0].target_graph, self.outline.held))


def _of_images(target_graph: TargetGraph, plan: SegmentPlan) -> TargetGraph | Infeasible:
    """The unit of the images of a block."""
    for what, there in ((f"{plan.blocks} blocks", plan.blocks > 1), ("tensors held", bool(plan.held))):
        if there:
            return Infeasible(named(plan), f"{plan.images} images in a block and {what}: one of the two is accepted")
    found = tile_batch(target_graph, plan.images)
    return _refused(plan, found) if isinstance(found, Infeasible) else found


def _in_passes(target_graph: TargetGraph, plan: SegmentPlan, start: int) -> tuple[TargetGraph, SegmentPlan] | Infeasible:
    """The unit and the plan of all passes."""
    for what, there in (
        ("channels shared by cores", plan.channels > 1),
        ("staged weights", bool(plan.staged)),
        ("channels on VECTOR", bool(plan.on_vector)),
    ):
        if there:
            return Infeasible(named(plan), f"{plan.passes * plan.input_passes} passes and {what}: one of the two is accepted")
    found = passes(target_graph, start, start + len(plan.operators), plan.passes, plan.input_passes, plan.window != 1)
    if isinstance(found, Infeasible):
        return _refused(plan, found)
    both = [storage.name for at, storage in enumerate(target_graph.storages) if found.loaded >> at & 1 and storage.name in plan.held]
    if both:
        return Infeasible(named(plan), f"{both[0]!r} held, and loaded in {plan.input_passes} input passes: one of the two is accepted")
    return found.target_graph, found.unrolled(plan)


def _on_engines(target_graph: TargetGraph, plan: SegmentPlan, start: int) -> tuple[TargetGraph, SegmentPlan] | Infeasible:
    """The unit and the plan of all parts."""
    for what, there in (("channels shared by cores", plan.channels > 1), ("staged weights", bool(plan.staged))):
        if there:
            return Infeasible(named(plan), f"channels on VECTOR and {what}: one of the two is accepted")
    found = divided(target_graph, start, planes_of(plan))
    return _refused(plan, found) if isinstance(found, Infeasible) else (found.target_graph, found.divided(plan))


@lru_cache(maxsize=4096)
def _cut(
    target_graph: TargetGraph, start: int, stop: int, channels: int, columns: int
) -> tuple[tuple[TargetGraph, ...], tuple[tuple[TargetGraph, ...], ...]] | Infeasible:
    """Parts, and the strips of each."""
    parts = channel_parts(target_graph, start, stop, channels)
    if isinstance(parts, Infeasible):
        return parts
    cuts = []
    for part in parts:
        found = strips(part, start, stop, columns)
        if isinstance(found, Infeasible):
            return found
        cuts.append(found)
    return parts, tuple(cuts)


def _refused(plan: SegmentPlan, why: Infeasible) -> Infeasible:
    return Infeasible(named(plan), f"{why.where}: {why.what}")
