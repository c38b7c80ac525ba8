"""An island's look at segments: near the covers that are best now, those that are expected to gain most, and a share at random."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from compiler.derive.gene import Gene, Genome
from tuner.search.explore import propose, unlimited
from tuner.search.lab import Lab
from tuner.search.population import Island

# the middles of ten equal shares of a normal distribution
_NORMAL = np.array([-1.645, -1.036, -0.674, -0.385, -0.126, 0.126, 0.385, 0.674, 1.036, 1.645])


class Costs(NamedTuple):
    """What the first j operators cost at best at a level, and what those from j on, float64 [operators + 1]."""

    front: NDArray[np.float64]
    back: NDArray[np.float64]


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
    many -= _unlimited(lab, [genome for genome, _ in bests], many // 4)
    pool = lab.wanted(propose(rules.unit, lab.table, near, looked_at, island.rng, rules.moves))
    raws = lab.features(pool)
    pool = [gene for gene, raw in zip(pool, raws, strict=True) if raw is not None]
    known = [raw for raw in raws if raw is not None]
    if not pool:
        return
    predicted = lab.predict(np.stack(known))
    merit = expected_gains(lab, pool, predicted, [costs for _, costs in bests])
    lucky = round(many * segments.epsilon)
    order = np.argsort(-merit, kind="stable")
    chosen = list(order[: many - lucky])
    chosen += list(island.rng.permutation(order[many - lucky :])[:lucky])
    lab.measure_segments([pool[i] for i in chosen], predicted[chosen])


def _unlimited(lab: Lab, near: Sequence[Genome], most: int) -> int:
    """Measure what the best covers would be without a limit to their windows, where that fits; returns how many segments that were."""
    if "change_window" not in lab.rules.moves:
        return 0
    genes = lab.wanted([gene for genome in near for gene in unlimited(lab.unit, genome)])
    found = [(gene, raw) for gene, raw in zip(genes, lab.features(genes), strict=True) if raw is not None][:most]
    if found:
        lab.measure_segments([gene for gene, _ in found], lab.predict(np.stack([raw for _, raw in found])))
    return len(found)


def expected_gains(lab: Lab, genes: Sequence[Gene], predicted: NDArray[np.float64], costs: Sequence[Costs]) -> NDArray[np.float64]:
    """By which share of its cycles each gene is expected to make the cheapest cover cheaper, weighted over the levels, float64 [genes].

    predicted: float64 [genes, levels].  costs: by level.  A prediction is wrong by a factor, so what is predicted to be a little too
    slow may still gain, and what could gain at several places of the network gains at all of them.
    """
    border, rules = lab.known.border, lab.rules
    places = [(at, start, stop) for at, gene in enumerate(genes) for start, stop in lab.table.places(gene)]
    ats, starts, stops = np.array(places, np.int64).reshape(-1, 3).T
    gains = np.zeros(len(genes))
    for level, (front, back) in enumerate(costs):
        price = predicted[:, level, None] * np.exp(lab.config.segments.error * _NORMAL)
        price = np.maximum(price - border[level], 0.5 * price)  # as in a cover
        room = front[-1] - front[starts] - back[stops]  # what costs less than this makes the whole cheaper
        gain = np.maximum(room[:, None] - price[ats], 0.0).mean(1) / front[-1]
        np.add.at(gains, ats, rules.level_weights[level] * gain)
    return gains


def _best_now(lab: Lab, island: Island, level: int) -> tuple[Genome, Costs] | None:
    """The genome near which segments are looked for, and what its operators cost."""
    if lab.config.use.covers:
        border = float(lab.known.border[level])
        found = lab.table.cover(level, border)
        return None if found is None else (found[0], Costs(found[1], lab.table.suffixes(level, border)))
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
    return best.genome, Costs(front, front[-1] - front)
