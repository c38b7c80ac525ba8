"""An island's look at segments: near the covers that are best now, those that are expected to gain most, and a share at random."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from compiler.derive.gene import Gene, Genome
from tuner.search.explore import propose, ways
from tuner.search.lab import Lab
from tuner.search.population import Island

# Predictions are wrong by factors: the middles of equal shares of a normal distribution, to be scaled by how wrong.
_NORMAL = np.array([-1.645, -1.036, -0.674, -0.385, -0.126, 0.126, 0.385, 0.674, 1.036, 1.645])

Costs = Sequence[tuple[NDArray[np.float64], NDArray[np.float64]]]
"""Of every level, what the first j operators cost at best, and what those from j on, float64 [operators + 1]."""


def explore(lab: Lab, island: Island) -> None:
    """Measure this island's share of an epoch's segments, in rounds: each knows what the last one found."""
    rules, segments = lab.rules, lab.config.segments
    rounds = segments.rounds
    many = -(-segments.measured * rules.several // (rules.islands * rounds))  # on several cores there are that many times as many segments
    looked_at = -(-segments.candidates * rules.several // (rules.islands * rounds))
    for _ in range(rounds):
        _look(lab, island, many, looked_at)


def _look(lab: Lab, island: Island, many: int, looked_at: int) -> None:
    """Measure `many` of `looked_at` new genes."""
    rules, segments = lab.rules, lab.config.segments
    bests = [found for level in range(len(rules.levels)) if (found := _best_now(lab, island, level)) is not None]
    if not bests:
        return
    near = [best for best, _, _ in bests]
    if lab.placer is not None:
        border, width = lab.known.border, rules.unit.machine.cores
        wide = [lab.table.cover(level, border[level], width=width) for level in range(len(rules.levels))]
        near += [cover[0] for cover in wide if cover is not None]
    names = ways(rules.moves)
    found = propose(rules.unit, lab.table, near, looked_at, island.rng, rules.moves, island.credit.shares(names))
    way_of = {gene: way for gene, way in found}
    pool = lab.wanted([rules.permitted(gene) for gene in way_of])
    raws = lab.features(pool)
    pool = [gene for gene, raw in zip(pool, raws, strict=True) if raw is not None]
    known = [raw for raw in raws if raw is not None]
    if not pool:
        return
    predicted = lab.predict(np.stack(known))
    costs = [(front, back) for _, front, back in bests]
    merit = gains(lab, pool, predicted[..., None] * np.exp(segments.error * _NORMAL), costs)
    lucky = round(many * segments.epsilon)
    order = np.argsort(-merit, kind="stable")
    chosen = list(order[: many - lucky])
    chosen += list(island.rng.permutation(order[many - lucky :])[:lucky])
    picked = [pool[i] for i in chosen]
    lab.measure_segments(picked, predicted[chosen])
    _credit(lab, island, way_of, picked, costs)


def _credit(
    lab: Lab, island: Island, way_of: Mapping[Gene, str], measured: Sequence[Gene], costs: Costs
) -> None:
    """What each way gained, of what was known before."""
    cycles = [lab.table.of(gene) for gene in measured]
    fitting = [gene for gene, each in zip(measured, cycles, strict=True) if each is not None]
    gained: dict[str, float] = {}
    if fitting:
        real = np.stack([each for each in cycles if each is not None])
        for gene, gain in zip(fitting, gains(lab, fitting, real[..., None].astype(np.float64), costs).tolist(), strict=True):
            way = way_of.get(gene)
            if way is not None:
                gained[way] = gained.get(way, 0.0) + gain
    island.credit.note(list(way_of.values()), gained)


def gains(lab: Lab, genes: Sequence[Gene], cycles: NDArray[np.float64], costs: Costs) -> NDArray[np.float64]:
    """By which share of the cheapest cover's cycles each gene lowers it, over the levels by their weights, float64 [genes].

    cycles: float64 [genes, levels, n], n equally likely cases.  A gene counts at every place where operators compute what its own do.
    """
    border, weights = lab.known.border, lab.rules.level_weights
    places = [(at, i, j) for at, gene in enumerate(genes) for i, j in lab.table.places(gene)]
    ats, starts, stops = np.array(places, np.int64).reshape(-1, 3).T
    out = np.zeros(len(genes))
    for level, (front, back) in enumerate(costs):
        room = front[-1] - front[starts] - back[stops]  # a segment that costs less makes the whole cheaper
        price = np.maximum(cycles[:, level] - border[level], 0.5 * cycles[:, level])
        gain = np.maximum(room[:, None] - price[ats], 0.0).mean(1) / front[-1]
        np.add.at(out, ats, weights[level] * gain)
    return out


def _best_now(lab: Lab, island: Island, level: int) -> tuple[Genome, NDArray[np.float64], NDArray[np.float64]] | None:
    """The genome near which segments are looked for, what its first j operators cost, and what those from j on cost."""
    if lab.config.use.covers:
        border = float(lab.known.border[level])
        found = lab.table.cover(level, border)
        return None if found is None else (*found, lab.table.suffixes(level, border))
    if not island.members:
        return None
    best = island.best(level)
    alone = [cycles[level] if (cycles := lab.table.of(gene)) is not None else np.nan for gene in best.genome]
    share = best.cycles[level] / len(lab.unit.kernels)  # of an operator, where its segment was never measured alone
    each = [
        np.full(gene.stop - gene.start, share if np.isnan(cost) else cost / (gene.stop - gene.start))
        for gene, cost in zip(best.genome, alone, strict=True)
    ]
    front = np.concatenate(([0.0], np.cumsum(np.concatenate(each))))
    return best.genome, front, front[-1] - front
