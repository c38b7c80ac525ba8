"""What a search begins with: for every level the segmentation that is cheapest by prediction, before anything is measured."""

from __future__ import annotations

from compiler.cost.features import scaled
from compiler.space.changes import CHANGES, where_it_fits
from compiler.space.gene import Genome
from compiler.space.predicted import Floats, by_estimate, segmentations
from tuner.search.asking import Asking
from tuner.search.context import SearchContext


def predicted_programs(context: SearchContext) -> list[Genome]:
    """Of every level, by the model that the run begins with, or by the estimate."""
    levels, estimate = context.rules.levels, by_estimate(context.unit)

    def predict(raw: Floats, level: str) -> Floats:
        model = context.models[levels.index(level)]
        return estimate(raw, level) if model is None else model.predict(scaled(raw))

    found: list[Genome] = []
    for group in context.table.groups:  # that grant the same
        genomes = segmentations(context.unit, [levels[at] for at in group], predict)
        found += [context.permitted(genome, at) for at, genome in zip(group, genomes, strict=True)]
    return found


def corrected(context: SearchContext, genomes: list[Genome]) -> Asking[list[Genome]]:
    """Of every level, its segments with the changes that make them faster alone."""
    order = [at for group in context.table.groups for at in group]
    now = [list(genome) for genome in genomes]
    yield from context.measure_segments(context.wanted([gene for genome in now for gene in genome]))
    for change in CHANGES:
        changed = [[where_it_fits(context.unit, gene, change) for gene in genes] for genes in now]
        yield from context.measure_segments(context.wanted([gene for genes in changed for gene in genes]))
        for level, genes, new in zip(order, now, changed, strict=True):
            for at, gene in enumerate(new):
                before, after = context.table.of(genes[at]), context.table.of(gene)
                if after is not None and (before is None or after[level] < before[level]):
                    genes[at] = gene
    return [tuple(genes) for genes in now]
