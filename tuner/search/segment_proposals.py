"""An island's look at segments: near the segmentations that are best now, those that are expected to help, and a share at random."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from compiler.cost.features import scaled
from compiler.space.gene import Gene, Genome, widths
from compiler.space.level_limits import within_level
from tuner.measure.grants import NEVER
from tuner.measure.request import Proposal
from tuner.search.ask_tell import Asking
from tuner.search.context import SearchContext
from tuner.search.expected_improvement import corrections, promises
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
    every_level = range(len(rules.levels))
    widths_of = [granted.cores if several else None for granted in rules.granted]
    bests = {level: found for level in every_level if (found := _best_now(context, island, level, widths_of[level])) is not None}
    if not bests:
        return
    moves = {name: move for name, move in rules.moves.items() if name != "change_cores"} if several else rules.moves
    wide = rules.target_graph.machine.cores if several else None
    pool = propose(
        rules.target_graph,
        context.table,
        [*bests.values()],
        every[0],
        island.rng,
        moves,
        segments,
        wide,
        context.share,
        _fits(context, bests),
    )
    yield from _measure_best(context, island.rng, pool, bests, every[1], wide)
    if context.placer is None:
        for width in {granted.cores: None for granted in rules.granted if several and granted.cores < rules.target_graph.machine.cores}:
            pool = propose(
                rules.target_graph,
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
            yield from _measure_best(context, island.rng, pool, bests, every[1], width)
        return
    # what is done for all cores is what it would be without placement, so these numbers come from elsewhere
    rng = island.aside(1)
    count, many = (-(-share // rules.several) for share in every)
    segmentations = [(level, context.table.segmentation(level, context.known.border[level])) for level in range(len(rules.levels))]
    for width in reversed(widths(rules.target_graph)[:-1]):
        narrow = [(level, context.table.segmentation(level, context.known.border[level], width=width)) for level, _ in segmentations]
        near = [(level, found[0]) for level, found in (*segmentations, *narrow) if found is not None]
        if not near:  # no level leaves so many cores
            continue
        levels, genomes = zip(*near, strict=True)
        pool = propose(
            rules.target_graph, context.table, genomes, count, rng, moves, segments, width, context.share, _fits(context, levels)
        )
        yield from _measure_best(context, rng, pool, bests, many, width)


def _fits(context: SearchContext, levels: Iterable[int]) -> list[Within] | None:
    """What makes a gene fit the L1 that each of the levels leaves."""
    if not context.rules.less:
        return None
    return [partial(within_level, context.target_graph, level=context.rules.levels[level]) for level in levels]


def _measure_best(
    context: SearchContext, rng: np.random.Generator, genes: Mapping[Gene, str], levels: Collection[int], many: int, width: int | None
) -> Asking[None]:
    """Measure so many: those that promise most, operators that may be faster alone, which make the baseline, and some at random.

    genes: as `propose` has them.  width: see `promises`.
    """
    for gene, by in genes.items():
        context.propose((gene,), Proposal(by))
    pool = context.wanted([*genes])
    raws = yield from context.features(pool)
    fresh = _unseen(context, pool, raws)
    if not fresh:
        return
    pool, known = [gene for gene, _ in fresh], np.stack([raw for _, raw in fresh])
    predicted = np.minimum(context.predicted(pool, known) * corrections(context, pool), NEVER)
    promised = yield from promises(context, pool, predicted, levels, width)
    lucky = round(many * context.config.segments.epsilon)
    order = np.argsort(-promised, kind="stable")
    chosen, others = order[: many - lucky].tolist(), order[many - lucky :]
    chosen += _fastest_alone(context, pool, predicted, others.tolist())[: lucky // 2]
    chosen += [i for i in rng.permutation(others).tolist() if i not in chosen][: many - len(chosen)]
    yield from context.measure_segments([pool[i] for i in chosen], predicted[chosen])


def _fastest_alone(context: SearchContext, genes: Sequence[Gene], predicted: NDArray[np.float64], places: Sequence[int]) -> list[int]:
    """Those of the places where an operator is alone, the one first that is expected to be fastest against the best that is known of it."""
    singles = context.table.singles()
    if singles is None:
        return []
    known = [context.table.of(gene) for gene in singles]
    merit = {}
    for at in places:
        best = known[genes[at].start]
        if genes[at].stop - genes[at].start == 1 and best is not None:
            merit[at] = float(np.log(predicted[at] / best).mean())
    return sorted(merit, key=lambda at: (merit[at], at))


def _unseen(
    context: SearchContext, genes: Sequence[Gene], raws: Sequence[NDArray[np.float64] | None]
) -> list[tuple[Gene, NDArray[np.float64]]]:
    """Those that fit and look like nothing that was measured, and like none of these before them: no prediction tells them apart."""
    out: dict[tuple[str, bytes], tuple[Gene, NDArray[np.float64]]] = {}
    for gene, raw in zip(genes, raws, strict=True):
        if raw is not None:
            look = context.table.structures.structure(gene.start, gene.stop), scaled(raw).tobytes()
            if look not in context.table.seen:
                out.setdefault(look, (gene, raw))
    return list(out.values())


def _best_now(context: SearchContext, island: Island, level: int, width: int | None) -> Genome | None:
    """The genome near which segments are looked for."""
    if context.config.use.segmentations:
        found = context.table.segmentation(level, context.known.border[level], width=width)
        return None if found is None else found[0]
    return island.best(level).genome if island.members else None
