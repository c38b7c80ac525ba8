"""Segment of a plan on its cores: the one place where a plan and a target graph become shares, strips, blocks and memory.

| step       | from -> to                                    | by                                                                     |
|------------|-----------------------------------------------|------------------------------------------------------------------------|
| transforms | graph and plan -> graph and plan              | `segment.transforms`, which replace operators by other operators       |
| parts      | graph -> a graph per part of output channels  | `segment.core_channels`; one part for one core, or if cores share rows |
| strips     | part -> a graph per range of columns          | `segment.strips`; one strip for full rows                              |
| blocks     | strip -> rows of every block, residence       | `segment.blocks`; depends on the right operands that are streamed      |
| shares     | iterations -> a range for each core           | `segment.blocks`; among the cores of a part                            |
| memory     | strips of a share -> addresses                | `segment.memory_plan`; the same addresses in all strips                |

A plan has an `Outline` and tilings; a gene, which has no tilings yet, has only an `Outline`.

Segments alternate between the ends of L1, so that loads need not wait for the previous segment; all segments at the bottom are slower on
Inception, DenseNet and ViT (plan key `same_end`).
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from compiler.plan.plan import Infeasible, SegmentPlan
from compiler.segment.blocks import Blocks, cut_blocks, share_iterations
from compiler.segment.core_channels import channel_parts, largest_part
from compiler.segment.memory_plan import Places, place_segment, segment_label, slot_counts
from compiler.segment.operator_run import streamed_rights
from compiler.segment.persistent import PersistentLayout, held_storages, isolated_layout
from compiler.segment.pool_fusion import fed_operators
from compiler.segment.strips import strips, widest
from compiler.segment.transforms import TRANSFORMS
from compiler.target.target_graph import TargetGraph


class Outline(NamedTuple):
    """Outline of a segment: the numbers that decide shares, strips and blocks of operators [start, stop), whatever the tilings are.

    Fields are named as in `SegmentPlan`.

    channels: number of parts of output channels.  columns: number of strips.  blocks: number of blocks of rows.
    dealt: number of cores among which the iterations are divided.
    halo: operators that cache the halo of their input, as bits.  held: persistent storages, as bits (`segment.persistent`).
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
        """Blocks of a strip.

        streamed: operators, as bits, whose right operand comes in chunks.  fed: fed pools, as bits (`segment.pool_fusion`).
        """
        return cut_blocks(strip, self.start, self.stop, self.blocks, self.halo, self.dealt, streamed, self.held, fed)


class StripBlocks(NamedTuple):
    """Strip of a segment: the target graph of its tensors and operators, and its blocks.  A segment of full rows is one strip."""

    target_graph: TargetGraph
    blocks: Blocks

    def residence(self, index: int) -> tuple[tuple[bool, bool], ...]:
        """Residence of every operand of operator `index`: whether the operand is in L1, and whether the segment computes it there."""
        allocations, operands = self.blocks.allocations, []
        if self.blocks.fed >> index & 1:
            return ((True, True),)
        for read in self.target_graph.operators[self.blocks.start + index].reads:
            allocation = allocations.get(read.storage)
            operands.append((False, False) if allocation is None else (True, allocation.makers > 0))
        if self.blocks.streamed >> index & 1:
            operands[1] = False, False  # chunks come from DDR, even if L1 has the storage for another operator
        return tuple(operands)


class CoreShare(NamedTuple):
    """Work of one core.  strips: all strips of the core's part.  iterations: its range of iterations (every block of every image)."""

    strips: tuple[StripBlocks, ...]
    iterations: range


def largest_strip(target_graph: TargetGraph, outline: Outline) -> StripBlocks | Infeasible:
    """Largest part, as wide as its widest strip, with all right operands in L1: if it fits, all parts and strips fit."""
    start, stop, channels, *_ = outline
    parts = channel_parts(target_graph, start, stop, channels)
    if isinstance(parts, Infeasible):
        return parts
    strip = widest(parts[0] if channels == 1 else largest_part(parts, start, stop), start, stop, outline.columns)
    return strip if isinstance(strip, Infeasible) else StripBlocks(strip, outline.blocks_of(strip))


