"""Start of a search after the plans of `compile`: segmentations that are cheapest by measured segments.

The segments of the segmentation with the fewest predicted cycles are measured.  Then another segmentation may be the cheapest, and so on,
until a cheapest one is measured completely.  Predictions include neither waits between engines nor savings of a window: among many
segmentations with equal predictions a few are good, and most of them differ in a few segments.

Nothing else is measured before the first programs.  A search that first measured every single operator and all short runs had no program
of several operators before a quarter of its measurements was spent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from compiler.planner.segmentation import Floats, SegmentationSearch, estimate_predictor
from compiler.planner.tweaks import CHANGES, SLIDING, apply_if_fits
from compiler.space.gene import Gene, Genome
from tuner.measure.grants import NEVER
from tuner.search.ask_tell import Asking
from tuner.search.context import SearchContext

_ROUNDS = 16  # rounds of measurements
_NEAR = 0.005  # least predicted gain over the cheapest measured segmentation


class Bootstrap:
    """Segmentations of every level: by prediction, and by measured segments.

    covers: a search per group of levels with equal grants.  proposed: its measured genes.
    """

    def __init__(self, context: SearchContext) -> None:
        """Predict by the model that the run starts with, or by the estimate."""
        self.context = context
        levels, estimate = context.rules.levels, estimate_predictor(context.target_graph)

        def predict(raw: Floats, levels_to_predict: Sequence[str]) -> Floats:
            return (
                context.predict(raw)[:, [levels.index(level) for level in levels_to_predict]]
                if context.has_model
                else estimate(raw, levels_to_predict)
            )

        self.covers = [
            SegmentationSearch(context.target_graph, [levels[index] for index in group], predict) for group in context.table.groups
        ]
        self.proposed = [set[Gene]() for _ in self.covers]

    def measured(self) -> Asking[list[Genome]]:
        """Measure the segments of the cheapest segmentations, plain and sliding; returns the cheapest measured ones."""
        context, genomes = self.context, dict[int, Genome]()
        self._cheapest(genomes, SegmentationSearch.cheapest)  # a fallback, if no segment of some operator fits
        for _ in range(_ROUNDS):
            new = [self._open(covers, proposed) for covers, proposed in zip(self.covers, self.proposed, strict=True)]
            if not any(new):
                break
            allowed = [
                [context.permitted((gene,), group[0])[0] for gene in genes] for group, genes in zip(context.table.groups, new, strict=True)
            ]
            yield from context.measure_segments(context.unmeasured([gene for genes in allowed for gene in genes]))
            for group, covers, genes, proposed in zip(context.table.groups, self.covers, new, allowed, strict=True):
                for gene, measured in zip(genes, proposed, strict=True):
                    covers.tell(gene, self._own_cycles(measured, group))
        self._cheapest(genomes, lambda covers, place: covers.cheapest_measured(place) or covers.cheapest(place))
        return [genomes[level] for level in range(len(genomes))]

    def _cheapest(self, genomes: dict[int, Genome], choose: Callable[[SegmentationSearch, int], tuple[Genome, float] | None]) -> None:
        """Fill `genomes` (level -> genome) with each level's choice, if any."""
        for group, covers in zip(self.context.table.groups, self.covers, strict=True):
            for place, level in enumerate(group):
                if (cover := choose(covers, place)) is not None:
                    genomes[level] = self.context.permitted(cover[0], level)

    def _open(self, covers: SegmentationSearch, proposed: set[Gene]) -> list[Gene]:
        """Genes to measure next; added to `proposed`."""
        candidates: dict[Gene, None] = {}
        for place in range(len(covers.levels)):
            cheapest, measured = covers.cheapest(place), covers.cheapest_measured(place)
            if cheapest is not None and (measured is None or cheapest[1] <= (1 - _NEAR) * measured[1]):
                for gene in cheapest[0]:
                    if gene not in proposed:
                        candidates |= dict.fromkeys([gene, *(apply_if_fits(self.context.target_graph, gene, change) for change in SLIDING)])
        new = [gene for gene in candidates if gene not in proposed]
        proposed.update(new)
        return new

    def _own_cycles(self, gene: Gene, group: Sequence[int]) -> Floats:
        """Cycles of the segment on its own, infinite at levels that do not grant its needs."""
        cycles = self.context.table.find_cycles(gene)
        return np.full(len(group), np.inf) if cycles is None else np.where(cycles[group] < NEVER, cycles[group], np.inf)


def improve_segments(context: SearchContext, genomes: list[Genome]) -> Asking[list[Genome]]:
    """Improve programs, one for each level, by changes that make their single segments faster, tried one after the other."""
    current = [list(genome) for genome in genomes]
    yield from context.measure_segments(context.unmeasured([gene for genes in current for gene in genes]))
    for change in CHANGES:
        changed_genes = [
            [context.rules.permitted(apply_if_fits(context.target_graph, gene, change)) for gene in genes] for genes in current
        ]
        yield from context.measure_segments(context.unmeasured([gene for genes in changed_genes for gene in genes]))
        for level, (genes, new) in enumerate(zip(current, changed_genes, strict=True)):
            for index, gene in enumerate(new):
                first_values, new_values = context.table.find_cycles(genes[index]), context.table.find_cycles(gene)
                if new_values is not None and (first_values is None or new_values[level] < first_values[level]):
                    genes[index] = gene
    return [tuple(genes) for genes in current]


def single_operator_genes(context: SearchContext) -> list[Gene]:
    """Genes of every single operator, in its first form."""
    return [gene for genome in context.single_operators() for gene in genome]


def changed_operators(context: SearchContext) -> list[Gene]:
    """Genes of one single operator of this shard with each change, longest operators first: the baseline is made of the best."""
    table, longest = context.table, dict[str, tuple[float, Gene]]()
    for gene in single_operator_genes(context):
        cycles = table.find_cycles(gene)
        if cycles is not None:
            structure = table.structures.structure(gene.start, gene.stop)
            longest.setdefault(structure, (-float(np.log(cycles).mean()), gene))
    ranked = sorted(longest.values())
    place = context.turn * context.share.count + context.share.index
    return [apply_if_fits(context.target_graph, ranked[place][1], change) for change in CHANGES] if place < len(ranked) else []
