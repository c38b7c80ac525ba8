"""An island's look at segments: near the covers that are best now, those that are expected to help, and a share at random."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from compiler.space.gene import Gene, Genome, widths
from tuner.search.asking import Asking
from tuner.search.explore import propose
from tuner.search.lab import Lab
from tuner.search.population import Island


def explore(lab: Lab, island: Island) -> Asking[None]:
    """Measure so many of this island's own segments (`dealing`).

    Where segments are placed, each number of cores has a share of its own: segments on fewer cores take longer, so in one pool they would
    never be among those that are expected to help, and all cores have as much as a search that knows nothing else.
    """
    rules, segments = lab.rules, lab.config.segments
    # on several cores there are that many times as many segments
    every = [-(-count * rules.several // rules.islands) for count in (segments.candidates, segments.measured)]
    several = rules.several > 1
    costs = [found for level in range(len(rules.levels)) if (found := _best_now(lab, island, level, several)) is not None]
    if not costs:
        return
    bests = [genome for genome, _ in costs]
    now = np.stack([cost for _, cost in costs], 1)
    moves = {name: move for name, move in rules.moves.items() if name != "change_cores"} if several else rules.moves
    wide = rules.unit.machine.cores if several else None
    pool = propose(rules.unit, lab.table, bests, every[0], island.rng, moves, wide, lab.share)
    yield from _measure_best(lab, island.rng, pool, now, every[1])
    if lab.placer is None:
        return
    # what is done for all cores is what it would be without placement, so these numbers come from elsewhere
    rng = island.aside(1)
    count, many = (-(-share // rules.several) for share in every)
    covers = [lab.table.cover(level, lab.known.border[level]) for level in range(len(rules.levels))]
    for width in reversed(widths(rules.unit)[:-1]):
        narrow = [lab.table.cover(level, lab.known.border[level], width=width) for level in range(len(rules.levels))]
        near = [cover[0] for cover in (*covers, *narrow) if cover is not None]
        pool = propose(rules.unit, lab.table, near, count, rng, moves, width, lab.share)
        yield from _measure_best(lab, rng, pool, now, many)


def _measure_best(lab: Lab, rng: np.random.Generator, genes: list[Gene], now: NDArray[np.float64], many: int) -> Asking[None]:
    """Measure so many: those that look best against what their operators cost now, and some of the others.

    now: float64 [operators + 1, levels], what the first j cost.
    """
    pool = lab.wanted(genes)
    raws = yield from lab.features(pool)
    pool = [gene for gene, raw in zip(pool, raws, strict=True) if raw is not None]
    known = [raw for raw in raws if raw is not None]
    if not pool:
        return
    predicted = lab.predict(np.stack(known))
    starts, stops = np.array([g.start for g in pool]), np.array([g.stop for g in pool])
    merit = (predicted / np.maximum(now[stops] - now[starts], 1.0)).min(1)
    lucky = round(many * lab.config.segments.epsilon)
    order = np.argsort(merit, kind="stable")
    chosen = list(order[: many - lucky])
    chosen += list(rng.permutation(order[many - lucky :])[:lucky])
    yield from lab.measure_segments([pool[i] for i in chosen], predicted[chosen])


def _best_now(lab: Lab, island: Island, level: int, wide: bool) -> tuple[Genome, NDArray[np.float64]] | None:
    """The genome near which segments are looked for, and what its first j operators cost, float64 [operators + 1]."""
    if lab.config.use.covers:
        width = lab.unit.machine.cores if wide else None
        found, plain = lab.table.cover(level, lab.known.border[level], width=width), lab.table.cover(level, width=width)
        return None if found is None or plain is None else (found[0], plain[1])
    if not island.members:
        return None
    best = island.best(level)
    alone = [cycles[level] if (cycles := lab.table.of(gene)) is not None else np.nan for gene in best.genome]
    share = best.cycles[level] / len(lab.unit.kernels)  # of an operator, where its segment was never measured alone
    each = [
        np.full(gene.stop - gene.start, share if np.isnan(cost) else cost / (gene.stop - gene.start))
        for gene, cost in zip(best.genome, alone, strict=True)
    ]
    return best.genome, np.concatenate(([0.0], np.cumsum(np.concatenate(each))))
