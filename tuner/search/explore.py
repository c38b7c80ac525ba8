"""Candidates for segments: neighbours of the best segmentations, single operators and their tilings, and random ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from compiler.cost.ranking import CHUNK_BUDGETS
from compiler.segment.batch_tiles import counts_together
from compiler.segment.core_channels import can_split
from compiler.space.gene import WINDOWS, Gene, Genome, block_counts, widths, with_weights
from compiler.space.initial import on_all_cores, on_cores
from compiler.space.knobs import part_counts
from compiler.space.mutators import OF_PROGRAMS, Move, drawn_passes, on_random_cores
from compiler.space.strips import fewest_strips
from compiler.target.target_graph import TargetGraph
from tuner.config import Segments
from tuner.measure.request import RANDOM
from tuner.search.sharding import Shard
from tuner.search.table import SegmentTable

Within = Callable[[Gene], Gene]  # gene -> gene within a level's L1

_OF_SEGMENTATION = 0.5  # share of random genes on runs of the segmentation
_DRAWS = 4  # limit of draws for each gene and shard


def first_genes(target_graph: TargetGraph, table: SegmentTable, caching: bool) -> list[Gene]:
    """Initial genes: every single operator in every block count, and short runs in a few, as the reference for later choices.

    caching: with cached halos; for a single operator they only save loads and L1, so no other form is tried.  For several cores: block
    counts with work for each core, for all cores as many counts as for one, and split channels if possible.
    """
    genes = []
    for length in (1, 2, 3):
        for start in range(len(target_graph.operators) - length + 1):
            counts = block_counts(target_graph, start, start + length)
            base = Gene(start, start + length, columns=fewest_strips(target_graph, start, start + length))
            for blocks in counts[:12] if length == 1 else sorted({1, *counts[3:8:4]}):
                genes += _with_halos(base._replace(blocks=blocks), caching)
            for width in widths(target_graph)[1:]:
                wide = base._replace(cores=tuple(range(width)))
                wide_counts = [blocks for blocks in counts if blocks * target_graph.storages[0].n >= width]
                # all cores are tried as finely as one core, other numbers only coarsely
                closely = width == target_graph.machine.cores
                singles, runs = (
                    (wide_counts[:12], [*wide_counts[:1], *wide_counts[2:4], *wide_counts[6:8]])
                    if closely
                    else (wide_counts[:4], wide_counts[:3:2])
                )
                for blocks in singles if length == 1 else runs:
                    genes += _with_halos(wide._replace(blocks=blocks), caching)
                if can_split(target_graph, start, start + length, width):
                    for blocks in counts[:4:2] if length == 1 else counts[:1]:
                        genes += _with_halos(wide._replace(blocks=blocks, split="channels"), caching)
                for parts in part_counts(width) if closely and length == 1 else ():
                    share = width // parts
                    if can_split(target_graph, start, start + length, parts):
                        for blocks in [blocks for blocks in counts if blocks % share == 0][:3]:
                            genes += _with_halos(wide._replace(blocks=blocks, split="channels", parts=parts), caching)
    return unmeasured_genes(table, genes)


def _with_halos(gene: Gene, caching: bool) -> list[Gene]:
    if not caching:
        return [gene]
    if gene.stop - gene.start == 1:
        return [gene._replace(cached=-1)]
    return [gene._replace(cached=cached_operators) for cached_operators in ((0, -1) if gene.blocks > 1 else (0,))]


def propose_segments(
    target_graph: TargetGraph,
    table: SegmentTable,
    segmentations: Sequence[Genome],
    count: int,
    rng: np.random.Generator,
    moves: dict[str, Move],
    shares: Segments,
    width: int | None = None,
    share: Shard | None = None,
    fits: Sequence[Within] | None = None,
) -> dict[Gene, str]:
    """Draw up to `count` unmeasured genes of a shard -> their proposer, from the segmentations (one per level).

    shares: share of random genes, and of genes near single operators.
    width: number of cores, if genes fit so; None: any number, and all cores for half of the genes.  share: shard; None: all segments.
    fits: for each segmentation, a function that limits its genes to the level's grants; None: no limit.
    """
    share = share or Shard(table.structures)
    proposals: dict[object, tuple[Gene, str]] = {}
    single_moves = {name: move for name, move in moves.items() if name not in OF_PROGRAMS}
    singles = [genome for genome in map(table.singles, range(len(table.groups))) if genome is not None]
    for attempt in range(count * _DRAWS * share.count):
        if len(proposals) >= count:
            break
        draw = rng.random()
        index = attempt % len(segmentations)
        if draw < shares.random:
            drawn_genes, proposer = [_random(target_graph, rng, moves, segmentations[index])], RANDOM.by
        elif draw < shares.random + shares.singles and singles:
            drawn_genes, proposer = _moved_genes(target_graph, singles[attempt % len(singles)], single_moves, rng)
        else:
            index = int(rng.integers(len(segmentations)))
            drawn_genes, proposer = _moved_genes(target_graph, segmentations[index], moves, rng)
        drawn_genes = [gene for gene in drawn_genes if share.may_hold(gene)]  # before the most expensive step, the fit
        if fits is not None:
            drawn_genes = [fits[index](gene) for gene in drawn_genes]
        if width is not None:
            drawn_genes = [gene for gene in (on_cores(target_graph, gene, width) for gene in drawn_genes) if gene is not None]
        elif target_graph.machine.cores > 1 and rng.random() < 0.5:
            drawn_genes = [on_all_cores(target_graph, gene) or gene for gene in drawn_genes]
        for gene in drawn_genes:
            key = table.structures.key(gene)
            if key not in table.cycles and key not in proposals and share.holds(key):
                proposals[key] = gene, proposer
    return dict(proposals.values())


def _random(target_graph: TargetGraph, rng: np.random.Generator, moves: Mapping[str, Move], segmentation: Genome) -> Gene:
    """Random gene on a run of the segmentation, or near one; moves reach such genes only in steps, through worse genes."""
    if rng.random() < _OF_SEGMENTATION:
        start, stop, *_ = segmentation[int(rng.integers(len(segmentation)))]
    else:
        start, stop = _neighbouring_run(segmentation, rng)
    counts = block_counts(target_graph, start, stop)
    gene = Gene(start, stop, counts[int(rng.integers(len(counts)))], columns=fewest_strips(target_graph, start, stop))
    if rng.random() < 0.5:
        gene = gene._replace(chunk=int(rng.integers(len(CHUNK_BUDGETS))))
        gene = with_weights(target_graph, gene, bool(rng.integers(2)))
    if "toggle_halo" in moves and gene.blocks > 1 and rng.random() < 0.5:
        gene = gene._replace(cached=-1)
    if "change_window" in moves and stop - start > 1 and gene.blocks > 1 and rng.random() < 0.5:
        gene = gene._replace(sliding=True, window=WINDOWS[int(rng.integers(len(WINDOWS)))])
    if target_graph.images > 1 and gene.blocks == 1:
        gene = gene._replace(images=int(rng.choice(counts_together(target_graph))))
    if "change_prefetch" in moves and rng.random() < 0.3:
        gene = gene._replace(prefetch=1)
    if "change_passes" in moves and gene.columns == 1:
        if (counts := drawn_passes(target_graph, gene)["passes"]) and rng.random() < 0.3:
            gene = gene._replace(passes=counts[int(rng.integers(len(counts)))])
        if (counts := drawn_passes(target_graph, gene)["input_passes"]) and rng.random() < 0.1:
            gene = gene._replace(input_passes=counts[int(rng.integers(len(counts)))])
    return on_random_cores(target_graph, gene, rng)


def _neighbouring_run(segmentation: Genome, rng: np.random.Generator) -> tuple[int, int]:
    """Run with one border in common with the segmentation: a replacement of some of its runs starts or ends at their borders."""
    gene = segmentation[int(rng.integers(len(segmentation)))]
    steps = int(rng.geometric(0.3)) * (1 if rng.random() < 0.5 else -1)
    if rng.random() < 0.5:
        return gene.start, min(max(gene.stop + steps, gene.start + 1), segmentation[-1].stop)
    return max(min(gene.start + steps, gene.stop - 1), 0), gene.stop


def _moved_genes(target_graph: TargetGraph, genome: Genome, moves: Mapping[str, Move], rng: np.random.Generator) -> tuple[list[Gene], str]:
    """New genes after one or two moves, and the moves' names."""
    current, names, applied = genome, list(moves), list[str]()
    for _ in range(1 + int(rng.random() < 0.3)):
        name = names[int(rng.integers(len(names)))]
        if step := moves[name](target_graph, current, rng):
            current = step
            applied.append(name)
    old = set(genome)
    return [gene for gene in current if gene not in old], ",".join(applied)


def unmeasured_genes(table: SegmentTable, genes: list[Gene]) -> list[Gene]:
    """Unmeasured genes, one of each kind, in their order."""
    unmeasured: dict[object, Gene] = {}
    for gene in genes:
        key = table.structures.key(gene)
        if key not in table.cycles:
            unmeasured.setdefault(key, gene)
    return list(unmeasured.values())
