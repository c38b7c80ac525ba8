"""Segments that a job measures: near the best segmentations, expected to help, and a share at random.

Segmentations under noisy costs, and moves drawn by their past gains, brought no difference beyond noise.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from math import ceil

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

_OF_PROGRAMS = 3  # a model of one operator on several cores has one of so many segments measured


def explore_segments(context: SearchContext) -> Asking[None]:
    """Measure new segments of this job's shard (`sharding`).

    With placement, each number of cores has its own share: segments on fewer cores take longer, so in a common ranking they would never be
    among the promising ones.  All cores get as much as in a search without placement.
    """
    rules, segments = context.rules, context.config.segments
    has_cores = rules.several > 1
    # a segment on all cores of a short model takes as long as a program: not many times as many as on one core
    several = min(rules.several, len(rules.target_graph.operators))
    counts = [count * several for count in (segments.candidates, segments.measured)]
    if has_cores and len(rules.target_graph.operators) == 1:  # each of its segments is a program
        counts[1] = ceil(counts[1] / _OF_PROGRAMS)
    every_level = range(len(rules.levels))
    level_widths = [granted.cores if has_cores else None for granted in rules.granted]
    bests = {level: segmentation for level in every_level if (segmentation := _best_now(context, level, level_widths[level])) is not None}
    if not bests:
        return
    moves = {name: move for name, move in rules.moves.items() if name != "change_cores"} if has_cores else rules.moves

    def draw(starting_points: Iterable[tuple[int, Genome]], count: int, rng: np.random.Generator, width: int | None) -> dict[Gene, str]:
        """Draw new genes near pairs of level and genome."""
        levels, genomes = zip(*starting_points, strict=True)
        return propose_segments(
            rules.target_graph, context.table, genomes, count, rng, moves, segments, width, context.share, _fits(context, levels)
        )

    wide = rules.target_graph.machine.cores if has_cores else None
    yield from _measure_best(context, context.rng, draw(bests.items(), counts[0], context.rng, wide), bests, counts[1], wide)
    if context.placer is None:
        for width in {granted.cores: None for granted in rules.granted if has_cores and granted.cores < rules.target_graph.machine.cores}:
            yield from _measure_best(context, context.rng, draw(bests.items(), counts[0], context.rng, width), bests, counts[1], width)
        return
    # separate random numbers: the choices for all cores equal those of a search without placement
    rng = context.generator(1)
    count, measured_count = (-(-share // rules.several) for share in counts)
    segmentations = [(level, context.table.segmentation(level, context.known.border[level])) for level in range(len(rules.levels))]
    for width in reversed(widths(rules.target_graph)[:-1]):
        narrow = [(level, context.table.segmentation(level, context.known.border[level], width=width)) for level, _ in segmentations]
        starting_points = [(level, segmentation[0]) for level, segmentation in (*segmentations, *narrow) if segmentation is not None]
        if not starting_points:  # no level grants the gene's cores
            continue
        yield from _measure_best(context, rng, draw(starting_points, count, rng, width), bests, measured_count, width)


def _fits(context: SearchContext, levels: Iterable[int]) -> list[Within] | None:
    """Limits to the L1 of each level, as functions on genes."""
    if not context.rules.less:
        return None
    return [partial(within_level, context.target_graph, level=context.rules.levels[level]) for level in levels]


def _measure_best(
    context: SearchContext,
    rng: np.random.Generator,
    genes: Mapping[Gene, str],
    levels: Collection[int],
    measured_count: int,
    width: int | None,
) -> Asking[None]:
    """Measure `measured_count` genes: the most promising ones, single operators that may improve the baseline, and random ones.

    genes: from `propose`.  width: see `expected_savings`.
    """
    for gene, proposer in genes.items():
        context.propose(gene, Proposal(proposer))
    pool = context.unmeasured([*genes])
    raws = yield from context.features(pool)
    new_genes = _with_new_features(context, pool, raws)
    if not new_genes:
        return
    pool, features = [gene for gene, _ in new_genes], np.stack([raw for _, raw in new_genes])
    predicted = np.minimum(context.predicted(pool, features) * corrections(context, pool), NEVER)
    savings = yield from expected_savings(context, pool, predicted, levels, width)
    lucky = round(measured_count * context.config.segments.epsilon)
    order = np.argsort(-savings, kind="stable")
    picks, remainder = order[: measured_count - lucky].tolist(), order[measured_count - lucky :]
    picks += _fastest_alone(context, pool, predicted, remainder.tolist())[: lucky // 2]
    picks += [i for i in rng.permutation(remainder).tolist() if i not in picks][: measured_count - len(picks)]
    yield from context.measure_segments([pool[i] for i in picks], predicted[picks])


def _fastest_alone(context: SearchContext, genes: Sequence[Gene], predicted: NDArray[np.float64], places: Sequence[int]) -> list[int]:
    """Places of single operators, sorted by expected cycles over the best measured cycles."""
    singles = context.table.singles()
    if singles is None:
        return []
    measured = [context.table.find_cycles(gene) for gene in singles]
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
            if look not in context.table.plan_keys:
                distinct.setdefault(look, (gene, raw))
    return list(distinct.values())


def _best_now(context: SearchContext, level: int, width: int | None) -> Genome | None:
    """Genome whose neighbourhood is explored."""
    if context.config.use.segmentations:
        segmentation = context.table.segmentation(level, context.known.border[level], width=width)
        return None if segmentation is None else segmentation[0]
    population = context.known.population
    return population.best(level).genome if population.members else None
