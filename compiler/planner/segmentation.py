"""Segmentation by prediction: for every level the cheapest cover of the operators by predicted segments.

A guess for every run in every way (`planner.run_costs`) selects the runs that may lie on a shortest path.  Only those are decoded, so that
they are sure to fit, and predicted from their features.  A prediction replaces the guess, until the whole shortest path is predicted: a
lazy shortest path (LazySP; Dellin and Srinivasa, ICAPS 2016), except that guesses may be too high.  Guesses are scaled to the predictions,
which may be a third lower; unscaled guesses would make nearly all runs be decoded.

A measurement replaces a prediction in the same way, so measuring the segments on the shortest path soon gives a path of measured ones.

| way      | work of a run                                                                                   |
|----------|-----------------------------------------------------------------------------------------------|
| rows     | in some blocks, over all cores of the level; halos cached, or recomputed in short runs          |
| images   | in blocks of several images, over those cores                                                  |
| channels | over those cores, if a run's channels can be split                                            |
| narrow   | on one core of several, as one block                                                          |
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from compiler.cost.ddr_traffic import ddr_rates
from compiler.cost.features import expected_cycles, raw_features
from compiler.plan.plan import Infeasible
from compiler.planner.run_costs import guess_run_cycles, operator_table, single_operator_cycles
from compiler.planner.shortest_path import shortest_cover
from compiler.planner.split_rules import genes_in_passes, genes_in_strips, genes_on_grids
from compiler.segment.batch_tiles import counts_together
from compiler.segment.blocks import rows_needed
from compiler.space.decode import decode
from compiler.space.gene import Gene, Genome, has_halos
from compiler.space.initial import everywhere, single_operators
from compiler.space.level_limits import grant_of
from compiler.space.strips import fewest_strips
from compiler.space.structural_hash import Structures
from compiler.target.level_limits import at_level
from compiler.target.target_graph import TargetGraph
from simulator.npu.errors import InfeasibleError

Floats = NDArray[np.float64]
Progress = Callable[[str], None]  # reports progress as a line of text


Predict = Callable[[Floats, Sequence[str]], Floats]
"""Predictor: raw features float64 [n, F] of segments that run alone, and level names -> cycles [n, levels]."""

BLOCKS = (1, 2, 3, 4, 7, 10, 14, 28, 56)  # numbers of blocks of the way `rows`, beside that of the cores
_WIDE = (1, 2, 4)  # numbers of blocks if channels are split
_FEW = 2  # ways of a run that are predicted at a time, best guesses first
_LOW = 0.1  # least ratio of a prediction to its scaled guess; a lower one predicts more runs, few of which are on shorter paths
_MOST = 2.0  # largest scale: a predictor may have a unit other than cycles
_MADE_AGAIN = 6  # most operators of a run whose halos may be recomputed instead of cached
_FILL = 4  # engines wait at a segment's borders for 1/4 of the time that loading all of L1 takes, without contention


def estimate_predictor(target_graph: TargetGraph) -> Predict:
    """Predictor by the closed-form estimate, plus the waits at a segment's borders, which the estimate lacks."""
    machine, border = target_graph.machine, _border(target_graph)
    return lambda raw, levels: np.column_stack([expected_cycles(raw, machine.contention[level]) for level in levels]) + border


def _border(target_graph: TargetGraph) -> float:
    return target_graph.machine.buffers_bytes.L1 / ddr_rates(target_graph.machine, 1)[0] / _FILL


def ignore_progress(line: str) -> None:
    """Ignore progress."""


def cheapest_segmentations(
    target_graph: TargetGraph, levels: Sequence[str], predict: Predict, report: Progress = ignore_progress
) -> list[Genome]:
    """Cheapest genome by prediction at each level; the levels have equal grants.

    Raises `InfeasibleError` if some operator fits in no way.
    """
    covers = SegmentationSearch(target_graph, levels, predict, report)
    cheapest = [covers.cheapest(index) for index in range(len(levels))]
    assert None not in cheapest, "every operator has a way"
    return [cover[0] for cover in cheapest if cover is not None]


