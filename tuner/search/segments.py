"""An island's look at segments: near the segmentations that are best now, those that are expected to help, and a share at random."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial

import numpy as np
from numpy.typing import NDArray

from compiler.space.gene import Gene, Genome, widths
from compiler.space.granted import within_level
from tuner.measure.grants import NEVER
from tuner.search.asking import Asking
from tuner.search.context import SearchContext
from tuner.search.explore import Within, propose
from tuner.search.population import Island


def explore(context: SearchContext, island: Island) -> Asking[None]:
    """Measure so many of this island's own segments (`dealing`).

    Where segments are placed, each number of cores has a share of its own: segments on fewer cores take longer, so in one pool they would
    never be among those that are expected to help, and all cores have as much as a search that knows nothing else.
    """
    rules, segments = context.rules, context.config.segments
    # on several cores there are that many times as many segments
    every = [-(-count * rules.several // rules.islands) for count in (segments.candidates, segments.measured)]
    several = rules.several > 1
    costs = {level: found for level in range(len(rules.levels)) if (found := _best_now(context, island, level, several)) is not None}
    if not costs:
        return
    bests = {level: genome for level, (genome, _) in costs.items()}
    now = {level: cost for level, (_, cost) in costs.items()}
    moves = {name: move for name, move in rules.moves.items() if name != "change_cores"} if several else rules.moves
    wide = rules.unit.machine.cores if several else None
    pool = propose(
        rules.unit, context.table, [*bests.values()], every[0], island.rng, moves, segments, wide, context.share, _fits(context, bests)
    )
    yield from _measure_best(context, island.rng, pool, now, every[1])
    if context.placer is None:
        for width in {granted.cores: None for granted in rules.granted if several and granted.cores < rules.unit.machine.cores}:
            pool = propose(
                rules.unit,
                context.table,
                [*bests.values()],
                every[0],
                island.rng,
                moves,
                segments,
                width,
                context.share,
                _fits(context, bests),
            )
            yield from _measure_best(context, island.rng, pool, now, every[1])
        return
    # what is done for all cores is what it would be without placement, so these numbers come from elsewhere
    rng = island.aside(1)
    count, many = (-(-share // rules.several) for share in every)
    segmentations = [(level, context.table.segmentation(level, context.known.border[level])) for level in range(len(rules.levels))]
    for width in reversed(widths(rules.unit)[:-1]):
        narrow = [(level, context.table.segmentation(level, context.known.border[level], width=width)) for level, _ in segmentations]
        near = [(level, found[0]) for level, found in (*segmentations, *narrow) if found is not None]
        if not near:  # no level leaves so many cores
            continue
        levels, genomes = zip(*near, strict=True)
        pool = propose(rules.unit, context.table, genomes, count, rng, moves, segments, width, context.share, _fits(context, levels))
        yield from _measure_best(context, rng, pool, now, many)


def _fits(context: SearchContext, levels: Iterable[int]) -> list[Within] | None:
    """What makes a gene fit the L1 that each of the levels leaves."""
    if not context.rules.less:
        return None
    return [partial(within_level, context.unit, level=context.rules.levels[level]) for level in levels]


def _measure_best(
    context: SearchContext, rng: np.random.Generator, genes: list[Gene], now: Mapping[int, NDArray[np.float64]], many: int
) -> Asking[None]:
    """Measure so many: those that look best against what their operators cost now, and some of the others.

    now: level -> float64 [operators + 1], what the first j cost.
    """
    pool = context.wanted(genes)
    raws = yield from context.features(pool)
    pool = [gene for gene, raw in zip(pool, raws, strict=True) if raw is not None]
    known = [raw for raw in raws if raw is not None]
    import os
    if os.environ.get("X_DEDUP"):
        from compiler.cost.features import scaled
        seen = {}
        for gene, raw in zip(pool, known):
            s, look = context.table.structures.structure(gene.start, gene.stop), scaled(raw).astype(np.float32).tobytes()
            if look not in context.table.features.get(s, {}):
                seen.setdefault((s, look), (gene, raw))
        pool, known = [g for g, _ in seen.values()], [r for _, r in seen.values()]
    if not pool:
        return
    predicted = context.predicted(pool, np.stack(known))
    import os
    if os.environ.get("X_RES"):
        predicted = predicted * np.exp(_corrections(context, pool))
    if os.environ.get("X_EI"):
        from scipy.stats import norm
        from compiler.space.shortest import through, shortest
        sd = float(os.environ["X_EI"])
        single = [g for genome in context.single_operators() for g in genome if context.table.of(g) is None]
        sraw = yield from context.features(single)
        sp = context.predicted(single, np.stack(sraw)) if single else np.zeros((0, len(context.rules.levels)))
        total = np.zeros(len(pool))
        for l in now:
            border = context.known.border[l]
            cost, _ = context.table.costs(l, border)
            cur = shortest(cost)[1][-1]
            for g, c in [*zip(single, sp[:, l]), *zip(pool, predicted[:, l])]:
                at = g.stop - 1, g.stop - g.start - 1
                cost[at] = min(cost[at], max(c - border, c / 2))
            room = through(cost)
            u = np.array([cur - room[g.stop - 1, g.stop - g.start - 1] for g in pool])
            p = np.maximum(predicted[:, l] - border, predicted[:, l] / 2)
            ok = u > 1
            d = np.log(np.maximum(u, 1) / p) / sd
            ei = np.where(ok, u * norm.cdf(d) - p * np.exp(sd * sd / 2) * norm.cdf(d - sd), 0)
            total += ei / cur
        order = np.argsort(-total, kind="stable")
        lucky = round(many * context.config.segments.epsilon)
        chosen = list(order[: many - lucky])
        chosen += list(rng.permutation(order[many - lucky :])[:lucky])
        yield from context.measure_segments([pool[i] for i in chosen], predicted[chosen])
        return
    starts, stops = np.array([g.start for g in pool]), np.array([g.stop for g in pool])
    cost = np.stack(list(now.values()), 1)
    merit = (predicted[:, list(now)] / np.maximum(cost[stops] - cost[starts], 1.0)).min(1)
    lucky = round(many * context.config.segments.epsilon)
    order = np.argsort(merit, kind="stable")
    chosen = list(order[: many - lucky])
    chosen += list(rng.permutation(order[many - lucky :])[:lucky])
    yield from context.measure_segments([pool[i] for i in chosen], predicted[chosen])


def _best_now(context: SearchContext, island: Island, level: int, wide: bool) -> tuple[Genome, NDArray[np.float64]] | None:
    """The genome near which segments are looked for, and what its first j operators cost, float64 [operators + 1]."""
    if context.config.use.segmentations:
        width = context.rules.granted[level].cores if wide else None
        found, plain = (
            context.table.segmentation(level, context.known.border[level], width=width),
            context.table.segmentation(level, width=width),
        )
        return None if found is None or plain is None else (found[0], plain[1])
    if not island.members:
        return None
    best = island.best(level)
    alone = [cycles[level] if (cycles := context.table.of(gene)) is not None else np.nan for gene in best.genome]
    share = best.cycles[level] / len(context.unit.operators)  # of an operator, where its segment was never measured alone
    each = [
        np.full(gene.stop - gene.start, share if np.isnan(cost) else cost / (gene.stop - gene.start))
        for gene, cost in zip(best.genome, alone, strict=True)
    ]
    return best.genome, np.concatenate(([0.0], np.cumsum(np.concatenate(each))))


def _corrections(context: SearchContext, genes: list[Gene]) -> NDArray[np.float64]:
    """float64 [genes, levels]: by how much predictions of such segments were wrong, in logarithms: of segments that share operators."""
    from compiler.cost.conditions import condition_of, under
    from compiler.cost.features import estimated
    table = context.table
    looks, cycles, which = [], [], []
    structures = []
    for s, found in table.features.items():
        mine = sorted(((float(np.log(c).mean()), look, c) for look, c in found.items() if c is not None and (c < NEVER).all()), key=lambda each: each[:2])[:3]
        if mine:
            for _, look, c in mine:
                looks.append(look); cycles.append(c); which.append(len(structures))
            structures.append(s)
    if not structures:
        return np.zeros((len(genes), len(context.rules.levels)))
    x = np.frombuffer(b"".join(looks), np.float32).reshape(len(looks), -1)
    pred = np.empty((len(looks), len(context.rules.levels)))
    for k, (model, level) in enumerate(zip(context.models, context.rules.levels)):
        pred[:, k] = estimated(under(x, condition_of(context.unit.machine, context.unit.dtype, level))) if model is None else model.predict(x)
    res = np.log(np.array(cycles)) - np.log(pred)
    count = np.bincount(which, minlength=len(structures)).astype(float)
    mean = np.stack([np.bincount(which, res[:, k], len(structures)) / count for k in range(res.shape[1])], 1)
    at = {s: n for n, s in enumerate(structures)}
    runs = np.array([(i, j, at[s]) for i, j, s in table._pairs if s in at])
    start, stop = np.array([g.start for g in genes])[:, None], np.array([g.stop for g in genes])[:, None]
    both = np.maximum(0, np.minimum(stop, runs[:, 1]) - np.maximum(start, runs[:, 0]))
    w = (both / ((stop - start) + (runs[:, 1] - runs[:, 0]) - both)) ** 2 * count[runs[:, 2]]
    return (w @ mean[runs[:, 2]]) / (w.sum(1) + 0.5)[:, None]