class Segment(NamedTuple):
    """Segment with all splits applied.

    plan: plan after all transforms.  outline: outline of this plan.  parts: target graph of every part of output channels.
    cuts: per part, target graphs of its strips.  fed: pools whose input convolutions write into UB, as bits (`segment.pool_fusion`).
    """

    plan: SegmentPlan
    outline: Outline
    parts: tuple[TargetGraph, ...]
    cuts: tuple[tuple[TargetGraph, ...], ...]
    fed: int = 0

    @classmethod
    def of(cls, target_graph: TargetGraph, plan: SegmentPlan, start: int) -> Segment | Infeasible:
        """Segment whose first operator is `start`; or the reason why the plan's splits are impossible."""
        if plan.parts and target_graph.machine.shared is not None:
            return _refused(plan, Infeasible("parts", f"{plan.parts} on a machine with shared memory, which has no code for a grid"))
        for transform in TRANSFORMS:
            if transform.wanted(plan):
                rewritten = transform.apply(target_graph, plan, start, start + len(plan.operators))
                if isinstance(rewritten, Infeasible):
                    return _refused(plan, rewritten)
                target_graph, plan = rewritten.target_graph, rewritten.expand(plan)
        # transforms have rewritten plan and graph: the next steps divide them into parts and strips
        stop = start + len(plan.operators)
        held = held_storages(target_graph, plan, start)
        if isinstance(held, Infeasible):
            return held
        outline = Outline(start, stop, plan.channels, plan.columns, plan.blocks, plan.dealt, plan.caching, held)
        split = _split(target_graph, start, stop, outline.channels, outline.columns)
        if isinstance(split, Infeasible):
            return _refused(plan, split)
        fed = fed_operators(target_graph, start, plan.tilings, outline.channels > 1 or outline.columns > 1, held)
        if isinstance(fed, Infeasible):
            return _refused(plan, fed)
        parts, cuts = split
        return cls(plan, outline, parts, cuts, fed)

    @property
    def largest_index(self) -> int:
        """Index of the first part with the most channels."""
        return self.parts.index(largest_part(self.parts, self.outline.start, self.outline.stop)) if len(self.parts) > 1 else 0

    def streamed(self, part: int) -> int:
        """Operators of a part, as bits, whose right operand comes in chunks."""
        return streamed_rights(self.parts[part], self.outline.start, self.plan.tilings, self.outline.held)

    def strips(self, part: int) -> tuple[StripBlocks, ...]:
        """All strips of a part."""
        blocks_of, streamed = self.outline.blocks_of, self.streamed(part)
        return tuple([StripBlocks(strip, blocks_of(strip, streamed, self.fed)) for strip in self.cuts[part]])

    def widest(self) -> StripBlocks:
        """Largest part, as wide as its widest strip, with the streamed right operands of the plan."""
        target_graph, outline = self.parts[self.largest_index], self.outline
        strip = widest(target_graph, outline.start, outline.stop, outline.columns)
        assert not isinstance(strip, Infeasible), "`of` refuses what has none"
        return StripBlocks(strip, outline.blocks_of(strip, self.streamed(self.largest_index), self.fed))

    def share(self, core: int) -> CoreShare:
        """Work of core `core`, an index into the plan's cores: a range of the iterations of a part of the channels."""
        part, share_index = divmod(core, self.outline.dealt)
        core_strips = self.strips(part)
        target_graph = core_strips[0].target_graph
        iterations = target_graph.storages[target_graph.operators[self.outline.start].y.storage].n * self.outline.blocks
        return CoreShare(core_strips, share_iterations(iterations, (share_index, self.outline.dealt)))

    def slots(self, strip: StripBlocks) -> dict[int, int]:
        """Number of slots of every tensor in L1 (`segment.memory_plan.slot_counts`)."""
        return slot_counts(strip.target_graph, strip.blocks, self.plan.prefetch, self.plan.window)

    def memory(
        self, share: CoreShare, flip: bool = False, explain: bool = True, held: PersistentLayout | None = None
    ) -> Places | Infeasible:
        """Addresses in L1 and UB for a share, or the reason why its buffers do not fit.

        flip, explain: see `place_segment`.  held: layout of the program's persistent tensors; None: layout for the segment alone.
        """
        layout = held or isolated_layout(share.strips[0].target_graph, self.outline.held)
        return place_segment(share.strips, self.plan, flip, explain, layout)


@lru_cache(maxsize=4096)
def _split(
    target_graph: TargetGraph, start: int, stop: int, channels: int, columns: int
) -> tuple[tuple[TargetGraph, ...], tuple[tuple[TargetGraph, ...], ...]] | Infeasible:
    """Target graphs of parts, and per part the target graphs of its strips.  channels, columns: number of parts and of strips."""
    parts = channel_parts(target_graph, start, stop, channels)
    if isinstance(parts, Infeasible):
        return parts
    cuts = []
    for part in parts:
        strip_graphs = strips(part, start, stop, columns)
        if isinstance(strip_graphs, Infeasible):
            return strip_graphs
        cuts.append(strip_graphs)
    return parts, tuple(cuts)


def _refused(plan: SegmentPlan, why: Infeasible) -> Infeasible:
    """The reason with the segment in front of it."""
    return Infeasible(segment_label(plan), f"{why.where}: {why.reason}" if why.where else why.reason)
