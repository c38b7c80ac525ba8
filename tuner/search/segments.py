"""An island's look at segments: near the covers that are best now, those that are expected to help, and a share at random."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from compiler.derive.gene import Genome
from tuner.search.explore import propose
from tuner.search.lab import Lab
from tuner.search.population import Island


def explore(lab: Lab, island: Island) -> None:
    """Measure this island's share of an epoch's segments."""
    rules, segments = lab.rules, lab.config.segments
    many = -(-segments.measured * rules.several // rules.islands)  # on several cores there are that many times as many segments
    looked_at = -(-segments.candidates * rules.several // rules.islands)
    bests = [found for level in range(len(rules.levels)) if (found := _best_now(lab, island, level)) is not None]
    if not bests:
        return
    near = [genome for genome, _ in bests]
    if lab.placer is not None:
        border, width = lab.known.border, rules.unit.machine.cores
        wide = [lab.table.cover(level, border[level], width=width) for level in range(len(rules.levels))]
        near += [cover[0] for cover in wide if cover is not None]
    pool = lab.wanted(propose(rules.unit, lab.table, near, looked_at, island.rng, rules.moves))
    raws = lab.features(pool)
    pool = [gene for gene, raw in zip(pool, raws, strict=True) if raw is not None]
    known = [raw for raw in raws if raw is not None]
    if not pool:
        return
    predicted = lab.predict(np.stack(known))
    starts, stops = np.array([g.start for g in pool]), np.array([g.stop for g in pool])
    now = np.stack([cost[stops] - cost[starts] for _, cost in bests], 1)
    merit = (predicted / np.maximum(now, 1.0)).min(1)
    lucky = round(many * segments.epsilon)
    order = np.argsort(merit, kind="stable")
    chosen = list(order[: many - lucky])
    chosen += list(island.rng.permutation(order[many - lucky :])[:lucky])
    lab.measure_segments([pool[i] for i in chosen], predicted[chosen])


def _best_now(lab: Lab, island: Island, level: int) -> tuple[Genome, NDArray[np.float64]] | None:
    """The genome near which segments are looked for, and what its first j operators cost, float64 [operators + 1]."""
    if lab.config.use.covers:
        found, plain = lab.table.cover(level, lab.known.border[level]), lab.table.cover(level)
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
