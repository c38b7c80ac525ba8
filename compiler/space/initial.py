"""Genomes that follow from rules alone: where searches start, and what `compile` does without a plan."""

from __future__ import annotations

from compiler.cost.features import expected_cycles, raw_features
from compiler.plan.plan import MAX_STRIPS, Infeasible, Plan, Split
from compiler.segment.blocks import rows_needed
from compiler.space.decode import decode, decode_all
from compiler.space.gene import Gene, Genome, block_counts, recut, splits, widths
from compiler.space.strips import fewest_strips
from compiler.target.target_graph import TargetGraph


def single_operators(target_graph: TargetGraph) -> Genome | Infeasible:
    """Every operator its own segment, in as few blocks as fit L1 with prefetch, or without where none does: where every search starts.

    On one core; one of which not even a row fits there, on all cores by channels, or else in strips: as few as L1 wants, and twice as many
    until the other buffers hold it, too.
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
    """Every segment over all cores of the machine, in the fewest blocks that give each of them work; split as it says, or else as it can
    be; as it is where none of that fits."""
    return tuple(on_cores(target_graph, gene, target_graph.machine.cores) or gene for gene in genome)


def everywhere(target_graph: TargetGraph, gene: Gene, width: int) -> Gene:
    """The gene on the first `width` cores, an operator alone on fewer where it has neither rows nor channels for all.

    What fits nowhere so is in blocks enough for all of them: whoever repairs it cuts it.
    """
    cores = tuple(range(width))
    if gene.cores == cores:
        return gene
    wide = on_cores(target_graph, gene, len(cores))
    if wide is not None or gene.stop - gene.start == 1:
        return wide or recut(gene, cores=(0,))
    return recut(gene, cores=cores, blocks=max(gene.blocks, len(cores)))


def on_cores(target_graph: TargetGraph, gene: Gene, width: int) -> Gene | None:
    """The gene over the first `width` cores, in the fewest blocks from its own on that give each of them work; split as it says, or else
    as it can be; None where none of that fits."""
    ways: tuple[Split, ...] = ("channels", "rows") if gene.split == "channels" else ("rows", "channels")
    return next(filter(None, (over(target_graph, gene, width, split) for split in ways)), None)


def on_all_cores(target_graph: TargetGraph, gene: Gene) -> Gene | None:
    """The gene over all cores, in the fewest blocks from its own on that give each of them rows, else by channels; None where neither
    is possible.  It may not fit."""
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
    """The gene over the first `width` cores, in the fewest blocks from its own on that give each of them work; None where no such fits."""
    wider = recut(gene, cores=tuple(range(width)), split=split)
    counts = sorted({gene.blocks, *block_counts(target_graph, gene.start, gene.stop)})
    tries = (recut(wider, blocks=count) for count in counts if count >= gene.blocks)
    return next((g for g in tries if split in splits(target_graph, g, width) and decode(target_graph, g) is not None), None)


def layer_by_layer(target_graph: TargetGraph) -> Plan | Infeasible:
    """`single_operators`, each over as many cores as look fastest, as a plan: what `compile` does without a plan."""
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
