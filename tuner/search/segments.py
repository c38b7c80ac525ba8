"""An island's look at segments: near the segmentations that are best now, those that are expected to help, and a share at random."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from math import erfc, pi, sqrt
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from compiler.space.gene import MAX_SEGMENT, Gene, Genome, widths
from compiler.space.granted import within_level
from compiler.space.shortest import through
from tuner.search.asking import Asking
from tuner.search.context import SearchContext
from tuner.search.explore import Within, propose
from tuner.search.population import Island

Floats = NDArray[np.float64]
_DOUBT = (0.05, 0.08)  # standard error of a predicted ratio (logarithm): of the same operators, and of others than those of one segment


class Near(NamedTuple):
    """What is best at a level.  prices: of known runs, float64 [operators, lengths] (`space.shortest`).  border: that they save."""

    genome: Genome
    prices: Floats
    border: float

    @property
    def took(self) -> Floats:
        """Cycles of every segment, float64 [segments]."""
        return self.prices[[gene.stop - 1 for gene in self.genome], [gene.stop - gene.start - 1 for gene in self.genome]]


def explore(context: SearchContext, island: Island) -> Asking[None]:
    """Measure so many of this island's own segments (`dealing`).

    Where segments are placed, each number of cores has a share of its own: segments on fewer cores take longer, so in one pool they would
    never be among those that are expected to help, and all cores have as much as a search that knows nothing else.
    """
    rules, segments = context.rules, context.config.segments
    # on several cores there are that many times as many segments
    every = [-(-count * rules.several // rules.islands) for count in (segments.candidates, segments.measured)]
    several = rules.several > 1
    near = {level: found for level in range(len(rules.levels)) if (found := _best_now(context, island, level, several)) is not None}
    if not near:
        return
    bests = {level: each.genome for level, each in near.items()}
    moves = {name: move for name, move in rules.moves.items() if name != "change_cores"} if several else rules.moves
    wide = rules.unit.machine.cores if several else None
    pool = propose(rules.unit, context.table, [*bests.values()], every[0], island.rng, moves, wide, context.share, _fits(context, bests))
    yield from _measure_best(context, island.rng, pool, near, every[1])
    if context.placer is None:
        for width in {granted.cores: None for granted in rules.granted if several and granted.cores < rules.unit.machine.cores}:
            pool = propose(
                rules.unit, context.table, [*bests.values()], every[0], island.rng, moves, width, context.share, _fits(context, bests)
            )
            yield from _measure_best(context, island.rng, pool, near, every[1])
        return
    # what is done for all cores is what it would be without placement, so these numbers come from elsewhere
    rng = island.aside(1)
    count, many = (-(-share // rules.several) for share in every)
    segmentations = [(level, context.table.segmentation(level, context.known.border[level])) for level in range(len(rules.levels))]
    for width in reversed(widths(rules.unit)[:-1]):
        narrow = [(level, context.table.segmentation(level, context.known.border[level], width=width)) for level, _ in segmentations]
        bases = [(level, found[0]) for level, found in (*segmentations, *narrow) if found is not None]
        if not bases:  # no level leaves so many cores
            continue
        levels, genomes = zip(*bases, strict=True)
        pool = propose(rules.unit, context.table, genomes, count, rng, moves, width, context.share, _fits(context, levels))
        yield from _measure_best(context, rng, pool, near, many)


def _fits(context: SearchContext, levels: Iterable[int]) -> list[Within] | None:
    """What makes a gene fit the L1 that each of the levels leaves."""
    if not context.rules.less:
        return None
    return [partial(within_level, context.unit, level=context.rules.levels[level]) for level in levels]


def _measure_best(context: SearchContext, rng: np.random.Generator, genes: list[Gene], near: Mapping[int, Near], many: int) -> Asking[None]:
    """Measure so many: those of which most is hoped, and some of the others.  near: by level."""
    pool = context.wanted(genes)
    placed = [gene for each in near.values() for gene in each.genome]
    raws = yield from context.features([*pool, *placed])
    found = {gene: raw for gene, raw in zip((*pool, *placed), raws, strict=True) if raw is not None}
    pool = [gene for gene in pool if gene in found]
    if not pool:
        return
    predicted = context.predicted(pool, np.stack([found[gene] for gene in pool]))
    hope = np.zeros(len(pool))
    for level, each in near.items():
        now = context.predict(np.stack([found[gene] for gene in each.genome]))[:, level]
        hope = np.maximum(hope, _hope(pool, predicted[:, level], each, now))
    lucky = round(many * context.config.segments.epsilon)
    order = np.argsort(-hope, kind="stable")
    chosen = list(order[: many - lucky])
    chosen += list(rng.permutation(order[many - lucky :])[:lucky])
    yield from context.measure_segments([pool[i] for i in chosen], predicted[chosen])


def _hope(pool: Sequence[Gene], predicted: Floats, near: Near, expected: Floats) -> Floats:
    """Expected improvement of the whole program, as a share of it.

    A prediction is off by about as much for a segment as for those that are in its place now, so it is their ratio that is believed;
    and what counts is the cheapest program that has it, whose other segments may not be measured either.
    expected: of the segments now, float64 [segments].
    """
    off = np.repeat((near.took + near.border) / expected, [gene.stop - gene.start for gene in near.genome])
    off = np.concatenate(([0.0], np.cumsum(off)))
    starts, stops = np.array([gene.start for gene in pool]), np.array([gene.stop for gene in pool])
    alone = predicted * (off[stops] - off[starts]) / (stops - starts)
    cost = np.maximum(alone - near.border, 0.5 * alone)
    at = stops - 1, stops - starts - 1
    mixed = near.prices.copy()
    np.minimum.at(mixed, at, cost)
    total, now = through(mixed), float(near.took.sum())
    there = {(gene.start, gene.stop) for gene in near.genome}
    doubt = cost * np.where([(gene.start, gene.stop) in there for gene in pool], *_DOUBT)
    z = (now - (total[at] - mixed[at] + cost)) / doubt
    with np.errstate(invalid="ignore"):  # of what has no end, nothing is hoped
        gain: Floats = doubt * (z * _below(z) + np.exp(-z * z / 2) / sqrt(2 * pi))
    return np.where(np.isfinite(gain), gain / now, 0.0)


def _below(z: Floats) -> Floats:
    """Standard normal distribution function."""
    return np.array([0.5 * erfc(-each / sqrt(2)) for each in z.tolist()])


def _best_now(context: SearchContext, island: Island, level: int, wide: bool) -> Near | None:
    """Near what segments are looked for."""
    if context.config.use.segmentations:
        width = context.rules.granted[level].cores if wide else None
        border = float(context.known.border[level])
        found = context.table.segmentation(level, border, width=width)
        return None if found is None else Near(found[0], context.table.prices(level, border, width=width)[0], border)
    if not island.members:
        return None
    best = island.best(level)
    alone = [cycles[level] if (cycles := context.table.of(gene)) is not None else np.nan for gene in best.genome]
    share = best.cycles[level] / len(context.unit.operators)  # of an operator, where its segment was never measured alone
    prices = np.full((len(context.unit.operators), MAX_SEGMENT), np.inf)
    for gene, cost in zip(best.genome, alone, strict=True):
        prices[gene.stop - 1, gene.stop - gene.start - 1] = share * (gene.stop - gene.start) if np.isnan(cost) else cost
    return Near(best.genome, prices, 0.0)
