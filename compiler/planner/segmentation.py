"""Segmentations from prediction: for every level the cheapest cover of the operators by predicted segments.

A guess (`planner.run_costs`) of all runs in all ways says which of them may lie on a shortest path.  Only those are decoded, so that what
fits is exact, and predicted from their features.  A prediction takes the place of the guess, until all of the shortest path is predicted: a
lazy shortest path (LazySP; Dellin and Srinivasa, ICAPS 2016), but for guesses that are too high. Guesses are scaled to what predictions
turn out to be: a model may say a third more than they do, and then nearly all runs are decoded.

What is measured takes the place of a prediction in the same way, so who measures what lies on the shortest path soon has one that is
measured as a whole.

| way      | a run's work                                                                                  |
|----------|-----------------------------------------------------------------------------------------------|
| rows     | in some blocks, over all cores that the level leaves; halos cached, or of short runs made again |
| images   | in blocks of several images, over those cores                                                  |
| channels | over those cores, where a run's channels can be split                                         |
| narrow   | on one core of several, as a whole                                                            |
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from compiler.cost.ddr_traffic import ddr_rates
from compiler.cost.features import expected_cycles, raw_features
from compiler.plan.plan import Infeasible
from compiler.planner.run_costs import alone, guesses, sizes_of
from compiler.planner.shortest_path import shortest
from compiler.planner.split_rules import genes_in_passes, genes_in_strips
from compiler.segment.batch_tiles import counts_together
from compiler.segment.blocks import needed
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
Progress = Callable[[str], None]  # is given, again and again, how far something is


Predict = Callable[[Floats, Sequence[str]], Floats]
"""Raw features, float64 [n, F], of segments that run alone, and levels, to cycles [n, levels]."""

BLOCKS = (1, 2, 3, 4, 7, 10, 14, 28, 56)
_WIDE = (1, 2, 4)  # blocks where channels are split
_FEW = 2  # ways of a run that are predicted at a time, the best guesses first
_LOW = 0.1  # of predictions lie below their scaled guess: more are looked at the lower it is, and few of those are on shorter paths
_MOST = 2.0  # as what a guess is scaled by: who predicts something else than cycles is not followed there
_MADE_AGAIN = 6  # operators of the longest run whose halos may be made again rather than cached
_FILL = 4  # a segment begins and ends with engines that wait: as long as this part of L1 takes to be loaded, without contention


def by_estimate(target_graph: TargetGraph) -> Predict:
    """The estimate, and how long engines wait where a segment begins and ends, of which it knows nothing."""
    machine, border = target_graph.machine, _border(target_graph)
    return lambda raw, levels: np.column_stack([expected_cycles(raw, machine.contention[level]) for level in levels]) + border


def _border(target_graph: TargetGraph) -> float:
    return target_graph.machine.buffers_bytes.L1 / ddr_rates(target_graph.machine, 1)[0] / _FILL


def nobody(line: str) -> None:
    """Nobody is told."""


def segmentations(target_graph: TargetGraph, levels: Sequence[str], predict: Predict, told: Progress = nobody) -> list[Genome]:
    """The cheapest by prediction at each of the levels, which grant the same.

    Raises `InfeasibleError` where some operator fits in no way.
    """
    covers = SegmentationSearch(target_graph, levels, predict, told)
    found = [covers.cheapest(at) for at in range(len(levels))]
    assert None not in found, "every operator has a way"
    return [each[0] for each in found if each is not None]


class SegmentationSearch:
    """Covers of a unit by runs of operators, as far as these are predicted or measured.  levels: those of one grant.

    guess: float64 [levels, ways, operators, lengths] (`planner.run_costs`); infinite where a way is predicted, or does not fit.
    prices: run -> gene -> float64 [levels], predicted or measured.  told: genes whose prices are measured, in their order.
    least: float64 [levels, operators, lengths], of a run's prices.  scale: float64 [levels], of guesses.

    Raises `InfeasibleError` where some operator fits in no way.
    """

    def __init__(self, target_graph: TargetGraph, levels: Sequence[str], predict: Predict, told: Progress = nobody) -> None:
        self.target_graph, self.levels, self.predict, self._told = target_graph, levels, predict, told
        self.within, self.structures = at_level(target_graph, levels[0]), Structures(target_graph)
        self.ways = _ways(target_graph, levels[0])
        every = [target_graph.machine.contention[level] for level in levels]
        self.guess = guesses(
            self.within, sizes_of(target_graph), self.ways, alone(target_graph, self.structures, self.ways), every
        ) + _border(target_graph)
        self.scale, self._above = np.ones(len(levels)), list[Floats]()
        self._first_guess = self.guess.copy()
        self.prices: dict[tuple[int, int], dict[Gene, Floats]] = {}
        self.told: dict[Gene, None] = {}
        self.least = np.full((len(levels), *self.guess.shape[2:]), np.inf)
        self._known: dict[object, Floats | None] = {}
        self._add_stuck()
        self._look(genes_in_passes(target_graph, self.structures, self.ways[0]))  # of which no guess knows
        self._look(genes_in_strips(target_graph, self.structures, self.ways[0]))

    def cheapest(self, level: int) -> tuple[Genome, float] | None:
        """The lazy shortest path, and its length; None where nothing that was measured of some operator fits.  level: a place."""
        while True:
            guess = self.scale[level] * self.guess[level].min(0)
            found = shortest(np.minimum(guess, self.least[level]))
            if found is None:
                return None
            runs, total = found
            asked: list[Gene] = []
            for i, j in runs:
                at = j - 1, j - i - 1
                if guess[at] < self.least[level][at]:
                    asked += self._hopeful(level, i, j)
            if not asked:
                return tuple(self._cheapest_of(run, level) for run in runs), float(total[-1])
            self._look(asked)

    def cheapest_measured(self, level: int) -> tuple[Genome, float] | None:
        """The shortest path of what is measured, and its length; None where there is none."""
        cost, fastest = np.full(self.least.shape[1:], np.inf), dict[tuple[int, int], Gene]()
        for gene in self.told:
            run, at = (gene.start, gene.stop), (gene.stop - 1, gene.stop - gene.start - 1)
            if (took := self.prices[run][gene][level]) < cost[at]:
                cost[at], fastest[run] = took, gene
        found = shortest(cost)
        return None if found is None else (tuple(fastest[run] for run in found[0]), float(found[1][-1]))

    def tell(self, gene: Gene, cycles: Floats) -> None:
        """What a gene was measured to take, float64 [levels]; infinite where it does not fit."""
        self.told[gene] = None
        self._price(gene, cycles)

    def _price(self, gene: Gene, cycles: Floats) -> None:
        mine = self.prices.setdefault((gene.start, gene.stop), {})
        mine[gene] = cycles
        self.least[:, gene.stop - 1, gene.stop - gene.start - 1] = np.min([*mine.values()], axis=0)

    def _cheapest_of(self, run: tuple[int, int], level: int) -> Gene:
        """Of equals the one that came first."""
        mine = self.prices[run]
        return min(mine, key=lambda gene: float(mine[gene][level]))

    def _hopeful(self, level: int, i: int, j: int) -> list[Gene]:
        """A run's ways with the best guesses, which are used up."""
        mine, columns, found = self.guess[:, :, j - 1, j - i - 1], fewest_strips(self.within, i, j), []
        for way in np.argsort(mine[level], kind="stable")[:_FEW].tolist():
            if np.isfinite(mine[level, way]):
                mine[:, way] = np.inf
                gene = self.ways[way]._replace(start=i, stop=j, columns=columns)
                found.append(gene)
                if gene.cached and j - i <= _MADE_AGAIN and has_halos(self.target_graph, i, j):
                    found.append(gene._replace(cached=0))
        return found

    def _look(self, genes: Sequence[Gene]) -> None:
        """Predict these, as far as they fit, those of equal structure once."""
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
            found = self._known[key]
            if found is not None:
                self._price(gene, found)
                self._compare(gene, found)
        if self._above:
            self.scale = np.clip(np.exp(np.quantile(self._above, _LOW, axis=0)), 1.0, _MOST)

    def _compare(self, gene: Gene, predicted: Floats) -> None:
        """What is predicted of a way with its guess."""
        way = gene._replace(start=0, stop=1, columns=1)
        if way in self.ways:
            guess = self._first_guess[:, self.ways.index(way), gene.stop - 1, gene.stop - gene.start - 1]
            if np.isfinite(guess).all():
                self._above.append(np.log(predicted / guess))

    def _add_stuck(self) -> None:
        """Operators that fit in none of the ways, as a search begins with them: in more blocks, or in strips."""
        stuck = np.flatnonzero(~np.isfinite(self.guess[0, :, :, 0]).any(0)).tolist()
        if not stuck:
            return
        genome = single_operators(self.within)
        if isinstance(genome, Infeasible):
            raise InfeasibleError(f"{self.target_graph.machine.name}: no plan fits level {self.levels[0]}: {genome}")
        first = self.ways[0]
        self._look([everywhere(self.target_graph, genome[k]._replace(grant=first.grant), len(first.cores)) for k in stuck])


def _ways(target_graph: TargetGraph, level: str) -> list[Gene]:
    """Genes of any place."""
    width = target_graph.machine.granted(level).cores
    narrow = Gene(0, 1, grant=grant_of(target_graph, level))
    wide = narrow._replace(cores=tuple(range(width)))
    highest = max(rows.size for rows in needed(target_graph))
    rows = [wide._replace(blocks=count, cached=-1 if count > 1 else 0) for count in BLOCKS if width <= count * target_graph.images]
    rows = [way for way in rows if way.blocks <= max(1, highest)]
    rows += [wide._replace(images=count) for count in counts_together(target_graph) if count > 1 and width <= target_graph.images // count]
    if width == 1:
        return rows
    return [*rows, *(wide._replace(blocks=count, split="channels") for count in _WIDE), narrow]
