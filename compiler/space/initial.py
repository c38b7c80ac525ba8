"""Genomes built by fixed rules: the start of a search, and the plan of `compile` without a given plan."""

from __future__ import annotations

from compiler.cost.features import expected_cycles, raw_features
from compiler.plan.plan import MAX_STRIPS, Infeasible, Plan, Split
from compiler.segment.blocks import rows_needed
from compiler.space.decode import decode, decode_all
from compiler.space.gene import Gene, Genome, block_counts, recut, splits, widths
from compiler.space.strips import fewest_strips
from compiler.target.target_graph import TargetGraph


def single_operators(target_graph: TargetGraph) -> Genome | Infeasible:
    """Genome with one segment per operator, in the fewest blocks that fit L1: the start of every search.

    Prefetch is dropped if an operator fits only without prefetch.  Operators run on one core.  An operator of which one row does not fit
    runs on all cores by channels; or else in strips: the fewest strips for L1, doubled until the other buffers fit, too.
    """
    genes = []
    for k, spec in enumerate(target_graph.operators):
        counts = sorted({*block_counts(target_graph, k, k + 1), rows_needed(target_graph)[k].size})
        narrow = Gene(k, k + 1)
        wide = narrow._replace(cores=tuple(range(target_graph.machine.cores)), split="channels")
        fewest, finest = fewest_strips(target_graph, k, k + 1), min(MAX_STRIPS, spec.out_w)
        cuts = [fewest << i for i in range((finest // fewest).bit_length())]
        candidates = (
            gene._replace(blocks=blocks, prefetch=prefetch)
            for gene in (narrow, wide, *(narrow._replace(columns=columns) for columns in cuts))
            for prefetch in (2, 1)
            for blocks in counts
        )
        fitting = next((g for g in candidates if decode(target_graph, g) is not None), None)
        if fitting is None:
            sizes = ", ".join(f"{size:,} B of {name}" for name, size in target_graph.machine.buffers_bytes.present_sizes.items())
            return Infeasible(spec.name, f"no tiling fits {sizes}")
        genes.append(fitting)
    return tuple(genes)


def spread(target_graph: TargetGraph, genome: Genome) -> Genome:
    """Genome with every segment on all cores of the machine, in the fewest blocks that give each core work.

    The gene's own split is tried first, then the other split.  A segment that fits with neither split is unchanged.
    """
    return tuple(on_cores(target_graph, gene, target_graph.machine.cores) or gene for gene in genome)


def everywhere(target_graph: TargetGraph, gene: Gene, width: int) -> Gene:
    """Gene on the first `width` cores; on core 0 if the segment is a single operator with too few rows and channels for all cores.

    A segment that fits with neither split gets enough blocks for all cores; the caller has to cut this segment until it fits.
    """
    cores = tuple(range(width))
    if gene.cores == cores:
        return gene
    wide = on_cores(target_graph, gene, len(cores))
    if wide is not None or gene.stop - gene.start == 1:
        return wide or recut(gene, cores=(0,))
    return recut(gene, cores=cores, blocks=max(gene.blocks, len(cores)))


def on_cores(target_graph: TargetGraph, gene: Gene, width: int) -> Gene | None:
    """Gene on the first `width` cores, in the fewest blocks (not fewer than now) that give each core work; None if no split fits.

    The gene's own split is tried first, then the other split.
    """
    ways: tuple[Split, ...] = ("channels", "rows") if gene.split == "channels" else ("rows", "channels")
    return next(filter(None, (over(target_graph, gene, width, split) for split in ways)), None)


def on_all_cores(target_graph: TargetGraph, gene: Gene) -> Gene | None:
    """Gene on all cores, in the fewest blocks (not fewer than now) that give each core rows, else split by channels.

    The gene may not fit.  None if neither split is possible.
    """
    cores = target_graph.machine.cores
    wide = recut(gene, cores=tuple(range(cores)))
    if wide.split in splits(target_graph, wide, cores):
        return wide
    counts = block_counts(target_graph, gene.start, gene.stop)
    enough = next((count for count in counts if count >= max(gene.blocks, -(-cores // target_graph.images))), None)
    if enough is not None:
        return recut(wide, blocks=enough, split="rows")
    return recut(wide, split="channels") if "channels" in splits(target_graph, wide, cores) else None


def over(target_graph: TargetGraph, gene: Gene, width: int, split: Split) -> Gene | None:
    """Gene on the first `width` cores with one split, in the fewest blocks (not fewer than now) that give each core work.  None if no such
    gene fits."""
    wider = recut(gene, cores=tuple(range(width)), split=split)
    counts = sorted({gene.blocks, *block_counts(target_graph, gene.start, gene.stop)})
    tries = (recut(wider, blocks=count) for count in counts if count >= gene.blocks)
    return next((g for g in tries if split in splits(target_graph, g, width) and decode(target_graph, g) is not None), None)


def layer_by_layer(target_graph: TargetGraph) -> Plan | Infeasible:
    """Plan with one segment per operator, each on the number of cores with the fewest estimated cycles."""
    genome = single_operators(target_graph)
    if isinstance(genome, Infeasible):
        return genome

    def looks(gene: Gene) -> float:
        plan = decode(target_graph, gene)
        return float("inf") if plan is None else float(expected_cycles(raw_features(target_graph, plan, gene.start)))

    ways: tuple[Split, ...] = ("rows", "channels")
    wider = [(width, split) for width in widths(target_graph)[1:] for split in ways]
    options = ([gene, *filter(None, (over(target_graph, gene, *way) for way in wider))] for gene in genome)
    return decode_all(target_graph, tuple(min(genes, key=looks) for genes in options))
