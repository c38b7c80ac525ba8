"""What a search begins with: for every level the segmentation that is cheapest by prediction, and what no prediction tells of it.

Nothing but these is measured before the first programs.  A search that measured every operator alone and all short runs first had no
program of several operators before a quarter of its measurements was spent.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from compiler.space.changes import CHANGES, where_it_fits
from compiler.space.gene import Gene, Genome
from compiler.space.predicted import Floats, by_estimate, segmentations
from tuner.search.asking import Asking
from tuner.search.context import SearchContext


def predicted_programs(context: SearchContext) -> list[Genome]:
    """Of every level, by the model that the run begins with, or by the estimate."""
    levels, estimate = context.rules.levels, by_estimate(context.unit)

    def predict(raw: Floats, wanted: Sequence[str]) -> Floats:
        return context.predict(raw)[:, [levels.index(level) for level in wanted]] if context.by_model else estimate(raw, wanted)

    found: dict[int, Genome] = {}
    for group in context.table.groups:  # that grant the same
        genomes = segmentations(context.unit, [levels[at] for at in group], predict)
        found |= {at: context.permitted(genome, at) for at, genome in zip(group, genomes, strict=True)}
    return [found[at] for at in range(len(levels))]


def corrected(context: SearchContext, genomes: list[Genome]) -> Asking[list[Genome]]:
    """Programs, one for each level, with the changes that make their segments faster alone, tried one after the other."""
    now = [list(genome) for genome in genomes]
    yield from context.measure_segments(context.wanted([gene for genes in now for gene in genes]))
    for change in CHANGES:
        changed = [[context.rules.permitted(where_it_fits(context.unit, gene, change)) for gene in genes] for genes in now]
        yield from context.measure_segments(context.wanted([gene for genes in changed for gene in genes]))
        for level, (genes, new) in enumerate(zip(now, changed, strict=True)):
            for at, gene in enumerate(new):
                before, after = context.table.of(genes[at]), context.table.of(gene)
                if after is not None and (before is None or after[level] < before[level]):
                    genes[at] = gene
    return [tuple(genes) for genes in now]


def changed_operators(context: SearchContext) -> Iterator[Gene]:
    """Every operator alone, as it is first and with each of the changes: the baseline is made of the best of them."""
    for genome in context.single_operators():
        for gene in genome:
            yield gene
            yield from (where_it_fits(context.unit, gene, change) for change in CHANGES)
