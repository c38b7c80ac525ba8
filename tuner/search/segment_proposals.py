"""Segments that a job measures: near the best segmentations, expected to help, and a share at random.

Segmentations under noisy costs, and moves drawn by their past gains, brought no difference beyond noise.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from compiler.cost.features import scale_features
from compiler.space.gene import Gene, Genome, widths
from compiler.space.level_limits import within_level
from tuner.measure.grants import NEVER
from tuner.measure.request import Proposal
from tuner.search.ask_tell import Asking
from tuner.search.context import SearchContext
from tuner.search.expected_improvement import corrections, expected_savings
from tuner.search.explore import Within, propose_segments


def explore_segments(context: SearchContext) -> Asking[None]:
    """Measure new segments of this job's shard (`sharding`).

    With placement, each number of cores has its own share: segments on fewer cores take longer, so in a common ranking they would never be
    among the promising ones.  All cores get as much as in a search without placement.
    """
    rules, segments = context.rules, context.config.segments
    counts = [count * rules.several for count in (segments.candidates, segments.measured)]
    several = rules.several > 1
    every_level = range(len(rules.levels))
    widths_of = [granted.cores if several else None for granted in rules.granted]
    bests = {level: segmentation for level in every_level if (segmentation := _best_now(context, level, widths_of[level])) is not None}
    if not bests:
        return
    moves = {name: move for name, move in rules.moves.items() if name != "change_cores"} if several else rules.moves

    def draw(near: Iterable[tuple[int, Genome]], count: int, rng: np.random.Generator, width: int | None) -> dict[Gene, str]:
        """Draw new genes near pairs of level and genome."""
        levels, genomes = zip(*near, strict=True)
        return propose_segments(
            rules.target_graph, context.table, genomes, count, rng, moves, segments, width, context.share, _fits(context, levels)
        )

    wide = rules.target_graph.machine.cores if several else None
    yield from _measure_best(context, context.rng, draw(bests.items(), counts[0], context.rng, wide), bests, counts[1], wide)
    if context.placer is None:
        for width in {granted.cores: None for granted in rules.granted if several and granted.cores < rules.target_graph.machine.cores}:
            yield from _measure_best(context, context.rng, draw(bests.items(), counts[0], context.rng, width), bests, counts[1], width)
        return
    # separate random numbers: the choices for all cores equal those of a search without placement
    rng = context.generator(1)
    count, many = (-(-share // rules.several) for share in counts)
    segmentations = [(level, context.table.segmentation(level, context.known.border[level])) for level in range(len(rules.levels))]
    for width in reversed(widths(rules.target_graph)[:-1]):
        narrow = [(level, context.table.segmentation(level, context.known.border[level], width=width)) for level, _ in segmentations]
        near = [(level, segmentation[0]) for level, segmentation in (*segmentations, *narrow) if segmentation is not None]
        if not near:  # no level grants the gene's cores
            continue
        yield from _measure_best(context, rng, draw(near, count, rng, width), bests, many, width)


def _fits(context: SearchContext, levels: Iterable[int]) -> list[Within] | None:
    """Limits to the L1 of each level, as functions on genes."""
    if not context.rules.less:
        return None
    return [partial(within_level, context.target_graph, level=context.rules.levels[level]) for level in levels]


def _measure_best(
    context: SearchContext, rng: np.random.Generator, genes: Mapping[Gene, str], levels: Collection[int], many: int, width: int | None
) -> Asking[None]:
    """Measure `many` genes: the most promising ones, single operators that may improve the baseline, and random ones.

    genes: from `propose`.  width: see `expected_savings`.
    """
    for gene, by in genes.items():
        context.propose(gene, Proposal(by))
    pool = context.wanted([*genes])
    raws = yield from context.features(pool)
    fresh = _with_new_features(context, pool, raws)
    if not fresh:
        return
    pool, features = [gene for gene, _ in fresh], np.stack([raw for _, raw in fresh])
    predicted = np.minimum(context.predicted(pool, features) * corrections(context, pool), NEVER)
    promised = yield from expected_savings(context, pool, predicted, levels, width)
    lucky = round(many * context.config.segments.epsilon)
    order = np.argsort(-promised, kind="stable")
    chosen, unchosen = order[: many - lucky].tolist(), order[many - lucky :]
    chosen += _fastest_alone(context, pool, predicted, unchosen.tolist())[: lucky // 2]
    chosen += [i for i in rng.permutation(unchosen).tolist() if i not in chosen][: many - len(chosen)]
    yield from context.measure_segments([pool[i] for i in chosen], predicted[chosen])


def _fastest_alone(context: SearchContext, genes: Sequence[Gene], predicted: NDArray[np.float64], places: Sequence[int]) -> list[int]:
    """Places of single operators, sorted by expected cycles over the best measured cycles."""
    singles = context.table.singles()
    if singles is None:
        return []
    measured = [context.table.of(gene) for gene in singles]
    merit = {}
    for place in places:
        best = measured[genes[place].start]
        if genes[place].stop - genes[place].start == 1 and best is not None:
            merit[place] = float(np.log(predicted[place] / best).mean())
    return sorted(merit, key=lambda place: (merit[place], place))


def _with_new_features(
    context: SearchContext, genes: Sequence[Gene], raws: Sequence[NDArray[np.float64] | None]
) -> list[tuple[Gene, NDArray[np.float64]]]:
    """Fitting genes that differ in features from all measured ones and from each other: equal features have equal predictions."""
    distinct: dict[tuple[str, bytes], tuple[Gene, NDArray[np.float64]]] = {}
    for gene, raw in zip(genes, raws, strict=True):
        if raw is not None:
            look = context.table.structures.structure(gene.start, gene.stop), scale_features(raw).tobytes()
            if look not in context.table.seen:
                distinct.setdefault(look, (gene, raw))
    return list(distinct.values())


def _best_now(context: SearchContext, level: int, width: int | None) -> Genome | None:
    """Genome whose neighbourhood is explored."""
    if context.config.use.segmentations:
        segmentation = context.table.segmentation(level, context.known.border[level], width=width)
        return None if segmentation is None else segmentation[0]
    population = context.known.population
    return population.best(level).genome if population.members else None