class SegmentationSearch:
    """Search for covers of a model by runs of operators with predicted or measured prices.  levels: levels with the same grant.

    guess: float64 [levels, ways, operators, lengths] (`planner.run_costs`); infinite if the way is predicted already or does not fit.
    prices: run -> gene -> float64 [levels], predicted or measured.  told: genes with measured prices, in order.
    least: float64 [levels, operators, lengths], lowest price of a run.  scale: float64 [levels], scale of guesses.

    Raises `InfeasibleError` if some operator fits in no way.
    """

    def __init__(self, target_graph: TargetGraph, levels: Sequence[str], predict: Predict, report: Progress = ignore_progress) -> None:
        self.target_graph, self.levels, self.predict, self._told = target_graph, levels, predict, report
        self.within, self.structures = at_level(target_graph, levels[0]), Structures(target_graph)
        self.ways = _ways(target_graph, levels[0])
        conditions = [target_graph.machine.contention[level] for level in levels]
        self.guess = guess_run_cycles(
            self.within,
            operator_table(target_graph),
            self.ways,
            single_operator_cycles(target_graph, self.structures, self.ways),
            conditions,
        ) + _border(target_graph)
        self.scale, self._above = np.ones(len(levels)), list[Floats]()
        self._first_guess = self.guess.copy()
        self.prices: dict[tuple[int, int], dict[Gene, Floats]] = {}
        self.told: dict[Gene, None] = {}
        self.least = np.full((len(levels), *self.guess.shape[2:]), np.inf)
        self._known: dict[object, Floats | None] = {}
        self._add_stuck()
        self._predict_genes(genes_in_passes(target_graph, self.structures, self.ways[0]))  # no guess covers these
        self._predict_genes(genes_in_strips(target_graph, self.structures, self.ways[0]))
        self._predict_genes(genes_on_grids(target_graph, self.structures, self.ways[0]))

    def cheapest(self, level: int) -> tuple[Genome, float] | None:
        """Lazy shortest path and its length; None if no measured way of some operator fits.  level: an index."""
        while True:
            guess = self.scale[level] * self.guess[level].min(0)
            path = shortest_cover(np.minimum(guess, self.least[level]))
            if path is None:
                return None
            runs, total = path
            candidates: list[Gene] = []
            for i, j in runs:
                cell = j - 1, j - i - 1
                if guess[cell] < self.least[level][cell]:
                    candidates += self._best_guessed_ways(level, i, j)
            if not candidates:
                return tuple(self._cheapest_of(run, level) for run in runs), float(total[-1])
            self._predict_genes(candidates)

    def cheapest_measured(self, level: int) -> tuple[Genome, float] | None:
        """Shortest path of measured segments and its length; None without one."""
        cost, fastest = np.full(self.least.shape[1:], np.inf), dict[tuple[int, int], Gene]()
        for gene in self.told:
            run, cell = (gene.start, gene.stop), (gene.stop - 1, gene.stop - gene.start - 1)
            if (cycles := self.prices[run][gene][level]) < cost[cell]:
                cost[cell], fastest[run] = cycles, gene
        path = shortest_cover(cost)
        return None if path is None else (tuple(fastest[run] for run in path[0]), float(path[1][-1]))

    def tell(self, gene: Gene, cycles: Floats) -> None:
        """Record measured cycles of a gene, float64 [levels]; infinite if it does not fit."""
        self.told[gene] = None
        self._price(gene, cycles)

    def _price(self, gene: Gene, cycles: Floats) -> None:
        prices = self.prices.setdefault((gene.start, gene.stop), {})
        prices[gene] = cycles
        self.least[:, gene.stop - 1, gene.stop - gene.start - 1] = np.min([*prices.values()], axis=0)

    def _cheapest_of(self, run: tuple[int, int], level: int) -> Gene:
        """Cheapest gene of a run; the first one of equals."""
        prices = self.prices[run]
        return min(prices, key=lambda gene: float(prices[gene][level]))

    def _best_guessed_ways(self, level: int, start: int, stop: int) -> list[Gene]:
        """Ways of a run with the best guesses; these guesses are then set to infinite."""
        way_guesses, columns, genes = self.guess[:, :, stop - 1, stop - start - 1], fewest_strips(self.within, start, stop), []
        for way in np.argsort(way_guesses[level], kind="stable")[:_FEW].tolist():
            if np.isfinite(way_guesses[level, way]):
                way_guesses[:, way] = np.inf
                gene = self.ways[way]._replace(start=start, stop=stop, columns=columns)
                genes.append(gene)
                if gene.cached and stop - start <= _MADE_AGAIN and has_halos(self.target_graph, start, stop):
                    genes.append(gene._replace(cached=0))
        return genes

    def _predict_genes(self, genes: Sequence[Gene]) -> None:
        """Predict the genes that fit, each structure once."""
        keys = [self.structures.key(gene) for gene in genes]
        raws = {}
        for key, gene in zip(keys, genes, strict=True):
            if key not in self._known:
                plan = decode(self.target_graph, gene)
                self._known[key] = None
                if plan is not None:
                    raws[key] = raw_features(self.target_graph, plan, gene.start)
                self._told(f"{', '.join(self.levels)}: {len(self._known):,} segments predicted")
        if raws:
            cycles = self.predict(np.stack(list(raws.values())), self.levels)
            self._known.update(zip(raws, cycles, strict=True))
        for key, gene in zip(keys, genes, strict=True):
            price = self._known[key]
            if price is not None:
                self._price(gene, price)
                self._compare(gene, price)
        if self._above:
            self.scale = np.clip(np.exp(np.quantile(self._above, _LOW, axis=0)), 1.0, _MOST)

    def _compare(self, gene: Gene, predicted: Floats) -> None:
        """Compare a prediction with the guess of its way."""
        way = gene._replace(start=0, stop=1, columns=1)
        if way in self.ways:
            guess = self._first_guess[:, self.ways.index(way), gene.stop - 1, gene.stop - gene.start - 1]
            if np.isfinite(guess).all():
                self._above.append(np.log(predicted / guess))

    def _add_stuck(self) -> None:
        """Predict operators that fit in none of the ways, in the form in which a search begins with them: more blocks, or strips."""
        stuck = np.flatnonzero(~np.isfinite(self.guess[0, :, :, 0]).any(0)).tolist()
        if not stuck:
            return
        genome = single_operators(self.within)
        if isinstance(genome, Infeasible):
            raise InfeasibleError(f"{self.target_graph.machine.name}: no plan fits level {self.levels[0]}: {genome}")
        first = self.ways[0]
        self._predict_genes([everywhere(self.target_graph, genome[k]._replace(grant=first.grant), len(first.cores)) for k in stuck])


def _ways(target_graph: TargetGraph, level: str) -> list[Gene]:
    """Genes of any position, one per way."""
    width = target_graph.machine.granted(level).cores
    narrow = Gene(0, 1, grant=grant_of(target_graph, level))
    wide = narrow._replace(cores=tuple(range(width)))
    highest = max(rows.size for rows in rows_needed(target_graph))
    rows = [
        wide._replace(blocks=count, cached=-1 if count > 1 else 0)
        for count in sorted({*BLOCKS, width})
        if width <= count * target_graph.images
    ]
    rows = [way for way in rows if way.blocks <= max(1, highest)]
    rows += [wide._replace(images=count) for count in counts_together(target_graph) if count > 1 and width <= target_graph.images // count]
    if width == 1:
        return rows
    return [*rows, *(wide._replace(blocks=count, split="channels") for count in _WIDE), narrow]
