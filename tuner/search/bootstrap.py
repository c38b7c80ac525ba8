"""What a search goes on with after the plans that `compile` would take: segmentations that are cheapest by what is measured of them.

What lies on the segmentation that is cheapest by prediction is measured, which makes another the cheapest, until one is measured as a
whole.  A prediction tells neither where engines wait for each other nor what a window saves: of many segmentations that are as good by
prediction, a few are good, and most of them differ in a few segments.

Nothing but these is measured before the first programs.  A search that measured every operator alone and all short runs first had no
program of several operators before a quarter of its measurements was spent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from compiler.planner.segmentation import Floats, SegmentationSearch, by_estimate
from compiler.planner.tweaks import CHANGES, SLIDING, where_it_fits
from compiler.space.gene import Gene, Genome
from tuner.measure.grants import NEVER
from tuner.search.ask_tell import Asking
from tuner.search.context import SearchContext

_ROUNDS = 16  # of measurements of what lies on the cheapest segmentations
_NEAR = 0.005  # by which share another has to promise to be cheaper than the cheapest measured one
_TURNS = 2  # from one operator that is changed alone to the next: programs come first


class Bootstrap:
    """Segmentations of every level: by prediction, and by what is measured of them.

    covers: of every group of levels that grant the same.  asked: their genes that were measured.
    """

    def __init__(self, context: SearchContext) -> None:
        """By the model that the run begins with, or by the estimate."""
        self.context = context
        levels, estimate = context.rules.levels, by_estimate(context.target_graph)

        def predict(raw: Floats, wanted: Sequence[str]) -> Floats:
            return context.predict(raw)[:, [levels.index(level) for level in wanted]] if context.by_model else estimate(raw, wanted)

        self.covers = [SegmentationSearch(context.target_graph, [levels[at] for at in group], predict) for group in context.table.groups]
        self.asked = [set[Gene]() for _ in self.covers]

    def measured(self) -> Asking[list[Genome]]:
        """The cheapest measured ones, after what lies on the cheapest was measured, as it is and sliding."""
        context, found = self.context, dict[int, Genome]()
        self._cheapest(found, SegmentationSearch.cheapest)  # what there is where nothing of some operator turns out to fit
        for _ in range(_ROUNDS):
            new = [self._open(covers, asked) for covers, asked in zip(self.covers, self.asked, strict=True)]
            if not any(new):
                break
            permitted = [
                [context.permitted((gene,), group[0])[0] for gene in genes] for group, genes in zip(context.table.groups, new, strict=True)
            ]
            yield from context.measure_segments(context.wanted([gene for genes in permitted for gene in genes]))
            for group, covers, genes, asked in zip(context.table.groups, self.covers, new, permitted, strict=True):
                for gene, measured in zip(genes, asked, strict=True):
                    covers.tell(gene, self._took(measured, group))
        self._cheapest(found, lambda covers, place: covers.cheapest_measured(place) or covers.cheapest(place))
        return [found[at] for at in range(len(found))]

    def _cheapest(self, found: dict[int, Genome], chosen: Callable[[SegmentationSearch, int], tuple[Genome, float] | None]) -> None:
        """Level -> genome, where there is one."""
        for group, covers in zip(self.context.table.groups, self.covers, strict=True):
            for place, at in enumerate(group):
                if (cover := chosen(covers, place)) is not None:
                    found[at] = self.context.permitted(cover[0], at)

    def _open(self, covers: SegmentationSearch, asked: set[Gene]) -> list[Gene]:
        """What is to be measured next; added to what was asked."""
        found: dict[Gene, None] = {}
        for place in range(len(covers.levels)):
            cheapest, measured = covers.cheapest(place), covers.cheapest_measured(place)
            if cheapest is not None and (measured is None or cheapest[1] <= (1 - _NEAR) * measured[1]):
                for gene in cheapest[0]:
                    if gene not in asked:
                        found |= dict.fromkeys([gene, *(where_it_fits(self.context.target_graph, gene, change) for change in SLIDING)])
        new = [gene for gene in found if gene not in asked]
        asked.update(new)
        return new

    def _took(self, gene: Gene, group: Sequence[int]) -> Floats:
        """Cycles alone, infinite where a level does not grant what it needs."""
        cycles = self.context.table.of(gene)
        return np.full(len(group), np.inf) if cycles is None else np.where(cycles[group] < NEVER, cycles[group], np.inf)


def corrected(context: SearchContext, genomes: list[Genome]) -> Asking[list[Genome]]:
    """Programs, one for each level, with the changes that make their segments faster alone, tried one after the other."""
    now = [list(genome) for genome in genomes]
    yield from context.measure_segments(context.wanted([gene for genes in now for gene in genes]))
    for change in CHANGES:
        changed = [[context.rules.permitted(where_it_fits(context.target_graph, gene, change)) for gene in genes] for genes in now]
        yield from context.measure_segments(context.wanted([gene for genes in changed for gene in genes]))
        for level, (genes, new) in enumerate(zip(now, changed, strict=True)):
            for at, gene in enumerate(new):
                before, after = context.table.of(genes[at]), context.table.of(gene)
                if after is not None and (before is None or after[level] < before[level]):
                    genes[at] = gene
    return [tuple(genes) for genes in now]


def operators_alone(context: SearchContext) -> list[Gene]:
    """Every operator alone, as it is first."""
    return [gene for genome in context.single_operators() for gene in genome]


def changed_operators(context: SearchContext, turn: int) -> list[Gene]:
    """One of this island's operators alone with each of the changes, those that take longest first: the baseline is made of the best."""
    table, longest = context.table, dict[str, tuple[float, Gene]]()
    for gene in operators_alone(context):
        cycles = table.of(gene)
        if cycles is not None:
            structure = table.structures.structure(gene.start, gene.stop)
            longest.setdefault(structure, (-float(np.log(cycles).mean()), gene))
    every = sorted(longest.values())
    turns, other = divmod(turn, _TURNS)
    at = turns * context.rules.islands + context.island
    return [where_it_fits(context.target_graph, every[at][1], change) for change in CHANGES] if not other and at < len(every) else []
